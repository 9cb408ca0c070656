# SPDX-License-Identifier: Apache-2.0
"""Integers that may be numbers or expressions: what the formulas of a partition compute with.

The formulas use ``+ - * // %`` and three more operators. Passing those in lets the same formula
give numbers to a test and the kernel's own expressions to the rewrite.
"""

from __future__ import annotations

from typing import Any, Protocol

Integer = Any
"""A Python ``int`` or a TensorIR integer expression."""


class Operators(Protocol):
    """What the formulas need beyond ``+ - * // %``: on Python integers or on expressions."""

    def minimum(self, left: Integer, right: Integer) -> Integer:
        """Return the smaller of two integers."""

    def maximum(self, left: Integer, right: Integer) -> Integer:
        """Return the larger of two integers."""

    def where_less(
        self, left: Integer, right: Integer, then: Integer, otherwise: Integer
    ) -> Integer:
        """Return ``then`` if ``left < right``, else ``otherwise``."""


class PythonIntegers:
    """The operators on Python integers."""

    def minimum(self, left: int, right: int) -> int:
        """Return the smaller of two integers."""
        return min(left, right)

    def maximum(self, left: int, right: int) -> int:
        """Return the larger of two integers."""
        return max(left, right)

    def where_less(self, left: int, right: int, then: int, otherwise: int) -> int:
        """Return ``then`` if ``left < right``, else ``otherwise``."""
        return then if left < right else otherwise


PYTHON_INTEGERS = PythonIntegers()
