# SPDX-License-Identifier: Apache-2.0
"""Unscheduled contractions by an equation, with exact inputs and numpy's answer.

``"ik,kj->ij"`` is a matrix product; every product over any axes in any order can be written like
that. The reduction block is called ``C``; an epilogue is a block ``D`` that reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te, tirx
from workloads import Workload

from tvm_streamk.testing import integer_inputs
from tvm_streamk.testing.arrays import element_dtype

ALPHA, BETA = 2, 3
EPILOGUES = ("none", "scale and add", "bias and clip", "cast")


@dataclass(frozen=True)
class Contraction:
    """One contraction.

    Attributes
    ----------
    equation
        Operands, then the output, one letter per axis; letters that the output lacks are summed.
    extents
        The length of every letter's axis.
    dtypes
        Of each operand.
    accumulator
        Type of the sums, and of the output unless the epilogue casts.
    epilogue
        One of :data:`EPILOGUES`.
    padding
        For each operand's letters in it: how many zeros stand before the first element, gathered
        by a block of their own (called ``padded``) that a schedule can inline.
    """

    equation: str
    extents: Mapping[str, int]
    dtypes: tuple[str, ...] = ("float32", "float32")
    accumulator: str = "float32"
    epilogue: str = "none"
    padding: Mapping[str, int] | None = None

    @property
    def operands(self) -> list[str]:
        """The letters of each operand."""
        return self.equation.split("->")[0].split(",")

    @property
    def output(self) -> str:
        """The letters of the output."""
        return self.equation.split("->")[1]

    @property
    def summed(self) -> str:
        """The letters that are summed, in order of appearance."""
        letters = dict.fromkeys("".join(self.operands))
        return "".join(letter for letter in letters if letter not in self.output)

    def lengths(self, letters: str) -> tuple[int, ...]:
        """The extents of some letters."""
        return tuple(self.extents[letter] for letter in letters)

    def workload(self) -> Workload:
        """The function, its inputs and numpy's answer."""
        values = [
            integer_inputs(self._stored(letters), dtype, seed)
            for seed, (letters, dtype) in enumerate(zip(self.operands, self.dtypes, strict=True))
        ]
        placeholders = [
            te.placeholder(value.shape, dtype, name="AB"[position])
            for position, (value, dtype) in enumerate(zip(values, self.dtypes, strict=True))
        ]
        padded = map(self._padded, placeholders, self.operands)
        sums = self._compute(list(padded))
        expected = self._expected(values)
        extra, result, expected, more = self._with_epilogue(sums, expected)
        function = te.create_prim_func([*placeholders, *extra, result])
        return Workload(function, (*values, *more), expected)

    def _stored(self, letters: str) -> tuple[int, ...]:
        """An operand's shape without the zeros that pad it."""
        padding = self.padding or {}
        return tuple(self.extents[each] - padding.get(each, 0) for each in letters)

    def _padded(self, operand: Any, letters: str) -> Any:
        padding = [(self.padding or {}).get(letter, 0) for letter in letters]
        if not any(padding):
            return operand

        def element(*index: Any) -> Any:
            moved = [each - zeros for each, zeros in zip(index, padding, strict=True)]
            inside = tirx.all(*(each >= 0 for each in moved))
            zero = tirx.const(0, operand.dtype)
            return tirx.if_then_else(inside, operand(*moved), zero)

        return te.compute(self.lengths(letters), element, name=f"padded_{operand.name}")

    def _compute(self, operands: list[Any]) -> Any:
        axes = {each: te.reduce_axis((0, self.extents[each]), name=each) for each in self.summed}

        def element(*index: Any) -> Any:
            place = {**dict(zip(self.output, index, strict=True)), **axes}
            factors = [
                operand(*(place[letter] for letter in letters)).astype(self.accumulator)
                for operand, letters in zip(operands, self.operands, strict=True)
            ]
            product = factors[0]
            for factor in factors[1:]:
                product = product * factor
            return te.sum(product, axis=list(axes.values()))

        return te.compute(self.lengths(self.output), element, name="C")

    def _expected(self, values: list[np.ndarray]) -> np.ndarray:
        padding = self.padding or {}
        padded = [
            np.pad(value.astype("float64"), [(padding.get(each, 0), 0) for each in letters])
            for value, letters in zip(values, self.operands, strict=True)
        ]
        return np.einsum(self.equation, *padded).astype(element_dtype(self.accumulator))

    def _with_epilogue(
        self, sums: Any, expected: np.ndarray
    ) -> tuple[list[Any], Any, np.ndarray, list[np.ndarray]]:
        """More parameters, the result, what it should be, and values for the parameters."""
        if self.epilogue == "scale and add":
            old = te.placeholder(sums.shape, self.accumulator, name="old")
            value = integer_inputs(expected.shape, self.accumulator, seed=7)
            alpha, beta = (tirx.const(each, self.accumulator) for each in (ALPHA, BETA))
            result = te.compute(sums.shape, lambda *i: alpha * sums(*i) + beta * old(*i), name="D")
            return [old], result, ALPHA * expected + BETA * value, [value]
        if self.epilogue == "bias and clip":
            bias = te.placeholder(sums.shape[-1:], self.accumulator, name="bias")
            value = integer_inputs(expected.shape[-1:], self.accumulator, seed=7)
            zero = tirx.const(0, self.accumulator)
            result = te.compute(
                sums.shape, lambda *i: tirx.max(sums(*i) + bias[i[-1]], zero), name="D"
            )
            return [bias], result, np.maximum(expected + value, 0), [value]
        if self.epilogue == "cast":
            narrow = "int32" if self.accumulator.startswith("float") else "float32"
            result = te.compute(sums.shape, lambda *i: sums(*i).astype(narrow), name="D")
            return [], result, expected.astype(narrow), []
        return [], sums, expected, []
