# SPDX-License-Identifier: Apache-2.0
"""The recorded decision: traces replay it, and nothing that was edited by hand is believed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import schedules
import tvm
from helpers import refused, state_of
from schedules import GpuTiling
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import Trace
from tvm.s_tir.schedule.testing import verify_trace_roundtrip
from tvm.script import tirx as T
from workloads import batched_gemm, gemm, symbolic_gemm

import tvm_streamk
from tvm_streamk import errors
from tvm_streamk.annotation import ANNOTATION_KEY, decode

GEMM = gemm(24, 48, 40)
"""Extents that the tiles divide: TVM's own checks of every step (``debug_mask``) refuse others."""
SMALL = GpuTiling(tile=(8, 16), per_thread=(2, 2), vthreads=(1, 2))
SCHEDULES: dict[str, tuple[Any, Callable[[], Schedule]]] = {
    "hand GPU": (GEMM.function, lambda: schedules.hand_gpu(GEMM, SMALL)),
    "hand CPU": (GEMM.function, lambda: schedules.hand_cpu(GEMM, tile=(8, 16))),
    "not scheduled": (GEMM.function, lambda: schedules.fresh(GEMM)),
    "MetaSchedule": (GEMM.function, lambda: schedules.metaschedule_gpu(GEMM)),
    "batch": (
        batched_gemm(2, 9, 16, 24).function,
        lambda: schedules.hand_gpu(batched_gemm(2, 9, 16, 24), SMALL),
    ),
    "symbolic": (
        symbolic_gemm(5, 40, 24).function,
        lambda: schedules.hand_cpu(symbolic_gemm(5, 40, 24)),
    ),
}
DECISIONS: list[dict[str, Any]] = [
    {"num_workers": 3, "merge": "two_phase", "decomposition": "stream_k"},
    {"num_workers": 2, "decomposition": "two_tile", "merge": "two_phase"},
    {"num_workers": 2, "decomposition": "persistent", "merge": "two_phase"},
    {"decomposition": "split_k", "splits": 1, "merge": "two_phase"},
]
GPU_DECISIONS: list[dict[str, Any]] = [
    {"num_workers": 3, "merge": "atomic", "decomposition": "stream_k"},
    {"num_workers": 3, "merge": "last_arriver", "decomposition": "stream_k"},
    {"decomposition": "split_k", "splits": 5, "merge": "last_arriver"},
]


def module_of(function: Any) -> Any:
    return tvm.IRModule({"main": function})


def replayed_from_python(trace: Trace, schedule: Schedule) -> None:
    """Run the trace's Python text on a schedule."""
    names = {"T": T, **vars(tirx)}
    exec("\n".join(trace.as_python()), names, {"sch": schedule})


def replayed_from_json(trace: Trace, schedule: Schedule) -> None:
    """Apply the trace's JSON, through text, to a schedule."""
    stored = json.loads(json.dumps(plain(trace.as_json())))
    Trace.apply_json_to_schedule(stored, schedule)


def plain(value: Any) -> Any:
    """A trace's JSON as Python lists, strings and numbers."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (tirx.IntImm, tirx.FloatImm)):
        return value.value
    return [plain(entry) for entry in value] if hasattr(value, "__iter__") else value


def check_replay(name: str, arguments: dict[str, Any]) -> None:
    """Both texts of the trace give the annotated nest; lowering it gives the eager module."""
    function, make = SCHEDULES[name]
    eager, recorded = make(), make()
    eager_plan = eager.stream_k("C", **arguments)
    recorded_plan = recorded.stream_k("C", lower=False, **arguments)
    assert recorded_plan == eager_plan
    assert str(recorded.trace) == str(eager.trace)
    for replay in (replayed_from_python, replayed_from_json):
        schedule = Schedule(module_of(function), debug_mask="all")
        replay(eager.trace, schedule)
        tvm.ir.assert_structural_equal(schedule.mod, recorded.mod)
        lowered = tvm_streamk.LowerStreamK()(schedule.mod)
        tvm.ir.assert_structural_equal(lowered, eager.mod)
        assert lowered.script() == eager.mod.script()


@pytest.mark.parametrize("arguments", DECISIONS, ids=str)
@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "MetaSchedule"])
def test_replay_then_lowering_gives_the_eager_module(name: str, arguments: dict[str, Any]) -> None:
    check_replay(name, arguments)


@pytest.mark.parametrize("arguments", GPU_DECISIONS, ids=str)
def test_replay_of_the_merges_of_gpu_grids(arguments: dict[str, Any]) -> None:
    check_replay("hand GPU", arguments)


def test_replay_of_a_sampled_schedule() -> None:
    check_replay("MetaSchedule", DECISIONS[0])


@pytest.mark.parametrize("name", SCHEDULES)
def test_recorded_trace_round_trips(name: str) -> None:
    function, make = SCHEDULES[name]
    schedule = make()
    schedule.stream_k("C", num_workers=3, merge="two_phase", lower=False)
    verify_trace_roundtrip(schedule, module_of(function), text_format=["python", "json"])


def test_the_trace_shows_the_decision() -> None:
    schedule = schedules.hand_gpu(GEMM, SMALL)
    schedule.stream_k("C", num_workers=3, merge="two_phase", decomposition="stream_k")
    *_, get_root, annotate = str(schedule.trace).splitlines()
    assert 'sch.get_sblock(name="root", func_name="main")' in get_root
    assert 'ann_key="tvm_streamk"' in annotate
    assert 'ann_val=[1, "C", "stream_k", "two_phase", "prologue", 3, 0]' in annotate


def test_the_decision_may_hold_a_random_variable() -> None:
    schedule = schedules.hand_gpu(GEMM, SMALL)
    workers = schedule.sample_categorical([2, 3, 4], [0.0, 1.0, 0.0])
    value = [1, "C", "stream_k", "two_phase", "prologue", workers, 0]
    schedule.annotate(schedule.get_sblock("root"), ANNOTATION_KEY, value)
    eager = schedules.hand_gpu(GEMM, SMALL)
    eager.stream_k("C", num_workers=3, merge="two_phase", decomposition="stream_k")
    tvm.ir.assert_structural_equal(tvm_streamk.LowerStreamK()(schedule.mod), eager.mod)


# -- lowering --------------------------------------------------------------------------------------


def test_lowering_leaves_the_annotated_module_unchanged() -> None:
    schedule = schedules.hand_gpu(GEMM, SMALL)
    schedule.stream_k("C", num_workers=3, merge="two_phase", lower=False)
    before = state_of(schedule)
    tvm_streamk.LowerStreamK()(schedule.mod)
    assert state_of(schedule) == before


def test_lowering_keeps_the_names_and_attributes_of_functions() -> None:
    schedule = schedules.hand_cpu(GEMM)
    schedule.stream_k("C", num_workers=3, lower=False)
    streamed = schedule.mod["main"].with_attr("note", 7)
    other = gemm(4, 4, 8).function
    module = tvm.IRModule({"first": other, "second": streamed}, attrs={"kept": 1})
    lowered = tvm_streamk.LowerStreamK()(module)
    assert {variable.name_hint for variable in lowered.functions} == {"first", "second"}
    assert lowered["first"].same_as(other)
    assert lowered["second"].attrs["note"] == 7
    assert lowered.attrs["kept"] == 1
    assert ANNOTATION_KEY not in lowered["second"].body.block.annotations


def test_lowering_keeps_other_annotations_of_the_root() -> None:
    schedule = schedules.hand_cpu(GEMM)
    schedule.annotate(schedule.get_sblock("root"), "note", 7)
    schedule.stream_k("C", num_workers=3, lower=False)
    lowered = tvm_streamk.LowerStreamK()(schedule.mod)
    assert dict(lowered["main"].body.block.annotations.items()) == {"note": 7}


def test_lowering_nothing_gives_the_same_module() -> None:
    module = schedules.hand_gpu(GEMM, SMALL).mod
    assert tvm_streamk.LowerStreamK()(module).same_as(module)


# -- annotations edited by hand --------------------------------------------------------------------

VALID = [1, "C", "stream_k", "two_phase", "prologue", 3, 0]
EDITED: dict[str, tuple[list[Any] | str | int, str]] = {
    "not a list": ("C", "must be a list of 7 entries: version, block"),
    "a number": (3, "must be a list of 7 entries: version, block"),
    "too short": (VALID[:-1], "must be a list of 7 entries"),
    "too long": ([*VALID, 0], "must be a list of 7 entries"),
    "version": ([7, *VALID[1:]], "format version is 7"),
    "version, a word": (["1", *VALID[1:]], "its version '?\"?1'?\"? is not an integer"),
    "block": ([1, "D", *VALID[2:]], "'D': there is no such block in the nest"),
    "block, a number": ([1, 5, *VALID[2:]], "'5': there is no such block in the nest"),
    "block without reduction": ([1, "C_local", *VALID[2:]], "is a reduction"),
    "decomposition": ([1, "C", "streamk", *VALID[3:]], "its decomposition 'streamk' is none of"),
    "nothing to record": (
        [1, "C", "data_parallel", *VALID[3:]], "its decomposition 'data_parallel' is none of",
    ),
    "auto": ([1, "C", "auto", *VALID[3:]], "its decomposition 'auto' is none of"),
    "merge": ([*VALID[:3], "later", *VALID[4:]], "its merge 'later' is none of atomic"),
    "counters": ([*VALID[:4], "none", 3, 0], "its counters 'none' is none of prologue"),
    "no workers": ([*VALID[:5], 0, 0], "num_workers must be at least 1"),
    "negative workers": ([*VALID[:5], -3, 0], "num_workers must be at least 1"),
    "workers, a word": ([*VALID[:5], "3", 0], "its num_workers '?\"?3'?\"? is not an integer"),
    "workers, a fraction": ([*VALID[:5], 2.5, 0], "its num_workers .*2.5.* is not an integer"),
    "more workers than panels": ([*VALID[:5], 46, 0], "num_workers=46, but there are only 9 tiles"),
    "splits without split_k": ([*VALID[:6], 5], "splits belongs to split_k and to nothing else"),
    "negative splits": ([*VALID[:6], -5], "splits at least 0"),
    "split_k without splits": ([1, "C", "split_k", *VALID[3:]], "splits belongs to split_k"),
    "splits that do not divide": (
        [1, "C", "split_k", "two_phase", "prologue", 18, 2], "splits=2 does not divide the 5 pan",
    ),
    "workers that splits contradict": (
        [1, "C", "split_k", "two_phase", "prologue", 7, 5], "contradicts itself: .*, 45, 5",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", EDITED)
def test_annotation_edited_in_a_stored_trace(what: str) -> None:
    value, message = EDITED[what]
    schedule = schedules.hand_gpu(GEMM, SMALL)
    schedule.annotate(schedule.get_sblock("root"), ANNOTATION_KEY, value)
    replayed = Schedule(module_of(GEMM.function))
    replayed_from_json(schedule.trace, replayed)
    with refused(replayed, errors.InvalidAnnotation, message):
        tvm_streamk.LowerStreamK()(replayed.mod)


@pytest.mark.parametrize("merge", ["atomic", "last_arriver"])
def test_merge_edited_to_one_that_does_not_suit(merge: str) -> None:
    schedule = schedules.hand_cpu(GEMM)
    value = [*VALID[:3], merge, *VALID[4:]]
    schedule.annotate(schedule.get_sblock("root"), ANNOTATION_KEY, value)
    with refused(schedule, errors.InvalidAnnotation, "does not fit the function: .*needs a GPU"):
        tvm_streamk.LowerStreamK()(schedule.mod)


def test_the_build_refuses_an_edited_annotation() -> None:
    schedule = schedules.hand_cpu(GEMM)
    schedule.annotate(schedule.get_sblock("root"), ANNOTATION_KEY, VALID[:-1])
    with refused(schedule, errors.InvalidAnnotation, "must be a list of 7 entries"):
        tvm.compile(schedule.mod, target="llvm")


def test_every_field_survives_encoding() -> None:
    decision = decode(VALID)
    assert decision.encode() == VALID
    assert decode(decision.encode()) == decision
