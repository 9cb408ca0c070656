# SPDX-License-Identifier: Apache-2.0
"""Races under ThreadSanitizer: planted ones are found by line, and right kernels are clean."""

from __future__ import annotations

from dataclasses import replace

import cuda_kernels
import numpy as np
import pytest
from cuda_kernels import (
    BARRIER,
    last_arriver_arrays,
    last_arriver_plan,
    line_of,
    matmul_arrays,
    matmul_plan,
    plan_of,
    positions,
    with_text,
    without,
)

from tvm_streamk.testing.cuda_on_cpu import (
    MOST_THREADS,
    BarrierDivergence,
    Deadlock,
    InvalidAccess,
    Race,
    TooManyThreads,
    find_races,
)

pytestmark = [cuda_kernels.needs_compiler, pytest.mark.usefixtures("needs_sanitizer")]

FENCE = "__threadfence();"
FLOAT32 = (64, 32, 32, "float32", "float32")


def lines_of(races: list[Race]) -> set[tuple[int, ...]]:
    """Pairs of lines, the smaller one first."""
    return {tuple(sorted(race.lines)) for race in races}


def test_matmul_is_clean_and_each_missing_barrier_is_found() -> None:
    plan, arrays = matmul_plan(*FLOAT32), matmul_arrays(*FLOAT32)
    assert find_races(plan, arrays) == []
    copy = line_of(plan, "*(float2*)(A_reindex_shared_ptr")
    assert len(positions(plan, BARRIER)) == 2
    for number in range(2):
        races = find_races(without(plan, BARRIER, number), arrays)
        assert races
        assert all("shared array" in race.memory for race in races)
        assert any(copy in race.lines for race in races), number
    assert np.isnan(arrays["C"]).all()


def test_last_arriver_is_clean_in_every_order() -> None:
    for order in ("forward", "priority"):
        assert find_races(last_arriver_plan(4), last_arriver_arrays(4), order) == []


@pytest.mark.parametrize(
    ("text", "number", "first", "second"),
    [
        (BARRIER, 0, "shared[threadIdx.x] =", "shared[(threadIdx.x + 1) % 32]"),
        (BARRIER, 1, "parts[blockIdx.x * 32", "sum = sum + parts[i]"),
        (BARRIER, 2, "arrived[0] = atomicAdd", "if (arrived[0] =="),
        (FENCE, 0, "parts[blockIdx.x * 32", "sum = sum + parts[i]"),
        (FENCE, 1, "parts[blockIdx.x * 32", "sum = sum + parts[i]"),
    ],
    ids=["barrier 0", "barrier 1", "barrier 2", "release fence", "acquire fence"],
)
def test_what_a_missing_barrier_or_fence_leaves_unordered(
    text: str, number: int, first: str, second: str
) -> None:
    plan = last_arriver_plan(4)
    races = find_races(without(plan, text, number), last_arriver_arrays(4))
    assert (line_of(plan, first), line_of(plan, second)) in lines_of(races)


def test_store_after_the_fence_is_not_published() -> None:
    plan = with_text(
        last_arriver_plan(4), FENCE, "__threadfence(); parts[blockIdx.x * 32] = 1.0f;", 0
    )
    races = find_races(plan, last_arriver_arrays(4))
    assert (line_of(plan, FENCE, 0), line_of(plan, "sum = sum + parts[i]")) in lines_of(races)


def test_fence_of_another_thread_does_not_count() -> None:
    """All threads fence before the barrier, but the one with the atomic does not after it."""
    plan = without(last_arriver_plan(4), FENCE, 0)
    early = with_text(plan, BARRIER, f"{FENCE} {BARRIER}", 1)
    assert find_races(early, last_arriver_arrays(4)) != []


def test_plain_store_to_a_counter_that_others_still_count() -> None:
    plan = last_arriver_plan(4)
    early_reset = with_text(plan, "if (arrived[0] == gridDim.x - 1 &&", "if (arrived[0] == 1 &&", 0)
    races = find_races(early_reset, last_arriver_arrays(4))
    reset, count = line_of(plan, "counter[0] = 0;"), line_of(plan, "arrived[0] = atomicAdd")
    found = [race for race in races if tuple(sorted(race.lines)) == (count, reset)]
    assert {access.kind for access in found[0].accesses} == {"write", "atomic write"}
    assert found[0].memory == "counter, byte 0"


def test_reset_of_a_counter_by_who_has_seen_all_counts() -> None:
    """The atomics of others come before what follows an atomic that has observed them."""
    source = """
#include <cuda.h>
extern "C" __global__ void kernel(int* counter) {
  int before = atomicAdd(counter, 1);
  if (before == gridDim.x - 1) {
    counter[0] = 0;
  }
}
"""
    plan = plan_of(source, ("counter",), grid=(3, 1, 1), block=(1, 1, 1))
    arrays = {"counter": np.zeros(1, np.int32)}
    assert find_races(plan, arrays) == []
    early = with_text(plan, "gridDim.x - 1", "0")
    assert lines_of(find_races(early, arrays)) == {(4, 6)}


def test_first_word_of_a_buffer_is_watched_like_all_others() -> None:
    source = """
#include <cuda.h>
extern "C" __global__ void kernel(int* data) {
  data[2 * threadIdx.y] = threadIdx.x;
  data[2 * threadIdx.y + 1] = 0;
}
"""
    plan = plan_of(source, ("data",), block=(2, 3, 1))
    races = find_races(plan, {"data": np.zeros(6, np.int32)})
    assert lines_of(races) == {(4, 4), (5, 5)}


def test_report_names_threads_memory_and_source_lines() -> None:
    source = """
#include <cuda.h>
extern "C" __global__ void kernel(int* data) {
  data[1] = threadIdx.x;
}
"""
    plan = plan_of(source, ("data",), block=(2, 1, 1))
    (race,) = find_races(plan, {"data": np.zeros(2, np.int32)})
    assert race.lines == (4, 4)
    assert race.memory == "data, byte 4"
    assert {access.thread for access in race.accesses} == {
        "block (0,0,0) thread (0,0,0)",
        "block (0,0,0) thread (1,0,0)",
    }
    assert "race on data, byte 4:" in str(race)
    second = "write in line 4 by block (0,0,0) thread (1,0,0)\n      data[1] = threadIdx.x;"
    assert second in str(race)


def test_shuffles_order_no_memory_but_syncwarp_does() -> None:
    source = """
#include <cuda.h>
extern "C" __global__ void kernel(int* data, int* out) {
  data[threadIdx.x] = threadIdx.x;
  int lane = __shfl_xor_sync(0xffffffffu, (int)threadIdx.x, 1);
  out[threadIdx.x] = data[lane];
}
"""
    arrays = {name: np.zeros(32, np.int32) for name in ("data", "out")}
    plan = plan_of(source, tuple(arrays))
    assert lines_of(find_races(plan, arrays)) == {(4, 6)}
    ordered = with_text(plan, "int lane", "__syncwarp(); int lane")
    assert find_races(ordered, arrays) == []


FLAG = """
#include <cuda.h>
extern "C" __global__ void kernel(int* data, int* flag) {
  if (blockIdx.x == 0) {
    data[0] = 1;
    __threadfence();
    ((volatile int*)flag)[0] = 1;
  } else {
    while (((volatile int*)flag)[0] == 0) {}
    __threadfence();
    data[1] = data[0];
  }
}
"""
PTX_FLAG = """
#include <cuda.h>
extern "C" __global__ void kernel(int* data, int* flag) {
  if (blockIdx.x == 0) {
    data[0] = 1;
    asm volatile("st.release.gpu.global.b32 [%0], %1;" : : "l"(flag), "r"(1) : "memory");
  } else {
    int seen = 0;
    while (seen == 0) {
      asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
    }
    data[1] = data[0];
  }
}
"""


@pytest.mark.parametrize(
    ("source", "weaker"),
    [
        (FLAG, ("__threadfence();", "", 0)),
        (FLAG, ("__threadfence();", "", 1)),
        (PTX_FLAG, ("st.release.gpu", "st.relaxed.gpu", 0)),
        (PTX_FLAG, ("ld.acquire.gpu", "ld.relaxed.gpu", 0)),
    ],
    ids=["release fence", "acquire fence", "release store", "acquire load"],
)
def test_flag_between_blocks(source: str, weaker: tuple[str, str, int]) -> None:
    arrays = {name: np.zeros(2, np.int32) for name in ("data", "flag")}
    plan = plan_of(source, tuple(arrays), grid=(2, 1, 1), block=(1, 1, 1))
    assert find_races(plan, arrays, resident_blocks=2) == []
    old, new, number = weaker
    races = find_races(with_text(plan, old, new, number), arrays, resident_blocks=2)
    assert lines_of(races) == {(line_of(plan, "data[0] = 1;"), line_of(plan, "data[1] = data[0];"))}


def test_launches_are_ordered() -> None:
    plan = last_arriver_plan(4)
    again = replace(plan, launches=plan.launches * 3)
    assert find_races(again, last_arriver_arrays(4)) == []


def test_more_threads_than_the_sanitizer_can_tell_apart() -> None:
    plan = last_arriver_plan(MOST_THREADS // 32 + 1)
    with pytest.raises(TooManyThreads, match=rf"kernel 'kernel' has {MOST_THREADS + 16} threads"):
        find_races(plan, last_arriver_arrays(1))


def test_faults_are_the_errors_of_run_plan() -> None:
    plan, arrays = last_arriver_plan(2), last_arriver_arrays(2)
    with pytest.raises(BarrierDivergence, match="its threads wait at different barriers"):
        find_races(with_text(plan, BARRIER, f"if (threadIdx.x < 4) {BARRIER}", 0), arrays)
    line = line_of(plan, "counter[0] = 0;")
    wild = with_text(plan, "counter[0] = 0;", "counter[1L << 40] = 0;")
    with pytest.raises(InvalidAccess, match=rf"a thread crashes in line {line}\n  {line}: counter"):
        find_races(wild, arrays)
    waiting = with_text(plan, "__threadfence();", "while (atomicAdd(counter, 0) < 9) {}", 0)
    with pytest.raises(Deadlock, match="polls an atomic that no running thread changes"):
        find_races(waiting, arrays)
