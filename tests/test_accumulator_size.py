# SPDX-License-Identifier: Apache-2.0
"""Accumulators stay in registers: as many per thread as in the data-parallel kernel, never more.

TVM plans where a buffer lives and how large it is. A persistent loop around the nest can make it
plan registers as large as the whole output, or as an argument of the kernel, without a word.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import schedules
from cuda_runs import (
    Kernel,
    kernel_of,
    kernel_parameters,
    kernel_text,
    main_launch,
    private_arrays,
)
from schedules import GpuTiling
from tvm.s_tir import Schedule
from tvm.script import tirx as T
from workloads import Workload, batched_gemm, conv2d, gemm, gemv, row_extremes, symbolic_gemm

SMALL = GpuTiling(tile=(8, 16), per_thread=(2, 2), vthreads=(1, 2))
MERGE_PARAMETERS = {"stream_k_arrivals_ptr", "stream_k_workspace_ptr"}
MOST_OWN = 16
"""Numbers that the merge keeps in registers beside the accumulators: a slice, a tile, a flag."""


def hand(workload: Workload) -> Schedule:
    return schedules.hand_gpu(workload, SMALL)


def with_epilogue(workload: Workload) -> Schedule:
    schedule = hand(workload)
    schedule.reverse_compute_inline("D")
    return schedule


NESTS: dict[str, tuple[Callable[[], Workload], Callable[[Workload], Schedule]]] = {
    "hand, ragged": (lambda: gemm(20, 40, 36), hand),
    "hand, dividing": (lambda: gemm(24, 48, 40), hand),
    "hand, large tiles": (lambda: gemm(70, 70, 64), schedules.hand_gpu),
    "hand, epilogue": (
        lambda: gemm(20, 40, 40, epilogue=lambda c: c + T.float32(1)),
        with_epilogue,
    ),
    "rows": (lambda: gemv(40, 50), schedules.hand_gpu_rows),
    "largest of a row": (lambda: row_extremes(40, 50), schedules.hand_gpu_rows),
    "convolution": (lambda: conv2d(7, 3, 20), hand),
    "batch": (lambda: batched_gemm(3, 9, 20, 36), hand),
    "DLight": (lambda: gemm(70, 70, 64), schedules.dlight_gpu),
    "DLight, ragged depth": (lambda: gemm(70, 130, 50), schedules.dlight_gpu),
    "MetaSchedule": (lambda: gemm(20, 40, 40), schedules.metaschedule_gpu),
    "MetaSchedule, convolution": (lambda: conv2d(7, 3, 20), schedules.metaschedule_gpu),
}
ARGUMENTS: list[dict[str, Any]] = [
    {"num_workers": 5, "merge": "last_arriver"},
    {"num_workers": 7, "merge": "two_phase"},
    {"num_workers": 7, "merge": "last_arriver", "decomposition": "two_tile"},
    {"decomposition": "persistent", "num_workers": 2},
]


def without_own(arrays: dict[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """The nest's own private arrays, and those of the merge."""
    own = {name: length for name, length in arrays.items() if name.startswith("stream_k_")}
    return {name: length for name, length in arrays.items() if name not in own}, own


def lowered(schedule: Schedule, workload: Workload) -> Kernel:
    return kernel_of(schedule.mod, workload.inputs, [workload.expected])


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
@pytest.mark.parametrize("name", NESTS)
def test_registers_are_those_of_the_data_parallel_kernel(
    name: str, arguments: dict[str, Any]
) -> None:
    make_workload, make = NESTS[name]
    workload = make_workload()
    plain_text = kernel_text(lowered(make(workload), workload).plan)
    before = private_arrays(plain_text)
    schedule = make(workload)
    schedule.stream_k("C", **arguments)
    kernel = lowered(schedule, workload)
    text = kernel_text(kernel.plan)
    after, own = without_own(private_arrays(text))
    assert before and after == before
    assert sum(own.values()) <= MOST_OWN
    added = set(kernel_parameters(text)) - set(kernel_parameters(plain_text))
    assert added <= MERGE_PARAMETERS


@pytest.mark.parametrize("name", ["hand, ragged", "DLight", "MetaSchedule"])
def test_registers_of_the_merging_kernel(name: str) -> None:
    make_workload, make = NESTS[name]
    workload = make_workload()
    schedule = make(workload)
    schedule.stream_k("C", num_workers=7, merge="two_phase")
    kernel = lowered(schedule, workload)
    main = kernel_text(kernel.plan)
    last = kernel.plan.launches[-1].kernel
    assert last != main_launch(kernel.plan).kernel
    merging, _ = without_own(private_arrays(kernel_text(kernel.plan, last)))
    summing, _ = without_own(private_arrays(main))
    assert sorted(merging.values()) == sorted(summing.values())


@pytest.mark.parametrize("merge", ["last_arriver", "two_phase", "atomic"])
def test_registers_where_the_number_of_rows_is_symbolic(merge: str) -> None:
    workload = symbolic_gemm(70, 70, 64)
    plain = private_arrays(kernel_text(lowered(schedules.dlight_gpu(workload), workload).plan))
    schedule = schedules.dlight_gpu(workload)
    schedule.stream_k("C", num_workers=5, merge=merge)
    after, own = without_own(private_arrays(kernel_text(lowered(schedule, workload).plan)))
    assert after == plain
    assert sum(own.values()) <= MOST_OWN
