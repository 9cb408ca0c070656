# SPDX-License-Identifier: Apache-2.0
"""Plans and kernels that the tests of CUDA on the CPU share."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx
from tvm.s_tir import dlight

from tvm_streamk.testing.cuda_on_cpu import CompilerMissing
from tvm_streamk.testing.cuda_on_cpu.compiler import find_toolchain
from tvm_streamk.testing.launch_plan import KernelLaunch, LaunchPlan, Workspace, plan_launches

TARGET = {"kind": "cuda", "arch": "sm_80"}
BARRIER = "__syncthreads();"


def _why_no_compiler() -> str:
    try:
        find_toolchain()
    except CompilerMissing as error:
        return str(error)
    return ""


needs_compiler = pytest.mark.skipif(bool(_why_no_compiler()), reason=_why_no_compiler())


def plan_of(
    source: str,
    arguments: Sequence[str | int | float],
    grid: tuple[int, int, int] = (1, 1, 1),
    block: tuple[int, int, int] = (32, 1, 1),
    dynamic_shared_bytes: int = 0,
    workspaces: tuple[Workspace, ...] = (),
    kernel: str = "kernel",
) -> LaunchPlan:
    """One launch of one kernel of a source that a test has written."""
    buffers = tuple(argument for argument in arguments if isinstance(argument, str))
    launch = KernelLaunch(
        kernel=kernel,
        arguments=tuple(arguments),
        argument_dtypes=("",) * len(arguments),
        grid=grid,
        block=block,
        dynamic_shared_bytes=dynamic_shared_bytes,
    )
    return LaunchPlan(
        source=source,
        parameters=buffers,
        parameter_dtypes=("",) * len(buffers),
        workspaces=workspaces,
        launches=(launch,),
    )


def positions(plan: LaunchPlan, text: str) -> list[int]:
    """Where a text is in the plan's source."""
    return [match.start() for match in re.finditer(re.escape(text), plan.source)]


def without(plan: LaunchPlan, text: str, number: int = 0) -> LaunchPlan:
    """The plan without the text's occurrence of that number; lines stay where they are."""
    start = positions(plan, text)[number]
    return replace(plan, source=plan.source[:start] + plan.source[start + len(text) :])


def with_text(plan: LaunchPlan, old: str, new: str, number: int = 0) -> LaunchPlan:
    """The plan with one occurrence of a text replaced."""
    start = positions(plan, old)[number]
    return replace(plan, source=plan.source[:start] + new + plan.source[start + len(old) :])


def line_of(plan: LaunchPlan, text: str, number: int = 0) -> int:
    """Line in the plan's source of one occurrence of a text."""
    return plan.source.count("\n", 0, positions(plan, text)[number]) + 1


def integers(shape: tuple[int, ...], dtype: Any, seed: int, largest: int = 4) -> np.ndarray:
    """Small integers: their products and sums are exact in every type used here."""
    values = np.random.default_rng(seed).integers(-largest, largest + 1, shape)
    return values.astype(dtype)


@functools.cache
def matmul_plan(m: int, n: int, k: int, in_dtype: str, sum_dtype: str) -> LaunchPlan:
    """A product of A and B transposed, scheduled by DLight's matmul rule."""
    a = te.placeholder((m, k), name="A", dtype=in_dtype)
    b = te.placeholder((n, k), name="B", dtype=in_dtype)
    axis = te.reduce_axis((0, k), name="k")
    product = te.compute(
        (m, n),
        lambda i, j: te.sum(a[i, axis].astype(sum_dtype) * b[j, axis].astype(sum_dtype), axis),
        name="C",
    )
    with tvm.target.Target(TARGET):
        module = dlight.ApplyDefaultSchedule(dlight.gpu.Matmul())(
            tvm.IRModule({"main": te.create_prim_func([a, b, product])})
        )
    if in_dtype == "int8":
        module = _without_pipelines(module)
    arrays = [np.zeros(shape, in_dtype) for shape in ((m, k), (n, k))]
    return plan_launches(module, [*arrays, np.zeros((m, n), sum_dtype)], TARGET)


def _without_pipelines(module: Any) -> Any:
    """TVM 0.27 cannot lower the rule's software pipeline of int8 fragments."""

    def plain(loop: Any) -> Any:
        kept = {key: value for key, value in loop.annotations.items() if "pipeline" not in key}
        if len(kept) == len(loop.annotations):
            return loop
        return tirx.For(
            loop.loop_var, loop.min, loop.extent, loop.kind, loop.body, loop.thread_binding, kept
        )

    function = module["main"]
    return tvm.IRModule(
        {"main": function.with_body(tvm_ffi.structural_map(function.body, (tirx.For, plain)))}
    )


def matmul_arrays(m: int, n: int, k: int, in_dtype: str, sum_dtype: str) -> dict[str, np.ndarray]:
    """Operands of integers, and an output full of garbage."""
    output = np.empty((m, n), sum_dtype)
    output.view(np.uint8)[...] = 0xFF
    return {
        "A": integers((m, k), in_dtype, seed=1),
        "B": integers((n, k), in_dtype, seed=2),
        "C": output,
    }


def matmul_result(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """What `matmul_plan` has to compute."""
    a, b = (arrays[name].astype(np.float64) for name in "AB")
    return (a @ b.T).astype(arrays["C"].dtype)


# Every thread stores a part (its neighbour's); the last block to be done adds all, in order.
LAST_ARRIVER = """
#include <cuda.h>
extern "C" __global__ void __launch_bounds__(32) kernel(float* data, float* parts, int* counter,
                                                        float* total) {
  __shared__ float shared[32];
  __shared__ int arrived[1];
  shared[threadIdx.x] = data[blockIdx.x * 32 + threadIdx.x];
  __syncthreads();
  parts[blockIdx.x * 32 + threadIdx.x] = shared[(threadIdx.x + 1) % 32];
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    arrived[0] = atomicAdd(counter, 1);
    __threadfence();
  }
  __syncthreads();
  if (arrived[0] == gridDim.x - 1 && threadIdx.x == 0) {
    float sum = 0.0f;
    for (int i = 0; i < gridDim.x * 32; ++i) {
      sum = sum + parts[i];
    }
    total[0] = sum;
    counter[0] = 0;
  }
}
"""


def last_arriver_plan(blocks: int) -> LaunchPlan:
    """The plan of `LAST_ARRIVER`."""
    return plan_of(LAST_ARRIVER, ("data", "parts", "counter", "total"), grid=(blocks, 1, 1))


def last_arriver_arrays(blocks: int) -> dict[str, np.ndarray]:
    """Data, and buffers full of garbage but for the counter."""
    return {
        "data": integers((blocks * 32,), np.float32, seed=3),
        "parts": np.full(blocks * 32, np.nan, np.float32),
        "counter": np.zeros(1, np.int32),
        "total": np.full(1, np.nan, np.float32),
    }
