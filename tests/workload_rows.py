# SPDX-License-Identifier: Apache-2.0
"""The rows of the table of workloads: what fits, by name, with a schedule for each grid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from contractions import Contraction
from convolutions import Convolution
from random_nests import CpuNest, GpuNest
from tvm import te, tirx
from workloads import Workload, conv2d, row_extremes

from tvm_streamk.testing import integer_inputs

CPU_TILE, GPU_THREADS, GPU_ELEMENTS, PANEL = (4, 8), (2, 4), (2, 2), 4
WHOLE_AXIS = 8
"""An inner extent that covers the short reduction axes, so that one axis alone has panels."""


@dataclass(frozen=True)
class Row:
    """A workload with the numbers of its output's axes and of its reduction axes.

    ``opencl`` says whether PoCL has its types; where not, its GPU grid runs as CUDA on the CPU.
    """

    workload: Callable[[], Workload]
    spatial: int
    summed: int = 1
    opencl: bool = True
    has_epilogue: bool = False

    @property
    def panels(self) -> tuple[int, ...]:
        """Inner extents: the first axis is cut into panels."""
        return (PANEL if self.summed == 1 else 2, *[WHOLE_AXIS] * (self.summed - 1))

    def cpu_nest(self) -> CpuNest:
        """Tiles of the last two axes in parallel."""
        tiles = _last((1, 1), CPU_TILE, self.spatial)
        return CpuNest(
            tiles, self.panels, *_in_order(self.spatial, self.summed), fuse_tiles=True,
            accumulate_in="global", inline=True,
        )  # fmt: skip

    def gpu_nest(self) -> GpuNest:
        """Tiles of the last two axes in blocks of 8 threads."""
        ones = (1, 1)
        return GpuNest(
            _last(ones, GPU_THREADS, self.spatial), _last(ones, GPU_ELEMENTS, self.spatial),
            (1,) * self.spatial, self.panels, *_in_order(self.spatial, self.summed),
            fuse_tiles=True,
        )  # fmt: skip


def _last(fill: tuple[int, int], sizes: tuple[int, int], count: int) -> tuple[int, ...]:
    return (*[fill[0]] * (count - 2), *sizes)[-count:]


def _in_order(spatial: int, summed: int) -> tuple[tuple[int, ...], ...]:
    return tuple(range(spatial)), tuple(range(summed)), tuple(range(spatial + summed))


def _contraction(equation: str, *sizes: int, opencl: bool = True, **options: Any) -> Row:
    """A row from an equation and the lengths of its letters in alphabetical order."""
    letters = sorted({letter for letter in equation if letter.isalpha()})
    contraction = Contraction(equation, dict(zip(letters, sizes, strict=True)), **options)
    count = len(contraction.operands)
    if len(contraction.dtypes) != count:
        contraction = Contraction(
            equation, contraction.extents, contraction.dtypes[:count], **options
        )
    epilogue = contraction.epilogue != "none"
    spatial, summed = len(contraction.output), len(contraction.summed)
    return Row(contraction.workload, spatial, summed, opencl, epilogue)


def _convolution(rank: int, opencl: bool = True, **options: Any) -> Row:
    size = {1: (23,), 2: (9, 8), 3: (5, 6, 4)}[rank]
    convolution = Convolution(size, (3,) * rank if rank < 3 else (2,) * rank, **options)
    summed = rank + (0 if convolution.depthwise else 1)
    return Row(convolution.workload, rank + 1, summed, opencl)


def zero_points(rows: int = 10, columns: int = 18, depth: int = 21) -> Workload:
    """C = (A - 3) @ (B - 5) of int8 in int32."""
    left = te.placeholder((rows, depth), "int8", name="A")
    right = te.placeholder((depth, columns), "int8", name="B")
    k = te.reduce_axis((0, depth), name="k")

    def wide(value: Any, zero: int) -> Any:
        return value.astype("int32") - tirx.const(zero, "int32")

    result = te.compute(
        (rows, columns),
        lambda i, j: te.sum(wide(left[i, k], 3) * wide(right[k, j], 5), axis=k),
        name="C",
    )
    values = integer_inputs((rows, depth), "int8"), integer_inputs((depth, columns), "int8", 1)
    expected = (values[0].astype("int32") - 3) @ (values[1].astype("int32") - 5)
    return Workload(te.create_prim_func([left, right, result]), values, expected)


def squared_norms(rows: int = 30, depth: int = 37) -> Workload:
    """C = the sum of the squares of each row."""
    source = te.placeholder((rows, depth), name="A")
    k = te.reduce_axis((0, depth), name="k")
    result = te.compute((rows,), lambda i: te.sum(source[i, k] * source[i, k], axis=k), name="C")
    values = integer_inputs((rows, depth))
    return Workload(te.create_prim_func([source, result]), (values,), (values**2).sum(axis=1))


def grouped(groups: int = 3, rows: int = 10, columns: int = 9, depth: int = 22) -> Workload:
    """The rows of all groups one below the other; each group has its own B."""
    left = te.placeholder((groups * rows, depth), name="A")
    right = te.placeholder((groups, depth, columns), name="B")
    k = te.reduce_axis((0, depth), name="k")
    result = te.compute(
        (groups * rows, columns),
        lambda i, j: te.sum(left[i, k] * right[i // rows, k, j], axis=k),
        name="C",
    )
    values = (
        integer_inputs((groups * rows, depth)),
        integer_inputs((groups, depth, columns), seed=1),
    )
    each = values[0].reshape(groups, rows, depth) @ values[1]
    function = te.create_prim_func([left, right, result])
    return Workload(function, values, each.reshape(groups * rows, columns))


def dequantised(rows: int = 10, columns: int = 18, depth: int = 24) -> Workload:
    """B is stored as two 4-bit numbers per byte with a scale per column; unpacked in the loads."""
    left = te.placeholder((rows, depth), name="A")
    packed = te.placeholder((depth // 2, columns), "uint8", name="packed")
    scale = te.placeholder((columns,), name="scale")

    def unpack(k: Any, j: Any) -> Any:
        shift = (k % 2 * 4).astype("uint8")
        number = (packed[k // 2, j] >> shift) & tirx.const(15, "uint8")
        return number.astype("float32") * scale[j]

    right = te.compute((depth, columns), unpack, name="padded_B")
    k = te.reduce_axis((0, depth), name="k")
    result = te.compute(
        (rows, columns), lambda i, j: te.sum(left[i, k] * right[k, j], axis=k), name="C"
    )
    values = (
        integer_inputs((rows, depth)),
        integer_inputs((depth // 2, columns), "uint8", 1, 0, 256),
        integer_inputs((columns,), seed=2, low=1, high=3),
    )
    numbers = np.stack([values[1] & 15, values[1] >> 4], axis=1).reshape(depth, columns)
    expected = values[0] @ (numbers.astype("float32") * values[2])
    return Workload(te.create_prim_func([left, packed, scale, result]), values, expected)


HALF = {"dtypes": ("float16", "float16"), "opencl": False}
ROWS: dict[str, Row] = {
    "GEMM NN": _contraction("ik,kj->ij", 19, 21, 33),
    "GEMM NT": _contraction("ik,jk->ij", 19, 21, 33),
    "GEMM TN": _contraction("ki,kj->ij", 19, 21, 33),
    "GEMM TT": _contraction("ki,jk->ij", 19, 21, 33),
    "GEMV": _contraction("ik,k->i", 30, 50),
    "GEMV, transposed": _contraction("ki,k->i", 30, 50),
    "skinny, 1 row": _contraction("ik,jk->ij", 1, 40, 50),
    "skinny, 8 rows": _contraction("ik,jk->ij", 8, 40, 50),
    "skinny, 16 columns": _contraction("ik,kj->ij", 40, 16, 50),
    "skinny, 3 columns": _contraction("ik,kj->ij", 40, 3, 50),
    "batched": _contraction("bik,bkj->bij", 3, 10, 9, 22),
    "broadcast batch": _contraction("bik,kj->bij", 3, 10, 9, 22),
    "grouped, equal K": Row(grouped, 2),
    "conv1d": _convolution(1),
    "conv1d, strided": _convolution(1, stride=2),
    "conv2d NCHW": _convolution(2),
    "conv2d NHWC": _convolution(2, channels_last=True),
    "conv2d, strided": _convolution(2, stride=2),
    "conv2d, dilated": _convolution(2, dilation=2),
    "conv2d, padded": _convolution(2, padding=1),
    "conv2d, strided, dilated and padded": _convolution(2, stride=2, dilation=2, padding=2),
    "conv2d, depthwise": _convolution(2, depthwise=True),
    "conv2d, transposed": _convolution(2, spacing=2, padding=2),
    "conv2d, im2col inlined": Row(lambda: conv2d(7, 3, 20), 2),
    "conv3d": _convolution(3),
    "two reduction axes": _contraction("ikl,klj->ij", 11, 9, 8, 5),
    "three reduction axes": _contraction("iklm,jmkl->ij", 7, 9, 4, 3, 5),
    "four tile axes": _contraction("abk,kcd->acbd", 5, 3, 4, 6, 17),
    "row sums": _contraction("ik->i", 30, 37),
    "squared norms": Row(squared_norms, 1),
    "largest of a row": Row(lambda: row_extremes(30, 37), 1),
    "int8 to int32": _contraction(
        "ik,kj->ij", 19, 21, 33, dtypes=("int8", "int8"), accumulator="int32"
    ),
    "int8 with zero points": Row(zero_points, 2),
    "uint8 by int8": _contraction(
        "ik,kj->ij", 19, 21, 33, dtypes=("uint8", "int8"), accumulator="int32"
    ),
    "float64": _contraction(
        "ik,kj->ij", 19, 21, 33, dtypes=("float64", "float64"), accumulator="float64"
    ),
    "float16 to float32": _contraction("ik,jk->ij", 19, 21, 33, **HALF),
    "float16 sums": _contraction("ik,jk->ij", 19, 21, 33, **HALF, accumulator="float16"),
    "bfloat16 to float32": _contraction(
        "ik,jk->ij", 19, 21, 33, dtypes=("bfloat16", "bfloat16"), opencl=False
    ),
    "alpha AB + beta C": _contraction("ik,kj->ij", 19, 21, 33, epilogue="scale and add"),
    "bias and clip": _contraction("ik,kj->ij", 19, 21, 33, epilogue="bias and clip"),
    "cast": _contraction("ik,kj->ij", 19, 21, 33, epilogue="cast"),
    "padding inlined": _contraction("ik,kj->ij", 19, 21, 33, padding={"i": 3, "k": 5}),
    "dequantised in the loads": Row(dequantised, 2),
}
