# SPDX-License-Identifier: Apache-2.0
"""The hand schedules that come with the package: right numbers, and a form that fits Stream-K."""

from __future__ import annotations

import pytest
from helpers import check_numerics
from workloads import Workload, gemm

import tvm_streamk
from tvm_streamk.schedules import REDUCTION_BLOCK, cpu_gemm, gpu_gemm, host_target

# Extents that the tiles divide and that they do not; one tile and several; one panel and several.
CPU_CASES = {
    "divides": ((28, 64, 96), (14, 32), 32),
    "ragged": ((23, 70, 40), (14, 32), 16),
    "one tile": ((14, 32, 40), (14, 32), 8),
    "one panel": ((28, 64, 16), (14, 32), 16),
}
GPU_CASES = {
    "divides": ((32, 48, 64), (4, 6), (4, 4)),
    "ragged": ((21, 50, 24), (4, 8), (2, 4)),
    "one tile": ((8, 16, 40), (4, 4), (2, 4)),
}


def workload(shape: tuple[int, int, int]) -> Workload:
    return gemm(*shape)


@pytest.mark.parametrize("workers", [None, 1, 2, 3])
@pytest.mark.parametrize("case", CPU_CASES)
def test_cpu_gemm(case, workers):
    shape, tile, panel = CPU_CASES[case]
    schedule = cpu_gemm(*shape, tile=tile, panel=panel, register_tile=(7, 16))
    if workers is not None:
        tvm_streamk.stream_k(schedule, REDUCTION_BLOCK, num_workers=workers)
    check_numerics(schedule.mod, workload(shape), "llvm")


@pytest.mark.parametrize("workers", [None, 1, 2, 3])
@pytest.mark.parametrize("case", GPU_CASES)
def test_gpu_gemm(case, workers):
    shape, threads, per_thread = GPU_CASES[case]
    schedule = gpu_gemm(*shape, threads=threads, per_thread=per_thread, panel=8)
    if workers is not None:
        tvm_streamk.stream_k(schedule, REDUCTION_BLOCK, num_workers=workers)
    check_numerics(schedule.mod, workload(shape), "opencl")


def test_cpu_gemm_is_tiled_as_asked():
    schedule = cpu_gemm(49, 512, 192, tile=(49, 256), panel=64)
    plan = tvm_streamk.stream_k(schedule, REDUCTION_BLOCK, num_workers=2)
    assert (plan.num_tiles, plan.panels) == (2, 3)


def test_gpu_gemm_is_tiled_as_asked():
    schedule = gpu_gemm(96, 32, 160, threads=(8, 8), per_thread=(4, 4), panel=16)
    plan = tvm_streamk.stream_k(schedule, REDUCTION_BLOCK, num_workers=2)
    assert (plan.num_tiles, plan.panels) == (3, 10)
    assert "threadIdx.x" in schedule.mod.script() and "shared" in schedule.mod.script()


def test_register_tile_has_to_divide_the_tile():
    with pytest.raises(ValueError, match="register_tile 7 does not divide the tile's 16"):
        cpu_gemm(16, 64, 64, tile=(16, 64), register_tile=(7, 32))


def test_host_target_names_this_processor():
    shape = (14, 32, 40)
    assert host_target()["kind"] == "llvm"
    schedule = cpu_gemm(*shape, tile=(14, 32), panel=8)
    check_numerics(schedule.mod, workload(shape), host_target())
