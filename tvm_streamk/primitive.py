# SPDX-License-Identifier: Apache-2.0
"""``sch.stream_k(block, ...)``: check the arguments, analyse, decide, record, rewrite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import s_tir
from tvm.target import Target

from tvm_streamk.analysis import TileNest, analyze_function, block_name, only_function
from tvm_streamk.annotation import (
    ANNOTATION_KEY,
    COUNTERS,
    LAST_ARRIVER,
    MERGES,
    TWO_PHASE,
    RecordedDecision,
)
from tvm_streamk.errors import (
    InvalidAnnotation,
    InvalidArgument,
    SplitsDoNotDivide,
    TooManyWorkers,
    WorkersUnknown,
)
from tvm_streamk.expressions import collect
from tvm_streamk.merges import merge_named
from tvm_streamk.nest import CPU, UPDATE_SUFFIX, root_block
from tvm_streamk.partition import (
    DATA_PARALLEL,
    DECOMPOSITIONS,
    PERSISTENT,
    SPLIT_K,
    STREAM_K,
)
from tvm_streamk.plan import Plan
from tvm_streamk.rewrite import needs_merge, partition_of, rewrite

AUTO = "auto"


@dataclass(frozen=True)
class Request:
    """The caller's arguments after their kinds and words have been checked."""

    num_workers: int | None
    decomposition: str
    merge: str
    counters: str
    num_sms: int | None
    splits: int | None


def stream_k(
    schedule: Any,
    block: Any,
    num_workers: int | None = None,
    decomposition: str = AUTO,
    merge: str = AUTO,
    counters: str = "prologue",
    lower: bool = True,
    *,
    num_sms: int | None = None,
    splits: int | None = None,
) -> Plan:
    """Turn a tiled reduction nest into a persistent Stream-K kernel.

    1. The nest around ``block`` is recognised: tile loops, thread loops, panel loop, epilogue.
    2. What ``auto`` leaves open is decided; the returned plan says what and why.
    3. The decision is recorded in the trace, as an annotation of the root block.
    4. With ``lower=True`` the nest is rewritten at once: a fixed grid of workers, each walking an
       equal slice of all (tile, panel) work; tiles that a slice cuts are merged.

    Parameters
    ----------
    schedule : tvm.s_tir.Schedule
        A schedule of a module with one function. Also a method: ``sch.stream_k(block, ...)``.
    block : str or SBlockRV
        The reduction block.
    num_workers : int, optional
        Workers of the persistent grid, at most one per panel (``persistent``: per tile). By default
        as many as there are processors, as ``num_sms`` or the current target tells.
    decomposition : str
        ``stream_k``, ``two_tile``, ``split_k`` (with ``splits``), ``persistent`` (whole tiles
        only), ``data_parallel`` (the nest as it is) or ``auto``.
    merge : str
        ``last_arriver`` (one kernel, deterministic; GPU grids), ``two_phase`` (a second nest,
        deterministic, works everywhere), ``atomic`` (GPU grids, plain sums) or ``auto``.
    counters : str
        For ``last_arriver``: ``prologue`` zeroes the arrival counters in a kernel of its own,
        ``argument`` adds a zeroed int32 buffer to the function's parameters.
    lower : bool
        Whether to rewrite now, or to leave that to ``LowerStreamK`` in the build pipeline.
    num_sms : int, optional
        Processors of the device, where no target tells.
    splits : int, optional
        For ``split_k``: segments per tile, a divisor of the panels.

    Returns
    -------
    Plan
        Tiles, panels, workers, waves before and after, cuts, peers, workspace; printable.

    Raises
    ------
    StreamKError
        A subclass per requirement; the schedule and its trace are then unchanged. The block must
        be (1) a reduction block (2) with an associative and commutative update from its identity;
        (3) its outermost reduction loop serial, of one constant extent; (4) tile loops
        independent; (5) the accumulator in registers or a buffer of the tile; (6) for ``atomic``,
        an output type with an atomic add and a plain store; (7) the output read by nothing else;
        (8) K not 0.

    Examples
    --------
    Before, one block per tile::

        for i_0 in T.thread_binding(3, thread="blockIdx.x"):
            for tx in T.thread_binding(64, thread="threadIdx.x"):
                <C_local = 0>
                for k_0 in range(128):
                    <C_local += panel k_0 of tile i_0>
                <C = C_local>

    after ``sch.stream_k("C", num_workers=2, merge="two_phase")``, two workers with 192 panels::

        for worker in T.thread_binding(2, thread="blockIdx.x"):
            for tx in T.thread_binding(64, thread="threadIdx.x"):
                for segment in range(2):
                    with T.sblock("C_stream_k"):
                        v_tile, v_k_begin, v_k_end = ...
                        <C_local = 0>
                        for k_0 in range(v_k_end - v_k_begin):
                            <C_local += panel v_k_begin + k_0 of tile v_tile>
                        <C = C_local if the tile is complete, else workspace = C_local>
        for boundary in T.thread_binding(1, thread="blockIdx.x"):
            <C = the sum of the workspace's slots, for the tile that the boundary cuts>
    """
    request = _checked(num_workers, decomposition, merge, counters, num_sms, splits)
    if not isinstance(lower, bool):
        raise InvalidArgument(f"lower must be True or False, got {lower!r}.")
    name = block_name(schedule, block)
    nest = analyze_function(only_function(schedule.mod), name)
    plan = decide(nest, request)
    if plan.decision.decomposition == DATA_PARALLEL:
        return plan
    function = rewrite(nest, plan.decision) if lower else None
    schedule.annotate(schedule.get_sblock("root"), ANNOTATION_KEY, plan.decision.encode())
    if function is not None:
        _install(schedule, function)
    return plan


def decide(nest: TileNest, request: Request) -> Plan:
    """Fill in what the request leaves open and check the whole against the nest."""
    notes: list[str] = []
    word = STREAM_K if request.decomposition == AUTO else request.decomposition
    if request.splits is not None and word != SPLIT_K:
        raise InvalidArgument(
            f"splits={request.splits} belongs to decomposition='split_k', not to {word!r}.",
            block=nest.block,
        )
    processors = _processors(nest, request)
    splits = _splits(nest, request) if word == SPLIT_K else 0
    workers = _num_workers(nest, request, word, splits, processors, notes)
    merge = request.merge
    if merge == AUTO:
        merge = TWO_PHASE if nest.grid == CPU else LAST_ARRIVER
    decision = RecordedDecision(nest.block, word, merge, request.counters, workers, splits)
    uses_workspace = False
    if word != DATA_PARALLEL and needs_merge(partition_of(nest, decision)):
        chosen = merge_named(merge)
        chosen.check(nest)
        uses_workspace = chosen.needs_workspace
    return Plan(
        block=nest.block,
        grid=nest.grid,
        decision=decision,
        num_tiles=nest.num_tiles if isinstance(nest.num_tiles, int) else None,
        panels=nest.panels,
        slot_bytes=nest.elements.slot_bytes,
        processors=processors or workers,
        uses_workspace=uses_workspace,
        notes=tuple(notes),
    )


def check_recorded(nest: TileNest, decision: RecordedDecision) -> None:
    """Check a recorded decision against the nest that it is found on, as a request is checked."""
    splits = decision.splits or None
    is_split = decision.decomposition == SPLIT_K
    request = Request(
        None if is_split else decision.num_workers,
        decision.decomposition,
        decision.merge,
        decision.counters,
        None,
        splits,
    )
    decided = decide(nest, request).decision
    if decided != decision:
        raise InvalidAnnotation(
            f"the recorded decision {decision.encode()} contradicts itself: for this nest it would "
            f"be {decided.encode()}.",
            block=decision.block,
            hint="record the decision again with sch.stream_k(..., lower=False).",
        )


def _checked(
    num_workers: Any, decomposition: Any, merge: Any, counters: Any, num_sms: Any, splits: Any
) -> Request:
    for name, value in (("num_workers", num_workers), ("num_sms", num_sms), ("splits", splits)):
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and (not is_integer or value < 1):
            raise InvalidArgument(f"{name} must be a positive int, got {value!r}.")
    words = {
        "decomposition": (decomposition, (AUTO, *DECOMPOSITIONS)),
        "merge": (merge, (AUTO, *MERGES)),
        "counters": (counters, COUNTERS),
    }
    for name, (word, known) in words.items():
        if word not in known:
            raise InvalidArgument(f"{name} must be one of {', '.join(known)}; got {word!r}.")
    return Request(num_workers, decomposition, merge, counters, num_sms, splits)


def _processors(nest: TileNest, request: Request) -> int | None:
    """How many workers run at the same time, where something tells."""
    if request.num_sms is not None:
        return request.num_sms
    target = Target.current(allow_none=True)
    if target is None:
        return None
    if nest.grid == CPU:
        cores = target.attrs.get("num-cores")
        return None if cores is None else int(cores)
    return None


def _splits(nest: TileNest, request: Request) -> int:
    splits = request.splits
    if splits is None:
        raise InvalidArgument(
            "decomposition='split_k' needs splits, the number of segments per tile.",
            block=nest.block,
            hint=f"splits={_some_divisors(nest.panels)}.",
        )
    if nest.panels % splits:
        raise SplitsDoNotDivide(
            f"splits={splits} does not divide the {nest.panels} panels of a tile.",
            block=nest.block,
            hint=f"splits={_some_divisors(nest.panels)}, or decomposition='stream_k'.",
        )
    return splits


def _some_divisors(panels: int) -> str:
    divisors = [count for count in range(2, panels + 1) if panels % count == 0]
    return " or ".join(str(count) for count in divisors[:3]) or "1"


def _num_workers(
    nest: TileNest,
    request: Request,
    word: str,
    splits: int,
    processors: int | None,
    notes: list[str],
) -> int:
    if word in (SPLIT_K, DATA_PARALLEL):
        return _implied_workers(nest, request, word, splits)
    workers = request.num_workers or processors
    if workers is None:
        raise WorkersUnknown(
            "nothing tells how many processors there are.",
            block=nest.block,
            hint="num_workers=132 (say), num_sms=132, or a current target that tells (a CPU's "
            "num-cores).",
        )
    if not isinstance(nest.num_tiles, int):
        return workers
    if nest.num_tiles == 0:
        raise TooManyWorkers(
            "an output extent is 0, so there is no tile and no worker has anything to do.",
            block=nest.block,
            hint="leave the nest as it is: it computes nothing.",
        )
    most, shown = _most_workers(nest, word)
    if workers <= most:
        return workers
    if request.num_workers is None:
        notes.append(f"{workers} processors, but only {shown}: {most} workers")
        return most
    raise TooManyWorkers(
        f"num_workers={workers}, but there are only {shown}: {workers - most} workers would have "
        "nothing to do.",
        block=nest.block,
        hint=f"num_workers={most} or fewer.",
    )


def _most_workers(nest: TileNest, word: str) -> tuple[int, str]:
    """How many workers a decomposition can keep busy, and what there is to do in words."""
    if word == PERSISTENT:
        return nest.num_tiles, f"{nest.num_tiles} tiles, done whole"
    panels = nest.num_tiles * nest.panels
    return panels, f"{nest.num_tiles} tiles x {nest.panels} panels = {panels} panels"


def _implied_workers(nest: TileNest, request: Request, word: str, splits: int) -> int:
    """The workers that a decomposition itself fixes; per tile where their number is symbolic."""
    per_tile = splits if word == SPLIT_K else 1
    workers = per_tile * nest.num_tiles if isinstance(nest.num_tiles, int) else per_tile
    if request.num_workers not in (None, workers):
        tiles = nest.num_tiles if isinstance(nest.num_tiles, int) else "a symbolic number of"
        raise InvalidArgument(
            f"num_workers={request.num_workers}, but {word!r} has {per_tile} per tile and there "
            f"are {tiles} tiles.",
            block=nest.block,
            hint="leave num_workers out.",
        )
    return workers


def _install(schedule: Any, function: Any) -> None:
    """Put the rewritten function into the schedule.

    Blocks that the kernel still has keep their handles: a random variable that was obtained before
    resolves to the block of the same name in the persistent kernel.
    """
    root = root_block(only_function(schedule.mod))
    new_root = root_block(function)
    new_blocks: dict[str, Any] = {}
    for block in collect(new_root, s_tir.SBlock):
        new_blocks.setdefault(str(block.name_hint), block)
    reused = {}
    for block in collect(root, s_tir.SBlock):
        name = str(block.name_hint)
        successor = new_blocks.get(name, new_blocks.get(name + UPDATE_SUFFIX))
        if successor is not None:
            reused[block] = successor
    schedule.state.replace(schedule.get_sref(root), new_root, reused)
