# SPDX-License-Identifier: Apache-2.0
"""``tune``: one call with defaults that fit, on top of TVM's ``tune_tir``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
from rich.console import Console
from tvm import tirx
from tvm.s_tir import Schedule, meta_schedule

from tvm_streamk.analysis import only_function
from tvm_streamk.devices import Device
from tvm_streamk.tuning import report
from tvm_streamk.tuning.builder import builder as default_builder
from tvm_streamk.tuning.errors import NothingMeasured, WorkDirectoryIsAFile
from tvm_streamk.tuning.processors import device_of
from tvm_streamk.tuning.progress import ShowProgress, bar_on, log_in_files
from tvm_streamk.tuning.rule import require_constant_shapes
from tvm_streamk.tuning.runner import runner as default_runner
from tvm_streamk.tuning.space import space_generator, tensor_intrinsics_for
from tvm_streamk.tuning.time_model import PlanAwareModel

TRIALS = 64
TRIALS_PER_BATCH = (8, 32)
"""Fewest and most: every batch starts processes, and the cost model learns between batches."""
BATCHES = 8

MOST_TRIALS_ON_ONE_THREAD = 256
"""Up to here the cost model trains on one thread: its rows are few, and threads that wait for each
other take ten times as long where anything else runs."""

MOST_POPULATION = 512
POPULATION_PER_TRIAL = 2
FEWEST_UNMEASURED = 50
"""The first and the last are TVM's own defaults; short runs need fewer candidates to pick
from, and each costs a replay and an analysis."""

RANDOM_SHARE = 0.13
"""Part of a batch that is drawn at random: one of eight. TVM's twentieth rounds to none in a short
batch, and the search then stays with the first nest that looked good."""


@dataclass(frozen=True)
class TuningResult:
    """What a tuning run found.

    Attributes
    ----------
    module
        The module that was tuned.
    target
        What for.
    database
        All records, for ``compile_tir``, ``MetaScheduleApplyDatabase`` and ``compile_relax``.
    device
        Whose processors the plans count on.
    findings
        The measured candidates, fastest first.
    """

    module: Any
    target: Any
    database: Any
    device: Device
    findings: tuple[report.Finding, ...]

    @property
    def best(self) -> report.Finding:
        """The fastest candidate."""
        return self.findings[0]

    def schedule(self) -> Schedule:
        """The fastest candidate's schedule, as ``compile_tir`` gives it from the database."""
        return meta_schedule.tir_integration.compile_tir(self.database, self.module, self.target)

    def print(self, console: Console | None = None) -> None:
        """Print the best of each decomposition, and why the winner won."""
        console = console or Console()
        console.print(report.table(self.findings, self.device))
        console.print(report.why(self.findings, self.device), highlight=False)


def tune(
    module: Any,
    target: Any,
    work_dir: str | Path,
    max_trials: int = TRIALS,
    *,
    num_sms: int | None = None,
    seed: int | None = None,
    rpc: Any = None,
    space: Any = None,
    builder: Any = None,
    runner: Any = None,
    cost_model: Any = None,
    callbacks: Sequence[Any] = (),
    console: Console | None = None,
) -> TuningResult:
    """Tune one function with Stream-K in TVM's design space.

    Parameters
    ----------
    module : tvm.IRModule or PrimFunc
        One function of constant shapes, unscheduled.
    target : str, dict or tvm.target.Target
        For a CPU with ``num-cores``.
    work_dir : str or Path
        For the database and the log files; made if it does not exist.
    max_trials : int
        Candidates to measure.
    num_sms : int, optional
        Processors of the device, where the target does not tell.
    seed : int, optional
        For a search that can be repeated.
    rpc : RPCConfig, optional
        Measure on the servers of a tracker; see :func:`tvm_streamk.meta_schedule_rule.runner`.
    space, builder, runner, cost_model : optional
        By default those of this package for the target, and XGBoost with the plan's features.
    callbacks : sequence of MeasureCallback
        Called with every batch of results, after TVM's own.
    console : rich.console.Console, optional
        Where progress and the closing table go; by default the standard output.

    Returns
    -------
    TuningResult

    Raises
    ------
    WorkDirectoryIsAFile
        The work directory is a file.
    WorkersUnknown
        Nothing tells how many processors the target has.
    SeveralKernels, SymbolicShapes
        The module has not one function, or the function has symbolic shapes.
    NothingMeasured
        Not one candidate could be built and measured.
    """
    device = device_of(target, num_sms)
    folder = _work_directory(work_dir)
    module = _as_workload(module)
    space = space or space_generator(target, device.num_slots)
    target = tvm.target.Target(target)
    console = console or Console()
    with tensor_intrinsics_for(target), log_in_files(), bar_on(console) as bar:
        database = meta_schedule.tune_tir(
            module,
            target,
            str(folder),
            max_trials,
            num_trials_per_iter=_trials_per_batch(max_trials),
            builder=builder or default_builder(target),
            runner=runner or default_runner(target, rpc),
            cost_model=cost_model or xgboost_model(device.num_slots, max_trials, seed),
            measure_callbacks=[
                *meta_schedule.measure_callback.MeasureCallback.create("default"),
                *callbacks,
                ShowProgress(bar, max_trials),
            ],
            space=space,
            strategy=search(max_trials),
            seed=seed,
        )
    result = result_of(database, module, target, device, folder)
    result.print(console)
    return result


def result_of(
    database: Any, module: Any, target: Any, device: Device, folder: Path
) -> TuningResult:
    """What a database says of a module, whoever filled it."""
    workload = database.commit_workload(module)
    records = database.get_top_k(workload, len(database))
    found = report.findings(records)
    if not found:
        raise NothingMeasured(folder, len(database))
    return TuningResult(module, target, database, device, tuple(found))


def xgboost_model(num_sms: int, max_trials: int = TRIALS, seed: int | None = None) -> Any:
    """The XGBoost cost model for a run, which knows the plan of each candidate.

    Parameters
    ----------
    num_sms : int
        Processors of the device.
    max_trials : int
        Candidates that will be measured.
    seed : int, optional
        For a search that can be repeated.

    Returns
    -------
    PlanAwareModel
    """
    return PlanAwareModel(
        num_sms,
        num_warmup_samples=_trials_per_batch(max_trials),
        num_tuning_cores=1 if max_trials <= MOST_TRIALS_ON_ONE_THREAD else None,
        seed=seed,
    )


def search(max_trials: int) -> Any:
    """TVM's evolutionary search, with numbers that suit the number of trials."""
    population = min(MOST_POPULATION, POPULATION_PER_TRIAL * max_trials)
    return meta_schedule.search_strategy.EvolutionarySearch(
        population_size=population,
        init_min_unmeasured=min(FEWEST_UNMEASURED, max_trials),
        eps_greedy=RANDOM_SHARE,
    )


def _trials_per_batch(max_trials: int) -> int:
    fewest, most = TRIALS_PER_BATCH
    return min(max_trials, max(fewest, min(most, max_trials // BATCHES)))


def _work_directory(work_dir: str | Path) -> Path:
    folder = Path(work_dir)
    if folder.exists() and not folder.is_dir():
        raise WorkDirectoryIsAFile(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _as_workload(module: Any) -> Any:
    """The module in the form that TVM's database uses as its key.

    Raises
    ------
    SeveralKernels, SymbolicShapes
        There is not one function, or it has no constant shapes.
    """
    given = tvm.IRModule({"main": module}) if isinstance(module, tirx.PrimFunc) else module
    function = only_function(given)
    require_constant_shapes(function, "")
    attributes: dict[str, Any] = {"tirx.noalias": True}
    if "global_symbol" not in (function.attrs or {}):
        attributes["global_symbol"] = "main"
    # The name is kept until the schedules are gone: TVM may change in place what nobody holds.
    keyed = function.with_attrs(attributes)
    return tvm.IRModule({"main": keyed})
