# SPDX-License-Identifier: Apache-2.0
"""Faults that were reported of TVM's own schedule primitives, by their number in
docs/public_reports.md: the same programs under Stream-K."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import schedules
import tvm
from helpers import check_numerics, refused, state_of
from schedules import LLVM, OPENCL, GpuTiling
from test_public_reports import cuda_source, on_cpu, on_gpu, workspace_of
from tvm.s_tir import Schedule
from tvm.script import tirx as T
from workload_rows import ROWS
from workloads import Workload, gemm, symbolic_gemm

import tvm_streamk
from tvm_streamk import errors
from tvm_streamk.expressions import collect, is_grid_loop, is_thread_loop, static_value
from tvm_streamk.nest import root_block
from tvm_streamk.testing import integer_inputs

SMALL = GpuTiling(tile=(8, 16), per_thread=(2, 2), vthreads=(1, 2))


def test_report_47_a_split_that_leaves_a_rest() -> None:
    workload = gemm(8, 8, 10)
    schedule = schedules.fresh(workload)
    schedule.split(schedule.get_loops("C")[2], [None, 4])
    schedule.stream_k("C", num_workers=7)
    check_numerics(schedule.mod, workload, LLVM)


@T.prim_func(s_tir=True)
def triangle(A: T.Buffer((16, 16), "float32"), C: T.Buffer((16,), "float32")):
    for i, k in T.grid(16, 16):
        with T.sblock("C"):
            T.where(i < 10 - k)
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = T.float32(0)
            C[vi] = C[vi] + A[vi, vk]


def test_report_49_a_predicate_over_tile_and_depth() -> None:
    schedule = Schedule(triangle)
    with refused(schedule, errors.NotATiledNest, "its init cannot be moved before the panel loop"):
        schedule.stream_k("C", num_workers=3)


def test_report_50_what_is_shared_stays_unchanged() -> None:
    function = schedules.hand_gpu(gemm(20, 40, 40), SMALL).mod["main"]
    other = Schedule(tvm.IRModule({"main": function.with_attr("note", 1)}))
    before = state_of(other)
    Schedule(tvm.IRModule({"main": function.with_attr("note", 2)})).stream_k("C", num_workers=4)
    assert state_of(other) == before


def test_report_51_the_init_is_decomposed_at_the_panel_loop() -> None:
    workload = gemm(20, 40, 40)
    schedule = schedules.metaschedule_cpu(workload)
    schedule.stream_k("C", num_workers=3)
    check_numerics(schedule.mod, workload, LLVM)


def test_report_53_partial_sums_are_allocated_outside_all_loops() -> None:
    schedule = schedules.hand_cpu(gemm(20, 40, 40), (8, 16))
    schedule.stream_k("C", num_workers=4)
    assert workspace_of(schedule) is not None


@pytest.mark.parametrize("rows", [1, 31, 32, 100])
def test_report_54_symbolic_rows_that_tiles_do_not_divide(rows: int) -> None:
    workload = symbolic_gemm(rows, 40, 24)
    schedule = schedules.hand_cpu(workload, (32, 16), cached=True)
    schedule.stream_k("C", num_workers=3)
    check_numerics(schedule.mod, workload, LLVM)


def test_report_55_a_consumer_inlined_on_ragged_columns() -> None:
    row = ROWS["bias and clip"]
    workload = row.workload()
    schedule = row.gpu_nest().schedule(workload)
    schedule.stream_k("C", num_workers=7)
    check_numerics(schedule.mod, workload, OPENCL)


@pytest.mark.parametrize("merge", ["two_phase", "last_arriver"])
def test_report_57_predicates_use_only_what_stands_around_them(merge: str) -> None:
    row = ROWS["bias and clip"]
    schedule = row.gpu_nest().schedule(row.workload())
    schedule.stream_k("C", num_workers=7, merge=merge)
    assert tvm.s_tir.analysis.verify_well_formed(schedule.mod)


@pytest.mark.parametrize("cached", [True, False])
def test_report_58_59_a_tile_that_does_not_divide_the_output(cached: bool) -> None:
    workload = gemm(28, 28, 40)
    schedule = schedules.hand_cpu(workload, (16, 16), cached=cached)
    schedule.stream_k("C", num_workers=7)
    check_numerics(schedule.mod, workload, LLVM)


@pytest.mark.parametrize("workers", [1, 3, 13])
def test_report_61_every_element_is_written(workers: int) -> None:
    on_cpu(gemm(19, 21, 33), workers, (8, 16))
    on_gpu(gemm(19, 21, 33), workers)


def test_report_62_a_reduction_over_threads_is_refused() -> None:
    schedule = schedules.fresh(Workload(_pooling(), (), np.zeros(1)))
    channel, row, column = schedule.get_loops("C")
    schedule.bind(channel, "blockIdx.x")
    schedule.bind(schedule.fuse(row, column), "threadIdx.x")
    with refused(schedule, errors.PanelLoopNotSerial, "is bound to threadIdx.x"):
        schedule.stream_k("C", num_workers=3)


def test_report_62_pooling() -> None:
    values = integer_inputs((512, 7, 7))
    workload = Workload(_pooling(), (values,), values.sum(axis=(1, 2)))
    schedule = schedules.fresh(workload)
    schedule.stream_k("C", num_workers=5)
    check_numerics(schedule.mod, workload, LLVM)


def _pooling() -> Any:
    from tvm import te

    source = te.placeholder((512, 7, 7), name="A")
    row, column = te.reduce_axis((0, 7), name="row"), te.reduce_axis((0, 7), name="column")
    return te.create_prim_func(
        [source, te.compute((512,), lambda c: te.sum(source[c, row, column], [row, column]), "C")]
    )


def test_report_63_workers_are_parallel() -> None:
    workload = gemm(20, 40, 40)
    schedule = schedules.hand_cpu(workload, (8, 16), parallel=False)
    schedule.stream_k("C", num_workers=4)
    (worker, *_) = schedule.get_loops("C_stream_k")
    assert schedule.get(worker).kind == tvm.tirx.ForKind.PARALLEL
    check_numerics(schedule.mod, workload, LLVM)


@pytest.mark.parametrize("shape", [(1, 40, 40), (8, 16, 40), (1, 1, 40)])
def test_report_65_axes_of_length_one(shape: tuple[int, int, int]) -> None:
    workload = gemm(*shape)
    schedule = schedules.hand_cpu(workload, (8, 16))
    handle = schedule.get_sblock("C")
    schedule.stream_k(handle, num_workers=3)
    assert schedule.get(handle).name_hint == "C_update"
    check_numerics(schedule.mod, workload, LLVM)


@pytest.mark.parametrize("merge", ["two_phase", "atomic", "last_arriver"])
def test_report_66_all_our_kernels_have_the_nests_threads(merge: str) -> None:
    schedule = schedules.hand_gpu(gemm(20, 40, 40), SMALL)
    schedule.stream_k("C", num_workers=4, merge=merge)
    nests = root_block(schedule.mod["main"]).body
    kernels = [nest for nest in getattr(nests, "seq", [nests]) if is_grid_loop(nest)]
    for kernel in kernels:
        threads: dict[str, set[Any]] = {}
        for loop in filter(is_thread_loop, collect(kernel, tvm.tirx.For)):
            tag = str(loop.thread_binding.thread_tag)
            threads.setdefault(tag, set()).add(static_value(loop.extent))
        assert all(len(extents) == 1 for extents in threads.values())


@pytest.mark.parametrize("name", ["conv2d NHWC", "conv2d, strided, dilated and padded"])
def test_report_67_tiled_convolutions(name: str) -> None:
    row = ROWS[name]
    workload = row.workload()
    schedule = row.gpu_nest().schedule(workload)
    schedule.stream_k("C", num_workers=11, merge="two_phase")
    check_numerics(schedule.mod, workload, OPENCL)


@pytest.mark.parametrize("merge", ["two_phase", "last_arriver", "atomic"])
def test_report_69_70_kernels_compile_without_a_device_wide_barrier(merge: str) -> None:
    source = cuda_source(gemm(20, 40, 40), num_workers=4, merge=merge)
    assert source.count("__global__") >= 2
    assert "global_barrier" not in source
    assert "grid_sync" not in source


def test_report_71_atomics_on_llvm_are_refused() -> None:
    schedule = schedules.hand_cpu(gemm(20, 40, 40), (8, 16))
    with refused(schedule, errors.MergeNotSupported, 'merge="atomic" needs a GPU grid'):
        schedule.stream_k("C", num_workers=4, merge="atomic")


def test_report_50_the_tuned_module_is_unchanged() -> None:
    schedule = schedules.hand_cpu(gemm(20, 40, 40), (8, 16))
    module = schedule.mod
    text = module.script()
    assert tvm_streamk.can_stream_k(schedule, "C")
    schedule.stream_k("C", num_workers=4, lower=False)
    assert module.script() == text
