# SPDX-License-Identifier: Apache-2.0
"""The shape of a tiled reduction nest: finding its parts, changing nothing.

A nest that fits reads, from the outside in::

    tile loops                      bound to blockIdx.*, T.parallel, or plain serial loops
      thread and virtual thread loops
        [ prelude, init nest, ..., panel loop, epilogue... ]

The *panel loop* is the outermost loop that a reduction iterator of the block depends on. Everything
before it and at its level (*prelude*) runs once per segment; everything after it (*epilogue*) once
per tile. A serial loop between thread loops counts as a tile loop: it is one more tile coordinate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import s_tir, tirx

from tvm_streamk.errors import (
    BlockNotFound,
    NotAReductionBlock,
    NotATiledNest,
    SeveralKernels,
)
from tvm_streamk.expressions import (
    Buffer,
    Expression,
    Statement,
    buffers_stored,
    contains,
    is_grid_loop,
    is_thread_loop,
    shown,
    uses_any,
)

GPU = "gpu"
CPU = "cpu"
INIT_SUFFIX = "_init"
UPDATE_SUFFIX = "_update"


@dataclass(frozen=True)
class BlockPath:
    """The way from the root block's body down to one block: loops and sequences, outermost first.

    ``position`` holds, per sequence on the way, the index of the statement that is stepped into.
    """

    steps: tuple[Any, ...]
    positions: tuple[int | None, ...]
    realize: Any

    @property
    def block(self) -> Any:
        """The block itself."""
        return self.realize.block

    @property
    def loops(self) -> tuple[Any, ...]:
        """The loops on the way, outermost first."""
        return tuple(step for step in self.steps if isinstance(step, tirx.For))

    @property
    def sequences(self) -> tuple[tuple[int, Any, int], ...]:
        """``(depth, sequence, position)`` for every sequence on the way."""
        return tuple(
            (depth, step, position)
            for depth, (step, position) in enumerate(zip(self.steps, self.positions, strict=True))
            if position is not None
        )


def is_private(buffer: Any, grid: str) -> bool:
    """Whether a root allocation belongs to one tile at a time."""
    return grid == CPU or buffer.scope() != "global"


def root_block(function: Any) -> Any:
    """The root block of a schedulable function."""
    body = function.body
    if not isinstance(body, s_tir.SBlockRealize):
        raise NotATiledNest(
            "the function has no root block, so it is not a schedulable TensorIR function.",
            hint="apply the primitive before lowering, to a function that s_tir.Schedule accepts.",
        )
    return body.block


def block_paths(statement: Statement) -> list[BlockPath]:
    """The paths to all blocks that are not inside another block."""
    found: list[BlockPath] = []

    def descend(node: Any, steps: tuple[Any, ...], positions: tuple[int | None, ...]) -> None:
        if isinstance(node, s_tir.SBlockRealize):
            found.append(BlockPath(steps, positions, node))
        elif isinstance(node, tirx.SeqStmt):
            for index, child in enumerate(node.seq):
                descend(child, (*steps, node), (*positions, index))
        elif isinstance(node, tirx.For):
            descend(node.body, (*steps, node), (*positions, None))
        elif isinstance(node, (tirx.AttrStmt, tirx.IfThenElse)):
            child = node.body if isinstance(node, tirx.AttrStmt) else node.then_case
            descend(child, (*steps, node), (*positions, None))

    descend(statement, (), ())
    return found


def find_block(function: Any, name: str) -> BlockPath:
    """The path to the block called ``name``; after a decomposition, to its update."""
    paths = block_paths(root_block(function).body)
    for wanted in (name, name + UPDATE_SUFFIX):
        for path in paths:
            if path.block.name_hint == wanted:
                return path
    names = ", ".join(repr(str(path.block.name_hint)) for path in paths) or "none"
    raise BlockNotFound(
        f"there is no such block in the nest; the blocks are: {names}.",
        block=name,
        hint="the name of the reduction block (or of its update, after decompose_reduction).",
    )


def reduction_iterators(realize: Any) -> list[tuple[Any, Expression]]:
    """The reduction iterators of a block with the expressions they are bound to."""
    pairs = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    return [pair for pair in pairs if pair[0].iter_type == tirx.IterVar.CommReduce]


def panel_loop_depth(path: BlockPath) -> int:
    """The position in ``path.steps`` of the outermost loop that drives the reduction."""
    iterators = reduction_iterators(path.realize)
    name = str(path.block.name_hint)
    if not iterators:
        kinds = ", ".join(str(iterator.var.name) for iterator in path.block.iter_vars)
        raise NotAReductionBlock(
            f"none of its iterators ({kinds or 'it has none'}) is a reduction.",
            block=name,
            hint="name the block that accumulates; its reduction axes are declared with "
            "T.axis.reduce or te.reduce_axis.",
        )
    values = [value for _, value in iterators]
    for depth, step in enumerate(path.steps):
        if isinstance(step, tirx.For) and uses_any(values, [step.loop_var]):
            return depth
    shown = ", ".join(f"{iterator.var.name} = {value}" for iterator, value in iterators)
    raise NotATiledNest(
        f"no loop drives its reduction iterators ({shown}): there are no panels to share.",
        block=name,
        hint="keep the reduction loop, or split it so that an outer loop over panels exists.",
    )


@dataclass(frozen=True)
class NestParts:
    """The parts of a nest, as found; nothing about them has been judged yet.

    Attributes
    ----------
    path
        The way to the reduction block.
    tile_loops, thread_loops
        The loops above the sequence, outermost first, told apart.
    before, panel_statement, epilogue
        The sequence: what stands before the statement that holds the panel loop, that statement,
        and what follows it.
    panel_loop
        The outermost reduction loop.
    nested_epilogue
        What follows the panel loop inside a loop of ``panel_statement``: this cannot be kept.
    """

    path: BlockPath
    tile_loops: tuple[Any, ...]
    thread_loops: tuple[Any, ...]
    before: tuple[Statement, ...]
    panel_statement: Statement
    epilogue: tuple[Statement, ...]
    panel_loop: Any
    nested_epilogue: tuple[Statement, ...]

    @property
    def grid(self) -> str:
        """``gpu`` where a loop of the nest is bound to a block or a thread, else ``cpu``."""
        bound = any(is_grid_loop(step) for step in self.tile_loops) or self.thread_loops
        return GPU if bound or self._has_thread_loop_inside else CPU

    @property
    def _has_thread_loop_inside(self) -> bool:
        return any(is_thread_loop(step) for step in self.path.loops)

    @property
    def segment_statements(self) -> tuple[Statement, ...]:
        """What a segment runs before its merge: prelude, init and panels."""
        return (*self.before, self.panel_statement)


def find_parts(function: Any, name: str) -> NestParts:
    """Tell the parts of the nest around a block apart."""
    if isinstance(root_block(function).body, tirx.SeqStmt):
        names = ", ".join(
            repr(str(path.block.name_hint)) for path in block_paths(root_block(function).body)
        )
        raise SeveralKernels(
            f"the function has several nests at its root (blocks {names}).",
            block=name,
            hint="inline the other blocks into this nest, or put them into functions of their own.",
        )
    path = find_block(function, name)
    panel_depth = panel_loop_depth(path)
    _require_plain_steps(path, panel_depth)
    chain_end = next((depth for depth, _, _ in path.sequences if depth < panel_depth), panel_depth)
    chain = path.steps[:chain_end]
    before, panel_statement, epilogue = _around_panel_loop(path, chain_end)
    nested = [
        following
        for depth, step, position in path.sequences
        if chain_end < depth < panel_depth
        for following in step.seq[position + 1 :]
    ]
    return NestParts(
        path=path,
        tile_loops=tuple(step for step in chain if not is_thread_loop(step)),
        thread_loops=tuple(step for step in chain if is_thread_loop(step)),
        before=before,
        panel_statement=panel_statement,
        epilogue=epilogue,
        panel_loop=path.steps[panel_depth],
        nested_epilogue=tuple(nested),
    )


def _around_panel_loop(
    path: BlockPath, chain_end: int
) -> tuple[tuple[Statement, ...], Statement, tuple[Statement, ...]]:
    level = path.steps[chain_end]
    position = path.positions[chain_end]
    if position is None:
        return (), level, ()
    statements = tuple(level.seq)
    return statements[:position], statements[position], statements[position + 1 :]


def _require_plain_steps(path: BlockPath, panel_depth: int) -> None:
    for step in path.steps[: panel_depth + 1]:
        if not isinstance(step, (tirx.For, tirx.SeqStmt)):
            raise NotATiledNest(
                f"its loops stand under {_described(step)}.",
                block=str(path.block.name_hint),
                hint="express a guard as a block predicate (T.where), as split does.",
            )


def _described(step: Any) -> str:
    if isinstance(step, tirx.IfThenElse):
        return f"the condition `{shown(step.condition)}`"
    return f"the attribute {step.attr_key!r}"


def find_init(parts: NestParts, accumulator: Buffer) -> BlockPath | None:
    """The block before the panel loop that gives the accumulator its first value, with its loops.

    The path starts at the statements of the segment: its loops enumerate each element of the
    accumulator that a thread (GPU) or a task (CPU) owns exactly once.
    """
    for path in _segment_paths(parts.segment_statements):
        if path.block.same_as(parts.path.block):
            return None
        if contains(buffers_stored(path.block), accumulator):
            return path
        if contains([region.source for region in path.block.writes], accumulator):
            return path
    return None


def _segment_paths(statements: Sequence[Statement]) -> list[BlockPath]:
    return [path for statement in statements for path in block_paths(statement)]
