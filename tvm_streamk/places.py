# SPDX-License-Identifier: Apache-2.0
"""Where kernels can be timed on this machine: its CPU, an OpenCL device, a CUDA device."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm.target import Target

from tvm_streamk.devices import DEFAULT_DEVICE, Device, cpu, running_device
from tvm_streamk.schedules import host_target
from tvm_streamk.testing import DeviceMissing
from tvm_streamk.testing.opencl import num_compute_units

LLVM, OPENCL, CUDA = "llvm", "opencl", "cuda"
TARGETS = (LLVM, OPENCL, CUDA)
THREADS_VARIABLE = "TVM_NUM_THREADS"


class UnknownTarget(ValueError):
    """A target on which nothing is timed."""

    def __init__(self, name: str) -> None:
        super().__init__(f"target {name!r} is none of {', '.join(TARGETS)}")


@dataclass(frozen=True)
class Place:
    """A device that is here.

    Attributes
    ----------
    name
        ``llvm``, ``opencl`` or ``cuda``.
    target
        What to build for.
    processors
        Workers that run at the same time.
    is_gpu
        Whether its kernels have a grid of thread blocks.
    device
        What is known of it beforehand; the constants may be another device's.
    """

    name: str
    target: Any
    processors: int
    is_gpu: bool
    device: Device


def prepare_environment() -> None:
    """Let TVM and PoCL use every core; before either has started its threads."""
    for name, value in (
        # TVM's own default is one thread for every two cores that share a unit.
        (THREADS_VARIABLE, str(os.cpu_count() or 1)),
        ("POCL_AFFINITY", "1"),
        ("POCL_WORK_GROUP_METHOD", "loopvec"),
    ):
        os.environ.setdefault(name, value)


def place(name: str) -> Place:
    """Return a device by the name of its target.

    Raises
    ------
    UnknownTarget
        If it is none of :data:`TARGETS`.
    DeviceMissing
        If there is no such device here.
    """
    if name == LLVM:
        threads = int(os.environ.get(THREADS_VARIABLE) or os.cpu_count() or 1)
        return Place(LLVM, host_target(), threads, False, cpu(threads))
    if name == OPENCL:
        units = num_compute_units()
        return Place(OPENCL, OPENCL, units, True, DEFAULT_DEVICE.with_processors(units))
    if name != CUDA:
        raise UnknownTarget(name)
    present = tvm.device(CUDA, 0)
    if not present.exist:
        raise DeviceMissing("there is no CUDA device", "use target llvm or opencl")
    device = running_device(present)
    return Place(CUDA, Target.from_device(present), device.num_sms, True, device)


def places(names: Sequence[str] = TARGETS) -> tuple[list[Place], list[str]]:
    """Return the devices that are here, and for each other name why it is not."""
    found, missing = [], []
    for name in names:
        try:
            found.append(place(name))
        except DeviceMissing as reason:
            missing.append(f"{name}: {reason}")
    return found, missing
