# SPDX-License-Identifier: Apache-2.0
"""What a merge costs in registers: the committed table, and a part of it measured again."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
registers = importlib.import_module("registers")

VERSION, ROWS = registers.parse_table(registers.OUTPUT.read_text())
needs_compiler = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on the PATH")
PLAIN = "hand, float32"
MEASURED_AGAIN = ("data_parallel", "stream_k, last_arriver", "split_k, two_phase")


def test_no_form_spills_or_takes_many_registers() -> None:
    assert registers.failures(ROWS) == []


def test_table_has_every_nest_and_form() -> None:
    nests = {**registers.plain_nests(), **registers.tensor_core_nests()}
    labels = [form.label for form in registers.FORMS]
    for name in nests:
        measured = [label for nest, label, _ in ROWS if nest == name]
        has_atomics = name in registers.plain_nests()
        assert measured == (labels if has_atomics else labels[:-1]), name
    assert {nest for nest, _, _ in ROWS} == set(nests)


def test_table_is_what_its_own_rows_make() -> None:
    assert registers.table(ROWS, VERSION) == registers.OUTPUT.read_text()


@pytest.mark.parametrize(
    ("form", "passes"),
    [
        ((64, 0), True),
        ((88, 0), True),
        ((89, 0), False),
        ((64, 8), False),
    ],
)
def test_gate(form: tuple[int, int], passes: bool) -> None:
    used = registers.Figures(registers.Usage(*form))
    base = registers.Figures(registers.Usage(64, 0))
    rows = [
        ("nest", registers.DATA_PARALLEL, {"sm_80": base}),
        ("nest", "stream_k, last_arriver", {"sm_80": used}),
    ]
    assert bool(registers.failures(rows)) != passes
    held = registers.Figures(used.free, registers.Usage(88, 0))
    rows[1] = ("nest", "stream_k, last_arriver", {"sm_80": held})
    assert registers.failures(rows) == []


def check_again(nests: dict, forms: list) -> None:
    """Measure again; equal figures where the compiler is the table's, else the same gate."""
    rows = list(registers.measure(nests, forms))
    assert registers.failures(rows) == []
    if registers.compiler_version() == VERSION:
        labels = {form.label for form in forms}
        assert rows == [row for row in ROWS if row[0] in nests and row[1] in labels]


@needs_compiler
def test_part_of_the_table_measured_again() -> None:
    forms = [form for form in registers.FORMS if form.label in MEASURED_AGAIN]
    check_again({PLAIN: registers.plain_nests()[PLAIN]}, forms)


@needs_compiler
@pytest.mark.long
def test_whole_table_measured_again() -> None:
    check_again({**registers.plain_nests(), **registers.tensor_core_nests()}, list(registers.FORMS))
