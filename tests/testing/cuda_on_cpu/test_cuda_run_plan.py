# SPDX-License-Identifier: Apache-2.0
"""Arrays, workspaces, scalars, orders and residency of `run_plan`."""

from __future__ import annotations

from dataclasses import replace

import cuda_kernels
import numpy as np
import pytest
from cuda_kernels import (
    BARRIER,
    TARGET,
    last_arriver_arrays,
    last_arriver_plan,
    plan_of,
    positions,
    without,
)
from tvm.script import tirx as T

from tvm_streamk.testing.cuda_on_cpu import ORDERS, BadLaunch, Deadlock, MemoryOverrun, run_plan
from tvm_streamk.testing.launch_plan import Workspace, plan_launches

pytestmark = cuda_kernels.needs_compiler

COPY = """
#include <cuda.h>
extern "C" __global__ void kernel(int* source, int* target) {
  target[threadIdx.x] = source[threadIdx.x];
}
"""
TICKETS = """
#include <cuda.h>
extern "C" __global__ void kernel(int* counter, int* tickets) {
  int thread = blockIdx.x * blockDim.x + threadIdx.x;
  tickets[thread] = atomicAdd(counter, 1);
}
"""


@T.prim_func(s_tir=True)
def scaled_rows(a: T.handle, b: T.handle, scale: T.float32, offset: T.int64):
    n = T.int32()
    A = T.match_buffer(a, (n, 16), "float32")
    B = T.match_buffer(b, (n, 16), "float32")
    scaled = T.sblock_alloc_buffer((n, 16), "float32", scope="global")
    for i in T.thread_binding(n, "blockIdx.x"):
        for j in T.thread_binding(16, "threadIdx.x"):
            with T.sblock("scaled"):
                vi, vj = T.axis.remap("SS", [i, j])
                scaled[vi, vj] = A[vi, vj] * scale
    for i in T.thread_binding(n, "blockIdx.x"):
        for j in T.thread_binding(16, "threadIdx.x"):
            with T.sblock("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = scaled[vi, vj] + T.Cast("float32", offset)


@pytest.mark.parametrize("rows", [1, 7])
def test_symbolic_shapes_scalars_and_several_launches(rows: int) -> None:
    a = np.arange(rows * 16, dtype=np.float32).reshape(rows, 16)
    b = np.full_like(a, np.nan)
    plan = plan_launches(scaled_rows, [a, b, 1.5, -(2**31)], TARGET)
    assert [launch.grid for launch in plan.launches] == [(rows, 1, 1)] * 2
    assert len(plan.workspaces) == 1
    run_plan(plan, dict(zip(plan.parameters, (a, b), strict=False)), order="random")
    np.testing.assert_array_equal(b, a * np.float32(1.5) + np.float32(-(2**31)))


def test_workspace_is_poisoned_unless_given() -> None:
    plan = plan_of(COPY, ("space", "target"), workspaces=(Workspace("space", "int32", 32 * 4),))
    target = np.zeros(32, np.int32)
    run_plan(plan, {"target": target})
    np.testing.assert_array_equal(target, -1)
    space = np.arange(32, dtype=np.int32)
    run_plan(plan, {"target": target, "space": space})
    np.testing.assert_array_equal(target, space)


def test_workspace_that_is_too_small_is_refused() -> None:
    plan = plan_of(COPY, ("space", "target"), workspaces=(Workspace("space", "int32", 32 * 4),))
    with pytest.raises(BadLaunch, match=r"'space' has 124 bytes, 128 are needed"):
        run_plan(plan, {"target": np.zeros(32, np.int32), "space": np.zeros(31, np.int32)})


def test_strided_arrays_are_written_in_place() -> None:
    memory = np.zeros((32, 2), np.int32)
    run_plan(
        plan_of(COPY, ("source", "target")),
        {"source": np.arange(32, dtype=np.int32), "target": memory[:, 1]},
    )
    np.testing.assert_array_equal(memory[:, 1], np.arange(32))
    np.testing.assert_array_equal(memory[:, 0], 0)


def test_missing_array_is_named() -> None:
    with pytest.raises(BadLaunch, match=r"no array for parameter 'target'; given: \['source'\]"):
        run_plan(plan_of(COPY, ("source", "target")), {"source": np.zeros(32, np.int32)})


def test_failed_run_changes_no_array() -> None:
    target = np.zeros(31, np.int32)
    with pytest.raises(MemoryOverrun, match=r"buffer 'target' \(124 bytes\): 4 bytes after"):
        run_plan(
            plan_of(COPY, ("source", "target")),
            {"source": np.ones(32, np.int32), "target": target},
        )
    np.testing.assert_array_equal(target, 0)


def tickets(order: str, seed: int = 0, resident_blocks: int | None = None) -> list[int]:
    """In which order the threads of four blocks came to an atomic."""
    drawn = np.zeros(4 * 8, np.int32)
    run_plan(
        plan_of(TICKETS, ("counter", "tickets"), grid=(4, 1, 1), block=(8, 1, 1)),
        {"counter": np.zeros(1, np.int32), "tickets": drawn},
        order,
        seed,
        resident_blocks,
    )
    return list(drawn)


def test_orders_are_what_they_are_called() -> None:
    assert tickets("forward") == list(range(32))
    assert tickets("reverse") == list(range(31, -1, -1))
    for order in ("random", "priority"):
        assert sorted(tickets(order)) == list(range(32))
        assert tickets(order, seed=1) == tickets(order, seed=1)
        assert tickets(order, seed=1) != tickets(order, seed=2)


def test_resident_blocks_bound_how_far_blocks_mix() -> None:
    one_at_a_time = np.array(tickets("random", resident_blocks=1)).reshape(4, 8) // 8
    assert all(len(set(block)) == 1 for block in one_at_a_time)
    all_at_once = np.array(tickets("random", resident_blocks=4)).reshape(4, 8) // 8
    assert any(len(set(block)) > 1 for block in all_at_once)


def test_waiting_for_a_block_needs_it_resident() -> None:
    source = TICKETS.replace(
        "tickets[thread] =",
        "while (blockIdx.x == 0 && atomicAdd(counter, 0) < 8) {}\n  tickets[thread] =",
    )
    plan = plan_of(source, ("counter", "tickets"), grid=(2, 1, 1), block=(8, 1, 1))
    arrays = {"counter": np.zeros(1, np.int32), "tickets": np.zeros(16, np.int32)}
    with pytest.raises(Deadlock, match="polls an atomic that no running thread changes"):
        run_plan(plan, arrays)
    run_plan(plan, arrays, resident_blocks=2)
    assert sorted(arrays["tickets"]) == list(range(16))


@pytest.mark.parametrize("order", ORDERS)
def test_last_arriver_on_the_same_buffers_three_times(order: str) -> None:
    arrays = last_arriver_arrays(5)
    for seed in range(3):
        arrays["total"][:] = np.nan
        run_plan(last_arriver_plan(5), arrays, order, seed)
        assert arrays["total"][0] == arrays["data"].sum()
        assert arrays["counter"][0] == 0


@pytest.mark.parametrize("order", ["random", "priority"])
def test_seeds_find_the_barrier_that_fixed_orders_miss(order: str) -> None:
    plan = last_arriver_plan(5)
    before_counter = without(plan, BARRIER, 1)
    assert len(positions(plan, BARRIER)) == 3

    def is_right(order: str, seed: int) -> bool:
        arrays = last_arriver_arrays(5)
        run_plan(before_counter, arrays, order, seed)
        return bool(arrays["total"][0] == arrays["data"].sum())

    assert is_right("forward", 0) and is_right("reverse", 0)
    wrong = sum(not is_right(order, seed) for seed in range(20))
    assert wrong >= 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": "sideways"}, r"order must be one of \['forward', .*\], got 'sideways'"),
        ({"seed": -1}, "seed must not be negative, got -1"),
        ({"resident_blocks": 0}, "resident_blocks must be positive, got 0"),
    ],
)
def test_bad_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(BadLaunch, match=message):
        run_plan(plan_of(COPY, ("source", "target")), {}, **options)


def test_launches_that_do_not_fit_the_source_are_refused() -> None:
    arrays = {name: np.zeros(32, np.int32) for name in ("source", "target")}
    with pytest.raises(BadLaunch, match="has 2 parameters, the launch gives 1 arguments"):
        run_plan(plan_of(COPY, ("source",)), arrays)
    with pytest.raises(BadLaunch, match="the source has no kernel 'other'"):
        run_plan(plan_of(COPY, ("source", "target"), kernel="other"), arrays)
    plan = plan_of(COPY, ("source", "target"))
    wide = replace(plan, launches=(replace(plan.launches[0], block=(32, 33, 1)),))
    with pytest.raises(BadLaunch, match="a block of 1056 threads; CUDA allows 1 to 1024"):
        run_plan(wide, arrays)
