# SPDX-License-Identifier: Apache-2.0
"""Launch exported CPU kernels once each, with TVM's small runtime library and no compiler.

``python run_kernel.py LIBRARY M N K [LIBRARY M N K ...]``; the product of ones is checked.
``count_instructions.py`` runs it under callgrind, where importing all of TVM would take minutes.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from pathlib import Path

import numpy as np
import tvm_ffi

ALIGNMENT = 64
WORDS_PER_KERNEL = 4


def aligned(shape: tuple[int, ...], value: float) -> np.ndarray:
    """A float32 array that starts where TVM's kernels may assume that it does."""
    count = int(np.prod(shape))
    memory: np.ndarray = np.empty(count * np.dtype("float32").itemsize + ALIGNMENT, "uint8")
    start = -memory.ctypes.data % ALIGNMENT
    array: np.ndarray = memory[start : start + count * np.dtype("float32").itemsize].view("float32")
    array[:] = value
    return array.reshape(shape)


def load_runtime() -> None:
    """Load the library that has TVM's thread pool, for the kernel to find."""
    package = importlib.util.find_spec("tvm")
    if package is None or package.origin is None:
        raise ImportError("there is no package tvm")
    library = Path(package.origin).parent / "lib" / "libtvm_runtime.so"
    ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)


def launch(library: str, m: int, n: int, k: int) -> None:
    """Run one kernel once."""
    kernel = tvm_ffi.load_module(library)["main"]
    product = aligned((m, n), np.nan)
    arrays = (aligned((m, k), 1), aligned((k, n), 1), product)
    kernel(*(tvm_ffi.from_dlpack(array) for array in arrays))
    if not (product == k).all():
        raise AssertionError(f"the product of {library} is wrong")


def main() -> None:
    """Run each kernel once."""
    load_runtime()
    arguments = sys.argv[1:]
    for start in range(0, len(arguments), WORDS_PER_KERNEL):
        library, *extents = arguments[start : start + WORDS_PER_KERNEL]
        m, n, k = (int(extent) for extent in extents)
        launch(library, m, n, k)


if __name__ == "__main__":
    main()
