# SPDX-License-Identifier: Apache-2.0
"""Blocks per processor: one case for each of the four limits and for each rounding."""

from __future__ import annotations

import pytest

from tvm_streamk.occupancy import (
    ARCHITECTURES,
    KernelTooLarge,
    UnknownArchitecture,
    architecture_limits,
    occupancy,
)

KIB = 1024


@pytest.mark.parametrize(
    ("registers", "threads", "shared", "architecture", "blocks"),
    [
        pytest.param(32, 32, 0, "sm_80", 32, id="resident blocks"),
        pytest.param(32, 128, 0, "sm_86", 12, id="resident warps"),
        pytest.param(0, 1024, 0, "sm_90", 2, id="registers unknown"),
        pytest.param(128, 256, 0, "sm_80", 2, id="registers"),
        pytest.param(64, 1024, 0, "sm_80", 1, id="registers of a large block"),
        pytest.param(33, 256, 0, "sm_80", 6, id="registers in units of 256 a warp"),
        pytest.param(168, 96, 0, "sm_80", 4, id="whole warps in each register file"),
        pytest.param(255, 256, 0, "sm_90", 1, id="most registers of a thread"),
        pytest.param(32, 128, 48 * KIB, "sm_80", 3, id="shared memory"),
        pytest.param(32, 128, 82 * KIB, "sm_80", 1, id="shared memory with the reserved KiB"),
        pytest.param(32, 128, 81 * KIB, "sm_80", 2, id="shared memory that just fits"),
        pytest.param(32, 128, 48 * KIB, "sm_70", 2, id="nothing reserved before sm_80"),
        pytest.param(168, 384, 227 * KIB, "sm_90a", 1, id="all of it, with a suffix"),
        pytest.param(128, 256, 0, "gfx942", 4, id="four wavefronts a SIMD"),
        pytest.param(512, 256, 0, "gfx942", 1, id="one wavefront a SIMD"),
        pytest.param(64, 256, 32 * KIB, "gfx942", 2, id="local data share"),
        pytest.param(16, 64, 0, "gfx90a", 32, id="eight wavefronts a SIMD at most"),
    ],
)
def test_known_cases(
    registers: int, threads: int, shared: int, architecture: str, blocks: int
) -> None:
    assert occupancy(registers, threads, shared, architecture) == blocks


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_more_of_anything_never_fits_more_blocks(architecture: str) -> None:
    counts = [occupancy(r, 256, 0, architecture) for r in range(8, 129, 8)]
    assert counts == sorted(counts, reverse=True)
    counts = [occupancy(32, 128, kib * KIB, architecture) for kib in range(0, 64, 4)]
    assert counts == sorted(counts, reverse=True)
    limits = architecture_limits(architecture)
    for threads in range(32, 1025, 32):
        assert occupancy(0, threads, 0, architecture) * threads <= limits.max_threads


def test_a_kernel_that_does_not_fit_is_refused() -> None:
    with pytest.raises(KernelTooLarge, match=r"no block of 128 threads.*233472 bytes"):
        occupancy(32, 128, 228 * KIB, "sm_90")
    with pytest.raises(KernelTooLarge, match="256 registers per thread exceed the 255 of sm_80"):
        occupancy(256, 32, 0, "sm_80")
    with pytest.raises(KernelTooLarge, match="no block of 1024 threads, 255 registers"):
        occupancy(255, 1024, 0, "sm_80")


def test_bad_arguments_are_quoted() -> None:
    with pytest.raises(UnknownArchitecture, match="architecture 'sm_999'; known are gfx90a"):
        occupancy(32, 32, 0, "sm_999")
    with pytest.raises(ValueError, match="got 0 threads"):
        occupancy(32, 0, 0, "sm_80")
