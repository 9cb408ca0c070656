# SPDX-License-Identifier: Apache-2.0
"""What a trace has sampled, as numbers for the cost model.

TVM's features describe in hundreds of columns what a nest does. The choices that made the nest are
a dozen numbers, tile sizes above all, and a short run learns from them what the others drown.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from tvm_streamk.tuning.mutator import SAMPLE_CATEGORICAL, sampling_of_choice

TILINGS = ("SamplePerfectTile", "SamplePartitionedTile")

MOST_SPATIAL = 32
MOST_REDUCTION = 16
MOST_LEVELS = 8
MOST_OTHERS = 16
NUM_CHOICES = MOST_SPATIAL + MOST_REDUCTION + MOST_LEVELS + MOST_OTHERS
"""Columns for tile factors of spatial axes and of others, levels of tiles, and the other choices;
what a trace lacks is no number."""


def choice_features(trace: Any) -> np.ndarray:
    """Everything that a trace samples but the Stream-K decision, which the plan describes.

    Parameters
    ----------
    trace : tvm.s_tir.schedule.Trace
        Of a candidate.

    Returns
    -------
    numpy.ndarray
        float64, NUM_CHOICES columns: ``log2`` of the tile factors of spatial axes, then of the
        others; ``log2`` of the product over the spatial axes at each level of tiling (blocks,
        threads, elements of a thread); ``log2(1 + value)`` of the values that were picked from
        lists, and where blocks were put.
    """
    tilings, others = _sampled(trace)
    # A rule tiles spatial axes first, and all of them alike.
    spatial = [each for each in tilings if len(each) == len(tilings[0])]
    reduction = [each for each in tilings if len(each) != len(tilings[0])]
    levels = [sum(level) for level in zip(*spatial, strict=True)]
    return np.concatenate(
        [
            _padded(itertools.chain(*spatial), MOST_SPATIAL),
            _padded(itertools.chain(*reduction), MOST_REDUCTION),
            _padded(levels, MOST_LEVELS),
            _padded(others, MOST_OTHERS),
        ]
    )


def _sampled(trace: Any) -> tuple[list[list[float]], list[float]]:
    decision_on_plan = sampling_of_choice(trace)
    tilings: list[list[float]] = []
    others: list[float] = []
    decisions = trace.decisions
    for instruction in trace.insts:
        decision = decisions.get(instruction)
        if decision is None or instruction.same_as(decision_on_plan):
            continue
        kind = str(instruction.kind.name)
        if kind in TILINGS:
            tilings.append([math.log2(max(int(factor), 1)) for factor in decision])
        else:
            picked = instruction.attrs[0][decision] if kind == SAMPLE_CATEGORICAL else decision
            others.append(math.log2(1 + abs(int(picked))))
    return tilings, others


def _padded(values: Iterable[float], length: int) -> np.ndarray:
    kept = list(values)[:length]
    return np.array(kept + [np.nan] * (length - len(kept)))
