# SPDX-License-Identifier: Apache-2.0
"""The postprocessor: what it rejects, what it writes down, and what it leaves exactly as it was."""

from __future__ import annotations

import bisect
import contextlib
import itertools
from typing import Any

import pytest
import tvm
import tvm_ffi
import workloads
from helpers import check_numerics
from tuning_samples import (
    LLVM,
    OPENCL,
    accepted,
    candidates,
    context,
    decision_of,
    own_spaces,
    sample,
)
from tvm.s_tir import Schedule, meta_schedule

import tvm_streamk
from tvm_streamk import LowerStreamK
from tvm_streamk.annotation import ANNOTATION_KEY, TAKEN_KEY, Choice, Option, RecordedDecision
from tvm_streamk.errors import SplitsDoNotDivide, StreamKError, TooManyWorkers
from tvm_streamk.meta_schedule_rule import VerifyStreamK
from tvm_streamk.pipeline import without_annotation
from tvm_streamk.tuning.counts import count
from tvm_streamk.tuning.errors import NothingGained
from tvm_streamk.tuning.postproc import FLAG_BYTES, final_decision, require_gain

WORKLOAD = workloads.gemm(15, 35, 516)
"""Rows and columns are odd, so that the tiles never fill whole waves of two."""

STREAMED = Option("stream_k", "last_arriver", 2, 0)
SEEDS = 100
FEW = 12


def tvm_accepts(tuning: Any, candidate: Schedule) -> bool:
    """All postprocs but ours, which is the last."""
    return all(each.apply(candidate) for each in list(tuning.space_generator.postprocs)[:-1])


def nest(target: Any = OPENCL) -> tuple[Any, Schedule]:
    """A final nest of TVM's own, with the tuning context that it came from."""
    tuning = context(WORKLOAD.function, target)
    space = own_spaces(tuning)[0]
    for seed in range(1, SEEDS):
        candidate = sample(tuning, space, seed)
        counts = count(candidate.mod["main"], "C")
        has_few_tiles = counts is not None and counts.num_tiles in (3, 5, 7) and counts.panels > 8
        if has_few_tiles and tvm_accepts(tuning, candidate):
            root = candidate.get_sblock("root")
            candidate.unannotate(root, TAKEN_KEY)
            candidate.unannotate(root, ANNOTATION_KEY)
            return tuning, candidate
    raise AssertionError("no seed gave a candidate")


def with_choice(schedule: Schedule, option: Option) -> Schedule:
    chosen = schedule.copy()
    root = chosen.get_sblock("root")
    chosen.annotate(root, ANNOTATION_KEY, Choice("C", "prologue", (option,)).encode())
    chosen.annotate(root, TAKEN_KEY, 0)
    return chosen


def verify(tuning: Any) -> Any:
    return list(tuning.space_generator.postprocs)[-1]


@pytest.mark.parametrize(
    ("option", "error"),
    [
        (Option("split_k", "two_phase", 0, 7), SplitsDoNotDivide),
        (Option("stream_k", "two_phase", 10**6, 0), TooManyWorkers),
    ],
)
def test_what_does_not_fit_is_rejected(option: Option, error: type[StreamKError]) -> None:
    tuning, schedule = nest()
    chosen = with_choice(schedule, option)
    assert not verify(tuning).apply(chosen)
    with pytest.raises(error):
        final_decision(without_annotation(chosen.mod["main"]), decision_of(chosen))


def test_a_choice_that_cannot_be_read_is_rejected() -> None:
    tuning, schedule = nest()
    schedule.annotate(schedule.get_sblock("root"), ANNOTATION_KEY, [1, "C", "magic"])
    assert not verify(tuning).apply(schedule)


@pytest.mark.parametrize(
    ("decomposition", "workers", "processors", "overlaps", "pays"),
    [
        ("stream_k", 2, 2, False, True),
        # A wave of its own per tile, before and after: nothing is shorter.
        ("stream_k", 4, 1, False, False),
        # Twice as many pieces of half the length: only where workers overlap.
        ("stream_k", 6, 3, False, False),
        ("stream_k", 6, 3, True, True),
        ("stream_k", 4, 3, True, False),
        # The same tiles in the same rounds, by fewer workers.
        ("persistent", 2, 2, False, False),
        ("persistent", 2, 2, True, True),
    ],
)
def test_decisions_that_shorten_nothing_are_rejected(
    decomposition: str, workers: int, processors: int, overlaps: bool, pays: bool
) -> None:
    """Three tiles: on one processor three rounds, on two processors two, on three one."""
    import schedules

    counts = count(schedules.hand_cpu(workloads.gemm(48, 32, 64)).mod["main"], "C")
    assert counts is not None
    decision = RecordedDecision("C", decomposition, "two_phase", "prologue", workers, 0)
    refusal = contextlib.nullcontext() if pays else pytest.raises(NothingGained)
    with refusal:
        require_gain(counts, decision, processors, overlaps)


def test_an_atomic_merge_is_rejected_where_the_epilogue_is_no_plain_store() -> None:
    function = workloads.gemm(15, 35, 516, epilogue=lambda x: x * 2).function
    tuning = context(function, OPENCL)
    for space in own_spaces(tuning):
        found = candidates(tuning, space, lambda decision: decision is not None)
        merges = {decision_of(each).merge for each in itertools.islice(found, FEW)}
        assert merges == {"last_arriver", "two_phase"}


def test_a_choice_is_replaced_by_the_decision_it_comes_to() -> None:
    tuning, schedule = nest()
    chosen = with_choice(schedule, STREAMED)
    assert verify(tuning).apply(chosen)
    decision = decision_of(chosen)
    assert decision == RecordedDecision("C", "stream_k", "last_arriver", "prologue", 2, 0)
    assert TAKEN_KEY not in chosen.get(chosen.get_sblock("root")).annotations


def test_a_decision_that_was_written_down_is_left_as_it_is() -> None:
    tuning, schedule = nest()
    chosen = with_choice(schedule, STREAMED)
    assert verify(tuning).apply(chosen)
    before = chosen.mod.script(), str(chosen.trace)
    assert verify(tuning).apply(chosen)
    assert (chosen.mod.script(), str(chosen.trace)) == before


def test_a_data_parallel_choice_leaves_exactly_tvms_candidate() -> None:
    tuning, schedule = nest()
    chosen = with_choice(schedule, Option("data_parallel", "two_phase", 0, 0))
    assert verify(tuning).apply(chosen)
    assert tvm_ffi.structural_equal(chosen.mod, schedule.mod)


def test_tvms_own_candidates_are_not_touched() -> None:
    tuning, schedule = nest()
    before = schedule.mod.script(), str(schedule.trace)
    assert verify(tuning).apply(schedule)
    assert (schedule.mod.script(), str(schedule.trace)) == before


def test_options_that_make_the_same_kernel_make_equal_candidates() -> None:
    tuning, schedule = nest()
    tiles = tvm_streamk.analyze(schedule, "C").num_tiles
    made = []
    for word in ("stream_k", "two_tile"):
        # More workers than half of the tiles: less than two waves, all of it streamed.
        chosen = with_choice(schedule, Option(word, "two_phase", tiles - 1, 0))
        assert verify(tuning).apply(chosen)
        made.append(chosen.mod)
    assert tvm_ffi.structural_equal(*made)


def test_the_trace_of_an_accepted_candidate_gives_it_again() -> None:
    tuning, schedule = nest()
    chosen = with_choice(schedule, STREAMED)
    assert verify(tuning).apply(chosen)
    again = Schedule(tuning.mod)
    chosen.trace.apply_to_schedule(again, remove_postproc=False)
    assert tvm_ffi.structural_equal(again.mod, chosen.mod)


@pytest.mark.parametrize("room", [0, FLAG_BYTES])
def test_a_merge_needs_room_in_shared_memory(room: int) -> None:
    """A kernel that fills shared memory to the last byte has no room for the merge's flag."""
    _, schedule = nest()
    used = shared_bytes(schedule)
    limited = {**OPENCL, "max_shared_memory_per_block": used + room}
    postproc = VerifyStreamK()
    postproc._initialize_with_tune_context(context(WORKLOAD.function, limited))
    for merge, fits in (("two_phase", True), ("last_arriver", room == FLAG_BYTES)):
        chosen = with_choice(schedule, Option("stream_k", merge, 2, 0))
        assert bool(postproc.apply(chosen)) is fits


def shared_bytes(schedule: Schedule) -> int:
    """The least shared memory with which TVM accepts a kernel."""
    limits = range(FLAG_BYTES, OPENCL["max_shared_memory_per_block"], FLAG_BYTES)

    def is_enough(limit: int) -> bool:
        verifier = meta_schedule.postproc.VerifyGPUCode()
        target = {**OPENCL, "max_shared_memory_per_block": limit}
        verifier._initialize_with_tune_context(context(WORKLOAD.function, target))
        return bool(verifier.apply(schedule.copy()))

    return limits[bisect.bisect_left(limits, True, key=is_enough)]


@pytest.mark.parametrize(
    ("target", "decomposition"),
    [(target, word) for target in (LLVM, OPENCL) for word in ("stream_k", "split_k", "two_tile")],
    ids=lambda value: value["kind"] if isinstance(value, dict) else value,
)
def test_accepted_candidates_are_right(target: Any, decomposition: str) -> None:
    workload = workloads.gemm(15, 7, 60)  # Odd numbers of tiles, which two workers must cut.
    tuning = context(workload.function, target)

    def wanted(decision: RecordedDecision | None) -> bool:
        return decision is not None and decision.decomposition == decomposition

    candidate = next(
        each for space in own_spaces(tuning) for each in candidates(tuning, space, wanted)
    )
    assert "C_stream_k" in LowerStreamK()(candidate.mod).script()
    check_numerics(candidate.mod, workload, tvm.target.Target(target))


def test_the_search_rejects_no_candidate_of_tvms_own() -> None:
    tuning = context(WORKLOAD.function, OPENCL)
    (space,) = own_spaces(tuning)
    for seed in range(1, SEEDS):
        chosen = sample(tuning, space, seed)
        if not tvm_accepts(tuning, chosen):
            assert not accepted(tuning, sample(tuning, space, seed))
