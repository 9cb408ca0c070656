# SPDX-License-Identifier: Apache-2.0
"""Which products are recognised, and how their axes are grouped."""

from __future__ import annotations

import pytest
from tvm import te

from tvm_streamk.contraction import Axis, classify, find_reduction

BATCH, ROW, COLUMN, SUM, UNIT = Axis.BATCH, Axis.ROW, Axis.COLUMN, Axis.SUM, Axis.UNIT


def contraction(left, right, output, sums, summand):
    """The contraction that a sum of products is found to be, or None."""
    a, b = te.placeholder(left, name="A"), te.placeholder(right, name="B")
    axes = [te.reduce_axis((0, extent), name=f"k{i}") for i, extent in enumerate(sums)]
    result = te.compute(output, lambda *i: te.sum(summand(a, b, i, axes), axis=axes), name="C")
    return classify(find_reduction(te.create_prim_func([a, b, result])))


def test_plain_product_has_columns_of_the_right_operand():
    found = contraction(
        (3, 5), (5, 7), (3, 7), [5], lambda a, b, i, k: a[i[0], k[0]] * b[k[0], i[1]]
    )
    assert found.axes == (ROW, COLUMN, SUM)
    assert (found.row_operand, found.column_operand) == (0, 1)
    assert [found.extent(axis) for axis in (BATCH, ROW, COLUMN, SUM)] == [1, 3, 7, 5]
    assert not found.gathers_columns


def test_columns_are_the_last_axis_of_the_output_whichever_operand_it_is_of():
    found = contraction(
        (3, 5), (5, 7), (7, 3), [5], lambda a, b, i, k: a[i[1], k[0]] * b[k[0], i[0]]
    )
    assert found.axes == (ROW, COLUMN, SUM)
    assert (found.row_operand, found.column_operand) == (1, 0)


def test_batch_and_unit_axes():
    found = contraction(
        (2, 1, 3, 5), (2, 5, 7), (2, 1, 3, 7), [5],
        lambda a, b, i, k: a[i[0], i[1], i[2], k[0]] * b[i[0], k[0], i[3]],
    )  # fmt: skip
    assert found.axes == (BATCH, UNIT, ROW, COLUMN, SUM)


def test_convolution_has_pixels_for_columns_and_gathers_them():
    found = contraction(
        (1, 4, 8, 8), (6, 4, 3, 3), (1, 6, 6, 6), [4, 3, 3],
        lambda a, b, i, k: a[i[0], k[0], i[2] + k[1], i[3] + k[2]] * b[i[1], k[0], k[1], k[2]],
    )  # fmt: skip
    assert found.axes == (UNIT, ROW, COLUMN, COLUMN, SUM, SUM, SUM)
    assert (found.row_operand, found.column_operand) == (1, 0)
    assert found.axis_extents(COLUMN) == (6, 6)
    assert found.gathers_columns


def test_pointwise_convolution_gathers_nothing():
    found = contraction(
        (1, 4, 8, 8), (6, 4, 1, 1), (1, 6, 8, 8), [4, 1, 1],
        lambda a, b, i, k: a[i[0], k[0], i[2] + k[1], i[3] + k[2]] * b[i[1], k[0], k[1], k[2]],
    )  # fmt: skip
    assert found.axes == (UNIT, ROW, COLUMN, COLUMN, SUM, UNIT, UNIT)
    assert not found.gathers_columns


@pytest.mark.parametrize(
    "summand",
    [
        pytest.param(lambda a, b, i, k: a[i[0], k[0]] + b[k[0], i[1]], id="sum of sums"),
        pytest.param(lambda a, b, i, k: a[i[0], k[0]] * a[k[0], i[1]] * b[0, 0], id="3 factors"),
        pytest.param(lambda a, b, i, k: a[i[0], k[0]] * b[i[0], i[1]], id="sum over one operand"),
        pytest.param(lambda a, b, i, k: te.exp(a[i[0], k[0]]) * b[k[0], i[1]], id="a function"),
    ],
)
def test_other_sums_are_no_contractions(summand):
    assert contraction((5, 5), (5, 5), (5, 5), [5], summand) is None


def test_two_reductions_or_none_have_no_single_block():
    a = te.placeholder((4, 5), name="A")
    k, j = te.reduce_axis((0, 5), name="k"), te.reduce_axis((0, 4), name="j")
    first = te.compute((4,), lambda i: te.sum(a[i, k], axis=k), name="first")
    second = te.compute((1,), lambda i: te.sum(first[j], axis=j), name="second")
    assert find_reduction(te.create_prim_func([a, second])) is None
    plus_one = te.compute((4, 5), lambda i, j: a[i, j] + 1.0, name="plus_one")
    assert find_reduction(te.create_prim_func([a, plus_one])) is None


def test_index_map_fuses_each_group():
    found = contraction(
        (1, 4, 8, 8), (6, 4, 3, 3), (1, 6, 6, 6), [4, 3, 3],
        lambda a, b, i, k: a[i[0], k[0], i[2] + k[1], i[3] + k[2]] * b[i[1], k[0], k[1], k[2]],
    )  # fmt: skip
    iterators = [iterator.var for iterator in found.block.iter_vars]
    fused = found.index_map(iterators, (BATCH, ROW, COLUMN, SUM))
    assert [int(index) for index in fused.map_indices([0, 5, 2, 3, 1, 2, 0])] == [0, 5, 15, 15]
