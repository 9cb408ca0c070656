# SPDX-License-Identifier: Apache-2.0
"""The suite for a GPU machine, as far as it goes without one: its CUDA kernels run on the CPU."""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tvm_streamk.bench.measurement import Conditions
from tvm_streamk.calibration import Sample, samples
from tvm_streamk.devices import Device
from tvm_streamk.testing import DeviceMissing

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
gpu_suite = importlib.import_module("gpu_suite")

BLOCKS = 2
SHAPES = [(64, 64, 64), (64, 320, 64)]


def few_samples(processors: int, panels: tuple[int, int], shared: bool) -> list[Sample]:
    """The smallest kernels of each kind, for two blocks on each processor."""
    assert (processors, panels) == (4 * BLOCKS, (4, 8))
    everything = samples(processors, panels, shared)
    return [each for each in everything if each.num_tiles <= 2 * processors and each.splits <= 4]


def run(*arguments: str) -> Any:
    application = gpu_suite.typer.Typer(add_completion=False)
    application.command()(gpu_suite.main)
    return CliRunner().invoke(application, list(arguments), env={"COLUMNS": "120"})


def test_everything_from_calibration_to_picture(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu_suite, "shapes_for", lambda _processors, _tile: SHAPES)
    monkeypatch.setattr(gpu_suite, "DRY_PANELS", (4, 8))
    monkeypatch.setattr(gpu_suite, "blocks_per_sm", lambda _product, _where: BLOCKS)
    monkeypatch.setattr(gpu_suite.calibrate, "samples", few_samples)
    result = run("--dry-run", "--dtype", "float32", "--output", str(tmp_path))
    assert result.exit_code == 0, result.output
    records = json.loads((tmp_path / "records.json").read_text())["records"]
    assert [(each["shape"], each["tiles"]) for each in records] == [
        ([64, 64, 64], 1),
        ([64, 320, 64], 5),
    ]
    assert all(each["engine"] == "CUDA source on the CPU" for each in records)
    assert "64x320x64" in (tmp_path / "table.txt").read_text()
    assert (tmp_path / "gain.png").exists()
    device = Device.from_file(tmp_path / "device_float32.json")
    assert (device.num_sms, device.blocks_per_sm, device.architecture) == (4, BLOCKS, "sm_80")


def test_blocks_per_processor_come_from_ptxas() -> None:
    if gpu_suite.shutil.which("nvcc") is None:
        pytest.skip("there is no nvcc on the PATH")
    where = gpu_suite.dry_place()
    blocks = gpu_suite.blocks_per_sm(gpu_suite.kernels(where)["float32"].of_tiles(1, 2), where)
    # 256 threads with 16 accumulators each: more than one block, fewer than threads allow.
    assert 1 < blocks <= 8


def test_what_is_left_when_the_time_is_over_is_said(tmp_path: Path) -> None:
    where = gpu_suite.dry_place()
    suite = gpu_suite.Suite(where, Conditions(), True, time.monotonic(), tmp_path, Console())
    kernel = gpu_suite.kernels(where)["float32"]
    assert list(suite.records([kernel], {"float32": where.device})) == []
    assert len(suite.left_out) >= 8
    assert all("no time left" in reason for reason in suite.left_out)


def test_without_nvcc_one_block_is_assumed_and_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu_suite.shutil, "which", lambda _name: None)
    where = gpu_suite.dry_place()
    suite = gpu_suite.Suite(where, Conditions(), True, 0.0, tmp_path, Console())
    assert suite._blocks_per_sm(gpu_suite.kernels(where)["float32"]) == 1
    assert suite.left_out == [
        "float32: blocks per processor taken as 1 (there is no nvcc on the PATH)"
    ]


def test_without_a_gpu_the_dry_run_is_pointed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_name: str) -> Any:
        raise DeviceMissing("there is no CUDA device", "use target llvm or opencl")

    monkeypatch.setattr(gpu_suite, "place", missing)
    result = run()
    assert result.exit_code == 2
    assert "there is no CUDA device" in result.output and "--dry-run" in result.output


def test_an_unknown_type_is_refused(tmp_path: Path) -> None:
    result = run("--dry-run", "--dtype", "float8", "--output", str(tmp_path))
    assert result.exit_code == 2
    assert "'float8' is none of float32, float16" in result.output
