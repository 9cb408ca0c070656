# SPDX-License-Identifier: Apache-2.0
"""Records as a table, and what is wrong with them in words."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from tvm_streamk.bench.forms import AUTO
from tvm_streamk.bench.measurement import Record
from tvm_streamk.partition import DATA_PARALLEL, SPLIT_K, STREAM_K

ABOVE_BOUND = 1.05
LEAST_GAIN = 0.97
MILLISECONDS = 1e3
NOISY, LOSES, ABOVE = "noisy", "loses", "above bound"
TOO_NOISY = f"too {NOISY}"
Group = tuple[Record, ...]
"""The records of one product on one target, one for each process."""


def groups(records: Sequence[Record]) -> list[Group]:
    """Records of the same product together, in the order of their first ones."""
    found: dict[tuple[object, ...], list[Record]] = {}
    for record in records:
        key = (record["target"], record["dtype"], *record["shape"])
        found.setdefault(key, []).append(record)
    return [tuple(group) for group in found.values()]


def is_valid(record: Record) -> bool:
    """Whether a record's figures count: enough quiet rounds, and a control that shows nothing."""
    return bool(record.get("valid"))


def gains(group: Group, form: str) -> list[float]:
    """A form's gains over data-parallel in the processes that count."""
    return [
        float(record["forms"][form]["gain"])
        for record in group
        if is_valid(record) and form in record["forms"]
    ]


def verdict(group: Group) -> str:
    """What is to be said of a product: noise, a loss under ``auto``, or more than can be."""
    valid = gains(group, AUTO)
    if not valid:
        return TOO_NOISY
    typical = statistics.median(valid)
    if typical < LEAST_GAIN:
        return LOSES
    if typical > group[0]["bound"] * ABOVE_BOUND:
        return ABOVE
    noisy = len(group) - len(valid)
    return f"{noisy}/{len(group)} {NOISY}" if noisy else ""


def table(records: Sequence[Record]) -> Table:
    """One row for each product; figures of several processes one below the other."""
    others = _other_forms(records)
    shown = Table(
        title="Gain over data-parallel: median of paired ratios, a line for each process",
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    shown.add_column("product", no_wrap=True)
    for heading in ("bound", "ms"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for heading in ("split-K", "Stream-K", "auto", *others):
        shown.add_column(heading, no_wrap=True)
    shown.add_column("verdict", no_wrap=True)
    for group in groups(records):
        shown.add_row(*_cells(group, others))
    return shown


def _other_forms(records: Sequence[Record]) -> list[str]:
    own = (DATA_PARALLEL, SPLIT_K, STREAM_K, AUTO)
    return sorted({name for record in records for name in record["forms"] if name not in own})


def _cells(group: Group, others: Sequence[str]) -> list[str]:
    first = group[0]
    tiles = "1 tile" if first["tiles"] == 1 else f"{first['tiles']} tiles"
    extents = "x".join(str(extent) for extent in first["shape"])
    predicted = first["predicted_gain"]
    expected = [] if predicted is None else [f"predicted {predicted:.2f}"]
    lines = [
        [f"{first['target']} {first['dtype']}", extents, f"{tiles} on {first['processors']}"],
        [f"{first['bound']:.2f}"],
        ["", *(_milliseconds(record) for record in group)],
        _gains(group, SPLIT_K),
        _gains(group, STREAM_K),
        [*_gains(group, AUTO), *expected],
        *(_gains(group, form) for form in others),
        [verdict(group)],
    ]
    return [escape("\n".join(cell)) for cell in lines]


def _milliseconds(record: Record) -> str:
    seconds = record["forms"][DATA_PARALLEL].get("seconds")
    return "-" if seconds is None else f"{seconds * MILLISECONDS:.3f}"


def _gains(group: Group, form: str) -> list[str]:
    """What a form is, and its gain in each process."""
    found = [record["forms"].get(form) for record in group]
    if found[0] is None:
        return ["-"]
    which = ", ".join(dict.fromkeys(_how(each, form) for each in found))
    return [which, *(_gain(record, form) for record in group)]


def _gain(record: Record, form: str) -> str:
    found = record["forms"][form]
    if "gain" not in found:
        return "not quiet"
    figure = f"{found['gain']:.2f}"
    return figure if is_valid(record) else f"({figure})"


def _how(found: Record, form: str) -> str:
    if form == SPLIT_K:
        return f"S={found['splits']}"
    if form == STREAM_K:
        return f"g={found['workers']}"
    return str(found["decomposition"]) if form == AUTO else ""


def notes(records: Sequence[Record]) -> list[str]:
    """How to read the table, and how many batches were dropped."""
    dropped, batches = (sum(record[key] for record in records) for key in ("dropped", "batches"))
    busy = any(record["even_if_busy"] for record in records)
    engines = sorted({record["engine"] for record in records})
    lines = [
        f"Engines: {', '.join(engines)}. All forms take turns, data-parallel twice: a figure whose "
        "control is not within 0.97 to 1.03 is void, in brackets.",
        f"Batches dropped since others used the CPUs: {dropped} of {batches}.",
    ]
    verdicts = {verdict(group) for group in groups(records)}
    if LOSES in verdicts:
        lines.append(f"{LOSES}: auto is slower than {LEAST_GAIN} of data-parallel.")
    if ABOVE in verdicts:
        lines.append(f"{ABOVE}: auto gains more than even waves can, so something else has part.")
    if busy:
        lines.append("No batch had to be quiet: the figures say little about anything but wiring.")
    return lines
