# SPDX-License-Identifier: Apache-2.0
"""docs/errors.md has every class, and its examples raise what it says; how errors are shown."""

from __future__ import annotations

import itertools
import re
import runpy
import traceback
from pathlib import Path
from typing import Any

import pytest
from tvm.s_tir import Schedule
from unfit_nests import discounted_sum, no_init

import tvm_streamk
from tvm_streamk import errors
from tvm_streamk.schedules import gpu_gemm

PAGE = (Path(__file__).parents[1] / "docs" / "errors.md").read_text()
CLASSES = [
    name
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, errors.StreamKError)
]
PREAMBLE = PAGE.split("```python\n", 1)[1].split("```", 1)[0]
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))


def code_of(section: str, kind: str) -> str:
    (code,) = re.findall(rf"```{kind}\n(.*?)```", section, re.DOTALL)
    return str(code)


def test_every_class_is_in_the_catalogue_and_nothing_else() -> None:
    assert [name for name in CLASSES if name != "StreamKError"] == list(SECTIONS)


@pytest.mark.parametrize("name", SECTIONS)
def test_example_raises_what_the_catalogue_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = SECTIONS[name]
    monkeypatch.chdir(tmp_path)
    example = tmp_path / "example.py"
    example.write_text(f"{PREAMBLE}\n{code_of(section, 'python')}")
    with pytest.raises(errors.StreamKError) as caught:
        runpy.run_path(str(example))
    assert type(caught.value) is getattr(errors, name)
    assert str(caught.value).split() == code_of(section, "text").split()
    assert "What to do: " in section


# -- how they are shown ----------------------------------------------------------------------------


def shown(error: BaseException) -> list[str]:
    return "".join(traceback.format_exception(error)).splitlines()


@pytest.mark.parametrize("ask", ["analyze", "stream_k"])
def test_the_block_is_underlined(ask: str) -> None:
    schedule = Schedule(discounted_sum)
    with pytest.raises(errors.ReducerNotSupported) as caught:
        if ask == "analyze":
            tvm_streamk.analyze(schedule, "C")
        else:
            schedule.stream_k("C", num_workers=2)
    lines = shown(caught.value)
    (line,) = [index for index, text in enumerate(lines) if 'T.sblock("C")' in text]
    assert lines[line + 1].strip() == "^" * len(lines[line].strip())
    assert "\n" not in str(caught.value)


def test_the_update_is_underlined_where_the_init_stands_apart() -> None:
    schedule = gpu_gemm(64, 64, 256)
    with pytest.raises(errors.TooManyWorkers) as caught:
        schedule.stream_k("C", num_workers=10_000)
    lines = shown(caught.value)
    underlined = [
        above for above, below in itertools.pairwise(lines) if set(below.strip()) == {"^"}
    ]
    assert 'with T.sblock("C_update"):' in [text.strip() for text in underlined]


def notes_of(error: Any) -> list[str]:
    return list(getattr(error, "__notes__", []))


def test_no_underline_without_a_block() -> None:
    with pytest.raises(errors.BlockNotFound) as caught:
        gpu_gemm(64, 64, 256).stream_k("D", num_workers=2)
    assert notes_of(caught.value) == []


def test_verdicts_stay_short() -> None:
    verdict = tvm_streamk.can_stream_k(Schedule(no_init), "C")
    assert verdict.reasons
    assert all(notes_of(reason) == [] for reason in verdict.reasons)
