# SPDX-License-Identifier: Apache-2.0
"""The requirements on a recognised nest, each giving at most one objection.

Cutting a tile's panels into segments is right only if nothing but the accumulator carries a value
from one panel to the next, from the panels to the epilogue, or from one tile to another. Most of
the checks here look for such values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tvm import s_tir, tirx

from tvm_streamk.errors import (
    AccumulatorNotPrivate,
    NotATiledNest,
    OutputReadElsewhere,
    ReducerNotSupported,
    SeveralReductions,
    StreamKError,
    TileLoopsDependent,
)
from tvm_streamk.expressions import (
    Buffer,
    Expression,
    Statement,
    buffers_read,
    buffers_stored,
    collect,
    contains,
    is_grid_loop,
    simplified,
    substitute,
    tvm_symbolic,
    uses_any,
)
from tvm_streamk.lane_fragments import LANE_SCOPES
from tvm_streamk.nest import (
    CPU,
    BlockPath,
    block_paths,
    is_private,
    reduction_iterators,
    root_block,
)
from tvm_streamk.tile_nest import TileNest

PRIVATE_SCOPES = ("local", *LANE_SCOPES)


def objections(nest: TileNest) -> list[StreamKError]:
    """Every requirement that a recognised nest does not meet, in the order of their numbers."""
    checks: tuple[Callable[[TileNest], StreamKError | None], ...] = (
        _check_init_before_panels,
        _check_init_elements,
        _check_loops_inside,
        _check_one_reduction,
        _check_running_value,
        _check_carried_by_panels,
        _check_carried_by_tiles,
        _check_epilogue_inputs,
        _check_private_scope,
        _check_epilogue_level,
        _check_sum_is_used,
        _check_output,
    )
    return [objection for check in checks if (objection := check(nest)) is not None]


def _check_init_before_panels(nest: TileNest) -> StreamKError | None:
    panel_loop = nest.parts.panel_loop
    if not contains(nest.init.steps, panel_loop):
        return None
    return NotATiledNest(
        f"its init `{nest.init.block.name_hint}` stands inside the outermost reduction "
        f"loop `{panel_loop.loop_var.name}`: the sum starts anew in every panel.",
        block=nest.block,
        hint="decompose_reduction at the outermost reduction loop.",
    )


def _check_init_elements(nest: TileNest) -> StreamKError | None:
    """A segment starts from its own init nest, so that must reach what its panels add to."""
    update = nest.parts.path
    if nest.staging is not None or not isinstance(update.block.body, tirx.BufferStore):
        return None
    outer = [step.loop_var for step in (*nest.parts.tile_loops, *nest.parts.thread_loops)]
    started = _corners(nest.init, nest.elements.indices, outer)
    added = _corners(update, update.block.body.indices, outer)
    analyzer = tvm_symbolic()
    if all(analyzer.can_prove_equal(*pair) for pair in zip(started, added, strict=True)):
        return None
    return ReducerNotSupported(
        f"its init starts `{_shown(nest, started)}`, but its update adds to "
        f"`{_shown(nest, added)}`.",
        block=nest.block,
        hint="let the init start the elements that the update adds to.",
    )


def _corners(path: BlockPath, indices: Sequence[Expression], outer: list[Any]) -> list[Expression]:
    """The first and the last element that a block reaches in one tile and thread."""
    variables = [iterator.var for iterator in path.block.iter_vars]
    values = dict(zip(variables, path.realize.iter_values, strict=True))
    bound = [substitute(index, values) for index in indices]
    inside = [step for step in path.loops if not contains(outer, step.loop_var)]
    first = {step.loop_var: step.min for step in inside}
    last = {step.loop_var: step.min + step.extent - 1 for step in inside}
    return [substitute(index, corner) for corner in (first, last) for index in bound]


def _shown(nest: TileNest, corners: Sequence[Expression]) -> str:
    """The part of the accumulator between two corners, ends included."""
    count = len(corners) // 2
    simple = [simplified(index) for index in corners]
    pairs = zip(simple[:count], simple[count:], strict=True)
    axes = [
        str(first) if str(first) == str(last) else f"{first} to {last}" for first, last in pairs
    ]
    return f"{nest.accumulator.name}[{', '.join(axes)}]"


def _check_loops_inside(nest: TileNest) -> StreamKError | None:
    # The panels first: the loops of the init nest may be copies of theirs.
    for loop in collect([nest.parts.panel_statement, *_statements(nest)], tirx.For):
        if is_grid_loop(loop):
            found = f"is bound to {loop.thread_binding.thread_tag}"
        elif loop.kind == tirx.ForKind.PARALLEL:
            found = "is parallel"
        else:
            continue
        return NotATiledNest(
            f"the loop `{loop.loop_var.name}` (extent {loop.extent}) inside a tile {found}, but "
            "the workers are the parallel dimension.",
            block=nest.block,
            hint="parallelize or bind the tile loops, above the init and the panels.",
        )
    return None


def _check_one_reduction(nest: TileNest) -> StreamKError | None:
    own = nest.parts.path.block
    for path in block_paths(nest.parts.panel_loop.body):
        values = [value for _, value in reduction_iterators(path.realize)]
        if not path.block.same_as(own) and uses_any(values, [nest.parts.panel_loop.loop_var]):
            return SeveralReductions(
                f"block {str(path.block.name_hint)!r} is another reduction over the same panel "
                f"loop `{nest.parts.panel_loop.loop_var.name}`.",
                block=nest.block,
                hint="give each reduction a nest of its own.",
            )
    return None


def _check_running_value(nest: TileNest) -> StreamKError | None:
    allowed = [nest.parts.path.block, nest.init.block]
    allowed += _blocks(nest.parts.nested_epilogue)
    for block in _blocks(nest.parts.segment_statements):
        if not contains(allowed, block) and contains(_accessed(block), nest.accumulator):
            return ReducerNotSupported(
                f"block {str(block.name_hint)!r} uses `{nest.accumulator.name}` before the last "
                "panel: a running value, which no segment but the first has.",
                block=nest.block,
                hint="use the sum after the panel loop; a scan cannot be cut.",
            )
    return None


def _check_carried_by_panels(nest: TileNest) -> StreamKError | None:
    written = _written_anywhere([nest.parts.panel_loop.body])
    reader = _first_to_read_before_writing(nest, [nest.parts.panel_loop.body], written)
    if reader is None:
        return None
    block, buffer = reader
    return SeveralReductions(
        f"block {str(block.name_hint)!r} reads `{buffer.name}`, which an earlier panel wrote: the "
        f"loop `{nest.parts.panel_loop.loop_var.name}` carries more than the sum.",
        block=nest.block,
        hint="load every panel in its own trip; TVM's software_pipeline_* annotations overlap "
        "trips without changing the nest.",
    )


def _check_carried_by_tiles(nest: TileNest) -> StreamKError | None:
    allocated = [b for b in root_block(nest.function).alloc_buffers if _is_private(nest, b)]
    reader = _first_to_read_before_writing(nest, _statements(nest), allocated)
    if reader is None:
        return None
    block, buffer = reader
    return TileLoopsDependent(
        f"block {str(block.name_hint)!r} reads `{buffer.name}` before its own tile has written it: "
        "a value from another tile.",
        block=nest.block,
        hint="compute what a tile needs inside the tile.",
    )


def _check_epilogue_inputs(nest: TileNest) -> StreamKError | None:
    before = [b for b in _written_anywhere(nest.parts.segment_statements) if _is_private(nest, b)]
    reader = _first_to_read_before_writing(nest, nest.parts.epilogue, before)
    if reader is None:
        return None
    block, buffer = reader
    return NotATiledNest(
        f"block {str(block.name_hint)!r}, after the panel loop, reads `{buffer.name}`, which was "
        "written before its end: whoever merges a tile has only the sum.",
        block=nest.block,
        hint="load it after the panel loop: compute_at with index=-1 puts it right before its use.",
    )


def _check_sum_is_used(nest: TileNest) -> StreamKError | None:
    if nest.parts.epilogue:
        return None
    return NotATiledNest(
        f"nothing uses the sums: `{nest.accumulator.name}` is no output, and no block follows the "
        "panel loop.",
        block=nest.block,
        hint="make it a parameter of the function, or store it after the panel loop.",
    )


def _check_private_scope(nest: TileNest) -> StreamKError | None:
    scope = str(nest.accumulator.scope())
    if nest.staging is not None:
        return None
    if scope in PRIVATE_SCOPES or (nest.grid == CPU and scope == "global"):
        return None
    return AccumulatorNotPrivate(
        f"it accumulates into `{nest.accumulator.name}` in scope {scope!r}, which other threads "
        "or tiles can see.",
        block=nest.block,
        hint='accumulate in registers: cache_write(block, 0, "local").',
    )


def _check_epilogue_level(nest: TileNest) -> StreamKError | None:
    if not nest.parts.nested_epilogue:
        return None
    names = ", ".join(repr(str(b.name_hint)) for b in _blocks(nest.parts.nested_epilogue))
    return NotATiledNest(
        f"what follows the panel loop (blocks {names}) stands inside a loop that also holds other "
        "work before it.",
        block=nest.block,
        hint="move the loop above the thread loops, or reverse_compute_at the epilogue further "
        "out.",
    )


def _check_output(nest: TileNest) -> StreamKError | None:
    parameters = list(nest.function.params)
    segment = nest.parts.segment_statements
    early = [buffer for buffer in _written_anywhere(segment) if contains(parameters, buffer)]
    if early:
        return OutputReadElsewhere(
            f"the nest writes `{early[0].name}` before its tile is finished.",
            block=nest.block,
            hint="write outputs in the epilogue only.",
        )
    written = _written_anywhere(nest.parts.epilogue)
    outputs = [buffer for buffer in written if not _is_private(nest, buffer)]
    read = [b for block in _blocks(segment) for b in _accessed(block) if contains(outputs, b)]
    if read:
        return OutputReadElsewhere(
            f"the panels read `{read[0].name}`, which the epilogue of other tiles writes.",
            block=nest.block,
            hint="write to another buffer.",
        )
    return _check_epilogue_reads(nest, outputs)


def _check_epilogue_reads(nest: TileNest, outputs: list[Buffer]) -> StreamKError | None:
    for block in _blocks(nest.parts.epilogue):
        own = _written(block)
        for buffer in _read(block):
            if contains(outputs, buffer) and not contains(own, buffer):
                return OutputReadElsewhere(
                    f"block {str(block.name_hint)!r} reads the output `{buffer.name}` in the "
                    "same kernel.",
                    block=nest.block,
                    hint="cache_write the reduction block, so that the consumer reads registers.",
                )
    return None


# -- who reads and writes what ---------------------------------------------------------------------


def _statements(nest: TileNest) -> list[Statement]:
    return [*nest.parts.segment_statements, *nest.parts.epilogue]


def _blocks(statements: Iterable[Statement]) -> list[Any]:
    """The outermost blocks, in the order in which they run."""
    return [path.block for statement in statements for path in block_paths(statement)]


def _is_private(nest: TileNest, buffer: Buffer) -> bool:
    """Whether a buffer belongs to one tile at a time, so that every segment has its own."""
    if contains(nest.function.params, buffer):
        return False
    return is_private(buffer, nest.grid)


def _declared(block: Any, field: str) -> list[Buffer]:
    inner = collect(block, s_tir.SBlock)
    return [region.source for each in inner for region in getattr(each, field)]


def _read(block: Any) -> list[Buffer]:
    """Buffers that a block reads: by loads, or as it declares (intrinsics)."""
    return [*buffers_read(block), *_declared(block, "reads")]


def _written(block: Any) -> list[Buffer]:
    return [*buffers_stored(block), *_declared(block, "writes")]


def _accessed(block: Any) -> list[Buffer]:
    return [*_read(block), *_written(block)]


def _written_anywhere(statements: Sequence[Statement]) -> list[Buffer]:
    return [buffer for block in _blocks(statements) for buffer in _written(block)]


def _first_to_read_before_writing(
    nest: TileNest, statements: Sequence[Statement], candidates: Sequence[Buffer]
) -> tuple[Any, Buffer] | None:
    """The first block that reads one of the buffers although none before it wrote that buffer.

    The accumulator is left out: it is the value that is meant to be carried.
    """
    written: list[Buffer] = [nest.accumulator]
    for block in _blocks(statements):
        if block.init is not None:
            written += buffers_stored(block.init)
        for buffer in _read(block):
            if contains(candidates, buffer) and not contains(written, buffer):
                return block, buffer
        written += _written(block)
    return None
