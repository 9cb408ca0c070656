# SPDX-License-Identifier: Apache-2.0
"""What a decision must know of a device: how many processors, how fast, how many blocks fit.

A :class:`Device` is a frozen record. It comes from the table of known devices (:func:`lookup`, by
name or by TVM target tag), from a device that is present (:func:`running_device`), from
:func:`cpu`, or from the user's hand. Nothing here imports TVM.

The four constants of the cost model are microseconds for one reference panel: a tile of
128 x 128 that advances by 32 along K, 16-bit inputs, 32-bit accumulator. The table's values are
*estimates from data sheets*, not measurements:

- a panel runs at :data:`SHARE_OF_PEAK` of the dense 16-bit matrix throughput of one processor;
- a start, a split and a peer take a fixed number of clock cycles, since they are latency and
  second-level-cache traffic. For the A100 the numbers fall where the "Stream-K" paper (Osama et
  al., PPoPP 2023) needs them to give the three grid sizes that it prints in section 5.1.

A CPU's constants come from executed instructions: ``benchmarks/instructions.md``. Measured
constants replace them all: ``python -m tvm_streamk calibrate`` writes a file for
:meth:`Device.from_file`, and wherever a device's name is asked for, such a file's path will do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tvm_streamk.data_sheets import DATA_SHEETS, DataSheet
from tvm_streamk.device_file import SUFFIX, DeviceFileUnusable, read_record, write_record
from tvm_streamk.occupancy import ARCHITECTURES, Architecture
from tvm_streamk.occupancy import occupancy as blocks_that_fit

GPU = "gpu"
CPU = "cpu"

REFERENCE_TILE = (128, 128, 32)
"""Rows, columns and depth of the tile and panel that the constants of a device stand for."""

REFERENCE_ACCUMULATOR_BYTES = 4
SHARE_OF_PEAK = 0.8
"""The part of the data sheet's matrix throughput and memory bandwidth that kernels reach."""

START_CYCLES = 1920
"""First loads from memory, filling the pipeline, and the epilogue's store: about 3 A100 panels."""

SPLIT_CYCLES = 3840
"""64 KiB written at about 32 bytes a cycle, then a fence, a barrier and an atomic."""

PEER_LATENCY_CYCLES = 1024
PEER_TRANSFER_CYCLES = 4096
"""64 KiB read at about 16 bytes a cycle, after the latency of one dependent access."""

CPU_FLOPS_PER_US = 50_000.0
CPU_MEMORY_BYTES_PER_US = 20_000.0
"""One core of a server with 256-bit vectors."""

CPU_START_PANELS, CPU_SPLIT_PANELS, CPU_PEER_PANELS = 0.2645, 0.0253, 0.0008
"""In reference panels: executed instructions of real kernels, counted and fitted. The table is
``benchmarks/instructions.md``."""

CPU_REGION_US = 5.0
"""Waking the threads for the second nest that merges; no instructions, so an estimate."""

FLOPS_PER_MULTIPLY_ADD = 2
CYCLES_PER_US_PER_MHZ = 1.0
FLOPS_PER_US_PER_TERA = 1e6
BYTES_PER_US_PER_GIGABYTE_PER_SECOND = 1e3


class UnknownDevice(ValueError):
    """No device of that name is in the table."""

    def __init__(self, name: str) -> None:
        known = ", ".join(sorted(KNOWN_DEVICES))
        super().__init__(
            f"device {name!r} is not known; known are {known}. Give the processor count with "
            f"num_sms, or describe the device with tvm_streamk.devices.Device(...)"
        )


class TargetWithoutTag(ValueError):
    """A TVM target does not say which device it is."""

    def __init__(self, target: Any) -> None:
        super().__init__(
            f"the target {str(target)!r} has no tag, so its processor count is not known; give "
            f"num_sms, a device's name, or the tag itself as a string"
        )


@dataclass(frozen=True)
class Device:
    """A device as the cost model sees it.

    Parameters
    ----------
    name : str
        What to call it in tables.
    num_sms : int
        Processors: streaming multiprocessors, compute units or CPU cores.
    start_us : float
        What every segment pays before and after its panels: first loads, pipeline fill, epilogue.
    split_us : float
        What a partial segment pays on top: storing its partial sum and saying that it is there.
    panel_us : float
        One reference panel by one block, on a processor that holds ``blocks_per_sm`` of them.
    peer_us : float
        What a merge pays for each peer beyond the first: reading one partial sum and adding it.
    memory_bytes_per_us : float
        Bytes that the whole device moves from memory in a microsecond.
    blocks_per_sm : int
        Blocks of the kernel that one processor holds at a time; see :meth:`occupancy`.
    architecture : str
        Key of :data:`tvm_streamk.occupancy.ARCHITECTURES`, or empty where there is none (a CPU).
    kind : str
        ``"gpu"`` or ``"cpu"``: decides the default merge.
    """

    name: str
    num_sms: int
    start_us: float
    split_us: float
    panel_us: float
    peer_us: float
    memory_bytes_per_us: float
    blocks_per_sm: int = 1
    architecture: str = ""
    kind: str = GPU

    def __post_init__(self) -> None:
        for field in ("num_sms", "blocks_per_sm"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} must be at least 1, got {getattr(self, field)}")
        for field in ("panel_us", "memory_bytes_per_us"):
            if not getattr(self, field) > 0:
                raise ValueError(f"{field} must be positive, got {getattr(self, field)}")
        for field in ("start_us", "split_us", "peer_us"):
            if getattr(self, field) < 0:
                raise ValueError(f"{field} must not be negative, got {getattr(self, field)}")

    @property
    def num_slots(self) -> int:
        """Blocks that the whole device holds at a time: the most workers that run at once."""
        return self.num_sms * self.blocks_per_sm

    @property
    def limits(self) -> Architecture | None:
        """Threads, registers and shared memory of one processor, where the table knows them."""
        return ARCHITECTURES.get(self.architecture)

    @property
    def max_threads_per_sm(self) -> int | None:
        """Threads that one processor holds; None where that is unknown or has no meaning."""
        return self.limits.max_threads if self.limits else None

    @property
    def max_registers_per_sm(self) -> int | None:
        """32-bit registers of one processor; None where that is unknown or has no meaning."""
        return self.limits.registers if self.limits else None

    @property
    def max_shared_bytes_per_sm(self) -> int | None:
        """Bytes of shared memory of one processor; None where unknown or without meaning."""
        return self.limits.shared_bytes if self.limits else None

    def occupancy(self, registers_per_thread: int, threads: int, shared_bytes: int) -> int:
        """Return how many blocks of a kernel one processor holds.

        See :func:`tvm_streamk.occupancy.occupancy` for the limits, their sources and the errors.
        """
        return blocks_that_fit(registers_per_thread, threads, shared_bytes, self.architecture)

    def with_processors(
        self, num_sms: int | None = None, blocks_per_sm: int | None = None
    ) -> Device:
        """Return the same device with another processor count or occupancy.

        The time of a panel is that of one block among ``blocks_per_sm`` that share a processor's
        arithmetic, so it grows with them.
        """
        blocks = self.blocks_per_sm if blocks_per_sm is None else blocks_per_sm
        sms = self.num_sms if num_sms is None else num_sms
        panel = self.panel_us * blocks / self.blocks_per_sm
        return replace(self, num_sms=sms, blocks_per_sm=blocks, panel_us=panel)

    def for_tile(
        self,
        tile: tuple[int, int, int],
        accumulator_bytes: int = REFERENCE_ACCUMULATOR_BYTES,
        speed: float = 1.0,
    ) -> Device:
        """Return the device with its constants scaled from the reference panel to another.

        Parameters
        ----------
        tile : tuple of three int
            Rows, columns and panel depth.
        accumulator_bytes : int
            Bytes of one element of a partial sum.
        speed : float
            Arithmetic throughput in the kernel's type over that of the reference (16-bit matrix
            units): 1/16 for float64 matrix units of an A100, for example.
        """
        return self._scaled(self._scales(tile, accumulator_bytes, speed))

    def from_tile(
        self,
        tile: tuple[int, int, int],
        accumulator_bytes: int = REFERENCE_ACCUMULATOR_BYTES,
        speed: float = 1.0,
    ) -> Device:
        """Return the device whose constants :meth:`for_tile` scales to this one's.

        The way back, for constants that were measured with a kernel's own tile.
        """
        scales = self._scales(tile, accumulator_bytes, speed)
        return self._scaled({name: 1 / scale for name, scale in scales.items()})

    def _scaled(self, scales: Mapping[str, float]) -> Device:
        return replace(self, **{name: getattr(self, name) * by for name, by in scales.items()})

    def _scales(
        self, tile: tuple[int, int, int], accumulator_bytes: int, speed: float
    ) -> dict[str, float]:
        """What each constant is for a tile, over that of the reference.

        On a GPU a start is latency, whatever the tile. On a CPU it is the work of clearing and
        storing the tile's sums, and a split is mostly the second nest, whatever the tile.
        """
        rows, columns, depth = REFERENCE_TILE
        area = tile[0] * tile[1] / (rows * columns)
        transfer = area * accumulator_bytes / REFERENCE_ACCUMULATOR_BYTES
        fixed = PEER_LATENCY_CYCLES / (PEER_LATENCY_CYCLES + PEER_TRANSFER_CYCLES)
        exchange = fixed + (1 - fixed) * transfer
        is_cpu = self.kind == CPU
        return {
            "start_us": transfer if is_cpu else 1.0,
            "split_us": max(exchange, 1.0) if is_cpu else exchange,
            "panel_us": area * tile[2] / depth / speed,
            "peer_us": exchange,
        }

    def to_file(self, path: str | Path, measurement: Mapping[str, Any] | None = None) -> None:
        """Write the record as JSON, with a note of how its constants were measured."""
        write_record(Path(path), asdict(self), measurement)

    @classmethod
    def from_file(cls, path: str | Path) -> Device:
        """Read a record that :meth:`to_file` or ``python -m tvm_streamk calibrate`` wrote.

        Raises
        ------
        DeviceFileUnusable
            If there is no such file, or it holds something else.
        """
        source = Path(path)
        required = [field.name for field in fields(cls) if field.default is MISSING]
        record = read_record(source, [field.name for field in fields(cls)], required)
        try:
            return cls(**record)
        except (TypeError, ValueError) as error:
            raise DeviceFileUnusable(source, str(error)) from error


def _from_data_sheet(name: str, sheet: DataSheet) -> Device:
    rows, columns, depth = REFERENCE_TILE
    panel_flops = FLOPS_PER_MULTIPLY_ADD * rows * columns * depth
    flops_per_us = sheet.teraflops * FLOPS_PER_US_PER_TERA / sheet.num_sms * SHARE_OF_PEAK
    cycles_per_us = sheet.megahertz * CYCLES_PER_US_PER_MHZ
    bandwidth = sheet.gigabytes_per_second * BYTES_PER_US_PER_GIGABYTE_PER_SECOND
    return Device(
        name=name,
        num_sms=sheet.num_sms,
        start_us=START_CYCLES / cycles_per_us,
        split_us=SPLIT_CYCLES / cycles_per_us,
        panel_us=panel_flops / flops_per_us,
        peer_us=(PEER_LATENCY_CYCLES + PEER_TRANSFER_CYCLES) / cycles_per_us,
        memory_bytes_per_us=bandwidth * SHARE_OF_PEAK,
        architecture=sheet.architecture,
    )


KNOWN_DEVICES: Mapping[str, Device] = MappingProxyType(
    {name: _from_data_sheet(name, sheet) for name, sheet in DATA_SHEETS.items()}
)
"""The table of known devices, by normalised name."""

DEFAULT_DEVICE = KNOWN_DEVICES["a100"]
"""Whose constants stand in where a user gives nothing but a processor count."""

_MAKERS = re.compile(r"^(nvidia|amd|geforce|tesla|instinct|radeon|quadro)-")
_MEMORY_AND_BOARD = re.compile(r"-(sxm\d?|hbm\d\w?|\d+gb)\b.*$")


def normalise(name: str) -> str:
    """Return the table's spelling of a marketing name or of a TVM target tag."""
    spelled = re.sub(r"[\s_]+", "-", name.strip().lower()).rsplit("/", 1)[-1]
    while (shorter := _MAKERS.sub("", spelled)) != spelled:
        spelled = shorter
    return _MEMORY_AND_BOARD.sub("", spelled)


def lookup(name: str) -> Device:
    """Return a known device.

    Parameters
    ----------
    name : str
        A name (``"H200"``, ``"NVIDIA A100-SXM4-80GB"``), a TVM target tag
        (``"nvidia/nvidia-a100"``), or the path of a calibrated device's ``.json`` file. Of names,
        upper and lower case, maker and memory size do not matter.

    Raises
    ------
    UnknownDevice
        With the names that are known. A near miss (``"rtx-3080-ti"``) is not taken for a hit.
    DeviceFileUnusable
        If the name ends in ``.json`` and there is no record of a device.
    """
    if name.endswith(SUFFIX):
        return Device.from_file(name)
    device = KNOWN_DEVICES.get(normalise(name))
    if device is None:
        raise UnknownDevice(name)
    return device


def lookup_target(target: Any) -> Device:
    """Return the known device of a TVM target, by its tag.

    Parameters
    ----------
    target : tvm.target.Target or str
        A tag, or a target whose ``tag`` is set.

    Raises
    ------
    TargetWithoutTag
        TVM expands a tag when it makes a target and keeps neither the tag nor a processor count.
    UnknownDevice
        If the table does not know the tag.
    """
    tag = target if isinstance(target, str) else str(getattr(target, "tag", ""))
    if not tag:
        raise TargetWithoutTag(target)
    return lookup(tag)


def running_device(device: Any) -> Device:
    """Return the record of a device that is present.

    Parameters
    ----------
    device : tvm.runtime.Device
        Read for ``multi_processor_count`` and, where it has one, ``device_name``. A name that the
        table knows gives the constants, else :data:`DEFAULT_DEVICE` does; the count is the
        device's own in both cases.
    """
    count = int(device.multi_processor_count)
    name = str(getattr(device, "device_name", None) or "unnamed device")
    known = KNOWN_DEVICES.get(normalise(name), DEFAULT_DEVICE)
    return replace(known.with_processors(count), name=name)


def cpu(num_cores: int) -> Device:
    """Return a CPU with that many cores, with constants for float32 on 256-bit vectors."""
    rows, columns, depth = REFERENCE_TILE
    panel_us = FLOPS_PER_MULTIPLY_ADD * rows * columns * depth / CPU_FLOPS_PER_US
    return Device(
        name=f"cpu with {num_cores} cores",
        num_sms=num_cores,
        start_us=CPU_START_PANELS * panel_us,
        split_us=CPU_SPLIT_PANELS * panel_us + CPU_REGION_US,
        panel_us=panel_us,
        peer_us=CPU_PEER_PANELS * panel_us,
        memory_bytes_per_us=CPU_MEMORY_BYTES_PER_US,
        kind=CPU,
    )
