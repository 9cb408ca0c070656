# SPDX-License-Identifier: Apache-2.0
"""The postprocessor: reject what cannot be lowered, write down what has been decided."""

from __future__ import annotations

from typing import Any

import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule

from tvm_streamk.analysis import analyze_function, only_function
from tvm_streamk.annotation import (
    ANNOTATION_KEY,
    LAST_ARRIVER,
    TAKEN_KEY,
    Choice,
    RecordedDecision,
)
from tvm_streamk.decide import check_recorded
from tvm_streamk.errors import SplitsDoNotDivide, StreamKError, TooManyWorkers
from tvm_streamk.partition import DATA_PARALLEL, SPLIT_K, Partition
from tvm_streamk.pipeline import recorded_decision, without_annotation
from tvm_streamk.tuning.counts import Counts, count
from tvm_streamk.tuning.errors import NothingGained
from tvm_streamk.tuning.processors import device_of, is_cpu, runs_one_worker_at_a_time
from tvm_streamk.tuning.slow_import import without_tensor_intrinsics

FLAG_BYTES = 4
"""Shared memory that the last-arriver merge adds to a block's: one int32."""
_SHARED_LIMIT = "max_shared_memory_per_block"


@derived_object
class VerifyStreamK(meta_schedule.postproc.PyPostproc):
    """Reject candidates whose recorded choice does not fit their final nest, or cannot pay.

    It belongs behind all other postprocs. Where the choice fits, the decision that it comes to is
    written in its place, with instructions of the trace: candidates that make the same kernel are
    then equal, so that the search measures one of them, and a data-parallel choice leaves exactly
    TVM's own candidate. What a merge needs of shared memory is held against the device's limit by
    TVM's own ``VerifyGPUCode``.

    Parameters
    ----------
    num_sms : int, optional
        Processors of the device; by default what the target of the tuning context tells.
    """

    def __init__(self, num_sms: int | None = None) -> None:
        super().__init__()
        self.num_sms = num_sms
        self.processors = 0
        self.overlaps = False
        self.limits: Any = None

    def _initialize_with_tune_context(self, context: Any) -> None:
        self.processors = device_of(context.target, self.num_sms).num_slots
        self.overlaps = not runs_one_worker_at_a_time(context.target)
        self.limits = None
        if not is_cpu(context.target):
            self.limits = meta_schedule.postproc.VerifyGPUCode()
            self.limits._initialize_with_tune_context(_with_room_for_flag(context))

    def apply(self, sch: Any) -> bool:
        """Whether the candidate can be built; its choice is then a decision."""
        try:
            function = only_function(sch.mod)
            recorded = recorded_decision(function)
            if recorded is None:
                return True
            function = without_annotation(function)
            if isinstance(recorded, Choice):
                self._refuse_at_a_glance(function, recorded)
            decision = final_decision(function, recorded)
        except StreamKError:
            return False
        if not self._is_within_limits(sch, decision):
            return False
        if isinstance(recorded, Choice):
            _write_down(sch, decision)
        return True

    def clone(self) -> Any:
        """A postprocessor of the same kind, to be initialized with a context of its own."""
        return VerifyStreamK(self.num_sms)

    def _refuse_at_a_glance(self, function: Any, choice: Choice) -> None:
        """By the counts alone, before the analysis, which most candidates need not go through."""
        counts = count(function, choice.block)
        if counts is None:
            return
        _require_fit(counts, choice)
        decision = choice.resolve(counts.num_tiles, counts.panels)
        if decision is not None:
            require_gain(counts, decision, self.processors, self.overlaps)

    def _is_within_limits(self, schedule: Any, decision: RecordedDecision | None) -> bool:
        if self.limits is None or decision is None or decision.merge != LAST_ARRIVER:
            return True
        return bool(self.limits.apply(schedule))


def final_decision(function: Any, recorded: RecordedDecision | Choice) -> RecordedDecision | None:
    """What a recorded choice comes to on a nest, checked as the build pipeline checks it.

    Parameters
    ----------
    function : PrimFunc
        The scheduled function without its annotation. It is not changed.
    recorded : RecordedDecision or Choice
        What was recorded.

    Returns
    -------
    RecordedDecision or None
        None for the nest as it is.

    Raises
    ------
    StreamKError
        The nest does not fit, or the decision does not fit the nest.
    """
    if isinstance(recorded, Choice) and recorded.option.decomposition == DATA_PARALLEL:
        return None
    nest = analyze_function(function, recorded.block)
    decision = recorded.resolve(nest.num_tiles, nest.panels)
    if decision is not None:
        check_recorded(nest, decision)
    return decision


def require_gain(
    counts: Counts, decision: RecordedDecision, processors: int, overlaps: bool
) -> None:
    """Refuse to share tiles out in another way where no processor would finish earlier.

    Parameters
    ----------
    counts : Counts
        What the nest is made of.
    decision : RecordedDecision
        What would be done with it.
    processors : int
        How many workers run at the same time.
    overlaps : bool
        Whether a processor runs several workers at a time. They hide each other's waiting, so that
        the same number of rounds in smaller pieces, or in fewer workers, may still be faster.

    Raises
    ------
    NothingGained
        The longest processor has as many panels as before; more, where workers overlap.
    """
    partition = Partition(
        counts.num_tiles, counts.panels, decision.num_workers, decision.decomposition
    )
    before = -(-counts.num_tiles // processors) * counts.panels
    after = -(-decision.num_workers // processors) * partition.most_panels
    shortens_nothing = after > before if overlaps else after >= before
    if shortens_nothing:
        raise NothingGained(
            f"{decision.decomposition} on {decision.num_workers} workers gives the longest of "
            f"{processors} processors {after} panels, the nest as it is {before}.",
            block=decision.block,
        )


def _require_fit(counts: Counts, choice: Choice) -> None:
    """Refuse what the check of the final decision would only find out later."""
    option, panels = choice.option, counts.num_tiles * counts.panels
    if option.decomposition == SPLIT_K and counts.panels % option.splits:
        raise SplitsDoNotDivide(
            f"splits={option.splits} does not divide the {counts.panels} panels of a tile.",
            block=choice.block,
        )
    if option.num_workers > panels:
        raise TooManyWorkers(
            f"num_workers={option.num_workers}, but there are only {panels} panels.",
            block=choice.block,
        )


def _with_room_for_flag(context: Any) -> Any:
    """A context whose device has a little less shared memory than the real one."""
    description = dict(context.target.export())
    if _SHARED_LIMIT not in description:
        return context
    description[_SHARED_LIMIT] = int(description[_SHARED_LIMIT]) - FLAG_BYTES
    with without_tensor_intrinsics():
        return meta_schedule.TuneContext(target=tvm.target.Target(description))


def _write_down(schedule: Any, decision: RecordedDecision | None) -> None:
    root = schedule.get_sblock("root")
    schedule.unannotate(root, TAKEN_KEY)
    schedule.unannotate(root, ANNOTATION_KEY)
    if decision is not None:
        schedule.annotate(root, ANNOTATION_KEY, decision.encode())
