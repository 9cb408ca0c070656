# SPDX-License-Identifier: Apache-2.0
"""``calibrate``: real kernels, a record that the policy takes, no figure when others are busy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tvm_streamk import calibration
from tvm_streamk.__main__ import app
from tvm_streamk.bench.forms import WrongProduct
from tvm_streamk.bench.products import Product
from tvm_streamk.commands import calibrate
from tvm_streamk.devices import Device
from tvm_streamk.policy import choose
from tvm_streamk.testing.measure import Turns

WIDE = {"COLUMNS": "160"}
SMALL_PANELS = (8, 16)
FEW_KERNELS = 7


@pytest.fixture(autouse=True)
def small_and_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "CPU_TILE", (7, 32))
    monkeypatch.setattr(calibrate, "CPU_PANEL", 12)
    monkeypatch.setattr(calibrate, "GPU_THREADS", (4, 8))
    monkeypatch.setattr(calibrate, "samples", few_samples)


def few_samples(processors: int, panels: Any, shared: bool) -> list[calibration.Sample]:
    """The first two splits only, but every kind of kernel."""
    assert not shared
    everything = calibration.samples(processors, SMALL_PANELS, shared)
    return [s for s in everything if s.num_tiles <= 4 and s.splits in (1, 2, 4)]


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["calibrate", "--rounds", "3", *arguments], env=WIDE)


@pytest.mark.parametrize("target", ["llvm", "opencl"])
def test_a_record_is_measured_and_can_be_used(target: str, tmp_path: Path) -> None:
    file = tmp_path / "device.json"
    result = run("--target", target, "--even-if-busy", "--output", str(file))
    assert result.exit_code == 0, result.output
    assert "4 tiles of 16 panels" in result.output
    assert "2 tiles of 16 panels, 2 pieces each" in result.output
    assert "these are the least times" in result.output
    device = Device.from_file(file)
    assert device.num_sms == 2 and f"calibrated for {target}" in device.name
    assert device.panel_us > 0
    assert choose(1, 512, device=device).data_parallel_us > 0
    note = json.loads(file.read_text())["measurement"]
    assert note["quiet"] is False
    assert len(note["samples"]) >= FEW_KERNELS
    assert all(sample["measured_us"] > 0 for sample in note["samples"])
    assert set(note["terms_us"]) == {f"{name}_us" for name in calibration.TERMS}


def busy(launches: Any, rounds: int, *_: Any, **__: Any) -> Turns:
    return Turns(tuple(() for _ in launches), 12, 12, rounds)


def test_a_busy_machine_gives_no_constants(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "device.json"
    monkeypatch.setattr(calibrate, "take_turns", busy)
    result = run("--target", "llvm", "--output", str(file))
    assert result.exit_code == 1
    assert "No constants: not quiet: other processes were busy during 12 of 12" in result.output
    assert not file.exists()


def test_times_that_do_not_fit_are_said_to_be_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    def jumping(launches: Any, rounds: int, *_: Any, **__: Any) -> Turns:
        work = [each.launches * each.sample.panels * each.sample.num_tiles for each in launches]
        jumps = [1 + 4 * (place % 2) for place in range(len(launches))]
        times = [(1e-5 * w * jump,) * rounds for w, jump in zip(work, jumps, strict=True)]
        return Turns(tuple(times), 1, 0, rounds)

    monkeypatch.setattr(calibrate, "take_turns", jumping)
    result = run("--target", "llvm")
    assert "measure again when the machine is quiet" in result.output


@pytest.mark.parametrize(
    ("target", "message"),
    [("fpga", "'fpga' is none of llvm, opencl, cuda"), ("cuda", "there is no CUDA device")],
)
def test_a_target_that_is_not_here_is_refused(target: str, message: str) -> None:
    result = run("--target", target)
    assert result.exit_code == 2
    assert message in result.output


def test_a_wrong_kernel_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "_hand_product", _with_wrong_numbers(calibrate._hand_product))
    result = run("--target", "llvm", "--even-if-busy")
    assert isinstance(result.exception, WrongProduct)
    assert "the product is not numpy's" in str(result.exception)


def _with_wrong_numbers(make: Any) -> Any:
    def wrong(*arguments: Any) -> Product:
        product = make(*arguments)
        changed = {"expected": lambda operands: operands[0] @ operands[1] + 1}
        return Product(**{**vars(product), **changed})

    return wrong
