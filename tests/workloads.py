# SPDX-License-Identifier: Apache-2.0
"""Unscheduled functions with exact inputs and numpy's answer, one constructor per kind.

The reduction block is called ``C`` everywhere. Inputs are small whole numbers, so that every order
of summation gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te, tirx

from tvm_streamk.testing import integer_inputs


@dataclass(frozen=True)
class Workload:
    """A function, its inputs and what its last parameter is afterwards."""

    function: Any
    inputs: tuple[np.ndarray, ...]
    expected: np.ndarray


def gemm(
    rows: int,
    columns: int,
    depth: int,
    dtype: str = "float32",
    *,
    transposed: bool = False,
    epilogue: Callable[[Any], Any] | None = None,
) -> Workload:
    """C = A @ B, or A @ B.T where ``transposed``; with an epilogue, D = epilogue(C)."""
    right_shape = (columns, depth) if transposed else (depth, columns)
    left, right = integer_inputs((rows, depth), dtype), integer_inputs(right_shape, dtype, seed=1)
    product = left @ (right.T if transposed else right)
    parameters = _gemm_parameters(rows, columns, depth, dtype, transposed)
    if epilogue is not None:
        result = parameters[-1]
        parameters[-1] = te.compute(result.shape, lambda i, j: epilogue(result[i, j]), name="D")
    return Workload(te.create_prim_func(parameters), (left, right), product.astype(dtype))


def symbolic_gemm(rows: int, columns: int, depth: int) -> Workload:
    """C = A @ B whose number of rows is a shape variable, called with ``rows``."""
    concrete = gemm(rows, columns, depth)
    parameters = _gemm_parameters(tirx.Var("m", "int64"), columns, depth, "float32", False)
    function = te.create_prim_func(parameters, index_dtype_override="int64")
    return Workload(function, concrete.inputs, concrete.expected)


def batched_gemm(
    batch: int, rows: int, columns: int, depth: int, dtype: str = "float32"
) -> Workload:
    """C[b] = A[b] @ B[b]."""
    left = te.placeholder((batch, rows, depth), dtype, name="A")
    right = te.placeholder((batch, depth, columns), dtype, name="B")
    k = te.reduce_axis((0, depth), name="k")
    product = te.compute(
        (batch, rows, columns),
        lambda b, i, j: te.sum(left[b, i, k] * right[b, k, j], axis=k),
        name="C",
    )
    values = (
        integer_inputs((batch, rows, depth), dtype),
        integer_inputs((batch, depth, columns), dtype, seed=1),
    )
    function = te.create_prim_func([left, right, product])
    return Workload(function, values, (values[0] @ values[1]).astype(dtype))


def conv2d(
    size: int, channels: int, filters: int, kernel: int = 3, dtype: str = "float32"
) -> Workload:
    """A valid convolution of one image as implicit GEMM; the gathering is block ``patches``.

    C[pixel, filter] = sum over (row, column, channel) of image * weight.
    """
    out = size - kernel + 1
    image = te.placeholder((size, size, channels), dtype, name="A")
    weight = te.placeholder((kernel * kernel * channels, filters), dtype, name="B")
    k = te.reduce_axis((0, kernel * kernel * channels), name="k")

    def gathered(pixel: Any, index: Any) -> Any:
        row, column = index // (kernel * channels), index // channels % kernel
        return image[pixel // out + row, pixel % out + column, index % channels]

    patches = te.compute((out * out, kernel * kernel * channels), gathered, name="patches")
    product = te.compute(
        (out * out, filters), lambda i, j: te.sum(patches[i, k] * weight[k, j], axis=k), name="C"
    )
    values = (
        integer_inputs((size, size, channels), dtype),
        integer_inputs((kernel * kernel * channels, filters), dtype, seed=1),
    )
    windows = np.lib.stride_tricks.sliding_window_view(values[0], (kernel, kernel), axis=(0, 1))
    columns = windows.transpose(0, 1, 3, 4, 2).reshape(out * out, -1)
    function = te.create_prim_func([image, weight, product])
    return Workload(function, values, (columns @ values[1]).astype(dtype))


def gemv(rows: int, depth: int, dtype: str = "float32") -> Workload:
    """C = A @ x."""
    left, right = te.placeholder((rows, depth), dtype, name="A"), te.placeholder((depth,), dtype)
    k = te.reduce_axis((0, depth), name="k")
    product = te.compute((rows,), lambda i: te.sum(left[i, k] * right[k], axis=k), name="C")
    values = integer_inputs((rows, depth), dtype), integer_inputs((depth,), dtype, seed=1)
    function = te.create_prim_func([left, right, product])
    return Workload(function, values, (values[0] @ values[1]).astype(dtype))


def row_extremes(rows: int, depth: int, largest: bool = True, dtype: str = "float32") -> Workload:
    """C = the largest (or smallest) entry of each row of A."""
    source = te.placeholder((rows, depth), dtype, name="A")
    k = te.reduce_axis((0, depth), name="k")
    reduce = te.max if largest else te.min
    result = te.compute((rows,), lambda i: reduce(source[i, k], axis=k), name="C")
    values = integer_inputs((rows, depth), dtype, low=-50, high=50)
    expected = values.max(axis=1) if largest else values.min(axis=1)
    return Workload(te.create_prim_func([source, result]), (values,), expected)


def _gemm_parameters(
    rows: Any, columns: int, depth: int, dtype: str, transposed: bool
) -> list[Any]:
    left = te.placeholder((rows, depth), dtype, name="A")
    right_shape = (columns, depth) if transposed else (depth, columns)
    right = te.placeholder(right_shape, dtype, name="B")
    k = te.reduce_axis((0, depth), name="k")

    def element(i: Any, j: Any) -> Any:
        return te.sum(left[i, k] * (right[j, k] if transposed else right[k, j]), axis=k)

    return [left, right, te.compute((rows, columns), element, name="C")]
