# SPDX-License-Identifier: Apache-2.0
"""Arrays for tests: inputs whose sums are exact, and outputs that show what was not written."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

_NARROW_FLOATS = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
_NARROW_RANGE = (-1, 2)
_WIDE_RANGE = (-3, 4)
_BELOW_LARGEST = 4


def element_dtype(name: Any) -> np.dtype[Any]:
    """NumPy's dtype for one of TVM's, `bfloat16` and the 8-bit floats through ml_dtypes.

    Raises
    ------
    TypeError
        If NumPy does not know the dtype and ml_dtypes is not installed or does not either.
    """
    try:
        return np.dtype(name)
    except TypeError as unknown:
        try:
            return np.dtype(getattr(importlib.import_module("ml_dtypes"), str(name)))
        except (ImportError, AttributeError) as error:
            raise TypeError(f"dtype {name!r} needs `pip install ml_dtypes` ({error})") from unknown


def integer_inputs(
    shape: Sequence[int],
    dtype: Any = "float32",
    seed: int = 0,
    low: int | None = None,
    high: int | None = None,
) -> np.ndarray:
    """Random whole numbers, so that sums are exact in whatever order they are made.

    Parameters
    ----------
    shape : Sequence[int]
        Extents.
    dtype : str or numpy.dtype
        Element type, by NumPy's or TVM's name.
    seed : int
        Equal seeds give equal arrays.
    low, high : int or None
        The numbers are in [low, high). By default [-3, 4), for floats of 16 and 8 bits
        [-1, 2), and never below 0 for types without a sign.

    Returns
    -------
    numpy.ndarray
        Shape `shape`, type `dtype`.
    """
    kind = element_dtype(dtype)
    default_low, default_high = _NARROW_RANGE if kind.name in _NARROW_FLOATS else _WIDE_RANGE
    if kind.kind in "ub":
        default_low, default_high = 0, 2 if kind.kind == "b" else default_high
    smallest = default_low if low is None else low
    bound = default_high if high is None else high
    numbers = np.random.default_rng(seed).integers(smallest, bound, tuple(shape))
    return numbers.astype(kind)


def poisoned(shape: Sequence[int], dtype: Any = "float32") -> np.ndarray:
    """An array for an output: NaN in floats, a large odd number in integers, True in booleans."""
    kind = element_dtype(dtype)
    if kind.kind == "b":
        return np.full(tuple(shape), True, kind)
    if kind.kind in "iu":
        return np.full(tuple(shape), np.iinfo(kind).max - _BELOW_LARGEST, kind)
    return np.full(tuple(shape), np.nan, kind)
