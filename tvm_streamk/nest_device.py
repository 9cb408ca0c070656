# SPDX-License-Identifier: Apache-2.0
"""What the cost model must know of the device that a nest is for, scaled to the nest's tile."""

from __future__ import annotations

from typing import NamedTuple

import tvm
from tvm.target import Target

from tvm_streamk.devices import (
    DEFAULT_DEVICE,
    Device,
    TargetWithoutTag,
    UnknownDevice,
    cpu,
    lookup_target,
)
from tvm_streamk.expressions import static_value
from tvm_streamk.nest import CPU, reduction_iterators
from tvm_streamk.tile_nest import TileNest

FRAGMENT_DEPTH = 16
"""Multiply-adds per element in one matrix instruction: k of the 16x16x16 fragments."""
SCALAR_OVER_MATRIX_UNITS = 1 / 16
"""Throughput of float32 arithmetic over that of the 16-bit matrix units, on an A100 (19.5 of 312
teraflops) and about the same on its successors."""


class Scaling(NamedTuple):
    """The arguments of :meth:`tvm_streamk.devices.Device.for_tile` for a nest."""

    tile: tuple[int, int, int]
    accumulator_bytes: int
    speed: float


def scaling_of(nest: TileNest) -> Scaling:
    """How a nest's tile, panel and types compare with a device's reference."""
    elements = nest.elements.per_thread * nest.elements.threads
    accumulator_bytes = max(nest.elements.slot_bytes // max(elements, 1), 1)
    return Scaling((elements, 1, _panel_depth(nest)), accumulator_bytes, _relative_speed(nest))


def device_for(nest: TileNest, device: Device | None, processors: int) -> Device:
    """A device's constants for a nest's tile and type, with the known processor count.

    Parameters
    ----------
    nest
        What the analysis found.
    device
        Whose constants; by default those of a CPU, or of the table's default GPU.
    processors
        Workers that run at the same time. Where that is what the device itself says, it keeps its
        blocks per processor; else they are processors with one worker each.
    """
    if device is None:
        device = cpu(processors) if nest.grid == CPU else DEFAULT_DEVICE
    if device.num_slots != processors:
        device = device.with_processors(processors, 1)
    return device.for_tile(*scaling_of(nest))


def _panel_depth(nest: TileNest) -> int:
    """Multiply-adds per element of the tile in one panel."""
    depth = FRAGMENT_DEPTH if nest.staging is not None else 1
    for iterator, _ in reduction_iterators(nest.parts.path.realize):
        depth *= static_value(iterator.dom.extent) or 1
    return max(depth // nest.panels, 1)


def _relative_speed(nest: TileNest) -> float:
    """Arithmetic throughput over that of the device's reference panel."""
    if nest.staging is not None:
        return 1.0
    wide = str(nest.elements.buffer.dtype).endswith("64")
    ordinary = 1.0 if nest.grid == CPU else SCALAR_OVER_MATRIX_UNITS
    return ordinary / 2 if wide else ordinary


def processors_of(nest: TileNest, device: Device | None, num_sms: int | None) -> int | None:
    """How many workers run at the same time, where something tells.

    Parameters
    ----------
    nest
        What the analysis found.
    device, num_sms
        What the caller says; else the current target is asked.
    """
    if num_sms is not None:
        return num_sms
    if device is not None:
        return device.num_slots
    target = Target.current(allow_none=True)
    if target is None:
        return None
    if nest.grid == CPU:
        cores = target.attrs.get("num-cores")
        return None if cores is None else int(cores)
    return _processors_of_target(target)


def _processors_of_target(target: Target) -> int | None:
    """The processors of a GPU target, by its tag or by the device that is present."""
    try:
        return lookup_target(target).num_slots
    except (TargetWithoutTag, UnknownDevice):
        present = tvm.device(str(target.kind.name)) if str(target.kind.name) == "cuda" else None
        if present is not None and present.exist:
            return int(present.multi_processor_count)
    return None
