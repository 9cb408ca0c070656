# SPDX-License-Identifier: Apache-2.0
"""Does the plan help to rank candidates? ``python benchmarks/tuning_features.py [--save]``.

For each case, random nests of the space with Stream-K are measured: as they are, and with a few of
the decisions that fit them, as a search samples them. Three models are trained on a part of the
nests and rank the candidates of the others, in turn: TVM's, ours without the plan, and ours. All
get the same data and parts. The rank correlation is between predicted scores and measured speeds.
"""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

os.environ.setdefault("TVM_NUM_THREADS", "2")
os.environ.setdefault("POCL_AFFINITY", "1")
os.environ.setdefault("POCL_WORK_GROUP_METHOD", "loopvec")

import numpy as np
import tvm
import tvm_ffi
import typer
from rich.console import Console
from rich.markdown import Markdown
from scipy.stats import spearmanr
from tuning_cases import CASES, MEASURED, NUM_WORKERS, Case
from tvm.ir.utils import derived_object
from tvm.s_tir import Schedule, meta_schedule
from tvm.s_tir.meta_schedule.runner import RunnerResult
from tvm.s_tir.schedule import Trace

from tvm_streamk.meta_schedule_rule import (
    FEATURE_NAMES,
    NothingMeasured,
    PlanAwareModel,
    builder,
    runner,
    space_generator,
    without_tensor_intrinsics,
)
from tvm_streamk.pipeline import without_annotation
from tvm_streamk.tuning.mutator import sampling_of_choice
from tvm_streamk.tuning.processors import is_cpu
from tvm_streamk.tuning.report import seconds_of

RESULTS = Path(__file__).parent / "tuning_features.md"
PARTS = 4
REPETITIONS = 5
FEWEST_CANDIDATES = 12
LEAST_DIFFERENCE = 1.05
CANDIDATES = 128
CANDIDATES_PER_NEST = 3
AS_IT_IS = 0
"""The first option of every choice."""
TRAINING_SIZES = (32, None)
"""Candidates that a model learns from: as many as a short run has measured, and all that there are.
"""


def main(
    candidates: Annotated[int, typer.Option(min=FEWEST_CANDIDATES, help="Per case.")] = CANDIDATES,
    case: Annotated[list[int] | None, typer.Option(help="Numbers; all by default.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Where the measurements stay.")] = None,
    save: Annotated[bool, typer.Option("--save", help="Write tuning_features.md.")] = False,
) -> None:
    """Measure, and print how candidates are ranked with and without the plan."""
    parent = folder or Path(tempfile.mkdtemp(prefix="tuning-features-"))
    console = Console()
    rows = []
    for number in case or range(len(CASES)):
        data = parent / f"case{number}"
        if not data.exists():
            data.mkdir(parents=True)
            measure_random(CASES[number], data, candidates)
        rows.append((CASES[number].name, *rankings(CASES[number], data)))
    text = report(rows)
    console.print(Markdown(text))
    if save:
        RESULTS.write_text(text, encoding="utf-8")


def measure_random(case: Case, folder: Path, wanted: int) -> None:
    """Measure different random candidates and write them into a database."""
    target = tvm.target.Target(case.target)
    tuning = _context(case, space_generator(case.target))
    found = list(itertools.islice(_random_candidates(tuning), wanted))
    arguments = [
        meta_schedule.arg_info.ArgInfo.from_entry_func(each.mod, remove_preproc=True)
        for each in found
    ]
    inputs = [meta_schedule.builder.BuilderInput(each.mod, target) for each in found]
    built = builder(case.target).build(inputs)
    database = meta_schedule.database.JSONDatabase(work_dir=str(folder))
    workload = database.commit_workload(tuning.mod)
    device = "cpu" if is_cpu(target) else str(target.kind.name)
    measuring = runner(case.target, evaluator_config=MEASURED)
    for each, artifact, described in zip(found, built, arguments, strict=True):
        if artifact.error_msg is not None:
            continue
        given = meta_schedule.runner.RunnerInput(artifact.artifact_path, device, described)
        seconds = measuring.run([given])[0].result().run_secs
        if seconds:
            database.commit_tuning_record(
                meta_schedule.database.TuningRecord(
                    each.trace, workload, seconds, target, described
                )
            )


@dataclass(frozen=True)
class Ranking:
    """How well a model ranks candidates of nests that it has not seen.

    Attributes
    ----------
    correlations
        Spearman's rank correlation of scores and speeds, one per training size.
    pairs
        Of all pairs of candidates with the same nest whose times differ, the share that is ordered
        rightly; a tie counts half. With the largest training size.
    """

    correlations: tuple[float, ...]
    pairs: float


@derived_object
class WithoutPlan(meta_schedule.feature_extractor.PyFeatureExtractor):
    """Nothing but zeros for the plan: every candidate looks like an even share of its nest."""

    def __init__(self, extractor: Any) -> None:
        super().__init__()
        self.extractor = extractor

    def extract_from(self, context: Any, candidates: Sequence[Any]) -> list[Any]:
        """TVM's columns as they are, ours empty."""
        matrices = [each.numpy() for each in self.extractor.extract_from(context, candidates)]
        for matrix in matrices:
            matrix[:, -len(FEATURE_NAMES) :] = 0
        return [tvm.runtime.tensor(matrix) for matrix in matrices]


def tvms_model() -> Any:
    """TVM's cost model on TVM's features."""
    return meta_schedule.cost_model.XGBModel(num_warmup_samples=0, num_tuning_cores=1)


def our_model() -> PlanAwareModel:
    """The package's cost model."""
    return PlanAwareModel(NUM_WORKERS, num_tuning_cores=1, seed=0)


def without_plan() -> PlanAwareModel:
    """The package's cost model, blind to plans."""
    model = our_model()
    model.extractor = WithoutPlan(model.extractor)
    return model


MODELS = {"TVM's model": tvms_model, "ours, without the plan": without_plan, "ours": our_model}


@dataclass(frozen=True)
class Data:
    """Measured candidates of one case."""

    tuning: Any
    candidates: list[Any]
    seconds: np.ndarray
    nests: np.ndarray


def rankings(case: Case, folder: Path) -> tuple[int, dict[str, Ranking]]:
    """How many candidates there are, and how each model ranks them."""
    database = meta_schedule.database.JSONDatabase(work_dir=str(folder))
    records = [each for each in database.get_all_tuning_records() if seconds_of(each)]
    if len(records) < FEWEST_CANDIDATES:
        raise NothingMeasured(folder, len(records))
    candidates = [record.as_measure_candidate() for record in records]
    data = Data(
        _context(case, None),
        candidates,
        np.array([seconds_of(record) for record in records]),
        np.array([_nest_of(each.sch) for each in candidates]),
    )
    return len(records), {name: _ranking(make, data) for name, make in MODELS.items()}


def _ranking(make: Callable[[], Any], data: Data) -> Ranking:
    correlations: list[list[float]] = [[] for _ in TRAINING_SIZES]
    ordered = []
    for seen, held_out in _parts(data.nests):
        seconds = data.seconds[held_out]
        for size, found in zip(TRAINING_SIZES, correlations, strict=True):
            scores = _scores(make(), data, seen[:size], held_out)
            found.append(float(spearmanr(scores, 1 / seconds).statistic))
        ordered += _ordered_pairs(scores, seconds, data.nests[held_out])
    return Ranking(tuple(map(statistics.fmean, correlations)), statistics.fmean(ordered))


def _nest_of(schedule: Schedule) -> int:
    """The same number for the same nest, whatever is decided on it."""
    return tvm_ffi.structural_hash(without_annotation(schedule.mod["main"]))


def _ordered_pairs(scores: Any, seconds: Any, nests: Any) -> list[float]:
    found = []
    for one, other in itertools.combinations(range(len(scores)), 2):
        ratio = seconds[one] / seconds[other]
        if nests[one] == nests[other] and abs(np.log(ratio)) > np.log(LEAST_DIFFERENCE):
            agrees = float((scores[one] - scores[other]) * np.log(ratio))
            found.append(0.5 if agrees == 0 else float(agrees < 0))
    return found


def _context(case: Case, space: Any) -> Any:
    with without_tensor_intrinsics():
        return meta_schedule.TuneContext(
            case.function(), target=tvm.target.Target(case.target), space_generator=space
        )


def _random_candidates(tuning: Any) -> Iterator[Schedule]:
    """Different candidates: random nests as they are, each with a few decisions that fit it."""
    spaces = [each for each in tuning.generate_design_space() if sampling_of_choice(each.trace)]
    seen: set[int] = set()
    for seed in itertools.count(1):
        undecided = Trace(spaces[seed % len(spaces)].trace.insts, {})
        sampled = Schedule(tuning.mod, seed=seed)
        undecided.apply_to_schedule(sampled, remove_postproc=True)
        for candidate in _with_decisions(tuning, sampled.trace, seed):
            kernel = tvm_ffi.structural_hash(candidate.mod)
            if kernel not in seen:
                seen.add(kernel)
                yield candidate


def _with_decisions(tuning: Any, trace: Any, seed: int) -> Iterator[Schedule]:
    """The nest of a trace as it is, and with random decisions; nothing if TVM rejects the nest."""
    sampling = sampling_of_choice(trace)
    others = 1 + np.random.default_rng(seed).permutation(len(sampling.attrs[0]) - 1)
    kernels: set[int] = set()
    for taken in [AS_IT_IS, *others.tolist()]:
        candidate = Schedule(tuning.mod)
        decided = trace.with_decision(sampling, taken, remove_postproc=True)
        decided.apply_to_schedule(candidate, remove_postproc=True)
        candidate.enter_postproc()
        accepted = all(each.apply(candidate) for each in tuning.space_generator.postprocs)
        if taken == AS_IT_IS and not accepted:
            return
        kernel = tvm_ffi.structural_hash(candidate.mod)
        if accepted and kernel not in kernels:
            kernels.add(kernel)
            yield candidate
        if len(kernels) == CANDIDATES_PER_NEST:
            return


def report(rows: Sequence[tuple[str, int, dict[str, Ranking]]]) -> str:
    """The whole page."""
    lines = [
        "# Ranking measured candidates with and without the plan",
        "",
        f"The candidates are random nests as they are and with up to {CANDIDATES_PER_NEST - 1} "
        "decisions each, measured. The models rank candidates of nests that they have not seen: "
        f"{REPETITIONS} random divisions of the nests into {PARTS} parts, each part held out once. "
        "*Correlation* is Spearman's, over all candidates of a part, after learning from "
        f"{TRAINING_SIZES[0]} candidates and from all of the other parts. *Pairs* are candidates "
        "with the same nest whose times differ by more than 5 %: the share that is ordered rightly "
        "after learning from all. Without the plan they look the same (0.5). Made by `python "
        "benchmarks/tuning_features.py --save`.",
        "",
        f"| case | candidates | model | correlation, {TRAINING_SIZES[0]} | correlation, all "
        "| pairs |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for case, count, found in rows:
        for name, ranking in found.items():
            figures = (*ranking.correlations, ranking.pairs)
            shown = " | ".join(f"{figure:.2f}" for figure in figures)
            lines.append(f"| {case} | {count} | {name} | {shown} |")
    return "\n".join([*lines, ""])


def _parts(nests: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Index arrays: what is learned from, in random order, and the nests that are held out."""
    generator = np.random.default_rng(0)
    for _ in range(REPETITIONS):
        order = generator.permutation(len(nests))
        for part in np.array_split(generator.permutation(np.unique(nests)), PARTS):
            is_held_out = np.isin(nests[order], part)
            yield order[~is_held_out], order[is_held_out]


def _scores(model: Any, data: Data, seen: np.ndarray, held_out: np.ndarray) -> np.ndarray:
    """Train on some candidates, and score others."""
    results = [RunnerResult([float(data.seconds[index])], None) for index in seen]
    model.update(data.tuning, [data.candidates[index] for index in seen], results)
    others = [data.candidates[index] for index in held_out]
    if isinstance(model, PlanAwareModel):
        return np.asarray(model.scores(data.tuning, others))
    return np.asarray(model.predict(data.tuning, others))


if __name__ == "__main__":
    typer.run(main)
