# SPDX-License-Identifier: Apache-2.0
"""The program that writes the table of predicted gains, on a small domain."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
NUM_ROWS = 5


def test_it_writes_one_row_for_each_device(tmp_path: Path) -> None:
    target = tmp_path / "gain.md"
    options = ["--shapes", "60", "--played", "10", "--tried", "5", "--output", str(target)]
    command = [sys.executable, "-m", "benchmarks.simulate_domain", *options]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    text = target.read_text()
    assert "Shapes: 60 with" in text
    rows = [line for line in text.splitlines() if ", float" in line and line.startswith("| ")]
    assert len(rows) == NUM_ROWS
    for row in rows:
        assert "(1.00 to " in row and "nan" not in row


def test_the_committed_table_is_of_the_whole_domain() -> None:
    text = (ROOT / "benchmarks" / "simulated_gain.md").read_text()
    assert "Shapes: 32,824 with" in text
    for label in ("A100, float64", "A100, float16", "H200", "B200", "MI300X"):
        assert f"| {label}" in text
