# SPDX-License-Identifier: Apache-2.0
"""Kernels that do what CUDA forbids, and code that is not emulated."""

from __future__ import annotations

import cuda_kernels
import numpy as np
import pytest
from cuda_kernels import (
    BARRIER,
    last_arriver_arrays,
    last_arriver_plan,
    line_of,
    plan_of,
    with_text,
)

from tvm_streamk.testing.cuda_on_cpu import (
    BarrierDivergence,
    CompilationFailed,
    InvalidAccess,
    KernelFault,
    MemoryOverrun,
    SharedMemoryExceeded,
    UnsupportedCode,
    run_plan,
)

pytestmark = cuda_kernels.needs_compiler

HEAD = '#include <cuda.h>\nextern "C" __global__ void kernel(int* data) {\n'


def run_body(body: str, block: int = 64, shared: int = 0) -> np.ndarray:
    """Run a kernel of that body on 64 zeros."""
    data = np.zeros(64, np.int32)
    plan = plan_of(
        HEAD + body + "\n}\n", ("data",), block=(block, 1, 1), dynamic_shared_bytes=shared
    )
    run_plan(plan, {"data": data})
    return data


def test_barrier_under_a_condition_of_the_thread() -> None:
    plan = last_arriver_plan(2)
    lines = [line_of(plan, BARRIER, number) for number in (0, 1)]
    diverging = with_text(plan, BARRIER, f"if (threadIdx.x < 4) {BARRIER}", 0)
    with pytest.raises(BarrierDivergence) as caught:
        run_plan(diverging, last_arriver_arrays(2))
    message = str(caught.value)
    assert f"block (0,0,0): its threads wait at different barriers, in lines {lines[0]}" in message
    assert f"  {lines[0]}: if (threadIdx.x < 4) __syncthreads();" in message
    assert f"  {lines[1]}: __syncthreads();" in message


def test_thread_that_ends_before_a_barrier() -> None:
    with pytest.raises(BarrierDivergence, match=r"thread \(5,0,0\) ends while others wait"):
        run_body("if (threadIdx.x == 5) return;\n__syncthreads();")


def test_lanes_at_different_warp_operations() -> None:
    body = "if (threadIdx.x & 1) {\n__syncwarp();\n} else {\n__shfl_sync(0xffffffffu, 1, 0);\n}"
    with pytest.raises(BarrierDivergence, match=r"different warp operations, in lines 6 and 4"):
        run_body(body)


def test_warp_operation_that_a_lane_never_reaches() -> None:
    with pytest.raises(KernelFault, match=r"31 at a warp operation, 1 have ended"):
        run_body("if (threadIdx.x > 0) __syncwarp();", block=32)


def test_mask_that_leaves_the_caller_out() -> None:
    with pytest.raises(BarrierDivergence, match="whose mask leaves it out"):
        run_body("__syncwarp(1u);", block=32)


@pytest.mark.parametrize("index", [-1, 64, 79])
def test_write_outside_of_a_shared_array_is_found_at_the_next_barrier(index: int) -> None:
    body = f"__shared__ int shared[64];\nshared[{index}] = 1;\n__syncthreads();"
    with pytest.raises(MemoryOverrun, match=r"array 'shared', found at the barrier in line 5"):
        run_body(body)


def test_write_outside_of_dynamic_shared_memory_is_found_at_the_end() -> None:
    body = "extern __shared__ int dynamic[];\ndynamic[16] = 7;"
    with pytest.raises(MemoryOverrun, match="shared array 'dynamic', found when the block ended"):
        run_body(body, shared=64)


def test_writes_within_shared_arrays_are_no_overrun() -> None:
    body = (
        "extern __shared__ __align__(64) char dynamic[];\n"
        "__shared__ alignas(16) short first[3];\n__shared__ int second[2][32];\n"
        "__shared__ int one;\n"
        "if (threadIdx.x == 0) {\nfor (int i = 0; i < 5; ++i) dynamic[i] = 1;\n"
        "first[2] = 2; second[1][31] = 3; one = 4;\n}\n"
        "__syncthreads();\ndata[threadIdx.x] = dynamic[4] + first[2] + second[1][31] + one;"
    )
    np.testing.assert_array_equal(run_body(body, shared=5), 10)


def test_unwritten_shared_memory_and_registers_are_poisoned() -> None:
    body = "__shared__ int shared[64];\nint local;\ndata[threadIdx.x] = shared[threadIdx.x];"
    np.testing.assert_array_equal(run_body(body), -1)
    with_register = "volatile int local;\ndata[threadIdx.x] = local;"
    assert (run_body(with_register) == np.uint32(0xFEFEFEFE).astype(np.int32)).all()


@pytest.mark.parametrize("index", ["-2", "64"])
def test_write_just_outside_of_a_buffer(index: str) -> None:
    with pytest.raises(MemoryOverrun, match=r"kernel 'kernel' wrote outside of buffer 'data'"):
        run_body(f"data[{index}] = 1;")


def test_crashes_become_errors() -> None:
    with pytest.raises(InvalidAccess, match=r"thread \(0,0,0\) touches memory that isn't mapped"):
        run_body("data[1 << 21] = 1;")
    with pytest.raises(InvalidAccess, match="overflows its stack"):
        run_body("volatile char large[1 << 18]; large[0] = 1; data[0] = large[0];")
    with pytest.raises(InvalidAccess, match="divides an integer by zero"):
        run_body("data[0] = 7 / data[1];")
    np.testing.assert_array_equal(run_body("data[threadIdx.x] = 1;"), 1)


def test_too_much_shared_memory() -> None:
    with pytest.raises(SharedMemoryExceeded, match=r"240000 bytes of shared array 'shared'"):
        run_body("__shared__ char shared[240000];\nshared[threadIdx.x] = 0;")


def test_unknown_instruction_is_named_with_its_line() -> None:
    body = 'int x;\nasm volatile("popc.b32 %0, %1;" : "=r"(x) : "r"(data[0]));'
    with pytest.raises(UnsupportedCode, match=r"line 4: the PTX instruction 'popc.b32 %0, %1'"):
        run_body(body)


def test_unknown_function_is_named_with_its_line() -> None:
    with pytest.raises(CompilationFailed, match=r"kernel.cu:3:.*__no_such_function"):
        run_body("data[0] = __no_such_function(1);")
