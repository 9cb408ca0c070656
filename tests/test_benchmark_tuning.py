# SPDX-License-Identifier: Apache-2.0
"""What the tuning benchmarks make of their measurements."""

from __future__ import annotations

import importlib
import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
tuning = importlib.import_module("tuning")
tuning_cases = importlib.import_module("tuning_cases")
tuning_features = importlib.import_module("tuning_features")

QUIET = {
    "ratio": 1.2,
    "spread": [1.1, 1.3],
    "control": 1.0,
    "seconds": [1.2e-3, 1e-3],
    "valid": True,
    "splits_k": False,
}


def row(seed: int, **figures: Any) -> dict[str, Any]:
    run = {"winner": "stream_k", "why": "stream_k won."}
    compared = {**QUIET, **figures}
    return {"case": 2, "seed": seed, "tvm": {**run, "winner": "data_parallel"},
            "stream_k": run, "compared": compared}  # fmt: skip


def test_every_seed_is_reported() -> None:
    text = tuning.report([row(1), row(2, ratio=0.9, valid=False)], trials=64)
    assert "1.20 (1.10..1.30)" in text
    assert "[0.90 (1.10..1.30)]" in text
    assert "data_parallel, 1200.0 us | stream_k, 1000.0 us" in text
    assert text.count("seed 1: stream_k won.") == text.count("seed 2: stream_k won.") == 1


def test_noise_and_a_slower_median_are_problems() -> None:
    assert tuning.problems_of([row(1)]) == []
    (void,) = tuning.problems_of([row(1, valid=False, control=1.2)])
    assert "void, the control is 1.200" in void
    rows = [row(1, ratio=0.9), row(2, ratio=0.95), row(3, ratio=1.5)]
    (slower,) = tuning.problems_of(rows)
    assert "0.950 times TVM's own space" in slower
    busy = {"not_quiet": "not quiet: others were busy"}
    assert tuning.problems_of([row(1, **busy)]) == [
        f"{tuning_cases.CASES[2].name}, seed 1: not quiet: others were busy"
    ]


def test_both_spaces_get_the_same_settings() -> None:
    model = tuning_cases.xgboost_model(2, 64)
    theirs = tuning_cases.tvms_model(model)
    assert theirs.num_warmup_samples == model.num_warmup_samples
    assert theirs.config.nthread == model.num_tuning_cores


@pytest.mark.parametrize(
    ("scores", "expected"),
    [([2.0, 1.0, 5.0], [1.0]), ([1.0, 2.0, 5.0], [0.0]), ([1.0, 1.0, 5.0], [0.5])],
)
def test_pairs_of_one_nest_are_compared(scores: list[float], expected: list[float]) -> None:
    seconds, nests = np.array([1.0, 2.0, 3.0]), np.array([7, 7, 8])
    assert tuning_features._ordered_pairs(np.array(scores), seconds, nests) == expected


def test_pairs_within_the_noise_are_not_compared() -> None:
    seconds, nests = np.array([1.0, 1.01]), np.array([7, 7])
    assert tuning_features._ordered_pairs(np.array([1.0, 2.0]), seconds, nests) == []


def test_a_nest_is_learned_from_or_held_out() -> None:
    nests = np.array([5, 5, 6, 7, 7, 7, 8, 9])
    parts = list(tuning_features._parts(nests))
    assert len(parts) == tuning_features.REPETITIONS * tuning_features.PARTS
    for seen, held_out in parts:
        assert sorted([*seen, *held_out]) == list(range(len(nests)))
        assert not set(nests[seen]) & set(nests[held_out])


def test_a_model_without_the_plan_sees_none() -> None:
    case = tuning_cases.CASES[0]
    tuning = tuning_features._context(case, tuning_features.space_generator(case.target))
    found = list(itertools.islice(tuning_features._random_candidates(tuning), 4))
    candidates = [tuning_features.meta_schedule.MeasureCandidate(each, []) for each in found]
    width = len(tuning_features.FEATURE_NAMES)
    with_plan, without = (
        make().extractor.extract_from(tuning, candidates)
        for make in (tuning_features.our_model, tuning_features.without_plan)
    )
    for one, other in zip(with_plan, without, strict=True):
        np.testing.assert_array_equal(one.numpy()[:, :-width], other.numpy()[:, :-width])
        assert not other.numpy()[:, -width:].any()
    assert any(one.numpy()[:, -width:].any() for one in with_plan)
