# SPDX-License-Identifier: Apache-2.0
"""The merge in one kernel in which no worker ever waits for another.

Every worker with a partial segment stores its partial sum in its slot and reports its arrival at
the tile. Whoever finds that all other peers have already arrived adds the slots up in the order of
the peers, its own among them, and runs what followed the panel loop. So the result is the same bits
on every run, the epilogue may be anything, and no block needs to be resident together with another.

What makes the slots visible, in this order (PTX memory model: both fences around the atomic belong
to the thread that does it, and the block barriers carry their effect to the other threads)::

    all threads    store the partial sum; fence; block barrier
    one thread     fence; arrivals += 1; fence; old value to shared memory
    all threads    block barrier; if the old value is peers - 1: load the slots
"""

from __future__ import annotations

from typing import Any

from tvm import s_tir, tirx

from tvm_streamk.analysis import TileNest
from tvm_streamk.errors import MergeNotSupported
from tvm_streamk.expressions import (
    Expression,
    Statement,
    block_iterator,
    constant,
    dtype_of,
    loop,
    once_if,
    opaque_block,
    point_region,
    sequence,
)
from tvm_streamk.intrinsics import atomic_add, block_barrier, device_fence
from tvm_streamk.merge import CutTileNest, MergeSite, SegmentVariables
from tvm_streamk.nest import CPU

ZEROING_THREADS = 256
COUNTERS_IN_PROLOGUE = "prologue"


class LastArriverMerge:
    """The last worker to arrive at a tile finishes it. Deterministic; GPU grids."""

    needs_workspace = True
    needs_counters = True

    def check(self, nest: TileNest) -> None:
        """A CPU grid has no blocks with barriers and fences between them."""
        if nest.grid == CPU:
            raise MergeNotSupported(
                'merge="last_arriver" needs a GPU grid, and this nest is a CPU nest.',
                block=nest.block,
                hint='merge="two_phase".',
            )

    def kernels_before(self, site: MergeSite, counters: str) -> list[Statement]:
        """Zero the arrival counters, unless the caller keeps them zero."""
        return [_zero_arrivals(site)] if counters == COUNTERS_IN_PROLOGUE else []

    def nests_before(self, _site: MergeSite) -> list[CutTileNest]:
        """Nothing to prepare per tile."""
        return []

    def nests_after(self, _site: MergeSite) -> list[CutTileNest]:
        """Nothing is left to do."""
        return []

    def finish_segment(self, site: MergeSite, segment: SegmentVariables) -> list[Statement]:
        """Publish a partial sum; the last arriver, and whoever did a whole tile, finishes it."""
        finishes = site.finishes_tile
        name = site.nest.block
        partial = [
            site.store_partial_sum(
                site.partition.slot(segment.worker, segment.k_begin), f"{name}_partial_sum"
            ),
            _arrive(site, segment),
            loop("once", finishes[0], lambda _: sequence(_collect(site, segment))),
        ]
        return [
            _set_finishes(site, tirx.const(1, "int32"), f"{name}_whole", ()),
            once_if(site.is_partial(segment), sequence(partial)),
            loop("once", finishes[0], lambda _: sequence(site.epilogue)),
        ]


def _counter(site: MergeSite, tile: Expression) -> Expression:
    """A cut tile's counter: that of its first peer, which starts no other cut tile."""
    return site.partition.first_peer(tile)


def _arrive(site: MergeSite, segment: SegmentVariables) -> Statement:
    """Report the arrival and learn how many peers were there before."""
    arrivals, seen = site.arrivals, site.seen_arrivals
    counter = [_counter(site, segment.tile)]
    report = sequence(
        [
            device_fence(),
            tirx.BufferStore(seen, atomic_add(arrivals, counter, tirx.const(1, "int32")), [0]),
            device_fence(),
        ]
    )
    publish = [
        device_fence(),
        block_barrier(),
        tirx.IfThenElse(_is_first_thread(site), report, None),
        block_barrier(),
    ]
    regions = [point_region(arrivals, counter), point_region(seen, [0])]
    peers = constant(site.partition.num_peers(segment.tile), "int32")
    everyone_else_was_there = tirx.Select(
        seen[0] == peers - 1, tirx.const(1, "int32"), tirx.const(0, "int32")
    )
    name = site.nest.block
    return sequence(
        [
            opaque_block(f"{name}_arrive", sequence(publish), regions, regions),
            _set_finishes(
                site, everyone_else_was_there, f"{name}_last", (point_region(seen, [0]),)
            ),
        ]
    )


def _collect(site: MergeSite, segment: SegmentVariables) -> list[Statement]:
    """Add up the peers' slots and leave the counter as it was found."""
    name = site.nest.block
    counter = [_counter(site, segment.tile)]
    reset = tirx.IfThenElse(
        _is_first_thread(site),
        tirx.BufferStore(site.arrivals, tirx.const(0, "int32"), counter),
        None,
    )
    return [
        site.initialise(f"{name}_merge_init"),
        site.add_peers(segment.tile, f"{name}_merge"),
        opaque_block(f"{name}_reset", reset, (), (point_region(site.arrivals, counter),)),
    ]


def _set_finishes(site: MergeSite, value: Expression, name: str, reads: tuple[Any, ...]) -> Any:
    store = tirx.BufferStore(site.finishes_tile, value, [0])
    return opaque_block(name, store, reads, (point_region(site.finishes_tile, [0]),))


def _is_first_thread(site: MergeSite) -> Expression:
    """Whether this is thread 0 of the block; virtual threads share one real thread."""
    real = [
        step.loop_var
        for step in site.nest.parts.thread_loops
        if str(step.thread_binding.thread_tag).startswith("threadIdx")
    ]
    return tirx.all(*(variable == tirx.const(0, dtype_of(variable)) for variable in real))


def _zero_arrivals(site: MergeSite) -> Statement:
    """A small kernel: without it, counters from other users of the memory would be believed."""
    arrivals = site.arrivals
    extent = constant(arrivals.shape[0], "int32")
    blocks = (extent + (ZEROING_THREADS - 1)) // ZEROING_THREADS

    def per_thread(block: Any, thread: Any) -> Statement:
        index = block * ZEROING_THREADS + thread
        iterator = block_iterator("v_counter", extent, tirx.IterVar.DataPar)
        store = tirx.BufferStore(arrivals, tirx.const(0, "int32"), [iterator.var])
        body = s_tir.SBlock(
            [iterator],
            [],
            [point_region(arrivals, [iterator.var])],
            f"{site.nest.block}_zero_arrivals",
            store,
        )
        return s_tir.SBlockRealize([index], index < extent, body)

    return loop(
        "counter_block",
        blocks,
        lambda block: loop(
            "counter_thread",
            ZEROING_THREADS,
            lambda thread: per_thread(block, thread),
            thread="threadIdx.x",
        ),
        thread="blockIdx.x",
    )
