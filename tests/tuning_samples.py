# SPDX-License-Identifier: Apache-2.0
"""Candidates of design spaces, for the tests of tuning: sampled as the search samples them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tvm
from tvm.s_tir import Schedule, meta_schedule
from tvm.s_tir.schedule import Trace

from tvm_streamk.annotation import ANNOTATION_KEY, RecordedDecision
from tvm_streamk.meta_schedule_rule import space_generator, without_tensor_intrinsics
from tvm_streamk.nest import root_block
from tvm_streamk.pipeline import recorded_decision

OPENCL = {
    "kind": "opencl",
    "max_threads_per_block": 256,
    "max_shared_memory_per_block": 49152,
    "thread_warp_size": 1,
}
LLVM = {"kind": "llvm", "num-cores": 2}
CUDA = {
    "kind": "cuda",
    "arch": "sm_70",
    "max_threads_per_block": 1024,
    "max_shared_memory_per_block": 49152,
}
MOST_SEEDS = 300


def context(function: Any, target: Any, space: Any = None, num_sms: int | None = None) -> Any:
    """A tuning context; by default with Stream-K in the space."""
    with without_tensor_intrinsics():
        return meta_schedule.TuneContext(
            mod=function,
            target=tvm.target.Target(target),
            space_generator=space or space_generator(target, num_sms),
            search_strategy="evolutionary",
            task_name="main",
        )


def default_context(function: Any, target: Any) -> Any:
    """A tuning context with TVM's own space."""
    return context(function, target, meta_schedule.space_generator.PostOrderApply())


def is_ours(schedule: Schedule) -> bool:
    """Whether a design space carries a choice of ours."""
    return ANNOTATION_KEY in root_block(schedule.mod["main"]).annotations


def own_spaces(tuning: Any) -> list[Schedule]:
    """The design spaces with a choice in them."""
    return [space for space in tuning.generate_design_space() if is_ours(space)]


def sample(tuning: Any, space: Schedule, seed: int) -> Schedule:
    """A candidate before its postprocs: the space's trace with everything sampled anew."""
    candidate = Schedule(tuning.mod, seed=seed)
    Trace(space.trace.insts, {}).apply_to_schedule(candidate, remove_postproc=True)
    candidate.enter_postproc()
    return candidate


def accepted(tuning: Any, candidate: Schedule) -> bool:
    """Run all postprocs on a candidate, as the search does."""
    return all(postproc.apply(candidate) for postproc in tuning.space_generator.postprocs)


def candidates(
    tuning: Any, space: Schedule, wanted: Callable[[RecordedDecision | None], bool]
) -> Iterator[Schedule]:
    """Candidates that pass all postprocs and whose decision is wanted."""
    for seed in range(1, MOST_SEEDS):
        candidate = sample(tuning, space, seed)
        if accepted(tuning, candidate) and wanted(decision_of(candidate)):
            yield candidate


def decision_of(candidate: Schedule) -> Any:
    """What is recorded in a candidate."""
    return recorded_decision(candidate.mod["main"])


def first_with(tuning: Any, decomposition: str) -> Schedule:
    """The first candidate of any of our spaces that has a decomposition."""

    def wanted(decision: RecordedDecision | None) -> bool:
        return decision is not None and decision.decomposition == decomposition

    spaces = own_spaces(tuning)
    return next(each for space in spaces for each in candidates(tuning, space, wanted))
