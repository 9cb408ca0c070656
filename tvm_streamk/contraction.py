# SPDX-License-Identifier: Apache-2.0
"""Recognise a product of two tensors that is summed over the axes they share.

A matrix product of any layout and batch is one, and so is a convolution whose groups have more than
one channel. Its axes fall into four groups, by the tensors that they index::

    batch    both operands and the output
    rows     one operand and the output
    columns  the other operand and the output; among them the output's contiguous axis
    sums     both operands, not the output

Axes of extent 1 belong to no group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tvm import ir, s_tir, tirx

from tvm_streamk.expressions import Buffer, Expression, collect, contains, dtype_of, static_value
from tvm_streamk.nest import block_paths, root_block
from tvm_streamk.reducer import SUM, match_reducer


class Axis(Enum):
    """The group that an axis belongs to."""

    BATCH = "batch"
    ROW = "row"
    COLUMN = "column"
    SUM = "sum"
    UNIT = "unit"


@dataclass(frozen=True)
class Contraction:
    """A product in the form ``C[batch, row, column] += A[batch, row, k] * B[batch, k, column]``.

    Attributes
    ----------
    block : SBlock
        The reduction block.
    row_operand, column_operand : int
        The positions of A and B among the block's reads: 0 and 1, or 1 and 0.
    axes : tuple of Axis
        The group of each of the block's iterators.
    """

    block: Any
    row_operand: int
    column_operand: int
    axes: tuple[Axis, ...]

    def extent(self, axis: Axis) -> Expression:
        """The product of the extents of a group's axes; 1 where it has none."""
        total: Expression = 1
        for iterator, own in zip(self.block.iter_vars, self.axes, strict=True):
            if own == axis:
                known = static_value(iterator.dom.extent)
                total = total * (iterator.dom.extent if known is None else known)
        return total

    def axis_extents(self, axis: Axis) -> tuple[Expression, ...]:
        """The extents of a group's axes, outermost first."""
        pairs = zip(self.block.iter_vars, self.axes, strict=True)
        return tuple(iterator.dom.extent for iterator, own in pairs if own == axis)

    @property
    def gathers_columns(self) -> bool:
        """Whether an index of the column operand combines axes, as that of a window does."""
        units = [
            iterator.var
            for iterator, own in zip(self.block.iter_vars, self.axes, strict=True)
            if own == Axis.UNIT
        ]
        region = self.block.reads[self.column_operand].region
        variables = [collect(axis.min, ir.Var) for axis in region]
        wide = [[var for var in own if not contains(units, var)] for own in variables]
        return any(len(own) > 1 for own in wide)

    def index_map(self, variables: Sequence[Any], order: Sequence[Axis]) -> Any:
        """The map from a tensor's axes to one fused axis per group.

        Parameters
        ----------
        variables : sequence of Var
            The block's iterators that index the tensor, in the tensor's order.
        order : sequence of Axis
            The groups, as they come out.

        Returns
        -------
        tvm.tirx.IndexMap
            A group without axes becomes the index 0.
        """
        kinds = {
            iterator.var: (own, iterator.dom.extent)
            for iterator, own in zip(self.block.iter_vars, self.axes, strict=True)
        }
        inputs: list[Any] = []
        fused: dict[Axis, Expression] = {}
        for variable in variables:
            own, extent = kinds[variable]
            fresh = ir.Var(str(variable.name), dtype_of(variable))
            inputs.append(fresh)
            if own in order:
                fused[own] = fused[own] * extent + fresh if own in fused else fresh
        zero = tirx.const(0, dtype_of(self.block.iter_vars[0].var))
        return tirx.IndexMap(inputs, [fused.get(own, zero) for own in order], None)


def find_reduction(function: Any) -> Any | None:
    """The one block of a function that reduces, or None where there is none or are several."""
    if not isinstance(function.body, s_tir.SBlockRealize):
        return None
    paths = block_paths(root_block(function).body)
    reducing = [path.block for path in paths if _reduces(path.block)]
    return reducing[0] if len(reducing) == 1 else None


def classify(block: Any) -> Contraction | None:
    """The block as a contraction, or None where it is something else.

    Parameters
    ----------
    block : SBlock
        A reduction block.

    Returns
    -------
    Contraction or None
    """
    product = _product_of_loads(block)
    if product is None or len(block.writes) != 1 or len(block.reads) != 2:
        return None
    used = [_iterators_of(region) for region in (*block.reads, *block.writes)]
    owners = [_owners(iterator.var, used) for iterator in block.iter_vars]
    column_operand = _column_operand(block, owners)
    if column_operand is None:
        return None
    found = [
        _axis(iterator, own, column_operand)
        for iterator, own in zip(block.iter_vars, owners, strict=True)
    ]
    axes = tuple(axis for axis in found if axis is not None)
    if len(axes) < len(found):
        return None
    return Contraction(block, 1 - column_operand, column_operand, axes)


def _reduces(block: Any) -> bool:
    return any(iterator.iter_type == tirx.IterVar.CommReduce for iterator in block.iter_vars)


def _product_of_loads(block: Any) -> Any | None:
    """The summand, if it is a product of two loads, each perhaps converted to another type."""
    reducer = match_reducer(block.body, tirx.const(0, "int32"))
    if reducer is None or reducer.name != SUM:
        return None
    value = block.body.value
    summand = value.b if _loads_from(value.a, block.body.buffer) else value.a
    if not isinstance(summand, tirx.Mul):
        return None
    operands = [_without_cast(side) for side in (summand.a, summand.b)]
    return summand if all(isinstance(side, ir.TensorLoad) for side in operands) else None


def _without_cast(value: Expression) -> Expression:
    return value.value if isinstance(value, tirx.Cast) else value


def _loads_from(value: Expression, buffer: Buffer) -> bool:
    return contains([load.source for load in collect(value, ir.TensorLoad)], buffer)


def _iterators_of(region: Any) -> list[Any]:
    return [var for axis in region.region for var in collect(axis.min, ir.Var)]


def _owners(variable: Any, used: Sequence[Sequence[Any]]) -> tuple[bool, bool, bool]:
    first, second, output = (any(variable.same_as(var) for var in own) for own in used)
    return first, second, output


def _column_operand(block: Any, owners: Sequence[tuple[bool, bool, bool]]) -> int | None:
    """The operand that the output's last axis, of those with an extent, comes from."""
    written = _iterators_of(block.writes[0])
    wide = [
        (iterator.var, own)
        for iterator, own in zip(block.iter_vars, owners, strict=True)
        if static_value(iterator.dom.extent) != 1
    ]
    for variable in reversed(written):
        for candidate, own in wide:
            if candidate.same_as(variable) and own[0] != own[1]:
                return 0 if own[0] else 1
    return None


def _axis(iterator: Any, owners: tuple[bool, bool, bool], column_operand: int) -> Axis | None:
    if static_value(iterator.dom.extent) == 1:
        return Axis.UNIT
    first, second, output = owners
    if iterator.iter_type == tirx.IterVar.CommReduce:
        return Axis.SUM if first and second and not output else None
    if iterator.iter_type != tirx.IterVar.DataPar or not output or not (first or second):
        return None
    if first and second:
        return Axis.BATCH
    return Axis.COLUMN if (column_operand == 0) == first else Axis.ROW
