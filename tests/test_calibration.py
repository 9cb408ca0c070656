# SPDX-License-Identifier: Apache-2.0
"""The fit: made-up constants come back from the times that they give, noise and all."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from tvm_streamk.calibration import (
    TERMS,
    CannotFit,
    Sample,
    calibrated,
    counts,
    fit,
    least_squares,
    samples,
)
from tvm_streamk.cost_model import LAST_ARRIVER, TWO_PHASE, predict
from tvm_streamk.devices import REFERENCE_TILE, Device, cpu, lookup
from tvm_streamk.partition import PERSISTENT, SPLIT_K, Partition

TRUE = {"launch": 9.0, "once": 4.0, "start": 3.0, "split": 2.0, "panel": 1.5, "peer": 0.75}
MERGES = pytest.mark.parametrize("merge", [LAST_ARRIVER, TWO_PHASE])


def times_of(chosen: list[Sample], processors: int, merge: str, terms: dict[str, float]):
    rows = [counts(sample, processors, merge) for sample in chosen]
    return [sum(n * terms[name] for n, name in zip(row, TERMS, strict=True)) for row in rows]


@MERGES
@pytest.mark.parametrize("processors", [2, 4, 7])
def test_on_few_processors_every_constant_comes_back(processors: int, merge: str) -> None:
    chosen = samples(processors)
    found = fit(chosen, times_of(chosen, processors, merge, TRUE), processors, merge)
    for name, value in TRUE.items():
        assert getattr(found, f"{name}_us") == pytest.approx(value), name
    assert max(map(abs, found.errors(found.fitted_us))) == 0


@MERGES
@pytest.mark.parametrize(("processors", "shared"), [(108, False), (132, False), (264, True)])
def test_where_nothing_runs_in_rounds_a_split_includes_what_is_paid_once(
    processors: int, shared: bool, merge: str
) -> None:
    chosen = samples(processors, shared=shared)
    found = fit(chosen, times_of(chosen, processors, merge, TRUE), processors, merge)
    assert found.once_us == 0
    assert found.split_us == pytest.approx(TRUE["split"] + TRUE["once"])
    for name in ("launch", "start", "panel", "peer"):
        assert getattr(found, f"{name}_us") == pytest.approx(TRUE[name]), name


def test_noise_of_a_few_percent_leaves_the_panel_within_a_few_percent() -> None:
    chosen = samples(2)
    exact = np.array(times_of(chosen, 2, TWO_PHASE, TRUE))
    noise = np.random.default_rng(seed=3).uniform(0.97, 1.03, len(exact))
    found = fit(chosen, list(exact * noise), 2, TWO_PHASE)
    assert found.panel_us == pytest.approx(TRUE["panel"], rel=0.05)
    assert min(value for name, value in asdict(found).items() if name != "fitted_us") >= 0
    assert max(map(abs, found.errors(list(exact)))) < 0.05


def test_a_term_that_would_be_negative_is_zero() -> None:
    chosen = samples(2)
    times = times_of(chosen, 2, TWO_PHASE, {**TRUE, "peer": -0.5})
    found = fit(chosen, times, 2, TWO_PHASE)
    assert found.peer_us == 0
    assert found.panel_us == pytest.approx(TRUE["panel"], rel=0.02)


def test_the_fewest_terms_are_the_exact_ones() -> None:
    relative = np.array([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [1.0, 0.0, 0.0]])
    assert least_squares(relative).tolist() == pytest.approx([1.0, 0.5, 0.0])


@pytest.mark.parametrize("processors", [2, 108, 132])
def test_samples_vary_everything_and_can_be_built(processors: int) -> None:
    chosen = samples(processors)
    assert len(chosen) == len(set(chosen)) <= 40
    assert all(sample.panels % sample.splits == 0 for sample in chosen)
    assert all(sample.num_tiles % processors == 0 for sample in chosen if sample.splits == 1)
    assert len({sample.splits for sample in chosen}) >= 4


def test_workers_that_share_a_processor_are_always_all_busy() -> None:
    for sample in samples(264, shared=True):
        busy = sample.num_tiles * sample.splits
        assert busy > 264 - sample.splits


def test_too_few_samples_and_senseless_times_are_refused() -> None:
    with pytest.raises(CannotFit, match="2 samples do not tell launch, once, start"):
        fit([Sample(2, 48), Sample(4, 48)], [1.0, 2.0], 2, TWO_PHASE)
    chosen = samples(2)
    with pytest.raises(CannotFit, match="every time must be positive"):
        fit(chosen, [0.0] * len(chosen), 2, TWO_PHASE)
    with pytest.raises(CannotFit, match="do not grow with the panels"):
        fit(chosen, [5.0] * len(chosen), 2, TWO_PHASE)


@pytest.mark.parametrize(
    ("merge", "device"),
    [(TWO_PHASE, cpu(2)), (TWO_PHASE, cpu(5)), (LAST_ARRIVER, lookup("A100"))],
    ids=["two cores", "five cores", "A100"],
)
def test_times_that_the_model_predicts_give_its_own_constants(merge: str, device: Device) -> None:
    scaling = ((28, 128, 60), 4, 0.5)
    scaled = device.for_tile(*scaling)
    chosen = samples(device.num_sms)
    times = [
        TRUE["launch"] + predict(partition_of(sample, device.num_sms), scaled, merge)
        for sample in chosen
    ]
    found = fit(chosen, times, device.num_sms, merge)
    assert found.launch_us == pytest.approx(TRUE["launch"])
    record = calibrated(device, found, scaling)
    for name, value in asdict(device).items():
        assert getattr(record, name) == pytest.approx(value), name


def partition_of(sample: Sample, processors: int) -> Partition:
    if sample.splits == 1:
        return Partition(sample.num_tiles, sample.panels, processors, PERSISTENT)
    workers = sample.num_tiles * sample.splits
    return Partition(sample.num_tiles, sample.panels, workers, SPLIT_K)


def test_what_is_paid_once_is_counted_with_every_split() -> None:
    chosen = samples(2)
    found = fit(chosen, times_of(chosen, 2, TWO_PHASE, TRUE), 2, TWO_PHASE)
    record = calibrated(cpu(2), found, (REFERENCE_TILE, 4, 1.0))
    assert record.split_us == pytest.approx(TRUE["split"] + TRUE["once"])
    assert record.panel_us == pytest.approx(TRUE["panel"])
