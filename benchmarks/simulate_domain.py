# SPDX-License-Identifier: Apache-2.0
"""Predicted gain over data-parallel on paper: the "Stream-K" paper's domain, four devices.

Writes ``simulated_gain.md`` beside this file. No device is needed and no clock is read: every
figure is the cost model's, with constants from data sheets (see ``tvm_streamk/devices.py``).

The domain is the paper's: 32,824 products with m, n and k drawn log-uniformly from 128 to 8192,
here with a seed of our own. The decision is taken on every shape. What is slow runs on seeded
samples whose sizes the table states: playing both schedules event by event, and trying every grid.

Run with ``python -m benchmarks.simulate_domain`` where the package is; it takes a few minutes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import typer
from rich.console import Console
from rich.progress import track

from tvm_streamk.candidates import best_of_all_us
from tvm_streamk.cost_model import LAST_ARRIVER
from tvm_streamk.devices import Device, lookup
from tvm_streamk.partition import DATA_PARALLEL, Partition
from tvm_streamk.policy import Decision, choose
from tvm_streamk.simulate import simulate

DOMAIN_SIZE = 32_824
LEAST_EXTENT = 128
MOST_EXTENT = 8192
SEED = 20230225
OUTPUT = Path(__file__).parent / "simulated_gain.md"

HALF_TILE = (128, 128, 32)
DOUBLE_TILE = (64, 64, 16)
DOUBLE_BYTES = 8
LEAST_PANELS_FOR_THE_BOUND = 32
PAPER_HALF = "A100, float16"

A100_DOUBLE_SPEED = 19.5 / 312
"""Data sheet: float64 matrix throughput over 16-bit matrix throughput."""


class Setting(NamedTuple):
    """A device with a kernel: one row of the table."""

    label: str
    device: Device
    tile: tuple[int, int, int]
    paper: str


@dataclass
class Outcome:
    """What one setting gave: gains over data-parallel, one number per shape or sampled shape."""

    gains: list[float]
    shares_of_bound: list[float]
    played: list[float]
    gaps: list[float]
    streamed: int


def settings() -> list[Setting]:
    """Return the rows: 16-bit inputs on four devices, and float64 on the paper's device."""
    double = lookup("A100").for_tile(DOUBLE_TILE, DOUBLE_BYTES, A100_DOUBLE_SPEED)
    half_paper = "1.63 (0.80 to 14.7)"
    rows = [
        Setting("A100, float64", double, DOUBLE_TILE, "1.23 (0.77 to 5.63)"),
        Setting(PAPER_HALF, lookup("A100"), HALF_TILE, half_paper),
    ]
    rows += [
        Setting(f"{name}, float16", lookup(name), HALF_TILE, "-")
        for name in ("H200", "B200", "MI300X")
    ]
    return rows


def domain(size: int = DOMAIN_SIZE) -> list[tuple[int, int, int]]:
    """Draw the shapes (m, n, k)."""
    chance = random.Random(SEED)
    low, high = math.log(LEAST_EXTENT), math.log(MOST_EXTENT)

    def extent() -> int:
        return round(math.exp(chance.uniform(low, high)))

    return [(extent(), extent(), extent()) for _ in range(size)]


def counts(shape: tuple[int, int, int], tile: tuple[int, int, int]) -> tuple[int, int]:
    """Return tiles and panels of a shape."""
    m, n, k = (-(-extent // step) for extent, step in zip(shape, tile, strict=True))
    return m * n, k


def play(decision: Decision, tiles: int, panels: int, device: Device) -> float:
    """Play data-parallel and the decision; return how much longer the first takes."""
    base = simulate(Partition(tiles, panels, tiles, DATA_PARALLEL), device, record=False)
    merge = decision.merge or LAST_ARRIVER
    chosen = simulate(decision.partition(tiles, panels), device, merge, record=False)
    return base.makespan_us / chosen.makespan_us


def run(
    setting: Setting,
    shapes: Sequence[tuple[int, int, int]],
    num_played: int,
    num_tried: int,
    console: Console,
) -> Outcome:
    """Decide every shape, play and exhaust the samples."""
    chance = random.Random(SEED)
    played = set(chance.sample(range(len(shapes)), min(num_played, len(shapes))))
    tried = set(chance.sample(range(len(shapes)), min(num_tried, len(shapes))))
    outcome = Outcome([], [], [], [], 0)
    device = setting.device
    numbered = track(enumerate(shapes), setting.label, len(shapes), console=console)
    for number, shape in numbered:
        tiles, panels = counts(shape, setting.tile)
        decision = choose(tiles, panels, device=device)
        outcome.gains.append(decision.predicted_gain)
        outcome.streamed += decision.decomposition != DATA_PARALLEL
        if tiles > device.num_sms and tiles % device.num_sms:
            if panels >= LEAST_PANELS_FOR_THE_BOUND:
                outcome.shares_of_bound.append(decision.predicted_gain / decision.bound)
        if number in played:
            outcome.played.append(play(decision, tiles, panels, device))
        if number in tried:
            best = best_of_all_us(tiles, panels, device)
            outcome.gaps.append(decision.predicted_us / best - 1)
    return outcome


def spread(gains: Sequence[float]) -> str:
    """Return mean, deviation and range as text."""
    values = np.array(gains)
    return f"{values.mean():.2f} ± {values.std():.2f} ({values.min():.2f} to {values.max():.2f})"


def table(rows: Sequence[tuple[Setting, Outcome]]) -> list[str]:
    """Return the lines of the markdown table."""
    lines = [
        "| device, inputs | cut | gain | gain, played | share of bound | worse than best grid | "
        "the paper, measured |",
        "|---|---|---|---|---|---|---|",
    ]
    for setting, outcome in rows:
        gaps = np.array(outcome.gaps)
        cells = [
            f"{setting.label} ({setting.device.num_sms})",
            f"{100 * outcome.streamed / len(outcome.gains):.0f} %",
            spread(outcome.gains),
            spread(outcome.played),
            f"{100 * np.mean(outcome.shares_of_bound):.0f} %",
            f"{100 * gaps.mean():.2f} %, {100 * np.mean(gaps <= 0.02):.0f} % of shapes within 2 %",
            setting.paper,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def report(rows: Sequence[tuple[Setting, Outcome]]) -> str:
    """Return the whole page."""
    first = rows[0][1]
    most = max(gain for row, outcome in rows if row.label == PAPER_HALF for gain in outcome.gains)
    text = f"""# Predicted gain over data-parallel

Made by `python -m benchmarks.simulate_domain`. Every figure comes from the cost model, with
constants estimated from data sheets; nothing here was measured. Shapes: {len(first.gains):,} with
m, n and k drawn log-uniformly from {LEAST_EXTENT} to {MOST_EXTENT} (seed {SEED}), the domain of the
"Stream-K" paper (Osama et al., PPoPP 2023). Tiles: 128 x 128 x 32 for float16, 64 x 64 x 16 for
float64, as in the paper. Processors in brackets. Mean ± deviation (least to most).

"""
    notes = f"""
- **cut**: shapes on which the decision is not data-parallel.
- **gain**: data-parallel's predicted time over the decision's, on all shapes. Memory traffic is
  left out, here and in what follows.
- **gain, played**: both schedules played event by event, on a seeded sample of
  {len(first.played):,} shapes.
- **share of bound**: gain over what an even distribution would gain, mean over the shapes with more
  than one wave, the last one not full, and at least {LEAST_PANELS_FOR_THE_BOUND} panels.
- **worse than best grid**: predicted time over the least of every decomposition on every grid, on a
  seeded sample of {len(first.gaps):,} shapes.
- **the paper, measured**: Stream-K against data-parallel with the same tile on a real A100. Its
  kernels lose on some shapes; the decision here may leave a kernel alone, so its least gain is 1.
  Its largest gains lie beyond what this model allows: a merge costs about eight panels for each
  peer, as the paper's own grid sizes imply, and with that no product here gains more than
  {most:.2f} in float16 on an A100.
"""
    return text + "\n".join(table(rows)) + "\n" + notes


def main(
    shapes: Annotated[int, typer.Option(help="Shapes of the domain.")] = DOMAIN_SIZE,
    played: Annotated[int, typer.Option(help="Shapes to play event by event.")] = 600,
    tried: Annotated[int, typer.Option(help="Shapes on which every grid is tried.")] = 300,
    output: Annotated[Path, typer.Option(help="Markdown file to write.")] = OUTPUT,
) -> None:
    """Write the table of predicted gains."""
    console = Console(stderr=True)
    drawn = domain(shapes)
    rows = [(setting, run(setting, drawn, played, tried, console)) for setting in settings()]
    output.write_text(report(rows))
    console.print(f"Written: {output}")


if __name__ == "__main__":
    typer.run(main)
