# SPDX-License-Identifier: Apache-2.0
"""Reductions other than sums: exact through a workspace, refused where they cannot be cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cuda_runs
import numpy as np
import pytest
import schedules
from cuda_runs import check_orders, kernel_of
from helpers import check_numerics, refused
from schedules import LLVM, OPENCL
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.script import tirx as T
from workloads import Workload

from tvm_streamk import errors
from tvm_streamk.testing import integer_inputs, poisoned

ROWS, DEPTH = 40, 56


def reduction(combine: Callable[[Any, Any], Any], identity: Any, dtype: str) -> Any:
    """C = all entries of a row of A, combined."""
    reducer = te.comm_reducer(combine, lambda dtype: tirx.const(identity, dtype))
    source = te.placeholder((ROWS, DEPTH), dtype, name="A")
    k = te.reduce_axis((0, DEPTH), name="k")
    result = te.compute((ROWS,), lambda i: reducer(source[i, k], axis=k), name="C")
    return te.create_prim_func([source, result])


LOWEST, HIGHEST, ALL_BITS = -(2**31), 2**31 - 1, -1
LARGEST = float(np.finfo("float32").max)

REDUCTIONS: dict[str, tuple[Callable[[Any, Any], Any], Any, str, Any]] = {
    "max": (lambda a, b: tirx.max(a, b), LOWEST, "int32", np.maximum),
    "min": (lambda a, b: tirx.min(a, b), HIGHEST, "int32", np.minimum),
    "max of floats": (lambda a, b: tirx.max(a, b), -LARGEST, "float32", np.maximum),
    "min of floats": (lambda a, b: tirx.min(a, b), LARGEST, "float32", np.minimum),
    "product": (lambda a, b: a * b, 1, "int32", np.multiply),
    "product of floats": (lambda a, b: a * b, 1.0, "float32", np.multiply),
    "bitwise and": (lambda a, b: a & b, ALL_BITS, "int32", np.bitwise_and),
    "bitwise or": (lambda a, b: a | b, 0, "int32", np.bitwise_or),
    "bitwise exclusive or": (lambda a, b: a ^ b, 0, "int32", np.bitwise_xor),
    "and": (lambda a, b: tirx.And(a, b), True, "bool", np.logical_and),
    "or": (lambda a, b: tirx.Or(a, b), False, "bool", np.logical_or),
}


def values_for(name: str, dtype: str) -> np.ndarray:
    """Data on which the reduction neither is constant nor leaves what is exact."""
    if "product" in name:
        values = np.ones((ROWS, DEPTH), dtype)
        where = np.random.default_rng(0).integers(0, DEPTH, (ROWS, 8))
        signs = integer_inputs((ROWS, 8), "int32", seed=1, low=-2, high=3)
        np.put_along_axis(values, where, np.where(signs == 0, 3, signs), axis=1)
        return values
    if dtype == "bool":
        values = integer_inputs((ROWS, DEPTH), "bool")
        values[::3] = name == "and"  # rows that are all true, or all false
        return values
    low, high = (-50, 50) if name[:3] in ("max", "min") else (LOWEST, HIGHEST)
    values = integer_inputs((ROWS, DEPTH), dtype, low=low, high=high)
    bits_of_the_row = integer_inputs((ROWS, 1), "int32", seed=2, low=LOWEST, high=HIGHEST)
    if name == "bitwise and":
        values |= bits_of_the_row
    if name == "bitwise or":
        values &= bits_of_the_row
    return values


def workload_of(name: str) -> Workload:
    """A row reduction with its data and numpy's answer."""
    combine, identity, dtype, ufunc = REDUCTIONS[name]
    values = values_for(name, dtype)
    expected = ufunc.reduce(values, axis=1).astype(values.dtype)
    assert len(np.unique(expected)) > 1
    return Workload(reduction(combine, identity, dtype), (values,), expected)


@pytest.mark.parametrize("workers", [20])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_two_phases_on_a_cpu(name: str, workers: int) -> None:
    workload = workload_of(name)
    schedule = schedules.fresh(workload)
    schedule.stream_k("C", num_workers=workers)
    check_numerics(schedule.mod, workload, LLVM)


@pytest.mark.parametrize(
    ("name", "merge"),
    [
        *((name, "last_arriver") for name in REDUCTIONS),
        *((name, "two_phase") for name in ("max", "product of floats", "and")),
    ],
)
def test_on_opencl(name: str, merge: str) -> None:
    workload = workload_of(name)
    schedule = schedules.hand_gpu_rows(workload)
    plan = schedule.stream_k("C", num_workers=8, merge=merge)
    assert plan.most_peers == 4
    check_numerics(schedule.mod, workload, OPENCL)


@cuda_runs.needs_compiler
@pytest.mark.parametrize("name", ["max of floats", "product", "and"])
def test_cuda_source_in_every_order(name: str) -> None:
    workload = workload_of(name)
    schedule = schedules.hand_gpu_rows(workload)
    schedule.stream_k("C", num_workers=8, merge="last_arriver")
    check_orders(kernel_of(schedule.mod, workload.inputs, [workload.expected]))


@pytest.mark.parametrize("name", ["max", "product", "bitwise or"])
def test_atomics_only_add(name: str) -> None:
    combine, identity, dtype, _ = REDUCTIONS[name]
    function = reduction(combine, identity, dtype)
    schedule = schedules.hand_gpu_rows(Workload(function, (), poisoned((ROWS,), dtype)))
    word = name.replace(" ", "_")
    message = f'merge="atomic" can add, but the reduction is a {word}.* Try: merge="two_phase"'
    with refused(schedule, errors.AtomicNeedsSum, message):
        schedule.stream_k("C", num_workers=8, merge="atomic")


# -- what cannot be cut ----------------------------------------------------------------------------


def argmax() -> Any:
    """Position and value of the largest entry of each row, as TVM writes it: one block, a pair."""

    def combine(left: Any, right: Any) -> tuple[Any, Any]:
        index = tirx.Select(left[1] >= right[1], left[0], right[0])
        return index, tirx.max(left[1], right[1])

    def identity(index_dtype: str, value_dtype: str) -> tuple[Any, Any]:
        return tirx.const(-1, index_dtype), tirx.min_value(value_dtype)

    reducer = te.comm_reducer(combine, identity, name="argmax")
    indices = te.placeholder((ROWS, DEPTH), "int32", name="I")
    values = te.placeholder((ROWS, DEPTH), "float32", name="A")
    k = te.reduce_axis((0, DEPTH), name="k")
    outputs = te.compute(
        (ROWS,), lambda i: reducer((indices[i, k], values[i, k]), axis=k), name="C"
    )
    return te.create_prim_func([indices, values, *outputs])


def test_argmax_is_refused_with_its_reason() -> None:
    schedule = Schedule(argmax())
    message = r"block .C.: its update `v_C_v0: .*` is not of the form acc\[i\] = acc\[i\] op value"
    with refused(schedule, errors.ReducerNotSupported, message):
        schedule.stream_k("C", num_workers=3)


@T.prim_func(s_tir=True)
def largest_of_at_least_seven(A: T.Buffer((40, 56), "int32"), C: T.Buffer((40,), "int32")):
    for i, k in T.grid(40, 56):
        with T.sblock("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = 7
            C[vi] = T.max(C[vi], A[vi, vk])


def test_start_that_is_no_identity_but_may_be_counted_twice() -> None:
    """The largest of 7 and the row: every segment may start from 7."""
    values = integer_inputs((ROWS, DEPTH), "int32", low=-60, high=9)
    values[::2] -= 10
    expected = np.maximum(values.max(axis=1), 7).astype(np.int32)
    schedule = Schedule(largest_of_at_least_seven)
    schedule.stream_k("C", num_workers=7)
    check_numerics(schedule.mod, Workload(largest_of_at_least_seven, (values,), expected), LLVM)


@T.prim_func(s_tir=True)
def product_from_two(A: T.Buffer((40, 56), "int32"), C: T.Buffer((40,), "int32")):
    for i, k in T.grid(40, 56):
        with T.sblock("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = 2
            C[vi] = C[vi] * A[vi, vk]


def test_start_that_would_count_once_per_peer() -> None:
    schedule = Schedule(product_from_two)
    with refused(schedule, errors.ReducerNotSupported, "2"):
        schedule.stream_k("C", num_workers=7)
