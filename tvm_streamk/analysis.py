# SPDX-License-Identifier: Apache-2.0
"""What fits: recognise a tiled reduction nest and judge it, changing nothing.

:func:`analyze` gives a :class:`TileNest`, all that the rewrite needs to know, or raises the first
reason against it. :func:`can_stream_k` gives every reason at once. The words are those of
:mod:`tvm_streamk.partition`; the requirements are numbered as in :mod:`tvm_streamk.errors`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tvm import s_tir, tirx

from tvm_streamk.annotation import ANNOTATION_KEY, STREAMED_SUFFIX
from tvm_streamk.elements import AccumulatorElements
from tvm_streamk.errors import (
    AccumulatorNotPrivate,
    AlreadyStreamed,
    BlockNotFound,
    EmptyReduction,
    InvalidArgument,
    NotATiledNest,
    PanelCountVaries,
    ReducerNotSupported,
    SeveralKernels,
    StreamKError,
    TileLoopsDependent,
)
from tvm_streamk.expressions import Expression, collect, shown, static_value, uses_any
from tvm_streamk.lane_fragments import is_addressed_by_lane, lane_elements
from tvm_streamk.nest import (
    UPDATE_SUFFIX,
    BlockPath,
    NestParts,
    block_paths,
    find_init,
    find_parts,
    reduction_iterators,
    root_block,
)
from tvm_streamk.normalize import elements_of, normalized, require_serial_panels
from tvm_streamk.reducer import Reducer, match_reducer
from tvm_streamk.requirements import objections
from tvm_streamk.staging import Staging, find_staging, fragment_reducer, is_fragment
from tvm_streamk.tile_nest import TileNest


@dataclass(frozen=True)
class Applicability:
    """The verdict on a block: true where Stream-K applies, else with every reason against it."""

    block: str
    reasons: tuple[StreamKError, ...] = field(default=())

    def __bool__(self) -> bool:
        return not self.reasons

    def __str__(self) -> str:
        if not self.reasons:
            return f"stream_k applies to block {self.block!r}"
        lines = [f"stream_k does not apply to block {self.block!r}:"]
        for reason in self.reasons:
            lines.append(f"  {type(reason).__name__} ({reason.requirement})")
            lines.append(f"    {reason.message}")
            if reason.hint:
                lines.append(f"    try: {reason.hint}")
        return "\n".join(lines)


def analyze(schedule: Any, block: Any) -> TileNest:
    """Recognise the nest around a reduction block.

    Parameters
    ----------
    schedule : tvm.s_tir.Schedule
        A schedule of a module with one function. It is not changed.
    block : str or SBlockRV
        The reduction block.

    Returns
    -------
    TileNest
        What was found.

    Raises
    ------
    StreamKError
        The first requirement that does not hold, by its class.
    """
    function = only_function(schedule.mod)
    name = block_name(schedule, block)
    with underlining(function):
        return analyze_function(function, name)


@contextlib.contextmanager
def underlining(function: Any) -> Iterator[None]:
    """Let refusals show their block in the function that they are about."""
    try:
        yield
    except StreamKError as error:
        names = (error.block, error.block + UPDATE_SUFFIX)
        blocks = collect(function.body, s_tir.SBlock)
        found = [block for block in blocks if error.block and str(block.name_hint) in names]
        if found:
            error.underline(function, found[0])
        raise


def can_stream_k(schedule: Any, block: Any) -> Applicability:
    """Whether Stream-K applies to a block, with every reason where it does not.

    Parameters and the rest are those of :func:`analyze`; nothing is raised for a nest that does
    not fit.
    """
    name = block if isinstance(block, str) else ""
    try:
        function = only_function(schedule.mod)
        name = block_name(schedule, block)
        nest = _recognise(function, name)
    except StreamKError as error:
        return Applicability(name, (error,))
    return Applicability(name, tuple(objections(nest)))


def analyze_function(function: Any, block: str) -> TileNest:
    """The same as :func:`analyze` for a function and a block's name."""
    nest = _recognise(function, block)
    for objection in objections(nest):
        raise objection
    return nest


def only_function(module: Any) -> Any:
    """The one function of a module."""
    functions = {
        variable.name_hint: function
        for variable, function in module.functions.items()
        if isinstance(function, tirx.PrimFunc)
    }
    if len(functions) != 1:
        raise SeveralKernels(
            f"the module has {len(functions)} TensorIR functions "
            f"({', '.join(sorted(functions)) or 'none'}), not one.",
            hint="schedule one function at a time.",
        )
    return next(iter(functions.values()))


def block_name(schedule: Any, block: Any) -> str:
    """The name of a block given by name or by random variable."""
    if isinstance(block, str):
        return block
    if isinstance(block, s_tir.schedule.SBlockRV):
        try:
            return str(schedule.get(block).name_hint)
        except IndexError as error:
            raise BlockNotFound(
                "the random variable given as block does not belong to this schedule.",
                hint="get it from this schedule: sch.get_sblock(...).",
            ) from error
    raise InvalidArgument(
        f"block must be the name of a block or an SBlockRV, got {block!r} "
        f"({type(block).__name__}).",
        hint='stream_k("C") or stream_k(sch.get_sblock("C")).',
    )


def _recognise(function: Any, block: str) -> TileNest:
    _refuse_streamed(function, block)
    parts = find_parts(function, block)
    require_serial_panels(parts)
    panels = _panel_count(parts)
    _refuse_ragged_tiles(parts)
    _require_fixed_element(parts)
    _require_reduction_form(parts)
    normal = normalized(function, block)
    parts = find_parts(normal, block)
    accumulator = parts.path.block.writes[0].source
    init = find_init(parts, accumulator)
    sums = None if init is None else _partial_sums(parts, accumulator, init, block)
    if init is None or sums is None:
        raise AccumulatorNotPrivate(
            f"no plain init nest before the panel loop enumerates the elements of "
            f"`{accumulator.name}` (scope {accumulator.scope()!r}).",
            block=block,
            hint="give the reduction block a T.init(), or decompose_reduction at the panel loop.",
        )
    elements, staging, reducer = sums
    tiles = _tile_count(parts)
    return TileNest(
        normal, block, parts, accumulator, init, elements, staging, reducer, panels, tiles
    )


def _partial_sums(
    parts: NestParts, accumulator: Any, init: BlockPath, block: str
) -> tuple[AccumulatorElements, Staging | None, Reducer] | None:
    """How partial sums are read and written, and what combines them."""
    if is_fragment(accumulator):
        reducer = fragment_reducer(parts, init, accumulator, block)
        if is_addressed_by_lane(accumulator):
            lanes = lane_elements(parts, init, accumulator)
            return None if lanes is None else (lanes, None, reducer)
        staging, staged = find_staging(parts, accumulator, block)
        return staged, staging, reducer
    elements = elements_of(parts, accumulator)
    if elements is None:
        return None
    return elements, None, _reducer(parts, init.block.body.value)


def _refuse_streamed(function: Any, block: str) -> None:
    root = root_block(function)
    if ANNOTATION_KEY in root.annotations:
        raise AlreadyStreamed(
            f"the function already carries a decision: {root.annotations[ANNOTATION_KEY]}.",
            block=block,
            hint="apply stream_k once; lower the recorded decision with LowerStreamK.",
        )
    for path in block_paths(root.body):
        if str(path.block.name_hint).endswith(STREAMED_SUFFIX):
            raise AlreadyStreamed(
                f"the function is a Stream-K kernel already (block {path.block.name_hint!r}).",
                block=block,
                hint="apply stream_k once, to the data-parallel nest.",
            )


def _panel_count(parts: NestParts) -> int:
    loop = parts.panel_loop
    name = str(parts.path.block.name_hint)
    panels = static_value(loop.extent)
    if panels is None or static_value(loop.min) is None:
        raise PanelCountVaries(
            f"its panel loop `{loop.loop_var.name}` has {shown(loop.extent)} trips from "
            f"{shown(loop.min)} on, which is not one constant for all tiles.",
            block=name,
            hint="keep K constant; symbolic M, N and batch are fine.",
        )
    values = [value for _, value in reduction_iterators(parts.path.realize)]
    driving = [step for step in parts.path.loops if uses_any(values, [step.loop_var])]
    empty = [step for step in driving if static_value(step.extent) == 0]
    if empty:
        raise EmptyReduction(
            f"its reduction loop `{empty[0].loop_var.name}` has extent 0 (K = 0): TVM's own kernel "
            "would leave the output unwritten.",
            block=name,
            hint="handle K = 0 outside the kernel.",
        )
    return panels


def _refuse_ragged_tiles(parts: NestParts) -> None:
    name = str(parts.path.block.name_hint)
    loops = (*parts.tile_loops, *parts.thread_loops)
    variables = [loop.loop_var for loop in loops]
    for loop in loops:
        if uses_any([loop.extent, loop.min], variables):
            raise TileLoopsDependent(
                f"the extent of tile loop `{loop.loop_var.name}` is {loop.extent}, which depends "
                "on another loop of the nest.",
                block=name,
                hint="tile a rectangular iteration space; ragged tiles need a table of offsets.",
            )
    for loop in parts.tile_loops:
        if loop.kind in (tirx.ForKind.VECTORIZED, tirx.ForKind.UNROLLED):
            raise NotATiledNest(
                f"the tile loop `{loop.loop_var.name}` (extent {loop.extent}) is vectorized or "
                "unrolled.",
                block=name,
                hint="split it and keep the vectorized part inside the tile.",
            )


def _tile_count(parts: NestParts) -> int | Expression:
    count: int | Expression = 1
    for loop in parts.tile_loops:
        extent = static_value(loop.extent)
        count = count * (loop.extent if extent is None else extent)
    return count


def _require_fixed_element(parts: NestParts) -> None:
    """Refuse an outermost reduction loop that also chooses which element is accumulated."""
    block, panel_variable = parts.path.block, parts.panel_loop.loop_var
    for iterator, value in zip(block.iter_vars, parts.path.realize.iter_values, strict=True):
        if iterator.iter_type != tirx.IterVar.CommReduce and uses_any(value, [panel_variable]):
            raise TileLoopsDependent(
                f"its iterator {iterator.var.name} = {value} is not a reduction, but depends on "
                f"`{panel_variable.name}`, the outermost loop of the reduction.",
                block=str(block.name_hint),
                hint="bind reduction iterators to loops of their own.",
            )


def _require_reduction_form(parts: NestParts) -> None:
    block = parts.path.block
    if is_fragment(block.writes[0].source):
        return
    if match_reducer(block.body, tirx.const(0, "int32")) is not None:
        return
    raise ReducerNotSupported(
        f"its update `{shown(block.body)}` is not of the form acc[i] = acc[i] op value with op one "
        "of +, *, max, min, and, or and the bitwise operations.",
        block=str(block.name_hint),
        hint="write the update in that form; a scan or a conditional update cannot be cut.",
    )


def _reducer(parts: NestParts, initial: Expression) -> Reducer:
    reducer = match_reducer(parts.path.block.body, initial)
    if reducer is None or not reducer.restartable:
        name = "the operation" if reducer is None else reducer.name
        raise ReducerNotSupported(
            f"its init stores {shown(initial)}, which is not the identity of {name}: every "
            "segment would count it again.",
            block=str(parts.path.block.name_hint),
            hint="start from the identity and add the other value in the epilogue.",
        )
    return reducer
