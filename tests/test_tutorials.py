# SPDX-License-Identifier: Apache-2.0
"""Every tutorial is a program that runs to its end."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

TUTORIALS = sorted((Path(__file__).parents[1] / "tutorials").glob("*.py"))


def run_main(tutorial: Path) -> None:
    runpy.run_path(str(tutorial))["main"]()


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_tutorial_runs(tutorial, capsys):
    run_main(tutorial)
    assert capsys.readouterr().out


def test_by_hand_shows_every_step_and_the_messages(capsys):
    run_main(next(path for path in TUTORIALS if path.stem == "01_by_hand"))
    printed = capsys.readouterr().out
    sections = [line for line in printed.splitlines() if line.startswith("===")]
    assert [section.split()[1] for section in sections] == ["1.", "2.", "3.", "4.", "5.", "6."]
    assert printed.count("@I.ir_module") == 3
    assert "The product on llvm equals numpy's" in printed
    assert "waves before -> after  2 -> 1.50" in printed
    for error in ("BlockNotFound", "WorkersUnknown", "TooManyWorkers", "MergeNotSupported"):
        assert f"  {error}: stream_k: " in printed
