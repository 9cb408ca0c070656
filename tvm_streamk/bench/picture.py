# SPDX-License-Identifier: Apache-2.0
"""A picture of records: gain over data-parallel against the quantisation bound."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvm_streamk.bench.forms import AUTO
from tvm_streamk.bench.measurement import Record
from tvm_streamk.bench.table import is_valid
from tvm_streamk.partition import SPLIT_K, STREAM_K
from tvm_streamk.plot import DOTS_PER_INCH, checked_path, figure_class

SIZE_INCHES = (7.0, 5.0)
LABELS = {SPLIT_K: "split-K, best S", STREAM_K: "Stream-K, best g", AUTO: "auto"}
MARKERS = {SPLIT_K: "s", STREAM_K: "^", AUTO: "o"}
COLOURS = {SPLIT_K: "tab:orange", STREAM_K: "tab:green", AUTO: "tab:blue"}
MARGIN = 1.08
SIDESTEP = 0.006
"""Forms of the same product stand beside each other, not on top: a share of the axis."""


def draw(records: Sequence[Record], path: str | Path) -> Path:
    """Draw one mark for each form, product and process; void figures are hollow.

    Parameters
    ----------
    records
        Of :func:`tvm_streamk.bench.measurement.measure`; those without figures are left out.
    path
        A ``.png`` or ``.svg`` file.

    Returns
    -------
    Path
        The file that was written.

    Raises
    ------
    UnknownPictureFormat, MatplotlibMissing
        As :func:`tvm_streamk.plot.plot`.
    """
    target = checked_path(path)
    figure = figure_class()(figsize=SIZE_INCHES, layout="constrained")
    axis = figure.subplots()
    measured = [record for record in records if "not_quiet" not in record]
    furthest = max((record["bound"] for record in measured), default=2.0) * MARGIN
    lowest = 1.0 - (furthest - 1.0) / 20
    axis.plot([1, furthest], [1, furthest], color="0.4", linestyle="--", linewidth=1.0)
    axis.text(furthest, furthest, "bound ", ha="right", va="top", color="0.4", fontsize="small")
    axis.axhline(1.0, color="0.4", linewidth=1.0)
    for place, form in enumerate(LABELS):
        _marks(axis, measured, form, (place - 1) * SIDESTEP * (furthest - lowest))
    axis.set_xlim(lowest, furthest)
    axis.set_xlabel("quantisation bound: whole waves over even shares")
    axis.set_ylabel("gain over data-parallel, measured")
    axis.grid(color="0.9")
    axis.set_axisbelow(True)
    axis.legend(loc="upper left", frameon=False)
    figure.savefig(target, dpi=DOTS_PER_INCH)
    return target


def _marks(axis: Any, records: Sequence[Record], form: str, aside: float) -> None:
    colour, label = COLOURS[form], LABELS[form]
    axis.scatter([], [], marker=MARKERS[form], color=colour, label=label)
    for record in records:
        found = record["forms"].get(form)
        if found is None:
            continue
        face = colour if is_valid(record) else "none"
        axis.scatter(
            record["bound"] + aside,
            found["gain"],
            marker=MARKERS[form],
            facecolors=face,
            edgecolors=colour,
        )
