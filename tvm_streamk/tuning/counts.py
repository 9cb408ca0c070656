# SPDX-License-Identifier: Apache-2.0
"""Tiles and panels of a scheduled nest at a glance, without judging whether it fits.

The analysis takes ten to thirty milliseconds, and a search looks at thousands of candidates. What
most of them fail by, and what the cost model wants to know, are these counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx

from tvm_streamk.errors import StreamKError
from tvm_streamk.expressions import static_value
from tvm_streamk.nest import block_paths, find_parts, reduction_iterators, root_block

BITS_PER_BYTE = 8


@dataclass(frozen=True)
class Counts:
    """What a nest is made of.

    Attributes
    ----------
    num_tiles, panels
        Tiles, and panels per tile.
    tile_elements
        Elements of the output that a tile has.
    panel_depth
        How much of the reduction one panel does.
    element_bytes
        Bytes of one element of a partial sum.
    """

    num_tiles: int
    panels: int
    tile_elements: int
    panel_depth: int
    element_bytes: int

    @property
    def tile_bytes(self) -> int:
        """Bytes of one partial sum."""
        return self.tile_elements * self.element_bytes


def reduction_blocks(function: Any) -> list[str]:
    """Names of the blocks that accumulate, in the order of the program."""
    paths = block_paths(root_block(function).body)
    return [str(path.block.name_hint) for path in paths if reduction_iterators(path.realize)]


def count(function: Any, block: str) -> Counts | None:
    """Count the tiles and panels around a block; None where there is no one nest of constants."""
    try:
        parts = find_parts(function, block)
    except StreamKError:
        return None
    realized = parts.path.block
    tiles = _product([loop.extent for loop in parts.tile_loops])
    panels = static_value(parts.panel_loop.extent)
    kinds = {tirx.IterVar.CommReduce: 1, tirx.IterVar.DataPar: 1}
    for kind in kinds:
        extents = [each.dom.extent for each in realized.iter_vars if each.iter_type == kind]
        kinds[kind] = _product(extents) or 0
    if not tiles or not panels or not all(kinds.values()):
        return None
    dtype = tvm.DataType(str(realized.writes[0].source.dtype))
    return Counts(
        num_tiles=tiles,
        panels=panels,
        tile_elements=max(kinds[tirx.IterVar.DataPar] // tiles, 1),
        panel_depth=max(kinds[tirx.IterVar.CommReduce] // panels, 1),
        element_bytes=max(dtype.bits // BITS_PER_BYTE, 1),
    )


def _product(extents: Sequence[Any]) -> int | None:
    values = [static_value(extent) for extent in extents]
    known = [value for value in values if value is not None]
    return math.prod(known) if len(known) == len(values) else None
