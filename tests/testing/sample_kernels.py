# SPDX-License-Identifier: Apache-2.0
"""Small GPU-scheduled functions that the tests of the launch plan and the engines share."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.script import tirx as T

THREADS = 16


@T.prim_func(s_tir=True)
def add_one(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    for i in T.thread_binding(4, "blockIdx.x"):
        for j in T.thread_binding(16, "threadIdx.x"):
            with T.sblock("B"):
                v = T.axis.spatial(64, i * 16 + j)
                B[v] = A[v] + T.float32(1)


@T.prim_func(s_tir=True)
def scale_through_workspace(a: T.handle, b: T.handle, alpha: T.float32, offset: T.int64):
    n = T.int32()
    A = T.match_buffer(a, (n, 16), "float32")
    B = T.match_buffer(b, (n, 16), "float32")
    scaled = T.sblock_alloc_buffer((n, 16), "float32", scope="global")
    counters = T.sblock_alloc_buffer((4,), "int32", scope="global")
    for z in T.thread_binding(4, "threadIdx.x"):
        with T.sblock("counters"):
            vz = T.axis.spatial(4, z)
            counters[vz] = 0
    for i in T.thread_binding(n, "blockIdx.x"):
        for j in T.thread_binding(16, "threadIdx.x"):
            with T.sblock("scaled"):
                vi, vj = T.axis.remap("SS", [i, j])
                scaled[vi, vj] = A[vi, vj] * alpha
    for i in T.thread_binding(n, "blockIdx.x"):
        for j in T.thread_binding(16, "threadIdx.x"):
            with T.sblock("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = (
                    scaled[vi, vj] + T.Cast("float32", offset) + T.Cast("float32", counters[vj % 4])
                )


@T.prim_func(s_tir=True)
def read_unwritten_workspace(B: T.Buffer((16,), "float32")):
    unwritten = T.sblock_alloc_buffer((16,), "float32", scope="global")
    for _never in range(0):
        for j in T.thread_binding(16, "threadIdx.x"):
            with T.sblock("unwritten"):
                vj = T.axis.spatial(16, j)
                unwritten[vj] = T.float32(0)
    for j in T.thread_binding(16, "threadIdx.x"):
        with T.sblock("B"):
            vj = T.axis.spatial(16, j)
            B[vj] = unwritten[vj]


@T.prim_func(s_tir=True)
def loop_and_branch_on_host(A: T.Buffer((4, 16), "int32"), flag: T.int32):
    for row in range(3):
        for j in T.thread_binding(16, "threadIdx.x"):
            with T.sblock("rows"):
                vr, vj = T.axis.remap("SS", [row, j])
                A[vr, vj] = vr
    if flag > 1:
        for j in T.thread_binding(16, "threadIdx.x"):
            with T.sblock("then"):
                vj = T.axis.spatial(16, j)
                A[3, vj] = 100
    else:
        for j in T.thread_binding(16, "threadIdx.x"):
            with T.sblock("else"):
                vj = T.axis.spatial(16, j)
                A[3, vj] = 200


@T.prim_func(s_tir=True)
def count_launches(A: T.Buffer((16,), "int32")):
    for x in T.thread_binding(16, thread="threadIdx.x"):
        with T.sblock("count"):
            i = T.axis.spatial(16, x)
            A[i] = A[i] + 1


@T.prim_func(s_tir=True)
def count_launches_on_cpu(A: T.Buffer((16,), "int32")):
    for x in range(16):
        with T.sblock("count"):
            i = T.axis.spatial(16, x)
            A[i] = A[i] + 1


@T.prim_func(s_tir=True)
def branch_on_memory(A: T.Buffer((16,), "int32"), flag: T.Buffer((1,), "int32")):
    if flag[0] > 1:
        for j in T.thread_binding(16, "threadIdx.x"):
            with T.sblock("A"):
                vj = T.axis.spatial(16, j)
                A[vj] = 1


@T.prim_func(s_tir=True)
def reverse_dynamic_shared(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    stage = T.sblock_alloc_buffer((64,), "float32", scope="shared.dyn")
    for j in T.thread_binding(64, "threadIdx.x"):
        with T.sblock("stage"):
            vj = T.axis.spatial(64, j)
            stage[vj] = A[vj]
        with T.sblock("B"):
            vj = T.axis.spatial(64, j)
            B[vj] = stage[63 - vj]


@T.prim_func(s_tir=True)
def call_helper_in_two_kernels(A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32")):
    for j in T.thread_binding(16, "threadIdx.x"):
        with T.sblock("B"):
            vj = T.axis.spatial(16, j)
            with T.attr(T.int32(0), "pragma_import_c", "float twice(float x) { return x + x; }\n"):
                B[vj] = T.call_extern("float32", "twice", A[vj])
    for j in T.thread_binding(16, "threadIdx.x"):
        with T.sblock("A"):
            vj = T.axis.spatial(16, j)
            with T.attr(T.int32(0), "pragma_import_c", "float twice(float x) { return x + x; }\n"):
                A[vj] = T.call_extern("float32", "twice", B[vj])


def doubled(dtype: str, size: int = 32) -> Any:
    """A GPU-scheduled function that doubles an array: B = A + A."""
    source = te.placeholder((size,), dtype, name="A")
    output = te.compute((size,), lambda i: source[i] + source[i], name="B")
    schedule = Schedule(te.create_prim_func([source, output]))
    outer, inner = schedule.split(*schedule.get_loops("B"), [None, THREADS])
    schedule.bind(outer, "blockIdx.x")
    schedule.bind(inner, "threadIdx.x")
    return schedule.mod["main"]


def matmul(rows: int, columns: int, depth: int, dtype: str = "float32") -> Any:
    """Unscheduled C = A @ B, with the output as the first parameter."""
    left = te.placeholder((rows, depth), dtype, name="A")
    right = te.placeholder((depth, columns), dtype, name="B")
    k = te.reduce_axis((0, depth), name="k")
    product = te.compute(
        (rows, columns), lambda i, j: te.sum(left[i, k] * right[k, j], axis=k), name="C"
    )
    return te.create_prim_func([product, left, right])


def tiled_matmul(rows: int, columns: int, depth: int, dtype: str = "float32") -> Any:
    """`matmul` as 16 by 16 tiles through shared memory, one thread per 4 by 4 elements."""
    tile, panel, per_thread = 16, 8, 4
    threads = tile // per_thread
    schedule = Schedule(tvm.IRModule({"main": matmul(rows, columns, depth, dtype)}))
    block = schedule.get_sblock("C")
    accumulator = schedule.cache_write(block, 0, "local")
    i, j, k = schedule.get_loops(block)
    block_y, thread_y, inner_i = schedule.split(i, [None, threads, per_thread])
    block_x, thread_x, inner_j = schedule.split(j, [None, threads, per_thread])
    outer_k, inner_k = schedule.split(k, [None, panel])
    schedule.reorder(block_y, block_x, thread_y, thread_x, outer_k, inner_k, inner_i, inner_j)
    for loop, thread in (
        (block_y, "blockIdx.y"),
        (block_x, "blockIdx.x"),
        (thread_y, "threadIdx.y"),
        (thread_x, "threadIdx.x"),
    ):
        schedule.bind(loop, thread)
    schedule.reverse_compute_at(accumulator, thread_x)
    for operand in (0, 1):
        _stage_in_shared_memory(schedule, block, operand, outer_k, threads)
    schedule.decompose_reduction(block, outer_k)
    return schedule.mod


def _stage_in_shared_memory(
    schedule: Any, block: Any, operand: int, panel_loop: Any, threads: int
) -> None:
    stage = schedule.cache_read(block, operand, "shared")
    schedule.compute_at(stage, panel_loop)
    fused = schedule.fuse(*schedule.get_loops(stage)[-2:])
    _, thread_y, thread_x = schedule.split(fused, [None, threads, threads])
    schedule.bind(thread_y, "threadIdx.y")
    schedule.bind(thread_x, "threadIdx.x")
