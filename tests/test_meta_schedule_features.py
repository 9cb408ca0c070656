# SPDX-License-Identifier: Apache-2.0
"""Features of the plan: what they say, that TVM's do not, and that a model learns by them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import workloads
from tuning_samples import (
    LLVM,
    OPENCL,
    accepted,
    context,
    default_context,
    sample,
)
from tvm.s_tir import Schedule, meta_schedule

from tvm_streamk import devices
from tvm_streamk.meta_schedule_rule import FEATURE_NAMES, StreamKFeatures, plan_features
from tvm_streamk.tuning.counts import count, reduction_blocks

GEMM = workloads.gemm(48, 32, 516).function
DEVICE = devices.cpu(2)
NESTS = 6
SEEDS = 400


def named(schedule: Schedule) -> dict[str, float]:
    return dict(zip(FEATURE_NAMES, plan_features(schedule, DEVICE).tolist(), strict=True))


def measured(schedules: list[Schedule]) -> list[Any]:
    return [meta_schedule.MeasureCandidate(each, []) for each in schedules]


def hand(decomposition: str, **arguments: Any) -> Schedule:
    import schedules

    schedule = schedules.hand_cpu(workloads.gemm(48, 32, 64))
    schedule.stream_k("C", decomposition=decomposition, merge="two_phase", lower=False, **arguments)
    return schedule


def test_features_of_a_known_plan() -> None:
    """Three tiles of 16 x 32 with eight panels, on two processors."""
    features = named(hand("stream_k", num_workers=2))
    assert features["is_stream_k"] == features["is_one_nest"] == 1
    assert features["merges_by_two_phase"] == 1
    expected = {
        "log2_tiles": 3,
        "log2_panels": 8,
        "log2_workers": 2,
        "log2_waves_before": 2,
        "log2_waves_after": 1.5,
        "log2_gain_of_waves": 2 / 1.5,
        "log2_cuts": 1,
        "log2_most_peers": 2,
        "log2_workspace_bytes": 4 * 16 * 32 * 4,
    }
    for name, value in expected.items():
        assert features[name] == pytest.approx(np.log2(1 + value)), name
    assert features["log2_imbalance"] == 0


def test_a_plan_without_a_choice_is_data_parallel() -> None:
    features = named(hand("data_parallel"))
    assert features["is_data_parallel"] == 1
    assert features["log2_workspace_bytes"] == features["log2_cuts"] == 0
    assert features["log2_waves_after"] == features["log2_waves_before"]
    assert features["log2_predicted_gain"] == 1
    assert features["log2_imbalance"] == pytest.approx(np.log2(2 * 2 / 3))


def test_one_word_is_true_at_a_time() -> None:
    for schedule in (hand("stream_k", num_workers=3), hand("split_k", splits=4)):
        features = named(schedule)
        assert sum(features[name] for name in FEATURE_NAMES if name.startswith("is_")) == 2
        assert sum(features[name] for name in FEATURE_NAMES if name.startswith("merges_")) == 1


def test_what_is_no_single_nest_is_all_zero() -> None:
    spaces = context(workloads.gemm(4, 4, 4096).function, LLVM).generate_design_space()
    split = next(s for s in spaces if any(i.kind.name == "RFactor" for i in s.trace.insts))
    assert not plan_features(split, DEVICE).any()


def test_counts_agree_with_the_analysis() -> None:
    import tvm_streamk

    for target in (LLVM, OPENCL):
        tuning = context(GEMM, target)
        for space in default_context(GEMM, target).generate_design_space():
            candidate = sample(tuning, space, seed=3)
            if not accepted(tuning, candidate):
                continue
            nest = tvm_streamk.analyze(candidate, "C")
            (name,) = reduction_blocks(candidate.mod["main"])
            counts = count(candidate.mod["main"], name)
            assert counts is not None
            assert (counts.num_tiles, counts.panels) == (nest.num_tiles, nest.panels)
            assert counts.tile_bytes == nest.elements.slot_bytes


def test_tvms_features_cannot_tell_decisions_apart_and_ours_can() -> None:
    schedules = [hand("data_parallel"), hand("stream_k", num_workers=2), hand("split_k", splits=4)]
    tuning = default_context(GEMM, LLVM)
    theirs = meta_schedule.feature_extractor.PerStoreFeature()
    nests = [each.numpy() for each in theirs.extract_from(tuning, measured(schedules))]
    for nest in nests[1:]:
        np.testing.assert_array_equal(nest, nests[0])
    ours = [each.numpy() for each in StreamKFeatures().extract_from(tuning, measured(schedules))]
    width = nests[0].shape[1]
    for nest, extended in zip(nests, ours, strict=True):
        np.testing.assert_array_equal(extended[:, :width], nest)
        assert extended.shape == (nest.shape[0], width + len(FEATURE_NAMES))
        assert np.isfinite(extended).all()
    plans = [tuple(extended[0, width:]) for extended in ours]
    assert len(set(plans)) == len(plans)
