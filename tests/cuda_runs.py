# SPDX-License-Identifier: Apache-2.0
"""The CUDA that a schedule becomes: its source as data, and runs of it in orders of choice."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from tvm_streamk.testing import poisoned
from tvm_streamk.testing.cuda_on_cpu import CompilerMissing, SanitizerMissing, find_races, run_plan
from tvm_streamk.testing.cuda_on_cpu.compiler import find_toolchain
from tvm_streamk.testing.launch_plan import KernelLaunch, LaunchPlan, plan_launches

TARGET = {"kind": "cuda", "arch": "sm_80"}
BARRIER = "__syncthreads();"
FENCE = "tvm_streamk_device_fence_int32();"
ARRIVALS, WORKSPACE = "stream_k_arrivals", "stream_k_workspace"


def _why_no_compiler() -> str:
    try:
        find_toolchain()
    except CompilerMissing as error:
        return str(error)
    return ""


needs_compiler = pytest.mark.skipif(bool(_why_no_compiler()), reason=_why_no_compiler())


@dataclass
class Kernel:
    """A lowered schedule with its buffers.

    Attributes
    ----------
    plan : LaunchPlan
        Source and launches.
    inputs : tuple of arrays
        The leading parameters.
    outputs : tuple of arrays
        What the parameters behind them have to be afterwards.
    counters : int
        Length of the arrival counters that are the last parameter, or 0.
    """

    plan: LaunchPlan
    inputs: tuple[np.ndarray, ...]
    outputs: tuple[np.ndarray, ...]
    counters: int = 0
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.arrays = dict(zip(self.plan.parameters, self._fresh(), strict=True))
        self.fill_workspaces(0xFF)

    def _fresh(self) -> list[np.ndarray]:
        filled = [poisoned(output.shape, output.dtype) for output in self.outputs]
        counters = self.counters
        zeros: list[np.ndarray] = [np.zeros(counters, np.int32)] if counters else []
        return [*(array.copy() for array in self.inputs), *filled, *zeros]

    def fill_workspaces(self, byte_or_seed: int, random: bool = False) -> None:
        """Garbage for the workspaces: one byte everywhere, or random bytes of a seed."""
        generator = np.random.default_rng(byte_or_seed)
        for workspace in self.plan.workspaces:
            size = workspace.num_bytes
            self.arrays[workspace.name] = (
                generator.integers(0, 256, size, dtype=np.uint8)
                if random
                else np.full(size, byte_or_seed, np.uint8)
            )

    def poison_outputs(self) -> None:
        """Forget what an earlier launch has written."""
        for name, output in zip(self._output_names, self.outputs, strict=True):
            self.arrays[name][...] = poisoned(output.shape, output.dtype)

    @property
    def _output_names(self) -> tuple[str, ...]:
        first = len(self.inputs)
        return self.plan.parameters[first : first + len(self.outputs)]

    def launch(self, order: str = "forward", seed: int = 0, resident: int | None = None) -> None:
        """Run once on the buffers as they are."""
        run_plan(self.plan, self.arrays, order, seed, resident)

    def results(self) -> tuple[np.ndarray, ...]:
        """The outputs as they are."""
        return tuple(self.arrays[name] for name in self._output_names)

    def is_right(self) -> bool:
        """Whether the outputs are what they have to be and the inputs what they were."""
        pairs = [
            *zip(self.results(), self.outputs, strict=True),
            *zip((self.arrays[name] for name in self.plan.parameters), self.inputs, strict=False),
        ]
        return all(np.array_equal(found, wanted, equal_nan=True) for found, wanted in pairs)

    def with_source(self, source: str) -> Kernel:
        """The same kernel with other source, on buffers of its own."""
        plan = replace(self.plan, source=source)
        return Kernel(plan, self.inputs, self.outputs, self.counters)

    def races(self, order: str = "forward", seed: int = 0) -> list[Any]:
        """Accesses that nothing orders; skips the test where there is no sanitizer."""
        names = [*self.plan.parameters, *(space.name for space in self.plan.workspaces)]
        try:
            return find_races(self.plan, {name: self.arrays[name] for name in names}, order, seed)
        except SanitizerMissing as error:
            pytest.skip(str(error))


def kernel_of(
    module: Any,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    counters: int = 0,
) -> Kernel:
    """Lower a module whose parameters are inputs, outputs and maybe arrival counters."""
    zeros: list[np.ndarray] = [np.zeros(counters, np.int32)] if counters else []
    empty = [poisoned(output.shape, output.dtype) for output in outputs]
    plan = plan_launches(module, [*inputs, *empty, *zeros], TARGET)
    return Kernel(plan, tuple(inputs), tuple(outputs), counters)


def check_orders(kernel: Kernel, launches: int = 4) -> None:
    """Exact results on garbage, in every order, on the same buffers."""
    orders = ("forward", "reverse", "random", "priority")
    for number in range(launches):
        kernel.poison_outputs()
        kernel.launch(orders[number % len(orders)], seed=number)
        for found, wanted in zip(kernel.results(), kernel.outputs, strict=True):
            np.testing.assert_array_equal(found, wanted)
    assert kernel.is_right()


def main_launch(plan: LaunchPlan) -> KernelLaunch:
    """The launch of the kernel that walks over the segments: the first with the inputs."""
    first = plan.parameters[0]
    return next(launch for launch in plan.launches if first in launch.arguments)


def kernel_text(plan: LaunchPlan, kernel: str | None = None) -> str:
    """The definition of one kernel, by default of the one that walks over the segments."""
    name = kernel or main_launch(plan).kernel
    head = re.compile(rf'^extern "C" __global__ void [^;{{]*\b{name}\([^;{{]*\) \{{$', re.MULTILINE)
    match = head.search(plan.source)
    assert match is not None, f"no kernel {name}"
    return plan.source[match.start() : plan.source.index("\n}\n", match.end()) + 3]


def private_arrays(text: str) -> dict[str, int]:
    """Arrays that a thread of a kernel has for itself, with their lengths."""
    pattern = re.compile(r"^ +(?:alignas\(\d+\) )?[\w:<>, ]+? (\w+)\[(\d+)\];$", re.MULTILINE)
    return {
        match[1]: int(match[2]) for match in pattern.finditer(text) if "__shared__" not in match[0]
    }


def occurrences(text: str, part: str) -> list[int]:
    """Where a part is in a text."""
    return [match.start() for match in re.finditer(re.escape(part), text)]


def edited(text: str, old: str, new: str, number: int = 0) -> str:
    """A text with one occurrence of ``old`` replaced."""
    start = occurrences(text, old)[number]
    return text[:start] + new + text[start + len(old) :]


# -- the order in which a partial sum becomes visible ----------------------------------------------

_STORE, _LOAD, _FENCE, _BARRIER, _COUNT, _RESET = "SLFBAR"
PUBLICATION = "[SB]*SFBFAFB[LSB]*LB*[SB]*R?B*"
"""Store, fence, barrier; fence, count, fence; barrier, loads; and the counter set back. There are
stores behind the count where slots are added up in the first of them."""


def publication(text: str) -> str:
    """What a kernel's text does to workspace and counters, in order; repetitions count once."""
    events = ""
    for line in text.splitlines()[1:]:
        target, _, value = line.partition(" = ")
        marks = {
            _LOAD: f"{WORKSPACE}_ptr" in value,
            _COUNT: "tvm_streamk_atomic_add" in line,
            _STORE: f"{WORKSPACE}_ptr" in target and bool(value),
            _RESET: f"{ARRIVALS}_ptr" in target and bool(value),
            _FENCE: FENCE in line,
            _BARRIER: BARRIER in line,
        }
        events += "".join(mark for mark, is_there in marks.items() if is_there)
    return re.sub(r"(.)\1+", r"\1", events[events.index(_STORE) :])


def kernel_parameters(text: str) -> list[str]:
    """Names of a kernel's parameters."""
    head = text[: text.index(") {\n")]
    return re.findall(r"(\w+)(?:,|$)", head[head.rindex("(") + 1 :])
