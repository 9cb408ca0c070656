# SPDX-License-Identifier: Apache-2.0
"""Runs the CUDA C++ that TVM emits on the CPU, without a GPU and without the CUDA toolkit.

g++ compiles the source against headers that stand in for CUDA's. At run time every CUDA thread is
a fibre, one runs at a time, and the order is the caller's choice: `run_plan` computes results and
notices threads that miss a barrier, writes outside of arrays and waits that never end;
`find_races` lets ThreadSanitizer look for barriers and fences that are missing. It reads CUDA's
memory model strictly: a fence orders an atomic of its own thread only, so that a block whose first
thread publishes for all needs the fence in that thread, between the barrier and the atomic.

Not emulated: clusters, TMA, mbarriers, wgmma, tcgen05, 8-bit floats. Not seen: speed, registers,
occupancy, bank conflicts. Tensor cores are emulated with 32-bit sums, one product after the other;
a GPU rounds differently, so exact comparisons need data whose sums are exact. A thread that waits
for another by reading a volatile (but no atomic) is never interrupted, and waits for ever.
"""

from __future__ import annotations

from .errors import (
    BadLaunch,
    BarrierDivergence,
    CompilationFailed,
    CompilerMissing,
    CudaOnCpuError,
    Deadlock,
    InvalidAccess,
    KernelFault,
    MemoryOverrun,
    SanitizerMissing,
    SharedMemoryExceeded,
    TooManyThreads,
    UnsupportedCode,
)
from .launching import ORDERS, run_plan
from .race_reports import Access, Race
from .sanitizing import MOST_THREADS, find_races

__all__ = [
    "MOST_THREADS",
    "ORDERS",
    "Access",
    "BadLaunch",
    "BarrierDivergence",
    "CompilationFailed",
    "CompilerMissing",
    "CudaOnCpuError",
    "Deadlock",
    "InvalidAccess",
    "KernelFault",
    "MemoryOverrun",
    "Race",
    "SanitizerMissing",
    "SharedMemoryExceeded",
    "TooManyThreads",
    "UnsupportedCode",
    "find_races",
    "run_plan",
]
