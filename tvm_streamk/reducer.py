# SPDX-License-Identifier: Apache-2.0
"""Which reductions can be cut into partial sums, and how two partial sums become one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, tirx

from tvm_streamk.expressions import Buffer, Expression, dtype_of

SUM = "sum"
BITWISE_OPERATORS = ("tirx.bitwise_and", "tirx.bitwise_or", "tirx.bitwise_xor")


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
)


def match_reducer(update: Any, accumulator: Buffer, initial: Expression) -> Reducer | None:
    """Recognise ``accumulator[i] = operation(accumulator[i], value)``, either way round.

    Parameters
    ----------
    update
        The ``BufferStore`` of the reduction block.
    accumulator
        The buffer that it stores to.
    initial
        The value that the init block stores.

    Returns
    -------
    Reducer or None
        None where the update is not a reduction that can be cut.
    """
    value = update.value
    for kind, name, combine, identity in _OPERATIONS:
        if isinstance(value, kind) and _one_side_is(update, accumulator, value.a, value.b):
            restartable = identity is None or _equals(initial, identity)
            return Reducer(name, combine, initial, restartable)
    return _match_bitwise(update, accumulator, initial)


def sum_reducer(initial: Expression) -> Reducer:
    """The sum, for updates whose arithmetic is inside a tensor intrinsic."""
    return Reducer(SUM, lambda left, right: left + right, initial, _equals(initial, 0))


def _match_bitwise(update: Any, accumulator: Buffer, initial: Expression) -> Reducer | None:
    value = update.value
    if not isinstance(value, ir.Call) or not isinstance(value.op, ir.Op):
        return None
    name = str(value.op.name)
    if name not in BITWISE_OPERATORS or not _one_side_is(update, accumulator, *value.args):
        return None
    operation = value.op
    dtype = dtype_of(value)

    def combine(left: Expression, right: Expression) -> Expression:
        return tirx.call_intrin(dtype, operation.name, left, right)

    idempotent = not name.endswith("xor")
    short = name.removeprefix("tirx.")
    return Reducer(short, combine, initial, idempotent or _equals(initial, 0))


def _one_side_is(update: Any, accumulator: Buffer, left: Expression, right: Expression) -> bool:
    left_is = _is_same_element(update, accumulator, left)
    right_is = _is_same_element(update, accumulator, right)
    if left_is == right_is:
        return False
    other = right if left_is else left
    found: list[Any] = []
    tvm_ffi.structural_walk(
        other,
        (ir.TensorLoad, lambda load: found.append(load) if load.source.same_as(accumulator) else None),
        order="pre",
    )
    return not found


def _is_same_element(update: Any, accumulator: Buffer, expression: Expression) -> bool:
    return (
        isinstance(expression, ir.TensorLoad)
        and expression.source.same_as(accumulator)
        and all(
            tvm_ffi.structural_equal(mine, its)
            for mine, its in zip(update.indices, expression.indices, strict=True)
        )
    )


def _equals(expression: Expression, value: int) -> bool:
    return isinstance(expression, (tirx.IntImm, tirx.FloatImm)) and expression.value == value
