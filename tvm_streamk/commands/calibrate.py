# SPDX-License-Identifier: Apache-2.0
"""``python -m tvm_streamk calibrate``: the cost model's constants, measured on the device at hand.

Some twenty kernels of one schedule run in turn, while nobody else uses the CPUs; they differ in
panels, segments per worker, partial segments and peers. :mod:`tvm_streamk.calibration` fits the
constants to their times.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import tvm_streamk
from tvm_streamk.annotation import LAST_ARRIVER, TWO_PHASE
from tvm_streamk.bench.forms import Job, build
from tvm_streamk.bench.measurement import Conditions, launches_per_timing
from tvm_streamk.bench.products import Operands, Product, float32_product
from tvm_streamk.calibration import PANELS, CannotFit, Fit, Sample, calibrated, fit, samples
from tvm_streamk.devices import Device
from tvm_streamk.nest_device import scaling_of
from tvm_streamk.partition import PERSISTENT, SPLIT_K
from tvm_streamk.places import CUDA, TARGETS, Place, UnknownTarget, place, prepare_environment
from tvm_streamk.schedules import cpu_gemm, gpu_gemm
from tvm_streamk.testing import DeviceMissing, Prepared
from tvm_streamk.testing.measure import LEAST_PAIRS, NotQuiet, Turns, take_turns

CPU_TILE, CPU_REGISTER_TILE, CPU_PANEL = (28, 128), (7, 32), 60
GPU_THREADS, GPU_PER_THREAD, GPU_PANEL = (16, 16), (4, 4), 16
"""No length of the reduction is a multiple of 1024: rows would share their places in the cache."""

MICROSECONDS = 1e6
GOOD_FIT = 0.15
MakeProduct = Callable[[int, int], Product]
"""The product of so many tiles and panels."""


@dataclass(frozen=True)
class Kernel:
    """A sample's kernel: built, checked, and ready to be timed in groups of launches."""

    sample: Sample
    prepared: Prepared
    launches: int

    def __call__(self) -> None:
        self.prepared.launch(self.launches)


@dataclass(frozen=True)
class Calibration:
    """What was measured, and the record that follows from it."""

    device: Device
    found: Fit
    kernels: tuple[Kernel, ...]
    times_us: tuple[float, ...]
    dropped: int
    batches: int
    was_quiet: bool

    @property
    def typical_error(self) -> float:
        """Root of the mean squared relative error of the fitted times."""
        return math.sqrt(float(np.mean(np.square(self.found.errors(self.times_us)))))

    def measurement(self) -> dict[str, Any]:
        """The note for the device's file."""
        rows = zip(self.kernels, self.times_us, self.found.fitted_us, strict=True)
        return {
            "engine": self.kernels[0].prepared.engine,
            "quiet": self.was_quiet,
            "batches": self.batches,
            "dropped": self.dropped,
            "typical_error": self.typical_error,
            "terms_us": {
                name: value for name, value in asdict(self.found).items() if name != "fitted_us"
            },
            "samples": [
                {**asdict(kernel.sample), "measured_us": time, "fitted_us": fitted}
                for kernel, time, fitted in rows
            ],
        }


def calibrate(
    target: Annotated[
        str | None, typer.Option(help=f"{', '.join(TARGETS)}; by default cuda where it is.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Write the device's record to this .json file.")
    ] = None,
    rounds: Annotated[
        int, typer.Option(min=1, help="Undisturbed timings of each kernel.")
    ] = LEAST_PAIRS,
    blocks_per_sm: Annotated[
        int, typer.Option(min=1, help="Blocks of the kernel that a processor holds, on a GPU.")
    ] = 1,
    even_if_busy: Annotated[
        bool,
        typer.Option("--even-if-busy", help="Take the least times while others use the CPUs."),
    ] = False,
) -> None:
    """Measure what a panel, a start, a split and a peer cost on this device."""
    prepare_environment()
    console = Console()
    try:
        where = _place(target)
        device = where.device.with_processors(blocks_per_sm=blocks_per_sm)
        conditions = Conditions(rounds=rounds, even_if_busy=even_if_busy)
        found = measure(where, device, conditions, console)
    except (UnknownTarget, DeviceMissing) as why:
        raise typer.BadParameter(str(why), param_hint="--target") from why
    except (NotQuiet, CannotFit) as why:
        console.print(f"No constants: {why}", style="yellow", markup=False)
        raise typer.Exit(1) from why
    console.print(_samples_table(found))
    console.print(_constants_table(found))
    console.print(_in_words(found), highlight=False)
    if output is not None:
        found.device.to_file(output, found.measurement())
        console.print(f"Written: {output}. Use it as device={str(output)!r}.", highlight=False)


def _place(target: str | None) -> Place:
    if target is not None:
        return place(target)
    try:
        return place(CUDA)
    except DeviceMissing:
        return place(TARGETS[0])


def measure(
    where: Place,
    device: Device,
    conditions: Conditions,
    console: Console,
    make: MakeProduct | None = None,
    panels: tuple[int, int] = PANELS,
) -> Calibration:
    """Build, check and time the kernels, and fit the constants.

    Parameters
    ----------
    where
        Where kernels run.
    device
        The record whose constants are replaced. Where it says that several blocks share a
        processor, the kernels keep all of them busy.
    conditions
        How to time.
    console
        Where progress is shown.
    make
        The product of so many tiles and panels whose schedule is timed; a hand schedule by default.
    panels
        Panels of a tile, few and many.

    Raises
    ------
    NotQuiet
        If others used the CPUs most of the time.
    CannotFit
        If the times make no sense.
    """
    make = make or functools.partial(_hand_product, where)
    wanted = samples(device.num_slots, panels, device.blocks_per_sm > 1)
    with Progress(console=console, transient=True) as progress:
        kernels = _built(wanted, where, device, make, conditions, progress)
        times, turns = _timed(kernels, conditions, progress)
    found = fit(wanted, times, device.num_slots, _merge(where))
    nest = tvm_streamk.analyze(make(1, 2).make(), make(1, 2).block)
    named = replace(device, name=f"{device.name}, calibrated for {where.name}")
    return Calibration(
        calibrated(named, found, scaling_of(nest)),
        found,
        tuple(kernels),
        times,
        turns.dropped,
        turns.batches,
        not conditions.even_if_busy,
    )


def _built(
    wanted: Sequence[Sample],
    where: Place,
    device: Device,
    make: MakeProduct,
    conditions: Conditions,
    progress: Progress,
) -> list[Kernel]:
    task = progress.add_task("building kernels", total=len(wanted))
    jobs = []
    for sample in wanted:
        product = make(sample.num_tiles, sample.panels)
        how: dict[str, Any] = {"decomposition": PERSISTENT, "num_workers": device.num_slots}
        if sample.splits > 1:
            how = {"decomposition": SPLIT_K, "splits": sample.splits, "merge": _merge(where)}
        jobs.append(Job(product, Operands.of(product), how))
    forms = build(jobs, where, conditions.builders, lambda: progress.advance(task))
    return [
        Kernel(sample, form.prepared, launches_per_timing(form.prepared.launch))
        for sample, form in zip(wanted, forms, strict=True)
    ]


def _timed(
    kernels: Sequence[Kernel], conditions: Conditions, progress: Progress
) -> tuple[tuple[float, ...], Turns]:
    """Microseconds of one call of each kernel, and how they were timed."""
    task = progress.add_task("timing in turn", total=conditions.rounds)
    turns = take_turns(
        kernels,
        conditions.rounds,
        conditions.batch_seconds,
        load_limit=conditions.load_limit,
        on_batch=lambda kept: progress.update(task, completed=kept),
    )
    # Others only ever make a kernel slower: on a busy machine, the least time is the best guess.
    typical = turns.least if conditions.even_if_busy else turns.medians
    pairs = zip(typical, kernels, strict=True)
    return tuple(seconds * MICROSECONDS / kernel.launches for seconds, kernel in pairs), turns


def _merge(where: Place) -> str:
    return LAST_ARRIVER if where.is_gpu else TWO_PHASE


def _hand_product(where: Place, num_tiles: int, panels: int) -> Product:
    """A product one tile wide, in a hand schedule."""
    if where.is_gpu:
        rows, columns = (
            count * each for count, each in zip(GPU_THREADS, GPU_PER_THREAD, strict=True)
        )
        shape = (rows * num_tiles, columns, panels * GPU_PANEL)
        return float32_product(
            shape, lambda: gpu_gemm(*shape, GPU_THREADS, GPU_PER_THREAD, GPU_PANEL)
        )
    rows, columns = CPU_TILE
    shape = (rows * num_tiles, columns, panels * CPU_PANEL)
    return float32_product(shape, lambda: cpu_gemm(*shape, CPU_TILE, CPU_PANEL, CPU_REGISTER_TILE))


def _samples_table(found: Calibration) -> Table:
    table = Table(title="Kernels, one call each", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("kernel", no_wrap=True)
    for heading in ("measured us", "fitted us", "error"):
        table.add_column(heading, justify="right", no_wrap=True)
    rows: Sequence[Any] = list(
        zip(found.kernels, found.times_us, found.found.fitted_us, strict=True)
    )
    for kernel, measured, fitted in rows:
        cells = (f"{measured:.1f}", f"{fitted:.1f}", f"{fitted / measured - 1:+.0%}")
        table.add_row(str(kernel.sample), *cells)
    return table


def _constants_table(found: Calibration) -> Table:
    table = Table(title="Constants in microseconds", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("constant", no_wrap=True)
    table.add_column("these kernels", justify="right", no_wrap=True)
    table.add_column("reference panel", justify="right", no_wrap=True)
    rows = {
        "start": (found.found.start_us, found.device.start_us),
        "split": (found.found.split_us + found.found.once_us, found.device.split_us),
        "panel": (found.found.panel_us, found.device.panel_us),
        "peer": (found.found.peer_us, found.device.peer_us),
    }
    for name, values in rows.items():
        table.add_row(name, *(f"{value:.3g}" for value in values))
    return table


def _in_words(found: Calibration) -> str:
    error = found.typical_error
    text = (
        f"{found.device.num_sms} processors, {found.kernels[0].prepared.engine}. The constants "
        f"give the measured times to within {error:.0%}, typically. A call takes "
        f"{found.found.launch_us:.1f} us whatever it does."
    )
    if not found.was_quiet:
        text += " Others may have used the CPUs meanwhile, so these are the least times, not the"
        text += " usual ones."
    if error > GOOD_FIT:
        text += f" That is more than {GOOD_FIT:.0%}: measure again when the machine is quiet."
    return text
