# SPDX-License-Identifier: Apache-2.0
"""Nests that only look as if they fitted: found by running what the analysis had accepted."""

from __future__ import annotations

import pytest
from helpers import check_numerics, refused
from schedules import LLVM
from tvm.s_tir import Schedule
from tvm.script import tirx as T
from workloads import Workload

from tvm_streamk import errors
from tvm_streamk.testing import integer_inputs


@T.prim_func(s_tir=True)
def init_of_other_elements(A: T.Buffer((16, 24), "float32"), C: T.Buffer((16, 16), "float32")):
    for i, j, k in T.grid(16, 16, 24):
        with T.sblock("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vj, vi] = C[vj, vi] + A[vi, vk] * A[vj, vk]


@T.prim_func(s_tir=True)
def init_of_half_a_tile(A: T.Buffer((16, 24), "float32"), C: T.Buffer((16,), "float32")):
    C_local = T.sblock_alloc_buffer((16,), scope="local")
    for i_0 in T.thread_binding(4, "blockIdx.x"):
        for i_1 in range(2):
            with T.sblock("C_init"):
                vi = T.axis.spatial(16, i_0 * 4 + i_1)
                C_local[vi] = T.float32(0)
        for k, i_1 in T.grid(24, 4):
            with T.sblock("C_update"):
                vi, vk = T.axis.spatial(16, i_0 * 4 + i_1), T.axis.reduce(24, k)
                C_local[vi] = C_local[vi] + A[vi, vk]
        for i_1 in range(4):
            with T.sblock("store"):
                vi = T.axis.spatial(16, i_0 * 4 + i_1)
                C[vi] = C_local[vi]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (init_of_other_elements, r"starts `C_\w+\[i, j\]`, but its update adds to `C_\w+\[j, i\]`"),
        (
            init_of_half_a_tile,
            r"starts `C_local\[0 to 1\]`, but its update adds to `C_local\[0 to 3\]`",
        ),
    ],
)
def test_init_that_starts_other_elements(function: object, message: str) -> None:
    schedule = Schedule(function)
    with refused(schedule, errors.ReducerNotSupported, message):
        schedule.stream_k("C", num_workers=3)


@T.prim_func(s_tir=True)
def sums_that_nobody_uses(A: T.Buffer((16, 24), "float32")):
    C = T.sblock_alloc_buffer((16,))
    for i, k in T.grid(16, 24):
        with T.sblock("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = T.float32(0)
            C[vi] = C[vi] + A[vi, vk]


def test_sums_that_nobody_uses() -> None:
    schedule = Schedule(sums_that_nobody_uses)
    with refused(schedule, errors.NotATiledNest, "nothing uses the sums: `C` is no output"):
        schedule.stream_k("C", num_workers=3)


@T.prim_func(s_tir=True)
def symbolic_and_flattened(a: T.handle, c: T.handle):
    columns = T.int64()
    A = T.match_buffer(a, (5, columns, 24), "float32")
    C = T.match_buffer(c, (5 * columns,), "float32")
    for i, j, k in T.grid(T.int64(5), columns, T.int64(24)):
        with T.sblock("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi * columns + vj] = T.float32(0)
            C[vi * columns + vj] = C[vi * columns + vj] + A[vi, vj, vk]


@pytest.mark.parametrize("columns", [1, 7])
def test_index_that_multiplies_a_tile_by_a_shape(columns: int) -> None:
    values = integer_inputs((5, columns, 24))
    workload = Workload(symbolic_and_flattened, (values,), values.sum(axis=2).reshape(-1))
    schedule = Schedule(symbolic_and_flattened)
    schedule.stream_k("C", num_workers=3)
    check_numerics(schedule.mod, workload, LLVM)
