# SPDX-License-Identifier: Apache-2.0
"""What the analysis finds: a tiled reduction nest, in the form that the rewrite works on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_streamk.elements import AccumulatorElements
from tvm_streamk.expressions import Buffer, Expression
from tvm_streamk.nest import BlockPath, NestParts
from tvm_streamk.reducer import Reducer
from tvm_streamk.staging import Staging


@dataclass(frozen=True)
class TileNest:
    """A nest that fits, in the form that the rewrite works on.

    Attributes
    ----------
    function : PrimFunc
        The function with the init apart and the accumulator private; equivalent to the given one.
    block : str
        The reduction block's name as the user gave it.
    parts : NestParts
        The loops and statements of the nest.
    accumulator : Buffer
        Where the partial sum of a segment is.
    init : BlockPath
        The block that gives the accumulator its first value.
    elements : AccumulatorElements
        How to walk over the elements of a partial sum: the accumulator's own, or its stage's.
    staging : Staging or None
        For accumulators in tensor-core fragments: where they become addressable.
    reducer : Reducer
        How two partial sums become one.
    panels : int
        Panels per tile.
    num_tiles : int or Expr
        Tiles; an expression where shapes are symbolic.
    """

    function: Any
    block: str
    parts: NestParts
    accumulator: Buffer
    init: BlockPath
    elements: AccumulatorElements
    staging: Staging | None
    reducer: Reducer
    panels: int
    num_tiles: int | Expression

    @property
    def grid(self) -> str:
        """``gpu`` or ``cpu``."""
        return self.parts.grid

    @property
    def tile_extents(self) -> tuple[Expression, ...]:
        """Extents of the tile loops, outermost first."""
        return tuple(loop.extent for loop in self.parts.tile_loops)

    def __str__(self) -> str:
        tiles = " x ".join(str(extent) for extent in self.tile_extents) or "1"
        slot = " x ".join(str(extent) for extent in self.elements.slot_shape)
        return (
            f"TileNest of block {self.block!r} on a {self.grid} grid: {tiles} tiles of "
            f"{self.panels} panels, {self.reducer.name} into {self.accumulator.name} "
            f"({self.accumulator.dtype}, {slot} elements x threads)"
        )
