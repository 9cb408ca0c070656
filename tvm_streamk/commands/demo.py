# SPDX-License-Identifier: Apache-2.0
"""``python -m tvm_streamk demo``: products of real models, before and after."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from tvm.s_tir import Schedule

import tvm_streamk
from tvm_streamk.plan import Plan
from tvm_streamk.schedules import REDUCTION_BLOCK, cpu_gemm, gpu_gemm, host_target
from tvm_streamk.testing import DeviceMissing, Prepared, poisoned, prepare
from tvm_streamk.testing.measure import FOREIGN_LOAD_LIMIT, PairedTimes, interleaved
from tvm_streamk.testing.opencl import num_compute_units

CPU_WORKERS = 2
TIMED_PAIRS = 25
BATCH_SECONDS = 0.3
ABOVE_BOUND = 1.05
MILLISECONDS = 1e3

# Two processors, so that small products show what many processors do to large ones.
_ENVIRONMENT = {
    "TVM_NUM_THREADS": str(CPU_WORKERS),
    "POCL_MAX_PTHREAD_COUNT": str(CPU_WORKERS),
    "POCL_CPU_MAX_CU_COUNT": str(CPU_WORKERS),
    "POCL_AFFINITY": "1",
    "POCL_WORK_GROUP_METHOD": "loopvec",
}


@dataclass(frozen=True)
class Product:
    """A matrix product of a real model, and how its tiles are made on each kind of device."""

    name: str
    shape: tuple[int, int, int]
    on_cpu: Callable[[int, int, int], Schedule]
    on_gpu: Callable[[int, int, int], Schedule]

    @property
    def extents(self) -> str:
        """Rows, columns and length of the reduction."""
        return "x".join(str(extent) for extent in self.shape)

    def __str__(self) -> str:
        return f"{self.name} {self.extents}"


PRODUCTS = (
    Product(
        "ResNet-50",
        (49, 512, 4608),
        lambda m, n, k: cpu_gemm(m, n, k, tile=(49, 512)),
        lambda m, n, k: gpu_gemm(m, n, k, threads=(7, 24), per_thread=(7, 8)),
    ),
    Product(
        "ResNet-50",
        (196, 256, 2304),
        lambda m, n, k: cpu_gemm(m, n, k, tile=(196, 96)),
        lambda m, n, k: gpu_gemm(m, n, k, threads=(4, 32), per_thread=(7, 8)),
    ),
    Product(
        "LLM slice",
        (16, 768, 4096),
        lambda m, n, k: cpu_gemm(m, n, k, tile=(16, 256), register_tile=(8, 32)),
        lambda m, n, k: gpu_gemm(m, n, k, threads=(4, 32), per_thread=(4, 8)),
    ),
)


@dataclass(frozen=True)
class Device:
    """Where products run: a name to show, TVM's target, and how many workers it has."""

    name: str
    target: Any
    num_workers: int
    is_gpu: bool


@dataclass(frozen=True)
class Outcome:
    """One product on one device, in both schedules."""

    product: Product
    device: Device
    plan: Plan
    times: PairedTimes
    is_quiet: bool
    difference: float
    limit: float

    @property
    def bound(self) -> float:
        """How many times faster the plan's waves allow."""
        before, after = self.plan.waves_before, self.plan.waves_after
        if before is None or not after:
            raise ValueError(f"the waves of {self.plan.block!r} are not known")
        return before / after


def demo() -> None:
    """Run products of real models in both schedules and compare them."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    console = Console()
    devices, missing = _devices()
    outcomes = list(_outcomes(devices, console))
    console.print(_table(outcomes))
    for outcome in outcomes:
        console.print(f"• {_in_words(outcome)}", highlight=False)
    _closing_words(console, outcomes, missing)
    if any(outcome.difference > outcome.limit for outcome in outcomes):
        raise typer.Exit(1)


def _devices() -> tuple[list[Device], str]:
    """The devices of this machine, and why the OpenCL one is missing."""
    devices = [Device("llvm", host_target(), CPU_WORKERS, is_gpu=False)]
    try:
        devices.append(Device("OpenCL", "opencl", num_compute_units(), is_gpu=True))
    except DeviceMissing as reason:
        return devices, str(reason)
    return devices, ""


def _outcomes(devices: list[Device], console: Console) -> Iterator[Outcome]:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(devices) * len(PRODUCTS))
        for device in devices:
            for product in PRODUCTS:
                progress.update(task, description=f"{device.name}: {product}")
                yield compare(product, device)
                progress.advance(task)


def compare(product: Product, device: Device) -> Outcome:
    """Build and check a product in both schedules, and time one against the other."""
    m, n, k = product.shape
    random = np.random.default_rng(seed=0)
    left, right = (random.uniform(-1, 1, shape).astype("float32") for shape in ((m, k), (k, n)))
    make = product.on_gpu if device.is_gpu else product.on_cpu
    before, after = make(m, n, k), make(m, n, k)
    plan = tvm_streamk.stream_k(after, REDUCTION_BLOCK, num_workers=device.num_workers)
    inputs = [left, right, poisoned((m, n))]
    launches = [prepare(schedule.mod, device.target, inputs) for schedule in (before, after)]
    if launches[1].can_share:
        launches[1].share(launches[0])
    times, is_quiet = _timed(*launches)
    difference, limit = _difference(left, right, [_product(launch) for launch in launches])
    return Outcome(product, device, plan, times, is_quiet, difference, limit)


def _product(launch: Prepared) -> np.ndarray:
    """What one launch writes, where nothing was written before."""
    launch.write(2, poisoned(launch.read()[2].shape))
    launch.launch()
    return launch.read()[2]


def _timed(before: Prepared, after: Prepared) -> tuple[PairedTimes, bool]:
    """Times while nobody else uses the CPUs, or whatever can be had, and which of them it is."""
    for load_limit in (FOREIGN_LOAD_LIMIT, math.inf):
        times = interleaved(
            before.launch, after.launch, TIMED_PAIRS, BATCH_SECONDS, load_limit=load_limit
        )
        if times.is_quiet:
            break
    return times, load_limit == FOREIGN_LOAD_LIMIT


def _difference(
    left: np.ndarray, right: np.ndarray, products: list[np.ndarray]
) -> tuple[float, float]:
    """The largest difference of the products from numpy's, and what rounding allows."""
    exact = left.astype("float64") @ right.astype("float64")
    rounding = np.finfo("float32").eps * left.shape[1]
    limit = rounding * (abs(left).astype("float64") @ abs(right).astype("float64")).max()
    # A NaN, an element that nobody wrote, counts as the largest difference.
    differences = [float(abs(product - exact).max()) for product in products]
    largest = max(math.inf if math.isnan(value) else value for value in differences)
    return largest, float(limit)


def _table(outcomes: list[Outcome]) -> Table:
    table = Table(title="Data-parallel nest → Stream-K", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("product", no_wrap=True)
    table.add_column("tiles", justify="right", no_wrap=True)
    table.add_column("waves", justify="right", no_wrap=True)
    table.add_column("milliseconds", justify="right", no_wrap=True)
    table.add_column("ratio,\nat most", justify="right", no_wrap=True)
    table.add_column("largest\ndifference\nfrom numpy", justify="right", no_wrap=True)
    for outcome in outcomes:
        before, after = (f"{seconds * MILLISECONDS:.2f}" for seconds in outcome.times.seconds)
        table.add_row(
            f"{outcome.product.name}, {outcome.device.name}\n{outcome.product.extents}",
            str(outcome.plan.num_tiles),
            f"{outcome.plan.waves_before} → {outcome.plan.waves_after:.2f}",
            f"{before} → {after}",
            f"{'' if outcome.is_quiet else '~'}{outcome.times.ratio:.2f}, {outcome.bound:.2f}",
            f"{outcome.difference:.1e}",
        )
    return table


def _in_words(outcome: Outcome) -> str:
    plan, partition = outcome.plan, outcome.plan.partition
    panels = partition.most_panels if partition else 0
    words = (
        f"{outcome.product} on {outcome.device.name}: {_count(plan.num_tiles or 0, 'tile')} on "
        f"{plan.processors} processors take {_count(plan.waves_before or 0, 'wave')} of "
        f"{plan.panels} panels. Stream-K gives each of {plan.num_workers} workers at most {panels} "
        f"panels, cuts {_count(plan.cuts or 0, 'tile')} and merges what was cut "
        f"({plan.decision.merge}); the waves allow {outcome.bound:.2f} times the speed. Measured: "
    )
    if not outcome.is_quiet:
        return f"{words}other processes used the CPUs, so that the times say little."
    words += f"{_speed(outcome.times.ratio)}."
    if outcome.times.ratio > outcome.bound * ABOVE_BOUND:
        words += (
            " More than the waves allow is not Stream-K's merit: the machine was busy, or this "
            "device runs few long work-groups better than many short ones."
        )
    return words


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _speed(ratio: float) -> str:
    return f"{ratio:.2f} times as fast" if ratio >= 1 else f"{1 / ratio:.2f} times slower"


def _closing_words(console: Console, outcomes: list[Outcome], missing: str) -> None:
    console.print(
        "\nThe LLM's product is 16x4096x4096; 768 of its 4096 columns fit the time of a demo. The "
        "tiles are large and the workers two, so that this machine is as short of tiles as a GPU "
        "of 132 processors is at these shapes."
    )
    if missing:
        console.print(f"The OpenCL part was skipped: {missing}.", style="yellow")
    if not all(outcome.is_quiet for outcome in outcomes):
        console.print(
            "Other processes used the CPUs meanwhile: ratios with ~ say little.", style="yellow"
        )
    wrong = [str(outcome.product) for outcome in outcomes if outcome.difference > outcome.limit]
    if wrong:
        console.print(f"WRONG RESULTS, beyond rounding: {', '.join(wrong)}.", style="bold red")
    else:
        console.print("Every result, of both schedules, is numpy's within float32 rounding.")
