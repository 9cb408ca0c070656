# SPDX-License-Identifier: Apache-2.0
"""The loops around a Stream-K kernel, and what a tile's number means to the loops of the nest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm import tirx

from tvm_streamk.expressions import (
    Expression,
    Statement,
    block_iterator,
    constant,
    dtype_of,
    loop,
    pragmas,
    rebuild_loop,
    substitute,
)
from tvm_streamk.nest import GPU
from tvm_streamk.tile_nest import TileNest


def grid_loop(
    nest: TileNest, dtype: str, extent: Expression, name: str, body: Callable[[Any], Statement]
) -> Statement:
    """A loop over workers: a grid with the nest's threads inside, or parallel on a CPU."""

    def inside(variable: Any) -> Statement:
        statement = body(variable)
        for step in reversed(nest.parts.thread_loops):
            statement = rebuild_loop(step, statement)
        return statement

    is_on_gpu = nest.grid == GPU
    return loop(
        name,
        extent,
        inside,
        kind=None if is_on_gpu else tirx.ForKind.PARALLEL,
        thread="blockIdx.x" if is_on_gpu else None,
        annotations=_tile_pragmas(nest),
        dtype=dtype,
    )


def _tile_pragmas(nest: TileNest) -> Mapping[str, Any]:
    """What the tile loops say of all that is inside a grid loop."""
    return {key: value for step in nest.parts.tile_loops for key, value in pragmas(step).items()}


def at_tile(nest: TileNest, dtype: str, body: Statement, tile: Expression) -> Statement:
    """Replace the tile loops' variables by the coordinates of ``tile``, last loop fastest."""
    coordinates: dict[Any, Expression] = {}
    rest = tile
    loops = nest.parts.tile_loops
    for position, step in enumerate(reversed(loops)):
        extent = constant(step.extent, dtype)
        is_first_loop = position == len(loops) - 1
        coordinate = rest if is_first_loop else rest % extent
        loop_dtype = dtype_of(step.loop_var)
        coordinates[step.loop_var] = constant(coordinate, loop_dtype) + step.min
        rest = rest // extent
    return substitute(body, coordinates)


def thread_iterators(nest: TileNest) -> dict[Any, Any]:
    """An iterator per thread loop: a block must not use the loop variables around it."""
    return {
        step.loop_var: block_iterator(
            f"v_{step.loop_var.name}",
            step.extent,
            tirx.IterVar.DataPar,
            dtype_of(step.loop_var),
        )
        for step in nest.parts.thread_loops
    }
