# SPDX-License-Identifier: Apache-2.0
"""A DLight rule that tiles matrix products on a CPU: what Stream-K needs and TVM's list lacks.

TVM leaves a product on llvm as it was written: one thread, no vectors. This rule brings anything
that multiplies two tensors and adds up over the axes they share (matrix products of any layout and
batch, convolutions with more than one channel per group) into one form, ``C[b, i, j] +=
A[b, i, k] * B[b, k, j]``, and schedules that::

    for tile in T.parallel(b x i / rows of a tile x j / columns of a tile):
        <sums of the tile = 0>
        for panel in range(k / depth):
            <A's panel, copied>
            <B's panel, copied: columns next to each other>
            for column group, row group, step of the panel:
                for row in T.unroll(...):
                    for column in T.vectorized(...):
                        sums += A * B
        <whatever followed the product, on the sums of the tile>

Extents that the groups do not divide, symbolic ones among them, are padded with zeros in the
copies. Everything before the product (transposes, casts, padding) becomes part of a copy,
everything after it (bias, activation, residual) part of the store.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import tirx
from tvm.error import InternalError
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import codegen

from tvm_streamk.contraction import Axis, Contraction, classify, find_reduction
from tvm_streamk.expressions import static_value
from tvm_streamk.register_tile import CpuTile, cpu_tile

FEWEST_VECTOR_BITS = 128
"""Where LLVM does not know the processor."""

FEWEST_GATHERED_ROWS = 8
FEWEST_GATHERED_SUMS = 64
"""Where a copy computes an index per element, as for the windows of a convolution, it must be used
by as many rows; and LLVM makes vectors of shorter sums by itself, without a copy."""

_A_ORDER = (Axis.ROW, Axis.SUM)
_B_ORDER = (Axis.SUM, Axis.COLUMN)
_C_ORDER = (Axis.ROW, Axis.COLUMN)
_LOOP_ORDER = (Axis.ROW, Axis.COLUMN, Axis.SUM)
"""Orders of the fused axes, after that of the batch where there is one."""


class CpuGemm(ScheduleRule):
    """Tile a product for the caches and vector units of a CPU.

    :meth:`apply` gives a schedule whose nest is the one in the module's description, or ``None``
    for a function that is not one product with neighbours that can be made part of it.
    """

    def apply(self, func: Any, target: Any, tunable: bool = False) -> Schedule | None:
        """Schedule a function for an llvm target.

        Parameters
        ----------
        func : PrimFunc
            An unscheduled function. It is not changed.
        target : tvm.target.Target
            Its vector registers decide the sizes of the groups.
        tunable : bool
            Ignored: the schedule has no choices.

        Returns
        -------
        Schedule or None
        """
        if not isinstance(func, tirx.PrimFunc) or target.kind.name != "llvm":
            return None
        block = find_reduction(func)
        contraction = None if block is None else classify(block)
        if contraction is None or not _is_worth_tiling(contraction):
            return None
        try:
            return _schedule(func, contraction, target)
        except (ScheduleError, InternalError):
            return None


def _is_worth_tiling(contraction: Contraction) -> bool:
    """Whether the copies pay, as far as extents are known now.

    Rows and batch may be symbolic. Products with symbolic columns or sums are those of attention,
    whose sums or columns are short; they would double the time that TVM takes to compile a model.
    """
    columns, sums = (static_value(contraction.extent(axis)) for axis in (Axis.COLUMN, Axis.SUM))
    if columns is None or sums is None or columns == 1 or sums == 1:
        return False
    rows = static_value(contraction.extent(Axis.ROW))
    if contraction.gathers_columns:
        return rows is not None and rows >= FEWEST_GATHERED_ROWS and sums >= FEWEST_GATHERED_SUMS
    return rows != 1 or Axis.BATCH not in contraction.axes


def _schedule(func: Any, contraction: Contraction, target: Any) -> Schedule | None:
    schedule = Schedule(func)
    block = schedule.get_sblock(str(contraction.block.name_hint))
    contraction, store = _normalise(schedule, block, contraction)
    if not _merge_consumers(schedule, store):
        return None
    tile = _tile_sizes(contraction, target)
    _pad(schedule, block, tile)
    schedule.set_scope(block, 0, "local")
    copies = [schedule.cache_read(block, operand, "local") for operand in (0, 1)]
    for copy in copies:
        _inline_producers(schedule, copy)
    tiles, panels = _tile_loops(schedule, block, tile)
    for copy in copies:
        schedule.compute_at(copy, panels)
    schedule.reverse_compute_at(store, tiles)
    schedule.decompose_reduction(block, panels)
    return schedule


def _normalise(schedule: Schedule, block: Any, contraction: Contraction) -> tuple[Contraction, Any]:
    """Give operands and output one axis per group; returns the block as it is now and its store."""
    rows, columns = contraction.row_operand, contraction.column_operand
    copies = [schedule.reindex(block, ("read", operand)) for operand in (rows, columns)]
    store = schedule.reindex(block, ("write", 0))
    statement = schedule.get(block)
    plain = classify(statement)
    if plain is None:
        raise ScheduleError("the product is none after its operands were copied")
    reads = [_variables(statement.reads[operand]) for operand in (rows, columns)]
    written = _variables(statement.writes[0])
    batch = (Axis.BATCH,) if Axis.BATCH in plain.axes else ()
    for copy, variables, order in zip(copies, reads, (_A_ORDER, _B_ORDER), strict=True):
        index_map = plain.index_map(variables, (*batch, *order))
        schedule.transform_layout(copy, ("write", 0), index_map)
    stored = plain.index_map(written, (*batch, *_C_ORDER))
    schedule.transform_layout(store, ("read", 0), stored)
    # The store must run over the same fused axes as the tiles, or its part of a tile is no box.
    schedule.transform_block_layout(store, stored)
    iterators = [iterator.var for iterator in statement.iter_vars]
    loops = plain.index_map(iterators, (*batch, *_LOOP_ORDER))
    schedule.transform_block_layout(block, loops)
    return plain, store


def _variables(region: Any) -> list[Any]:
    return [axis.min for axis in region.region]


def _tile_sizes(contraction: Contraction, target: Any) -> CpuTile:
    inner_sums = contraction.axis_extents(Axis.SUM)[1:]
    return cpu_tile(
        contraction.extent(Axis.ROW),
        contraction.extent(Axis.COLUMN),
        contraction.extent(Axis.SUM),
        max(FEWEST_VECTOR_BITS, int(codegen.llvm_get_vector_width(target))),
        int(contraction.block.writes[0].source.dtype.bits),
        math.prod(static_value(extent) or 1 for extent in inner_sums),
    )


def _merge_consumers(schedule: Schedule, store: Any) -> bool:
    """Make what follows the product part of its store; False where that would need two stores."""
    while consumers := schedule.get_consumers(store):
        inner = [consumer for consumer in consumers if schedule.get_consumers(consumer)]
        if inner:
            schedule.compute_inline(inner[0])
        elif len(consumers) == 1:
            schedule.reverse_compute_inline(consumers[0])
        else:
            return False
    return True


def _pad(schedule: Schedule, block: Any, tile: CpuTile) -> None:
    """Make rows, columns and depth multiples of the groups and the panel."""
    padding = [tile.group_rows, tile.group_columns, tile.depth]
    batch = [1] * (len(schedule.get_loops(block)) - len(padding))
    schedule.pad_einsum(block, [*batch, *padding])
    for consumer in schedule.get_consumers(block):
        if schedule.get_consumers(consumer):
            schedule.compute_inline(consumer)


def _inline_producers(schedule: Schedule, block: Any) -> None:
    while producers := schedule.get_producers(block):
        schedule.compute_inline(producers[0])


def _tile_loops(schedule: Schedule, block: Any, tile: CpuTile) -> tuple[Any, Any]:
    """Split, order and bind the product's loops; returns the tile loop and the panel loop."""
    *batch, rows, columns, sums = schedule.get_loops(block)
    # Groups first: a condition for the last tile then stands around whole groups.
    row_groups, row = schedule.split(rows, [None, tile.group_rows])
    column_groups, column = schedule.split(columns, [None, tile.group_columns])
    row_tiles, row_groups = schedule.split(row_groups, [None, tile.row_groups])
    column_tiles, column_groups = schedule.split(column_groups, [None, tile.column_groups])
    panels, step = schedule.split(sums, [None, tile.depth])
    outer = [*batch, row_tiles, column_tiles]
    schedule.reorder(*outer, panels, column_groups, row_groups, step, row, column)
    tiles = schedule.fuse(*outer)
    schedule.parallel(tiles)
    schedule.unroll(row)
    schedule.vectorize(column)
    return tiles, panels
