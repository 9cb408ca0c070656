# SPDX-License-Identifier: Apache-2.0
"""After any valid sequence of TVM's primitives, ``stream_k`` refuses by name or is right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import tvm
from helpers import check_numerics, state_of
from hypothesis import HealthCheck, event, given, note, reject, settings
from hypothesis import strategies as st
from random_nests import CUDA
from random_primitives import (
    CPU_PRIMITIVES,
    PRIMITIVES,
    PrimitiveBroken,
    Step,
    applied,
    block_names,
)
from schedules import LLVM, GpuTiling, fresh, hand_cpu, hand_gpu
from tvm import te, tirx
from tvm.s_tir import Schedule
from workloads import Workload, gemm, gemv

from tvm_streamk import StreamKError
from tvm_streamk.testing import integer_inputs

SLOW = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))
SOME = settings(SLOW, max_examples=60, derandomize=True)
MANY = settings(SLOW, max_examples=1000)
MOST_STEPS = 8
SMALL = GpuTiling(tile=(8, 16), per_thread=(2, 2), vthreads=(1, 2))


def with_neighbours() -> Workload:
    """D = 2 C + 1 with C = (A + 1) @ B: a producer, the product, a consumer."""
    left, right = te.placeholder((9, 14), name="A"), te.placeholder((14, 10), name="B")
    raised = te.compute(left.shape, lambda i, k: left[i, k] + tirx.const(1, "float32"), name="A1")
    k = te.reduce_axis((0, 14), name="k")
    product = te.compute((9, 10), lambda i, j: te.sum(raised[i, k] * right[k, j], axis=k), name="C")
    result = te.compute(
        (9, 10), lambda i, j: product[i, j] * tirx.const(2, "float32") + 1.0, name="D"
    )
    values = integer_inputs((9, 14)), integer_inputs((14, 10), seed=1)
    expected = 2 * ((values[0] + 1) @ values[1]) + 1
    return Workload(te.create_prim_func([left, right, result]), values, expected)


def two_reductions() -> Workload:
    """C = the row sums of the largest entries: one reduction over another's result."""
    source = te.placeholder((6, 5, 12), name="A")
    k, j = te.reduce_axis((0, 12), name="k"), te.reduce_axis((0, 5), name="j")
    largest = te.compute((6, 5), lambda i, j: te.max(source[i, j, k], axis=k), name="largest")
    sums = te.compute((6,), lambda i: te.sum(largest[i, j], axis=j), name="C")
    values = integer_inputs((6, 5, 12))
    expected = values.max(axis=2).sum(axis=1)
    return Workload(te.create_prim_func([source, sums]), (values,), expected)


PLAIN = gemm(9, 10, 14)
STARTS: dict[str, tuple[Workload, Callable[[Workload], Schedule]]] = {
    "plain product": (PLAIN, fresh),
    "matrix times vector": (gemv(10, 14), fresh),
    "with neighbours": (with_neighbours(), fresh),
    "two reductions": (two_reductions(), fresh),
    "tiled": (PLAIN, lambda workload: hand_cpu(workload, (4, 4), 4)),
}
GPU_STARTS: dict[str, tuple[Workload, Callable[[Workload], Schedule]]] = {
    "tiled, init inside": (
        gemm(20, 40, 16),
        lambda workload: hand_gpu(workload, GpuTiling((8, 16), 8, (2, 2), (1, 2), False)),
    ),
    "tiled": (gemm(20, 40, 16), lambda workload: hand_gpu(workload, SMALL)),
}


def steps(primitives: Sequence[str]) -> Any:
    numbers = st.tuples(*[st.integers(0, 9)] * 3)
    return st.lists(st.builds(Step, st.sampled_from(primitives), numbers), max_size=MOST_STEPS)


def is_right(module: Any, workload: Workload, target: Any) -> bool:
    """Whether TVM alone builds the schedule, to the right numbers."""
    try:
        check_numerics(module, workload, target)
    except (AssertionError, RuntimeError, tvm.error.InternalError, ValueError, TypeError):
        return False
    return True


def check_refused_or_right(data: Any, starts: Any, primitives: Sequence[str], target: Any) -> None:
    workload, make = starts[data.draw(st.sampled_from(sorted(starts)))]
    schedule = make(workload)
    try:
        done = applied(schedule, data.draw(steps(primitives)))
    except PrimitiveBroken:
        reject()
    block = data.draw(st.sampled_from(block_names(schedule)))
    arguments = {"num_workers": data.draw(st.integers(1, 9))}
    arguments["merge"] = data.draw(st.sampled_from(["auto", "two_phase", "last_arriver"]))
    before = state_of(schedule)
    plain = schedule.copy()
    try:
        schedule.stream_k(block, **arguments)
    except StreamKError as error:
        event(type(error).__name__)
        assert state_of(schedule) == before
        return
    event("accepted")
    note(f"{done}\n{before[0]}\nstream_k({block!r}, **{arguments})\n{schedule.mod.script()}")
    try:
        check_numerics(schedule.mod, workload, target)
    except Exception:
        if is_right(plain.mod, workload, target):
            raise
        event("TVM alone cannot build it or gets it wrong")


@SOME
@given(st.data())
def test_any_cpu_schedule(data: Any) -> None:
    check_refused_or_right(data, STARTS, CPU_PRIMITIVES, LLVM)


@settings(SOME, max_examples=30)
@given(st.data())
def test_any_gpu_schedule(data: Any) -> None:
    check_refused_or_right(data, GPU_STARTS, tuple(PRIMITIVES), CUDA)


@pytest.mark.long
@MANY
@given(st.data())
def test_many_cpu_schedules(data: Any) -> None:
    check_refused_or_right(data, STARTS, CPU_PRIMITIVES, LLVM)


@pytest.mark.long
@settings(MANY, max_examples=500)
@given(st.data())
def test_many_gpu_schedules(data: Any) -> None:
    check_refused_or_right(data, GPU_STARTS, tuple(PRIMITIVES), CUDA)
