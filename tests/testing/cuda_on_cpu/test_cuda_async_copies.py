# SPDX-License-Identifier: Apache-2.0
"""cp.async: copies happen as late as is legal, and their target is undefined until then."""

from __future__ import annotations

import functools

import cuda_kernels
import numpy as np
import pytest
import tvm
from cuda_kernels import BARRIER, TARGET, line_of, plan_of, positions, without
from tvm.script import tirx as T

from tvm_streamk.testing.cuda_on_cpu import ORDERS, find_races, run_plan
from tvm_streamk.testing.launch_plan import LaunchPlan, plan_launches

pytestmark = cuda_kernels.needs_compiler

PANELS, THREADS, LANES = 6, 16, 4


@T.prim_func(s_tir=True)
def pipelined_sums(A: T.Buffer((6, 64), "float32"), B: T.Buffer((64,), "float32")):
    for _ in T.thread_binding(1, "blockIdx.x"):
        for thread in T.thread_binding(16, "threadIdx.x"):
            with T.sblock("sums"):
                vt = T.axis.spatial(16, thread)
                sums = T.sblock_alloc_buffer((4,), "float32", scope="local")
                for i in range(4):
                    sums[i] = T.float32(0)
                for k in T.serial(
                    6,
                    annotations={
                        "software_pipeline_stage": [0, 1],
                        "software_pipeline_order": [0, 1],
                        "software_pipeline_async_stages": [0],
                    },
                ):
                    with T.sblock("panel"):
                        vk = T.axis.opaque(6, k)
                        # Allocated here, the pipeline gives each of its stages a copy.
                        panel = T.sblock_alloc_buffer((64,), "float32", scope="shared")
                        # The whole panel, not the thread's part: TVM compares these regions to
                        # see whether the stages need copies of the buffer.
                        with T.sblock("copy"):
                            T.reads(A[vk, 0:64])
                            T.writes(panel[0:64])
                            for i in T.vectorized(4):
                                panel[vt * 4 + i] = A[vk, vt * 4 + i]
                        with T.sblock("add"):
                            T.reads(panel[0:64], sums[0:4])
                            T.writes(sums[0:4])
                            for i in range(4):
                                sums[i] = sums[i] + panel[63 - (vt * 4 + i)]
                for i in range(4):
                    B[vt * 4 + i] = sums[i]


@functools.cache
def pipelined_plan() -> LaunchPlan:
    with tvm.transform.PassContext(config={"tirx.use_async_copy": True}):
        arrays = [np.zeros((PANELS, 64), np.float32), np.zeros(64, np.float32)]
        return plan_launches(pipelined_sums, arrays, TARGET)


def pipelined_arrays() -> dict[str, np.ndarray]:
    return {
        "A": cuda_kernels.integers((PANELS, 64), np.float32, seed=1),
        "B": np.full(64, np.nan, np.float32),
    }


def is_right(plan: LaunchPlan, order: str) -> bool:
    arrays = pipelined_arrays()
    run_plan(plan, arrays, order=order)
    return bool(np.array_equal(arrays["B"], arrays["A"].sum(axis=0)[::-1]))


@pytest.mark.parametrize("order", ORDERS)
def test_pipeline_of_tvm_is_right(order: str) -> None:
    assert "cp.async.cg.shared.global [%0], [%1], %2;" in pipelined_plan().source
    assert is_right(pipelined_plan(), order)


def test_every_missing_wait_shows_in_every_order() -> None:
    plan = pipelined_plan()
    waits = {line.strip() for line in plan.source.splitlines() if "wait_group_" in line}
    calls = [line for line in waits if line.endswith("();")]
    assert len(calls) == 2
    for call in calls:
        for number in range(len(positions(plan, "  " + call))):
            broken = without(plan, call, number)
            assert not any(is_right(broken, order) for order in ORDERS), call


def run_single_copy(middle: str, end: str = "") -> np.ndarray:
    """Copy 32 words to shared memory that holds 1000 + i, and read them after `middle`."""
    source = f"""
#include <cuda.h>
#include <cstdint>
extern "C" __global__ void kernel(int* source, int* out) {{
  __shared__ alignas(16) int shared[32];
  shared[threadIdx.x] = 1000 + (int)threadIdx.x;
  unsigned address = __cvta_generic_to_shared(shared + threadIdx.x);
  int predicate = threadIdx.x < 16;
  {middle}
  out[threadIdx.x] = shared[threadIdx.x];
  {end}
}}
"""
    arrays = {"source": np.arange(32, dtype=np.int32), "out": np.zeros(32, np.int32)}
    run_plan(plan_of(source, ("source", "out")), arrays)
    return arrays["out"]


COPY = """asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"
  :: "r"(address), "l"(source + threadIdx.x), "n"(4));"""
COMMIT = 'asm volatile("cp.async.commit_group;" : : );'
WAIT = 'asm volatile("cp.async.wait_group {};" : : : "memory");'


def test_target_of_a_copy_is_poisoned_from_issue_to_wait() -> None:
    assert set(run_single_copy("")) == set(range(1000, 1032))
    assert set(run_single_copy(COPY)) == {-1}
    assert set(run_single_copy(COPY + COMMIT)) == {-1}
    assert set(run_single_copy(COPY + COMMIT + WAIT.format(1))) == {-1}
    np.testing.assert_array_equal(run_single_copy(COPY + COMMIT + WAIT.format(0)), np.arange(32))


def test_groups_are_waited_for_in_order() -> None:
    empty_group_after = COPY + COMMIT + COMMIT + WAIT.format(1)
    np.testing.assert_array_equal(run_single_copy(empty_group_after), np.arange(32))
    uncommitted = COMMIT + COPY + WAIT.format(0)
    assert set(run_single_copy(uncommitted)) == {-1}
    wait_all = uncommitted + 'asm volatile("cp.async.wait_all;" : : : "memory");'
    np.testing.assert_array_equal(run_single_copy(wait_all), np.arange(32))


def test_source_size_fills_up_with_zeros() -> None:
    partial = COPY.replace("%2;", "%2, %3;").replace('"n"(4)', '"n"(4), "r"(predicate * 4)')
    found = run_single_copy(partial + COMMIT + WAIT.format(0))
    np.testing.assert_array_equal(found, np.where(np.arange(32) < 16, np.arange(32), 0))


# The text that TVM emits for a copy under a condition.
PREDICATED = """__asm__ __volatile__(
    "{\\n"
    " .reg .pred p;\\n"
    " setp.eq.u32 p, %3, 1;\\n"
    " @p cp.async.ca.shared.global [%0], [%1], %2;\\n"
    " @!p st.shared.u32 [%0], {%4};\\n"
    "}\\n"
    :: "r"(address), "l"(source + threadIdx.x), "n"(4), "r"(predicate), "r"(0)
  );"""


def test_predicated_copy() -> None:
    found = run_single_copy(PREDICATED + COMMIT + WAIT.format(0))
    np.testing.assert_array_equal(found, np.where(np.arange(32) < 16, np.arange(32), 0))


def test_sanitizer_sees_the_copies(needs_sanitizer: None) -> None:
    plan = pipelined_plan()
    assert find_races(plan, pipelined_arrays()) == []
    assert len(positions(plan, BARRIER)) == 3
    # Without the barrier after a wait, others read what this thread's wait has only just copied.
    races = find_races(without(plan, BARRIER, 1), pipelined_arrays())
    wait, read = line_of(plan, "cp.async.wait_group 1;"), line_of(plan, "panel_ptr[((((")
    assert (wait, read) in [tuple(sorted(race.lines)) for race in races]
    assert all("shared array 'panel_ptr' of block 0" in race.memory for race in races)
