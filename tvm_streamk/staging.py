# SPDX-License-Identifier: Apache-2.0
"""Accumulators without addressable elements: tensor-core fragments and where they become memory.

The elements of a fragment are spread over the lanes of a warp in a way that only the hardware
knows. What follows the panel loop first stores the fragments to a *stage*, a buffer with elements
(shared memory, as a rule), and then reads them from there, possibly row by row::

    for row in range(rows):                         # outer loops, or none
        <store the fragments of the row to the stage>
        <read the stage: cast, add the bias, write the output>

Partial sums go through the same stage: instead of the reader, a copy of its loops stores the
elements to a slot; instead of the fragment store, a copy of them fills the stage from the slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx

from tvm_streamk.elements import AccumulatorElements, clone_with_new_names
from tvm_streamk.errors import AccumulatorNotPrivate, ReducerNotSupported
from tvm_streamk.expressions import (
    Buffer,
    Statement,
    collect,
    contains,
    dtype_of,
    rebuild_loop,
    sequence,
)
from tvm_streamk.nest import BlockPath, NestParts, block_paths
from tvm_streamk.reducer import Reducer, sum_reducer

FRAGMENT_SCOPES = ("wmma.accumulator", "m16n8k8.matrixC", "warp")
MULTIPLY_ACCUMULATE = ("tirx.tvm_mma_sync", "tirx.ptx_mma", "tirx.ptx_legacy.mma")


@dataclass(frozen=True)
class Staging:
    """Where in the epilogue the fragments become addressable.

    Attributes
    ----------
    stage
        The buffer that they are stored to.
    outer_loops
        Loops of the epilogue around both the store and the reader.
    before, store, after
        The statements at that level: before the fragment store, the store, and what follows.
    preceding, following
        The statements of the epilogue around the one that holds all this.
    """

    stage: Buffer
    outer_loops: tuple[Any, ...]
    before: tuple[Statement, ...]
    store: Statement
    after: tuple[Statement, ...]
    preceding: tuple[Statement, ...]
    following: tuple[Statement, ...]

    def publishing(self, to_slot: Statement) -> Statement:
        """Store the fragments to the stage, and the stage to a slot."""
        return clone_with_new_names(self._looped([self.store, to_slot]), "_partial")

    def finishing(self, from_slots: Sequence[Statement]) -> list[Statement]:
        """The whole epilogue, with the stage filled from the slots."""
        level = self._looped([*self.before, *from_slots, *self.after])
        statements = (*self.preceding, level, *self.following)
        return [clone_with_new_names(statement, "_merged") for statement in statements]

    def _looped(self, statements: Sequence[Statement]) -> Statement:
        body = sequence(statements)
        for step in reversed(self.outer_loops):
            body = rebuild_loop(step, body)
        return body


def is_fragment(buffer: Buffer) -> bool:
    """Whether a buffer's elements are spread over a warp."""
    return str(buffer.scope()) in FRAGMENT_SCOPES


def find_staging(
    parts: NestParts, fragment: Buffer, block: str
) -> tuple[Staging, AccumulatorElements]:
    """Find the stage of a fragment accumulator and how its elements are read.

    Raises
    ------
    AccumulatorNotPrivate
        The fragments are not stored once to a stage with one reader.
    """
    stores = [
        (index, path)
        for index, statement in enumerate(parts.epilogue)
        for path in block_paths(statement)
        if contains([region.source for region in path.block.reads], fragment)
    ]
    if len(stores) != 1:
        raise _refused(block, fragment, f"{len(stores)} blocks of the epilogue read it, not one")
    index, store = stores[0]
    stage = store.block.writes[0].source
    if contains(parts_outputs(parts), stage) or str(stage.scope()) == "global":
        raise _refused(
            block, fragment, f"its fragments go straight to `{stage.name}` in global memory"
        )
    readers = [
        (position, path)
        for position, statement in enumerate(parts.epilogue)
        for path in block_paths(statement)
        if contains([region.source for region in path.block.reads], stage)
    ]
    if len(readers) != 1:
        raise _refused(block, fragment, f"{len(readers)} blocks read its stage `{stage.name}`")
    reader_index, reader = readers[0]
    staging, reader_below = _split_level(parts, index, store, reader_index, reader, stage)
    loads = [load for load in collect(reader.block, ir.TensorLoad) if load.source.same_as(stage)]
    if not loads:
        raise _refused(block, fragment, f"its stage `{stage.name}` is read by an intrinsic")
    elements = AccumulatorElements(
        stage,
        tuple(loads[0].indices),
        reader_below,
        parts.thread_loops,
        parts.grid,
        staging.outer_loops,
    )
    return staging, elements


def fragment_reducer(parts: NestParts, init: BlockPath, fragment: Buffer, block: str) -> Reducer:
    """The reduction of a fragment accumulator: a sum from zero, or a refusal.

    Raises
    ------
    ReducerNotSupported
        The update is not a known matrix multiply-accumulate, or the fragments do not start at 0.
    """
    updates = _intrinsics(parts.path.block)
    if not any(name in MULTIPLY_ACCUMULATE for name in updates):
        raise ReducerNotSupported(
            f"its update calls {', '.join(updates) or 'no intrinsic'}, none of which is known to "
            "add a matrix product to its accumulator.",
            block=block,
            hint="tensorize with the intrinsics of tvm.s_tir.tensor_intrin.cuda.",
        )
    # The fill of an int32 fragment may be written as a float; only its being 0 counts.
    zero = tirx.const(0, str(fragment.dtype))
    initial = _fill_value(init)
    if initial is None or not sum_reducer(initial).restartable:
        raise ReducerNotSupported(
            f"its init (block {str(init.block.name_hint)!r}) does not fill `{fragment.name}` "
            "with 0.",
            block=block,
            hint="start from 0 and add the other value after the panel loop.",
        )
    return sum_reducer(zero)


def _intrinsics(block: Any) -> list[str]:
    calls = [call for call in collect(block, ir.Call) if isinstance(call.op, ir.Op)]
    return list(dict.fromkeys(str(call.op.name) for call in calls))


def _fill_value(init: BlockPath) -> Any:
    """What an init block fills a fragment with, or None where it is not a plain fill."""
    for call in collect(init.block, ir.Call):
        name = str(call.op.name) if isinstance(call.op, ir.Op) else ""
        if name == "tirx.tvm_fill_fragment":
            return call.args[-1]
        if name == "tirx.mma_fill":
            return tirx.const(0, dtype_of(init.block.writes[0].source))
    stores = collect(init.block, tirx.BufferStore)
    return stores[0].value if len(stores) == 1 else None


def parts_outputs(parts: NestParts) -> list[Buffer]:
    """The buffers that the last statement of the epilogue stores to."""
    if not parts.epilogue:
        return []
    return [store.buffer for store in collect(parts.epilogue[-1], tirx.BufferStore)]


def _split_level(
    parts: NestParts,
    index: int,
    store: BlockPath,
    reader_index: int,
    reader: BlockPath,
    stage: Buffer,
) -> tuple[Staging, BlockPath]:
    """Cut the epilogue at the sequence that holds the store and the reader."""
    epilogue = parts.epilogue
    if index != reader_index:
        staging = Staging(
            stage, (), epilogue[:index], epilogue[index], epilogue[index + 1 :], (), ()
        )
        return staging, reader
    depth = next(
        depth
        for depth, pair in enumerate(zip(store.positions, reader.positions, strict=False))
        if pair[0] != pair[1]
    )
    level, position = store.steps[depth], store.positions[depth] or 0
    children = tuple(level.seq)
    outer = tuple(step for step in store.steps[:depth] if isinstance(step, tirx.For))
    staging = Staging(
        stage,
        outer,
        children[:position],
        children[position],
        children[position + 1 :],
        epilogue[:index],
        epilogue[index + 1 :],
    )
    below = BlockPath(reader.steps[depth + 1 :], reader.positions[depth + 1 :], reader.realize)
    return staging, below


def _refused(block: str, fragment: Buffer, found: str) -> AccumulatorNotPrivate:
    return AccumulatorNotPrivate(
        f"it accumulates into fragments (`{fragment.name}`, scope {fragment.scope()!r}), whose "
        f"elements cannot be addressed, and {found}.",
        block=block,
        hint='stage the result: cache_write(block, 0, "shared"), then the fragment scope, so that '
        "one block stores the fragments to the stage and one reads it.",
    )
