# SPDX-License-Identifier: Apache-2.0
"""Slices of a symbolic number of tiles: a worker computes its own once.

With constant shapes the formulas of a partition are short, and are best left inline. With a
symbolic number of tiles they are not: TVM substitutes them into every index and then simplifies
that for seconds. So a worker first stores them to a few registers.

Not where TVM shrinks a private buffer to a part that begins at a place that depends on the tile
(:func:`~tvm_streamk.relative.has_absolute_indices`): it would put loads of a register into indices
there, of the register as it was before it was shrunk itself, and not find it later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from tvm import tirx

from tvm_streamk.expressions import (
    Buffer,
    Expression,
    Statement,
    buffers_stored,
    constant,
    dtype_of,
    full_region,
    opaque_block,
    sequence,
)
from tvm_streamk.nest import CPU
from tvm_streamk.partition import Partition, SliceValues
from tvm_streamk.tile_nest import TileNest

Limits = Mapping[str, tuple[int, int | None]]
"""The least and the greatest that a named value can be; None where the latter is not known."""

LIMITS: Limits = {"first_tile": (0, None), "quota": (1, None)}


@dataclass(frozen=True)
class SliceBuffer:
    """The registers of one nest.

    Attributes
    ----------
    buffer
        One integer per field of :class:`~tvm_streamk.partition.SliceValues`.
    fill
        The statement that computes them, for the start of a worker.
    partition
        The same partition, of this worker, in terms of the registers.
    """

    buffer: Buffer
    fill: Statement
    partition: Partition


def slice_buffer(
    partition: Partition, nest: TileNest, name: str, worker: Expression, dtype: str
) -> SliceBuffer | None:
    """Registers for a worker's values, or None where the formulas are short anyway."""
    names = [field.name for field in fields(SliceValues)]
    buffer = _registers(f"stream_k_{name}_slices", len(names), nest, dtype)
    stores: list[Statement] = []

    def keep(field: str, value: Expression) -> Expression:
        position = names.index(field)
        stores.append(tirx.BufferStore(buffer, constant(value, dtype), [position]))
        return buffer[position]

    kept = partition.slice_values(worker, keep)
    if kept is None:
        return None
    block_name = f"{nest.block}_{name}_slices"
    fill = opaque_block(block_name, sequence(stores), (), (full_region(buffer),))
    known = SliceValues(**_within(vars(kept), LIMITS))
    return SliceBuffer(buffer, fill, replace(partition, known=known))


def _within(values: Mapping[str, Expression], limits: Limits) -> dict[str, Expression]:
    """Values with what is known of them said in their expressions.

    TVM and LLVM know the limits of a loop's variable, and of a register nothing. An index that may
    be negative is divided with a correction, and one without an upper limit in 64 bits and not in
    vectors: a copy that gathers takes twice the time.
    """
    result = dict(values)
    for name, (least, most) in limits.items():
        dtype = dtype_of(values[name])
        result[name] = tirx.max(result[name], tirx.const(least, dtype))
        if most is not None:
            result[name] = tirx.min(result[name], tirx.const(most, dtype))
    return result


@dataclass(frozen=True)
class Registers:
    """Integers in registers: the statement that fills them, and their values."""

    fill: Statement
    values: dict[str, Expression]


def in_registers(
    nest: TileNest, values: Mapping[str, Expression], dtype: str, limits: Limits
) -> Registers:
    """Registers for a tile's number, and for what else TVM's arithmetic must not see through.

    It follows both cases of a tile that is streamed or whole in every index, for seconds per
    kernel. And where a 64-bit number becomes an index of 32 bits, it moves the conversion inwards,
    to products that have no 32 bits. The bounds of the panel loop stay inline where they can:
    asynchronous copies need them to. ``limits`` are those of values that get into indices.
    """
    buffer = _registers("stream_k_tile", len(values), nest, dtype)
    stores = [
        tirx.BufferStore(buffer, constant(value, dtype), [position])
        for position, value in enumerate(values.values())
    ]
    fill = opaque_block(f"{nest.block}_tile", sequence(stores), (), (full_region(buffer),))
    known = {name: buffer[position] for position, name in enumerate(values)}
    return Registers(fill, _within(known, limits))


def _registers(name: str, count: int, nest: TileNest, dtype: str) -> Buffer:
    scope = "global" if nest.grid == CPU else "local"
    return tirx.decl_buffer((count,), dtype, name=name, scope=scope)


def registers_in(nests: Any) -> list[Buffer]:
    """The registers that nests use, for the allocations of the root block."""
    found: dict[Any, None] = {}
    for buffer in buffers_stored(nests):
        if str(buffer.name).endswith(("_slices", "stream_k_tile")):
            found[buffer] = None
    return list(found)
