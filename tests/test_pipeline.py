# SPDX-License-Identifier: Apache-2.0
"""The place in TVM's lowering: what is registered, what is left alone, what is mended."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import schedules
import tvm
from helpers import check_numerics
from schedules import LLVM, OPENCL, GpuTiling
from tvm.s_tir import Schedule
from tvm.script import tirx as T
from tvm.tirx import compilation_pipeline
from workloads import Workload, gemm

from tvm_streamk import pipeline
from tvm_streamk.annotation import KERNEL_MARK
from tvm_streamk.expressions import collect
from tvm_streamk.intrinsics import ProvideIntrinsics
from tvm_streamk.testing import poisoned, prepare
from tvm_streamk.testing.launch_plan import plan_launches

GEMM = gemm(20, 40, 40)
SMALL = GpuTiling(tile=(8, 16), per_thread=(2, 2), vthreads=(1, 1))
CUDA = {"kind": "cuda", "arch": "sm_80"}
TVM_ORIGINAL = "original_s_tir"
WITHOUT_REPAIR = "s_tir_without_barrier_repair"


@pytest.fixture(autouse=True)
def other_pipelines() -> Iterator[None]:
    """TVM's own pipeline, and ours without the barrier repair, under names of their own."""
    original = compilation_pipeline.PIPELINE_MAP["s_tir"].tvm_streamk_base

    def without_repair() -> Any:
        passes, finalize_host, finalize_device = original()
        return (
            passes,
            finalize_host,
            lambda: tvm.transform.Sequential([ProvideIntrinsics, finalize_device()]),
        )

    compilation_pipeline.register_tir_pipeline(TVM_ORIGINAL, original)
    compilation_pipeline.register_tir_pipeline(WITHOUT_REPAIR, without_repair)
    yield
    for name in (TVM_ORIGINAL, WITHOUT_REPAIR):
        del compilation_pipeline.PIPELINE_MAP[name]


# -- registration ----------------------------------------------------------------------------------


def test_importing_registers() -> None:
    program = (
        "from tvm.tirx.compilation_pipeline import PIPELINE_MAP\n"
        "from tvm.s_tir import Schedule\n"
        "original = PIPELINE_MAP['s_tir']\n"
        "assert not hasattr(Schedule, 'stream_k')\n"
        "import tvm_streamk\n"
        "assert PIPELINE_MAP['s_tir'] is not original\n"
        "assert PIPELINE_MAP['s_tir'].tvm_streamk_base is original\n"
        "assert Schedule.stream_k is tvm_streamk.stream_k\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_registering_again_changes_nothing() -> None:
    before = compilation_pipeline.PIPELINE_MAP["s_tir"]
    pipeline.register()
    assert compilation_pipeline.PIPELINE_MAP["s_tir"] is before
    assert not hasattr(before.tvm_streamk_base, "tvm_streamk_base")


# -- functions without a decision ------------------------------------------------------------------


@T.prim_func(s_tir=True)
def two_kernels(A: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")):
    staged = T.sblock_alloc_buffer((64,))
    for i in T.thread_binding(4, "blockIdx.x"):
        for j in T.thread_binding(16, "threadIdx.x"):
            with T.sblock("staged"):
                v = T.axis.spatial(64, i * 16 + j)
                staged[v] = A[v] + T.float32(1)
    for i in T.thread_binding(2, "blockIdx.x"):
        for j in T.thread_binding(32, "threadIdx.x"):
            with T.sblock("C"):
                v = T.axis.spatial(64, i * 32 + j)
                C[v] = staged[63 - v]


def pipelined(workload: Workload = GEMM) -> Schedule:
    """The hand GPU schedule with the loads of a panel overlapping the one before."""
    schedule = schedules.hand_gpu(workload, SMALL)
    panel_loop = schedule.get_loops("C_update")[-4]
    schedule.annotate(panel_loop, "software_pipeline_stage", [0, 0, 1])
    schedule.annotate(panel_loop, "software_pipeline_order", [0, 1, 2])
    return schedule


FOREIGN_GPU: dict[str, Callable[[], Any]] = {
    "hand GPU": lambda: schedules.hand_gpu(GEMM, SMALL).mod,
    "software pipeline": lambda: pipelined().mod,
    "dlight": lambda: schedules.dlight_gpu(GEMM).mod,
    "MetaSchedule": lambda: schedules.metaschedule_gpu(GEMM).mod,
    "two kernels": lambda: tvm.IRModule({"main": two_kernels}),
}
FOREIGN_CPU: dict[str, Callable[[], Any]] = {
    "hand CPU": lambda: schedules.hand_cpu(GEMM).mod,
    "MetaSchedule": lambda: schedules.metaschedule_cpu(GEMM).mod,
    "not scheduled": lambda: schedules.fresh(GEMM).mod,
}


def arrays_for(function: Any) -> list[np.ndarray]:
    shapes = [[int(extent) for extent in parameter.shape] for parameter in function.params]
    return [np.zeros(shape, "float32") for shape in shapes]


def device_source(module: Any, target: Any, name: str = "s_tir") -> str:
    return plan_launches(module, arrays_for(module["main"]), target, name).source


def host_source(module: Any, name: str = "s_tir") -> str:
    code = tvm.tirx.build(module, target=LLVM, pipeline=name).inspect_source("ll")
    # TVM names the types of its alias analysis by where its nodes are in memory.
    return re.sub(r'"0x[0-9a-f]+"', '"address"', str(code))


@pytest.mark.parametrize("target", [OPENCL, CUDA], ids=["opencl", "cuda"])
@pytest.mark.parametrize("name", FOREIGN_GPU)
def test_foreign_device_source_is_as_tvm_makes_it(name: str, target: Any) -> None:
    module = FOREIGN_GPU[name]()
    ours = device_source(module, target)
    assert ours == device_source(module, target, TVM_ORIGINAL)
    assert "_kernel" in ours


@pytest.mark.parametrize("name", FOREIGN_CPU)
def test_foreign_host_code_is_as_tvm_makes_it(name: str) -> None:
    module = FOREIGN_CPU[name]()
    ours = host_source(module)
    assert ours == host_source(module, TVM_ORIGINAL)
    assert "define" in ours


def test_our_passes_leave_a_foreign_module_alone() -> None:
    module = schedules.hand_gpu(GEMM, SMALL).mod
    for each in (pipeline.LowerStreamK(), pipeline.RepairZeroTripBarriers, ProvideIntrinsics):
        assert each(module).same_as(module)


def test_a_foreign_function_beside_ours_is_left_alone() -> None:
    foreign = schedules.hand_gpu(GEMM, SMALL).mod["main"]
    schedule = schedules.hand_gpu(GEMM, SMALL)
    schedule.stream_k("C", num_workers=4, merge="two_phase", lower=False)
    ours = schedule.mod["main"].with_attr("global_symbol", "streamed")
    alone = tvm.IRModule({"main": foreign.with_attr("global_symbol", "main")})
    both = tvm.IRModule({**alone.functions, tvm.ir.GlobalVar("streamed"): ours})
    kernel = device_source(alone, CUDA).split('extern "C"')[-1].strip()
    built = tvm.tirx.build(both, target=CUDA)
    assert kernel in built.imports[0].inspect_source()


# -- the missing barrier ---------------------------------------------------------------------------

CUT_TO_SHORT_SEGMENTS = 20
"""Workers for 45 panels: segments of one, two and three panels. In those of one, a software
pipeline's loop runs zero times and the barrier that TVM put into it is not passed."""


@pytest.mark.parametrize("merge", ["two_phase", "atomic", "last_arriver"])
def test_software_pipelines_of_short_segments_are_right(merge: str) -> None:
    schedule = pipelined()
    schedule.stream_k("C", num_workers=CUT_TO_SHORT_SEGMENTS, merge=merge)
    check_numerics(schedule.mod, GEMM, OPENCL)


def test_without_the_repair_they_are_wrong() -> None:
    schedule = pipelined()
    schedule.stream_k("C", num_workers=CUT_TO_SHORT_SEGMENTS, merge="two_phase")
    arrays = [*GEMM.inputs, poisoned(GEMM.expected.shape)]
    prepared = prepare(schedule.mod, OPENCL, arrays, WITHOUT_REPAIR)
    prepared.launch()
    right = prepared.read()[-1] == GEMM.expected
    assert 0 < np.count_nonzero(right) < right.size


@pytest.mark.parametrize("target", [OPENCL, CUDA], ids=["opencl", "cuda"])
def test_the_repair_only_adds_barriers(target: Any) -> None:
    schedule = pipelined()
    schedule.stream_k("C", num_workers=CUT_TO_SHORT_SEGMENTS, merge="two_phase")
    barrier = "__syncthreads();" if target is CUDA else "barrier(CLK_LOCAL_MEM_FENCE);"

    def lines(name: str) -> list[str]:
        source = device_source(schedule.mod, target, name).splitlines()
        return [line.strip() for line in source]

    repaired, plain = lines("s_tir"), lines(WITHOUT_REPAIR)
    assert repaired.count(barrier) > plain.count(barrier)
    without = [line for line in repaired if line != barrier]
    assert without == [line for line in plain if line != barrier]


def test_the_marks_of_our_kernels_are_removed() -> None:
    schedule = schedules.hand_gpu(GEMM, SMALL)
    schedule.stream_k("C", num_workers=4, merge="two_phase")
    assert any(m.attr_key == KERNEL_MARK for m in collect(schedule.mod["main"], tvm.tirx.AttrStmt))
    lowered = pipeline.RepairZeroTripBarriers(schedule.mod)
    marks = [m.attr_key for m in collect(lowered["main"], tvm.tirx.AttrStmt)]
    assert KERNEL_MARK not in marks


# -- what the build makes of a recorded decision ---------------------------------------------------


@pytest.mark.parametrize("target", [OPENCL, CUDA], ids=["opencl", "cuda"])
@pytest.mark.parametrize("merge", ["two_phase", "atomic", "last_arriver"])
def test_build_lowers_the_decision_for_devices(merge: str, target: Any) -> None:
    eager, recorded = (schedules.hand_gpu(GEMM, SMALL) for _ in range(2))
    eager.stream_k("C", num_workers=4, merge=merge)
    recorded.stream_k("C", num_workers=4, merge=merge, lower=False)
    source = device_source(recorded.mod, target)
    assert source == device_source(eager.mod, target)
    assert source != device_source(recorded.mod, target, TVM_ORIGINAL)


@pytest.mark.parametrize("merge", ["two_phase", "last_arriver"])
def test_recorded_decision_runs_on_a_device(merge: str) -> None:
    schedule = schedules.hand_gpu(GEMM, SMALL)
    schedule.stream_k("C", num_workers=4, merge=merge, lower=False)
    check_numerics(schedule.mod, GEMM, OPENCL)


def test_without_the_package_the_kernel_is_data_parallel_and_right() -> None:
    schedule = schedules.hand_gpu(GEMM, SMALL)
    plain = device_source(schedule.mod, OPENCL, TVM_ORIGINAL)
    schedule.stream_k("C", num_workers=4, merge="two_phase", lower=False)
    assert device_source(schedule.mod, OPENCL, TVM_ORIGINAL) == plain


def test_build_lowers_the_decision_for_the_host() -> None:
    eager, recorded = (schedules.hand_cpu(GEMM) for _ in range(2))
    eager.stream_k("C", num_workers=3)
    recorded.stream_k("C", num_workers=3, lower=False)
    code = host_source(recorded.mod)
    assert code == host_source(eager.mod)
    assert code != host_source(recorded.mod, TVM_ORIGINAL)


@pytest.mark.parametrize("build", [tvm.compile, tvm.tirx.build], ids=["compile", "build"])
def test_compiled_functions_run(build: Callable[..., Any]) -> None:
    schedule = schedules.hand_cpu(GEMM)
    schedule.stream_k("C", num_workers=3, lower=False)
    executable = build(schedule.mod, target=tvm.target.Target(LLVM))
    arrays = [*GEMM.inputs, poisoned(GEMM.expected.shape)]
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    executable["main"](*tensors)
    np.testing.assert_array_equal(tensors[-1].numpy(), GEMM.expected)
