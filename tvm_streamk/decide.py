# SPDX-License-Identifier: Apache-2.0
"""From a request and a nest to a plan: what ``auto`` chooses, and whether the rest fits.

Manual use, tuning and model compilation all decide here, and a decision that was recorded in a
trace is checked here again before it is carried out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import tvm
from tvm.target import Target

from tvm_streamk.annotation import (
    ARGUMENT,
    LAST_ARRIVER,
    TWO_PHASE,
    RecordedDecision,
)
from tvm_streamk.devices import (
    DEFAULT_DEVICE,
    Device,
    TargetWithoutTag,
    UnknownDevice,
    cpu,
    lookup_target,
)
from tvm_streamk.errors import (
    CountersNotUsable,
    InvalidAnnotation,
    InvalidArgument,
    SplitsDoNotDivide,
    TooManyWorkers,
    WorkersUnknown,
)
from tvm_streamk.expressions import buffers_accessed, contains, static_value
from tvm_streamk.merge_buffers import arrivals_parameter
from tvm_streamk.merges import merge_named
from tvm_streamk.nest import CPU, reduction_iterators
from tvm_streamk.nest_partition import needs_merge, partition_of
from tvm_streamk.partition import (
    DATA_PARALLEL,
    PERSISTENT,
    SPLIT_K,
    STREAM_K,
    TWO_TILE,
)
from tvm_streamk.plan import Plan
from tvm_streamk.policy import choose
from tvm_streamk.tile_nest import TileNest

AUTO = "auto"
FRAGMENT_DEPTH = 16
"""Multiply-adds per element in one matrix instruction: k of the 16x16x16 fragments."""
SCALAR_OVER_MATRIX_UNITS = 1 / 16
"""Throughput of float32 arithmetic over that of the 16-bit matrix units, on an A100 (19.5 of 312
teraflops) and about the same on its successors."""


@dataclass(frozen=True)
class Request:
    """The caller's arguments after their kinds and words have been checked."""

    num_workers: int | None
    decomposition: str
    merge: str
    counters: str
    num_sms: int | None = None
    splits: int | None = None
    device: Device | None = None
    batch_invariant: bool = False


def decide(nest: TileNest, request: Request) -> Plan:
    """Fill in what the request leaves open and check the whole against the nest.

    Parameters
    ----------
    nest : TileNest
        What the analysis found.
    request : Request
        What the caller wants; words that are ``auto`` are decided here, and the plan's notes say
        what was chosen and why.

    Returns
    -------
    Plan
        The decision and what follows from it.

    Raises
    ------
    StreamKError
        The request does not fit the nest.
    """
    notes: list[str] = []
    if request.splits is not None and request.decomposition != SPLIT_K:
        raise InvalidArgument(
            f"splits={request.splits} belongs to decomposition='split_k', not to "
            f"{request.decomposition!r}.",
            block=nest.block,
        )
    processors = _processors(nest, request)
    if request.decomposition == AUTO:
        request = _with_policy(nest, request, processors, notes)
    word = request.decomposition
    splits = _splits(nest, request) if word == SPLIT_K else 0
    workers = _num_workers(nest, request, word, splits, processors, notes)
    merge = _default_merge(nest) if request.merge == AUTO else request.merge
    decision = RecordedDecision(nest.block, word, merge, request.counters, workers, splits)
    return _plan(nest, decision, processors, notes)


def _plan(
    nest: TileNest, decision: RecordedDecision, processors: int | None, notes: list[str]
) -> Plan:
    uses_workspace = False
    streams = decision.decomposition != DATA_PARALLEL
    if streams and needs_merge(partition_of(nest, decision)):
        merge = merge_named(decision.merge)
        merge.check(nest)
        uses_workspace = merge.needs_workspace
        if merge.needs_counters and decision.counters == ARGUMENT:
            _check_counters(nest, decision)
    return Plan(
        block=nest.block,
        grid=nest.grid,
        decision=decision,
        num_tiles=nest.num_tiles if isinstance(nest.num_tiles, int) else None,
        panels=nest.panels,
        slot_bytes=nest.elements.slot_bytes,
        processors=processors or decision.num_workers,
        uses_workspace=uses_workspace,
        notes=tuple(notes),
    )


def _default_merge(nest: TileNest) -> str:
    return TWO_PHASE if nest.grid == CPU else LAST_ARRIVER


def _check_counters(nest: TileNest, decision: RecordedDecision) -> None:
    """Refuse a counters parameter that cannot serve; where there is none, lowering adds one."""
    parameter = arrivals_parameter(nest.function)
    if parameter is None:
        return
    shape, dtype = [static_value(extent) for extent in parameter.shape], str(parameter.dtype)
    used = contains(buffers_accessed(nest.function.body), parameter)
    too_small = len(shape) != 1 or (shape[0] is not None and shape[0] < decision.num_workers)
    if dtype != "int32" or too_small or used:
        use = " and is used in the function" if used else ""
        raise CountersNotUsable(
            f"the parameter `{parameter.name}` is {dtype} of shape {shape}{use}; the "
            f"{decision.num_workers} workers need one int32 counter each, and nothing else may use "
            "it.",
            block=nest.block,
            hint=f"a parameter of shape ({decision.num_workers},) and dtype int32, zeroed once.",
        )


# -- auto ------------------------------------------------------------------------------------------


def _with_policy(
    nest: TileNest, request: Request, processors: int | None, notes: list[str]
) -> Request:
    """The request with ``auto`` replaced by what the policy chooses."""
    if request.num_workers is not None:
        notes.append("num_workers was given, so all tiles are streamed over that many workers")
        return replace(request, decomposition=STREAM_K)
    if processors is None:
        raise _workers_unknown(nest)
    if not isinstance(nest.num_tiles, int):
        notes.append(
            "the number of tiles is symbolic: the kernel streams what does not fill whole waves, "
            "as it finds at run time"
        )
        return replace(request, decomposition=TWO_TILE, num_workers=processors)
    device = _scaled_device(nest, request, processors)
    merge = _default_merge(nest) if request.merge == AUTO else request.merge
    chosen = choose(
        nest.num_tiles,
        nest.panels,
        device=device,
        tile_bytes=nest.elements.slot_bytes,
        merges_allowed=(merge,),
        batch_invariant=request.batch_invariant,
    )
    notes.append(chosen.reason)
    fixed = chosen.decomposition in (SPLIT_K, DATA_PARALLEL)
    return replace(
        request,
        decomposition=chosen.decomposition,
        num_workers=None if fixed else chosen.num_workers,
        splits=chosen.splits if chosen.decomposition == SPLIT_K else None,
    )


def _scaled_device(nest: TileNest, request: Request, processors: int) -> Device:
    """The device's constants for this nest's tile and type, with the known processor count."""
    device = request.device
    if device is None:
        device = cpu(processors) if nest.grid == CPU else DEFAULT_DEVICE
    elements = nest.elements.per_thread * nest.elements.threads
    accumulator_bytes = max(nest.elements.slot_bytes // max(elements, 1), 1)
    return device.with_processors(processors, 1).for_tile(
        (elements, 1, _panel_depth(nest)), accumulator_bytes, _relative_speed(nest)
    )


def _panel_depth(nest: TileNest) -> int:
    """Multiply-adds per element of the tile in one panel."""
    depth = FRAGMENT_DEPTH if nest.staging is not None else 1
    for iterator, _ in reduction_iterators(nest.parts.path.realize):
        depth *= static_value(iterator.dom.extent) or 1
    return max(depth // nest.panels, 1)


def _relative_speed(nest: TileNest) -> float:
    """Arithmetic throughput over that of the device's reference panel."""
    if nest.staging is not None:
        return 1.0
    wide = str(nest.elements.buffer.dtype).endswith("64")
    ordinary = 1.0 if nest.grid == CPU else SCALAR_OVER_MATRIX_UNITS
    return ordinary / 2 if wide else ordinary


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


def _processors(nest: TileNest, request: Request) -> int | None:
    """How many workers run at the same time, where something tells."""
    if request.num_sms is not None:
        return request.num_sms
    if request.device is not None:
        return request.device.num_slots
    target = Target.current(allow_none=True)
    if target is None:
        return None
    if nest.grid == CPU:
        cores = target.attrs.get("num-cores")
        return None if cores is None else int(cores)
    return _processors_of_target(target)


def _processors_of_target(target: Target) -> int | None:
    """The processors of a GPU target, by its tag or by the device that is present."""
    try:
        return lookup_target(target).num_slots
    except (TargetWithoutTag, UnknownDevice):
        present = tvm.device(str(target.kind.name)) if str(target.kind.name) == "cuda" else None
        if present is not None and present.exist:
            return int(present.multi_processor_count)
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
        raise _workers_unknown(nest)
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


def _workers_unknown(nest: TileNest) -> WorkersUnknown:
    return WorkersUnknown(
        "nothing tells how many processors there are.",
        block=nest.block,
        hint="num_workers=132 (say), num_sms=132, device='H100', or a current target that tells "
        "(a CPU's num-cores).",
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
