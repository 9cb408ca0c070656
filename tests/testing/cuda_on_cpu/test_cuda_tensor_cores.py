# SPDX-License-Identifier: Apache-2.0
"""wmma, ldmatrix and mma.sync on one tile, exactly."""

from __future__ import annotations

import cuda_kernels
import ml_dtypes
import numpy as np
import pytest
from cuda_kernels import integers, plan_of

from tvm_streamk.testing.cuda_on_cpu import BarrierDivergence, UnsupportedCode, run_plan

pytestmark = cuda_kernels.needs_compiler

HEAD = "#include <cuda.h>\n#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n#include <mma.h>\n"
DTYPES = {
    "half": np.dtype(np.float16),
    "nv_bfloat16": np.dtype(ml_dtypes.bfloat16),
    "signed char": np.dtype(np.int8),
    "unsigned char": np.dtype(np.uint8),
    "float": np.dtype(np.float32),
    "int": np.dtype(np.int32),
}


def operands(shape: tuple[int, int, int], kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Small integers for A (m by k) and B (k by n)."""
    m, n, k = shape
    a, b = integers((m, k), np.int32, seed=1), integers((k, n), np.int32, seed=2)
    if kind == "unsigned char":
        a, b = a + 252 - 4, b + 4  # beyond what a signed byte holds
    return a.astype(DTYPES[kind]), b.astype(DTYPES[kind])


def exact(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The product plus c, in c's type."""
    product = a.astype(np.float64) @ b.astype(np.float64)
    return (product + c.astype(np.float64)).astype(c.dtype)


WMMA = """
using namespace nvcuda;
extern "C" __global__ void kernel({kind}* a, {kind}* b, {sum}* c) {{
  wmma::fragment<wmma::matrix_a, {m}, {n}, {k}, {kind}, wmma::{layout_a}> fragment_a;
  wmma::fragment<wmma::matrix_b, {m}, {n}, {k}, {kind}, wmma::{layout_b}> fragment_b;
  wmma::fragment<wmma::accumulator, {m}, {n}, {k}, {sum}> sums, zeros;
  wmma::load_matrix_sync(fragment_a, a, {stride_a});
  wmma::load_matrix_sync(fragment_b, b, {stride_b});
  wmma::load_matrix_sync(sums, c, {n}, wmma::mem_row_major);
  wmma::fill_fragment(zeros, 0.0f);
  wmma::mma_sync(sums, fragment_a, fragment_b, sums);
  wmma::mma_sync(zeros, fragment_a, fragment_b, sums);
  wmma::store_matrix_sync(c, zeros, {m}, wmma::mem_col_major);
}}
"""


@pytest.mark.parametrize("shape", [(16, 16, 16), (32, 8, 16), (8, 32, 16)])
@pytest.mark.parametrize(
    ("kind", "sums"),
    [
        ("half", "float"),
        ("half", "half"),
        ("nv_bfloat16", "float"),
        ("signed char", "int"),
        ("unsigned char", "int"),
    ],
)
def test_wmma_of_every_shape_and_type(shape: tuple[int, int, int], kind: str, sums: str) -> None:
    m, n, k = shape
    # Shapes take turns with the layouts, so that each layout meets each operand.
    transposed_a, transposed_b = shape == (32, 8, 16), shape != (8, 32, 16)
    source = HEAD + WMMA.format(
        kind=kind, sum=sums, m=m, n=n, k=k,
        layout_a="col_major" if transposed_a else "row_major",
        layout_b="col_major" if transposed_b else "row_major",
        stride_a=m if transposed_a else k,
        stride_b=k if transposed_b else n,
    )  # fmt: skip
    a, b = operands(shape, kind)
    c = integers((m, n), DTYPES[sums], seed=3)
    expected = exact(a, b, exact(a, b, c))
    given = {
        "a": np.ascontiguousarray(a.T if transposed_a else a),
        "b": np.ascontiguousarray(b.T if transposed_b else b),
        "c": c.copy(),
    }
    run_plan(plan_of(source, tuple(given)), given, order="random")
    np.testing.assert_array_equal(given["c"].reshape(n, m).T, expected)


def test_wmma_needs_a_whole_warp() -> None:
    source = HEAD + WMMA.format(
        kind="half", sum="float", m=16, n=16, k=16, layout_a="row_major", layout_b="row_major",
        stride_a=16, stride_b=16,
    )  # fmt: skip
    arrays = {"a": np.zeros(256, np.float16), "b": np.zeros(256, np.float16)}
    arrays["c"] = np.zeros(256, np.float32)
    with pytest.raises(BarrierDivergence, match="needs a warp of 32 threads"):
        run_plan(plan_of(source, tuple(arrays), block=(16, 1, 1)), arrays)


# A comes through ldmatrix in 8x8 blocks of 16-bit elements, B (n by k or, transposed, k by n) too.
MMA = """
extern "C" __global__ void kernel({kind}* a, {kind}* b, {sum}* c) {{
  __shared__ alignas(16) {kind} shared_a[16 * {k}];
  __shared__ alignas(16) {kind} shared_b[8 * {k}];
  for (int i = threadIdx.x; i < 16 * {k}; i += 32) shared_a[i] = a[i];
  for (int i = threadIdx.x; i < 8 * {k}; i += 32) shared_b[i] = b[i];
  __syncthreads();
  unsigned registers_a[4];
  unsigned registers_b[2];
  int lane = threadIdx.x;
  {{
    unsigned int addr = __cvta_generic_to_shared((char*)shared_a + lane % 16 * {row_bytes_a}
                                                 + lane / 16 * 16);
    __asm__ __volatile__(
      "ldmatrix.sync.aligned.m8n8.x{words_a}.shared.b16"
      "{{{list_a}}}, [%{words_a}];\\n"
      : {outputs_a}
      : "r"(addr)
    );
  }}
  {{
    unsigned int addr = __cvta_generic_to_shared((char*)shared_b + {address_b});
    __asm__ __volatile__(
      "ldmatrix.sync.aligned.m8n8.x{words_b}{trans}.shared.b16"
      "{{{list_b}}}, [%{words_b}];\\n"
      : {outputs_b}
      : "r"(addr)
    );
  }}
  {sum} sums[4];
  for (int i = 0; i < 4; ++i) sums[i] = c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2];
  {{
    __asm__ __volatile__(
      "mma.sync.aligned.m16n8k{k}.row.col.{types} "
      "{{{list_d}}}, {{{list_mma_a}}}, {{{list_mma_b}}}, {{{list_c}}};\\n"
      : {outputs_d}
      : {inputs_a}, {inputs_b}, {inputs_c});
  }}
  for (int i = 0; i < 4; ++i) c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = sums[i];
}}
"""


def numbered(first: int, count: int) -> str:
    """Placeholders of assembly operands."""
    return ", ".join(f"%{first + i}" for i in range(count))


def listed(constraint: str, array: str, count: int) -> str:
    """Assembly operands from an array's elements."""
    return ", ".join(f'"{constraint}"({array}[{i}])' for i in range(count))


def mma_source(kind: str, sums: str, k: int, types: str) -> str:
    """A kernel for one m16n8 tile of depth k."""
    element_bytes = DTYPES[kind].itemsize
    words_a, words_b = 16 * k * element_bytes // 128, 8 * k * element_bytes // 128
    transposes = element_bytes == 2
    register, accumulators = {
        "float": ("f", "sums"),
        "int": ("r", "sums"),
        "half": ("r", "((unsigned *)sums)"),
    }[sums]
    words_c = 4 * DTYPES[sums].itemsize // 4
    return HEAD + MMA.format(
        kind=kind, sum=sums, k=k, types=types, words_a=words_a, words_b=words_b,
        row_bytes_a=k * element_bytes,
        trans=".trans" if transposes else "",
        address_b="lane % 16 * 16" if transposes else f"lane % 8 * {k} + lane / 8 % 2 * 16",
        list_a=numbered(0, words_a), outputs_a=listed("=r", "registers_a", words_a),
        list_b=numbered(0, words_b), outputs_b=listed("=r", "registers_b", words_b),
        list_d=numbered(0, words_c), list_mma_a=numbered(words_c, words_a),
        list_mma_b=numbered(words_c + words_a, words_b),
        list_c=numbered(words_c + words_a + words_b, words_c),
        outputs_d=listed("=" + register, accumulators, words_c),
        inputs_a=listed("r", "registers_a", words_a),
        inputs_b=listed("r", "registers_b", words_b),
        inputs_c=listed(register, accumulators, words_c),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "sums", "k", "types"),
    [
        ("half", "float", 8, "f32.f16.f16.f32"),
        ("half", "half", 8, "f16.f16.f16.f16"),
        ("nv_bfloat16", "float", 8, "f32.bf16.bf16.f32"),
        ("half", "float", 16, "f32.f16.f16.f32"),
        ("half", "half", 16, "f16.f16.f16.f16"),
        ("nv_bfloat16", "float", 16, "f32.bf16.bf16.f32"),
        ("signed char", "int", 16, "s32.s8.s8.s32"),
        ("signed char", "int", 32, "s32.s8.s8.s32"),
        ("unsigned char", "int", 32, "s32.u8.u8.s32"),
    ],
)
def test_ldmatrix_and_mma(kind: str, sums: str, k: int, types: str) -> None:
    a, b = operands((16, 8, k), kind)
    c = integers((16, 8), DTYPES[sums], seed=3)
    expected = exact(a, b, c)
    stored_b = b if DTYPES[kind].itemsize == 2 else np.ascontiguousarray(b.T)
    arrays = {"a": a, "b": stored_b, "c": c.copy()}
    run_plan(plan_of(mma_source(kind, sums, k, types), tuple(arrays)), arrays, order="random")
    np.testing.assert_array_equal(arrays["c"], expected)


def test_tensor_core_instructions_that_are_not_emulated_are_named() -> None:
    source = mma_source("half", "float", 16, "f32.f16.f16.f32").replace("m16n8k16", "m16n8k4")
    arrays = {name: np.zeros(256, np.float16) for name in "abc"}
    with pytest.raises(UnsupportedCode, match=r"line \d+: the PTX instruction 'mma.*m16n8k4"):
        run_plan(plan_of(source, tuple(arrays)), arrays)


def test_dot_products_of_bytes() -> None:
    source = """
#include <cuda.h>
#include <sm_61_intrinsics.h>
extern "C" __global__ void kernel(int* a, int* b, int* out) {
  int mixed;
  asm volatile ("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(mixed) : "r"(a[0]), "r"(b[0]), "r"(10));
  out[0] = mixed;
  out[1] = __dp4a(a[0], b[0], 10);
  out[2] = __dp4a((unsigned)a[0], (unsigned)b[0], 10u);
}
"""
    a = np.array([200, 1, 2, 3], np.uint8)
    b = np.array([250, 4, 5, 6], np.uint8)
    out = np.zeros(3, np.int32)
    run_plan(
        plan_of(source, ("a", "b", "out"), block=(1, 1, 1)),
        {"a": a.view(np.int32), "b": b.view(np.int32), "out": out},
    )

    def dot(x: np.ndarray, y: np.ndarray) -> int:
        return 10 + int(x.astype(np.int32) @ y.astype(np.int32))

    signed_a, signed_b = a.view(np.int8), b.view(np.int8)
    assert list(out) == [dot(a, signed_b), dot(signed_a, signed_b), dot(a, b)]
