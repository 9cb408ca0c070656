# SPDX-License-Identifier: Apache-2.0
"""What was measured is what a database gives back, in processes that only load it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import load_tuning_database
import numpy as np
import pytest
import tvm
import tvm_ffi
from load_tuning_database import TARGET, relax_module
from tuning_samples import context, decision_of, first_with
from tvm.s_tir import meta_schedule

from tvm_streamk import LowerStreamK
from tvm_streamk.errors import InvalidAnnotation
from tvm_streamk.tuning.report import findings

TESTS = Path(__file__).parent
WAYS_TO_APPLY = ("compile_tir", "apply_database", "compile_relax")
RECORDS = "database_tuning_record.json"


def matmul() -> Any:
    """The function that Relax makes of the model, as a tuning task."""
    target = tvm.target.Target(TARGET)
    model = tvm.relax.get_pipeline("zero")(relax_module())
    (task,) = meta_schedule.relax_integration.extract_tasks(model, target)
    return task.dispatched[0]


def write_database(folder: Path, decomposition: str = "stream_k") -> Any:
    """A database with one record, a candidate of the search; gives what the builder would get."""
    tuning = context(matmul(), TARGET)
    candidate = first_with(tuning, decomposition)
    database = meta_schedule.database.JSONDatabase(work_dir=str(folder))
    arguments = meta_schedule.arg_info.ArgInfo.from_entry_func(candidate.mod, remove_preproc=True)
    database.commit_tuning_record(
        meta_schedule.database.TuningRecord(
            candidate.trace,
            database.commit_workload(tuning.mod),
            [1e-6],
            tvm.target.Target(TARGET),
            arguments,
        )
    )
    return candidate


def load_in_new_process(folder: Path, *arguments: str) -> None:
    program = TESTS / "load_tuning_database.py"
    subprocess.run(
        [sys.executable, str(program), str(folder), *arguments],
        check=True,
        cwd=TESTS.parent,
        env={**os.environ, "PYTHONPATH": str(TESTS.parent)},
    )


def body_from(path: Path) -> Any:
    """The body of the kernel in a saved module: TVM sets attributes of its own."""
    module = tvm.ir.load_json(path.read_text())
    (kernel,) = [f for f in module.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    return kernel.body


@pytest.mark.parametrize("decomposition", ["stream_k", "split_k"])
def test_a_new_process_deploys_the_kernel_that_was_measured(
    tmp_path: Path, decomposition: str
) -> None:
    candidate = write_database(tmp_path, decomposition)
    measured = LowerStreamK()(candidate.mod)["main"]
    assert "_stream_k" in measured.script()
    load_in_new_process(tmp_path, "tvm_streamk")
    for way in WAYS_TO_APPLY:
        kernel = body_from(tmp_path / f"{way}.json")
        assert tvm_ffi.structural_equal(kernel, measured.body, map_free_vars=True), way


def test_without_the_package_the_record_is_the_data_parallel_kernel(tmp_path: Path) -> None:
    candidate = write_database(tmp_path)
    load_in_new_process(tmp_path)
    for way in WAYS_TO_APPLY:
        kernel = body_from(tmp_path / f"{way}.json")
        body = candidate.mod["main"].body
        assert tvm_ffi.structural_equal(kernel, body, map_free_vars=True), way


def test_a_written_database_gives_the_decision_back(tmp_path: Path) -> None:
    candidate = write_database(tmp_path)
    (found,) = findings(reloaded(tmp_path).get_all_tuning_records())
    assert found.decision == decision_of(candidate)
    assert found.microseconds == pytest.approx(1)


def reloaded(folder: Path) -> Any:
    return meta_schedule.database.JSONDatabase(work_dir=str(folder))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"stream_k\\""', '"magic_k\\""', "'magic_k' is none of"),
        ('"two_phase\\""', '"glue\\""', "'glue' is none of"),
    ],
)
def test_a_record_with_an_unknown_decision_is_refused(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    write_database(tmp_path)
    path = tmp_path / RECORDS
    text = path.read_text()
    decision = text.rindex('"Annotate"')
    assert old.replace('"', "", 1) in text[decision:]
    edited = text[:decision] + text[decision:].replace(old[1:], new[1:])
    json.loads(edited)
    path.write_text(edited)
    with pytest.raises(InvalidAnnotation, match=message):
        findings(reloaded(tmp_path).get_all_tuning_records())
    module = tvm.IRModule({"main": matmul()["main"]})
    schedule = meta_schedule.tir_integration.compile_tir(
        reloaded(tmp_path), module, tvm.target.Target(TARGET)
    )
    with pytest.raises(InvalidAnnotation, match=message):
        tvm.compile(schedule.mod, target=tvm.target.Target(TARGET))


def test_the_loading_program_compares_exactly() -> None:
    """A kernel that leaves its output alone must not pass."""
    nothing = tvm.IRModule({"main": matmul()["main"].with_body(tvm.tirx.Evaluate(0))})
    with pytest.raises(AssertionError):
        load_tuning_database.run(nothing["main"])
    assert np.isnan(load_tuning_database.arrays()[-1]).all()
