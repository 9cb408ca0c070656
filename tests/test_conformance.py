# SPDX-License-Identifier: Apache-2.0
"""TVM's own test functions: nothing but our errors, no reduction no Stream-K, and right numbers.

They are collected from the unpacked source tree that the environment variable ``TVM_SOURCE``
names, which takes minutes; ``TVM_FUNCTIONS`` may name a folder that ``conformance.py --record`` has
filled.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conformance import Collected, Verdict, collect, judge, load, report
from conformance_execution import Skipped, check_against_unscheduled

SOURCE = os.environ.get("TVM_SOURCE")
FUNCTIONS = os.environ.get("TVM_FUNCTIONS")
LEAST_FUNCTIONS = 500
"""TVM 0.27's tests use about 630; far fewer means that the collection is broken."""

pytestmark = pytest.mark.skipif(
    not (SOURCE or FUNCTIONS), reason="TVM_SOURCE does not name an unpacked TVM source tree"
)

EXCEPTIONS = {
    ("test_tir_schedule_rolling_buffer.py::test_fail_rolling_buffer_multi_writers", "C"): (
        "it reads and writes 14 rows of buffers that have 12"
    ),
    ("test_gpu_gemv.py::test_gemv_rejects_composite_normalized_axis", "conv1d_transpose"): (
        "it reads `data` from index -2 on and past its end"
    ),
    ("test_meta_schedule_arg_info.py", "matmul"): (
        "it reads 512 columns of an operand that has 256"
    ),
}
"""What is not compared, by the place where it was first seen and the block, with the reason."""


@pytest.fixture(scope="module")
def verdicts() -> list[Verdict]:
    """Every collected function with what the analysis says about it."""
    items = load(Path(FUNCTIONS)) if FUNCTIONS else collect(Path(str(SOURCE)))
    return [judge(item) for item in items]


def name_of(item: Collected) -> str:
    return str(item.function.attrs.get("global_symbol", "main"))


def test_enough_functions_are_collected(verdicts: list[Verdict]) -> None:
    assert len(verdicts) >= LEAST_FUNCTIONS
    print(report(verdicts))


def test_analysis_raises_nothing_but_its_own_errors(verdicts: list[Verdict]) -> None:
    assert {verdict.item.origin: verdict.crashed for verdict in verdicts if verdict.crashed} == {}


def test_functions_without_a_reduction_are_refused(verdicts: list[Verdict]) -> None:
    without = [verdict for verdict in verdicts if not verdict.item.has_reduction]
    assert len(without) > LEAST_FUNCTIONS // 3
    assert [verdict.item.origin for verdict in without if verdict.accepted] == []


def test_accepted_functions_compute_the_same(verdicts: list[Verdict]) -> None:
    done, skipped, wrong = 0, [], []
    for verdict in verdicts:
        for block in verdict.accepted:
            where = f"{verdict.item.origin} {name_of(verdict.item)} {block}"
            exception = EXCEPTIONS.get((verdict.item.origin, block))
            if exception is not None:
                skipped.append(f"{where}: {exception}")
                continue
            try:
                done += check_against_unscheduled(verdict.item.function, block)
            except Skipped as reason:
                skipped.append(f"{where}: {reason}")
            except AssertionError as error:
                wrong.append(f"{where}: {error}")
    print(f"{done} runs compared", *skipped, sep="\n")
    assert wrong == []
