# SPDX-License-Identifier: Apache-2.0
"""``python -m tvm_streamk bench``: every way to share out a product, measured on what is here."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from tvm_streamk.bench.measurement import Conditions, Record
from tvm_streamk.bench.picture import draw
from tvm_streamk.bench.process import ProcessFailed, Request, run
from tvm_streamk.bench.products import Shape, default_shapes
from tvm_streamk.bench.table import notes, table
from tvm_streamk.device_file import DeviceFileUnusable
from tvm_streamk.devices import UnknownDevice, lookup
from tvm_streamk.places import TARGETS, Place, UnknownTarget, places, prepare_environment
from tvm_streamk.plot import MatplotlibMissing, UnknownPictureFormat, checked_path, figure_class
from tvm_streamk.testing.measure import LEAST_PAIRS

PROCESSES = 3
FORMAT = "tvm_streamk bench"


def bench(
    target: Annotated[
        list[str] | None,
        typer.Option(help=f"{', '.join(TARGETS)}; may be repeated. By default all that is here."),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(help="A product MxNxK; may be repeated. By default some for each target."),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="Whose constants auto uses: a known name or a calibrated .json file."),
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="Fresh processes.")] = PROCESSES,
    rounds: Annotated[
        int, typer.Option(min=2, help="Undisturbed timings of each form.")
    ] = LEAST_PAIRS,
    even_if_busy: Annotated[
        bool, typer.Option("--even-if-busy", help="Keep times while others use the CPUs.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option(help="Write all records to this .json file.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw gain against bound: a .png or .svg file.")
    ] = None,
) -> None:
    """Measure data-parallel, split-K, Stream-K and auto against each other."""
    prepare_environment()
    console = Console()
    conditions = Conditions(rounds=rounds, even_if_busy=even_if_busy)
    found, missing = _checked(target, device, plot)
    requests = [
        Request(where.name, tuple(_shapes(shape) or default_shapes(where)), device, conditions)
        for where in found
    ]
    try:
        records = _measured(requests, processes, console)
    except ProcessFailed as why:
        console.print(f"A measuring process failed:\n{why}", style="bold red", markup=False)
        raise typer.Exit(1) from why
    console.print(table(records))
    for line in [*notes(records), *(f"Not measured: {reason}" for reason in missing)]:
        console.print(f"• {line}", highlight=False, markup=False)
    if output is not None:
        output.write_text(as_json(records), encoding="utf-8")
        console.print(f"Written: {output}", highlight=False)
    if plot is not None:
        console.print(f"Picture: {draw(records, plot)}", highlight=False)


def _checked(
    target: list[str] | None, device: str | None, plot: Path | None
) -> tuple[list[Place], list[str]]:
    """The places, after everything that could go wrong at the end has been tried."""
    try:
        if device is not None:
            lookup(device)
        if plot is not None:
            checked_path(plot)
            figure_class()
        found, missing = places(target or TARGETS)
    except (
        UnknownDevice,
        DeviceFileUnusable,
        UnknownPictureFormat,
        MatplotlibMissing,
        UnknownTarget,
    ) as why:
        raise typer.BadParameter(str(why)) from why
    if not found:
        raise typer.BadParameter("; ".join(missing), param_hint="--target")
    return found, missing


def _shapes(texts: list[str] | None) -> list[Shape]:
    return [_shape(text) for text in texts or ()]


def _shape(text: str) -> Shape:
    try:
        m, n, k = (int(part) for part in text.lower().split("x"))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not MxNxK", param_hint="--shape") from error
    if min(m, n, k) < 1:
        raise typer.BadParameter(f"{text!r} has an extent below 1", param_hint="--shape")
    return m, n, k


def _measured(requests: Sequence[Request], processes: int, console: Console) -> list[Record]:
    records = []
    with Progress(console=console, transient=True) as progress:
        total = processes * sum(len(request.shapes) for request in requests)
        task = progress.add_task("measuring", total=total)
        for record in run(requests, processes):
            records.append(record)
            extents = "x".join(str(extent) for extent in record["shape"])
            progress.update(task, advance=1, description=f"{record['target']} {extents}")
    return records


def as_json(records: Sequence[Record]) -> str:
    """Records with what they were made on, as the text of a JSON file."""
    machine: dict[str, Any] = {
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "platform": platform.platform(),
    }
    return json.dumps({"format": FORMAT, "machine": machine, "records": list(records)}, indent=1)


def processor_name() -> str:
    """The CPU's name, as far as the system tells."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
