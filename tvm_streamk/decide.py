# SPDX-License-Identifier: Apache-2.0
"""From a request and a nest to a plan: what ``auto`` chooses, and whether the rest fits.

Manual use, tuning and model compilation all decide here, and a decision that was recorded in a
trace is checked here again before it is carried out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm_streamk.annotation import (
    ARGUMENT,
    ATOMIC,
    LAST_ARRIVER,
    TWO_PHASE,
    RecordedDecision,
)
from tvm_streamk.devices import Device
from tvm_streamk.errors import (
    CountersNotUsable,
    InvalidAnnotation,
    InvalidArgument,
    SplitsDoNotDivide,
    TooManyWorkers,
    WorkersUnknown,
    WorkspaceTooSmall,
)
from tvm_streamk.expressions import buffers_accessed, contains, static_value, tvm_symbolic
from tvm_streamk.merge_buffers import arrivals_parameter
from tvm_streamk.merges import merge_named
from tvm_streamk.nest import CPU
from tvm_streamk.nest_device import device_for, processors_of
from tvm_streamk.nest_partition import needs_merge, partition_of
from tvm_streamk.partition import (
    DATA_PARALLEL,
    PERSISTENT,
    SPLIT_K,
    STREAM_K,
    TWO_TILE,
    Partition,
)
from tvm_streamk.plan import Plan
from tvm_streamk.policy import Decision, WorkspaceLimitTooSmall, choose
from tvm_streamk.tile_nest import TileNest

AUTO = "auto"


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
    workspace_limit_bytes: int | None = None


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
    if request.batch_invariant:
        _check_invariant(nest, request)
    processors = processors_of(nest, request.device, request.num_sms)
    gain = None
    if request.decomposition == AUTO:
        request, gain = _with_policy(nest, request, processors, notes)
    word = request.decomposition
    splits = _splits(nest, request) if word == SPLIT_K else 0
    workers = _num_workers(nest, request, word, splits, processors, notes)
    merge = _default_merge(nest) if request.merge == AUTO else request.merge
    decision = RecordedDecision(nest.block, word, merge, request.counters, workers, splits)
    plan = _plan(nest, decision, processors, notes)
    _check_workspace(plan, request.workspace_limit_bytes)
    device = device_for(nest, request.device, plan.processors)
    return replace(plan, predicted_gain=gain, device=device)


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
) -> tuple[Request, float | None]:
    """The request with ``auto`` replaced by what the policy chooses, and the gain it predicts."""
    if request.num_workers is not None:
        notes.append("num_workers was given, so all tiles are streamed over that many workers")
        return replace(request, decomposition=STREAM_K), None
    if processors is None:
        raise _workers_unknown(nest)
    if not isinstance(nest.num_tiles, int) and not request.batch_invariant:
        return _by_rule(nest, request, processors, notes), None
    chosen = _choose(nest, request, processors)
    notes.append(chosen.reason)
    fixed = chosen.decomposition in (SPLIT_K, DATA_PARALLEL)
    decided = replace(
        request,
        decomposition=chosen.decomposition,
        num_workers=None if fixed else chosen.num_workers,
        splits=chosen.splits if chosen.decomposition == SPLIT_K else None,
    )
    return decided, chosen.predicted_gain if isinstance(nest.num_tiles, int) else None


def _choose(nest: TileNest, request: Request, processors: int) -> Decision:
    """Ask the policy. A batch-invariant split is the same for any number of tiles."""
    merge = _default_merge(nest) if request.merge == AUTO else request.merge
    try:
        return choose(
            nest.num_tiles if isinstance(nest.num_tiles, int) else 1,
            nest.panels,
            device=device_for(nest, request.device, processors),
            tile_bytes=nest.elements.slot_bytes,
            merges_allowed=(merge,),
            workspace_limit_bytes=request.workspace_limit_bytes,
            batch_invariant=request.batch_invariant,
        )
    except WorkspaceLimitTooSmall as error:
        raise WorkspaceTooSmall(f"{error}.", block=nest.block) from error


def _by_rule(nest: TileNest, request: Request, processors: int, notes: list[str]) -> Request:
    """Where the number of tiles is symbolic there is nothing to predict.

    On a CPU ``stream_k`` cuts no more tiles than the hybrid, and TVM compiles its index arithmetic
    sooner.
    """
    if processors == 1:
        notes.append("the number of tiles is symbolic, and one processor has nothing to share")
        return replace(request, decomposition=DATA_PARALLEL)
    if tvm_symbolic().can_prove_equal(nest.num_tiles % processors, 0):
        notes.append(
            f"the number of tiles is symbolic, and always a multiple of {processors} processors: "
            "tiles fill whole waves"
        )
        return replace(request, decomposition=DATA_PARALLEL)
    word = STREAM_K if nest.grid == CPU else TWO_TILE
    per_worker = Partition(processors, nest.panels, processors, word).slots_per_worker
    needs = per_worker * processors * nest.elements.slot_bytes
    limit = request.workspace_limit_bytes
    if limit is not None and needs > limit and request.merge != ATOMIC:
        notes.append(
            f"the number of tiles is symbolic, and partial sums of {processors} workers need "
            f"{needs} bytes, more than the limit of {limit}: the nest stays as it is"
        )
        return replace(request, decomposition=DATA_PARALLEL)
    rest = "what does not fill whole waves, as it finds at run time"
    what = "all tiles" if word == STREAM_K else rest
    notes.append(f"the number of tiles is symbolic: the kernel streams {what}")
    return replace(request, decomposition=word, num_workers=processors)


def _check_invariant(nest: TileNest, request: Request) -> None:
    """Refuse what makes the cuts depend on the number of tiles."""
    word = request.decomposition
    if word in (STREAM_K, TWO_TILE) or (word == AUTO and request.num_workers is not None):
        what = f"decomposition={word!r}" if word != AUTO else f"num_workers={request.num_workers}"
        raise InvalidArgument(
            f"batch_invariant=True and {what}: equal slices for a fixed number of workers are cut "
            "by the number of tiles.",
            block=nest.block,
            hint="decomposition='auto' without num_workers, or 'split_k' with splits.",
        )


def _check_workspace(plan: Plan, limit: int | None) -> None:
    """Refuse what the caller asked for by name and does not allow the memory for."""
    needs = plan.workspace_bytes
    if limit is None or (needs is not None and needs <= limit):
        return
    bytes_needed = "bytes for each of a symbolic number of tiles"
    if needs is not None:
        bytes_needed = f"{needs} bytes"
    raise WorkspaceTooSmall(
        f"{plan.decision.decomposition!r} with {plan.num_workers} workers needs {bytes_needed} "
        f"for partial sums, workspace_limit_bytes is {limit}.",
        block=plan.block,
        hint="decomposition='auto', which keeps to the limit, fewer workers, or no limit.",
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
