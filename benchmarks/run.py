# SPDX-License-Identifier: Apache-2.0
"""Measure all cases and write the table: ``python benchmarks/run.py [llvm] [opencl] [--save]``.

Every case is measured in several fresh processes, all of which are reported. Without ``--save`` the
table is only printed; with it, it goes to ``results.md`` and ``results.json`` beside this program,
unless a figure is missing or void since the machine was not quiet.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from cases import CASES
from report import problems_of, report
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import Progress

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results"
PROCESSES = 3


def main(
    targets: Annotated[list[str] | None, typer.Argument(help="llvm, opencl, or both.")] = None,
    processes: Annotated[int, typer.Option(min=1, help="Fresh processes per case.")] = PROCESSES,
    save: Annotated[bool, typer.Option("--save", help="Write results.md and .json.")] = False,
) -> None:
    """Measure, print the table, and say what does not hold."""
    wanted = targets or sorted({case.target for case in CASES})
    console = Console()
    numbers = [number for number, case in enumerate(CASES) if case.target in wanted]
    runs: dict[int, list[dict[str, Any]]] = {number: [] for number in numbers}
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=len(numbers) * processes)
        # Case after case, again and again: what changes with time does not hit one case only.
        for _ in range(processes):
            for number in numbers:
                progress.update(task, description=f"{CASES[number].target}: {CASES[number].name}")
                runs[number].append(_in_fresh_process(number))
                progress.advance(task)
    text = report(runs)
    console.print(Markdown(text))
    problems = [
        problem for number in numbers for problem in problems_of(CASES[number], runs[number])
    ]
    for problem in problems:
        console.print(f"• {problem}", style="yellow", markup=False)
    if save and any(word in problem for problem in problems for word in ("not quiet", "void")):
        console.print("Not saved: the machine was not quiet.")
    elif save:
        RESULTS.with_suffix(".md").write_text(text, encoding="utf-8")
        data = json.dumps([run for many in runs.values() for run in many], indent=1)
        RESULTS.with_suffix(".json").write_text(data + "\n", encoding="utf-8")
    if problems:
        raise typer.Exit(1)


def _in_fresh_process(number: int) -> dict[str, Any]:
    command = [sys.executable, str(FOLDER / "measure_case.py"), str(number)]
    finished = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(finished.stdout)


if __name__ == "__main__":
    typer.run(main)
