# SPDX-License-Identifier: Apache-2.0
"""Memory for kernels: copies of numpy arrays with red zones around them."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..launch_plan import LaunchPlan
from .errors import BadLaunch, MemoryOverrun

_ALIGNMENT = 256  # what cudaMalloc promises
_PAGE = mmap.PAGESIZE
_RED_ZONE_BYTES = _PAGE
_RED_ZONE = 0xFD
_POISON = 0xFF  # NaN in every float type, -1 in every signed integer type
# Address space on both sides of a buffer that nobody may touch. Costs no memory.
_GUARD_BYTES = 16 << 20
_NO_ACCESS = 0


@dataclass(frozen=True)
class DeviceBuffer:
    """Global memory of a kernel: `data`, and the red zones around it that must not change.

    Further away, any access is a fault at once.
    """

    name: str
    data: np.ndarray
    before: np.ndarray
    after: np.ndarray

    @staticmethod
    def allocate(name: str, num_bytes: int) -> DeviceBuffer:
        """A poisoned buffer, aligned as the CUDA driver aligns.

        Parameters
        ----------
        name : str
            For messages.
        num_bytes : int
            Size of `data`, in bytes.
        """
        usable = -(-(num_bytes + 2 * _RED_ZONE_BYTES) // _PAGE) * _PAGE
        size = usable + 2 * _GUARD_BYTES
        mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory = np.frombuffer(mapping, np.uint8)
        for guard in (0, _GUARD_BYTES + usable):
            _protect(int(memory.ctypes.data) + guard, _GUARD_BYTES)
        middle = memory[_GUARD_BYTES : _GUARD_BYTES + usable]
        middle[:] = _RED_ZONE
        # As far up as alignment allows, so that what comes after the end is near the guard.
        start = (usable - _RED_ZONE_BYTES - num_bytes) // _ALIGNMENT * _ALIGNMENT
        data = middle[start : start + num_bytes]
        data[:] = _POISON
        return DeviceBuffer(name, data, middle[:start], middle[start + num_bytes :])

    @property
    def address(self) -> int:
        """Where the data begins."""
        return int(self.data.ctypes.data)

    def check(self, kernel: str) -> None:
        """Raise `MemoryOverrun` if something was written just outside of the buffer."""
        for zone, place in ((self.before, "before its start"), (self.after, "after its end")):
            changed = int(np.count_nonzero(zone != _RED_ZONE))
            if changed:
                raise MemoryOverrun(
                    f"kernel {kernel!r} wrote outside of buffer {self.name!r} "
                    f"({self.data.size} bytes): {changed} bytes {place} have changed"
                )


def upload(plan: LaunchPlan, arrays: Mapping[str, np.ndarray]) -> dict[str, DeviceBuffer]:
    """Buffers for all parameters and workspaces that the plan's launches use.

    A workspace is poisoned unless `arrays` has one of its name.

    Raises
    ------
    BadLaunch
        If an array is missing, or one for a workspace has the wrong size.
    """
    workspaces = {workspace.name: workspace for workspace in plan.workspaces}
    buffers: dict[str, DeviceBuffer] = {}
    for name in _used_buffers(plan):
        if name in arrays:
            contents = np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8)
            buffers[name] = DeviceBuffer.allocate(name, contents.size)
            buffers[name].data[:] = contents
        elif name in workspaces:
            buffers[name] = DeviceBuffer.allocate(name, workspaces[name].num_bytes)
        else:
            raise BadLaunch(
                f"no array for parameter {name!r}; given: {sorted(arrays)}, "
                f"allocated by itself: {sorted(workspaces)}"
            )
        if name in workspaces and buffers[name].data.size < workspaces[name].num_bytes:
            raise BadLaunch(
                f"the array for workspace {name!r} has {buffers[name].data.size} bytes, "
                f"{workspaces[name].num_bytes} are needed"
            )
    return buffers


def download(buffers: Mapping[str, DeviceBuffer], arrays: Mapping[str, np.ndarray]) -> None:
    """Write back what has changed."""
    for name, buffer in buffers.items():
        if name not in arrays:
            continue
        array = arrays[name]
        if array.tobytes() != buffer.data.tobytes():
            array[...] = buffer.data.view(array.dtype).reshape(array.shape)


def _used_buffers(plan: LaunchPlan) -> list[str]:
    names = (
        argument
        for launch in plan.launches
        for argument in launch.arguments
        if isinstance(argument, str)
    )
    return list(dict.fromkeys(names))


def _protect(address: int, num_bytes: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(num_bytes), _NO_ACCESS) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"mprotect: {os.strerror(error)}")
