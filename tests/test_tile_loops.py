# SPDX-License-Identifier: Apache-2.0
"""The loops around a Stream-K kernel: what the nest's own loops said is still said."""

from __future__ import annotations

from typing import Any

import pytest
import schedules
import workloads
from tvm import tirx
from tvm.s_tir import Schedule

from tvm_streamk.expressions import collect, is_grid_loop, pragmas

PRAGMA = "pragma_auto_unroll_max_step"
STEPS = 64
GEMM = workloads.gemm(48, 32, 64)
MERGES = {"gpu": ("two_phase", "atomic", "last_arriver"), "cpu": ("two_phase",)}
CASES = [(grid, merge) for grid, merges in MERGES.items() for merge in merges]


def hand(grid: str, decompose: bool) -> Schedule:
    if grid == "gpu":
        return schedules.hand_gpu(GEMM, schedules.GpuTiling(decompose=decompose))
    return schedules.hand_cpu(GEMM, decompose=decompose)


@pytest.mark.parametrize(("grid", "merge"), CASES)
def test_pragmas_of_a_tile_loop_hold_in_every_kernel(grid: str, merge: str) -> None:
    """As MetaSchedule writes them: unrolling, on the outermost loop of a nest."""
    schedule = hand(grid, decompose=False)
    schedule.annotate(schedule.get_loops("C")[0], PRAGMA, STEPS)
    schedule.stream_k("C", num_workers=2, decomposition="stream_k", merge=merge)
    grids = [each for each in collect(schedule.mod["main"].body, tirx.For) if is_kernel(each)]
    assert {str(each.loop_var.name) for each in grids} >= {"worker"}
    for each in grids:
        # The counters' own zeroing has no tile in it.
        if str(each.loop_var.name) in ("worker", "boundary"):
            assert pragmas(each) == {PRAGMA: STEPS}, each.loop_var


@pytest.mark.parametrize("grid", MERGES)
def test_pragmas_of_an_accumulators_loop_hold_where_it_is_stored(grid: str) -> None:
    schedule = hand(grid, decompose=True)
    schedule.annotate(schedule.get_loops("C_init")[-1], PRAGMA, STEPS)
    schedule.stream_k("C_update", num_workers=2, decomposition="stream_k", merge="two_phase")
    loops = collect(schedule.mod["main"].body, tirx.For)
    # The sum starts in it in both kernels; it is stored, added up, and on a CPU also written.
    assert sum(PRAGMA in pragmas(each) for each in loops) >= 4


def is_kernel(loop: Any) -> bool:
    return is_grid_loop(loop) or loop.kind == tirx.ForKind.PARALLEL
