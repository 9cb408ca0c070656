# SPDX-License-Identifier: Apache-2.0
"""How large the tiles of a matrix product on a CPU are: register groups, tile and panel depth.

Sizes follow from the registers and caches alone, never from the number of processors: tiles may be
as large as suits the caches, since Stream-K shares out what does not divide evenly.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm_streamk.expressions import Expression

WIDE_VECTOR_BITS = 512
REGISTERS_OF_WIDE_VECTORS = 32
REGISTERS_OF_VECTORS = 16
VECTORS_PER_ROW = 2
SPARE_REGISTERS = 2
MOST_GROUP_ROWS = 12
SYMBOLIC_GROUP_ROWS = 8
"""Rows of a group where their number is unknown: up to 7 of them are computed for nothing."""

TILE_ROWS = 64
TILE_COLUMNS = 256
PANEL_DEPTH = 32
"""Sums of 64 KiB and panels of at most 40 KiB in float32: a second-level cache holds both."""

SHALLOWEST_PANEL = 24
DEEPEST_PANEL = 64


@dataclass(frozen=True)
class CpuTile:
    """Sizes of the schedule of one product.

    Attributes
    ----------
    group_rows, group_columns
        What is summed in registers at a time.
    row_groups, column_groups
        Groups of a tile.
    depth
        How much of the summed axis one panel has.
    """

    group_rows: int
    group_columns: int
    row_groups: int
    column_groups: int
    depth: int


def cpu_tile(
    rows: Expression,
    columns: Expression,
    depth: Expression,
    vector_bits: int,
    element_bits: int,
    depth_unit: int = 1,
) -> CpuTile:
    """Choose the sizes for a product.

    Parameters
    ----------
    rows, columns, depth : int or expression
        Extents; symbolic ones are expressions.
    vector_bits : int
        Bits of the target's vector registers.
    element_bits : int
        Bits of an element of the sums.
    depth_unit : int
        A panel's depth is a multiple of it (the taps of a convolution, say), where that is not too
        deep.
    """
    lanes = max(1, vector_bits // element_bits)
    wide = vector_bits >= WIDE_VECTOR_BITS
    registers = REGISTERS_OF_WIDE_VECTORS if wide else REGISTERS_OF_VECTORS
    group_columns = _group_columns(columns, lanes)
    vectors = _ceil_div(group_columns, lanes)
    most_rows = min(MOST_GROUP_ROWS, (registers - SPARE_REGISTERS - vectors) // vectors)
    group_rows = _group_rows(rows, most_rows)
    return CpuTile(
        group_rows,
        group_columns,
        _groups(rows, group_rows, TILE_ROWS),
        _groups(columns, group_columns, TILE_COLUMNS),
        _panel_depth(depth, depth_unit),
    )


def _ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


def _group_columns(columns: Expression, lanes: int) -> int:
    """Columns of a group: one or two vectors, whichever pads less (LLVM splits others badly)."""
    usual = VECTORS_PER_ROW * lanes
    if not isinstance(columns, int):
        return usual
    return min(usual, lanes, key=lambda group: _ceil_div(columns, group) * group)


def _group_rows(rows: Expression, most: int) -> int:
    """Rows of a group: few computed for nothing, and enough to pay for loading the columns."""
    if not isinstance(rows, int):
        return min(SYMBOLIC_GROUP_ROWS, most)
    choices = range(1, min(most, rows) + 1)
    return min(choices, key=lambda group: _ceil_div(rows, group) * (group + VECTORS_PER_ROW))


def _groups(extent: Expression, group: int, most: int) -> int:
    """Groups of a tile, so that the tiles of an axis are about equal."""
    limit = max(1, most // group)
    if not isinstance(extent, int):
        return limit
    groups = _ceil_div(extent, group)
    return _ceil_div(groups, _ceil_div(groups, limit))


def _panel_depth(depth: Expression, unit: int) -> int:
    """Depth of a panel: least padding first, then as near as possible to the usual depth."""
    if not isinstance(depth, int):
        return PANEL_DEPTH
    if depth <= PANEL_DEPTH:
        return depth
    step = unit if unit <= PANEL_DEPTH else 1
    choices = [d for d in range(SHALLOWEST_PANEL, DEEPEST_PANEL + 1) if d % step == 0]
    return min(choices, key=lambda d: (_ceil_div(depth, d) * d, abs(d - PANEL_DEPTH)))
