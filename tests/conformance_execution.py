# SPDX-License-Identifier: Apache-2.0
"""Runs a function that somebody else wrote with and without Stream-K, and compares the outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from schedules import LLVM, OPENCL
from tvm import s_tir, tirx
from tvm.s_tir import Schedule

from tvm_streamk import analyze
from tvm_streamk.expressions import buffers_read, buffers_stored, contains, substitute
from tvm_streamk.testing import integer_inputs, poisoned, run

SYMBOLIC_EXTENTS = (5, 3, 2)
"""What the first, second ... symbolic shape variable of a function is called with."""
MOST_OPERATIONS = 2**25
"""Above this, an unscheduled nest takes too long for a test."""
FEW_OPERATIONS = 2**21


@dataclass(frozen=True)
class Skipped(Exception):
    """The function cannot be executed here, and why."""

    reason: str


def check_against_unscheduled(function: Any, block: str) -> int:
    """Compare Stream-K with the function itself for several worker counts; gives their number.

    Raises
    ------
    Skipped
        It cannot be executed here.
    AssertionError
        The outputs differ.
    """
    nest = analyze(Schedule(tvm.IRModule({"main": function})), block)
    target = LLVM if nest.grid == "cpu" else OPENCL
    inputs, outputs = arguments(function)
    operations = _operations(function)
    if operations > MOST_OPERATIONS:
        raise Skipped(f"{operations / 1e6:.0f} million operations take too long unscheduled")
    expected = _run(function, inputs, target)
    tiles = nest.num_tiles if isinstance(nest.num_tiles, int) else SYMBOLIC_EXTENTS[0]
    most = tiles * nest.panels
    counts = {1, 2, 3, 5, tiles, tiles + 1, most - 1, most}
    if operations > FEW_OPERATIONS:
        counts = {3, 5}
    counts = {count for count in counts if 1 <= count <= min(most, 4 * tiles, 2**12)}
    for workers in sorted(counts):
        schedule = Schedule(tvm.IRModule({"main": function}))
        schedule.stream_k(block, num_workers=workers)
        results = _run(schedule.mod["main"], inputs, target)
        for position in outputs:
            np.testing.assert_array_equal(results[position], expected[position])
    return len(counts)


def arguments(function: Any) -> tuple[list[Any], list[int]]:
    """Values for every parameter, and the positions of those that the function writes."""
    written, read = buffers_stored(function.body), buffers_read(function.body)
    extents: dict[Any, int] = {}
    values: list[Any] = []
    outputs = []
    for position, parameter in enumerate(function.params):
        if not _is_buffer(parameter):
            values.append(_concrete(parameter, extents))
            continue
        shape = [_concrete(extent, extents) for extent in parameter.shape]
        dtype = str(parameter.dtype)
        is_output = contains(written, parameter)
        if is_output:
            outputs.append(position)
        low = 0 if not dtype.startswith("float") else None
        fresh = is_output and not contains(read, parameter)
        values.append(
            poisoned(shape, dtype) if fresh else integer_inputs(shape, dtype, position, low)
        )
    return values, outputs


def _is_buffer(parameter: Any) -> bool:
    return isinstance(parameter.ty, tirx.BufferType)


def _concrete(extent: Any, extents: dict[Any, int]) -> int:
    """An extent with symbolic variables replaced, the same everywhere."""
    if isinstance(extent, (int, tirx.IntImm)):
        return int(extent)
    for variable in tirx.analysis.undefined_vars(extent, []):
        if variable not in extents:
            extents[variable] = SYMBOLIC_EXTENTS[min(len(extents), len(SYMBOLIC_EXTENTS) - 1)]
    values = {each: tirx.const(size, str(each.ty.dtype)) for each, size in extents.items()}
    return int(tvm.sym.Analyzer().simplify(substitute(extent, values)))


def _operations(function: Any) -> float:
    try:
        return float(s_tir.analysis.estimate_tir_flops(tvm.IRModule({"main": function})))
    except tvm.error.InternalError:
        return 0.0


def _run(function: Any, inputs: list[Any], target: Any) -> list[np.ndarray]:
    return run(tvm.IRModule({"main": function.with_attr("global_symbol", "main")}), inputs, target)
