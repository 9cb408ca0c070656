# SPDX-License-Identifier: Apache-2.0
"""What fits: recognise a tiled reduction nest and judge it, changing nothing.

:func:`analyze` gives a :class:`TileNest`, all that the rewrite needs to know, or raises the first
reason against it. :func:`can_stream_k` gives every reason at once. The words are those of
:mod:`tvm_streamk.partition`; the requirements are numbered as in :mod:`tvm_streamk.errors`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import s_tir, tirx

from tvm_streamk.annotation import ANNOTATION_KEY, STREAMED_SUFFIX
from tvm_streamk.elements import AccumulatorElements
from tvm_streamk.errors import (
    AccumulatorNotPrivate,
    AlreadyStreamed,
    EmptyReduction,
    InvalidArgument,
    NotATiledNest,
    OutputReadElsewhere,
    PanelCountVaries,
    ReducerNotSupported,
    SeveralKernels,
    SeveralReductions,
    StreamKError,
    TileLoopsDependent,
)
from tvm_streamk.expressions import (
    Buffer,
    Expression,
    buffers_read,
    buffers_stored,
    contains,
    static_value,
    uses_any,
)
from tvm_streamk.nest import (
    CPU,
    NestParts,
    block_paths,
    find_init,
    find_parts,
    reduction_iterators,
    root_block,
)
from tvm_streamk.normalize import (
    elements_of,
    require_serial_panels,
    with_decomposed_init,
    with_private_accumulator,
)
from tvm_streamk.reducer import Reducer, match_reducer

PRIVATE_SCOPES = ("local",)


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
    elements : AccumulatorElements
        How to walk over the accumulator.
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
    elements: AccumulatorElements
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
    return analyze_function(only_function(schedule.mod), block_name(schedule, block))


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
    return Applicability(name, tuple(_objections(nest)))


def analyze_function(function: Any, block: str) -> TileNest:
    """The same as :func:`analyze` for a function and a block's name."""
    nest = _recognise(function, block)
    for objection in _objections(nest):
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
        return str(schedule.get(block).name_hint)
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
    decomposed = with_decomposed_init(function, block)
    normal = with_private_accumulator(decomposed, block)
    parts = find_parts(normal, block)
    accumulator = parts.path.block.writes[0].source
    elements = elements_of(parts, accumulator)
    if elements is None:
        raise AccumulatorNotPrivate(
            f"no plain init nest before the panel loop enumerates the elements of "
            f"`{accumulator.name}` (scope {accumulator.scope()!r}).",
            block=block,
            hint="give the reduction block a T.init(), or decompose_reduction at the panel loop.",
        )
    initial = elements.path.block.body.value
    reducer = _reducer(parts, accumulator, initial)
    return TileNest(
        normal, block, parts, accumulator, elements, reducer, panels, _tile_count(parts)
    )


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
            f"its panel loop `{loop.loop_var.name}` runs over [{loop.min}, {loop.min} + "
            f"{loop.extent}), which is not one constant for all tiles.",
            block=name,
            hint="keep K constant; symbolic M, N and batch are fine.",
        )
    if panels == 0:
        raise EmptyReduction(
            f"its panel loop `{loop.loop_var.name}` has extent 0 (K = 0): TVM's own kernel would "
            "leave the output unwritten.",
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


def _reducer(parts: NestParts, accumulator: Buffer, initial: Expression) -> Reducer:
    block = parts.path.block
    name = str(block.name_hint)
    stores = [block.body] if isinstance(block.body, tirx.BufferStore) else []
    reducer = match_reducer(stores[0], accumulator, initial) if stores else None
    if reducer is None:
        shown = " ".join(line.strip() for line in str(block.body).splitlines() if line[0] != "#")
        raise ReducerNotSupported(
            f"its update `{shown}` is not of the form acc[i] = acc[i] op value with op one of "
            "+, *, max, min, and, or and the bitwise operations.",
            block=name,
            hint="write the update in that form; a scan or a conditional update cannot be cut.",
        )
    if not reducer.restartable:
        raise ReducerNotSupported(
            f"its init stores {initial}, which is not the identity of {reducer.name}: every "
            "segment would count it again.",
            block=name,
            hint="start from the identity and add the other value in the epilogue.",
        )
    return reducer


# -- requirements on a recognised nest, each giving at most one objection --------------------------


def _objections(nest: TileNest) -> list[StreamKError]:
    checks: tuple[Callable[[TileNest], StreamKError | None], ...] = (
        _check_one_reduction,
        _check_private_scope,
        _check_epilogue_level,
        _check_output,
    )
    return [objection for check in checks if (objection := check(nest)) is not None]


def _check_one_reduction(nest: TileNest) -> StreamKError | None:
    own = nest.parts.path.block
    for path in block_paths(nest.parts.panel_loop.body):
        values = [value for _, value in reduction_iterators(path.realize)]
        if not path.block.same_as(own) and uses_any(values, [nest.parts.panel_loop.loop_var]):
            return SeveralReductions(
                f"block {str(path.block.name_hint)!r} is another reduction over the same panel "
                f"loop `{nest.parts.panel_loop.loop_var.name}`.",
                block=nest.block,
                hint="give each reduction a nest of its own.",
            )
    return None


def _check_private_scope(nest: TileNest) -> StreamKError | None:
    scope = str(nest.accumulator.scope())
    if scope in PRIVATE_SCOPES or (nest.grid == CPU and scope == "global"):
        return None
    return AccumulatorNotPrivate(
        f"it accumulates into `{nest.accumulator.name}` in scope {scope!r}, which other threads "
        "or tiles can see.",
        block=nest.block,
        hint='accumulate in registers: cache_write(block, 0, "local").',
    )


def _check_epilogue_level(nest: TileNest) -> StreamKError | None:
    if not nest.parts.nested_epilogue:
        return None
    paths = [path for part in nest.parts.nested_epilogue for path in block_paths(part)]
    names = ", ".join(repr(str(path.block.name_hint)) for path in paths)
    return NotATiledNest(
        f"what follows the panel loop (blocks {names}) stands inside a loop that also holds other "
        "work before it.",
        block=nest.block,
        hint="move the loop above the thread loops, or reverse_compute_at the epilogue further "
        "out.",
    )


def _check_output(nest: TileNest) -> StreamKError | None:
    parameters = list(nest.function.params)
    segment = list(nest.parts.segment_statements)
    written = [buffer for buffer in buffers_stored(segment) if contains(parameters, buffer)]
    if written:
        return OutputReadElsewhere(
            f"the nest writes `{written[0].name}` before its tile is finished.",
            block=nest.block,
            hint="write outputs in the epilogue only.",
        )
    outputs = [b for b in buffers_stored(list(nest.parts.epilogue)) if contains(parameters, b)]
    read_early = [buffer for buffer in buffers_read(segment) if contains(outputs, buffer)]
    if read_early:
        return OutputReadElsewhere(
            f"the panels read `{read_early[0].name}`, which the epilogue of other tiles writes.",
            block=nest.block,
            hint="write to another buffer.",
        )
    return _check_epilogue_reads(nest, outputs)


def _check_epilogue_reads(nest: TileNest, outputs: list[Buffer]) -> StreamKError | None:
    for path in (path for part in nest.parts.epilogue for path in block_paths(part)):
        own = buffers_stored(path.block)
        for buffer in buffers_read(path.block):
            if contains(outputs, buffer) and not contains(own, buffer):
                return OutputReadElsewhere(
                    f"block {str(path.block.name_hint)!r} reads the output `{buffer.name}` in the "
                    "same kernel.",
                    block=nest.block,
                    hint="cache_write the reduction block, so that the consumer reads registers.",
                )
    return None
