# SPDX-License-Identifier: Apache-2.0
"""The schedules that the tests put under the primitive: what people and TVM's generators write.

Every function gives a fresh schedule whose reduction block is ``C``.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import Trace
from workloads import Workload

import tvm_streamk

OPENCL = {"kind": "opencl", "max_threads_per_block": 256, "max_shared_memory_per_block": 49152}
LLVM = {"kind": "llvm", "num-cores": 2}
MOST_SEEDS = 200
FEW_TILES = range(2, 40)
MOST_PER_THREAD = 32


@dataclass(frozen=True)
class GpuTiling:
    """Extents per tile: ``tile`` rows and columns, ``panel`` of the depth, work per thread."""

    tile: tuple[int, int] = (16, 32)
    panel: int = 8
    per_thread: tuple[int, int] = (2, 4)
    vthreads: tuple[int, int] = (2, 1)
    decompose: bool = True
    bind_blocks: bool = True
    stage_inputs: bool = True
    accumulate_in: str | None = "local"


def fresh(workload: Workload) -> Schedule:
    """A schedule on a module of its own, so that no test can change another's function."""
    return Schedule(tvm.IRModule({"main": workload.function}))


def hand_gpu(workload: Workload, tiling: GpuTiling | None = None) -> Schedule:
    """The hand schedule of TVM's GPU tutorials: blocks, virtual threads, threads, shared memory."""
    tiling = tiling or GpuTiling()
    schedule = fresh(workload)
    if "patches" in _block_names(schedule):
        schedule.compute_inline("patches")
    block = schedule.get_sblock("C")
    stored = None
    if tiling.accumulate_in:
        stored = schedule.cache_write(block, 0, tiling.accumulate_in)
    *batch, i, j, k = schedule.get_loops(block)
    rows, columns = (
        _split_for_threads(schedule, loop, tiling, axis) for axis, loop in enumerate((i, j))
    )
    outer, inner = schedule.split(k, [None, tiling.panel])
    schedule.reorder(
        *batch,
        rows[0],
        columns[0],
        rows[1],
        columns[1],
        rows[2],
        columns[2],
        outer,
        inner,
        rows[3],
        columns[3],
    )
    if tiling.bind_blocks:
        tiles = [*batch, rows[0], columns[0]]
        for loop, axis in zip(reversed(tiles), "xyz", strict=False):
            schedule.bind(loop, f"blockIdx.{axis}")
    for pair, name in ((1, "vthread"), (2, "threadIdx")):
        schedule.bind(columns[pair], f"{name}.x")
        schedule.bind(rows[pair], f"{name}.y")
    if stored is not None:
        schedule.reverse_compute_at(stored, columns[2])
    if tiling.stage_inputs:
        for operand in (0, 1):
            _stage_operand(schedule, block, operand, outer, _threads(tiling))
    if tiling.decompose:
        schedule.decompose_reduction(block, outer)
    return schedule


def hand_gpu_rows(workload: Workload, threads: int = 16, panel: int = 8) -> Schedule:
    """One output element per thread (GEMV, row reductions), the depth in panels."""
    schedule = fresh(workload)
    block = schedule.get_sblock("C")
    stored = schedule.cache_write(block, 0, "local")
    i, k = schedule.get_loops(block)
    grid, thread = schedule.split(i, [None, threads])
    outer, inner = schedule.split(k, [None, panel])
    schedule.reorder(grid, thread, outer, inner)
    schedule.bind(grid, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    schedule.reverse_compute_at(stored, thread)
    schedule.decompose_reduction(block, outer)
    return schedule


def hand_cpu(
    workload: Workload,
    tile: tuple[int, ...] = (16, 32),
    panel: int = 8,
    *,
    parallel: bool = True,
    cached: bool = False,
    decompose: bool = False,
) -> Schedule:
    """Tiles in parallel, panels inside, vectors innermost; for any number of spatial loops."""
    schedule = fresh(workload)
    if "patches" in _block_names(schedule):
        schedule.compute_inline("patches")
    block = schedule.get_sblock("C")
    stored = schedule.cache_write(block, 0, "global") if cached else None
    *spatial, k = schedule.get_loops(block)
    batch, tiled = spatial[: -len(tile)], spatial[-len(tile) :]
    pairs = [schedule.split(loop, [None, size]) for loop, size in zip(tiled, tile, strict=True)]
    outer, inner = schedule.split(k, [None, panel])
    tiles, elements = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    schedule.reorder(*batch, *tiles, outer, *elements[:-1], inner, elements[-1])
    if stored is not None:
        schedule.reverse_compute_at(stored, tiles[-1])
    if parallel:
        schedule.parallel(schedule.fuse(*batch, *tiles))
    schedule.vectorize(elements[-1])
    if decompose:
        schedule.decompose_reduction(block, outer)
    return schedule


def dlight_gpu(workload: Workload, target: Any = None) -> Schedule:
    """``dl.gpu.Matmul`` in the default data type's form."""
    from tvm.s_tir import dlight

    with tvm.target.Target(target or OPENCL):
        module = dlight.ApplyDefaultSchedule(dlight.gpu.Matmul())(
            tvm.IRModule({"main": workload.function})
        )
    return Schedule(module)


def metaschedule_gpu(workload: Workload, target: Any = None) -> Schedule:
    """MetaSchedule's multi-level tiling for CUDA (``SSSRRSRS``) after its postprocs."""
    return _first_sample(workload, target or OPENCL, "cuda")


def metaschedule_cpu(workload: Workload) -> Schedule:
    """MetaSchedule's multi-level tiling for CPUs (``SSRSRS``) after its postprocs."""
    return _first_sample(workload, LLVM, "llvm")


@contextlib.contextmanager
def without_tensor_intrinsics() -> Iterator[None]:
    """Keep MetaSchedule from importing TVM's tensor intrinsics, which takes 20 seconds."""
    name, parent = "tvm.s_tir.tensor_intrin", importlib.import_module("tvm.s_tir")
    present = name in sys.modules
    if not present:
        stub = types.ModuleType(name)
        sys.modules[name] = stub
        parent.tensor_intrin = stub
    try:
        yield
    finally:
        if not present:
            del sys.modules[name]
            del parent.tensor_intrin


def _first_sample(workload: Workload, target: Any, rules: str) -> Schedule:
    """The first sketch without ``rfactor``, with the first seed that serves."""
    from tvm.s_tir import meta_schedule

    module = tvm.IRModule({"main": workload.function})
    with without_tensor_intrinsics():
        space = meta_schedule.space_generator.PostOrderApply(
            sch_rules=rules, postprocs=rules, mutator_probs=rules
        )
        context = meta_schedule.TuneContext(
            mod=module, target=tvm.target.Target(target), space_generator=space, task_name="t"
        )
        sketches = context.generate_design_space()
    sketch = next(each for each in sketches if not _has_rfactor(each))
    samples = filter(None, (_sample(module, sketch, space, seed) for seed in range(1, MOST_SEEDS)))
    return next(samples)


def _sample(module: Any, sketch: Schedule, space: Any, seed: int) -> Schedule | None:
    """The sketch with tile sizes from ``seed``, where the postprocs accept them."""
    sample = Schedule(module, seed=seed)
    # Without its decisions, the trace samples anew.
    Trace(sketch.trace.insts, {}).apply_to_schedule(sample, remove_postproc=True)
    sample.enter_postproc()
    if not all(postproc.apply(sample) for postproc in space.postprocs):
        return None
    nest = tvm_streamk.analyze(sample, "C")
    has_something_to_cut = nest.num_tiles in FEW_TILES and nest.panels > 1
    fits_registers = nest.grid == "cpu" or nest.elements.per_thread <= MOST_PER_THREAD
    return sample if has_something_to_cut and fits_registers else None


def _has_rfactor(schedule: Schedule) -> bool:
    return any(name.startswith("C_rf") for name in _block_names(schedule))


def _block_names(schedule: Schedule) -> list[str]:
    from tvm_streamk.nest import block_paths, root_block

    (function,) = schedule.mod.functions.values()
    return [str(path.block.name_hint) for path in block_paths(root_block(function).body)]


def _threads(tiling: GpuTiling) -> tuple[int, int]:
    rows, columns = (
        size // count // each
        for size, count, each in zip(tiling.tile, tiling.vthreads, tiling.per_thread, strict=True)
    )
    return rows, columns


def _split_for_threads(schedule: Schedule, loop: Any, tiling: GpuTiling, axis: int) -> list[Any]:
    factors = [None, tiling.vthreads[axis], _threads(tiling)[axis], tiling.per_thread[axis]]
    return schedule.split(loop, factors)


def _stage_operand(
    schedule: Schedule, block: Any, operand: int, panel_loop: Any, threads: tuple[int, int]
) -> None:
    stage = schedule.cache_read(block, operand, "shared")
    schedule.compute_at(stage, panel_loop)
    own_loops = schedule.get_loops(stage)
    depth = len(schedule.get_loops(block)[: _depth_of(schedule, block, panel_loop)])
    fused = schedule.fuse(*own_loops[depth:])
    _, rows, columns = schedule.split(fused, [None, *threads])
    schedule.bind(rows, "threadIdx.y")
    schedule.bind(columns, "threadIdx.x")


def _depth_of(schedule: Schedule, block: Any, loop: Any) -> int:
    wanted = schedule.get(loop).loop_var
    loops = [schedule.get(candidate).loop_var for candidate in schedule.get_loops(block)]
    return 1 + next(index for index, variable in enumerate(loops) if variable.same_as(wanted))
