# SPDX-License-Identifier: Apache-2.0
"""What is measured: products whose tiles fill their waves, and products whose tiles do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tvm.s_tir import Schedule

from tvm_streamk.places import LLVM, OPENCL, Place
from tvm_streamk.schedules import REDUCTION_BLOCK, cpu_gemm, gpu_gemm
from tvm_streamk.testing import integer_inputs, poisoned

Shape = tuple[int, int, int]

CPU_TILE = (49, 512)
CPU_DEPTH = 4608
OPENCL_THREADS, OPENCL_PER_THREAD, OPENCL_PANEL = (8, 8), (4, 4), 16
OPENCL_DEPTH = 8208
FEW_TILES = (1, 2, 3, 5)
"""On two processors: half a wave, a whole one, one and a half, two and a half."""

CUDA_THREADS, CUDA_PER_THREAD, CUDA_PANEL = (16, 16), (4, 4), 16
LONG_DEPTH, MIDDLE_DEPTH, DEPTH = 16384, 8192, 4096


@dataclass(frozen=True)
class Product:
    """One matrix product with the schedule that is to be streamed.

    Attributes
    ----------
    name
        What the table calls it: the element type.
    shape
        Rows, columns and length of the reduction.
    make
        A fresh data-parallel schedule.
    block
        Its reduction block.
    inputs
        Fresh operands with whole numbers, as the function takes them, without the output.
    output
        A fresh output that is full of NaN.
    expected
        The product of such operands.
    """

    name: str
    shape: Shape
    make: Callable[[], Schedule]
    block: str
    inputs: Callable[[], list[np.ndarray]]
    output: Callable[[], np.ndarray]
    expected: Callable[[list[np.ndarray]], np.ndarray]

    @property
    def extents(self) -> str:
        """Rows, columns and length of the reduction."""
        return "x".join(str(extent) for extent in self.shape)


def hand_product(where: Place, shape: Shape) -> Product:
    """A float32 product in the hand schedule for a kind of device."""
    return float32_product(shape, lambda: _hand_schedule(where, shape))


def float32_product(shape: Shape, make: Callable[[], Schedule]) -> Product:
    """A float32 product in a schedule of :mod:`tvm_streamk.schedules`."""
    m, n, k = shape
    return Product(
        name="float32",
        shape=shape,
        make=make,
        block=REDUCTION_BLOCK,
        inputs=lambda: [integer_inputs((m, k)), integer_inputs((k, n), seed=1)],
        output=lambda: poisoned((m, n)),
        expected=lambda operands: operands[0] @ operands[1],
    )


def _hand_schedule(where: Place, shape: Shape) -> Schedule:
    if where.name == LLVM:
        rows, columns = CPU_TILE
        return cpu_gemm(*shape, tile=(rows, columns))
    if where.name == OPENCL:
        return gpu_gemm(*shape, OPENCL_THREADS, OPENCL_PER_THREAD, OPENCL_PANEL)
    return gpu_gemm(*shape, CUDA_THREADS, CUDA_PER_THREAD, CUDA_PANEL)


def hand_tile(where: Place) -> tuple[int, int]:
    """Rows and columns of the hand schedule's tile."""
    if where.name == LLVM:
        return CPU_TILE
    threads, each = (OPENCL_THREADS, OPENCL_PER_THREAD)
    if where.name != OPENCL:
        threads, each = (CUDA_THREADS, CUDA_PER_THREAD)
    return threads[0] * each[0], threads[1] * each[1]


def default_shapes(where: Place) -> list[Shape]:
    """The products that are measured on a device where the user names none."""
    rows, columns = hand_tile(where)
    if where.name == LLVM:
        return [(rows * tiles, columns, CPU_DEPTH) for tiles in FEW_TILES]
    if where.name == OPENCL:
        return [(rows * tiles, columns, OPENCL_DEPTH) for tiles in FEW_TILES]
    return shapes_for(where.processors, (rows, columns))


def shapes_for(processors: int, tile: tuple[int, int]) -> list[Shape]:
    """Products whose numbers of tiles say something about so many processors.

    One tile, an eighth and a half of a wave, a whole wave, one tile more, a little more, one and a
    half, two whole waves, and two and a little more.
    """
    counts = [
        (1, LONG_DEPTH),
        (max(processors // 8, 2), MIDDLE_DEPTH),
        (max(processors // 2, 2), DEPTH),
        (processors, DEPTH),
        (processors + 1, DEPTH),
        (processors + max(processors // 8, 2), DEPTH),
        (processors + max(processors // 2, 1), DEPTH),
        (2 * processors, DEPTH),
        (2 * processors + max(processors // 8, 1), DEPTH),
    ]
    return [(*_extents(tiles, tile), depth) for tiles, depth in dict.fromkeys(counts)]


def _extents(tiles: int, tile: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of an output of exactly so many tiles, as square as they allow."""
    across = next(count for count in range(int(tiles**0.5), 0, -1) if tiles % count == 0)
    return tile[0] * across, tile[1] * (tiles // across)


@dataclass(frozen=True)
class Operands:
    """A product's operands and numpy's result, made once for all its kernels."""

    inputs: list[np.ndarray]
    expected: np.ndarray

    @staticmethod
    def of(product: Product) -> Operands:
        """Make them."""
        inputs = product.inputs()
        return Operands(inputs, product.expected(inputs))
