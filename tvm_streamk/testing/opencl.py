# SPDX-License-Identifier: Apache-2.0
"""Runs a launch plan on an OpenCL device through pyopencl.

With PoCL the device is the CPU: its compute units are real processors that run work-groups at
the same time, with local memory, barriers and atomics, so kernels for a GPU run on any machine.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from .arrays import element_dtype
from .launch_plan import KernelLaunch, LaunchPlan, LaunchPlanError, Workspace

POISON_BYTE = 0xFF
_KERNEL_MARKER = re.compile(r"^// Function: (\S+)\n", re.MULTILINE)
_INSTALL_HINT = "install one with `pip install 'pyopencl[pocl]'`, or Debian's `pocl-opencl-icd`"


class DeviceMissing(RuntimeError):
    """Nothing on this machine can run code for the target."""

    def __init__(self, reason: str, hint: str = _INSTALL_HINT) -> None:
        super().__init__(f"{reason}; {hint}")


class KernelBuildError(RuntimeError):
    """The OpenCL device's compiler refuses a kernel's source."""

    def __init__(self, kernel: str, device: str, log: str) -> None:
        super().__init__(
            f"kernel {kernel!r} does not compile for {device!r}; does the device have all its "
            f"types (PoCL's CPU device has no float16)?\n{log}"
        )


class OpenCLProgram:
    """A launch plan on an OpenCL device: built kernels, and buffers that stay between launches.

    Parameters
    ----------
    plan : LaunchPlan
        What to run.
    arrays : Mapping[str, numpy.ndarray]
        First contents of each tensor parameter, by name. They are copied. Workspaces are
        filled with 0xff bytes (NaN, for floats), since nothing may rely on their contents.

    Raises
    ------
    DeviceMissing
        If there is no pyopencl, or no OpenCL device.
    KernelBuildError
        If the device's compiler refuses the source.
    LaunchPlanError
        If a kernel needs what OpenCL does not have.
    """

    def __init__(self, plan: LaunchPlan, arrays: Mapping[str, np.ndarray]) -> None:
        self._cl, device = _pyopencl_and_device()
        self.device_name = str(device.name).strip()
        self._context = self._cl.Context([device])
        self._queue = self._cl.CommandQueue(self._context)
        self._like = {name: (array.shape, array.dtype) for name, array in arrays.items()}
        self._buffers = {name: self._allocate(array.nbytes) for name, array in arrays.items()}
        for name, array in arrays.items():
            self.write(name, array)
        for workspace in plan.workspaces:
            self._buffers[workspace.name] = self._poisoned(workspace)
        programs = self._build(plan)
        self._launches = [
            (self._bind(programs[launch.kernel], launch), launch) for launch in plan.launches
        ]
        self._queue.finish()

    def launch(self, times: int = 1) -> None:
        """Run every kernel of the plan, in order, so many times; wait for the last."""
        for kernel, launch in self._launches * times:
            work_items = tuple(
                blocks * threads for blocks, threads in zip(launch.grid, launch.block, strict=True)
            )
            self._cl.enqueue_nd_range_kernel(self._queue, kernel, work_items, launch.block)
        self._queue.finish()

    def write(self, name: str, array: np.ndarray) -> None:
        """Replace the contents of one parameter's buffer; `array` has its shape and dtype."""
        if array.nbytes:
            self._cl.enqueue_copy(self._queue, self._buffers[name], np.ascontiguousarray(array))

    def read(self, name: str) -> np.ndarray:
        """Contents of one parameter's buffer."""
        shape, dtype = self._like[name]
        array = np.empty(shape, dtype)
        if array.nbytes:
            self._cl.enqueue_copy(self._queue, array, self._buffers[name])
        return array

    def _allocate(self, num_bytes: int) -> Any:
        # OpenCL has no empty buffers.
        return self._cl.Buffer(self._context, self._cl.mem_flags.READ_WRITE, size=max(num_bytes, 1))

    def _poisoned(self, workspace: Workspace) -> Any:
        buffer = self._allocate(workspace.num_bytes)
        poison = np.uint8(POISON_BYTE)
        self._cl.enqueue_fill_buffer(self._queue, buffer, poison, 0, max(workspace.num_bytes, 1))
        return buffer

    def _build(self, plan: LaunchPlan) -> dict[str, Any]:
        sources = split_kernels(plan.source)
        names = sorted({launch.kernel for launch in plan.launches})
        return {name: self._compile(name, sources[name]) for name in names}

    def _compile(self, name: str, source: str) -> Any:
        try:
            return self._cl.Program(self._context, source).build()
        except self._cl.RuntimeError as error:
            raise KernelBuildError(name, self.device_name, str(error)) from error

    def _bind(self, program: Any, launch: KernelLaunch) -> Any:
        """A kernel object with the arguments of `launch`."""
        if launch.dynamic_shared_bytes:
            raise LaunchPlanError(
                f"kernel {launch.kernel!r} needs dynamic shared memory, which OpenCL has not; "
                "use the storage scope `shared`, or target cuda"
            )
        arguments = (
            self._buffers[value] if isinstance(value, str) else element_dtype(dtype).type(value)
            for value, dtype in zip(launch.arguments, launch.argument_dtypes, strict=True)
        )
        kernel = self._cl.Kernel(program, launch.kernel)
        kernel.set_args(*arguments)
        return kernel


def run_plan(plan: LaunchPlan, arrays: Mapping[str, np.ndarray]) -> None:
    """Run `plan` once, working in place on `arrays` (every tensor parameter, by name)."""
    program = OpenCLProgram(plan, arrays)
    program.launch()
    for name, array in arrays.items():
        array[...] = program.read(name)


def num_compute_units() -> int:
    """How many work-groups the OpenCL device runs at the same time.

    Raises
    ------
    DeviceMissing
        If there is no pyopencl, or no OpenCL device.
    """
    _, device = _pyopencl_and_device()
    return int(device.max_compute_units)


def split_kernels(source: str) -> dict[str, str]:
    """Source of each kernel by name.

    TVM writes the functions of an OpenCL module one after the other, each with all its own
    declarations, helpers included, under a line that names it. Together they may define a
    helper twice; each by itself is a program.
    """
    parts = _KERNEL_MARKER.split(source)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _pyopencl_and_device() -> tuple[Any, Any]:
    # PoCL's default way to run a work-group crashes on some small groups. It reads the variable
    # once, when the platform is first used.
    os.environ.setdefault("POCL_WORK_GROUP_METHOD", "loopvec")
    try:
        cl = importlib.import_module("pyopencl")
    except ImportError as error:
        raise DeviceMissing(f"running OpenCL needs pyopencl ({error})") from error
    try:
        devices = [device for platform in cl.get_platforms() for device in platform.get_devices()]
    except cl.Error as error:
        raise DeviceMissing(f"there is no OpenCL platform ({error})") from error
    if not devices:
        raise DeviceMissing("there is no OpenCL device")
    return cl, devices[0]
