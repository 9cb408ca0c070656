# SPDX-License-Identifier: Apache-2.0
"""The mutator: another option of the same choice, which TVM's own mutators never take."""

from __future__ import annotations

import random
from typing import Any

from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule

from tvm_streamk.annotation import TAKEN_KEY
from tvm_streamk.expressions import contains

SAMPLE_CATEGORICAL = "SampleCategorical"
_ANNOTATE = "Annotate"


@derived_object
class MutateStreamK(meta_schedule.mutator.PyMutator):
    """Take another option of the choice that a trace records; tile sizes stay as they are."""

    def _initialize_with_tune_context(self, context: Any) -> None:
        pass

    def apply(self, trace: Any, rand_state: Any) -> Any:
        """The trace with another decision, or None where it records no choice."""
        instruction = sampling_of_choice(trace)
        if instruction is None:
            return None
        candidates, _ = instruction.attrs
        others = [each for each in range(len(candidates)) if each != trace.decisions[instruction]]
        if not others:
            return None
        # The state of the search's own generator is the seed: the same seed, the same search.
        seed = int(rand_state)
        taken = random.Random(seed if seed >= 0 else None).choice(others)
        return trace.with_decision(instruction, taken, remove_postproc=True)

    def clone(self) -> Any:
        """A mutator of the same kind."""
        return MutateStreamK()


def sampling_of_choice(trace: Any) -> Any:
    """The instruction that samples which option a trace's choice takes, or None."""
    taken = [each.inputs[1] for each in trace.insts if _records_taken(each)]
    for sampling in trace.insts:
        is_sampling = str(sampling.kind.name) == SAMPLE_CATEGORICAL
        if is_sampling and contains(taken, sampling.outputs[0]):
            return sampling
    return None


def _records_taken(instruction: Any) -> bool:
    return str(instruction.kind.name) == _ANNOTATE and str(instruction.attrs[0]) == TAKEN_KEY
