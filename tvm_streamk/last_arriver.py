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

from collections.abc import Callable
from typing import Any

from tvm import ir, s_tir, tirx

from tvm_streamk.annotation import PROLOGUE
from tvm_streamk.errors import MergeNotSupported
from tvm_streamk.expressions import (
    Expression,
    Statement,
    block_iterator,
    collect,
    constant,
    dtype_of,
    is_thread_loop,
    loop,
    opaque_block,
    point_region,
    rebuild_loop,
    sequence,
    thread_tag,
    zero_or_one,
)
from tvm_streamk.intrinsics import atomic_add, block_barrier, device_fence
from tvm_streamk.merge import CutTileNest, MergeSite, SegmentVariables
from tvm_streamk.nest import CPU
from tvm_streamk.tile_nest import TileNest

ZEROING_THREADS = 256


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
        return [_zero_arrivals(site)] if counters == PROLOGUE else []

    def nests_before(self, _site: MergeSite) -> list[CutTileNest]:
        """Nothing to prepare per tile."""
        return []

    def nests_after(self, _site: MergeSite) -> list[CutTileNest]:
        """Nothing is left to do."""
        return []

    def finish_segment(self, site: MergeSite, segment: SegmentVariables) -> list[Statement]:
        """Publish a partial sum; the last arriver finishes the tile from the slots."""
        finish = [*site.partial_sums.finish(segment.tile), _reset(site, segment)]
        partial = [
            *site.partial_sums.publish(site.slot(segment)),
            _arrive(site, segment),
            loop("once", site.is_last[0], lambda _: sequence(finish)),
        ]
        return [
            *site.if_full(segment, site.epilogue),
            *site.if_partial(segment, sequence(partial)),
        ]


def _counter(site: MergeSite, tile: Expression) -> Expression:
    """A cut tile's counter: that of its first peer, which starts no other cut tile."""
    return site.partition.first_peer(tile)


def _arrive(site: MergeSite, segment: SegmentVariables) -> Statement:
    """Report the arrival and learn how many peers were there before."""
    arrivals, seen, is_last = site.arrivals, site.seen_arrivals, site.is_last
    peers = constant(site.partition.num_peers(segment.tile), "int32")
    counter = [_counter(site, segment.tile)]

    def publish(is_first_thread: Expression) -> Statement:
        old = atomic_add(arrivals, counter, tirx.const(1, "int32"))
        report = [device_fence(), tirx.BufferStore(seen, old, [0]), device_fence()]
        body = [
            device_fence(),
            block_barrier(),
            tirx.IfThenElse(is_first_thread, sequence(report), None),
            block_barrier(),
            tirx.BufferStore(is_last, zero_or_one(seen[0] == peers - 1), [0]),
        ]
        reads = [point_region(arrivals, counter), point_region(seen, [0])]
        writes = [*reads, point_region(is_last, [0])]
        return opaque_block(f"{site.nest.block}_arrive", sequence(body), reads, writes)

    return _in_all_threads(site.nest, publish)


def _reset(site: MergeSite, segment: SegmentVariables) -> Statement:
    """Leave the counter as it was found."""
    counter = [_counter(site, segment.tile)]

    def store(is_first_thread: Expression) -> Statement:
        zero = tirx.BufferStore(site.arrivals, tirx.const(0, "int32"), counter)
        body = tirx.IfThenElse(is_first_thread, zero, None)
        writes = (point_region(site.arrivals, counter),)
        return opaque_block(f"{site.nest.block}_reset", body, (), writes)

    return _in_all_threads(site.nest, store)


def _in_all_threads(nest: TileNest, body: Callable[[Expression], Statement]) -> Statement:
    """A statement for every thread of the block, told whether it is thread 0.

    Thread loops that do not stand around the segment, because the nest has them further inside,
    are put around the statement. Virtual threads share one real thread and do not count.
    """
    around = {thread_tag(step): step for step in nest.parts.thread_loops}
    everywhere = [*nest.parts.segment_statements, *nest.parts.epilogue]
    inside = {
        thread_tag(step): step
        for step in collect(everywhere, tirx.For)
        if is_thread_loop(step) and thread_tag(step) not in around
    }
    fresh = {
        tag: ir.Var(str(step.loop_var.name), dtype_of(step.loop_var))
        for tag, step in inside.items()
    }
    variables = {tag: step.loop_var for tag, step in around.items()} | fresh
    real = [variable for tag, variable in variables.items() if tag.startswith("threadIdx")]
    is_first = tirx.all(*(variable == tirx.const(0, dtype_of(variable)) for variable in real))
    statement = body(is_first)
    for tag, step in inside.items():
        statement = rebuild_loop(step, statement, loop_var=fresh[tag], annotations={})
    return statement


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
