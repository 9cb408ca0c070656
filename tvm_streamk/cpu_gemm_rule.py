# SPDX-License-Identifier: Apache-2.0
"""A DLight rule that tiles matrix products on a CPU: what Stream-K needs and TVM's list lacks.

TVM leaves a product on llvm as it was written: one thread, no vectors. This rule brings anything
that multiplies two tensors and adds up over shared axes (matrix products of any layout and batch,
convolutions with more than one channel per group) into one form, ``C[b, i, j] += A[b, i, k] *
B[b, k, j]``, and schedules that::

    for tile in T.parallel(b x i / rows of a tile x j / columns of a tile):
        <sums of the tile = 0>
        for panel in range(k / depth):
            <A's panel, copied>  <B's panel, copied: columns next to each other>
            for column group, row group, step of the panel:
                for row in T.unroll(...):
                    for column in T.vectorized(...):
                        sums += A * B
        <whatever followed the product, on the sums of the tile>

Columns are the axis along which the output is contiguous, whichever operand they come from: the
pixels of a convolution, not its channels. Extents that the groups do not divide, symbolic ones
among them, are padded with zeros in the copies. Everything before the product (transposes, casts,
padding) becomes part of a copy, everything after it (bias, activation, residual) part of the store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, s_tir, tirx
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import codegen

from tvm_streamk.contraction import Contraction, find_contraction
from tvm_streamk.expressions import collect, static_value, uses_any
from tvm_streamk.nest import root_block
from tvm_streamk.register_tile import CpuTile, cpu_tile
