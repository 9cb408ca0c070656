# SPDX-License-Identifier: Apache-2.0
"""Bring a nest into the one form that the rewrite knows.

Two things may still be missing when the primitive is called: the init may be inside the reduction
block, and the accumulator may be the output itself. The first is TVM's ``decompose_reduction`` at
the panel loop. The second is not TVM's ``cache_write``, which refuses a nest whose init is already
decomposed (as MetaSchedule's CPU sketches are): the init nest tells all elements that a tile owns,
so a private buffer with a write-back in the shape of that nest does it for every producer.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir import ScheduleError

from tvm_streamk.elements import AccumulatorElements, ElementAccess
from tvm_streamk.errors import NotATiledNest, PanelLoopNotSerial
from tvm_streamk.expressions import (
    Buffer,
    Expression,
    Statement,
    buffers_accessed,
    collect,
    contains,
    loop,
    point_region,
    rebuild_block,
    rebuild_loop,
    sequence,
    substitute,
)
from tvm_streamk.nest import CPU, NestParts, find_init, find_parts, is_private, root_block
from tvm_streamk.relative import with_relative_indices


def normalized(function: Any, name: str) -> Any:
    """The function in the form that the rewrite knows; see the functions below for the steps."""
    steps = (
        with_tile_loop,
        with_decomposed_init,
        with_private_accumulator,
        with_tile_relative_buffers,
    )
    for step in steps:
        function = step(function, name)
    return function


def with_tile_relative_buffers(function: Any, name: str) -> Any:
    """The function with its private buffers indexed relative to the tile and to the panel.

    Parameters
    ----------
    function : PrimFunc
        A function in the form that the steps before this one give. It is not changed.
    name : str
        The reduction block.

    Returns
    -------
    PrimFunc
        Equivalent where every tile has its own private buffers, as the rewrite gives it.
    """
    parts = find_parts(function, name)
    buffers = list(root_block(function).alloc_buffers)
    body = sequence([*parts.segment_statements, *parts.epilogue])

    chain = (*parts.tile_loops, *parts.thread_loops)

    def make_relative(
        statement: Statement, outer: Sequence[Any], private: Sequence[Buffer]
    ) -> Statement:
        statement, smaller = with_relative_indices(statement, outer, private, chain)
        buffers[:] = [smaller.get(buffer, buffer) for buffer in buffers]
        return statement

    tile_variables = [step.loop_var for step in parts.tile_loops]
    body = make_relative(body, tile_variables, _private_buffers(buffers, parts.grid))
    thread_variables = [step.loop_var for step in parts.thread_loops]
    body = make_relative(body, thread_variables, [b for b in buffers if b.scope() == "local"])
    body = _with_panel_relative_buffers(body, parts, buffers)
    root = root_block(function)
    new_root = rebuild_block(root, body=_with_sequence(parts, [body]), alloc_buffers=buffers)
    return function.with_body(s_tir.SBlockRealize([], True, new_root))


def _private_buffers(buffers: Sequence[Buffer], grid: str) -> list[Buffer]:
    """The root allocations that belong to one tile at a time."""
    return [buffer for buffer in buffers if is_private(buffer, grid)]


def _with_panel_relative_buffers(
    body: Statement, parts: NestParts, buffers: list[Buffer]
) -> Statement:
    """Index the buffers that only the panel loop's body uses as if the panel were 0."""
    private = _private_buffers(buffers, parts.grid)
    panel_variable = parts.panel_loop.loop_var

    def is_panel_loop(step: Any) -> bool:
        return bool(step.loop_var.same_as(panel_variable))

    around = list(itertools.takewhile(lambda step: not is_panel_loop(step), parts.path.loops))
    everywhere = buffers_accessed(body)
    panel_loop = next(step for step in collect(body, tirx.For) if is_panel_loop(step))
    inside = buffers_accessed(panel_loop.body)
    own = [
        buffer
        for buffer in private
        if sum(map(buffer.same_as, everywhere)) == sum(map(buffer.same_as, inside))
    ]

    def relative(step: Any) -> Any:
        if not is_panel_loop(step):
            return step
        moved, smaller = with_relative_indices(step.body, [panel_variable], own, around)
        buffers[:] = [smaller.get(buffer, buffer) for buffer in buffers]
        return rebuild_loop(step, moved)

    return tvm_ffi.structural_map(body, (tirx.For, relative), order="post")


def with_tile_loop(function: Any, name: str) -> Any:
    """The function with a loop around a nest that is all one tile, so that a tile loop exists.

    Parameters
    ----------
    function : PrimFunc
        A function whose root has one nest. It is not changed.
    name : str
        The reduction block.

    Returns
    -------
    PrimFunc
        The function itself where loops stand around the panel loop.
    """
    parts = find_parts(function, name)
    if parts.tile_loops or parts.thread_loops:
        return function
    root = root_block(function)
    body = loop("tile", 1, lambda _: root.body)
    return function.with_body(s_tir.SBlockRealize([], True, rebuild_block(root, body=body)))


def with_decomposed_init(function: Any, name: str) -> Any:
    """The function with the block's init in a nest of its own, just before the panel loop.

    Parameters
    ----------
    function : PrimFunc
        A scheduled function. It is not changed.
    name : str
        The reduction block.

    Returns
    -------
    PrimFunc
        The function itself where the init is already apart.
    """
    parts = find_parts(function, name)
    if parts.path.block.init is None:
        return function
    require_serial_panels(parts)
    depth = next(
        index
        for index, step in enumerate(parts.path.loops)
        if step.loop_var.same_as(parts.panel_loop.loop_var)
    )
    # The name is kept until the schedule is gone: TVM may change a function in place when the
    # schedule holds the only reference to it.
    module = tvm.IRModule({"main": function})
    schedule = s_tir.Schedule(module)
    block = schedule.get_sblock(str(parts.path.block.name_hint))
    try:
        schedule.decompose_reduction(block, schedule.get_loops(block)[depth])
    except ScheduleError as error:
        cause = next(line for line in reversed(str(error).splitlines()) if line.strip())
        raise NotATiledNest(
            f"its init cannot be moved before the panel loop "
            f"`{parts.panel_loop.loop_var.name}`: {cause.strip()}",
            block=name,
            hint="make the outermost reduction loop stand above the loops inside the tile.",
        ) from error
    return schedule.mod["main"]


def require_serial_panels(parts: NestParts) -> None:
    """Refuse a panel loop that is bound to a thread, parallel, vectorized or unrolled."""
    loop = parts.panel_loop
    if loop.kind == tirx.ForKind.SERIAL:
        return
    kinds = {
        int(tirx.ForKind.PARALLEL): "parallel",
        int(tirx.ForKind.VECTORIZED): "vectorized",
        int(tirx.ForKind.UNROLLED): "unrolled",
    }
    thread = loop.thread_binding.thread_tag if loop.thread_binding is not None else None
    found = f"bound to {thread}" if thread else kinds.get(int(loop.kind), "not serial")
    raise PanelLoopNotSerial(
        f"its outermost reduction loop `{loop.loop_var.name}` (extent {loop.extent}) is {found}.",
        block=str(parts.path.block.name_hint),
        hint="split the reduction and keep its outermost part as a serial loop over panels.",
    )


def with_private_accumulator(function: Any, name: str) -> Any:
    """The function with its sums in a buffer of the tile where they went straight to an output.

    Parameters
    ----------
    function : PrimFunc
        A function whose init is decomposed. It is not changed.
    name : str
        The reduction block.

    Returns
    -------
    PrimFunc
        The function itself where the accumulator is already private.
    """
    parts = find_parts(function, name)
    output = parts.path.block.writes[0].source
    if not contains(function.params, output):
        return function
    accumulator = tirx.decl_buffer(
        output.shape,
        str(output.dtype),
        name=f"{output.name}_accumulator",
        scope="global" if parts.grid == CPU else "local",
    )
    elements = elements_of(parts, output)
    if elements is None:
        return function
    write_back = _write_back(elements, accumulator, output)
    private = [substitute(part, {output: accumulator}) for part in parts.segment_statements]
    body = _with_sequence(parts, [*private, write_back, *parts.epilogue])
    root = root_block(function)
    new_root = rebuild_block(root, body=body, alloc_buffers=[*root.alloc_buffers, accumulator])
    return function.with_body(s_tir.SBlockRealize([], True, new_root))


def elements_of(parts: NestParts, accumulator: Buffer) -> AccumulatorElements | None:
    """The elements of the accumulator, or None where no plain init nest enumerates them."""
    init = find_init(parts, accumulator)
    if init is None or not isinstance(init.block.body, tirx.BufferStore):
        return None
    return AccumulatorElements(
        accumulator, tuple(init.block.body.indices), init, parts.thread_loops, parts.grid
    )


def _write_back(elements: AccumulatorElements, accumulator: Buffer, output: Buffer) -> Statement:
    def store(indices: Sequence[Expression], _position: Any) -> ElementAccess:
        statement = tirx.BufferStore(output, accumulator[tuple(indices)], list(indices))
        read, write = point_region(accumulator, indices), point_region(output, indices)
        return ElementAccess(statement, (read,), (write,))

    return elements.nest(f"{output.name}_write_back", store)


def _with_sequence(parts: NestParts, statements: Sequence[Statement]) -> Statement:
    chain = parts.path.steps[: len(parts.tile_loops) + len(parts.thread_loops)]
    body = sequence(statements)
    for step in reversed(chain):
        body = rebuild_loop(step, body)
    return body


def with_ordinary_iterators(statement: Statement) -> Statement:
    """Retype the reduction iterators of decomposed updates as data-parallel ones.

    TVM plans the buffer that a reduction block writes above all loops that drive its reduction
    iterators. Those now include the worker and segment loops: the accumulator would live across
    segments and could not be compacted to the size of a tile.
    """

    def retype(block: Any) -> Any:
        if block.init is not None:
            return block
        iterators = [
            tirx.IterVar(iterator.dom, iterator.var, tirx.IterVar.DataPar)
            if iterator.iter_type == tirx.IterVar.CommReduce
            else iterator
            for iterator in block.iter_vars
        ]
        return rebuild_block(block, iter_vars=iterators)

    return tvm_ffi.structural_map(statement, (s_tir.SBlock, retype), order="post")
