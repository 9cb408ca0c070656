# SPDX-License-Identifier: Apache-2.0
"""One case in one process: both ratios, with their controls, as a line of JSON.

``run.py`` starts this program several times per case: between processes the spread is larger than
within one, since memory lies differently.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from typing import Any

os.environ.setdefault("TVM_NUM_THREADS", "2")
os.environ.setdefault("POCL_AFFINITY", "1")
os.environ.setdefault("POCL_WORK_GROUP_METHOD", "loopvec")

import numpy as np
from cases import CASES, DATA_PARALLEL, NUM_WORKERS, PERSISTENT, STREAM_K, Case

import tvm_streamk
from tvm_streamk.plan import Plan
from tvm_streamk.schedules import REDUCTION_BLOCK
from tvm_streamk.testing import Prepared, integer_inputs, poisoned, prepare
from tvm_streamk.testing.measure import NotQuiet, PairedTimes, interleaved


def measure(case: Case) -> dict[str, Any]:
    """Build the three forms, check their numbers, and time the two pairs."""
    forms, plan = _prepared(case)
    before, after = plan.waves_before, plan.waves_after
    if before is None or after is None:
        raise ValueError(f"the waves of case {case.name!r} are not known")
    return {
        "engine": forms[STREAM_K].engine,
        "tiles": plan.num_tiles,
        "waves": [before, after],
        "bound": before / after,
        "ratios": {
            baseline: _figures(interleaved(forms[baseline].launch, forms[STREAM_K].launch))
            for baseline in (DATA_PARALLEL, PERSISTENT)
        },
    }


def _prepared(case: Case) -> tuple[dict[str, Prepared], Plan]:
    m, n, k = case.shape
    left, right = integer_inputs((m, k)), integer_inputs((k, n), seed=1)
    schedules = {form: case.schedule() for form in (DATA_PARALLEL, PERSISTENT, STREAM_K)}
    plan = tvm_streamk.stream_k(
        schedules[STREAM_K],
        REDUCTION_BLOCK,
        num_workers=NUM_WORKERS,
        decomposition=STREAM_K,
        merge=case.merge,
    )
    tvm_streamk.stream_k(
        schedules[PERSISTENT],
        REDUCTION_BLOCK,
        num_workers=min(NUM_WORKERS, plan.num_tiles or NUM_WORKERS),
        decomposition=PERSISTENT,
    )
    forms = {}
    for form, schedule in schedules.items():
        forms[form] = prepare(schedule.mod, case.build_target(), [left, right, poisoned((m, n))])
        if forms[form].can_share:
            forms[form].share(forms[DATA_PARALLEL])
        forms[form].write(2, poisoned((m, n)))
        forms[form].launch()
        np.testing.assert_array_equal(forms[form].read()[2], left @ right, err_msg=form)
    return forms, plan


def _figures(times: PairedTimes) -> dict[str, Any]:
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
        return {**counts, "not_quiet": str(reason)}
    return {**counts, **figures}


def main() -> None:
    """Measure the case whose number is the argument."""
    case = CASES[int(sys.argv[1])]
    names = {field.name for field in dataclasses.fields(case)} - {"make"}
    described = {name: getattr(case, name) for name in sorted(names)}
    print(json.dumps({**described, **measure(case)}))


if __name__ == "__main__":
    main()
