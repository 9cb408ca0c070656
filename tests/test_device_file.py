# SPDX-License-Identifier: Apache-2.0
"""A device's record as a file: what goes in comes out, and what is no record is said to be none."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tvm_streamk.device_file import DeviceFileUnusable
from tvm_streamk.devices import CPU, Device, cpu, lookup
from tvm_streamk.explain import explain

TILE = ((7, 96, 48), 8, 0.25)


@pytest.mark.parametrize("device", [lookup("H200"), cpu(2)], ids=lambda device: device.kind)
def test_a_record_comes_back_as_it_was(device: Device, tmp_path: Path) -> None:
    file = tmp_path / "device.json"
    device.to_file(file, {"quiet": True})
    assert Device.from_file(file) == device
    assert lookup(str(file)) == device
    assert json.loads(file.read_text())["measurement"] == {"quiet": True}


@pytest.mark.parametrize("device", [lookup("A100"), cpu(2)], ids=lambda device: device.kind)
def test_from_tile_is_the_way_back_from_for_tile(device: Device) -> None:
    scaled = device.for_tile(*TILE)
    assert scaled.panel_us != device.panel_us
    back = scaled.from_tile(*TILE)
    for name, value in asdict(device).items():
        assert getattr(back, name) == pytest.approx(value), name


def test_what_grows_with_the_tile_on_a_cpu() -> None:
    small, device = cpu(2).for_tile((32, 128, 32)), cpu(2)
    assert device.kind == CPU
    assert small.start_us == pytest.approx(device.start_us / 4)
    assert small.split_us == device.split_us
    assert cpu(2).for_tile((256, 256, 32)).split_us > device.split_us


def test_explain_takes_a_file(tmp_path: Path) -> None:
    file = tmp_path / "device.json"
    replace(lookup("H200"), name="my own H200").to_file(file)
    assert "on my own H200: 132 processors" in str(explain(512, 512, 8192, device=str(file)))


def without(field: str) -> Callable[[dict[str, Any]], None]:
    return lambda record: record["device"].pop(field)


def put(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda record: record.update(values)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (put(format="another"), "its format is not 'tvm_streamk device'"),
        (put(version=7), "version 7, expected 1"),
        (put(device=None), "it has no 'device'"),
        (without("panel_us"), r"unknown fields \[\], missing fields \['panel_us'\]"),
        (lambda record: record["device"].update(colour="red"), r"unknown fields \['colour'\]"),
        (lambda record: record["device"].update(num_sms=0), "num_sms must be at least 1, got 0"),
        (lambda record: record["device"].update(num_sms="many"), "not supported between"),
    ],
)
def test_what_is_no_record_is_refused(
    spoil: Callable[[dict[str, Any]], None], why: str, tmp_path: Path
) -> None:
    file = tmp_path / "device.json"
    cpu(2).to_file(file)
    record = json.loads(file.read_text())
    spoil(record)
    file.write_text(json.dumps(record))
    with pytest.raises(DeviceFileUnusable, match=f"device.json' is no device's record: .*{why}"):
        Device.from_file(file)


@pytest.mark.parametrize(("text", "why"), [("{", "not JSON"), ("[1]", "its format is not")])
def test_what_is_no_json_object_is_refused(text: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "device.json"
    file.write_text(text)
    with pytest.raises(DeviceFileUnusable, match=f"{why}.*make one with `python -m tvm_streamk"):
        Device.from_file(file)


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(DeviceFileUnusable, match="No such file or directory"):
        lookup(str(tmp_path / "nowhere.json"))
