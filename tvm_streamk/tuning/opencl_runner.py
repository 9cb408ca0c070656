# SPDX-License-Identifier: Apache-2.0
"""A MetaSchedule runner for OpenCL kernels where TVM has no OpenCL runtime, through pyopencl."""

from __future__ import annotations

import importlib
import math
import os
import pickle
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.runner import (
    EvaluatorConfig,
    PyRunner,
    PyRunnerFuture,
    RunnerResult,
)
from tvm.support.popen_pool import PopenPoolExecutor, StatusKind

from tvm_streamk.testing.arrays import integer_inputs
from tvm_streamk.testing.launch_plan import LaunchPlan
from tvm_streamk.testing.opencl import OpenCLProgram

TIMEOUT_SECONDS = 60.0
MILLISECONDS_PER_SECOND = 1e3
_SHORTEST_SECONDS = 1e-7


@derived_object
class OpenCLRunner(PyRunner):
    """Measures launch plans in a process of its own, one candidate at a time.

    A kernel that crashes or hangs ends that process, not the search. Before a batch is measured,
    its kernels are compiled side by side, as many as there are processors: OpenCL devices (PoCL
    among them) keep on disk what they have compiled, and their compilers use one processor each.

    Parameters
    ----------
    evaluator_config : EvaluatorConfig, optional
        How often to launch, as for TVM's own runners.
    timeout_seconds : float
        For one candidate, compilation by the OpenCL device included.
    """

    def __init__(
        self,
        evaluator_config: EvaluatorConfig | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        super().__init__()
        # TVM imports it to end a process, which it may do in the midst of a garbage collection.
        importlib.import_module("psutil")
        self.config = EvaluatorConfig._normalized(evaluator_config)
        self.timeout_seconds = timeout_seconds
        self.compilers = PopenPoolExecutor(max_workers=os.cpu_count(), timeout=timeout_seconds)
        self.pool = PopenPoolExecutor(max_workers=1, timeout=timeout_seconds)

    def run(self, runner_inputs: Sequence[Any]) -> list[Any]:
        """Measure candidates in turn; the futures that come back are done."""
        described = [
            (
                str(each.artifact_path),
                tuple(argument.as_json() for argument in each.args_info),
                self.config,
            )
            for each in runner_inputs
        ]
        compiled = list(self.compilers.map_with_error_catching(compile_described, described))
        runnable = [
            each
            for each, outcome in zip(described, compiled, strict=True)
            if outcome.status == StatusKind.COMPLETE
        ]
        times = iter(self.pool.map_with_error_catching(measure_described, runnable))
        return [
            Measured(*self._outcome(next(times) if each.status == StatusKind.COMPLETE else each))
            for each in compiled
        ]

    def _outcome(self, result: Any) -> tuple[list[float] | None, str | None]:
        """Seconds or an error, as TVM wants them, from what its pool of processes gives."""
        if result.status == StatusKind.COMPLETE:
            return result.value, None
        if result.status == StatusKind.TIMEOUT:
            return None, f"OpenCLRunner: killed after {self.timeout_seconds} seconds"
        return None, f"OpenCLRunner: {result.value}"


@derived_object
class Measured(PyRunnerFuture):
    """A measurement that has been made, or what went wrong."""

    def __init__(self, seconds: list[float] | None, error: str | None) -> None:
        super().__init__()
        self.seconds = seconds
        self.error = error

    def done(self) -> bool:
        """Always: candidates are measured one at a time."""
        return True

    def result(self) -> Any:
        """Seconds per launch, or the error."""
        return RunnerResult(self.seconds, self.error)


def measure_described(described: tuple[str, Sequence[Any], EvaluatorConfig]) -> list[float]:
    """:func:`measure_file` for one entry of a list."""
    return measure_file(*described)


def compile_described(described: tuple[str, Sequence[Any], EvaluatorConfig]) -> None:
    """Load a launch plan and launch it once, for which the device compiles its kernels."""
    path, arguments, _ = described
    _program(path, arguments).launch()


def measure_file(path: str, arguments: Sequence[Any], config: EvaluatorConfig) -> list[float]:
    """Load a launch plan and measure it on arrays as described.

    Parameters
    ----------
    path : str
        Where the builder wrote the plan.
    arguments : sequence
        Per parameter, what ``ArgInfo.as_json`` gives: ``["TENSOR", dtype, shape]``.
    config : EvaluatorConfig
        How often to launch.

    Returns
    -------
    list of float
        Seconds per launch, one entry per repetition.
    """
    return time_launches(_program(path, arguments).launch, config)


def _program(path: str, arguments: Sequence[Any]) -> OpenCLProgram:
    plan: LaunchPlan = pickle.loads(Path(path).read_bytes())
    return OpenCLProgram(plan, arrays_for(plan, arguments))


def arrays_for(plan: LaunchPlan, arguments: Sequence[Any]) -> dict[str, np.ndarray]:
    """Arrays of small whole numbers for the parameters of a plan, outputs included."""
    described = zip(plan.parameters, arguments, strict=True)
    return {
        name: integer_inputs([int(extent) for extent in shape], str(dtype))
        for name, (_, dtype, shape) in described
    }


def time_launches(launch: Callable[[], object], config: EvaluatorConfig) -> list[float]:
    """Time launches as TVM's evaluator does: one to warm up, then repetitions of several."""
    launch()
    one = max(_seconds_of(launch, 1), _SHORTEST_SECONDS)
    least_seconds = config.min_repeat_ms / MILLISECONDS_PER_SECOND
    number = max(int(config.number), math.ceil(least_seconds / one))
    return [_seconds_of(launch, number) / number for _ in range(int(config.repeat))]


def _seconds_of(launch: Callable[[], object], number: int) -> float:
    begin = time.perf_counter()
    for _ in range(number):
        launch()
    return time.perf_counter() - begin
