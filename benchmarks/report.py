# SPDX-License-Identifier: Apache-2.0
"""From the runs of ``measure_case.py`` to a table, and to what is wrong with them."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cases import CASES, DATA_PARALLEL, PERSISTENT, Case

BOUND_TOLERANCE = 1.05
HEADER = (
    "case",
    "M x N x K",
    "merge",
    "tiles",
    "waves",
    "bound",
    "data-parallel : Stream-K",
    "persistent : Stream-K",
    "required",
)


def problems_of(case: Case, runs: Sequence[dict[str, Any]]) -> list[str]:
    """What keeps the case's figures from being good: noise, or a ratio that is too small."""
    where = f"{case.target}, {case.name}, {case.merge}"
    problems = []
    for run in runs:
        for baseline, figures in run["ratios"].items():
            if "not_quiet" in figures:
                problems.append(f"{where}, {baseline}: {figures['not_quiet']}")
            elif not figures["valid"]:
                control = figures["control"]
                problems.append(f"{where}, {baseline}: void, the control is {control:.3f}")
    judged = valid_ratios(runs, case.baseline)
    if case.required is not None and judged and statistics.median(judged) < case.required:
        problems.append(
            f"{where}: {statistics.median(judged):.3f} times {case.baseline}, required "
            f"{case.required}"
        )
    return problems


def valid_ratios(runs: Sequence[dict[str, Any]], baseline: str) -> list[float]:
    """The ratios of the processes whose figures count."""
    figures = [run["ratios"][baseline] for run in runs]
    return [float(figure["ratio"]) for figure in figures if figure.get("valid")]


def report(runs: dict[int, list[dict[str, Any]]]) -> str:
    """The whole page: how it was made, and one table per target."""
    engines = sorted({run["engine"] for many in runs.values() for run in many})
    lines = [
        "# Data-parallel nests against Stream-K",
        "",
        f"Machine: {_processor()}, {os.cpu_count()} cores; engines: {', '.join(engines)}. Made by "
        "`python benchmarks/run.py --save`.",
        "",
        "Two workers. Each entry is one fresh process: the median of at least 41 paired ratios and "
        "their quartiles; the two forms and the first one again (the control) run in turn. Batches "
        "during which other processes used more than 15 % of a core are dropped, whatever their "
        "ratio. A figure whose control is not within 0.97 to 1.03 is void, in brackets. A required "
        "ratio is one for the median of the processes. *Persistent* is the "
        "same loop of workers with whole tiles only: that ratio shows what Stream-K itself adds. "
        "A ratio marked ! is more than 5 % above what the waves allow, and so owes something to "
        "the other form's own slowness.",
    ]
    for target in sorted({CASES[number].target for number in runs}):
        lines += ["", f"## {target}", "", _row(HEADER), _row(["---"] * len(HEADER))]
        lines += [
            _row(_cells(CASES[n], many)) for n, many in runs.items() if CASES[n].target == target
        ]
    return "\n".join([*lines, "", _dropped(runs), ""])


def _cells(case: Case, runs: Sequence[dict[str, Any]]) -> list[str]:
    first = runs[0]
    before, after = first["waves"]
    required = "-" if case.required is None else f"{case.required} x {case.baseline}"
    return [
        case.name,
        " x ".join(str(extent) for extent in case.shape),
        case.merge if before != after else "none needed",
        str(first["tiles"]),
        f"{before} -> {after:.2f}",
        f"{first['bound']:.2f}",
        *(_ratios(runs, baseline, first["bound"]) for baseline in (DATA_PARALLEL, PERSISTENT)),
        required,
    ]


def _ratios(runs: Sequence[dict[str, Any]], baseline: str, bound: float) -> str:
    texts = []
    for run in runs:
        figures = run["ratios"][baseline]
        if "not_quiet" in figures:
            texts.append("not quiet")
            continue
        lower, upper = figures["spread"]
        mark = "!" if figures["ratio"] > bound * BOUND_TOLERANCE else ""
        text = f"{figures['ratio']:.2f}{mark} ({lower:.2f}..{upper:.2f})"
        texts.append(text if figures["valid"] else f"[{text}]")
    return ", ".join(texts)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _dropped(runs: dict[int, list[dict[str, Any]]]) -> str:
    figures = [
        figure for many in runs.values() for run in many for figure in run["ratios"].values()
    ]
    dropped, batches = (sum(figure[key] for figure in figures) for key in ("dropped", "batches"))
    return f"Batches dropped for foreign load: {dropped} of {batches}."


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
