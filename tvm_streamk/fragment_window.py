# SPDX-License-Identifier: Apache-2.0
"""One matrix of a fragment, seen from the lane that addresses an element of it.

TVM makes a fragment as small as the accesses to it allow. Where a lane's number is in an index, it
would fit the buffer to the lane instead of the matrices. So an access goes through a matched buffer
of one whole matrix, as it does in TVM's own tensor intrinsics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, tirx

from tvm_streamk.expressions import Buffer, Expression, substitute


@dataclass(frozen=True)
class FragmentWindow:
    """The matrix that an element is in, and where in it.

    Attributes
    ----------
    fragment
        The whole buffer.
    matrix
        The range of each dimension.
    inner
        The element's indices in the matrix.
    """

    fragment: Buffer
    matrix: tuple[Any, ...]
    inner: tuple[Expression, ...]

    def substituted(self, values: Mapping[Any, Expression]) -> FragmentWindow:
        """The window with its variables replaced."""
        matrix = tuple(
            ir.Range.from_min_extent(substitute(axis.min, values), axis.extent)
            for axis in self.matrix
        )
        return FragmentWindow(
            self.fragment, matrix, tuple(substitute(index, values) for index in self.inner)
        )

    def seen_through(self, block: Any) -> Any:
        """A block that touches one element of the fragment, with a match of the whole matrix."""
        region = tirx.BufferRegion(self.fragment, list(self.matrix))
        matrix = tirx.decl_buffer(
            [axis.extent for axis in self.matrix],
            str(self.fragment.dtype),
            name=f"{self.fragment.name}_matrix",
            scope=str(self.fragment.scope()),
            offset_factor=1,
        )
        indices = list(self.inner)

        def load(node: Any) -> Any:
            return matrix[tuple(indices)] if node.source.same_as(self.fragment) else node

        def store(node: Any) -> Any:
            if not node.buffer.same_as(self.fragment):
                return node
            return tirx.BufferStore(matrix, node.value, indices)

        handlers = [(ir.TensorLoad, load), (tirx.BufferStore, store)]
        body = tvm_ffi.structural_map(block.body, handlers, order="post")
        return s_tir.SBlock(
            block.iter_vars,
            [self._widened(each, region) for each in block.reads],
            [self._widened(each, region) for each in block.writes],
            block.name_hint,
            body,
            None,
            [],
            [s_tir.MatchBufferRegion(matrix, region)],
        )

    def _widened(self, region: Any, whole: Any) -> Any:
        return whole if region.source.same_as(self.fragment) else region
