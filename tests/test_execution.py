# SPDX-License-Identifier: Apache-2.0
"""Every accepted schedule is executed, and gives exactly what numpy gives.

The combinations are reduced so that every two properties meet; ``-m long`` runs all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import schedules
from helpers import check_numerics, every_combination, pairwise, workers_from
from schedules import LLVM, OPENCL, GpuTiling
from tvm.s_tir import Schedule
from tvm.script import tirx as T
from workloads import (
    Workload,
    batched_gemm,
    conv2d,
    gemm,
    gemv,
    row_extremes,
    symbolic_gemm,
)

from tvm_streamk import analyze, errors
from tvm_streamk.testing import integer_inputs

SMALL = GpuTiling(tile=(8, 16), per_thread=(2, 2), vthreads=(1, 2))
WORKERS = ("1", "2", "3", "5", "T", "T+1", "T*P")
DTYPES = ("float32", "float64", "int32")

GPU_SHAPES: dict[str, Callable[[str], Workload]] = {
    "ragged": lambda dtype: gemm(20, 60, 36, dtype),
    "dividing, more columns": lambda dtype: gemm(8, 48, 32, dtype),
    "one panel": lambda dtype: gemm(20, 40, 8, dtype),
    "one tile": lambda dtype: gemm(7, 15, 40, dtype),
    "batch of 3": lambda dtype: batched_gemm(3, 9, 16, 20, dtype),
}
GPU_FORMS: dict[str, Callable[[Workload], Schedule]] = {
    "hand": lambda workload: schedules.hand_gpu(workload, SMALL),
    "hand, init inside, grid not bound": lambda workload: schedules.hand_gpu(
        workload, GpuTiling(SMALL.tile, 8, (2, 2), (1, 1), decompose=False, bind_blocks=False)
    ),
    "hand, no accumulator": lambda workload: schedules.hand_gpu(
        workload, GpuTiling(SMALL.tile, 8, (1, 2), (2, 1), accumulate_in=None, stage_inputs=False)
    ),
    "dlight": schedules.dlight_gpu,
}
CPU_SHAPES: dict[str, Callable[[str], Workload]] = {
    "ragged": lambda dtype: gemm(50, 72, 40, dtype),
    "dividing, more rows": lambda dtype: gemm(64, 32, 64, dtype),
    "B transposed": lambda dtype: gemm(20, 100, 24, dtype, transposed=True),
    "one panel": lambda dtype: gemm(50, 72, 8, dtype),
    "one tile": lambda dtype: gemm(15, 31, 50, dtype),
    "batch of 2": lambda dtype: batched_gemm(2, 20, 40, 24, dtype),
    "convolution": lambda dtype: conv2d(7, 3, 20, dtype=dtype),
}
CPU_FORMS: dict[str, Callable[[Workload], Schedule]] = {
    "hand": schedules.hand_cpu,
    "hand, cached, init apart": lambda workload: schedules.hand_cpu(
        workload, cached=True, decompose=True
    ),
    "hand, not parallel": lambda workload: schedules.hand_cpu(workload, (20, 40), parallel=False),
    "MetaSchedule": schedules.metaschedule_cpu,
}
CUTS = ("stream_k", "two_tile", "persistent", "split_k")
GPU_FACTORS = {
    "form": GPU_FORMS,
    "shape": GPU_SHAPES,
    "dtype": DTYPES,
    "workers": WORKERS,
    "decomposition": CUTS,
    "merge": ("two_phase", "atomic", "last_arriver"),
}
CPU_FACTORS = {
    "form": CPU_FORMS,
    "shape": CPU_SHAPES,
    "dtype": DTYPES,
    "workers": WORKERS,
    "decomposition": CUTS,
}


def decision(schedule: Schedule, workers: str, decomposition: str) -> dict[str, Any]:
    """Arguments for the primitive: workers as far as the decomposition has them, splits else."""
    nest = analyze(schedule, "C")
    if decomposition == "split_k":
        divisors = [count for count in range(1, nest.panels + 1) if nest.panels % count == 0]
        return {"decomposition": decomposition, "splits": divisors[min(len(divisors) - 1, 1)]}
    most = nest.num_tiles * (1 if decomposition == "persistent" else nest.panels)
    wanted = workers_from(workers, nest.num_tiles, nest.panels)
    return {"decomposition": decomposition, "num_workers": min(wanted, most)}


def execute_gpu(case: dict[str, str]) -> None:
    workload = GPU_SHAPES[case["shape"]](case["dtype"])
    schedule = GPU_FORMS[case["form"]](workload)
    arguments = decision(schedule, case["workers"], case["decomposition"])
    schedule.stream_k("C", merge=case["merge"], **arguments)
    check_numerics(schedule.mod, workload, OPENCL)


def execute_cpu(case: dict[str, str]) -> None:
    workload = CPU_SHAPES[case["shape"]](case["dtype"])
    schedule = CPU_FORMS[case["form"]](workload)
    schedule.stream_k("C", **decision(schedule, case["workers"], case["decomposition"]))
    check_numerics(schedule.mod, workload, LLVM)


def named(cases: list[dict[str, str]]) -> Any:
    return pytest.mark.parametrize("case", cases, ids=lambda case: "-".join(case.values()))


@named(pairwise(**GPU_FACTORS))
def test_gpu(case: dict[str, str]) -> None:
    execute_gpu(case)


@named(pairwise(**CPU_FACTORS))
def test_cpu(case: dict[str, str]) -> None:
    execute_cpu(case)


@pytest.mark.long
@named(every_combination(**GPU_FACTORS))
def test_gpu_in_full(case: dict[str, str]) -> None:
    execute_gpu(case)


@pytest.mark.long
@named(every_combination(**CPU_FACTORS))
def test_cpu_in_full(case: dict[str, str]) -> None:
    execute_cpu(case)


@pytest.mark.parametrize("form", [*GPU_FORMS, *CPU_FORMS])
def test_one_worker_more_than_panels_is_refused(form: str) -> None:
    make = GPU_FORMS.get(form) or CPU_FORMS[form]
    schedule = make(gemm(20, 40, 36))
    nest = analyze(schedule, "C")
    panels = nest.num_tiles * nest.panels
    with pytest.raises(errors.TooManyWorkers, match=f"num_workers={panels + 1}, but there are"):
        schedule.stream_k("C", num_workers=panels + 1)


# -- other workloads and producers -----------------------------------------------------------------

OTHER_GPU: dict[str, tuple[Workload, Callable[[Workload], Schedule]]] = {
    "MetaSchedule": (gemm(20, 40, 40), schedules.metaschedule_gpu),
    "MetaSchedule, convolution": (conv2d(7, 3, 20), schedules.metaschedule_gpu),
    "convolution": (conv2d(7, 3, 20), GPU_FORMS["hand"]),
    "B transposed": (gemm(8, 48, 32, transposed=True), GPU_FORMS["hand"]),
    "matrix times vector": (gemv(40, 50), schedules.hand_gpu_rows),
    "largest of a row": (row_extremes(40, 50), schedules.hand_gpu_rows),
    "smallest of a row": (row_extremes(40, 50, largest=False), schedules.hand_gpu_rows),
}


@T.prim_func(s_tir=True)
def upsampled(A: T.Buffer((16, 8), "float32"), C: T.Buffer((25, 8), "float32")):
    B = T.sblock_alloc_buffer((16, 8))
    for tile in range(5):
        for i, j in T.grid(5, 8):
            with T.sblock("B"):
                vi = T.axis.spatial(16, tile * 5 // 2 + i)
                vj = T.axis.spatial(8, j)
                B[vi, vj] = A[vi, vj] * T.float32(2)
        for i, j, k in T.grid(5, 8, 3):
            with T.sblock("C"):
                vi = T.axis.spatial(25, tile * 5 + i)
                vj, vk = T.axis.remap("SR", [j, k])
                with T.init():
                    C[vi, vj] = T.float32(0)
                C[vi, vj] = C[vi, vj] + B[vi // 2 + vk, vj]


@pytest.mark.parametrize("decomposition", ["stream_k", "two_tile", "persistent"])
def test_private_rows_that_begin_where_a_quotient_says(decomposition: str) -> None:
    """Whether TVM can shrink such a buffer or not, what it does must know the tile's number."""
    values = integer_inputs((16, 8))
    expected = 2 * sum(values[np.arange(25) // 2 + k] for k in range(3))
    schedule = Schedule(upsampled)
    schedule.stream_k("C", num_workers=3, decomposition=decomposition)
    check_numerics(schedule.mod, Workload(upsampled, (values,), expected), LLVM)


@pytest.mark.parametrize("merge", ["two_phase", "last_arriver"])
@pytest.mark.parametrize("name", OTHER_GPU)
def test_other_gpu_workload(name: str, merge: str) -> None:
    workload, make = OTHER_GPU[name]
    schedule = make(workload)
    schedule.stream_k("C", num_workers=3, merge=merge)
    check_numerics(schedule.mod, workload, OPENCL)


@pytest.mark.parametrize("make", [schedules.fresh, lambda w: schedules.hand_cpu(w, tile=(16,))])
@pytest.mark.parametrize("workload", [gemv(40, 50), row_extremes(40, 50)])
@pytest.mark.parametrize("workers", [1, 3, 41])
def test_other_cpu_workload(
    workload: Workload, make: Callable[[Workload], Schedule], workers: int
) -> None:
    schedule = make(workload)
    if workers > 3 * 7 and make is not schedules.fresh:
        workers = 3 * 7
    schedule.stream_k("C", num_workers=workers)
    check_numerics(schedule.mod, workload, LLVM)


# -- reductions other than sums, one tile without a loop, epilogues --------------------------------


@T.prim_func(s_tir=True)
def all_true(A: T.Buffer((16, 64), "bool"), C: T.Buffer((16,), "bool")):
    for i, k in T.grid(16, 64):
        with T.sblock("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = T.bool(True)
            C[vi] = C[vi] and A[vi, vk]


@T.prim_func(s_tir=True)
def parity(A: T.Buffer((16, 64), "int32"), C: T.Buffer((16,), "int32")):
    for i, k in T.grid(16, 64):
        with T.sblock("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = 0
            C[vi] = A[vi, vk] ^ C[vi]


@T.prim_func(s_tir=True)
def product(A: T.Buffer((16, 64), "int32"), C: T.Buffer((16,), "int32")):
    for i, k in T.grid(16, 64):
        with T.sblock("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = 1
            C[vi] = C[vi] * A[vi, vk]


@T.prim_func(s_tir=True)
def column_sums(A: T.Buffer((16, 64), "int32"), C: T.Buffer((64,), "int32")):
    for k, i in T.grid(16, 64):
        with T.sblock("C"):
            vk, vi = T.axis.remap("RS", [k, i])
            with T.init():
                C[vi] = 0
            C[vi] = C[vi] + A[vk, vi]


@T.prim_func(s_tir=True)
def panels_from_the_middle(A: T.Buffer((16, 64), "int32"), C: T.Buffer((16,), "int32")):
    for i in T.serial(2, 14):
        with T.sblock("C_init"):
            vi = T.axis.spatial(16, i)
            C[vi] = 0
        for k in T.serial(3, 29):
            with T.sblock("C_update"):
                vi, vk = T.axis.remap("SR", [i, k])
                C[vi] = C[vi] + A[vi, vk]


REDUCTIONS: dict[str, tuple[Any, Any]] = {
    "all": (all_true, lambda a: a.all(axis=1)),
    "bitwise exclusive or": (parity, lambda a: np.bitwise_xor.reduce(a, axis=1)),
    "product": (product, lambda a: np.multiply.reduce(a, axis=1, dtype="int32")),
    "one tile without a tile loop": (column_sums, lambda a: a.sum(axis=0, dtype="int32")),
}


@pytest.mark.parametrize("workers", [1, 3, 16])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduction(name: str, workers: int) -> None:
    function, reference = REDUCTIONS[name]
    values = np.random.default_rng(0).integers(0, 4, (16, 64))
    values[:8] |= 1
    values = values.astype(str(function.params[0].dtype))
    schedule = Schedule(function)
    schedule.stream_k("C", num_workers=workers)
    check_numerics(schedule.mod, Workload(function, (values,), reference(values)), LLVM)


@pytest.mark.parametrize("workers", [1, 5, 100])
def test_loops_that_do_not_start_at_zero(workers: int) -> None:
    values = np.arange(16 * 64, dtype="int32").reshape(16, 64)
    expected = np.full(16, np.iinfo("int32").max - 4, "int32")
    expected[2:14] = values[2:14, 3:29].sum(axis=1)
    schedule = Schedule(panels_from_the_middle)
    schedule.stream_k("C", num_workers=workers)
    workload = Workload(panels_from_the_middle, (values,), expected)
    check_numerics(schedule.mod, workload, LLVM)


@pytest.mark.parametrize("decomposition", ["stream_k", "two_tile"])
@pytest.mark.parametrize("merge", ["two_phase", "last_arriver"])
def test_epilogue_runs_once_per_tile(merge: str, decomposition: str) -> None:
    workload = gemm(20, 40, 40, epilogue=lambda value: value * value + T.float32(7))
    expected = workload.expected**2 + 7
    schedule = schedules.hand_gpu(workload, SMALL)
    schedule.reverse_compute_inline("D")
    schedule.stream_k("C", num_workers=4, merge=merge, decomposition=decomposition)
    check_numerics(schedule.mod, dataclasses.replace(workload, expected=expected), OPENCL)


@T.prim_func(s_tir=True)
def add_to_output(
    A: T.Buffer((16, 64), "float32"), B: T.Buffer((16,), "float32"), C: T.Buffer((16,), "float32")
):
    sums = T.sblock_alloc_buffer((16,))
    scaled = T.sblock_alloc_buffer((16,))
    for i in range(16):
        for k in range(64):
            with T.sblock("C"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    sums[vi] = T.float32(0)
                sums[vi] = sums[vi] + A[vi, vk]
        with T.sblock("scaled"):
            vi = T.axis.spatial(16, i)
            scaled[vi] = sums[vi] * T.float32(2)
        with T.sblock("store"):
            vi = T.axis.spatial(16, i)
            C[vi] = scaled[vi] + B[vi]


@pytest.mark.parametrize("workers", [1, 3, 16, 17, 50])
def test_epilogue_of_two_blocks(workers: int) -> None:
    left = np.random.default_rng(0).integers(-3, 4, (16, 64)).astype("float32")
    right = np.arange(16, dtype="float32")
    schedule = Schedule(add_to_output)
    schedule.stream_k("C", num_workers=workers)
    workload = Workload(add_to_output, (left, right), 2 * left.sum(axis=1) + right)
    check_numerics(schedule.mod, workload, LLVM)


# -- shapes that are not known until the call ------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 5, 16, 33, 100])
@pytest.mark.parametrize(
    "arguments",
    [
        {"num_workers": 3},
        {"num_workers": 7, "decomposition": "two_tile"},
        {"num_workers": 3, "decomposition": "persistent"},
        {"decomposition": "split_k", "splits": 3},
    ],
    ids=str,
)
def test_symbolic_rows(rows: int, arguments: dict[str, Any]) -> None:
    workload = symbolic_gemm(rows, 40, 24)
    schedule = schedules.hand_cpu(workload)
    schedule.stream_k("C", **arguments)
    check_numerics(schedule.mod, workload, LLVM)


def test_more_workers_than_a_symbolic_shape_has_panels() -> None:
    workload = symbolic_gemm(1, 40, 24)
    schedule = schedules.hand_cpu(workload)
    schedule.stream_k("C", num_workers=50)
    check_numerics(schedule.mod, workload, LLVM)


@pytest.mark.parametrize("rows", [1, 20])
@pytest.mark.parametrize("merge", ["two_phase", "atomic", "last_arriver"])
def test_symbolic_rows_on_a_gpu_grid(rows: int, merge: str) -> None:
    workload = symbolic_gemm(rows, 40, 24)
    schedule = schedules.dlight_gpu(workload)
    schedule.stream_k("C", num_workers=4, merge=merge)
    check_numerics(schedule.mod, workload, OPENCL)
