# SPDX-License-Identifier: Apache-2.0
"""The cost model: what it knows before it has seen anything, and that it learns from what it sees.

How well it ranks measured times is for ``benchmarks/tuning_features.py`` to say.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
import workloads
from scipy.stats import spearmanr
from tuning_samples import LLVM, accepted, context, own_spaces, sample
from tvm.s_tir import Schedule, meta_schedule
from tvm.s_tir.meta_schedule.runner import RunnerResult

from tvm_streamk import devices
from tvm_streamk.meta_schedule_rule import (
    FEATURE_NAMES,
    StreamKFeatures,
    plan_features,
    xgboost_model,
)
from tvm_streamk.pipeline import without_annotation
from tvm_streamk.tuning.choices import MOST_SPATIAL, NUM_CHOICES
from tvm_streamk.tuning.counts import count
from tvm_streamk.tuning.mutator import sampling_of_choice
from tvm_streamk.tuning.time_model import (
    COUSINS_SHARE,
    MEASURED_SHARE,
    SIBLINGS_SHARE,
    Measured,
    PlanAwareModel,
    Variety,
)

GEMM = workloads.gemm(48, 32, 516).function
LARGER = workloads.gemm(48, 32, 1032).function
DEVICE = devices.cpu(2)
NESTS = 6
SEEDS = 400


@functools.lru_cache(maxsize=2)
def varied(function: Any = GEMM) -> tuple[Any, list[Schedule]]:
    """A tuning context, and a few nests, each with every decision that fits it, shuffled."""
    tuning = context(function, LLVM)
    space = own_spaces(tuning)[0]
    found: list[Schedule] = []
    for trace in itertools.islice(traces_with_few_tiles(tuning, space), NESTS):
        sampling = sampling_of_choice(trace)
        for taken in range(len(sampling.attrs[0])):
            candidate = Schedule(tuning.mod)
            trace.with_decision(sampling, taken, remove_postproc=True).apply_to_schedule(
                candidate, remove_postproc=True
            )
            candidate.enter_postproc()
            if accepted(tuning, candidate):
                found.append(candidate)
    return tuning, [found[index] for index in np.random.default_rng(0).permutation(len(found))]


def traces_with_few_tiles(tuning: Any, space: Schedule) -> Iterator[Any]:
    """Traces of nests whose tiles do not fill whole waves."""
    for seed in range(1, SEEDS):
        candidate = sample(tuning, space, seed)
        counts = count(candidate.mod["main"], "C")
        if counts is not None and counts.num_tiles in (1, 3):
            yield candidate.trace


def imbalance(schedule: Schedule) -> float:
    return float(plan_features(schedule, DEVICE)[FEATURE_NAMES.index("log2_imbalance")])


def seconds(schedule: Schedule, scale: float = 1e-5) -> float:
    """Times that follow the nest and the plan: more panels, more to do around them."""
    panels = plan_features(schedule, DEVICE)[FEATURE_NAMES.index("log2_panels")]
    return float(scale * 2 ** (panels / 4 + imbalance(schedule)))


def candidates(schedules: list[Schedule]) -> list[Any]:
    return [meta_schedule.MeasureCandidate(each, []) for each in schedules]


def results(times: Any) -> list[Any]:
    return [RunnerResult([float(each)], None) for each in times]


def trained(tuning: Any, schedules: list[Schedule], scale: float = 1e-5) -> Any:
    model = PlanAwareModel(2, seed=0)
    model.update(tuning, candidates(schedules), results(seconds(s, scale) for s in schedules))
    return model


def rank_correlation(scores: Any, schedules: list[Schedule]) -> float:
    return float(spearmanr(scores, [1 / seconds(each) for each in schedules]).statistic)


def test_before_anything_is_measured_the_plan_decides() -> None:
    """At random, but a candidate that takes twice as long by its plan has half the chance."""
    tuning, schedules = varied()
    imbalances = np.array([imbalance(each) for each in schedules])
    assert len(set(imbalances)) > 1
    draws = [PlanAwareModel(2, seed=each).scores(tuning, candidates(schedules)) for each in (0, 1)]
    for scores in draws:
        assert ((scores * 2**imbalances < 1) & (scores > 0)).all()
    again = PlanAwareModel(2, seed=1).scores(tuning, candidates(schedules))
    np.testing.assert_array_equal(again, draws[1])
    assert (draws[0] != draws[1]).any()


def test_it_ranks_what_it_has_not_seen() -> None:
    """By the plan too: TVM's own model sees the same nest in all decisions on it."""
    tuning, schedules = varied()
    train, test = schedules[::2], schedules[1::2]
    theirs = meta_schedule.cost_model.XGBModel(num_warmup_samples=0, num_tuning_cores=1)
    theirs.update(tuning, candidates(train), results(seconds(each) for each in train))
    found = trained(tuning, train).scores(tuning, candidates(test))
    assert rank_correlation(found, test) > 0.95
    assert rank_correlation(theirs.predict(tuning, candidates(test)), test) < 0.9


def test_the_features_help_tvms_own_model_too() -> None:
    """On times that follow the plan: for TVM's features alone the decisions are noise."""
    tuning, schedules = varied()
    column = FEATURE_NAMES.index("log2_gain_of_waves")
    gains = np.array([plan_features(each, DEVICE)[column] for each in schedules])
    train, test = schedules[::2], schedules[1::2]
    scores = {}
    for name, extractor in (
        ("nest", meta_schedule.feature_extractor.PerStoreFeature()),
        ("plan", StreamKFeatures()),
    ):
        model = meta_schedule.cost_model.XGBModel(
            extractor=extractor, num_warmup_samples=0, num_tuning_cores=1
        )
        model.update(tuning, candidates(train), results(2**-gain for gain in gains[::2]))
        predicted = model.predict(tuning, candidates(test))
        scores[name] = spearmanr(predicted, gains[1::2]).statistic
    assert scores["plan"] > 0.9
    assert scores["nest"] < scores["plan"] - 0.1


def test_scores_are_positive_and_the_fastest_measured_has_about_one() -> None:
    tuning, schedules = varied()
    scores = trained(tuning, schedules).scores(tuning, candidates(schedules))
    fastest = min(range(len(schedules)), key=lambda index: seconds(schedules[index]))
    assert (scores > 0).all()
    assert scores[fastest] == pytest.approx(1, rel=0.1)


def test_workloads_of_other_sizes_do_not_disturb() -> None:
    """Relax tunes all functions of a model with one cost model."""
    tuning, schedules = varied()
    larger, longer = varied(LARGER)
    model = trained(larger, longer, scale=1.0)
    model.update(tuning, candidates(schedules), results(map(seconds, schedules)))
    assert rank_correlation(model.scores(tuning, candidates(schedules)), schedules) > 0.95
    scores = model.scores(larger, candidates(longer))
    assert rank_correlation(scores, longer) > 0.95


def test_failures_are_slow() -> None:
    tuning, schedules = varied()
    model = PlanAwareModel(2, seed=0)
    model.update(tuning, [], [])
    failed = RunnerResult(None, "no such luck")
    half = len(schedules) // 2
    model.update(tuning, candidates(schedules[:half]), [failed] * half)
    assert not model.forests
    measured = results([1e-3] * (len(schedules) - half))
    model.update(tuning, candidates(schedules[half:]), measured)
    times = Measured([], [1e-3, float("inf")]).log2_seconds()
    assert times[1] == times[0] + 1
    assert np.isfinite(model.scores(tuning, candidates(schedules))).all()


def test_it_guesses_until_the_first_batch_is_measured() -> None:
    tuning, schedules = varied()
    model = xgboost_model(num_sms=2, max_trials=16, seed=0)
    few = schedules[: model.num_warmup_samples - 1]
    model.update(tuning, candidates(few), results(map(seconds, few)))
    first, second = (model.scores(tuning, candidates(schedules)) for _ in range(2))
    assert (first != second).any()
    model.update(tuning, candidates(schedules[-1:]), results([seconds(schedules[-1])]))
    first, second = (model.scores(tuning, candidates(schedules)) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def row(tiles: int, nest: int, plan: int) -> np.ndarray:
    """What the model would know of a candidate, as far as variety looks at it."""
    parts = (MOST_SPATIAL, tiles), (NUM_CHOICES, nest), (len(FEATURE_NAMES), plan)
    return np.concatenate([np.full(length, value, "float32") for length, value in parts])


def test_one_decision_per_nest_and_few_nests_per_tiling_in_a_batch() -> None:
    """The best keeps its score, and those related to it have less, the more of them are better."""
    best, sibling, cousin, second_cousin = row(1, 1, 1), row(1, 1, 2), row(1, 2, 1), row(1, 3, 1)
    stranger = row(2, 1, 1)
    rows = np.array([sibling, stranger, second_cousin, best, cousin])
    scores = np.array([0.9, 0.3, 0.6, 1.0, 0.8])
    left = [SIBLINGS_SHARE, 1, COUSINS_SHARE**2, 1, COUSINS_SHARE]
    variety = Variety()
    np.testing.assert_allclose(variety.weighed(rows, scores), scores * left)
    # The same candidates again, in the next generation of the same batch: as before.
    np.testing.assert_allclose(variety.weighed(rows, scores), scores * left)
    # One that has turned up since and is better than the best stands behind nobody.
    np.testing.assert_array_equal(variety.weighed(np.array([row(1, 4, 1)]), np.array([2.0])), [2.0])


def test_decisions_on_a_nest_that_was_measured_wait_unless_the_plan_promises_more() -> None:
    measured, alike, better = row(1, 1, 2), row(1, 1, 2), row(1, 1, 1)
    alike[-len(FEATURE_NAMES)] = 7
    cousin, score = row(1, 2, 2), np.array([0.9])
    variety = Variety()
    for each, left in ((measured, 1), (alike, MEASURED_SHARE), (better, 1), (cousin, 1)):
        variety.next_batch(measured[np.newaxis])
        assert variety.weighed(each[np.newaxis], score) == score * left
    variety.next_batch(better[np.newaxis])
    assert variety.weighed(alike[np.newaxis], score) == score * MEASURED_SHARE**2


def test_the_search_goes_by_scores_with_variety() -> None:
    tuning, schedules = varied()
    different = list({tvm_ffi.structural_hash(each.mod): each for each in schedules}.values())
    nests = [nest_of(each) for each in different]
    known, new = (
        [each for each, its_nest in zip(different, nests, strict=True) if its_nest == nest]
        for nest in (nests[0], nests[-1])
    )
    assert nests[0] != nests[-1]
    assert len(new) > 1
    model = trained(tuning, known)
    scores, kept = model.scores(tuning, candidates(new)), model.predict(tuning, candidates(new))
    best = int(np.argmax(scores))
    assert kept[best] == scores[best]
    others = np.arange(len(new)) != best
    np.testing.assert_allclose(kept[others], scores[others] * SIBLINGS_SHARE)
    # What was measured keeps its score, for the search to start from.
    model.update(tuning, candidates(new), results(map(seconds, new)))
    again = model.predict(tuning, candidates(new))
    np.testing.assert_array_equal(again, model.scores(tuning, candidates(new)))


def nest_of(schedule: Schedule) -> int:
    return tvm_ffi.structural_hash(without_annotation(schedule.mod["main"]))


def test_what_was_measured_can_be_kept(tmp_path: Path) -> None:
    tuning, schedules = varied()
    model = trained(tuning, schedules)
    model.save(str(tmp_path / "measured"))
    loaded = PlanAwareModel(2)
    loaded.load(str(tmp_path / "measured"))
    expected = model.scores(tuning, candidates(schedules))
    np.testing.assert_array_equal(loaded.scores(tuning, candidates(schedules)), expected)


def test_it_is_a_cost_model_for_tvms_own_entry_points() -> None:
    assert isinstance(xgboost_model(num_sms=2), tvm.s_tir.meta_schedule.CostModel)
