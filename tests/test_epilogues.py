# SPDX-License-Identifier: Apache-2.0
"""Whatever follows the panel loop runs once per tile, on the final sum, under every merge."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import cuda_runs
import numpy as np
import pytest
import schedules
import tvm
from cuda_runs import BARRIER, Kernel, check_orders, kernel_of, kernel_text
from helpers import check_numerics, refused
from schedules import OPENCL, GpuTiling
from tvm import te, tirx
from tvm.s_tir import Schedule
from workloads import Workload

from tvm_streamk import errors
from tvm_streamk.testing import integer_inputs

SMALL = GpuTiling(tile=(8, 16), per_thread=(2, 2), vthreads=(1, 2))
ROWS, COLUMNS, DEPTH = 20, 37, 44
MERGES = ("last_arriver", "two_phase")


def sums(rows: int, columns: int, depth: int, dtype: str = "float32") -> tuple[Any, Any, Any]:
    """A, B and C = A @ B, with sums in float32."""
    left = te.placeholder((rows, depth), dtype, name="A")
    right = te.placeholder((depth, columns), dtype, name="B")
    k = te.reduce_axis((0, depth), name="k")
    product = te.compute(
        (rows, columns),
        lambda i, j: te.sum(left[i, k].astype("float32") * right[k, j].astype("float32"), axis=k),
        name="C",
    )
    return left, right, product


def operands(dtype: str = "float32") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A and B and their product, whole numbers that are exact in float16 too."""
    left = integer_inputs((ROWS, DEPTH), dtype, low=-2, high=3)
    right = integer_inputs((DEPTH, COLUMNS), dtype, seed=1, low=-2, high=3)
    return left, right, left.astype("float32") @ right.astype("float32")


# -- one consumer ----------------------------------------------------------------------------------


def bias_relu_half(dtype: str) -> Workload:
    """D = float16(max(A @ B + bias, 0)) with a ragged number of columns."""
    left, right, product = sums(ROWS, COLUMNS, DEPTH, dtype)
    bias = te.placeholder((COLUMNS,), name="bias")
    output = te.compute(
        (ROWS, COLUMNS),
        lambda i, j: te.max(product[i, j] + bias[j], tirx.const(0, "float32")).astype("float16"),
        name="D",
    )
    a, b, c = operands(dtype)
    added = np.arange(COLUMNS, dtype="float32") - 18
    expected = np.maximum(c + added, 0).astype("float16")
    assert 0 < np.count_nonzero(expected) < expected.size
    return Workload(te.create_prim_func([left, right, bias, output]), (a, b, added), expected)


def residual() -> Workload:
    """D = A @ B + R."""
    left, right, product = sums(ROWS, COLUMNS, DEPTH)
    other = te.placeholder((ROWS, COLUMNS), name="R")
    output = te.compute((ROWS, COLUMNS), lambda i, j: product[i, j] + other[i, j], name="D")
    a, b, c = operands()
    added = integer_inputs((ROWS, COLUMNS), seed=2)
    return Workload(te.create_prim_func([left, right, other, output]), (a, b, added), c + added)


def square() -> Workload:
    """D = (A @ B) squared: applied to partial sums, or twice, it is wrong."""
    left, right, product = sums(ROWS, COLUMNS, DEPTH)
    output = te.compute((ROWS, COLUMNS), lambda i, j: product[i, j] * product[i, j], name="D")
    a, b, c = operands()
    return Workload(te.create_prim_func([left, right, output]), (a, b), c * c)


def times_zero() -> Workload:
    """D = 0 * (A @ B) where A has a NaN: the rows of the NaN are NaN, not 0."""
    left, right, product = sums(ROWS, COLUMNS, DEPTH)
    zero = te.placeholder((1,), name="alpha")
    output = te.compute((ROWS, COLUMNS), lambda i, j: product[i, j] * zero[0], name="D")
    a, b, _ = operands()
    a[3, 5] = a[17, 40] = np.nan
    expected = (a @ b) * np.float32(0)
    inputs = (a, b, np.zeros(1, np.float32))
    return Workload(te.create_prim_func([left, right, zero, output]), inputs, np.abs(expected))


def inlined(workload: Workload) -> Schedule:
    """The consumer as the statement that stores the tile."""
    schedule = schedules.hand_gpu(workload, SMALL)
    schedule.reverse_compute_inline("D")
    return schedule


def consumer_of_registers(workload: Workload) -> Schedule:
    """The consumer as a second block after the one that reads the accumulator."""
    schedule = schedules.hand_gpu(workload, SMALL)
    stored = schedule.get_sblock("C_local")
    thread = schedule.get_loops(stored)[-3]
    schedule.reverse_compute_at("D", thread)
    schedule.set_scope(stored, 0, "local")
    return schedule


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "bias, ReLU, float16": lambda: bias_relu_half("float32"),
    "float16 operands, bias, ReLU, float16": lambda: bias_relu_half("float16"),
    "residual": residual,
    "square": square,
    "times zero": times_zero,
}
FORMS: dict[str, Callable[[Workload], Schedule]] = {
    "inlined": inlined,
    "second block": consumer_of_registers,
    "DLight": schedules.dlight_gpu,
    "MetaSchedule": schedules.metaschedule_gpu,
}


def kernel_on_cuda(schedule: Schedule, workload: Workload) -> Kernel:
    return kernel_of(schedule.mod, workload.inputs, [workload.expected])


def check(schedule: Schedule, workload: Workload) -> None:
    """Exact in several orders, on garbage."""
    check_orders(kernel_on_cuda(schedule, workload), launches=3)


@cuda_runs.needs_compiler
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("merge", MERGES)
def test_bias_activation_and_cast_on_ragged_columns(form: str, merge: str) -> None:
    workload = WORKLOADS["bias, ReLU, float16"]()
    schedule = FORMS[form](workload)
    plan = schedule.stream_k("C", num_workers=7, merge=merge)
    assert plan.cuts > 0
    check(schedule, workload)


@cuda_runs.needs_compiler
@pytest.mark.parametrize("form", ["inlined", "second block"])
@pytest.mark.parametrize("name", list(WORKLOADS)[1:])
def test_epilogue(name: str, form: str) -> None:
    workload = WORKLOADS[name]()
    schedule = FORMS[form](workload)
    schedule.stream_k("C", num_workers=11, merge="last_arriver")
    check(schedule, workload)


@cuda_runs.needs_compiler
@pytest.mark.parametrize("arguments", [
    {"decomposition": "split_k", "splits": 2},
    {"decomposition": "split_k", "splits": 6},
    {"decomposition": "two_tile", "num_workers": 4},
    {"decomposition": "persistent", "num_workers": 4},
    {"decomposition": "stream_k", "num_workers": 54},
], ids=str)  # fmt: skip
def test_epilogue_under_every_decomposition(arguments: dict[str, Any]) -> None:
    workload = bias_relu_half("float32")
    schedule = inlined(workload)
    schedule.stream_k("C", merge="last_arriver", **arguments)
    check(schedule, workload)


@pytest.mark.parametrize("merge", MERGES)
def test_residual_on_opencl(merge: str) -> None:
    workload = residual()
    schedule = inlined(workload)
    schedule.stream_k("C", num_workers=7, merge=merge)
    check_numerics(schedule.mod, workload, OPENCL)


# -- several consumers -----------------------------------------------------------------------------


def two_outputs() -> tuple[Any, tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """D = 2 (A @ B) and E = A @ B + R."""
    left, right, product = sums(ROWS, COLUMNS, DEPTH)
    other = te.placeholder((ROWS, COLUMNS), name="R")
    doubled = te.compute((ROWS, COLUMNS), lambda i, j: product[i, j] * 2, name="D")
    shifted = te.compute((ROWS, COLUMNS), lambda i, j: product[i, j] + other[i, j], name="E")
    a, b, c = operands()
    added = integer_inputs((ROWS, COLUMNS), seed=2)
    function = te.create_prim_func([left, right, other, doubled, shifted])
    return function, (a, b, added), (2 * c, c + added)


def two_consumers(function: Any) -> Schedule:
    """Both consumers of the registers, in the thread that has summed them."""
    schedule = schedules.hand_gpu(Workload(function, (), np.zeros(0)), SMALL)
    stored = schedule.get_sblock("C_local")
    thread = schedule.get_loops(stored)[-3]
    for name in ("D", "E"):
        schedule.reverse_compute_at(name, thread)
    schedule.set_scope(stored, 0, "local")
    return schedule


@cuda_runs.needs_compiler
@pytest.mark.parametrize("merge", MERGES)
def test_several_consumers(merge: str) -> None:
    function, inputs, outputs = two_outputs()
    schedule = two_consumers(function)
    schedule.stream_k("C", num_workers=7, merge=merge)
    assert tvm.s_tir.analysis.verify_well_formed(schedule.mod)
    check_orders(kernel_of(schedule.mod, inputs, outputs))


# -- a staged write --------------------------------------------------------------------------------


THREADS = 4


def bind_to_threads(schedule: Schedule, rows: Any, columns: Any) -> None:
    schedule.bind(rows, "threadIdx.y")
    schedule.bind(columns, "threadIdx.x")


def staged(workload: Workload) -> Schedule:
    """Registers to shared memory, then rows of the tile to the output, by other threads.

    The thread loops stand around each step, not around all of them, as tensor-core schedules have
    them: there is no other place for what all threads do together.
    """
    schedule = schedules.fresh(workload)
    block, written = schedule.get_sblock("C"), schedule.get_sblock("D")
    schedule.set_scope(block, 0, "shared")
    stored = schedule.cache_write(block, 0, "local")
    i, j, k = schedule.get_loops(block)
    rows = schedule.split(i, [None, THREADS, 2])
    columns = schedule.split(j, [None, THREADS, 4])
    panel, step = schedule.split(k, [None, 8])
    schedule.reorder(rows[0], columns[0], panel, rows[1], columns[1], step, rows[2], columns[2])
    schedule.bind(rows[0], "blockIdx.y")
    schedule.bind(columns[0], "blockIdx.x")
    bind_to_threads(schedule, rows[1], columns[1])
    for consumer in (stored, written):
        schedule.reverse_compute_at(consumer, columns[0])
    in_row, in_column = schedule.get_loops(stored)[-2:]
    own_rows = schedule.split(in_row, [THREADS, 2])
    own_columns = schedule.split(in_column, [THREADS, 4])
    schedule.reorder(own_rows[0], own_columns[0], own_rows[1], own_columns[1])
    bind_to_threads(schedule, own_rows[0], own_columns[0])
    elements = schedule.fuse(*schedule.get_loops(written)[-2:])
    bind_to_threads(schedule, *schedule.split(elements, [None, THREADS, THREADS])[1:])
    schedule.decompose_reduction(block, panel)
    return schedule


@cuda_runs.needs_compiler
@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize("name", ["residual", "bias, ReLU, float16"])
def test_staged_write_through_shared_memory(name: str, merge: str) -> None:
    workload = WORKLOADS[name]()
    schedule = staged(workload)
    schedule.stream_k("C", num_workers=7, merge=merge)
    check(schedule, workload)


@cuda_runs.needs_compiler
def test_staged_write_keeps_its_barriers() -> None:
    workload = residual()
    schedule = staged(workload)
    schedule.stream_k("C", num_workers=7, merge="last_arriver")
    kernel = kernel_on_cuda(schedule, workload)
    text = kernel_text(kernel.plan)
    stores = [match.start() for match in re.finditer(r"C_shared_ptr\[[^=]*\] = ", text)]
    writes = [match.start() for match in re.finditer(r"D_ptr\[[^=]*\] = ", text)]
    assert stores and writes
    for write in writes:
        before = max(store for store in stores if store < write)
        assert BARRIER in text[before:write]
    assert kernel.races() == []
    assert kernel.races("priority", seed=3) == []


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["inlined", "second block", "DLight"])
def test_atomics_with_an_epilogue_are_refused(form: str) -> None:
    schedule = FORMS[form](residual())
    message = 'merge="atomic" needs an epilogue that only stores the sum, but .* Try: merge='
    with refused(schedule, errors.AtomicNeedsPlainStore, message):
        schedule.stream_k("C", num_workers=7, merge="atomic")


@pytest.mark.parametrize("make", [staged, lambda workload: two_consumers(two_outputs()[0])])
def test_atomics_with_several_blocks_are_refused(make: Callable[[Workload], Schedule]) -> None:
    schedule = make(residual())
    with refused(schedule, errors.AtomicNeedsPlainStore, r"it has \d blocks \("):
        schedule.stream_k("C", num_workers=7, merge="atomic")


def test_atomics_on_float16_are_refused() -> None:
    left, right, product = sums(ROWS, COLUMNS, DEPTH)
    half = te.compute((ROWS, COLUMNS), lambda i, j: product[i, j].astype("float16"), name="D")
    a, b, c = operands()
    workload = Workload(te.create_prim_func([left, right, half]), (a, b), c.astype("float16"))
    schedule = inlined(workload)
    with refused(schedule, errors.AtomicNeedsPlainStore, r"stores `.*float16"):
        schedule.stream_k("C", num_workers=7, merge="atomic")
