# SPDX-License-Identifier: Apache-2.0
"""Slices of a symbolic number of tiles: a worker computes its own once.

With constant shapes the formulas of a partition are short, and are best left inline. With a
symbolic number of tiles they are not: TVM substitutes them into every index and then simplifies
that for seconds. So a worker first stores them to a few registers.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from tvm import tirx

from tvm_streamk.expressions import (
    Buffer,
    Expression,
    Statement,
    buffers_stored,
    constant,
    full_region,
    opaque_block,
    sequence,
)
from tvm_streamk.nest import CPU
from tvm_streamk.partition import Partition, SliceValues
from tvm_streamk.tile_nest import TileNest


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
    values = partition.slice_values(worker)
    if values is None:
        return None
    expressions = [getattr(values, field.name) for field in fields(values)]
    buffer = _registers(f"stream_k_{name}_slices", len(expressions), nest, dtype)
    stores = [
        tirx.BufferStore(buffer, constant(value, dtype), [position])
        for position, value in enumerate(expressions)
    ]
    block_name = f"{nest.block}_{name}_slices"
    fill = opaque_block(block_name, sequence(stores), (), (full_region(buffer),))
    known = SliceValues(*(buffer[position] for position in range(len(expressions))))
    return SliceBuffer(buffer, fill, replace(partition, known=known))


@dataclass(frozen=True)
class TileRegister:
    """A tile's number in a register: the statement that fills it, and its value."""

    fill: Statement
    value: Expression


def tile_register(nest: TileNest, tile: Expression, dtype: str) -> TileRegister:
    """A register for the number of a tile that is chosen by cases, streamed or whole.

    TVM's arithmetic follows both cases in every index, for seconds per kernel. The bounds of the
    panel loop have no cases and stay inline: asynchronous copies need them to.
    """
    buffer = _registers("stream_k_tile", 1, nest, dtype)
    store = tirx.BufferStore(buffer, constant(tile, dtype), [0])
    fill = opaque_block(f"{nest.block}_tile", store, (), (full_region(buffer),))
    return TileRegister(fill, buffer[0])


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
