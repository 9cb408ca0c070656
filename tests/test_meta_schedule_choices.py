# SPDX-License-Identifier: Apache-2.0
"""What a trace has sampled, as the cost model sees it."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import workloads
from tvm.s_tir import Schedule

from tvm_streamk.meta_schedule_rule import MutateStreamK
from tvm_streamk.tuning.choices import (
    MOST_LEVELS,
    MOST_REDUCTION,
    MOST_SPATIAL,
    NUM_CHOICES,
    choice_features,
)
from tvm_streamk.tuning.rule import with_sampled_choice

SHAPE = (48, 32, 516)
FACTORS = ([3, 4, 4], [2, 16, 1], [129, 4])
UNROLLING = (0, 16, 64)
CPU_TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 2})


def tiled(unrolling: int = 1) -> Schedule:
    """Three tilings, two of them of spatial axes, and a value from a list, all as decided."""
    schedule = Schedule(workloads.gemm(*SHAPE).function)
    for loop, factors in zip(schedule.get_loops("C"), FACTORS, strict=True):
        schedule.sample_perfect_tile(loop, len(factors), decision=factors)
    schedule.sample_categorical(list(UNROLLING), [1 / 3] * 3, decision=unrolling)
    return schedule


def groups(schedule: Schedule) -> list[list[float]]:
    """Spatial and other factors, levels and the others, as far as there are any."""
    features = choice_features(schedule.trace)
    assert features.shape == (NUM_CHOICES,)
    parts = np.split(features, np.cumsum([MOST_SPATIAL, MOST_REDUCTION, MOST_LEVELS]))
    return [part[~np.isnan(part)].tolist() for part in parts]


def test_factors_levels_and_values() -> None:
    spatial, reduction, levels, others = groups(tiled())
    assert spatial == pytest.approx(np.log2([*FACTORS[0], *FACTORS[1]]))
    assert reduction == pytest.approx(np.log2(FACTORS[2]))
    # Per level over both spatial axes: 3 x 2 blocks, 4 x 16 threads, 4 x 1 elements.
    assert levels == pytest.approx(np.log2([6, 64, 4]))
    assert others == pytest.approx(np.log2([1 + UNROLLING[1]]))


def test_the_value_counts_not_its_place() -> None:
    found = [groups(tiled(unrolling))[-1][0] for unrolling in range(len(UNROLLING))]
    assert found == pytest.approx(np.log2(1 + np.array(UNROLLING)))


def test_the_decision_on_the_plan_is_not_among_them() -> None:
    schedule = tiled()
    chosen = with_sampled_choice(schedule, schedule.get_sblock("C"), CPU_TARGET, 2)
    assert groups(chosen) == groups(schedule)
    other = MutateStreamK._cls().apply(chosen.trace, 7)
    np.testing.assert_array_equal(choice_features(other), choice_features(chosen.trace))


def test_a_trace_that_samples_nothing_has_no_numbers() -> None:
    assert groups(Schedule(workloads.gemm(*SHAPE).function)) == [[], [], [], []]


def test_what_does_not_fit_is_left_out() -> None:
    schedule = Schedule(workloads.gemm(*SHAPE).function)
    row, _, depth = schedule.get_loops("C")
    schedule.sample_perfect_tile(row, MOST_LEVELS + 1, decision=[48] + [1] * MOST_LEVELS)
    schedule.sample_perfect_tile(depth, MOST_REDUCTION + 1, decision=[516] + [1] * MOST_REDUCTION)
    _, reduction, levels, _ = groups(schedule)
    assert len(reduction) == MOST_REDUCTION
    assert len(levels) == MOST_LEVELS
