# SPDX-License-Identifier: Apache-2.0
"""The mutator: another option of the same choice, nothing else, and reproducibly."""

from __future__ import annotations

from typing import Any

import tvm_ffi
import workloads
from tuning_samples import OPENCL, context, decision_of, default_context, own_spaces, sample
from tvm.s_tir import Schedule

from tvm_streamk.meta_schedule_rule import MutateStreamK
from tvm_streamk.pipeline import without_annotation
from tvm_streamk.tuning.mutator import sampling_of_choice

GEMM = workloads.gemm(48, 32, 516).function
STATES = range(400)


def candidate() -> tuple[Any, Schedule]:
    tuning = context(GEMM, OPENCL)
    (space,) = own_spaces(tuning)
    return tuning, sample(tuning, space, seed=1)


def mutate(trace: Any, state: int) -> Any:
    return MutateStreamK._cls().apply(trace, state)


def taken(trace: Any) -> int:
    return int(trace.decisions[sampling_of_choice(trace)])


def replay(tuning: Any, trace: Any) -> Schedule:
    schedule = Schedule(tuning.mod)
    trace.apply_to_schedule(schedule, remove_postproc=True)
    return schedule


def test_another_option_is_taken_and_nothing_else_changes() -> None:
    tuning, schedule = candidate()
    mutated = mutate(schedule.trace, state := 7)
    before, after = replay(tuning, schedule.trace), replay(tuning, mutated)
    assert decision_of(after).taken == taken(mutated) != taken(schedule.trace)
    assert decision_of(after).options == decision_of(before).options
    bare = [without_annotation(each.mod["main"]) for each in (before, after)]
    assert tvm_ffi.structural_equal(*bare)
    assert str(mutate(schedule.trace, state)) == str(mutated)


def test_every_other_option_can_be_reached() -> None:
    tuning, schedule = candidate()
    reached = {taken(mutate(schedule.trace, state)) for state in STATES}
    options = decision_of(replay(tuning, schedule.trace)).options
    assert reached == set(range(len(options))) - {taken(schedule.trace)}


def test_a_trace_without_a_choice_is_not_mutated() -> None:
    (space,) = default_context(GEMM, OPENCL).generate_design_space()
    assert mutate(space.trace, 1) is None


def test_a_trace_after_the_postprocs_is_mutated_before_them() -> None:
    tuning, schedule = candidate()
    list(tuning.space_generator.postprocs)[-1].apply(schedule)
    mutated = mutate(schedule.trace, 3)
    kinds = [str(each.kind.name) for each in mutated.insts]
    assert "EnterPostproc" not in kinds
    assert decision_of(replay(tuning, mutated)).taken == taken(mutated)


def test_the_search_calls_it() -> None:
    tuning = context(GEMM, OPENCL)
    ours = [
        mutator for mutator in tuning.space_generator.mutator_probs if "PyMutator" in str(mutator)
    ]
    (mutator,) = ours
    (space,) = own_spaces(tuning)
    assert taken(mutator.apply(space.trace)) != taken(space.trace)


def test_tvms_own_mutators_never_change_the_choice() -> None:
    """Why a mutator of our own is needed."""
    tuning = context(GEMM, OPENCL)
    (space,) = own_spaces(tuning)
    for mutator in tuning.space_generator.mutator_probs:
        if "PyMutator" in str(mutator):
            continue
        for _ in range(20):
            mutated = mutator.apply(space.trace)
            assert mutated is None or taken(mutated) == taken(space.trace)
