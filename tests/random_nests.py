# SPDX-License-Identifier: Apache-2.0
"""Random schedules of contractions, made with TVM's own primitives: what hypothesis draws from.

A nest is plain data with a ``repr`` that can be pasted into a test. ``schedule`` turns it and a
contraction into a schedule; whatever is drawn is a legal schedule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from schedules import fresh
from tvm.s_tir import Schedule
from workloads import Workload

THREAD_AXES = ("threadIdx.x", "threadIdx.y", "threadIdx.z")
BLOCK_AXES = ("blockIdx.x", "blockIdx.y", "blockIdx.z")
CUDA = {"kind": "cuda", "arch": "sm_80"}
"""Random kernels run as CUDA on the CPU: PoCL's compiler fails on some valid ones, plain nests
among them, and then stops the process."""
PRODUCERS = ("padded_A", "padded_B", "patches")


@dataclass(frozen=True)
class CpuNest:
    """Tiles in parallel or not, then panels, then the elements of a tile in any order.

    Attributes
    ----------
    tiles
        Extent inside a tile, per spatial axis.
    panels
        Extent inside a panel, per reduction axis.
    tile_order, panel_order, inner_order
        Permutations of the tile loops, of the outer reduction loops, and of all inner loops
        (spatial ones first).
    fuse_tiles, fuse_panels
        Whether the outer loops become one.
    parallel, vectorize
        Whether the outermost tile loop is parallel, the innermost loop (if spatial) vectorized.
    accumulate_in
        Scope of an accumulator of its own, or None.
    decompose
        Whether the init is moved before the panel loop.
    inline
        Whether an epilogue is inlined into the write-back rather than computed at the tile.
    """

    tiles: tuple[int, ...]
    panels: tuple[int, ...]
    tile_order: tuple[int, ...]
    panel_order: tuple[int, ...]
    inner_order: tuple[int, ...]
    fuse_tiles: bool = False
    fuse_panels: bool = False
    parallel: bool = True
    vectorize: bool = False
    accumulate_in: str | None = None
    decompose: bool = False
    inline: bool = False

    def schedule(self, workload: Workload) -> Schedule:
        """A schedule of the workload with this nest."""
        schedule = fresh(workload)
        inline_producers(schedule)
        block = schedule.get_sblock("C")
        stored = None
        if self.accumulate_in is not None:
            stored = schedule.cache_write(block, 0, self.accumulate_in)
        stored = place_epilogue(schedule, stored, self.inline)
        loops = schedule.get_loops(block)
        spatial, reduction = loops[: len(self.tiles)], loops[len(self.tiles) :]
        tiles, elements = _split_all(schedule, spatial, self.tiles)
        panels, depths = _split_all(schedule, reduction, self.panels)
        inner = [*elements, *depths]
        tiles = [tiles[position] for position in self.tile_order]
        panels = [panels[position] for position in self.panel_order]
        ordered = [inner[position] for position in self.inner_order]
        schedule.reorder(*tiles, *panels, *ordered)
        if self.fuse_panels:
            panels = [schedule.fuse(*panels)]
        if self.fuse_tiles:
            tiles = [schedule.fuse(*tiles)]
        for consumer in stored:
            schedule.reverse_compute_at(consumer, tiles[-1])
        if self.parallel:
            schedule.parallel(tiles[0])
        if self.vectorize and self.inner_order[-1] < len(elements):
            schedule.vectorize(ordered[-1])
        if self.decompose:
            schedule.decompose_reduction(block, panels[0])
        return schedule


@dataclass(frozen=True)
class GpuNest:
    """Blocks, virtual threads, threads, panels, and the elements of a thread in any order.

    Attributes
    ----------
    threads, per_thread, vthreads
        Per spatial axis: threads, elements of a thread, and virtual threads.
    panels, tile_order, panel_order, inner_order, fuse_panels, decompose, inline
        As for :class:`CpuNest`.
    fuse_tiles, bind_tiles
        Whether the tile loops become one, and whether they are bound to ``blockIdx``.
    fuse_threads
        Whether all threads are on one axis.
    stage
        Which operands go through shared memory.
    accumulate
        Whether the accumulator is made by ``cache_write``.
    """

    threads: tuple[int, ...]
    per_thread: tuple[int, ...]
    vthreads: tuple[int, ...]
    panels: tuple[int, ...]
    tile_order: tuple[int, ...]
    panel_order: tuple[int, ...]
    inner_order: tuple[int, ...]
    fuse_tiles: bool = False
    bind_tiles: bool = True
    fuse_threads: bool = False
    fuse_panels: bool = False
    stage: tuple[bool, ...] = (False, False)
    accumulate: bool = True
    decompose: bool = True
    inline: bool = True

    def schedule(self, workload: Workload) -> Schedule:
        """A schedule of the workload with this nest."""
        schedule = fresh(workload)
        inline_producers(schedule)
        block = schedule.get_sblock("C")
        stored = schedule.cache_write(block, 0, "local") if self.accumulate else None
        consumers = place_epilogue(schedule, stored, self.inline)
        loops = schedule.get_loops(block)
        spatial, reduction = loops[: len(self.threads)], loops[len(self.threads) :]
        factors = zip(self.vthreads, self.threads, self.per_thread, strict=True)
        parts = [
            schedule.split(loop, [None, *each], preserve_unit_iters=True)
            for loop, each in zip(spatial, factors, strict=True)
        ]
        tiles, virtual, threads, elements = (list(level) for level in zip(*parts, strict=True))
        panels, depths = _split_all(schedule, reduction, self.panels)
        tiles = [tiles[position] for position in self.tile_order]
        panels = [panels[position] for position in self.panel_order]
        inner = [*elements, *depths]
        ordered = [inner[position] for position in self.inner_order]
        schedule.reorder(*tiles, *virtual, *threads, *panels, *ordered)
        if self.fuse_panels:
            panels = [schedule.fuse(*panels)]
        threads = self._bind(schedule, tiles, virtual, threads)
        for consumer in consumers:
            schedule.reverse_compute_at(consumer, threads[-1])
        for operand, wanted in enumerate(self.stage):
            if wanted:
                self._stage(schedule, block, operand, panels[0])
        if self.decompose:
            schedule.decompose_reduction(block, panels[0])
        return schedule

    def _bind(
        self, schedule: Schedule, tiles: list[Any], virtual: list[Any], threads: list[Any]
    ) -> list[Any]:
        """Bind the outer loops; gives the thread loops."""
        if self.fuse_tiles:
            tiles = [schedule.fuse(*tiles)]
        if self.bind_tiles:
            for loop, axis in zip(reversed(tiles), BLOCK_AXES, strict=False):
                schedule.bind(loop, axis)
        for loop, axis in zip(reversed(virtual), "xyz", strict=False):
            if int(schedule.get(loop).extent) > 1:
                schedule.bind(loop, f"vthread.{axis}")
        if self.fuse_threads:
            threads = [schedule.fuse(*threads)]
        for loop, axis in zip(reversed(threads), THREAD_AXES, strict=False):
            schedule.bind(loop, axis)
        return threads

    def _stage(self, schedule: Schedule, block: Any, operand: int, panel_loop: Any) -> None:
        copy = schedule.cache_read(block, operand, "shared")
        schedule.compute_at(copy, panel_loop, preserve_unit_loops=True)
        depth = next(
            index
            for index, loop in enumerate(schedule.get_loops(block))
            if schedule.get(loop).loop_var.same_as(schedule.get(panel_loop).loop_var)
        )
        fused = schedule.fuse(*schedule.get_loops(copy)[depth + 1 :])
        counts = [_product(self.threads)] if self.fuse_threads else list(self.threads)
        _, *parts = schedule.split(fused, [None, *counts])
        for loop, axis in zip(reversed(parts), THREAD_AXES, strict=False):
            schedule.bind(loop, axis)


def inline_producers(schedule: Schedule) -> None:
    """Inline the blocks that gather or unpack operands."""
    for name in PRODUCERS:
        if _has_block(schedule, name):
            schedule.compute_inline(name)


def place_epilogue(schedule: Schedule, stored: Any, inline: bool) -> list[Any]:
    """Inline an epilogue into the write-back, if so wanted; gives what has to be moved."""
    consumers = [] if stored is None else [stored]
    if not _has_block(schedule, "D"):
        return consumers
    if stored is not None and inline:
        schedule.reverse_compute_inline("D")
        return consumers
    return [*consumers, schedule.get_sblock("D")]


def _split_all(
    schedule: Schedule, loops: list[Any], sizes: tuple[int, ...]
) -> tuple[list[Any], list[Any]]:
    pairs = [schedule.split(loop, [None, size]) for loop, size in zip(loops, sizes, strict=True)]
    return [outer for outer, _ in pairs], [inner for _, inner in pairs]


def _has_block(schedule: Schedule, name: str) -> bool:
    from tvm_streamk.nest import block_paths, root_block

    (function,) = schedule.mod.functions.values()
    paths = block_paths(root_block(function).body)
    return any(str(path.block.name_hint) == name for path in paths)


def _product(numbers: tuple[int, ...]) -> int:
    result = 1
    for number in numbers:
        result *= number
    return result
