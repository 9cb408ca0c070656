# SPDX-License-Identifier: Apache-2.0
"""The last-arriver merge: the same bits always, whatever the memory and the order of the blocks."""

from __future__ import annotations

import re
from typing import Any

import cuda_runs
import numpy as np
import pytest
import schedules
import tvm
from cuda_runs import (
    ARRIVALS,
    PUBLICATION,
    WORKSPACE,
    Kernel,
    check_orders,
    kernel_of,
    kernel_text,
    publication,
)
from helpers import check_numerics, refused
from schedules import OPENCL, GpuTiling
from tvm.s_tir import Schedule
from tvm.script import tirx as T
from workloads import Workload, batched_gemm, conv2d, gemm, gemv

import tvm_streamk
from tvm_streamk import Partition, errors
from tvm_streamk.testing import integer_inputs, poisoned, prepare

SMALL = GpuTiling(tile=(8, 16), per_thread=(2, 2), vthreads=(1, 2))
TILES, PANELS = 9, 5
GEMM = gemm(20, 40, 40)
MERGES = ("last_arriver", "two_phase", "atomic")
ORDERS = ("random", "priority")
LAUNCHES = 100


def hand(workload: Workload = GEMM) -> Schedule:
    """3 x 3 tiles of 5 panels for the default workload."""
    return schedules.hand_gpu(workload, SMALL)


def streamed(schedule: Schedule, workload: Workload, **arguments: Any) -> Kernel:
    """The kernel of a schedule after ``stream_k``."""
    schedule.stream_k("C", **arguments)
    return kernel_of(schedule.mod, workload.inputs, [workload.expected])


def with_argument(
    workload: Workload, workers: int, schedule: Schedule | None = None
) -> tuple[Any, Kernel]:
    """The lowered module whose last parameter is the counters, and its kernel."""
    schedule = schedule or hand(workload)
    arguments: dict[str, Any] = {"num_workers": workers, "merge": "last_arriver"}
    schedule.stream_k("C", counters="argument", lower=False, **arguments)
    module = tvm_streamk.LowerStreamK()(schedule.mod)
    return module, kernel_of(module, workload.inputs, [workload.expected], workers)


# -- the order in which a partial sum becomes visible ----------------------------------------------

NESTS = {
    "hand": lambda: (GEMM, hand()),
    "hand, one thread loop": lambda: ((gemv(40, 50)), schedules.hand_gpu_rows(gemv(40, 50))),
    "DLight": lambda: (GEMM, schedules.dlight_gpu(GEMM)),
    "MetaSchedule": lambda: (gemm(20, 40, 40), schedules.metaschedule_gpu(gemm(20, 40, 40))),
    "convolution": lambda: (conv2d(7, 3, 20), hand(conv2d(7, 3, 20))),
}


@pytest.mark.parametrize("counters", ["prologue", "argument"])
@pytest.mark.parametrize("name", NESTS)
def test_order_of_publication_in_the_source(name: str, counters: str) -> None:
    workload, schedule = NESTS[name]()
    if counters == "argument":
        _, kernel = with_argument(workload, 7, schedule)
    else:
        kernel = streamed(schedule, workload, num_workers=7, merge="last_arriver")
    text = kernel_text(kernel.plan)
    assert re.fullmatch(PUBLICATION, publication(text))
    assert text.count("tvm_streamk_atomic_add_int32") == 1


def test_one_thread_counts_and_both_its_fences_stand_beside_the_count() -> None:
    kernel = streamed(hand(), GEMM, num_workers=4, merge="last_arriver")
    lines = [line.strip() for line in kernel_text(kernel.plan).splitlines()]
    count = next(index for index, line in enumerate(lines) if "atomic_add_int32" in line)
    assert lines[count - 1] == lines[count + 1] == cuda_runs.FENCE
    assert re.fullmatch(
        r"if \(\(\(\(int\)threadIdx\.y\) == 0\) && \(\(\(int\)threadIdx\.x\) == 0\)\) \{",
        lines[count - 2],
    )
    assert lines[count + 2] == "}"
    assert lines[count - 3] == cuda_runs.BARRIER or lines[count - 3].startswith("int cse_")
    assert "atomicAdd(address, value);" in kernel.plan.source
    assert "__threadfence();" in kernel.plan.source


def test_no_worker_waits_for_another() -> None:
    """The counter is read once, by the atomic itself: there is no loop that polls anything."""
    kernel = streamed(hand(), GEMM, num_workers=4, merge="last_arriver")
    text = kernel_text(kernel.plan)
    assert "while" not in text and "volatile" not in text
    reads = [line for line in text.splitlines()[1:] if f"{ARRIVALS}_ptr" in line]
    assert len(reads) == 2
    assert sum("atomic_add" in line for line in reads) == 1
    assert sum(bool(re.search(r"\] = 0;$", line)) for line in reads) == 1


@cuda_runs.needs_compiler
def test_blocks_that_run_alone_finish() -> None:
    """With one block resident at a time, in whatever order, nobody can wait for anybody."""
    kernel = streamed(hand(), GEMM, num_workers=TILES * PANELS, merge="last_arriver")
    for seed in range(3):
        kernel.poison_outputs()
        kernel.launch("random", seed, resident=1)
        assert kernel.is_right()


# -- the same bits always --------------------------------------------------------------------------


def with_fractions(workload: Workload) -> Workload:
    """The workload on numbers whose sums do depend on the order of adding."""
    generator = np.random.default_rng(5)
    inputs = tuple(
        generator.standard_normal(each.shape).astype(each.dtype) for each in workload.inputs
    )
    return Workload(workload.function, inputs, workload.expected)


def different_results(kernel: Kernel, launches: int, resident: int | None = None) -> set[bytes]:
    """The results of many launches, on garbage of their own, with the blocks shuffled."""
    results = set()
    for number in range(launches):
        kernel.fill_workspaces(number, random=True)
        kernel.poison_outputs()
        kernel.launch(ORDERS[number % 2], number, resident)
        results.add(kernel.results()[0].tobytes())
    return results


# Workers beside the blocks that run at once: more, as many and fewer; and more than eight peers.
WORKERS_AND_PROCESSORS = [(11, 2), (4, 4), (3, 8), (TILES * PANELS, 8)]


@cuda_runs.needs_compiler
@pytest.mark.parametrize(("workers", "processors"), WORKERS_AND_PROCESSORS)
def test_bits_are_the_same_over_many_launches(workers: int, processors: int) -> None:
    workload = with_fractions(GEMM)
    kernel = streamed(hand(workload), workload, num_workers=workers, merge="last_arriver")
    results = different_results(kernel, LAUNCHES, processors)
    assert len(results) == 1
    found = np.frombuffer(results.pop(), "float32").reshape(workload.expected.shape)
    left, right = workload.inputs
    np.testing.assert_allclose(found, left @ right, rtol=1e-5, atol=1e-5)


@cuda_runs.needs_compiler
def test_one_tile_with_more_than_eight_peers_has_the_same_bits() -> None:
    workload = with_fractions(gemm(7, 15, 255 * 8))
    schedule = hand(workload)
    plan = schedule.stream_k("C", num_workers=24, merge="last_arriver")
    assert (plan.num_tiles, plan.panels, plan.most_peers) == (1, 255, 24)
    kernel = kernel_of(schedule.mod, workload.inputs, [workload.expected])
    assert len(different_results(kernel, LAUNCHES)) == 1


@cuda_runs.needs_compiler
def test_the_data_and_orders_would_show_a_difference() -> None:
    """The same launches with atomics do not give the same bits: the tests above can fail."""
    workload = with_fractions(GEMM)
    kernel = streamed(hand(workload), workload, num_workers=TILES * PANELS, merge="atomic")
    assert len(different_results(kernel, 10)) > 1


@pytest.mark.parametrize("workers", [2, 11])
def test_bits_are_the_same_on_opencl(workers: int) -> None:
    """PoCL has as many compute units as the machine has cores."""
    workload = with_fractions(gemm(20, 40, 200))
    schedule = hand(workload)
    schedule.stream_k("C", num_workers=workers, merge="last_arriver")
    empty = poisoned(workload.expected.shape)
    prepared = prepare(schedule.mod, OPENCL, [*workload.inputs, empty])
    results = set()
    for _ in range(LAUNCHES):
        prepared.write(2, empty)
        prepared.launch()
        results.add(prepared.read()[2].tobytes())
    assert len(results) == 1


# -- the same buffers again ------------------------------------------------------------------------


@cuda_runs.needs_compiler
@pytest.mark.parametrize("workers", [2, 10, TILES * PANELS])
def test_counters_that_the_caller_keeps(workers: int) -> None:
    _, kernel = with_argument(GEMM, workers)
    assert len(kernel.plan.launches) == 1
    for number, order in enumerate(("forward", "random", "priority")):
        kernel.poison_outputs()
        kernel.fill_workspaces(number, random=True)
        kernel.launch(order, number)
        assert kernel.is_right()
        np.testing.assert_array_equal(kernel.arrays[ARRIVALS], 0)


@pytest.mark.parametrize("workers", [1, TILES])
def test_no_counters_where_no_tile_is_cut(workers: int) -> None:
    schedule = hand()
    schedule.stream_k(
        "C", num_workers=workers, merge="last_arriver", counters="argument", lower=False
    )
    function = tvm_streamk.LowerStreamK()(schedule.mod)["main"]
    assert [str(parameter.name) for parameter in function.params] == ["A", "B", "C"]


def test_counters_that_the_caller_keeps_on_opencl() -> None:
    module, _ = with_argument(GEMM, 7)
    empty = poisoned(GEMM.expected.shape)
    prepared = prepare(module, OPENCL, [*GEMM.inputs, empty, np.zeros(7, np.int32)])
    for _ in range(3):
        prepared.write(2, empty)
        prepared.launch()
        _, _, result, counters = prepared.read()
        np.testing.assert_array_equal(result, GEMM.expected)
        np.testing.assert_array_equal(counters, 0)


@cuda_runs.needs_compiler
@pytest.mark.parametrize("workers", [2, 10, TILES * PANELS])
def test_counters_that_the_function_zeroes(workers: int) -> None:
    kernel = streamed(hand(), GEMM, num_workers=workers, merge="last_arriver")
    assert [launch.grid for launch in kernel.plan.launches] == [(1, 1, 1), (workers, 1, 1)]
    check_orders(kernel)
    np.testing.assert_array_equal(kernel.arrays[ARRIVALS].view(np.int32), 0)


def test_more_workers_than_threads_of_the_zeroing_kernel() -> None:
    """Every counter is zeroed, none twice as far."""
    workload = gemm(64, 64, 128)
    schedule = hand(workload)
    plan = schedule.stream_k("C", num_workers=500, merge="last_arriver")
    assert plan.num_workers == 500
    kernel = kernel_of(schedule.mod, workload.inputs, [workload.expected])
    assert kernel.plan.launches[0].grid == (2, 1, 1)
    check_numerics(schedule.mod, workload, OPENCL)


# -- the workspace ---------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [2, 4, 10, 30])
def test_workspace_has_the_size_that_the_plan_says(workers: int) -> None:
    schedule = hand()
    plan = schedule.stream_k("C", num_workers=workers, merge="last_arriver")
    kernel = kernel_of(schedule.mod, GEMM.inputs, [GEMM.expected])
    (space,) = (each for each in kernel.plan.workspaces if each.name == WORKSPACE)
    tile = SMALL.tile[0] * SMALL.tile[1]
    assert space.num_bytes == plan.workspace_bytes <= 2 * workers * tile * 4
    assert space.dtype == "float32"


@pytest.mark.parametrize("decomposition", ["stream_k", "two_tile"])
@pytest.mark.parametrize("workers", [1, 2, 4, 7, 9, 10, 23, 45])
def test_every_slot_is_within_the_workspace_and_of_one_segment(
    workers: int, decomposition: str
) -> None:
    partition = Partition(TILES, PANELS, workers, decomposition)
    used = [
        partition.slot(worker, segment.k_begin)
        for worker in range(workers)
        for segment in partition.segments(worker)
        if segment.k_end - segment.k_begin < PANELS
    ]
    assert len(set(used)) == len(used)
    assert all(0 <= slot < partition.num_slots for slot in used)


@cuda_runs.needs_compiler
@pytest.mark.parametrize("workers", [4, 10, 23, TILES * PANELS])
def test_the_kernel_writes_the_slots_of_its_partial_segments_only(workers: int) -> None:
    schedule = hand(gemm(24, 48, 40))
    workload = gemm(24, 48, 40)
    schedule.stream_k("C", num_workers=workers, merge="last_arriver", decomposition="stream_k")
    kernel = kernel_of(schedule.mod, workload.inputs, [workload.expected])
    kernel.launch("random")
    partition = Partition(TILES, PANELS, workers, "stream_k")
    written = np.isfinite(kernel.arrays[WORKSPACE].view(np.float32).reshape(-1, 128))
    expected = {
        partition.slot(worker, segment.k_begin)
        for worker in range(workers)
        for segment in partition.segments(worker)
        if segment.k_end - segment.k_begin < PANELS
    }
    assert set(np.flatnonzero(written.any(axis=1))) == expected
    assert (written.all(axis=1) == written.any(axis=1)).all()


# -- shapes, and all merges on each ----------------------------------------------------------------


def check_all_merges(workload: Workload, workers: int) -> Any:
    """Run the kernel of every merge in several orders; the last plan."""
    for merge in MERGES:
        schedule = hand(workload)
        plan = schedule.stream_k("C", num_workers=workers, merge=merge)
        check_orders(kernel_of(schedule.mod, workload.inputs, [workload.expected]))
    return plan


@cuda_runs.needs_compiler
@pytest.mark.parametrize("rows", [1, 8, 127])
def test_rows(rows: int) -> None:
    check_all_merges(gemm(rows, 40, 40), 5)


@cuda_runs.needs_compiler
@pytest.mark.parametrize("panels", [1, 255])
def test_panels(panels: int) -> None:
    plan = check_all_merges(gemm(20, 40, 8 * panels), 7)
    assert (plan.num_tiles, plan.panels) == (9, panels)


@cuda_runs.needs_compiler
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_batches_with_a_depth_that_no_panel_divides(batch: int) -> None:
    plan = check_all_merges(batched_gemm(batch, 9, 20, 44), 5)
    assert plan.num_tiles == batch * 4


@cuda_runs.needs_compiler
@pytest.mark.parametrize("shape", [(8, 100, 64), (100, 3, 40)])
def test_tile_grids_that_are_not_square(shape: tuple[int, int, int]) -> None:
    check_all_merges(gemm(*shape), 11)


@cuda_runs.needs_compiler
def test_more_than_eight_peers() -> None:
    plan = check_all_merges(gemm(16, 16, 400), 33)
    assert plan.most_peers == 17


@cuda_runs.needs_compiler
@pytest.mark.parametrize("splits", [2, 16])
def test_splits(splits: int) -> None:
    workload = gemm(20, 40, 128)
    for merge in MERGES:
        schedule = hand(workload)
        plan = schedule.stream_k("C", decomposition="split_k", splits=splits, merge=merge)
        assert plan.most_peers == splits
        check_orders(kernel_of(schedule.mod, workload.inputs, [workload.expected]))


REPORTED = [
    (8, 128, 1),
    (15, 17, 512),
    (12, 12, 512),
    (128, 64, 12),
    (8, 132, 128),
    (133, 177, 3),
    (127, 255, 133),
    (72, 56, 200),
]
"""Sizes that other Stream-K and split-K kernels got wrong, by public reports, or close to them."""


@cuda_runs.needs_compiler
@pytest.mark.parametrize("shape", REPORTED, ids=str)
def test_sizes_that_others_got_wrong(shape: tuple[int, int, int]) -> None:
    workload = gemm(*shape)
    schedule = hand(workload)
    schedule.stream_k("C", num_workers=7, merge="last_arriver")
    check_orders(kernel_of(schedule.mod, workload.inputs, [workload.expected]))


@cuda_runs.needs_compiler
def test_all_ones_on_more_columns_of_tiles_than_rows() -> None:
    """Every element is the depth: a tile in the wrong place would not show, a wrong sum does."""
    workload = gemm(16, 128, 64)
    ones = tuple(np.ones_like(each) for each in workload.inputs)
    workload = Workload(workload.function, ones, np.full((16, 128), 64, np.float32))
    schedule = hand(workload)
    schedule.stream_k("C", num_workers=7, merge="last_arriver")
    check_orders(kernel_of(schedule.mod, workload.inputs, [workload.expected]))


# -- nothing around the output is touched ----------------------------------------------------------

ROWS, COLUMNS, DEPTH = 20, 37, 44


@T.prim_func(s_tir=True)
def framed(
    A: T.Buffer((20, 44), "float32"),
    B: T.Buffer((44, 37), "float32"),
    C: T.Buffer((24, 43), "float32"),
):
    for i, j, k in T.grid(20, 37, 44):
        with T.sblock("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi + 2, vj + 3] = T.float32(0)
            C[vi + 2, vj + 3] = C[vi + 2, vj + 3] + A[vi, vk] * B[vk, vj]


@cuda_runs.needs_compiler
@pytest.mark.parametrize("merge", MERGES)
def test_rows_and_columns_around_the_output_keep_their_canaries(merge: str) -> None:
    inputs = integer_inputs((ROWS, DEPTH)), integer_inputs((DEPTH, COLUMNS), seed=1)
    expected = poisoned((ROWS + 4, COLUMNS + 6))
    expected[2:-2, 3:-3] = inputs[0] @ inputs[1]
    workload = Workload(framed, inputs, expected)
    schedule = hand(workload)
    schedule.stream_k("C", num_workers=10, merge=merge)
    check_orders(kernel_of(schedule.mod, inputs, [expected]))


# -- what is refused -------------------------------------------------------------------------------


def with_parameter(shape: tuple[int, ...], dtype: str, workload: Workload = GEMM) -> Schedule:
    """The hand schedule of a function that has a parameter for the counters already."""
    function = hand(workload).mod["main"]
    counters = tvm.tirx.decl_buffer(shape, dtype, name=ARRIVALS)
    extended = tvm.tirx.PrimFunc(
        [*function.params, counters], function.body, function.ret_type, function.attrs
    )
    return Schedule(tvm.IRModule({"main": extended}))


def test_a_schedule_with_a_counters_parameter_is_lowered_at_once() -> None:
    schedule = with_parameter((9,), "int32")
    schedule.stream_k("C", num_workers=4, merge="last_arriver", counters="argument")
    empty = poisoned(GEMM.expected.shape)
    prepared = prepare(schedule.mod, OPENCL, [*GEMM.inputs, empty, np.zeros(9, np.int32)])
    for _ in range(3):
        prepared.launch()
        result, counters = prepared.read()[2:]
        np.testing.assert_array_equal(result, GEMM.expected)
        np.testing.assert_array_equal(counters, 0)


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        ((3,), "int32", r"`stream_k_arrivals` is int32 of shape \[3\]; the 4 workers need"),
        ((4,), "int64", r"is int64 of shape \[4\]; the 4 workers need one int32 counter each"),
        ((4,), "float32", r"is float32 of shape \[4\]; .* Try: a parameter of shape \(4,\)"),
        ((2, 4), "int32", r"is int32 of shape \[2, 4\]; the 4 workers need"),
    ],
)
def test_counters_that_cannot_serve(shape: tuple[int, ...], dtype: str, message: str) -> None:
    schedule = with_parameter(shape, dtype)
    with refused(schedule, errors.CountersNotUsable, message):
        schedule.stream_k("C", num_workers=4, merge="last_arriver", counters="argument")


def test_counters_without_a_parameter_for_them() -> None:
    schedule = hand()
    message = r"needs a parameter .* Try: lower=False and LowerStreamK.*int32 of shape \(4,\)"
    with refused(schedule, errors.CountersNotUsable, message):
        schedule.stream_k("C", num_workers=4, merge="last_arriver", counters="argument")


def test_counters_too_small_at_the_call() -> None:
    module, _ = with_argument(GEMM, 4)
    arrays = [*GEMM.inputs, poisoned(GEMM.expected.shape), np.zeros(3, np.int32)]
    with pytest.raises(ValueError, match="stream_k_arrivals"):
        prepare(module, OPENCL, arrays)


def test_splits_that_do_not_divide() -> None:
    schedule = hand()
    with refused(schedule, errors.SplitsDoNotDivide, "splits=2 does not divide the 5 panels"):
        schedule.stream_k("C", decomposition="split_k", splits=2, merge="last_arriver")


def test_cpu_grids() -> None:
    schedule = schedules.hand_cpu(GEMM)
    with refused(schedule, errors.MergeNotSupported, 'merge="last_arriver" needs a GPU grid'):
        schedule.stream_k("C", num_workers=3, merge="last_arriver")


def test_targets_without_the_operations() -> None:
    schedule = hand()
    schedule.stream_k("C", num_workers=4, merge="last_arriver")
    with pytest.raises(Exception, match="target 'metal' has no device_fence_int32"):
        tvm.tirx.build(schedule.mod, target=tvm.target.Target("metal", host="llvm"))
