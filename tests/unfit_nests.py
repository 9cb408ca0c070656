# SPDX-License-Identifier: Apache-2.0
"""Nests that Stream-K must refuse, one per reason, as small as the reason allows.

The reduction block is ``C``, or ``C_update`` where its init stands apart.
"""

from __future__ import annotations

from tvm.script import tirx as T

# -- what the block computes -----------------------------------------------------------------------


@T.prim_func(s_tir=True)
def starts_from_one(A: T.Buffer((16, 64), "float32"), C: T.Buffer((16,), "float32")):
    for i, k in T.grid(16, 64):
        with T.sblock("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = T.float32(1)
            C[vi] = C[vi] + A[vi, vk]


@T.prim_func(s_tir=True)
def discounted_sum(A: T.Buffer((16, 64), "float32"), C: T.Buffer((16,), "float32")):
    for i, k in T.grid(16, 64):
        with T.sblock("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = T.float32(0)
            C[vi] = C[vi] * T.float32(0.5) + A[vi, vk]


@T.prim_func(s_tir=True)
def difference(A: T.Buffer((16, 64), "float32"), C: T.Buffer((16,), "float32")):
    for i, k in T.grid(16, 64):
        with T.sblock("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = T.float32(0)
            C[vi] = A[vi, vk] - C[vi]


@T.prim_func(s_tir=True)
def sum_of_own_products(A: T.Buffer((16, 64), "float32"), C: T.Buffer((16,), "float32")):
    for i, k in T.grid(16, 64):
        with T.sblock("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = T.float32(0)
            C[vi] = C[vi] + C[vi] * A[vi, vk]


@T.prim_func(s_tir=True)
def conditional_update(A: T.Buffer((16, 64), "float32"), C: T.Buffer((16,), "float32")):
    for i, k in T.grid(16, 64):
        with T.sblock("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = T.float32(0)
            if A[vi, vk] > C[vi]:
                C[vi] = C[vi] + A[vi, vk]


@T.prim_func(s_tir=True)
def position_of_largest(
    A: T.Buffer((16, 64), "float32"),
    C: T.Buffer((16,), "float32"),
    index: T.Buffer((16,), "int32"),
):
    for i, k in T.grid(16, 64):
        with T.sblock("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = T.float32(-1000)
                index[vi] = -1
            index[vi] = T.Select(C[vi] >= A[vi, vk], index[vi], vk)
            C[vi] = T.max(C[vi], A[vi, vk])


@T.prim_func(s_tir=True)
def two_sums_per_panel(
    A: T.Buffer((16, 64), "float32"),
    C: T.Buffer((16,), "float32"),
    D: T.Buffer((16,), "float32"),
):
    C_local = T.sblock_alloc_buffer((16,), scope="local")
    D_local = T.sblock_alloc_buffer((16,), scope="local")
    for i in T.thread_binding(16, "blockIdx.x"):
        with T.sblock("C_init"):
            vi = T.axis.spatial(16, i)
            C_local[vi] = T.float32(0)
        with T.sblock("D_init"):
            vi = T.axis.spatial(16, i)
            D_local[vi] = T.float32(0)
        for k in range(64):
            with T.sblock("C_update"):
                vi, vk = T.axis.remap("SR", [i, k])
                C_local[vi] = C_local[vi] + A[vi, vk]
            with T.sblock("D_update"):
                vi, vk = T.axis.remap("SR", [i, k])
                D_local[vi] = D_local[vi] + A[vi, vk] * A[vi, vk]
        with T.sblock("C_store"):
            vi = T.axis.spatial(16, i)
            C[vi] = C_local[vi]
        with T.sblock("D_store"):
            vi = T.axis.spatial(16, i)
            D[vi] = D_local[vi]


@T.prim_func(s_tir=True)
def running_sums(
    A: T.Buffer((16, 64), "float32"),
    C: T.Buffer((16,), "float32"),
    largest: T.Buffer((16,), "float32"),
):
    C_local = T.sblock_alloc_buffer((16,), scope="local")
    seen = T.sblock_alloc_buffer((16, 64), scope="local")
    for i in T.thread_binding(16, "blockIdx.x"):
        with T.sblock("C_init"):
            vi = T.axis.spatial(16, i)
            C_local[vi] = T.float32(0)
        for k in range(64):
            with T.sblock("C_update"):
                vi, vk = T.axis.remap("SR", [i, k])
                C_local[vi] = C_local[vi] + A[vi, vk]
            with T.sblock("seen"):
                vi, vk = T.axis.remap("SS", [i, k])
                seen[vi, vk] = C_local[vi]
        with T.sblock("C_store"):
            vi = T.axis.spatial(16, i)
            C[vi] = C_local[vi]


@T.prim_func(s_tir=True)
def staged_one_panel_ahead(A: T.Buffer((16, 64), "float32"), C: T.Buffer((16,), "float32")):
    C_local = T.sblock_alloc_buffer((16,), scope="local")
    ahead = T.sblock_alloc_buffer((16, 65), scope="local")
    for i in T.thread_binding(16, "blockIdx.x"):
        with T.sblock("first"):
            vi = T.axis.spatial(16, i)
            ahead[vi, 0] = A[vi, 0]
        with T.sblock("C_init"):
            vi = T.axis.spatial(16, i)
            C_local[vi] = T.float32(0)
        for k in range(64):
            with T.sblock("C_update"):
                vi, vk = T.axis.remap("SR", [i, k])
                C_local[vi] = C_local[vi] + ahead[vi, vk]
            with T.sblock("next"):
                vi, vk = T.axis.remap("SS", [i, k])
                T.where(k < 63)
                ahead[vi, vk + 1] = A[vi, vk + 1]
        with T.sblock("C_store"):
            vi = T.axis.spatial(16, i)
            C[vi] = C_local[vi]


@T.prim_func(s_tir=True)
def epilogue_uses_last_panel(A: T.Buffer((16, 64), "float32"), C: T.Buffer((16,), "float32")):
    C_local = T.sblock_alloc_buffer((16,), scope="local")
    staged = T.sblock_alloc_buffer((16, 64), scope="local")
    for i in T.thread_binding(16, "blockIdx.x"):
        with T.sblock("C_init"):
            vi = T.axis.spatial(16, i)
            C_local[vi] = T.float32(0)
        for k in range(64):
            with T.sblock("staged"):
                vi, vk = T.axis.remap("SS", [i, k])
                staged[vi, vk] = A[vi, vk]
            with T.sblock("C_update"):
                vi, vk = T.axis.remap("SR", [i, k])
                C_local[vi] = C_local[vi] + staged[vi, vk]
        with T.sblock("C_store"):
            vi = T.axis.spatial(16, i)
            C[vi] = C_local[vi] + staged[vi, 63]


@T.prim_func(s_tir=True)
def epilogue_uses_prelude(
    A: T.Buffer((16, 64), "float32"),
    bias: T.Buffer((16,), "float32"),
    C: T.Buffer((16,), "float32"),
):
    C_local = T.sblock_alloc_buffer((16,), scope="local")
    staged = T.sblock_alloc_buffer((16,), scope="local")
    for i in T.thread_binding(16, "blockIdx.x"):
        with T.sblock("staged"):
            vi = T.axis.spatial(16, i)
            staged[vi] = bias[vi]
        with T.sblock("C_init"):
            vi = T.axis.spatial(16, i)
            C_local[vi] = T.float32(0)
        for k in range(64):
            with T.sblock("C_update"):
                vi, vk = T.axis.remap("SR", [i, k])
                C_local[vi] = C_local[vi] + A[vi, vk]
        with T.sblock("C_store"):
            vi = T.axis.spatial(16, i)
            C[vi] = C_local[vi] + staged[vi]


@T.prim_func(s_tir=True)
def value_from_the_tile_before(A: T.Buffer((16, 64), "float32"), C: T.Buffer((16,), "float32")):
    C_local = T.sblock_alloc_buffer((16,), scope="local")
    last = T.sblock_alloc_buffer((17,), scope="local")
    for i in range(16):
        with T.sblock("C_init"):
            vi = T.axis.spatial(16, i)
            C_local[vi] = T.float32(0)
        for k in range(64):
            with T.sblock("C_update"):
                vi, vk = T.axis.remap("SR", [i, k])
                C_local[vi] = C_local[vi] + A[vi, vk]
        with T.sblock("C_store"):
            vi = T.axis.spatial(16, i)
            C[vi] = C_local[vi] + last[vi]
        with T.sblock("last"):
            vi = T.axis.spatial(16, i)
            last[vi + 1] = C_local[vi]


# -- the loops around it ---------------------------------------------------------------------------


@T.prim_func(s_tir=True)
def sum_of_one(A: T.Buffer((16,), "float32"), C: T.Buffer((16,), "float32")):
    for i in range(16):
        with T.sblock("C"):
            vi = T.axis.spatial(16, i)
            _vk = T.axis.reduce(1, 0)
            with T.init():
                C[vi] = T.float32(0)
            C[vi] = C[vi] + A[vi]


@T.prim_func(s_tir=True)
def empty(A: T.Buffer((16, 0), "float32"), C: T.Buffer((16,), "float32")):
    for i, k in T.grid(16, 0):
        with T.sblock("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = T.float32(0)
            C[vi] = C[vi] + A[vi, vk]


@T.prim_func(s_tir=True)
def empty_inside(A: T.Buffer((16, 4, 0), "float32"), C: T.Buffer((16,), "float32")):
    for i, k_0, k_1 in T.grid(16, 4, 0):
        with T.sblock("C"):
            vi, vk_0, vk_1 = T.axis.remap("SRR", [i, k_0, k_1])
            with T.init():
                C[vi] = T.float32(0)
            C[vi] = C[vi] + A[vi, vk_0, vk_1]


@T.prim_func(s_tir=True)
def symbolic_depth(a: T.handle, C: T.Buffer((16,), "float32")):
    depth = T.int32()
    A = T.match_buffer(a, (16, depth), "float32")
    for i, k in T.grid(16, depth):
        with T.sblock("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = T.float32(0)
            C[vi] = C[vi] + A[vi, vk]


@T.prim_func(s_tir=True)
def reduction_on_the_grid(A: T.Buffer((16, 64), "float32"), C: T.Buffer((16,), "float32")):
    for i in range(16):
        for k in T.thread_binding(64, "blockIdx.y"):
            with T.sblock("C"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    C[vi] = T.float32(0)
                C[vi] = C[vi] + A[vi, vk]


@T.prim_func(s_tir=True)
def reduction_in_parallel(A: T.Buffer((16, 64), "float32"), C: T.Buffer((16,), "float32")):
    for i in range(16):
        for k in T.parallel(64):
            with T.sblock("C"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    C[vi] = T.float32(0)
                C[vi] = C[vi] + A[vi, vk]


@T.prim_func(s_tir=True)
def reduction_in_vectors(A: T.Buffer((16, 64), "float32"), C: T.Buffer((16,), "float32")):
    for i in range(16):
        for k in T.vectorized(64):
            with T.sblock("C"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    C[vi] = T.float32(0)
                C[vi] = C[vi] + A[vi, vk]


@T.prim_func(s_tir=True)
def triangular_depth(A: T.Buffer((16, 64), "float32"), C: T.Buffer((16,), "float32")):
    for i in range(16):
        for k in range(i + 1):
            with T.sblock("C"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    C[vi] = T.float32(0)
                C[vi] = C[vi] + A[vi, vk]


@T.prim_func(s_tir=True)
def triangular_tiles(A: T.Buffer((16, 64), "float32"), C: T.Buffer((16, 16), "float32")):
    for i in range(16):
        for j in range(i + 1):
            for k in range(64):
                with T.sblock("C"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    with T.init():
                        C[vi, vj] = T.float32(0)
                    C[vi, vj] = C[vi, vj] + A[vi, vk] * A[vj, vk]


@T.prim_func(s_tir=True)
def reduction_along_the_diagonal(A: T.Buffer((16, 80), "float32"), C: T.Buffer((16,), "float32")):
    for i in range(16):
        with T.sblock("C_init"):
            vi = T.axis.spatial(16, i)
            C[vi] = T.float32(0)
        for k in range(64):
            with T.sblock("C_update"):
                vi = T.axis.spatial(16, i)
                vk = T.axis.reduce(80, i + k)
                C[vi] = C[vi] + A[vi, vk]


@T.prim_func(s_tir=True)
def init_in_every_panel(A: T.Buffer((16, 64), "float32"), C: T.Buffer((16,), "float32")):
    C_local = T.sblock_alloc_buffer((16,), scope="local")
    for i in T.thread_binding(16, "blockIdx.x"):
        for k_0 in range(8):
            with T.sblock("C_init"):
                vi = T.axis.spatial(16, i)
                C_local[vi] = T.float32(0)
            for k_1 in range(8):
                with T.sblock("C_update"):
                    vi = T.axis.spatial(16, i)
                    vk = T.axis.reduce(64, k_0 * 8 + k_1)
                    C_local[vi] = C_local[vi] + A[vi, vk]
        with T.sblock("C_store"):
            vi = T.axis.spatial(16, i)
            C[vi] = C_local[vi]


@T.prim_func(s_tir=True)
def grid_inside_panels(A: T.Buffer((16, 64), "float32"), C: T.Buffer((16,), "float32")):
    for k in range(64):
        for i in T.thread_binding(16, "blockIdx.x"):
            with T.sblock("C"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    C[vi] = T.float32(0)
                C[vi] = C[vi] + A[vi, vk]


@T.prim_func(s_tir=True)
def parallel_inside_panels(A: T.Buffer((16, 64), "float32"), C: T.Buffer((16,), "float32")):
    for k in range(64):
        for i in T.parallel(16):
            with T.sblock("C"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    C[vi] = T.float32(0)
                C[vi] = C[vi] + A[vi, vk]


@T.prim_func(s_tir=True)
def no_init(A: T.Buffer((16, 64), "float32"), C: T.Buffer((16,), "float32")):
    for i, k in T.grid(16, 64):
        with T.sblock("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            C[vi] = C[vi] + A[vi, vk]


@T.prim_func(s_tir=True)
def under_a_condition(
    A: T.Buffer((16, 64), "float32"), C: T.Buffer((16,), "float32"), flag: T.int32
):
    if flag > 0:
        for i, k in T.grid(16, 64):
            with T.sblock("C"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    C[vi] = T.float32(0)
                C[vi] = C[vi] + A[vi, vk]


@T.prim_func(s_tir=True)
def store_inside_an_element_loop(A: T.Buffer((16, 64), "float32"), C: T.Buffer((16, 2), "float32")):
    C_local = T.sblock_alloc_buffer((16, 2), scope="local")
    other = T.sblock_alloc_buffer((16,), scope="local")
    for i in T.thread_binding(16, "blockIdx.x"):
        with T.sblock("other"):
            vi = T.axis.spatial(16, i)
            other[vi] = T.float32(1)
        for j in range(2):
            with T.sblock("C_init"):
                vi, vj = T.axis.remap("SS", [i, j])
                C_local[vi, vj] = T.float32(0)
            for k in range(64):
                with T.sblock("C_update"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    C_local[vi, vj] = C_local[vi, vj] + A[vi, vk] * other[vi]
            with T.sblock("C_store"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = C_local[vi, vj]


# -- where the sums go -----------------------------------------------------------------------------


@T.prim_func(s_tir=True)
def sums_in_shared_memory(A: T.Buffer((16, 64), "float32"), C: T.Buffer((16,), "float32")):
    C_shared = T.sblock_alloc_buffer((16,), scope="shared")
    for i in T.thread_binding(16, "blockIdx.x"):
        with T.sblock("C_init"):
            vi = T.axis.spatial(16, i)
            C_shared[vi] = T.float32(0)
        for k in range(64):
            with T.sblock("C_update"):
                vi, vk = T.axis.remap("SR", [i, k])
                C_shared[vi] = C_shared[vi] + A[vi, vk]
        with T.sblock("C_store"):
            vi = T.axis.spatial(16, i)
            C[vi] = C_shared[vi]


@T.prim_func(s_tir=True)
def output_read_by_another_block(
    A: T.Buffer((16, 64), "float32"),
    C: T.Buffer((16,), "float32"),
    D: T.Buffer((16,), "float32"),
):
    C_local = T.sblock_alloc_buffer((16,), scope="local")
    for i in T.thread_binding(16, "blockIdx.x"):
        with T.sblock("C_init"):
            vi = T.axis.spatial(16, i)
            C_local[vi] = T.float32(0)
        for k in range(64):
            with T.sblock("C_update"):
                vi, vk = T.axis.remap("SR", [i, k])
                C_local[vi] = C_local[vi] + A[vi, vk]
        with T.sblock("C_store"):
            vi = T.axis.spatial(16, i)
            C[vi] = C_local[vi]
        with T.sblock("D"):
            vi = T.axis.spatial(16, i)
            D[vi] = C[15 - vi]


@T.prim_func(s_tir=True)
def output_read_by_panels(C: T.Buffer((16, 64), "float32")):
    C_local = T.sblock_alloc_buffer((16,), scope="local")
    for i in T.thread_binding(16, "blockIdx.x"):
        with T.sblock("C_init"):
            vi = T.axis.spatial(16, i)
            C_local[vi] = T.float32(0)
        for k in range(64):
            with T.sblock("C_update"):
                vi, vk = T.axis.remap("SR", [i, k])
                C_local[vi] = C_local[vi] + C[vi, vk]
        with T.sblock("C_store"):
            vi = T.axis.spatial(16, i)
            C[vi, 0] = C_local[vi]


@T.prim_func(s_tir=True)
def output_written_by_panels(
    A: T.Buffer((16, 64), "float32"),
    C: T.Buffer((16,), "float32"),
    copy: T.Buffer((16, 64), "float32"),
):
    C_local = T.sblock_alloc_buffer((16,), scope="local")
    for i in T.thread_binding(16, "blockIdx.x"):
        with T.sblock("C_init"):
            vi = T.axis.spatial(16, i)
            C_local[vi] = T.float32(0)
        for k in range(64):
            with T.sblock("copy"):
                vi, vk = T.axis.remap("SS", [i, k])
                copy[vi, vk] = A[vi, vk]
            with T.sblock("C_update"):
                vi, vk = T.axis.remap("SR", [i, k])
                C_local[vi] = C_local[vi] + A[vi, vk]
        with T.sblock("C_store"):
            vi = T.axis.spatial(16, i)
            C[vi] = C_local[vi]


@T.prim_func(s_tir=True)
def two_nests(
    A: T.Buffer((16, 64), "float32"),
    C: T.Buffer((16,), "float32"),
    D: T.Buffer((16,), "float32"),
):
    for i, k in T.grid(16, 64):
        with T.sblock("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = T.float32(0)
            C[vi] = C[vi] + A[vi, vk]
    for i in range(16):
        with T.sblock("D"):
            vi = T.axis.spatial(16, i)
            D[vi] = C[vi] + T.float32(1)
