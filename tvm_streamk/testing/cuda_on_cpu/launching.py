# SPDX-License-Identifier: Apache-2.0
"""Running the launches of a plan on the CPU, in an order of choice."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..launch_plan import KernelLaunch, LaunchPlan
from .buffers import DeviceBuffer, download, upload
from .compiler import compile_kernels
from .errors import FAULT_CLASSES, BadLaunch, CudaOnCpuError, KernelFault
from .source_text import source_line

ORDERS = ("forward", "reverse", "random", "priority")

_ONE_BLOCK_ORDERS = ("forward", "reverse")
# Each thread has a stack of its own, of which two pages or so are touched.
_RESIDENT_THREADS = 4096
_LINES_IN_MESSAGE = re.compile(r"\bline(?:s)? (\d+)(?: and (\d+))?")


@dataclass(frozen=True)
class Schedule:
    """In which order the threads of a launch run; all of it is legal CUDA.

    Attributes
    ----------
    order : str
        One of `ORDERS`.
    seed : int
        Of the random choices of "random" and "priority".
    resident_blocks : int or None
        How many blocks are under way at once; None for the order's own choice.
    """

    order: str = "forward"
    seed: int = 0
    resident_blocks: int | None = None

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise BadLaunch(f"order must be one of {list(ORDERS)}, got {self.order!r}")
        if self.seed < 0:
            raise BadLaunch(f"seed must not be negative, got {self.seed}")
        if self.resident_blocks is not None and self.resident_blocks < 1:
            raise BadLaunch(f"resident_blocks must be positive, got {self.resident_blocks}")

    def resident_blocks_of(self, launch: KernelLaunch) -> int:
        """The number of blocks of `launch` under way at once."""
        if self.resident_blocks is not None:
            return self.resident_blocks
        if self.order in _ONE_BLOCK_ORDERS:
            return 1
        return max(1, _RESIDENT_THREADS // max(1, int(np.prod(launch.block))))


class _Argument(ctypes.Structure):
    _fields_ = (
        ("pointer", ctypes.c_void_p),
        ("integer", ctypes.c_int64),
        ("real", ctypes.c_double),
    )


class _Request(ctypes.Structure):
    _fields_ = (
        ("kernel", ctypes.c_char_p),
        ("arguments", ctypes.POINTER(_Argument)),
        ("argument_count", ctypes.c_uint32),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("dynamic_shared_bytes", ctypes.c_uint64),
        ("order", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("resident_blocks", ctypes.c_uint32),
    )


class _Fault(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_char * 32), ("message", ctypes.c_char * 1024))


def run_plan(
    plan: LaunchPlan,
    arrays: dict[str, np.ndarray],
    order: str = "forward",
    seed: int = 0,
    resident_blocks: int | None = None,
) -> None:
    """Run all launches of a plan on the CPU, one CUDA thread at a time.

    A thread runs until it comes to a barrier, a warp operation, an atomic or its end; then the
    order says which is next. Results of a correct kernel depend on it no more than they do on a
    GPU, and those of a kernel with a missing barrier mostly do.

    Parameters
    ----------
    plan : LaunchPlan
        CUDA source and launches, as `plan_launches` makes them.
    arrays : dict[str, numpy.ndarray]
        Contents of the buffers by parameter name; changed in place, and left alone if the run
        fails. A workspace is allocated and filled with 0xff bytes unless its name is here.
    order : {"forward", "reverse", "random", "priority"}
        Blocks and threads by rising or falling index; by lot at each step; or by priorities that
        are drawn anew at each barrier, so that some threads run far ahead of the others.
    seed : int
        Of "random" and "priority".
    resident_blocks : int or None
        Blocks under way at once. By default 1 for "forward" and "reverse", else as many as have
        4096 threads.

    Raises
    ------
    CompilerMissing
        If there is no g++ to compile the kernels with.
    UnsupportedCode
        If the source has something that is not emulated.
    BadLaunch
        If an array is missing, or a launch and its kernel or the options do not fit.
    KernelFault
        If a kernel does what CUDA does not allow; the subclass says what.
    """
    schedule = Schedule(order, seed, resident_blocks)
    buffers = upload(plan, arrays)
    library = _load(plan.source)
    for launch in plan.launches:
        _run(library, plan, launch, buffers, schedule)
        for buffer in buffers.values():
            buffer.check(launch.kernel)
    download(buffers, arrays)


def fault_error(kind: str, message: str, source: str) -> CudaOnCpuError:
    """The error for what the runtime reports, with the source lines that it names."""
    numbers = (
        int(number)
        for match in _LINES_IN_MESSAGE.finditer(message)
        for number in match.groups()
        if number is not None
    )
    quoted = [f"  {number}: {source_line(source, number)}" for number in dict.fromkeys(numbers)]
    return FAULT_CLASSES.get(kind, KernelFault)("\n".join([message, *quoted]))


def _load(source: str) -> Any:
    library = ctypes.CDLL(str(compile_kernels(source)))
    library.cuda_on_cpu_launch.restype = ctypes.c_bool
    library.cuda_on_cpu_launch.argtypes = (ctypes.POINTER(_Request), ctypes.POINTER(_Fault))
    return library


def _run(
    library: Any,
    plan: LaunchPlan,
    launch: KernelLaunch,
    buffers: Mapping[str, DeviceBuffer],
    schedule: Schedule,
) -> None:
    values = [_argument(value, buffers) for value in launch.arguments]
    request = _Request(
        kernel=launch.kernel.encode(),
        arguments=(_Argument * len(values))(*values),
        argument_count=len(values),
        grid=tuple(launch.grid),
        block=tuple(launch.block),
        dynamic_shared_bytes=launch.dynamic_shared_bytes,
        order=ORDERS.index(schedule.order),
        seed=schedule.seed,
        resident_blocks=schedule.resident_blocks_of(launch),
    )
    fault = _Fault()
    if not library.cuda_on_cpu_launch(ctypes.byref(request), ctypes.byref(fault)):
        raise fault_error(fault.kind.decode(), fault.message.decode(), plan.source)


def _argument(value: str | int | float, buffers: Mapping[str, DeviceBuffer]) -> _Argument:
    if isinstance(value, str):
        return _Argument(pointer=buffers[value].address)
    return _Argument(integer=int(value) if np.isfinite(value) else 0, real=float(value))
