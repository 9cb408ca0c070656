# SPDX-License-Identifier: Apache-2.0
"""What is recognised and what is refused, by class and by message, with nothing changed."""

from __future__ import annotations

from typing import Any

import pytest
import schedules
import tvm
import unfit_nests
from helpers import refused, state_of
from schedules import GpuTiling
from tvm.s_tir import Schedule
from workloads import batched_gemm, conv2d, gemm, gemv, row_extremes, symbolic_gemm

import tvm_streamk
from tvm_streamk import errors

# -- forms that fit --------------------------------------------------------------------------------

GEMM = gemm(50, 72, 40)
FITTING = {
    "hand GPU": (lambda: schedules.hand_gpu(GEMM), "gpu", (4, 3), 5, (8, 64), "C_local"),
    "init inside, grid not bound": (
        lambda: schedules.hand_gpu(GEMM, GpuTiling(decompose=False, bind_blocks=False)),
        "gpu", (4, 3), 5, (8, 64), "C_local",
    ),
    "no accumulator": (
        lambda: schedules.hand_gpu(GEMM, GpuTiling(accumulate_in=None)),
        "gpu", (4, 3), 5, (8, 64), "C_accumulator",
    ),
    "without virtual threads": (
        lambda: schedules.hand_gpu(GEMM, GpuTiling(vthreads=(1, 1))),
        "gpu", (4, 3), 5, (8, 64), "C_local",
    ),
    "dlight": (lambda: schedules.dlight_gpu(GEMM), "gpu", (3, 2), 5, (16, 64), None),
    "hand CPU": (lambda: schedules.hand_cpu(GEMM), "cpu", (12,), 5, (512, 1), "C_accumulator"),
    "hand CPU, cached": (
        lambda: schedules.hand_cpu(GEMM, cached=True, decompose=True),
        "cpu", (12,), 5, (512, 1), "C_global",
    ),
    "CPU, not parallel": (
        lambda: schedules.hand_cpu(GEMM, parallel=False), "cpu", (4, 3), 5, (512, 1), None,
    ),
    "not scheduled": (lambda: schedules.fresh(GEMM), "cpu", (50, 72), 40, (1, 1), None),
    "B transposed": (
        lambda: schedules.hand_gpu(gemm(16, 96, 32, transposed=True)),
        "gpu", (1, 3), 4, (8, 64), "C_local",
    ),
    "batched": (
        lambda: schedules.hand_gpu(batched_gemm(3, 20, 40, 24)),
        "gpu", (3, 2, 2), 3, (8, 64), "C_local",
    ),
    "convolution": (
        lambda: schedules.hand_gpu(conv2d(7, 3, 20)), "gpu", (2, 1), 4, (8, 64), "C_local",
    ),
    "matrix times vector": (
        lambda: schedules.hand_gpu_rows(gemv(40, 50)), "gpu", (3,), 7, (1, 16), "C_local",
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FITTING)
def test_fitting_form(form: str) -> None:
    make, grid, tiles, panels, slot_shape, accumulator = FITTING[form]
    schedule = make()
    before = state_of(schedule)
    nest = tvm_streamk.analyze(schedule, "C")
    assert nest.grid == grid
    assert tuple(int(extent) for extent in nest.tile_extents) == tiles
    assert nest.panels == panels
    assert nest.elements.slot_shape == slot_shape
    assert accumulator in (None, nest.accumulator.name)
    assert (nest.reducer.name, nest.reducer.restartable) == ("sum", True)
    assert state_of(schedule) == before


@pytest.mark.parametrize("make", [schedules.metaschedule_gpu, schedules.metaschedule_cpu])
@pytest.mark.parametrize("workload", [GEMM, batched_gemm(2, 12, 8, 40), conv2d(7, 3, 20)])
def test_metaschedule_sketches_fit(make: Any, workload: Any) -> None:
    schedule = make(workload)
    nest = tvm_streamk.analyze(schedule, "C")
    assert nest.grid == ("gpu" if make is schedules.metaschedule_gpu else "cpu")
    elements = nest.num_tiles * nest.elements.per_thread * nest.elements.threads
    assert elements == workload.expected.size


def test_symbolic_rows_fit() -> None:
    nest = tvm_streamk.analyze(schedules.hand_cpu(symbolic_gemm(5, 40, 24)), "C")
    assert "m" in str(nest.num_tiles)
    assert (nest.panels, nest.elements.slot_shape) == (3, (512, 1))


@pytest.mark.parametrize("largest", [True, False])
def test_extremes_fit(largest: bool) -> None:
    schedule = schedules.hand_gpu_rows(row_extremes(40, 50, largest))
    assert tvm_streamk.analyze(schedule, "C").reducer.name == ("max" if largest else "min")


def test_block_by_name_and_by_random_variable() -> None:
    schedule = schedules.hand_gpu(GEMM)
    by_name = tvm_streamk.analyze(schedule, "C")
    by_full_name = tvm_streamk.analyze(schedule, "C_update")
    by_variable = tvm_streamk.analyze(schedule, schedule.get_sblock("C_update"))
    shapes = {
        (nest.num_tiles, nest.panels, nest.elements.slot_shape)
        for nest in (by_name, by_full_name, by_variable)
    }
    assert shapes == {(12, 5, (8, 64))}


def test_nest_prints_what_was_found() -> None:
    assert str(tvm_streamk.analyze(schedules.hand_gpu(GEMM), "C")) == (
        "TileNest of block 'C' on a gpu grid: 4 x 3 tiles of 5 panels, sum into C_local "
        "(float32, 8 x 64 elements x threads)"
    )


# -- forms that do not -----------------------------------------------------------------------------

UNFIT = {
    "starts_from_one": (errors.ReducerNotSupported, r"stores T.float32\(1.0\), which is not the"),
    "discounted_sum": (errors.ReducerNotSupported, r"`C\[vi\] = C\[vi\] \* T.float32\(0.5\) \+"),
    "difference": (errors.ReducerNotSupported, r"update `C\[vi\] = A\[vi, vk\] - C\[vi\]` is not"),
    "sum_of_own_products": (errors.ReducerNotSupported, r"C\[vi\] \+ C\[vi\] \* A\[vi, vk\]`"),
    "conditional_update": (errors.ReducerNotSupported, r"`if A\[vi, vk\] > C\[vi\]: C\[vi\] ="),
    "position_of_largest": (errors.ReducerNotSupported, r"`index\[vi\] = T.Select\(.*a scan or"),
    "running_sums": (errors.ReducerNotSupported, "'seen' uses `C_local` before the last panel"),
    "two_sums_per_panel": (errors.SeveralReductions, "'D_update' is another reduction over.*`k`"),
    "staged_one_panel_ahead": (errors.SeveralReductions, "reads `ahead`, which an earlier panel"),
    "epilogue_uses_last_panel": (errors.NotATiledNest, "'C_store', after the panel.*`staged`"),
    "epilogue_uses_prelude": (errors.NotATiledNest, "reads `staged`.*has only the sum"),
    "value_from_the_tile_before": (errors.TileLoopsDependent, "'C_store' reads `last` before its"),
    "sum_of_one": (errors.NotATiledNest, r"no loop drives its reduction iterators \(_vk = 0\)"),
    "empty": (errors.EmptyReduction, r"reduction loop `k` has extent 0 \(K = 0\)"),
    "empty_inside": (errors.EmptyReduction, r"reduction loop `k_1` has extent 0 \(K = 0\)"),
    "symbolic_depth": (errors.PanelCountVaries, "loop `k` has depth trips from 0 on.*keep K const"),
    "reduction_on_the_grid": (errors.PanelLoopNotSerial, r"`k` \(extent 64\) is bound to blockIdx"),
    "reduction_in_parallel": (errors.PanelLoopNotSerial, r"`k` \(extent 64\) is parallel"),
    "reduction_in_vectors": (errors.PanelLoopNotSerial, r"`k` \(extent 64\) is vectorized"),
    "triangular_depth": (errors.PanelCountVaries, r"loop `k` has i \+ 1 trips from 0 on"),
    "triangular_tiles": (errors.TileLoopsDependent, r"tile loop `j` is i \+ 1, which depends on"),
    "reduction_along_the_diagonal": (errors.TileLoopsDependent, "iterator vi = i is not a reduct"),
    "init_in_every_panel": (errors.NotATiledNest, "`C_init` stands inside.*`k_0`: the sum starts"),
    "no_init": (errors.AccumulatorNotPrivate, "no plain init nest before the panel loop.*`C`"),
    "sums_in_shared_memory": (errors.AccumulatorNotPrivate, "`C_shared` in scope 'shared'"),
    "under_a_condition": (errors.NotATiledNest, "stand under the condition `flag > 0`"),
    "store_inside_an_element_loop": (errors.NotATiledNest, r"\(blocks 'C_store'\) stands inside"),
    "grid_inside_panels": (errors.NotATiledNest, "`i` .*is bound to blockIdx.x, but the workers"),
    "parallel_inside_panels": (errors.NotATiledNest, r"`i` \(extent 16\) inside a tile is paral"),
    "output_read_by_another_block": (errors.OutputReadElsewhere, "'D' reads the output `C`"),
    "output_read_by_panels": (errors.OutputReadElsewhere, "the panels read `C`, which the epilo"),
    "output_written_by_panels": (errors.OutputReadElsewhere, "writes `copy` before its tile is"),
    "two_nests": (errors.SeveralKernels, r"several nests at its root \(blocks 'C', 'D'\)"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_unfit_nest(name: str) -> None:
    error, message = UNFIT[name]
    schedule = Schedule(getattr(unfit_nests, name))
    with refused(schedule, error, message):
        tvm_streamk.analyze(schedule, "C")
    with refused(schedule, error, message):
        schedule.stream_k("C", num_workers=2)
    verdict = tvm_streamk.can_stream_k(schedule, "C")
    assert not verdict
    assert type(verdict.reasons[0]) is error


def test_every_unfit_nest_is_tested() -> None:
    functions = vars(unfit_nests).items()
    names = {name for name, value in functions if isinstance(value, tvm.tirx.PrimFunc)}
    assert names == set(UNFIT)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda schedule, loop: schedule.unroll(loop), r"`k_0` \(extent 4\) is unrolled"),
        (
            lambda schedule, loop: schedule.bind(loop, "threadIdx.x"),
            r"`k_0` \(extent 4\) is bound to threadIdx.x",
        ),
    ],
)
def test_panel_loop_not_serial(change: Any, message: str) -> None:
    schedule = schedules.fresh(gemv(16, 32))
    panel_loop, _ = schedule.split(schedule.get_loops("C")[1], [None, 8])
    change(schedule, panel_loop)
    with refused(schedule, errors.PanelLoopNotSerial, message):
        schedule.stream_k("C", num_workers=2)


def test_vectorized_tile_loop() -> None:
    schedule = schedules.fresh(gemv(16, 32))
    schedule.vectorize(schedule.get_loops("C")[0])
    with refused(schedule, errors.NotATiledNest, r"tile loop `i` \(extent 16\) is vectorized or"):
        schedule.stream_k("C", num_workers=2)


@pytest.mark.parametrize("name", ["A_shared", "C_local"])
def test_block_without_reduction(name: str) -> None:
    schedule = schedules.hand_gpu(GEMM)
    with refused(schedule, errors.NotAReductionBlock, r"none of its iterators \(v0, v1\) is a red"):
        schedule.stream_k(name, num_workers=2)


def test_unknown_block() -> None:
    schedule = schedules.hand_gpu(GEMM)
    with refused(schedule, errors.BlockNotFound, "'D'.*the blocks are: 'C_init', 'A_shared'"):
        schedule.stream_k("D", num_workers=2)


# -- the verdict -----------------------------------------------------------------------------------


def test_verdict_of_a_fitting_nest() -> None:
    verdict = tvm_streamk.can_stream_k(schedules.hand_gpu(GEMM), "C")
    assert verdict
    assert verdict.reasons == ()
    assert str(verdict) == "stream_k applies to block 'C'"


def test_verdict_prints_every_reason() -> None:
    schedule = Schedule(unfit_nests.two_sums_per_panel)
    before = state_of(schedule)
    verdict = tvm_streamk.can_stream_k(schedule, "C")
    printed = str(verdict)
    assert printed.startswith("stream_k does not apply to block 'C':\n  SeveralReductions (2: ")
    assert len(verdict.reasons) > 1
    for reason in verdict.reasons:
        assert f"{type(reason).__name__} ({reason.requirement})" in printed
        assert reason.message in printed
        assert f"try: {reason.hint}" in printed
    assert state_of(schedule) == before


def test_verdict_by_random_variable_names_the_block() -> None:
    schedule = schedules.hand_gpu(GEMM)
    verdict = tvm_streamk.can_stream_k(schedule, schedule.get_sblock("C_local"))
    assert not verdict
    assert verdict.block == "C_local"


def test_every_error_is_a_schedule_error_with_its_requirement() -> None:
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    own = [each for each in classes if issubclass(each, errors.StreamKError)]
    assert len(own) > 15
    assert all(issubclass(each, tvm.s_tir.ScheduleError) for each in own)
    assert len({each.requirement for each in own}) == len(own)
