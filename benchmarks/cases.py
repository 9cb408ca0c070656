# SPDX-License-Identifier: Apache-2.0
"""What is measured: products whose tiles fill their waves, or leave a wave partly empty."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm.s_tir import Schedule

from tvm_streamk.schedules import cpu_gemm, gpu_gemm, host_target

NUM_WORKERS = 2
DATA_PARALLEL, PERSISTENT, STREAM_K = "data_parallel", "persistent", "stream_k"


@dataclass(frozen=True)
class Case:
    """One product in one schedule.

    Attributes
    ----------
    name
        What the table calls it.
    shape
        Rows, columns and length of the reduction; the last one is no multiple of 1024, since row
        strides of a power of two share their places in the first-level cache.
    make
        Its schedule, before Stream-K.
    target
        ``llvm`` or ``opencl``.
    merge
        How cut tiles are put together.
    baseline
        What the required ratio is measured against. On OpenCL that is the persistent form with
        whole tiles only: PoCL runs a persistent loop faster than a data-parallel grid of the same
        tiles, which is not Stream-K's merit.
    required
        The least ratio; None where there is nothing to promise.
    """

    name: str
    shape: tuple[int, int, int]
    make: Callable[[int, int, int], Schedule]
    target: str
    merge: str
    baseline: str
    required: float | None

    def schedule(self) -> Schedule:
        """A fresh data-parallel schedule."""
        return self.make(*self.shape)

    def build_target(self) -> Any:
        """TVM's target, with all that this machine's processor has."""
        return host_target() if self.target == "llvm" else self.target


def _one_cpu_tile(m: int, n: int, k: int) -> Schedule:
    return cpu_gemm(m, n, k, tile=(49, 512))


def _small_gpu_tile(m: int, n: int, k: int) -> Schedule:
    return gpu_gemm(m, n, k, threads=(8, 8), per_thread=(4, 4))


CASES = (
    Case("one tile", (49, 512, 4608), _one_cpu_tile, "llvm", "two_phase", DATA_PARALLEL, 1.5),
    Case("two tiles", (98, 512, 4608), _one_cpu_tile, "llvm", "two_phase", DATA_PARALLEL, 0.97),
    Case("three tiles", (147, 512, 4608), _one_cpu_tile, "llvm", "two_phase", DATA_PARALLEL, None),
    *(
        Case(name, shape, _small_gpu_tile, "opencl", merge, PERSISTENT, required)
        for merge in ("atomic", "two_phase", "last_arriver")
        for name, shape, required in (
            ("three tiles", (96, 32, 8208), None if merge == "last_arriver" else 1.2),
            ("two tiles", (64, 32, 8208), 0.95),
        )
    ),
)


def cases_for(target: str) -> list[Case]:
    """The cases of one target."""
    return [case for case in CASES if case.target == target]
