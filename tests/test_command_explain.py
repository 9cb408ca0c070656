# SPDX-License-Identifier: Apache-2.0
"""``python -m tvm_streamk explain``: what it prints, writes and refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tvm_streamk.__main__ import app


def run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "100", "NO_COLOR": "1"}).invoke(app, ["explain", *arguments])


def words(result: Result) -> str:
    return " ".join(result.output.replace("│", " ").split())


def test_table_and_reason() -> None:
    result = run("1024", "2112", "7168", "--device", "nvidia/nvidia-h100")
    assert result.exit_code == 0
    assert "136 tiles of 224 panels" in result.output
    assert "Chosen: two_tile." in words(result)


def test_options() -> None:
    result = run(
        *("384", "384", "128", "--num-sms", "4", "--tile", "128", "128", "4", "--batch", "2"),
        *("--blocks-per-sm", "2", "--input-bytes", "4", "--workspace-limit", "1"),
    )
    assert result.exit_code == 0
    assert "2 times 384 x 384 x 128 in tiles of 128 x 128, panels of 4" in words(result)
    assert "18 tiles of 32 panels" in words(result)
    assert "1024 bytes" in words(result)
    assert "batch-invariant" in words(run("8", "8", "8192", "--num-sms", "9", "--batch-invariant"))


def test_plot(tmp_path: Path) -> None:
    target = tmp_path / "schedule.svg"
    result = run("384", "384", "4096", "--num-sms", "8", "--plot", str(target))
    assert result.exit_code == 0
    assert "<svg" in target.read_text()
    assert "Picture:" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("8", "8", "0", "--num-sms", "4"), "K must be at least 1, got 0"),
        (("8", "8", "8"), "give num_sms or device"),
        (("8", "8", "8", "--device", "Z80"), "device 'Z80' is not known"),
        (("8", "8", "8", "--num-sms", "4", "--plot", "x.gif"), "use one of .png, .svg"),
        (("8", "8"), "Missing argument 'K'"),
    ],
)
def test_refusals_have_no_traceback(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in words(result)
    assert "Traceback" not in result.output
