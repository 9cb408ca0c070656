# SPDX-License-Identifier: Apache-2.0
"""Pictures: that files come out in both formats, and that what is drawn is the simulation."""

from __future__ import annotations

import colorsys
import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from tvm_streamk.devices import DEFAULT_DEVICE, lookup
from tvm_streamk.explain import explain
from tvm_streamk.partition import DATA_PARALLEL, TWO_TILE, Partition
from tvm_streamk.plot import (
    MatplotlibMissing,
    UnknownPictureFormat,
    _draw,
    plot,
    tile_colour,
)
from tvm_streamk.simulate import MERGE, PANELS, PUBLISH, Simulation, simulate

PNG_BEGIN = b"\x89PNG\r\n"


def runs(workers: int, tiles: int) -> tuple[Simulation, Simulation]:
    device = DEFAULT_DEVICE.with_processors(workers)
    base = simulate(Partition(tiles, 128, tiles, DATA_PARALLEL), device)
    return base, simulate(Partition(tiles, 128, workers, TWO_TILE), device)


@pytest.mark.parametrize("workers", [8, 132])
def test_png_and_svg(tmp_path: Path, workers: int) -> None:
    partition = Partition(workers + 3, 128, workers, TWO_TILE)
    png = plot(partition, tmp_path / "schedule.png", lookup("H200").with_processors(workers))
    assert png.read_bytes().startswith(PNG_BEGIN)
    svg = plot(partition, str(tmp_path / "schedule.SVG"))
    text = svg.read_text()
    assert "<svg" in text
    assert f"{workers + 3} tiles of 128 panels on {workers} processors" in text


@pytest.mark.parametrize("workers", [8, 132])
def test_every_activity_is_one_bar_in_its_place(workers: int) -> None:
    pair = runs(workers, workers + 1)
    figure = _draw(Figure, pair, "title")
    for axis, run in zip(figure.axes, pair, strict=True):
        bars = [c for c in axis.collections if isinstance(c, PolyCollection)]
        for collection, kind in zip(bars, (PANELS, PUBLISH, MERGE), strict=True):
            expected = [a for a in run.activities if a.kind == kind]
            drawn = [path.get_extents() for path in collection.get_paths()]
            assert len(drawn) == len(expected)
            for box, activity in zip(drawn, expected, strict=True):
                assert (box.x0, box.x1) == pytest.approx((activity.begin_us, activity.end_us))
                assert (box.y0 + box.y1) / 2 == pytest.approx(activity.processor)
        low, high = sorted(axis.get_ylim())
        assert (low, high) == (-0.5, run.num_processors - 0.5)
    above, below = figure.axes
    assert above.get_xlim() == below.get_xlim()
    assert above.get_xlim()[1] >= max(run.makespan_us for run in pair)
    assert above.get_title(loc="left").startswith("data_parallel, ")
    assert below.get_title(loc="left").startswith(f"two_tile, {workers} workers: ")


def test_numbers_are_written_for_few_workers_only() -> None:
    few = _draw(Figure, runs(8, 9), "")
    assert {text.get_text() for text in few.axes[0].texts} == {str(tile) for tile in range(9)}
    many = _draw(Figure, runs(132, 133), "")
    assert not many.axes[0].texts and not many.axes[1].texts


def test_neighbouring_tiles_have_colours_far_apart_and_light_enough_for_text() -> None:
    colours = [tile_colour(tile) for tile in range(300)]
    assert len(set(colours)) == 300
    hues = [colorsys.rgb_to_hsv(*colour)[0] for colour in colours]
    for left, right in itertools.pairwise(hues):
        distance = abs(left - right)
        assert min(distance, 1 - distance) > 0.3
    assert min(colorsys.rgb_to_hsv(*colour)[2] for colour in colours) >= 0.7


def test_explanations_and_uncut_partitions_can_be_drawn(tmp_path: Path) -> None:
    explanation = explain(512, 512, 512, num_sms=16)
    assert explanation.decision.merge is None
    path = explanation.plot(tmp_path / "full.svg")
    assert "data_parallel, 16 workers" in path.read_text()
    assert plot(Partition(0, 4, 2), tmp_path / "empty.png").exists()


def test_an_unknown_suffix_is_refused_before_anything_is_drawn(tmp_path: Path) -> None:
    with pytest.raises(UnknownPictureFormat, match=r"suffix '.bmp'; use one of .png, .svg"):
        plot(Partition(3, 4, 2), tmp_path / "schedule.bmp")
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MatplotlibMissing, match=r"pip install 'tvm-streamk\[plot\]'"):
        plot(Partition(3, 4, 2), tmp_path / "schedule.png")


def test_importing_the_module_does_not_import_matplotlib() -> None:
    code = "import sys, tvm_streamk.plot; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
