# SPDX-License-Identifier: Apache-2.0
"""The bench's parts: shapes, forms, what a table and a picture make of records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tvm_streamk.bench import forms, measurement
from tvm_streamk.bench.measurement import Conditions, measure
from tvm_streamk.bench.picture import draw
from tvm_streamk.bench.process import ProcessFailed, Request, in_fresh_process
from tvm_streamk.bench.products import Product, default_shapes, hand_product, hand_tile, shapes_for
from tvm_streamk.bench.table import groups, notes, table, verdict
from tvm_streamk.places import Place, UnknownTarget, place, places
from tvm_streamk.plot import UnknownPictureFormat
from tvm_streamk.testing.measure import LEAST_PAIRS, Turns

TILE = (64, 64)
SHORT_DEPTH = 640
QUICK = Conditions(rounds=3, batch_seconds=0.0, even_if_busy=True)


def record(gain: float, *, bound: float = 2.0, control: float = 1.0, **fields: Any) -> Any:
    found = {
        "target": "llvm",
        "engine": "some engine",
        "dtype": "float32",
        "shape": [49, 512, 640],
        "tiles": 1,
        "panels": 10,
        "processors": 2,
        "bound": bound,
        "waves": 1,
        "predicted_gain": 1.9,
        "reason": "",
        "batches": 4,
        "dropped": 1,
        "rounds": 41,
        "even_if_busy": False,
        "control": control,
        "valid": 0.97 <= control <= 1.03,
        "forms": {
            "data_parallel": {"decomposition": "data_parallel", "workers": 1, "splits": 1},
            "split_k": {"decomposition": "split_k", "workers": 2, "splits": 2},
            "stream_k": {"decomposition": "stream_k", "workers": 2, "splits": 1},
            "auto": {"decomposition": "split_k", "workers": 2, "splits": 2},
        },
    }
    for name, form in found["forms"].items():
        own = 1.0 if name == "data_parallel" else gain
        form.update(gain=own, spread=[own, own], seconds=0.002 / own)
    return found | fields


def not_quiet() -> Any:
    silent = record(1.0)
    for form in silent["forms"].values():
        del form["gain"], form["spread"], form["seconds"]
    del silent["control"], silent["valid"]
    return silent | {"not_quiet": "not quiet: 4 of 4 batches", "dropped": 4}


def text_of(records: list[Any], width: int = 80) -> str:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(table(records))
    return captured.get()


# -- what is measured ------------------------------------------------------------------------------


@pytest.mark.parametrize("processors", [2, 4, 108, 132, 304])
def test_shapes_for_a_device_hold_the_tiles_that_say_something(processors: int) -> None:
    shapes = shapes_for(processors, TILE)
    tiles = [m // TILE[0] * (n // TILE[1]) for m, n, _ in shapes]
    assert {1, processors, processors + 1, 2 * processors} <= set(tiles)
    assert len(set(shapes)) == len(shapes)
    assert all(m % TILE[0] == n % TILE[1] == 0 for m, n, _ in shapes)


@pytest.mark.parametrize("name", ["llvm", "opencl"])
def test_default_shapes_have_one_two_three_and_five_tiles(name: str) -> None:
    where = place(name)
    rows, columns = hand_tile(where)
    shapes = default_shapes(where)
    assert [m // rows * (n // columns) for m, n, _ in shapes] == [1, 2, 3, 5]
    assert all(k % 1024 for _, _, k in shapes), "rows would share their places in the cache"


def test_places_that_are_not_here_are_said() -> None:
    found, missing = places()
    assert [where.name for where in found][:1] == ["llvm"]
    assert len(found) + len(missing) == 3
    with pytest.raises(UnknownTarget, match="'fpga' is none of llvm, opencl, cuda"):
        places(["fpga"])


# -- a real measurement ----------------------------------------------------------------------------


def small_product(where: Place, tiles: int = 3) -> Product:
    rows, columns = hand_tile(where)
    return hand_product(where, (rows * tiles, columns, SHORT_DEPTH))


def test_every_form_is_measured_and_described() -> None:
    where = place("llvm")
    calls: list[int] = []
    found = measure(small_product(where), where, where.device, QUICK, {"other": calls.append})
    assert set(found["forms"]) == {"data_parallel", "split_k", "stream_k", "auto", "other"}
    assert (found["tiles"], found["panels"], found["processors"]) == (3, 10, 2)
    assert found["bound"] == pytest.approx(4 / 3)
    assert found["forms"]["data_parallel"]["gain"] == 1.0
    assert found["forms"]["stream_k"]["workers"] == 2
    assert found["forms"]["split_k"]["splits"] in (2, 5)
    assert all(form["seconds"] > 0 for form in found["forms"].values())
    assert len(calls) >= QUICK.rounds and len(set(calls)) == 1
    assert text_of([found]).count("other") == 1


def test_a_wrong_kernel_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    where = place("llvm")
    product = small_product(where, 1)
    changed = {"expected": lambda operands: operands[0] @ operands[1] + 1}
    with pytest.raises(forms.WrongProduct, match=r"49x512x640 .* the product is not numpy's"):
        measure(Product(**{**vars(product), **changed}), where, where.device, QUICK)


def test_a_busy_machine_gives_a_record_without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(launches: Any, rounds: int, *_: Any, **__: Any) -> Turns:
        return Turns(tuple(() for _ in launches), 9, 9, rounds)

    where = place("llvm")
    built = forms.build_forms(small_product(where, 1), where, where.device)
    monkeypatch.setattr(measurement, "build_forms", lambda *_: built)
    monkeypatch.setattr(measurement, "launches_per_timing", lambda _launch: 1)
    monkeypatch.setattr(measurement, "take_turns", busy)
    found = measure(small_product(where, 1), where, where.device, Conditions())
    assert found["not_quiet"].startswith("not quiet: other processes were busy during 9 of 9")
    assert (found["rounds"], found["dropped"]) == (0, 9)
    assert all("gain" not in form for form in found["forms"].values())
    assert verdict((found,)) == "too noisy"


def test_a_process_that_fails_says_why() -> None:
    request = Request("llvm", ((0, 512, 640),), None, QUICK)
    with pytest.raises(ProcessFailed, match="Error"):
        list(in_fresh_process(request))
    assert Request.decode(request.encode()) == request
    assert Conditions().rounds == LEAST_PAIRS


# -- what is made of records -----------------------------------------------------------------------


def test_the_processes_of_a_product_are_one_row() -> None:
    records = [record(1.5), record(1.2, shape=[98, 512, 640]), record(1.7)]
    assert [[each["forms"]["auto"]["gain"] for each in group] for group in groups(records)] == [
        [1.5, 1.7],
        [1.2],
    ]


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([record(1.5), record(1.7), record(1.6)], ""),
        ([record(1.5), not_quiet(), record(1.6)], "1/3 noisy"),
        ([record(1.5, control=1.2), not_quiet()], "too noisy"),
        ([record(0.96), record(0.95), record(1.2)], "loses"),
        ([record(0.98), record(0.95), record(0.97)], ""),
        ([record(2.2)], "above bound"),
        ([record(2.05)], ""),
    ],
)
def test_verdicts(records: list[Any], said: str) -> None:
    assert verdict(tuple(records)) == said


def test_the_table_shows_all_and_fits_a_narrow_terminal() -> None:
    text = text_of([record(1.5), record(1.25, control=1.5), not_quiet()])
    assert max(map(len, text.splitlines())) <= 80 and "…" not in text
    for part in ("49x512x640", "1 tile on 2", "S=2", "g=2", "split_k", "predicted 1.90"):
        assert part in text
    assert "1.50" in text and "(1.25)" in text and "not quiet" in text and "2/3 noisy" in text


def test_notes_say_what_was_dropped_and_what_verdicts_mean() -> None:
    said = " ".join(notes([record(0.9), record(2.5, shape=[1, 2, 3]), not_quiet()]))
    assert "dropped since others used the CPUs: 6 of 12" in said
    assert "loses: auto is slower" in said and "above bound: auto gains more" in said
    assert "No batch had to be quiet" not in said
    assert "No batch had to be quiet" in " ".join(notes([record(1.0, even_if_busy=True)]))


def test_the_picture_has_a_mark_for_each_form_and_process(tmp_path: Path) -> None:
    records = [record(1.5), record(1.25, control=1.5), not_quiet()]
    written = draw(records, tmp_path / "gain.svg")
    text = written.read_text()
    assert "quantisation bound" in text and "split-K, best S" in text
    # Three labels, once in the legend, and three forms in each of two records that have figures.
    assert text.count('id="PathCollection_') == 2 * 3 + 3 * 2
    with pytest.raises(UnknownPictureFormat):
        draw(records, tmp_path / "gain.txt")
