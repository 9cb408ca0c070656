# SPDX-License-Identifier: Apache-2.0
"""TVM's own design space against the same space with Stream-K in it.

``python benchmarks/tuning.py [--save] [--trials 64] [--case 0 ...] [--folder kept]``. Every case is
tuned with three seeds in both spaces, each run in a fresh process; the winners of a seed are then
timed against each other, in turn. All seeds are reported. With ``--save`` the table goes to
``tuning_results.md`` and ``.json`` beside this program. The databases stay in ``--folder``.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import Progress
from tuning_cases import CASES, OURS, SEEDS, SPACES, TRIALS

PROGRAM = Path(__file__).parent
RESULTS = PROGRAM / "tuning_results"
LEAST_RATIO = 0.97
"""Below it a winner of the larger space counts as slower: what a valid control may differ by."""

HEADER = (
    "case",
    "M x N x K",
    "target",
    "TVM splits K",
    "seed",
    "TVM's space",
    "with Stream-K",
    "ratio",
)


def main(
    trials: Annotated[int, typer.Option(min=2, help="Candidates per run.")] = TRIALS,
    case: Annotated[list[int] | None, typer.Option(help="Numbers; all by default.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Seeds; three by default.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Where the databases stay.")] = None,
    save: Annotated[bool, typer.Option("--save", help="Write the table.")] = False,
) -> None:
    """Tune, compare, print the table, and say what does not hold."""
    parent = folder or Path(tempfile.mkdtemp(prefix="tuning-"))
    console = Console()
    numbers, seeds = case or list(range(len(CASES))), seed or list(SEEDS)
    rows = []
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("", total=len(numbers) * len(seeds))
        for number in numbers:
            for each in seeds:
                progress.update(bar, description=f"{CASES[number].name}, seed {each}")
                rows.append(_row_of(number, each, parent, trials))
                progress.advance(bar)
    text = report(rows, trials)
    console.print(Markdown(text))
    problems = problems_of(rows)
    for problem in problems:
        console.print(f"• {problem}", style="yellow", markup=False)
    console.print(f"Databases: {parent}", markup=False)
    if save:
        _save(text, rows, console)
    if problems:
        raise typer.Exit(1)


def report(rows: Sequence[dict[str, Any]], trials: int) -> str:
    """The whole page."""
    lines = [
        "# Tuning with TVM's space and with Stream-K in it",
        "",
        f"Machine: {_processor()}, {os.cpu_count()} cores. Made by `python benchmarks/tuning.py "
        f"--save`. {trials} trials each, XGBoost, the same seeds in both spaces; every run in a "
        "fresh process. Times are medians of launches of the two winners in turn; a ratio above 1 "
        "means that the winner of the space with Stream-K is faster, in parentheses the quartiles "
        "of the pairs. A figure whose control is not within 0.97 to 1.03 is void, in brackets. "
        "All winners gave the right product.",
        "",
        _line(HEADER),
        _line(["---"] * len(HEADER)),
        *(_line(_cells(row)) for row in rows),
        "",
        "What won, in the space with Stream-K:",
        "",
        *(f"- {CASES[row['case']].name}, seed {row['seed']}: {row[OURS]['why']}" for row in rows),
        "",
    ]
    return "\n".join(lines)


def problems_of(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What does not hold: noise, or a case whose median seed is slower with Stream-K."""
    problems = []
    for row in rows:
        figures, where = row["compared"], f"{CASES[row['case']].name}, seed {row['seed']}"
        if "not_quiet" in figures:
            problems.append(f"{where}: {figures['not_quiet']}")
        elif not figures["valid"]:
            problems.append(f"{where}: void, the control is {figures['control']:.3f}")
    for number in sorted({row["case"] for row in rows}):
        own = [row["compared"] for row in rows if row["case"] == number]
        valid = [figures["ratio"] for figures in own if figures.get("valid")]
        if valid and statistics.median(valid) < LEAST_RATIO:
            problems.append(
                f"{CASES[number].name}: {statistics.median(valid):.3f} times TVM's own space, "
                "the median of the seeds"
            )
    return problems


def _row_of(number: int, seed: int, parent: Path, trials: int) -> dict[str, Any]:
    row: dict[str, Any] = {"case": number, "seed": seed}
    for space in SPACES:
        arguments = ["tune", str(number), str(seed), space, str(parent), str(trials)]
        row[space] = _in_fresh_process(arguments)
    row["compared"] = _in_fresh_process(["compare", str(number), str(seed), str(parent)])
    return row


def _in_fresh_process(arguments: list[str]) -> dict[str, Any]:
    command = [sys.executable, str(PROGRAM / "tuning_once.py"), *arguments]
    finished = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(finished.stdout.splitlines()[-1])


def _cells(row: dict[str, Any]) -> list[str]:
    case, figures = CASES[row["case"]], row["compared"]
    times = ["-", "-"]
    ratio = "not quiet"
    if "not_quiet" not in figures:
        times = [f"{1e6 * seconds:.1f} us" for seconds in figures["seconds"]]
        low, high = figures["spread"]
        ratio = f"{figures['ratio']:.2f} ({low:.2f}..{high:.2f})"
        ratio = ratio if figures["valid"] else f"[{ratio}]"
    return [
        case.name,
        " x ".join(map(str, case.shape)),
        str(case.target["kind"]),
        "yes" if figures["splits_k"] else "no",
        str(row["seed"]),
        *(f"{row[space]['winner']}, {time}" for space, time in zip(SPACES, times, strict=True)),
        ratio,
    ]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _save(text: str, rows: Sequence[dict[str, Any]], console: Console) -> None:
    if any("not_quiet" in row["compared"] for row in rows):
        console.print("Not saved: the machine was not quiet.")
        return
    RESULTS.with_suffix(".md").write_text(text, encoding="utf-8")
    RESULTS.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    typer.run(main)
