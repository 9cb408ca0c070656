# SPDX-License-Identifier: Apache-2.0
"""Whole tuning runs: every candidate right, the closing table, and errors for bad input."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
import workloads
from helpers import check_numerics
from rich.console import Console
from tuning_samples import CUDA, LLVM, OPENCL
from tvm.s_tir import meta_schedule
from tvm.s_tir.meta_schedule.runner import EvaluatorConfig

from tvm_streamk import LowerStreamK, devices
from tvm_streamk.annotation import RecordedDecision
from tvm_streamk.errors import SeveralKernels, WorkersUnknown
from tvm_streamk.meta_schedule_rule import (
    Finding,
    NothingMeasured,
    OpenCLRunner,
    SymbolicShapes,
    TuningResult,
    WorkDirectoryIsAFile,
    builder,
    runner,
    tune,
)
from tvm_streamk.tuning import report
from tvm_streamk.tuning.builder import build_launches, export_launches
from tvm_streamk.tuning.counts import Counts
from tvm_streamk.tuning.opencl_runner import time_launches
from tvm_streamk.tuning.tune import result_of

FEW_TRIALS = 6
MANY_TRIALS = 64
QUICK = EvaluatorConfig(number=1, repeat=1, min_repeat_ms=0)
ODD_TILES = workloads.gemm(15, 7, 60)
ONE_TILE = workloads.gemm(4, 4, 512)
WIDE = 100


def tuned(workload: workloads.Workload, target: Any, folder: Path, trials: int) -> tuple[Any, str]:
    """A run, and what it printed."""
    printed = io.StringIO()
    console = Console(file=printed, width=WIDE)
    result = tune(
        workload.function,
        target,
        folder,
        trials,
        seed=1,
        runner=runner(target, evaluator_config=QUICK),
        console=console,
    )
    return result, printed.getvalue()


def check_every_candidate(result: TuningResult, workload: workloads.Workload) -> set[str]:
    """Replay every record from the database as written, run it, compare exactly."""
    records = result.database.get_all_tuning_records()
    assert all(report.seconds_of(record) is not None for record in records)
    for record in records:
        check_numerics(report.replayed(record).mod, workload, result.target)
    return {finding.decomposition for finding in result.findings}


@pytest.mark.parametrize(
    ("target", "workload"),
    [(OPENCL, ODD_TILES), (LLVM, ONE_TILE)],
    ids=["opencl", "llvm"],
)
def test_a_run_ends_with_right_candidates_and_a_table(
    target: Any, workload: workloads.Workload, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result, printed = tuned(workload, target, tmp_path, FEW_TRIALS)
    assert len(result.findings) == FEW_TRIALS
    check_every_candidate(result, workload)
    times = [finding.seconds for finding in result.findings]
    assert times == sorted(times)
    for word in {finding.decomposition for finding in result.findings}:
        assert word in printed
    assert report.why(result.findings, result.device)[:20] in printed
    check_schedule_is_the_best(result)
    # TVM copies its log to the standard output where nothing is set.
    assert "[INFO]" not in capsys.readouterr().out
    assert logging.getLogger("tvm.s_tir.meta_schedule").level == logging.NOTSET


def check_schedule_is_the_best(result: TuningResult) -> None:
    records = result.database.get_all_tuning_records()
    best = min(records, key=lambda record: report.seconds_of(record) or np.inf)
    assert tvm_ffi.structural_equal(result.schedule().mod, report.replayed(best).mod)


@pytest.mark.long
def test_every_candidate_of_a_long_run_is_right(tmp_path: Path) -> None:
    workload = workloads.gemm(48, 32, 516)
    result, _ = tuned(workload, OPENCL, tmp_path, MANY_TRIALS)
    assert len(result.findings) == MANY_TRIALS
    assert {"data_parallel", "stream_k"} <= check_every_candidate(result, workload)


# -- building and running one candidate ------------------------------------------------------------


def plain_gpu() -> Any:
    import schedules

    schedule = schedules.hand_gpu(workloads.gemm(48, 32, 64))
    schedule.stream_k("C", num_workers=2, lower=False)
    return schedule.mod


def measure(module: Any, target: Any) -> Any:
    """Build and measure through the processes that a search uses."""
    target = tvm.target.Target(target)
    (built,) = builder(target, max_workers=1).build(
        [meta_schedule.builder.BuilderInput(module, target)]
    )
    assert built.error_msg is None, built.error_msg
    arguments = meta_schedule.arg_info.ArgInfo.from_prim_func(module["main"])
    measured = runner(target, evaluator_config=QUICK).run(
        [meta_schedule.runner.RunnerInput(built.artifact_path, target.kind.name, arguments)]
    )
    return measured[0].result()


def test_gpu_kernels_are_measured_through_pyopencl() -> None:
    result = measure(plain_gpu(), OPENCL)
    assert result.error_msg is None
    assert [float(each) > 0 for each in result.run_secs] == [True]


def test_a_candidate_that_cannot_run_is_an_error_of_its_own(tmp_path: Path) -> None:
    arguments = meta_schedule.arg_info.ArgInfo.from_prim_func(plain_gpu()["main"])
    missing = str(tmp_path / "missing.pickle")
    inputs = meta_schedule.runner.RunnerInput(missing, "opencl", arguments)
    (measured,) = OpenCLRunner(QUICK).run([inputs])
    assert measured.done()
    assert "missing.pickle" in measured.result().error_msg
    assert not measured.result().run_secs


def test_a_failure_leaves_the_rest_of_its_batch_alone(tmp_path: Path) -> None:
    target = tvm.target.Target(OPENCL)
    path = export_launches(build_launches(plain_gpu(), target, None))
    arguments = meta_schedule.arg_info.ArgInfo.from_prim_func(plain_gpu()["main"])
    missing = str(tmp_path / "missing.pickle")
    results = OpenCLRunner(QUICK).run(
        [
            meta_schedule.runner.RunnerInput(each, "opencl", arguments)
            for each in (path, missing, path)
        ]
    )
    assert [bool(each.result().run_secs) for each in results] == [True, False, True]
    assert "missing.pickle" in results[1].result().error_msg


def test_what_is_exported_is_the_stream_k_kernel() -> None:
    target = tvm.target.Target(OPENCL)
    plan = build_launches(plain_gpu(), target, None)
    assert all(workspace.name.startswith("stream_k_") for workspace in plan.workspaces)
    assert plan.workspaces
    path = Path(export_launches(plan))
    assert path.parent.exists()
    assert path.read_bytes()


def test_launches_are_timed_as_tvm_times_them() -> None:
    launches: list[int] = []
    seconds = time_launches(lambda: launches.append(1), EvaluatorConfig(5, 2, 0))
    assert len(seconds) == 2
    assert len(launches) == 1 + 1 + 2 * 5


# -- the closing table -----------------------------------------------------------------------------


def finding(word: str, microseconds: float, workers: int = 2, splits: int = 0) -> Finding:
    decision = None
    if word != "data_parallel":
        decision = RecordedDecision("C", word, "two_phase", "prologue", workers, splits)
    return Finding(word, microseconds * 1e-6, decision, Counts(3, 8, 512, 8, 4))


def shown(*found: Finding) -> str:
    printed = io.StringIO()
    result = TuningResult(None, None, None, devices.cpu(2), found)
    result.print(Console(file=printed, width=WIDE))
    return printed.getvalue()


def test_the_table_shows_the_best_of_each_decomposition() -> None:
    printed = shown(
        finding("stream_k", 100),
        finding("stream_k", 120),
        finding("split_k", 110, 12, 4),
        finding("data_parallel", 130),
    )
    rows = {line.split()[0]: line.split() for line in printed.splitlines()[1:4]}
    assert rows["stream_k"][1:8] == ["2", "100.0", "1.30", "3", "8", "2", "2"]
    assert rows["split_k(4)"][1:4] == ["1", "110.0", "1.18"]
    assert rows["data_parallel"][1:4] == ["1", "130.0", "1.00"]
    assert rows["stream_k"][-2:] == ["2", "two_phase"]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (
            [finding("stream_k", 100), finding("data_parallel", 130)],
            "stream_k won with 3 tiles on 2 processors in 1.5 waves instead of 2; 1.30 times as "
            "fast as the best data-parallel candidate, which has 3 tiles on 2 processors in 2 "
            "waves.",
        ),
        (
            [finding("data_parallel", 100), finding("stream_k", 130)],
            "The nest as it is won: 3 tiles on 2 processors in 2 waves. The best alternative, "
            "stream_k, took 1.30 times as long",
        ),
        ([finding("stream_k", 100), finding("data_parallel", 101)], "within the noise"),
        ([finding("persistent", 100), finding("data_parallel", 130)], "It has no fewer waves"),
        ([finding("data_parallel", 100)], "Only data_parallel candidates were measured."),
        ([finding("stream_k", 9), finding("split_k", 10, 12, 4)], "no data-parallel candidate"),
    ],
)
def test_why_the_winner_won(found: list[Finding], expected: str) -> None:
    assert expected in report.why(found, devices.cpu(2))


# -- bad input -------------------------------------------------------------------------------------


def test_a_work_directory_that_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(WorkDirectoryIsAFile, match=r"'.*file' is a file; give a directory"):
        tune(ONE_TILE.function, LLVM, path)


@pytest.mark.parametrize("target", [CUDA, "llvm"], ids=["cuda", "llvm"])
def test_a_target_without_a_processor_count(target: Any, tmp_path: Path) -> None:
    with pytest.raises(WorkersUnknown, match="Try: num_sms="):
        tune(ONE_TILE.function, target, tmp_path)


def test_symbolic_shapes(tmp_path: Path) -> None:
    with pytest.raises(SymbolicShapes, match="tune a function of constant shapes"):
        tune(workloads.symbolic_gemm(48, 32, 64).function, LLVM, tmp_path)


def test_several_functions(tmp_path: Path) -> None:
    module = tvm.IRModule({"one": ONE_TILE.function, "two": ODD_TILES.function})
    with pytest.raises(SeveralKernels, match="one function at a time"):
        tune(module, LLVM, tmp_path)


def test_nothing_could_be_measured(tmp_path: Path) -> None:
    database = meta_schedule.database.JSONDatabase(work_dir=str(tmp_path))
    module = tvm.IRModule({"main": ONE_TILE.function})
    with pytest.raises(NothingMeasured, match="none of the 0 candidates"):
        result_of(database, module, tvm.target.Target(LLVM), devices.cpu(2), tmp_path)


def test_a_candidate_of_the_search_is_what_the_pass_lowers() -> None:
    lowered = LowerStreamK()(plain_gpu())
    assert "C_stream_k" in lowered.script()
