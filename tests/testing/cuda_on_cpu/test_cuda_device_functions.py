# SPDX-License-Identifier: Apache-2.0
"""Shuffles, atomics, 16-bit floats and vectors, each against numpy."""

from __future__ import annotations

import cuda_kernels
import ml_dtypes
import numpy as np
import pytest
import tvm
from cuda_kernels import TARGET, plan_of
from tvm import te
from tvm.s_tir import Schedule

from tvm_streamk.testing.cuda_on_cpu import ORDERS, run_plan
from tvm_streamk.testing.launch_plan import plan_launches

pytestmark = cuda_kernels.needs_compiler

LANES = np.arange(64) % 32
ALL = "0xffffffffu"


def run_lanes(statement: str, threads: int = 64, order: str = "priority") -> np.ndarray:
    """What each of two warps' lanes gets for `result` when lane i holds `value` = 100 + thread."""
    result = np.full(threads, -1, np.int32)
    source = f"""
#include <cuda.h>
extern "C" __global__ void kernel(int* out) {{
  int value = 100 + (int)threadIdx.x;
  int lane = (int)threadIdx.x % 32;
  int result;
  {statement}
  out[threadIdx.x] = result;
}}
"""
    run_plan(plan_of(source, ("out",), block=(threads, 1, 1)), {"out": result}, order=order)
    return result - 100


@pytest.mark.parametrize("width", [32, 16, 8])
def test_shuffles_stay_in_their_segment(width: int) -> None:
    first = np.arange(64) // width * width
    inside = np.arange(64) - first
    expected = {
        "__shfl_sync({}, value, 5, {})": first + 5,
        "__shfl_up_sync({}, value, 3, {})": np.where(inside >= 3, inside - 3, inside) + first,
        "__shfl_down_sync({}, value, 3, {})": (
            np.where(inside + 3 < width, inside + 3, inside) + first
        ),
        "__shfl_xor_sync({}, value, 5, {})": (inside ^ 5) + first,
    }
    for call, lanes in expected.items():
        found = run_lanes(f"result = {call.format(ALL, width)};")
        np.testing.assert_array_equal(found, lanes, err_msg=call)


def test_butterfly_reaches_earlier_segments_only() -> None:
    found = run_lanes(f"result = __shfl_xor_sync({ALL}, value, 16, 16);")
    own = np.arange(64)
    np.testing.assert_array_equal(found, np.where(LANES >= 16, own - 16, own))


def test_shuffle_among_some_lanes() -> None:
    body = "if (lane < 4) { result = __shfl_xor_sync(15u, value, 1); } else { result = 100; }"
    expected = np.where(LANES < 4, np.arange(64) ^ 1, 0)
    np.testing.assert_array_equal(run_lanes(body), expected)


def test_shuffle_in_a_block_smaller_than_a_warp() -> None:
    found = run_lanes(f"result = __shfl_down_sync({ALL}, value, 4);", threads=8)
    assert list(found[:4]) == [4, 5, 6, 7]


def test_votes() -> None:
    odd = run_lanes(f"result = 100 + (int)(__ballot_sync({ALL}, lane & 1) & 0xffff);")
    np.testing.assert_array_equal(odd, 0xAAAA)
    assert set(run_lanes(f"result = 100 + __any_sync({ALL}, lane == 7);")) == {1}
    assert set(run_lanes(f"result = 100 + __all_sync({ALL}, lane != 7);")) == {0}


@pytest.mark.parametrize("order", ORDERS)
def test_reduction_across_threads_as_tvm_lowers_it(order: str) -> None:
    a = te.placeholder((3, 256), name="A", dtype="float32")
    axis = te.reduce_axis((0, 256), name="k")
    b = te.compute((3,), lambda i: te.sum(a[i, axis], axis), name="B")
    schedule = Schedule(te.create_prim_func([a, b]))
    row, k = schedule.get_loops("B")
    serial, threads = schedule.split(k, [None, 64])
    schedule.reorder(threads, serial)
    schedule.bind(row, "blockIdx.x")
    schedule.bind(threads, "threadIdx.x")
    data = np.arange(768, dtype=np.float32).reshape(3, 256)
    sums = np.full(3, np.nan, np.float32)
    plan = plan_launches(schedule.mod, [data, sums], TARGET)
    assert "__shfl_down_sync" in plan.source
    run_plan(plan, {"A": data, "B": sums}, order=order)
    np.testing.assert_array_equal(sums, data.sum(axis=1))


ATOMIC_TYPES = {
    "int": np.int32,
    "unsigned int": np.uint32,
    "unsigned long long": np.uint64,
    "float": np.float32,
    "double": np.float64,
}


@pytest.mark.parametrize("kind", ATOMIC_TYPES)
def test_atomic_add_of_every_type(kind: str) -> None:
    source = f"""
#include <cuda.h>
extern "C" __global__ void kernel({kind}* sum, {kind}* before) {{
  before[blockIdx.x * 32 + threadIdx.x] = atomicAdd(sum, ({kind})threadIdx.x);
}}
"""
    dtype = ATOMIC_TYPES[kind]
    total, before = np.full(1, 7, dtype), np.zeros(64, dtype)
    plan = plan_of(source, ("sum", "before"), grid=(2, 1, 1))
    run_plan(plan, {"sum": total, "before": before}, order="random")
    assert total[0] == 7 + 2 * sum(range(32))
    increments = np.diff(np.sort(np.append(before, total)))
    np.testing.assert_array_equal(np.sort(increments), np.sort(np.tile(np.arange(32), 2)))


def test_exchange_and_compare_and_swap() -> None:
    source = """
#include <cuda.h>
extern "C" __global__ void kernel(int* lock, int* last, int* sum) {
  while (atomicCAS(lock, 0, 1) != 0) {}
  int seen = ((volatile int*)sum)[0];
  atomicExch(last, (int)threadIdx.x);
  ((volatile int*)sum)[0] = seen + (int)threadIdx.x;
  atomicExch(lock, 0);
}
"""
    arrays = {name: np.zeros(1, np.int32) for name in ("lock", "last", "sum")}
    run_plan(plan_of(source, tuple(arrays), grid=(3, 1, 1)), arrays, order="random")
    assert arrays["sum"][0] == 3 * sum(range(32))
    assert arrays["lock"][0] == 0 and 0 <= arrays["last"][0] < 32


def test_other_atomics() -> None:
    source = """
#include <cuda.h>
extern "C" __global__ void kernel(unsigned* data) {
  atomicMax(data + 0, threadIdx.x);
  atomicMin(data + 1, threadIdx.x + 3);
  atomicOr(data + 2, 1u << threadIdx.x);
  atomicAnd(data + 3, ~(1u << threadIdx.x));
  atomicXor(data + 4, threadIdx.x);
  atomicSub(data + 5, 1);
  atomicInc(data + 6, 9);
  atomicDec(data + 7, 9);
}
"""
    data = np.array([0, 99, 0, 2**32 - 1, 0, 40, 0, 0], np.uint32)
    run_plan(plan_of(source, ("data",)), {"data": data})
    assert list(data) == [31, 3, 2**32 - 1, 0, 0, 8, 2, 8]


NARROW = {
    "half": (np.dtype(np.float16), "__float2half_rn", "cuda_fp16.h"),
    "nv_bfloat16": (np.dtype(ml_dtypes.bfloat16), "__float2bfloat16", "cuda_bf16.h"),
}


@pytest.mark.parametrize("kind", NARROW)
def test_narrow_floats_round_as_numpy_does(kind: str) -> None:
    dtype, convert, header = NARROW[kind]
    generator = np.random.default_rng(0)
    wide = generator.integers(0, 2**32, 4096, np.uint32).view(np.float32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 65519.9, 65520.0, 6e-8, 1e-45])
    # Half way between two neighbours, of half and of bfloat16: to the even one, down and up.
    ties = np.array([0x3F801000, 0x3F803000, 0x3F808000, 0x3F818000], np.uint32).view(np.float32)
    wide = np.concatenate([wide, special.astype(np.float32), ties, np.zeros(19, np.float32)])
    narrow, back = np.zeros(len(wide), dtype), np.zeros_like(wide)
    source = f"""
#include <cuda.h>
#include <{header}>
extern "C" __global__ void kernel(float* wide, {kind}* narrow, float* back) {{
  int i = blockIdx.x * 32 + threadIdx.x;
  narrow[i] = {convert}(wide[i]);
  back[i] = (float)narrow[i];
}}
"""
    plan = plan_of(source, ("wide", "narrow", "back"), grid=(len(wide) // 32, 1, 1))
    run_plan(plan, {"wide": wide, "narrow": narrow, "back": back})
    with np.errstate(over="ignore", invalid="ignore"):
        expected = wide.astype(dtype)
    numbers = ~np.isnan(wide)
    np.testing.assert_array_equal(narrow[numbers], expected[numbers])
    assert np.isnan(narrow[~numbers].astype(np.float32)).all()
    np.testing.assert_array_equal(back[numbers], expected[numbers].astype(np.float32))


@pytest.mark.parametrize("kind", NARROW)
@pytest.mark.parametrize("lanes", [2, 4, 8])
def test_vectors_of_narrow_floats_as_tvm_writes_them(kind: str, lanes: int) -> None:
    dtype = NARROW[kind][0]
    a = te.placeholder((512,), name="A", dtype=dtype.name)
    b = te.placeholder((512,), name="B", dtype=dtype.name)
    c = te.compute((512,), lambda i: tvm.tirx.max(a[i] * b[i] - a[i], b[i]), name="C")
    schedule = Schedule(te.create_prim_func([a, b, c]))
    blocks, threads, vector = schedule.split(schedule.get_loops("C")[0], [None, 32, lanes])
    schedule.bind(blocks, "blockIdx.x")
    schedule.bind(threads, "threadIdx.x")
    schedule.vectorize(vector)
    x, y = (cuda_kernels.integers((512,), dtype, seed) for seed in (1, 2))
    result = np.full(512, np.nan, dtype)
    plan = plan_launches(schedule.mod, [x, y, result], TARGET)
    run_plan(plan, {"A": x, "B": y, "C": result})
    np.testing.assert_array_equal(result, np.maximum(x * y - x, y))
