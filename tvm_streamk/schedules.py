# SPDX-License-Identifier: Apache-2.0
"""Two good hand schedules of a matrix product, made with TVM's own primitives only.

The demo, the tutorials, the benchmarks and the tests put them under ``sch.stream_k``. Each has the
form that the primitive looks for: tile loops outermost, then threads, then the panel loop.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.target import codegen

REDUCTION_BLOCK = "C"


def gemm(m: int, n: int, k: int, dtype: str = "float32") -> Any:
    """An unscheduled product ``C[m, n] = A[m, k] @ B[k, n]``.

    Parameters
    ----------
    m, n, k
        Rows and columns of C, and length of the reduction.
    dtype
        Element type of all three.

    Returns
    -------
    tvm.tirx.PrimFunc
        Its parameters are A, B and C; its one block is called ``C``.
    """
    left = te.placeholder((m, k), dtype, name="A")
    right = te.placeholder((k, n), dtype, name="B")
    depth = te.reduce_axis((0, k), name="k")
    product = te.compute(
        (m, n), lambda i, j: te.sum(left[i, depth] * right[depth, j], axis=depth), name="C"
    )
    return te.create_prim_func([left, right, product])


def cpu_gemm(
    m: int,
    n: int,
    k: int,
    tile: tuple[int, int],
    panel: int = 64,
    register_tile: tuple[int, int] = (7, 32),
    dtype: str = "float32",
) -> Schedule:
    """A product whose tiles run in parallel, with vectors innermost.

    A tile is the work of one parallel task. Its sums stay in a buffer of the task, and a part of
    the size of ``register_tile`` stays in vector registers while a panel is added to it.

    Parameters
    ----------
    m, n, k
        Rows and columns of the product, and length of the reduction.
    tile
        Rows and columns of a tile.
    panel
        How much of the reduction one trip of the panel loop does.
    register_tile
        Rows and columns that are summed in registers; they divide the tile's. The default suits
        processors with 32 registers of 512 bits, and still fits half of that.
    dtype
        Element type.

    Returns
    -------
    tvm.s_tir.Schedule
        The reduction block is ``C``.
    """
    schedule = Schedule(tvm.IRModule({"main": gemm(m, n, k, dtype)}))
    block = schedule.get_sblock(REDUCTION_BLOCK)
    store = schedule.cache_write(block, 0, "local")
    i, j, depth = schedule.get_loops(block)
    row_tile, row_group, row = schedule.split(i, _factors(tile[0], register_tile[0]))
    column_tile, column_group, column = schedule.split(j, _factors(tile[1], register_tile[1]))
    panels, step = schedule.split(depth, [None, panel])
    schedule.reorder(row_tile, column_tile, panels, column_group, row_group, step, row, column)
    tiles = schedule.fuse(row_tile, column_tile)
    schedule.parallel(tiles)
    schedule.reverse_compute_at(store, tiles)
    schedule.vectorize(column)
    schedule.unroll(row)
    stored_column = schedule.get_loops(store)[-1]
    schedule.vectorize(schedule.split(stored_column, [None, register_tile[1]])[1])
    schedule.decompose_reduction(block, panels)
    return schedule


def gpu_gemm(
    m: int,
    n: int,
    k: int,
    threads: tuple[int, int] = (8, 8),
    per_thread: tuple[int, int] = (4, 4),
    panel: int = 16,
    dtype: str = "float32",
) -> Schedule:
    """A product with one tile per thread block, staged through shared memory.

    A tile has ``threads * per_thread`` rows and columns. For each panel the block's threads copy
    their part of A and B to shared memory; each sums ``per_thread`` elements in registers.

    Parameters
    ----------
    m, n, k
        Rows and columns of the product, and length of the reduction.
    threads
        Threads of a block along the rows and columns of its tile.
    per_thread
        Rows and columns that one thread sums.
    panel
        How much of the reduction one trip of the panel loop does.
    dtype
        Element type.

    Returns
    -------
    tvm.s_tir.Schedule
        The reduction block is ``C``.
    """
    schedule = Schedule(tvm.IRModule({"main": gemm(m, n, k, dtype)}))
    block = schedule.get_sblock(REDUCTION_BLOCK)
    store = schedule.cache_write(block, 0, "local")
    i, j, depth = schedule.get_loops(block)
    row_tile, row_thread, row = schedule.split(i, [None, threads[0], per_thread[0]])
    column_tile, column_thread, column = schedule.split(j, [None, threads[1], per_thread[1]])
    panels, step = schedule.split(depth, [None, panel])
    schedule.reorder(row_tile, column_tile, row_thread, column_thread, panels, step, row, column)
    thread = schedule.fuse(row_thread, column_thread)
    schedule.bind(schedule.fuse(row_tile, column_tile), "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    schedule.reverse_compute_at(store, thread)
    for operand in (0, 1):
        _stage(schedule, block, operand, panels, threads[0] * threads[1])
    schedule.decompose_reduction(block, panels)
    return schedule


def host_target() -> dict[str, Any]:
    """The llvm target for the processor that this program runs on, with all its vector units."""
    return {"kind": "llvm", "mcpu": str(codegen.llvm_get_system_cpu())}


def _factors(tile: int, register_tile: int) -> list[int | None]:
    if tile % register_tile:
        raise ValueError(
            f"register_tile {register_tile} does not divide the tile's {tile}; try a divisor of it"
        )
    return [None, tile // register_tile, register_tile]


def _stage(schedule: Schedule, block: Any, operand: int, panels: Any, num_threads: int) -> None:
    """Copy an operand's part of a panel to shared memory, with all threads of the block."""
    copy = schedule.cache_read(block, operand, "shared")
    schedule.compute_at(copy, panels)
    elements = schedule.fuse(*schedule.get_loops(copy)[-2:])
    _, thread = schedule.split(elements, [None, num_threads])
    schedule.bind(thread, "threadIdx.x")
