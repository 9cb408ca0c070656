# SPDX-License-Identifier: Apache-2.0
"""How many blocks of a kernel one processor holds, from registers, threads and shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

KIB = 1024


class UnknownArchitecture(ValueError):
    """No occupancy limits are known for that architecture."""

    def __init__(self, name: str) -> None:
        known = ", ".join(sorted(ARCHITECTURES))
        super().__init__(
            f"no occupancy limits for architecture {name!r}; known are {known}. "
            f"Give blocks_per_sm instead"
        )


class KernelTooLarge(ValueError):
    """Not even one block of the kernel fits on a processor."""


@dataclass(frozen=True)
class Architecture:
    """What one processor can hold.

    Parameters
    ----------
    warp_size : int
        Threads that run in step (a wavefront on AMD).
    max_threads, max_blocks : int
        Threads and blocks that are resident at most.
    registers : int
        32-bit registers of the processor, in ``register_files`` equal files. A warp lives in one.
    register_files : int
        Files (sub-partitions, SIMDs); warps of a block are dealt over them.
    register_unit : int
        Registers are given to a warp in multiples of this.
    max_registers_per_thread : int
        The most that one thread can address.
    shared_bytes, shared_unit, shared_reserved : int
        Shared memory of the processor, the unit in which blocks get it, and what the system keeps
        of it for each block, all in bytes.
    """

    warp_size: int
    max_threads: int
    max_blocks: int
    registers: int
    register_files: int
    register_unit: int
    max_registers_per_thread: int
    shared_bytes: int
    shared_unit: int
    shared_reserved: int


def _nvidia(
    max_threads: int, max_blocks: int, shared_kib: int, unit: int = 128, reserved: int = KIB
) -> Architecture:
    return Architecture(
        warp_size=32,
        max_threads=max_threads,
        max_blocks=max_blocks,
        registers=64 * KIB,
        register_files=4,
        register_unit=256,
        max_registers_per_thread=255,
        shared_bytes=shared_kib * KIB,
        shared_unit=unit,
        shared_reserved=reserved,
    )


def _amd_cdna(lds_kib: int) -> Architecture:
    # A lane has 512 registers, ordinary and accumulation ones together; four SIMDs of 64 lanes.
    return Architecture(
        warp_size=64,
        max_threads=32 * 64,
        max_blocks=32,
        registers=4 * 64 * 512,
        register_files=4,
        register_unit=8 * 64,
        max_registers_per_thread=512,
        shared_bytes=lds_kib * KIB,
        shared_unit=512,
        shared_reserved=0,
    )


ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        "sm_70": _nvidia(2048, 32, 96, unit=256, reserved=0),
        "sm_75": _nvidia(1024, 16, 64, unit=256, reserved=0),
        "sm_80": _nvidia(2048, 32, 164),
        "sm_86": _nvidia(1536, 16, 100),
        "sm_87": _nvidia(1536, 16, 164),
        "sm_89": _nvidia(1536, 24, 100),
        "sm_90": _nvidia(2048, 32, 228),
        "sm_100": _nvidia(2048, 32, 228),
        "sm_120": _nvidia(1536, 24, 100),
        "gfx90a": _amd_cdna(64),
        "gfx942": _amd_cdna(64),
    }
)
"""Limits by architecture; a trailing letter (``sm_90a``) does not change them."""


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def architecture_limits(name: str) -> Architecture:
    """Return the limits of an architecture.

    Raises
    ------
    UnknownArchitecture
        With the names that are known.
    """
    limits = ARCHITECTURES.get(name) or ARCHITECTURES.get(name.rstrip("af"))
    if limits is None:
        raise UnknownArchitecture(name)
    return limits


def _blocks_by_registers(limits: Architecture, registers_per_thread: int, warps: int) -> int:
    if registers_per_thread == 0:
        return limits.max_blocks
    per_warp = _round_up(registers_per_thread * limits.warp_size, limits.register_unit)
    warps_per_file = limits.registers // limits.register_files // per_warp
    return warps_per_file * limits.register_files // warps


def occupancy(registers_per_thread: int, threads: int, shared_bytes: int, architecture: str) -> int:
    """Return how many blocks of a kernel one processor holds at a time.

    The least of four limits: resident blocks, resident warps, registers (given to whole warps, in
    units, each warp in one of the processor's register files) and shared memory (given to blocks
    in units, with what the system reserves for each).

    Sources: NVIDIA, "CUDA C++ Programming Guide", table "Technical Specifications per Compute
    Capability", for the limits and the reserved kilobyte; the CUDA toolkit's ``cuda_occupancy.h``
    for the units and the register files. AMD, "CDNA 2" and "CDNA 3 Instruction Set Architecture"
    guides and the ROCm documentation of hardware specifications: 512 registers a lane in units of
    8, eight wavefronts a SIMD, 64 KiB of LDS in units of 512 bytes.

    Parameters
    ----------
    registers_per_thread : int
        As the compiler reports them (``ptxas -v``); 0 if unknown, which then does not limit.
    threads : int
        Threads of a block.
    shared_bytes : int
        Static and dynamic shared memory of a block.
    architecture : str
        Key of :data:`ARCHITECTURES`.

    Returns
    -------
    int
        At least 1.

    Raises
    ------
    UnknownArchitecture
        If there are no limits for it.
    KernelTooLarge
        If not one block fits: such a kernel does not launch.
    """
    limits = architecture_limits(architecture)
    if threads < 1 or registers_per_thread < 0 or shared_bytes < 0:
        raise ValueError(
            f"a block needs at least one thread and no negative amounts, got {threads} threads, "
            f"{registers_per_thread} registers, {shared_bytes} bytes"
        )
    if registers_per_thread > limits.max_registers_per_thread:
        raise KernelTooLarge(
            f"{registers_per_thread} registers per thread exceed the "
            f"{limits.max_registers_per_thread} of {architecture}"
        )
    warps = -(-threads // limits.warp_size)
    shared = _round_up(shared_bytes + limits.shared_reserved, limits.shared_unit)
    blocks = min(
        limits.max_blocks,
        limits.max_threads // limits.warp_size // warps,
        _blocks_by_registers(limits, registers_per_thread, warps),
        limits.shared_bytes // shared if shared else limits.max_blocks,
    )
    if blocks < 1:
        raise KernelTooLarge(
            f"no block of {threads} threads, {registers_per_thread} registers per thread and "
            f"{shared_bytes} bytes of shared memory fits on {architecture}; use a smaller tile"
        )
    return blocks
