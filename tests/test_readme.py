# SPDX-License-Identifier: Apache-2.0
"""What README.md shows runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tvm
from relax_models import layers
from schedules import LLVM

from tvm_streamk.schedules import gemm

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_example_runs(capsys):
    example, _ = blocks("python")
    exec(compile(example, "README.md", "exec"), {})
    assert "waves before -> after  2 -> 1.50" in capsys.readouterr().out


def test_tuning_and_models_take_one_line_each(tmp_path, monkeypatch):
    _, example = blocks("python")
    assert "max_trials=64" in example
    example = example.replace("max_trials=64", "max_trials=2")
    monkeypatch.chdir(tmp_path)
    names = {
        "tvm": tvm,
        "target": tvm.target.Target(LLVM),
        "function": gemm(4, 8, 64),
        "model": layers([16, 8], rows=4)[0],
    }
    exec(compile(example, "README.md", "exec"), names)
    assert names["best"].mod is not None
    assert names["executable"].mod is not None


def test_both_commands_are_one_line_each_and_make_their_own_environment():
    commands = [block.rstrip("\n") for block in blocks("sh")]
    assert len(commands) == 2
    for command, end in zip(commands, ("-m tvm_streamk demo", "-m pytest"), strict=True):
        assert "\n" not in command
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install ")
        assert command.endswith(end)


@pytest.mark.parametrize("link", re.findall(r"\]\((?!https?:)([^)]+)\)", README))
def test_links_lead_somewhere(link):
    assert (ROOT / link).exists()
