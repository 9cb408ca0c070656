# SPDX-License-Identifier: Apache-2.0
"""Products that are tuned with and without Stream-K in the space, and how one run is made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
from tvm.s_tir import meta_schedule
from tvm.s_tir.meta_schedule.runner import EvaluatorConfig

from tvm_streamk.meta_schedule_rule import runner, tune, without_tensor_intrinsics, xgboost_model
from tvm_streamk.schedules import gemm
from tvm_streamk.tuning.tune import TRIALS, TuningResult

TVM, OURS = "tvm", "stream_k"
SPACES = (TVM, OURS)
SEEDS = (1, 2, 3)
NUM_WORKERS = 2

LLVM = {"kind": "llvm", "num-cores": NUM_WORKERS, "mcpu": "x86-64-v3"}
"""Vectors of 256 bits: with 512 TVM uses other rules, which import its tensor intrinsics."""

OPENCL = {"kind": "opencl", "max_threads_per_block": 256, "max_shared_memory_per_block": 49152}

MEASURED = EvaluatorConfig(number=3, repeat=3, min_repeat_ms=40)
"""Three repetitions, of which a record's median counts: one disturbed repetition does no harm."""


@dataclass(frozen=True)
class Case:
    """One product that is tuned.

    Attributes
    ----------
    name
        What the table calls it.
    shape
        Rows, columns and length of the reduction.
    target
        TVM's target, as a dictionary.
    """

    name: str
    shape: tuple[int, int, int]
    target: dict[str, Any]

    def function(self) -> Any:
        """The unscheduled product."""
        return gemm(*self.shape)


CASES = (
    Case("few elements, long K", (4, 4, 4096), LLVM),
    Case("small square, very long K", (64, 64, 32768), LLVM),
    Case("3 tiles of 31 x 31", (93, 31, 8192), OPENCL),
    Case("5 tiles of 31 x 31", (155, 31, 8192), OPENCL),
)
"""Primes leave no other tiles than these: a tile that is not whole is a row, or a few slices. Sizes
with many factors can be cut into tiles that two processors share evenly, where there is nothing to
gain, and into so many nests that luck decides between short runs."""


def folder_of(parent: Path, number: int, seed: int, space: str) -> Path:
    """Where the database of one run is."""
    return parent / f"case{number}-seed{seed}-{space}"


def tune_case(
    case: Case, seed: int, space: str, folder: Path, trials: int = TRIALS
) -> TuningResult:
    """Tune a case once. Both spaces get the same search, seed and trials, each its cost model."""
    ours = space == OURS
    model = xgboost_model(NUM_WORKERS, trials, seed)
    return tune(
        case.function(),
        case.target,
        folder,
        trials,
        seed=seed,
        space=None if ours else meta_schedule.space_generator.PostOrderApply(),
        cost_model=model if ours else tvms_model(model),
        runner=runner(case.target, evaluator_config=MEASURED),
    )


def best_module(case: Case, folder: Path) -> Any:
    """The fastest candidate's module, from the database."""
    database = meta_schedule.database.JSONDatabase(work_dir=str(folder))
    schedule = meta_schedule.tir_integration.compile_tir(
        database, case.function(), tvm.target.Target(case.target)
    )
    return schedule.mod


def tvm_splits_k(case: Case) -> bool:
    """Whether one of TVM's own spaces splits the reduction, by its rule ``AddRFactor``."""
    with without_tensor_intrinsics():
        context = meta_schedule.TuneContext(
            case.function(),
            target=tvm.target.Target(case.target),
            space_generator=meta_schedule.space_generator.PostOrderApply(),
        )
        spaces = context.generate_design_space()
    kinds = {str(each.kind.name) for space in spaces for each in space.trace.insts}
    return "RFactor" in kinds


def tvms_model(ours: Any) -> Any:
    """TVM's own cost model, used as early as ours; it would guess for a hundred candidates."""
    return meta_schedule.cost_model.XGBModel(
        num_warmup_samples=ours.num_warmup_samples, num_tuning_cores=ours.num_tuning_cores
    )
