# SPDX-License-Identifier: Apache-2.0
"""How the partial sums of a cut tile become the tile: one small class per merge.

A merge adds statements at the end of each segment, and whole nests before or after the main one. It
sees the nest through :class:`MergeSite` and knows nothing about how the main nest is built.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tvm_ffi
from tvm import ir, s_tir, tirx

from tvm_streamk.elements import clone_with_new_names
from tvm_streamk.errors import (
    AtomicNeedsPlainStore,
    AtomicNeedsSum,
    AtomicNotSupported,
    MergeNotSupported,
)
from tvm_streamk.expressions import (
    Buffer,
    Expression,
    Statement,
    contains,
    once_if,
    rebuild_block,
    rebuild_loop,
    sequence,
    shown,
)
from tvm_streamk.intrinsics import ATOMIC_DTYPES, atomic_add
from tvm_streamk.nest import CPU, block_paths
from tvm_streamk.partial_sums import PartialSums
from tvm_streamk.partition import Partition
from tvm_streamk.reducer import SUM
from tvm_streamk.tile_nest import TileNest


@dataclass(frozen=True)
class SegmentVariables:
    """The variables of the block around one segment."""

    worker: Expression
    tile: Expression
    k_begin: Expression
    k_end: Expression


@dataclass(frozen=True)
class MergeSite:
    """What a merge may use: the nest, who does what, and the buffers made for it.

    Attributes
    ----------
    nest, partition
        What is computed and who computes it.
    workspace
        ``(slot, element, thread)``: the partial sums.
    arrivals
        One int32 per worker, 0 between launches: how many peers of the tile that this worker
        starts have arrived.
    seen_arrivals, is_last
        One int32 in shared memory and one per thread: the arrivals before this block's, and
        whether that were all other peers. (TVM cannot place barriers around a loop whose bound
        is in shared memory.)
    sums
        Registers to combine slots in, where the accumulator itself does not serve.
    """

    nest: TileNest
    partition: Partition
    workspace: Buffer
    arrivals: Buffer
    seen_arrivals: Buffer
    is_last: Buffer
    sums: Buffer

    @property
    def partial_sums(self) -> PartialSums:
        """The traffic between the accumulator and the workspace."""
        return PartialSums(self.nest, self.partition, self.workspace, self.sums)

    @property
    def epilogue(self) -> Statement:
        """What followed the panel loop."""
        return sequence(self.nest.parts.epilogue)

    def slot(self, segment: SegmentVariables) -> Expression:
        """The slot for a segment's partial sum."""
        return self.partition.slot(segment.worker, segment.k_begin)

    def if_full(self, segment: SegmentVariables, statement: Statement) -> list[Statement]:
        """Run a statement where the segment is all panels of its tile."""
        if self.partition.all_partial:
            return []
        return [once_if(segment.k_end - segment.k_begin == self.nest.panels, statement)]

    def if_partial(self, segment: SegmentVariables, statement: Statement) -> list[Statement]:
        """Run a statement where the segment is not all panels of its tile."""
        if self.partition.all_partial:
            return [statement]
        return [once_if(segment.k_end - segment.k_begin < self.nest.panels, statement)]


@dataclass(frozen=True)
class CutTileNest:
    """A nest over the cut tiles: one worker per boundary, statements from the tile's number."""

    name: str
    statements: Callable[[Expression], list[Statement]]


class Merge(Protocol):
    """What the rewrite asks of a merge."""

    needs_workspace: bool
    needs_counters: bool

    def check(self, nest: TileNest) -> None:
        """Raise a named error where this merge cannot serve the nest."""

    def kernels_before(self, site: MergeSite, counters: str) -> list[Statement]:
        """Finished nests that run before everything else."""

    def finish_segment(self, site: MergeSite, segment: SegmentVariables) -> list[Statement]:
        """What a segment does after its panels."""

    def nests_before(self, site: MergeSite) -> list[CutTileNest]:
        """Nests over the cut tiles that run before the main one."""

    def nests_after(self, site: MergeSite) -> list[CutTileNest]:
        """Nests over the cut tiles that run after the main one."""


class TwoPhaseMerge:
    """Partial sums go to the workspace; a second nest adds them in order and finishes the tile.

    No atomics and no fences: works on every target, and gives the same bits on every run.
    """

    needs_workspace = True
    needs_counters = False

    def check(self, nest: TileNest) -> None:
        """Every nest that fits can be merged in two phases."""

    def kernels_before(self, _site: MergeSite, _counters: str) -> list[Statement]:
        """Nothing runs before."""
        return []

    def finish_segment(self, site: MergeSite, segment: SegmentVariables) -> list[Statement]:
        """Run the epilogue if the tile is complete, else store the partial sum."""
        publish = sequence(site.partial_sums.publish(site.slot(segment)))
        return [
            *site.if_full(segment, site.epilogue),
            *site.if_partial(segment, publish),
        ]

    def nests_before(self, site: MergeSite) -> list[CutTileNest]:
        """Nothing to prepare."""
        return []

    def nests_after(self, site: MergeSite) -> list[CutTileNest]:
        """Add up the peers of each cut tile, then do what followed the panel loop."""
        return [CutTileNest(f"{site.nest.block}_merge", site.partial_sums.finish)]


class AtomicMerge:
    """Peers add their partial sums to the zeroed output atomically; a full segment stores.

    One pass less over global memory than a workspace, but with more than two peers the order of
    the additions, and so the last bits, differ from run to run.
    """

    needs_workspace = False
    needs_counters = False

    def check(self, nest: TileNest) -> None:
        """Only sums of a type with an atomic add, stored as they are."""
        if nest.grid == CPU:
            raise MergeNotSupported(
                'merge="atomic" needs a GPU grid, and this nest is a CPU nest.',
                block=nest.block,
                hint='merge="two_phase".',
            )
        if nest.reducer.name != SUM:
            raise AtomicNeedsSum(
                f'merge="atomic" can add, but the reduction is a {nest.reducer.name}.',
                block=nest.block,
                hint='merge="two_phase" merges any associative and commutative reduction.',
            )
        store = _plain_store(nest)
        dtype = str(store.buffer.dtype)
        if dtype not in ATOMIC_DTYPES:
            raise AtomicNotSupported(
                f"the output `{store.buffer.name}` is {dtype}; atomic adds of that type do not "
                "exist, or round once per peer.",
                block=nest.block,
                hint='merge="two_phase", whose partial sums keep the accumulator\'s type.',
            )

    def kernels_before(self, _site: MergeSite, _counters: str) -> list[Statement]:
        """Nothing runs before."""
        return []

    def finish_segment(self, site: MergeSite, segment: SegmentVariables) -> list[Statement]:
        """Store a full segment, add a partial one."""
        adding = _with_store(site.nest.parts.epilogue, "_atomic", _atomic_add_of)
        return [
            *site.if_full(segment, site.epilogue),
            *site.if_partial(segment, sequence(adding)),
        ]

    def nests_before(self, site: MergeSite) -> list[CutTileNest]:
        """Zero the tiles that are going to be added to."""

        def statements(_tile: Expression) -> list[Statement]:
            return _with_store(site.nest.parts.epilogue, "_zero", _zero_of)

        return [CutTileNest(f"{site.nest.block}_zero", statements)]

    def nests_after(self, site: MergeSite) -> list[CutTileNest]:
        """Nothing is left to do."""
        return []


def _plain_store(nest: TileNest) -> Any:
    """The one store of the epilogue, or a refusal that names what stands in the way."""
    paths = [path for part in nest.parts.epilogue for path in block_paths(part)]
    stores = [path.block.body for path in paths]
    if len(stores) != 1 or not isinstance(stores[0], tirx.BufferStore):
        names = ", ".join(repr(str(path.block.name_hint)) for path in paths)
        raise _not_plain(nest, f"it has {len(stores)} blocks ({names})")
    store = stores[0]
    loads_sum = isinstance(store.value, ir.TensorLoad) and store.value.source.same_as(
        nest.accumulator
    )
    if not loads_sum:
        raise _not_plain(nest, f"block {paths[0].block.name_hint!r} stores `{shown(store.value)}`")
    if not contains(nest.function.params, store.buffer):
        raise _not_plain(nest, f"`{store.buffer.name}` is not an output of the function")
    return store


def _not_plain(nest: TileNest, found: str) -> AtomicNeedsPlainStore:
    return AtomicNeedsPlainStore(
        f'merge="atomic" needs an epilogue that only stores the sum, but {found}: it would be '
        "applied to partial sums.",
        block=nest.block,
        hint='merge="two_phase", which runs the epilogue once on the final sum.',
    )


def _with_store(
    epilogue: Sequence[Statement], suffix: str, change: Callable[[Any], Statement]
) -> list[Statement]:
    """Copies of the epilogue in which the store is something else; nothing is vectorized."""

    def on_loop(step: Any) -> Any:
        if step.kind == tirx.ForKind.VECTORIZED:
            return rebuild_loop(step, step.body, kind=tirx.ForKind.SERIAL)
        return step

    def on_realize(block: Any) -> Any:
        return rebuild_block(block, body=change(block.body))

    copies = (clone_with_new_names(part, suffix) for part in epilogue)
    return [
        tvm_ffi.structural_map(part, [(tirx.For, on_loop), (s_tir.SBlock, on_realize)])
        for part in copies
    ]


def _atomic_add_of(store: Any) -> Statement:
    return tirx.Evaluate(atomic_add(store.buffer, list(store.indices), store.value))


def _zero_of(store: Any) -> Statement:
    dtype = str(store.buffer.dtype)
    return tirx.BufferStore(store.buffer, tirx.const(0, dtype), list(store.indices))
