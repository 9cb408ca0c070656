# SPDX-License-Identifier: Apache-2.0
"""What can go wrong when CUDA code runs on the CPU, one class per cause."""

from __future__ import annotations


class CudaOnCpuError(RuntimeError):
    """Base of all errors of this package."""


class CompilerMissing(CudaOnCpuError):
    """There is no compiler that could be used: no g++, too old, or for another machine."""


class SanitizerMissing(CudaOnCpuError):
    """The compiler has no ThreadSanitizer library, or it cannot start here."""


class UnsupportedCode(CudaOnCpuError):
    """The source has a construct or a PTX instruction that is not emulated."""


class CompilationFailed(UnsupportedCode):
    """g++ refused the source; mostly since the emulated headers lack something."""


class BadLaunch(CudaOnCpuError, ValueError):
    """The launch does not fit the source or the arrays, or its options are not legal."""


class TooManyThreads(BadLaunch):
    """A launch has more threads than the sanitizer can tell apart."""


class KernelFault(CudaOnCpuError):
    """The kernel did something that CUDA does not allow."""


class BarrierDivergence(KernelFault):
    """Not all threads of a block, or lanes of a warp, came to the same barrier or operation."""


class MemoryOverrun(KernelFault):
    """A kernel wrote just outside of a shared array or of a buffer."""


class InvalidAccess(KernelFault):
    """A kernel touched memory that is not mapped, overflowed its stack or divided by zero."""


class Deadlock(KernelFault):
    """No thread can go on, or all that go on wait for something that does not come."""


class SharedMemoryExceeded(KernelFault):
    """A block needs more shared memory than any device has."""


FAULT_CLASSES: dict[str, type[CudaOnCpuError]] = {
    "divergence": BarrierDivergence,
    "shared_overrun": MemoryOverrun,
    "memory": InvalidAccess,
    "deadlock": Deadlock,
    "limit": SharedMemoryExceeded,
    "request": BadLaunch,
}
