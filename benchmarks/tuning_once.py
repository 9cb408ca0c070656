# SPDX-License-Identifier: Apache-2.0
"""One step of the tuning comparison, in a process of its own; prints a line of JSON.

``tuning_once.py tune <case> <seed> <space> <folder> <trials>`` tunes, and ``tuning_once.py compare
<case> <seed> <folder>`` times the two winners of a seed against each other.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TVM_NUM_THREADS", "2")
os.environ.setdefault("POCL_AFFINITY", "1")
os.environ.setdefault("POCL_WORK_GROUP_METHOD", "loopvec")

import numpy as np
from tuning_cases import (
    CASES,
    OURS,
    SPACES,
    TVM,
    best_module,
    folder_of,
    tune_case,
    tvm_splits_k,
)

from tvm_streamk.testing import Prepared, integer_inputs, poisoned, prepare
from tvm_streamk.testing.measure import NotQuiet, interleaved
from tvm_streamk.tuning.report import best_of_each, why


def tune(number: int, seed: int, space: str, parent: Path, trials: int) -> dict[str, Any]:
    """Tune one case with one seed in one space; the database stays in its folder."""
    result = tune_case(CASES[number], seed, space, folder_of(parent, number, seed, space), trials)
    best = best_of_each(result.findings)
    return {
        "measured": len(result.findings),
        "winner": result.best.decomposition,
        "why": why(result.findings, result.device),
        "best_us": {word: finding.microseconds for word, finding in best.items()},
    }


def compare(number: int, seed: int, parent: Path) -> dict[str, Any]:
    """Time the winners of both spaces in turn, after checking their numbers."""
    case = CASES[number]
    winners = {space: _checked(number, folder_of(parent, number, seed, space)) for space in SPACES}
    if winners[OURS].can_share:
        winners[OURS].share(winners[TVM])
    times = interleaved(winners[TVM].launch, winners[OURS].launch)
    counts = {"pairs": len(times.first), "batches": times.batches, "dropped": times.dropped}
    try:
        figures: dict[str, Any] = {
            "ratio": times.ratio,
            "spread": times.spread,
            "control": times.control,
            "seconds": times.seconds,
            "valid": times.is_valid,
        }
    except NotQuiet as reason:
        figures = {"not_quiet": str(reason)}
    return {"engine": winners[TVM].engine, "splits_k": tvm_splits_k(case), **counts, **figures}


def _checked(number: int, folder: Path) -> Prepared:
    """The winner in a folder, prepared, with the right product."""
    case = CASES[number]
    m, n, k = case.shape
    left, right = integer_inputs((m, k)), integer_inputs((k, n), seed=1)
    arrays = [left, right, poisoned((m, n))]
    prepared = prepare(best_module(case, folder), case.target, arrays)
    prepared.launch()
    np.testing.assert_array_equal(prepared.read()[2], left @ right, err_msg=str(folder))
    return prepared


def main() -> None:
    """Do what the arguments say."""
    what, *arguments = sys.argv[1:]
    if what == "tune":
        number, seed, space, folder, trials = arguments
        figures = tune(int(number), int(seed), space, Path(folder), int(trials))
    else:
        number, seed, folder = arguments
        figures = compare(int(number), int(seed), Path(folder))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
