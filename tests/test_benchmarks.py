# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks make of their measurements, and the count that no clock disturbs."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from tvm_streamk.testing.measure import CONTROL_RANGE

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
cases = importlib.import_module("cases")
count_instructions = importlib.import_module("count_instructions")
report = importlib.import_module("report")

FIRST = 0
ONE_TILE = cases.CASES[FIRST]
DATA_PARALLEL, PERSISTENT = cases.DATA_PARALLEL, cases.PERSISTENT


def figures(ratio: float, control: float = 1.0) -> dict:
    low, high = CONTROL_RANGE
    return {
        "pairs": 41,
        "batches": 3,
        "dropped": 1,
        "ratio": ratio,
        "spread": [ratio - 0.1, ratio + 0.1],
        "control": control,
        "seconds": [ratio, 1.0],
        "valid": low <= control <= high,
    }


def process(data_parallel: dict, persistent: dict | None = None) -> dict:
    return {
        "engine": "some engine",
        "tiles": 1,
        "waves": [1, 0.5],
        "bound": 2.0,
        "ratios": {DATA_PARALLEL: data_parallel, PERSISTENT: persistent or figures(1.8)},
    }


NOT_QUIET = {"pairs": 0, "batches": 9, "dropped": 9, "not_quiet": "not quiet: 9 of 9"}


def test_every_case_is_required_or_says_that_it_is_not():
    assert {case.target for case in cases.CASES} == {"llvm", "opencl"}
    for case in cases.CASES:
        assert case.shape[2] % 1024, "row strides of a power of two share places in the cache"
        assert case.required is None or 0.9 < case.required < 2


def test_good_figures_are_no_problem():
    assert report.problems_of(ONE_TILE, [process(figures(1.7)) for _ in range(3)]) == []


def test_the_median_of_the_processes_has_to_reach_what_is_required():
    runs = [process(figures(ratio)) for ratio in (1.3, 1.4, 1.7)]
    (problem,) = report.problems_of(ONE_TILE, runs)
    assert "1.400 times data_parallel, required 1.5" in problem


def test_a_void_figure_is_a_problem_and_is_not_judged():
    runs = [process(figures(1.0, control=1.2)), process(figures(1.7)), process(figures(1.7))]
    (problem,) = report.problems_of(ONE_TILE, runs)
    assert "void, the control is 1.200" in problem
    assert report.valid_ratios(runs, DATA_PARALLEL) == [1.7, 1.7]
    assert "[1.00 (0.90..1.10)], 1.70" in report.report({FIRST: runs})


def test_a_busy_machine_is_reported_without_a_figure():
    runs = [process(NOT_QUIET), process(figures(1.7)), process(figures(1.7))]
    (problem,) = report.problems_of(ONE_TILE, runs)
    assert "not quiet" in problem
    text = report.report({FIRST: runs})
    assert "| not quiet, 1.70" in text
    assert "Batches dropped for foreign load: 14 of 24." in text


def test_a_ratio_above_the_bound_is_marked():
    text = report.report({FIRST: [process(figures(2.2), figures(2.05))]})
    assert "2.20! (2.10..2.30)" in text
    assert "2.05 (1.95..2.15)" in text


def test_full_waves_cost_no_instructions():
    shape, workers = count_instructions.FULL_WAVES[-1]
    forms = (count_instructions.PERSISTENT, count_instructions.STREAM_K)
    try:
        whole_tiles, streamed = count_instructions.instructions_of(
            [count_instructions.kernel(shape, form, workers) for form in forms]
        )
    except count_instructions.CannotCount as reason:
        pytest.skip(str(reason))
    assert streamed <= whole_tiles * (1 + count_instructions.MOST_EXTRA)
    # The counter sees the work: a multiplication and an addition per eight elements, at least.
    m, n, k = shape
    assert whole_tiles > m * n * k / 8


def test_without_valgrind_the_reason_is_said(monkeypatch):
    monkeypatch.setattr(count_instructions.shutil, "which", lambda _name: None)
    with pytest.raises(count_instructions.CannotCount, match="there is no valgrind; install it"):
        count_instructions._counted([(Path("kernel.so"), (1, 1, 1))], Path("out"))
