# SPDX-License-Identifier: Apache-2.0
"""``bench``: tiny products in a process of their own, the table, the records and the picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tvm_streamk.__main__ import app
from tvm_streamk.bench.process import ProcessFailed
from tvm_streamk.commands import bench
from tvm_streamk.devices import cpu

WIDE = {"COLUMNS": "160"}
TINY = ("--target", "llvm", "--shape", "49x512x256")


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["bench", *arguments], env=WIDE)


def test_a_tiny_product_from_end_to_end(tmp_path: Path) -> None:
    device, records, picture = (tmp_path / name for name in ("mine.json", "out.json", "out.png"))
    cpu(2).to_file(device)
    result = run(
        *TINY, "--processes", "1", "--rounds", "2", "--even-if-busy", "--device", str(device),
        "--output", str(records), "--plot", str(picture),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "49x512x256" in result.output and "1 tile on 2" in result.output
    assert "No batch had to be quiet" in result.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    page = json.loads(records.read_text())
    assert page["format"] == "tvm_streamk bench" and page["machine"]["cores"] >= 1
    (record,) = page["records"]
    assert record["shape"] == [49, 512, 256]
    assert set(record["forms"]) == {"data_parallel", "split_k", "stream_k", "auto"}


def test_every_process_and_every_place_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def failing(requests: Any, processes: int) -> Any:
        asked.append((requests, processes))
        raise ProcessFailed("no memory left")
        yield

    monkeypatch.setattr(bench, "run", failing)
    result = run("--target", "llvm", "--target", "opencl", "--rounds", "5")
    assert result.exit_code == 1
    assert "A measuring process failed:\nno memory left" in result.output
    ((requests, processes),) = asked
    assert processes == bench.PROCESSES == 3
    assert [request.target for request in requests] == ["llvm", "opencl"]
    assert all(len(request.shapes) == 4 and request.conditions.rounds == 5 for request in requests)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--shape", "49x512"), "'49x512' is not MxNxK"),
        (("--shape", "49xmanyx3"), "is not MxNxK"),
        (("--shape", "0x512x3"), "an extent below 1"),
        (("--device", "nowhere.json"), "No such file"),
        (("--device", "abacus"), "device 'abacus' is not known"),
        (("--plot", "gain.txt"), "cannot tell the format"),
        (("--target", "fpga"), "none of llvm, opencl, cuda"),
        (("--target", "cuda"), "there is no CUDA device"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_measured(
    arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "run", lambda *_: pytest.fail("measured"))
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.output
