# SPDX-License-Identifier: Apache-2.0
"""How many workers a target runs at the same time, and what its kernels are run by."""

from __future__ import annotations

from typing import Any

import tvm

from tvm_streamk import devices
from tvm_streamk.devices import Device, UnknownDevice
from tvm_streamk.errors import WorkersUnknown
from tvm_streamk.testing.opencl import DeviceMissing, num_compute_units

OPENCL = "opencl"
_CPU_KEY = "cpu"


def is_cpu(target: Any) -> bool:
    """Whether a target's grids are made of parallel tasks on a CPU."""
    return _CPU_KEY in [str(key) for key in target.keys]


def runs_through_pyopencl(target: Any) -> bool:
    """Whether a target is OpenCL and this TVM has no OpenCL device of its own."""
    return str(target.kind.name) == OPENCL and not tvm.device(OPENCL, 0).exist


def runs_one_worker_at_a_time(target: Any) -> bool:
    """Whether a processor runs its workers one after the other: a core does, a GPU's overlaps."""
    return is_cpu(target) or runs_through_pyopencl(target)


def device_of(target: Any, num_sms: int | None = None) -> Device:
    """The record of a target's device: its processors, and constants for the cost model.

    Parameters
    ----------
    target : tvm.target.Target, str or dict
        For a CPU with ``num-cores``; for a GPU by a tag that :mod:`tvm_streamk.devices` knows (as
        a string: TVM expands a tag and forgets it), or one whose device is present.
    num_sms : int, optional
        Processors, where the target does not tell.

    Returns
    -------
    Device

    Raises
    ------
    WorkersUnknown
        Nothing tells how many processors there are.
    """
    known = _tagged(target)
    target = tvm.target.Target(target)
    if is_cpu(target):
        cores = num_sms if num_sms is not None else target.attrs.get("num-cores")
        if cores is None:
            raise _unknown(target, 'num_sms=8 (say), or "num-cores": 8 in the target')
        return devices.cpu(int(cores))
    if num_sms is not None:
        return (known or devices.DEFAULT_DEVICE).with_processors(num_sms)
    found = known or _present(target)
    if found is None:
        raise _unknown(target, "num_sms=132 (say), or a target by a tag such as nvidia/nvidia-h100")
    return found


def _tagged(target: Any) -> Device | None:
    try:
        return devices.lookup(target) if isinstance(target, str) else None
    except UnknownDevice:
        return None


def _present(target: Any) -> Device | None:
    device = tvm.device(str(target.kind.name), 0)
    if device.exist:
        return devices.running_device(device)
    if str(target.kind.name) != OPENCL:
        return None
    try:
        units = num_compute_units()
    except DeviceMissing:
        return None
    return devices.DEFAULT_DEVICE.with_processors(units)


def _unknown(target: Any, hint: str) -> WorkersUnknown:
    return WorkersUnknown(
        f"nothing tells how many processors target {str(target.kind.name)!r} has.", hint=hint
    )
