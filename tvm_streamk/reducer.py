# SPDX-License-Identifier: Apache-2.0
"""Which reductions can be cut into partial sums, and how two partial sums become one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, tirx

from tvm_streamk.expressions import Expression, buffers_read, contains

SUM = "sum"


@dataclass(frozen=True)
class Reducer:
    """An associative and commutative operation with the value that a reduction starts from.

    Attributes
    ----------
    name
        ``sum``, ``product``, ``max``, ``min``, ``and``, ``or`` or a bitwise operation.
    combine
        Builds the expression that merges two partial results.
    initial
        The value that the nest itself starts from.
    restartable
        Whether every segment may start from ``initial``: it is the identity, or the operation is
        idempotent, so that counting it once per segment changes nothing.
    """

    name: str
    combine: Callable[[Expression, Expression], Expression]
    initial: Expression
    restartable: bool


_OPERATIONS: tuple[tuple[Any, str, Callable[[Any, Any], Any], int | None], ...] = (
    (tirx.Add, SUM, lambda left, right: left + right, 0),
    (tirx.Mul, "product", lambda left, right: left * right, 1),
    (tirx.Max, "max", tirx.max, None),
    (tirx.Min, "min", tirx.min, None),
    (tirx.And, "and", tirx.And, None),
    (tirx.Or, "or", tirx.Or, None),
    (tirx.BitwiseAnd, "bitwise_and", lambda left, right: left & right, None),
    (tirx.BitwiseOr, "bitwise_or", lambda left, right: left | right, None),
    (tirx.BitwiseXor, "bitwise_xor", lambda left, right: left ^ right, 0),
)
"""Node, name, the operation, and its identity (None where it is idempotent)."""


def match_reducer(update: Any, initial: Expression) -> Reducer | None:
    """Recognise ``accumulator[i] = operation(accumulator[i], value)``, either way round.

    Parameters
    ----------
    update
        The body of the reduction block.
    initial
        The value that the init block stores.

    Returns
    -------
    Reducer or None
        None where the update is not a reduction that can be cut.
    """
    if not isinstance(update, tirx.BufferStore):
        return None
    value = update.value
    for kind, name, combine, identity in _OPERATIONS:
        if isinstance(value, kind) and _one_side_is(update, value.a, value.b):
            restartable = identity is None or _equals(initial, identity)
            return Reducer(name, combine, initial, restartable)
    return None


def sum_reducer(initial: Expression) -> Reducer:
    """The sum, for updates whose arithmetic is inside a tensor intrinsic."""
    return Reducer(SUM, lambda left, right: left + right, initial, _equals(initial, 0))


def _one_side_is(update: Any, left: Expression, right: Expression) -> bool:
    """Whether one operand is the element that is updated, and the other does not use its buffer."""
    left_is, right_is = _is_same_element(update, left), _is_same_element(update, right)
    if left_is == right_is:
        return False
    other = right if left_is else left
    return not contains(buffers_read(other), update.buffer)


def _is_same_element(update: Any, expression: Expression) -> bool:
    return (
        isinstance(expression, ir.TensorLoad)
        and expression.source.same_as(update.buffer)
        and all(
            tvm_ffi.structural_equal(mine, its)
            for mine, its in zip(update.indices, expression.indices, strict=True)
        )
    )


def _equals(expression: Expression, value: int) -> bool:
    return isinstance(expression, (tirx.IntImm, tirx.FloatImm)) and expression.value == value
