# SPDX-License-Identifier: Apache-2.0
"""The sizes of tiles on a CPU."""

from __future__ import annotations

import pytest
from tvm import tirx

from tvm_streamk.register_tile import cpu_tile

WIDE, NARROW, FLOAT = 512, 256, 32


def symbolic():
    return tirx.Var("n", "int64")


@pytest.mark.parametrize("rows", [1, 2, 7, 13, 20, 24, 49, 64, 100, 384, 1000])
@pytest.mark.parametrize("columns", [1, 10, 16, 32, 97, 100, 384, 1536])
@pytest.mark.parametrize("bits", [128, NARROW, WIDE])
def test_groups_fit_in_the_registers_and_waste_little(rows, columns, bits):
    tile = cpu_tile(rows, columns, 384, bits, FLOAT)
    lanes, registers = bits // FLOAT, 32 if bits == WIDE else 16
    vectors = tile.group_columns // lanes
    assert tile.group_columns in (lanes, 2 * lanes)
    assert tile.group_rows * vectors + vectors <= registers
    padded = -(-rows // tile.group_rows) * tile.group_rows
    assert padded < rows + tile.group_rows
    assert padded <= 1.5 * rows


def test_sizes_that_are_known_by_heart():
    tile = cpu_tile(384, 1536, 384, WIDE, FLOAT)
    assert (tile.group_rows, tile.group_columns, tile.depth) == (12, 32, 32)
    assert tile.row_groups * tile.group_rows <= 64
    assert tile.column_groups * tile.group_columns <= 256
    assert cpu_tile(24, 100, 384, WIDE, FLOAT).group_columns == 16


def test_symbolic_rows_have_small_groups():
    tile = cpu_tile(symbolic(), 384, 384, WIDE, FLOAT)
    assert tile.group_rows == 8
    assert tile.row_groups * tile.group_rows == 64


@pytest.mark.parametrize("depth", [2, 16, 32])
def test_short_sums_are_one_panel(depth):
    assert cpu_tile(64, 64, depth, WIDE, FLOAT).depth == depth


@pytest.mark.parametrize(("depth", "unit"), [(864, 9), (100, 1), (384, 1), (450, 25), (1000, 1)])
def test_panels_divide_the_sums_where_a_usual_depth_does(depth, unit):
    panel = cpu_tile(64, 64, depth, WIDE, FLOAT, unit).depth
    assert depth % panel == 0
    assert panel % unit == 0
    assert 24 <= panel <= 64


def test_wide_elements_halve_the_lanes():
    assert cpu_tile(64, 64, 64, WIDE, 64).group_columns == 16
