# SPDX-License-Identifier: Apache-2.0
"""Pictures of schedules: workers against time, one colour per tile, merges marked.

Above, the data-parallel kernel; below, the partition that was chosen, on the same time axis. Times
come from :mod:`tvm_streamk.simulate`. Matplotlib is imported only when something is drawn.
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tvm_streamk.cost_model import LAST_ARRIVER
from tvm_streamk.devices import DEFAULT_DEVICE, Device
from tvm_streamk.partition import DATA_PARALLEL, Partition
from tvm_streamk.simulate import MERGE, PANELS, PUBLISH, Activity, Simulation, simulate

SUFFIXES = (".png", ".svg")
DOTS_PER_INCH = 120
WIDTH_INCHES = 11.0
LEAST_PANEL_INCHES = 1.6
ROW_INCHES = 0.2
MOST_PANEL_INCHES = 5.5
LABELLED_ROWS = 40
"""Up to so many processors, bars are apart from each other and carry their tile's number."""

LEAST_LABEL_SHARE = 0.035
"""A number is written only in bars at least so long, as a share of the time axis."""

GOLDEN_RATIO = 0.6180339887498949
SATURATIONS = (0.45, 0.62, 0.5)
BRIGHTNESSES = (0.95, 0.8, 0.88, 0.7)
PUBLISH_COLOUR = "0.35"
MERGE_COLOUR = "black"
IDLE_COLOUR = "0.93"


class MatplotlibMissing(ImportError):
    """Drawing needs Matplotlib, which is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "drawing a schedule needs matplotlib, which is not installed; "
            "try: pip install 'tvm-streamk[plot]'"
        )


class UnknownPictureFormat(ValueError):
    """The suffix of the path is not one that can be drawn."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"cannot tell the format of {str(path)!r} from its suffix {path.suffix!r}; "
            f"use one of {', '.join(SUFFIXES)}"
        )


def tile_colour(tile: int) -> tuple[float, float, float]:
    """Return the colour of a tile: neighbours far apart in hue, later ones in shade too."""
    hue = tile * GOLDEN_RATIO % 1.0
    saturation = SATURATIONS[tile % len(SATURATIONS)]
    return colorsys.hsv_to_rgb(hue, saturation, BRIGHTNESSES[tile % len(BRIGHTNESSES)])


def plot(
    partition: Partition,
    path: str | Path,
    device: Device | None = None,
    merge: str | None = LAST_ARRIVER,
    title: str = "",
) -> Path:
    """Draw data-parallel above and a partition below, workers against time.

    Parameters
    ----------
    partition : Partition
        Of a constant number of tiles.
    path : str or Path
        Where to; the suffix says which format: ``.png`` or ``.svg``.
    device : Device, optional
        Processors and constants for the simulation, scaled to the kernel's tile. Default: the
        constants of :data:`tvm_streamk.devices.DEFAULT_DEVICE` on as many processors as there are
        workers.
    merge : str or None
        How partial sums are merged; None is for partitions that cut no tile.
    title : str
        Written on top; a summary of the partition if empty.

    Returns
    -------
    Path
        The file that was written.

    Raises
    ------
    UnknownPictureFormat
        For another suffix.
    MatplotlibMissing
        If Matplotlib is not installed.
    """
    target = checked_path(path)
    make_figure = figure_class()
    described = device or replace(DEFAULT_DEVICE, num_sms=partition.num_workers)
    base = Partition(
        partition.num_tiles, partition.panels, max(partition.num_tiles, 1), DATA_PARALLEL
    )
    runs = (simulate(base, described), simulate(partition, described, merge or LAST_ARRIVER))
    figure = _draw(make_figure, runs, title or _summary(partition, described))
    figure.savefig(target, dpi=DOTS_PER_INCH)
    return target


def checked_path(path: str | Path) -> Path:
    """Return a picture's path, or raise ``UnknownPictureFormat`` for its suffix."""
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        raise UnknownPictureFormat(target)
    return target


def figure_class() -> Any:
    """Import Matplotlib's figure, or raise ``MatplotlibMissing``."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MatplotlibMissing from error
    return Figure


def _summary(partition: Partition, device: Device) -> str:
    return (
        f"{partition.num_tiles} tiles of {partition.panels} panels on {device.num_sms} processors"
    )


def _draw(make_figure: Any, runs: Sequence[Simulation], title: str) -> Any:
    end_us = max(max(run.makespan_us for run in runs), 1e-9)
    heights = [_panel_inches(run.num_processors) for run in runs]
    figure = make_figure(figsize=(WIDTH_INCHES, sum(heights) + 2.0), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(len(runs), 1, sharex=True, height_ratios=heights)
    for axis, run in zip(axes, runs, strict=True):
        _draw_run(axis, run, end_us)
    axes[-1].set_xlabel("predicted time (us)")
    numbered = max(run.num_processors for run in runs) <= LABELLED_ROWS
    figure.legend(
        handles=_legend_handles(numbered), loc="outside lower center", ncols=4, frameon=False
    )
    return figure


def _panel_inches(rows: int) -> float:
    return min(max(rows * ROW_INCHES, LEAST_PANEL_INCHES), MOST_PANEL_INCHES)


def _draw_run(axis: Any, run: Simulation, end_us: float) -> None:
    rows = run.num_processors
    few = rows <= LABELLED_ROWS
    height = 0.84 if few else 1.0
    _bars(axis, [a for a in run.activities if a.kind == PANELS], height, few)
    for kind, colour in ((PUBLISH, PUBLISH_COLOUR), (MERGE, MERGE_COLOUR)):
        _solid_bars(axis, [a for a in run.activities if a.kind == kind], height, colour)
    if few:
        _label(axis, run.activities, LEAST_LABEL_SHARE * end_us)
    axis.axvline(run.makespan_us, color="black", linewidth=1.0, linestyle="--")
    axis.set_facecolor(IDLE_COLOUR)
    axis.set_xlim(0, end_us * 1.02)
    axis.set_ylim(rows - 0.5, -0.5)
    axis.set_ylabel("processor")
    axis.set_title(_run_title(run), loc="left", fontsize="medium")
    if rows <= LABELLED_ROWS // 2:
        axis.set_yticks(range(rows))


def _run_title(run: Simulation) -> str:
    cut = run.partition.cuts if run.partition.decomposition != DATA_PARALLEL else 0
    busy = sum(a.end_us - a.begin_us for a in run.activities if a.kind == PANELS)
    used = busy / (run.makespan_us * run.num_processors) if run.makespan_us else 0.0
    return (
        f"{run.partition.decomposition}, {run.partition.num_workers} workers: "
        f"{run.makespan_us:.1f} us, {100 * used:.0f} % of the processors' time on panels, "
        f"{cut} cuts"
    )


def _bars(axis: Any, activities: Sequence[Activity], height: float, edges: bool) -> None:
    from matplotlib.collections import PolyCollection

    edge = {"edgecolors": "white", "linewidths": 0.6} if edges else {"linewidths": 0.0}
    corners = [_corners(activity, height) for activity in activities]
    colours = [tile_colour(activity.tile) for activity in activities]
    axis.add_collection(PolyCollection(corners, facecolors=colours, **edge), autolim=False)


def _solid_bars(axis: Any, activities: Sequence[Activity], height: float, colour: str) -> None:
    from matplotlib.collections import PolyCollection

    corners = [_corners(activity, height) for activity in activities]
    axis.add_collection(PolyCollection(corners, facecolors=colour, linewidths=0.0), autolim=False)


def _corners(activity: Activity, height: float) -> list[tuple[float, float]]:
    low, high = activity.processor - height / 2, activity.processor + height / 2
    begin, end = activity.begin_us, activity.end_us
    return [(begin, low), (end, low), (end, high), (begin, high)]


def _label(axis: Any, activities: Sequence[Activity], shortest_us: float) -> None:
    for activity in activities:
        if activity.kind != PANELS or activity.end_us - activity.begin_us < shortest_us:
            continue
        middle = (activity.begin_us + activity.end_us) / 2
        axis.text(
            middle, activity.processor, str(activity.tile), ha="center", va="center", fontsize=7
        )


def _legend_handles(numbered: bool) -> list[Any]:
    from matplotlib.patches import Patch

    panels = "panels (one colour per tile, number = tile)" if numbered else "panels, by tile"
    return [
        Patch(facecolor=tile_colour(0), label=panels),
        Patch(facecolor=PUBLISH_COLOUR, label="partial sum stored"),
        Patch(facecolor=MERGE_COLOUR, label="merge"),
        Patch(facecolor=IDLE_COLOUR, edgecolor="0.7", label="idle"),
    ]
