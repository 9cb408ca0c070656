# SPDX-License-Identifier: Apache-2.0
"""Does the plan help TVM's cost model to rank? ``python benchmarks/tuning_features.py [--save]``.

For each case, random nests of the space with Stream-K are measured, each with several decisions, as
the mutators of a search make them. The model is trained on a part of the candidates and ranks the
rest, in turn, once with TVM's features and once with the plan's added; the same data and parts for
both. The rank correlation is between predicted scores and measured speeds of candidates that the
model has not seen.
"""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence
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
from tvm.s_tir import Schedule, meta_schedule
from tvm.s_tir.meta_schedule.runner import RunnerResult
from tvm.s_tir.schedule import Trace

from tvm_streamk.meta_schedule_rule import (
    NothingMeasured,
    StreamKFeatures,
    builder,
    runner,
    space_generator,
    without_tensor_intrinsics,
)
from tvm_streamk.pipeline import recorded_decision, without_annotation
from tvm_streamk.tuning.mutator import sampling_of_choice
from tvm_streamk.tuning.processors import is_cpu
from tvm_streamk.tuning.report import seconds_of

RESULTS = Path(__file__).parent / "tuning_features.md"
PARTS = 4
REPETITIONS = 5
FEWEST_CANDIDATES = 12
LEAST_DIFFERENCE = 1.05
CANDIDATES = 128
DECISIONS_PER_NEST = 6


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
    """How well a model ranks what it has not seen.

    Attributes
    ----------
    correlation
        Spearman's rank correlation of scores and speeds.
    pairs
        Of all pairs of decisions on the same nest whose times differ, the share that is ordered
        rightly; a tie counts half.
    """

    correlation: float
    pairs: float


def rankings(case: Case, folder: Path) -> tuple[int, Ranking, Ranking]:
    """Candidates, and how they are ranked without and with the plan."""
    database = meta_schedule.database.JSONDatabase(work_dir=str(folder))
    records = [each for each in database.get_all_tuning_records() if seconds_of(each)]
    if len(records) < FEWEST_CANDIDATES:
        raise NothingMeasured(folder, len(records))
    candidates = [record.as_measure_candidate() for record in records]
    seconds = np.array([seconds_of(record) for record in records])
    tuning = _context(case, None)
    nest_features = meta_schedule.feature_extractor.PerStoreFeature()
    found = [
        _ranking(tuning, extractor, candidates, seconds)
        for extractor in (nest_features, StreamKFeatures(NUM_WORKERS))
    ]
    return len(records), found[0], found[1]


def _ranking(tuning: Any, extractor: Any, candidates: list[Any], seconds: Any) -> Ranking:
    nests = np.array([_nest_of(each.sch) for each in candidates])
    correlations, ordered = [], []
    for part in _parts(len(candidates)):
        scores = _scores(tuning, extractor, candidates, seconds, part)
        correlations.append(float(spearmanr(scores, 1 / seconds[part]).statistic))
        ordered += _ordered_pairs(scores, seconds[part], nests[part])
    return Ranking(statistics.fmean(correlations), statistics.fmean(ordered))


def _nest_of(schedule: Schedule) -> int:
    """The same number for the same nest, whatever is decided on it."""
    function = schedule.mod["main"]
    recorded = recorded_decision(function)
    bare = function if recorded is None else without_annotation(function)
    return tvm_ffi.structural_hash(bare)


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
    """Different candidates: random nests with at least two kernels each, a few decisions each."""
    spaces = [each for each in tuning.generate_design_space() if sampling_of_choice(each.trace)]
    seen: set[int] = set()
    for seed in itertools.count(1):
        undecided = Trace(spaces[seed % len(spaces)].trace.insts, {})
        sampled = Schedule(tuning.mod, seed=seed)
        undecided.apply_to_schedule(sampled, remove_postproc=True)
        kernels = list(_with_every_decision(tuning, sampled.trace, seed))
        if len(kernels) > 1:
            new = [each for each in kernels if tvm_ffi.structural_hash(each.mod) not in seen]
            seen.update(tvm_ffi.structural_hash(each.mod) for each in new)
            yield from new


def _with_every_decision(tuning: Any, trace: Any, seed: int) -> Iterator[Schedule]:
    """The nest of a trace with different decisions that fit it, in random order."""
    sampling = sampling_of_choice(trace)
    kernels: set[int] = set()
    for taken in np.random.default_rng(seed).permutation(len(sampling.attrs[0])):
        candidate = Schedule(tuning.mod)
        decided = trace.with_decision(sampling, int(taken), remove_postproc=True)
        decided.apply_to_schedule(candidate, remove_postproc=True)
        candidate.enter_postproc()
        accepted = all(each.apply(candidate) for each in tuning.space_generator.postprocs)
        kernel = tvm_ffi.structural_hash(candidate.mod)
        if accepted and kernel not in kernels:
            kernels.add(kernel)
            yield candidate
        if len(kernels) == DECISIONS_PER_NEST:
            return


def report(rows: Sequence[tuple[str, int, Ranking, Ranking]]) -> str:
    """The whole page."""
    lines = [
        "# Ranking measured candidates with and without the plan's features",
        "",
        f"The candidates are random nests with up to {DECISIONS_PER_NEST} decisions each, "
        f"measured. The model ranks candidates that it has not seen: {REPETITIONS} random "
        f"divisions into {PARTS} parts, each part held out once. *Correlation* is Spearman's, over "
        "all candidates of a part. *Pairs* are pairs of decisions on the same nest whose times "
        "differ by more than 5 %: the share that is ordered rightly. TVM's features are those of "
        "the nest, the same for both, so that they can only guess (0.5). Made by `python "
        "benchmarks/tuning_features.py --save`.",
        "",
        "| case | candidates | correlation, TVM's features | and the plan's "
        "| pairs, TVM's features | and the plan's |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, count, without, with_plan in rows:
        figures = (without.correlation, with_plan.correlation, without.pairs, with_plan.pairs)
        shown = " | ".join(f"{figure:.3f}" for figure in figures)
        lines.append(f"| {name} | {count} | {shown} |")
    return "\n".join([*lines, ""])


def _parts(count: int) -> Any:
    """Index arrays of the parts that are held out."""
    generator = np.random.default_rng(0)
    for _ in range(REPETITIONS):
        yield from np.array_split(generator.permutation(count), PARTS)


def _scores(tuning: Any, extractor: Any, candidates: list[Any], seconds: Any, held_out: Any) -> Any:
    """Train on all but a part, and score that part."""
    seen = [index for index in range(len(candidates)) if index not in set(held_out.tolist())]
    model = meta_schedule.cost_model.XGBModel(
        extractor=extractor, num_warmup_samples=0, num_tuning_cores=1
    )
    results = [RunnerResult([float(seconds[index])], None) for index in seen]
    model.update(tuning, [candidates[index] for index in seen], results)
    return model.predict(tuning, [candidates[index] for index in held_out])


if __name__ == "__main__":
    typer.run(main)
