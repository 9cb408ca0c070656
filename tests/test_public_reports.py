# SPDX-License-Identifier: Apache-2.0
"""Faults that were reported of other split-K and Stream-K kernels, by their number in
docs/public_reports.md: each is made again here in small, or refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import schedules
import tvm
from contractions import Contraction
from helpers import check_numerics, refused
from schedules import LLVM, OPENCL, GpuTiling
from tvm.s_tir import Schedule
from tvm.script import tirx as T
from unfit_nests import empty, symbolic_depth
from workload_rows import ROWS
from workloads import Workload, batched_gemm, gemm, symbolic_gemm

from tvm_streamk import errors
from tvm_streamk.partition import Partition
from tvm_streamk.policy import choose
from tvm_streamk.testing import integer_inputs, poisoned, run

SMALL = GpuTiling(tile=(8, 16), per_thread=(2, 2), vthreads=(1, 2))
CUDA = {"kind": "cuda", "arch": "sm_80"}
H200_SMS = 132
PAGE = (Path(__file__).parents[1] / "docs" / "public_reports.md").read_text()


def on_cpu(workload: Workload, workers: int, tile: tuple[int, ...] = (16, 32), **more: Any) -> Any:
    """Stream a workload on a CPU grid, run it, and give the plan."""
    schedule = schedules.hand_cpu(workload, tile)
    plan = schedule.stream_k("C", num_workers=workers, **more)
    check_numerics(schedule.mod, workload, LLVM)
    return plan


def on_gpu(workload: Workload, workers: int, tiling: GpuTiling = SMALL, **more: Any) -> Any:
    """The same on a GPU grid."""
    schedule = schedules.hand_gpu(workload, tiling)
    plan = schedule.stream_k("C", num_workers=workers, **more)
    check_numerics(schedule.mod, workload, OPENCL)
    return plan


def cuda_source(workload: Workload, **arguments: Any) -> str:
    schedule = schedules.hand_gpu(workload, SMALL)
    schedule.stream_k("C", **arguments)
    built = tvm.tirx.build(schedule.mod, target=tvm.target.Target(CUDA).with_host("llvm"))
    return str(built.imports[0].inspect_source())


def workspace_of(schedule: Schedule) -> Any:
    root = schedule.get(schedule.get_sblock("root"))
    (buffer,) = [each for each in root.alloc_buffers if "workspace" in each.name]
    return buffer


# -- shapes of which one kernel or another was wrong, or never ended -------------------------------

SHAPES: dict[str, tuple[int, int, int, int]] = {
    "2 fewer rows than a tile has": (8, 96, 256, 5),
    "3 sixteen rows": (16, 160, 512, 7),
    "14 workers do not divide": (64, 128, 256, 5),
    "17 one row, one panel": (1, 128, 1, 1),
    "18 ragged in all axes": (127, 255, 96, 11),
    "18 ragged, deep": (15, 17, 4096, 9),
    "35 K is 1": (20, 40, 1, 2),
    "35 K is 3": (20, 40, 3, 2),
    "35 K is 133": (20, 40, 133, 3),
    "41 very deep": (16, 32, 147_456, 6),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_report_shape(shape: str) -> None:
    rows, columns, depth, workers = SHAPES[shape]
    on_cpu(gemm(rows, columns, depth), workers)


@pytest.mark.parametrize("batch", [2, 3])
def test_report_13_23_46c_batch_and_ragged_depth(batch: int) -> None:
    plan = on_gpu(batched_gemm(batch, 9, 16, 21), 5)
    assert plan.num_tiles == batch * 2


def test_report_1_no_worker_waits_for_another() -> None:
    source = cuda_source(gemm(20, 40, 40), num_workers=4, merge="last_arriver")
    assert "while" not in source
    assert "atomicAdd" in source


@pytest.mark.parametrize("merge", ["atomic", "two_phase", "last_arriver"])
def test_report_5_38_all_merges_agree(merge: str) -> None:
    on_gpu(gemm(20, 40, 40, "int32"), 7, merge=merge)


def test_report_6_all_ones_with_a_broadcast_row() -> None:
    contraction = Contraction("ik,kj->ij", {"i": 16, "j": 48, "k": 64}, epilogue="bias and clip")
    made = contraction.workload()
    ones = tuple(np.ones_like(each) for each in made.inputs)
    workload = Workload(made.function, ones, np.full((16, 48), 65, "float32"))
    schedule = schedules.hand_gpu(workload, SMALL)
    schedule.reverse_compute_inline("D")
    schedule.stream_k("C", num_workers=4)
    check_numerics(schedule.mod, workload, OPENCL)


@pytest.mark.parametrize("vthreads", [(1, 1), (2, 1), (2, 2)])
def test_report_7_several_parts_of_a_tile_per_thread(vthreads: tuple[int, int]) -> None:
    on_gpu(gemm(20, 40, 40), 4, GpuTiling((8, 16), 8, (2, 4), vthreads))


@pytest.mark.parametrize("accumulator", ["float16", "float32"])
def test_report_9_34_42_partial_sums_are_float32(accumulator: str) -> None:
    contraction = Contraction(
        "ik,kj->ij", {"i": 20, "j": 40, "k": 64}, ("float16", "float16"), accumulator
    )
    schedule = ROWS["GEMM NN"].cpu_nest().schedule(contraction.workload())
    schedule.stream_k("C", num_workers=7)
    assert str(workspace_of(schedule).dtype) == "float32"


def test_report_15_34_sixteen_bit_sums_do_not_get_worse() -> None:
    contraction = Contraction(
        "ik,kj->ij", {"i": 8, "j": 16, "k": 512}, ("float16", "float16"), "float16"
    )
    nest = ROWS["GEMM NN"].cpu_nest()
    function = contraction.workload().function
    left, right = (
        np.random.default_rng(seed).random(shape).astype("float16")
        for seed, shape in enumerate([(8, 512), (512, 16)])
    )
    exact = left.astype("float64") @ right.astype("float64")

    def error(workers: int | None) -> float:
        schedule = nest.schedule(Workload(function, (), exact))
        if workers is not None:
            schedule.stream_k("C", num_workers=workers)
        *_, result = run(schedule.mod, [left, right, poisoned((8, 16), "float16")], LLVM)
        return float(np.abs(result - exact).max())

    assert error(19) <= error(None)


@pytest.mark.parametrize("make", ["cpu", "gpu"])
def test_report_10_22_the_same_bits_on_every_run(make: str) -> None:
    function = gemm(20, 40, 133).function
    numbers = np.random.default_rng(0)
    left, right = numbers.random((20, 133), "float32"), numbers.random((133, 40), "float32")
    workload = Workload(function, (left, right), poisoned((20, 40)))
    if make == "cpu":
        schedule, target = schedules.hand_cpu(workload, (8, 16)), LLVM
    else:
        schedule, target = schedules.hand_gpu(workload, SMALL), OPENCL
    schedule.stream_k("C", num_workers=11)
    results = [run(schedule.mod, [left, right, poisoned((20, 40))], target)[2] for _ in range(4)]
    assert all(result.tobytes() == results[0].tobytes() for result in results)


# -- what auto decides -----------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "columns"), [(128, 32768), (128, 8192)])
def test_report_11_few_waves(rows: int, columns: int) -> None:
    tiles = -(-rows // 128) * -(-columns // 128)
    chosen = choose(tiles, 8192 // 32, H200_SMS)
    assert chosen.predicted_gain >= 1


@pytest.mark.parametrize("waves", [1, 3, 6])
def test_report_19_full_waves_stay_data_parallel(waves: int) -> None:
    chosen = choose(waves * H200_SMS, 88, H200_SMS)
    assert chosen.decomposition == "data_parallel"


def test_report_37_fewer_tiles_than_processors() -> None:
    plan = on_cpu(gemm(32, 64, 64), 32, (8, 16))
    assert (plan.num_tiles, plan.num_workers) == (16, 32)


@pytest.mark.parametrize("panels", [1, 2, 7, 64])
@pytest.mark.parametrize("tiles", [1, 16, 131, 133, 400])
def test_report_45_no_worker_is_empty(tiles: int, panels: int) -> None:
    chosen = choose(tiles, panels, H200_SMS)
    partition = Partition(tiles, panels, chosen.num_workers, chosen.decomposition)
    counts = [
        sum(s.k_end - s.k_begin for s in partition.segments(worker))
        for worker in range(chosen.num_workers)
    ]
    assert min(counts) > 0


def test_report_46_workers_come_from_the_arguments() -> None:
    counts = [
        schedules.hand_gpu(gemm(64, 64, 400), SMALL)
        .stream_k("C", decomposition="stream_k", num_sms=processors)
        .num_workers
        for processors in (108, 132, 108)
    ]
    assert counts == [108, 132, 108]


@pytest.mark.parametrize("panels", [64, 15_625])
def test_report_46d_peers_are_capped(panels: int) -> None:
    chosen = choose(1, panels, H200_SMS, most_peers=8)
    partition = Partition(1, panels, chosen.num_workers, chosen.decomposition)
    assert partition.most_peers <= 8


@pytest.mark.parametrize("rows", [4, 16, 33, 65])
def test_report_43_a_rows_bits_do_not_depend_on_the_number_of_rows(rows: int) -> None:
    numbers = np.random.default_rng(0)
    left, right = numbers.random((65, 256), "float32"), numbers.random((256, 48), "float32")

    def product(count: int) -> np.ndarray:
        schedule = schedules.hand_cpu(gemm(count, 48, 256), (16, 16), 16)
        schedule.stream_k("C", num_sms=64, device="H100", batch_invariant=True)
        return run(schedule.mod, [left[:count], right, poisoned((count, 48))], LLVM)[2]

    assert product(rows).tobytes() == product(65)[:rows].tobytes()


# -- fences, workspaces, edges ---------------------------------------------------------------------


def test_report_21_the_fence_stands_before_the_arrival() -> None:
    source = cuda_source(gemm(20, 40, 40), num_workers=4, merge="last_arriver")
    kernel = source[source.rindex("__global__") :]
    order = re.findall(
        r"workspace_ptr\[[^;]*\] = |device_fence_int32\(\)|__syncthreads|atomic_add_int32", kernel
    )
    arrival = next(index for index, each in enumerate(order) if "atomic_add" in each)
    assert order[arrival - 1].startswith("device_fence")
    assert "__syncthreads" in order[arrival - 2]
    assert order[arrival - 3].startswith("device_fence")
    assert "workspace" in order[arrival - 4]


@pytest.mark.parametrize("workers", [1, 2, 5, 9, 45])
def test_report_25_26_every_slot_is_allocated(workers: int) -> None:
    schedule = schedules.hand_gpu(gemm(20, 40, 40), SMALL)
    plan = schedule.stream_k("C", num_workers=workers, merge="two_phase")
    partition = plan.partition
    used = [
        int(partition.slot(worker, segment.k_begin))
        for worker in range(workers)
        for segment in partition.segments(worker)
        if not segment.is_full(plan.panels)
    ]
    assert len(set(used)) == len(used)
    assert all(slot < partition.num_slots for slot in used)
    if plan.cuts:
        elements = np.prod([int(extent) for extent in workspace_of(schedule).shape])
        assert elements * 4 == plan.workspace_bytes


def test_report_26_a_depth_that_nothing_divides() -> None:
    on_cpu(batched_gemm(2, 7, 9, 17_711), 5, (4, 8))


@T.prim_func(s_tir=True)
def corner_of_a_larger_output(
    A: T.Buffer((19, 33), "float32"),
    B: T.Buffer((33, 21), "float32"),
    C: T.Buffer((24, 32), "float32"),
):
    for i, j, k in T.grid(19, 21, 33):
        with T.sblock("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]


def test_report_27_nothing_is_written_beyond_the_edge() -> None:
    left, right = integer_inputs((19, 33)), integer_inputs((33, 21), seed=1)
    expected = poisoned((24, 32))
    expected[:19, :21] = left @ right
    workload = Workload(corner_of_a_larger_output, (left, right), expected)
    on_cpu(workload, 7, (8, 16))
    on_gpu(workload, 7)


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_report_29_narrow_atomics_are_refused(dtype: str) -> None:
    schedule = schedules.hand_gpu(gemm(20, 40, 40, dtype), SMALL)
    with refused(schedule, errors.AtomicNotSupported, f"the output `C` is {dtype}"):
        schedule.stream_k("C", num_workers=4, merge="atomic")


def test_report_30_no_depth_at_all_is_refused() -> None:
    schedule = Schedule(empty)
    with refused(schedule, errors.EmptyReduction, "K = 0"):
        schedule.stream_k("C", num_workers=2)


@T.prim_func(s_tir=True)
def scaled_product(
    A: T.Buffer((20, 40), "float32"),
    B: T.Buffer((40, 40), "float32"),
    alpha: T.Buffer((1,), "float32"),
    C: T.Buffer((20, 40), "float32"),
):
    sums = T.sblock_alloc_buffer((20, 40))
    for i, j in T.grid(20, 40):
        for k in range(40):
            with T.sblock("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    sums[vi, vj] = T.float32(0)
                sums[vi, vj] = sums[vi, vj] + A[vi, vk] * B[vk, vj]
        with T.sblock("scale"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = alpha[0] * sums[vi, vj]


def test_report_31_zero_times_nan_stays_nan() -> None:
    left, right = integer_inputs((20, 40)), integer_inputs((40, 40), seed=1)
    left[3, 7] = np.nan
    right[7] = 1
    expected = np.zeros((20, 40), "float32")
    expected[3] = np.nan
    schedule = Schedule(scaled_product)
    schedule.stream_k("C", num_workers=7)
    alpha = np.zeros(1, "float32")
    *_, result = run(schedule.mod, [left, right, alpha, np.ones((20, 40), "float32")], LLVM)
    np.testing.assert_array_equal(result, expected)


def test_report_39_symbolic_rows_work_and_symbolic_depth_is_refused() -> None:
    on_cpu(symbolic_gemm(33, 40, 24), 3)
    schedule = Schedule(symbolic_depth)
    with refused(schedule, errors.PanelCountVaries, "`k` has depth trips"):
        schedule.stream_k("C", num_workers=2)


def test_report_46b_nothing_survives_a_call() -> None:
    schedule = schedules.hand_gpu(gemm(20, 40, 40), SMALL)
    schedule.stream_k("C", num_workers=7, merge="last_arriver")
    check_numerics(schedule.mod, gemm(20, 40, 40), OPENCL)
    assert len(schedule.mod["main"].params) == 3


# -- the page --------------------------------------------------------------------------------------

NUMBERS = (
    "1 2 3 5 6 7 9 10 11 13 14 15 17 18 19 21 22 23 25 26 27 29 30 31 33 34 35 37 38 39 41 42 43 "
    "45 46 46b 46c 46d 47 49 50 51 53 54 55 57 58 59 61 62 63 65 66 67 69 70 71"
).split()


@pytest.mark.parametrize("number", NUMBERS)
def test_every_report_is_in_the_page_with_a_verdict(number: str) -> None:
    row = re.search(rf"^\| {number} \|.*$", PAGE, re.MULTILINE)
    assert row is not None
    assert re.search(r"\| (works|refused|documented limit)[ ,:;]", row.group())


def test_page_names_no_test_that_does_not_exist() -> None:
    folder = Path(__file__).parent
    text = "".join(path.read_text() for path in folder.rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > 30
    assert [name for name in sorted(named) if f"def {name}(" not in text] == []
