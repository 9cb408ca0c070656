# SPDX-License-Identifier: Apache-2.0
"""Executed instructions: the fit, its committed result, and the constants that cite it."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from tvm_streamk import devices

FOLDER = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(FOLDER))
fit_instructions = importlib.import_module("fit_instructions")

SMALL_ERROR = 0.01
ROUNDING = 5e-5


def committed() -> dict:
    return json.loads((FOLDER / "instructions.json").read_text())


def test_constants_of_the_cpu_are_the_fitted_ones() -> None:
    in_panels = committed()["in_panels"]
    assert devices.CPU_START_PANELS == pytest.approx(in_panels["start"], abs=ROUNDING)
    assert devices.CPU_SPLIT_PANELS == pytest.approx(in_panels["split"], abs=ROUNDING)
    assert devices.CPU_PEER_PANELS == pytest.approx(in_panels["peer"], abs=ROUNDING)
    device = devices.cpu(2)
    assert device.start_us == pytest.approx(in_panels["start"] * device.panel_us, rel=1e-2)


def test_the_committed_counts_give_the_committed_terms() -> None:
    data = committed()
    cases = [
        fit_instructions.Case(**{**case, "tile": tuple(case["tile"])})
        for case in ({k: v for k, v in each.items() if k != "counted"} for each in data["cases"])
    ]
    assert cases == fit_instructions.cases()
    counted = [each["counted"] for each in data["cases"]]
    found = fit_instructions.fit(cases, counted)
    for name, term in data["terms"].items():
        assert found.terms[name].at(1000, 8) == pytest.approx(
            term["fixed"] + term["per_element"] * 8000
        ), name
    errors = [abs(fitted / count - 1) for fitted, count in zip(found.fitted, counted, strict=True)]
    assert max(errors) < SMALL_ERROR
    text = (FOLDER / "instructions.md").read_text()
    assert text == fit_instructions.report(cases, counted, found)


def test_made_up_terms_come_back() -> None:
    true = {
        "call": fit_instructions.Term(1000, 0),
        "once": fit_instructions.Term(100, 0),
        "start": fit_instructions.Term(50, 4),
        "split": fit_instructions.Term(700, 0.25),
        "peer": fit_instructions.Term(30, 0.5),
        "panel": fit_instructions.Term(200, 0.5),
    }
    cases = fit_instructions.cases()
    counted = []
    for case in cases:
        total = 0.0
        for name, count in case.counts().items():
            total += count * true[name].at(case.elements, case.depth if name == "panel" else 1)
        counted.append(total)
    found = fit_instructions.fit(cases, counted)
    for name, term in true.items():
        assert found.terms[name].fixed == pytest.approx(term.fixed, rel=1e-3), name
        assert found.terms[name].per_element == pytest.approx(term.per_element, rel=1e-3), name


def test_counts_of_one_cut_tile() -> None:
    case = fit_instructions.Case((14, 64), 3, 24, "stream_k", 2)
    # Two whole tiles and one in two pieces, whose merge pays a start and one peer.
    assert case.counts() == {
        "call": 1, "once": 1, "start": 5, "split": 2, "panel": 72, "peer": 1,
    }  # fmt: skip
    whole = fit_instructions.Case((14, 64), 2, 24, "persistent", 2)
    assert whole.counts() == {
        "call": 1, "once": 0, "start": 2, "split": 0, "panel": 48, "peer": 0,
    }  # fmt: skip
