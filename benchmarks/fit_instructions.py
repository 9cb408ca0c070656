# SPDX-License-Identifier: Apache-2.0
"""What a panel, a start, a split and a peer cost on a CPU, in executed instructions.

Writes ``instructions.md`` and ``instructions.json`` beside this file. Kernels with tiles of three
sizes run under callgrind: whole tiles on a persistent grid, tiles in equal pieces, and slices that
end inside tiles. The cost model's terms are fitted to the counts, each as a constant and a part
that grows with the elements of the tile. Nothing is timed, so a busy machine does not matter.

Run with ``python benchmarks/fit_instructions.py`` where the package is; it takes a few minutes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from count_instructions import REGISTER_TILE, TARGET, Kernel, instructions_of
from rich.console import Console

import tvm_streamk
from tvm_streamk.calibration import least_squares
from tvm_streamk.devices import REFERENCE_TILE
from tvm_streamk.partition import PERSISTENT, SPLIT_K, STREAM_K, Partition
from tvm_streamk.schedules import REDUCTION_BLOCK, cpu_gemm

OUTPUT = Path(__file__).parent / "instructions"
TILES = ((14, 64), (28, 64), (28, 128))
SHALLOW, DEEP = 8, 24
"""Depths of a panel: in shallow ones, what is not a panel weighs more."""

FEW_PANELS, MANY_PANELS = 12, 24
ONCE_A_CALL = ("call", "once")
GROWING = ("start", "split", "peer")
PANEL = "panel"


@dataclass(frozen=True)
class Case:
    """One kernel: how many tiles and panels, and who does them."""

    tile: tuple[int, int]
    num_tiles: int
    panels: int
    decomposition: str
    num_workers: int
    depth: int = SHALLOW

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, columns and length of the reduction: one tile wide."""
        return self.tile[0] * self.num_tiles, self.tile[1], self.panels * self.depth

    @property
    def elements(self) -> int:
        """Elements of a tile."""
        return self.tile[0] * self.tile[1]

    def counts(self) -> dict[str, int]:
        """How often all workers together pay each term of the cost model.

        As in the model, the merge of a cut tile pays a start and, for each peer but one, a peer.
        """
        partition = Partition(self.num_tiles, self.panels, self.num_workers, self.decomposition)
        segments = [
            segment for worker in range(self.num_workers) for segment in partition.segments(worker)
        ]
        peers = Counter(segment.tile for segment in segments)
        cut = [tile for tile, sharing in peers.items() if sharing > 1]
        return {
            "call": 1,
            "once": int(bool(cut)),
            "start": len(segments) + len(cut),
            "split": sum(not segment.is_full(self.panels) for segment in segments),
            PANEL: self.num_tiles * self.panels,
            "peer": sum(peers[tile] - 1 for tile in cut),
        }

    def kernel(self) -> Kernel:
        """The kernel, ready to be built."""
        schedule = cpu_gemm(*self.shape, self.tile, self.depth, REGISTER_TILE)
        how = {"num_workers": self.num_workers}
        if self.decomposition == SPLIT_K:
            how = {"splits": self.num_workers // self.num_tiles}
        tvm_streamk.stream_k(schedule, REDUCTION_BLOCK, decomposition=self.decomposition, **how)
        return Kernel(schedule, self.shape)

    def __str__(self) -> str:
        return (
            f"{self.tile[0]} x {self.tile[1]} | {self.num_tiles} | {self.panels} of {self.depth} | "
            f"{self.decomposition} | {self.num_workers}"
        )


def cases() -> list[Case]:
    """All kernels."""
    return [case for tile in TILES for case in _cases_of(tile)]


def _cases_of(tile: tuple[int, int]) -> Iterator[Case]:
    for depth in (SHALLOW, DEEP):
        for panels in (FEW_PANELS, MANY_PANELS):
            yield Case(tile, 2, panels, PERSISTENT, 2, depth)
    for splits in (2, 4, 6):
        yield Case(tile, 2, MANY_PANELS, SPLIT_K, 2 * splits)
    yield Case(tile, 3, MANY_PANELS, STREAM_K, 2)
    yield Case(tile, 3, MANY_PANELS, STREAM_K, 4)
    yield Case(tile, 5, MANY_PANELS, STREAM_K, 2)


@dataclass(frozen=True)
class Term:
    """Instructions of one term: a constant, and a part for each element of the tile.

    Of a panel, the part is for each multiply-add.
    """

    fixed: float
    per_element: float

    def at(self, elements: int, depth: int = 1) -> float:
        """Instructions for a tile of so many elements (and so deep a panel)."""
        return self.fixed + self.per_element * elements * depth


@dataclass(frozen=True)
class Fit:
    """The terms, and the count that they give for each case."""

    terms: dict[str, Term]
    fitted: list[float]

    def over_panel(self, name: str) -> float:
        """A term for the reference tile, in reference panels."""
        rows, columns, depth = REFERENCE_TILE
        panel = self.terms[PANEL].at(rows * columns, depth)
        return self.terms[name].at(rows * columns, depth if name == PANEL else 1) / panel


def fit(chosen: Sequence[Case], counted: Sequence[int]) -> Fit:
    """Fit the terms, none of them below 0.

    A panel is what twelve more of them add, for each tile and depth by itself. What is left of a
    count without its panels goes to the other terms, by least squares of the relative errors.
    """
    counts = dict(zip(chosen, counted, strict=True))
    panels = {(case.tile, case.depth): _panel(counts, case) for case in chosen}
    of_panels = [case.counts()[PANEL] * panels[case.tile, case.depth] for case in chosen]
    rest = np.array(counted) - np.array(of_panels)
    table = np.array([_row(case) for case in chosen], dtype=float)
    solution = least_squares(table / rest[:, None])
    names = [*ONCE_A_CALL, *GROWING]
    fixed = dict(zip(names, solution[: len(names)].tolist(), strict=True))
    growing = dict(zip(GROWING, solution[len(names) :].tolist(), strict=True))
    terms = {name: Term(fixed[name], growing.get(name, 0.0)) for name in names}
    return Fit(terms | {PANEL: _panel_term(panels)}, (of_panels + table @ solution).tolist())


def _panel(counts: dict[Case, int], like: Case) -> float:
    """Instructions of one panel of a case's tile and depth."""
    few, many = (
        Case(like.tile, 2, panels, PERSISTENT, 2, like.depth)
        for panels in (FEW_PANELS, MANY_PANELS)
    )
    return (counts[many] - counts[few]) / (many.counts()[PANEL] - few.counts()[PANEL])


def _panel_term(panels: dict[tuple[tuple[int, int], int], float]) -> Term:
    sizes = np.array([[1.0, rows * columns * depth] for (rows, columns), depth in panels])
    solution = least_squares(sizes / np.array(list(panels.values()))[:, None])
    return Term(*solution.tolist())


def _row(case: Case) -> list[float]:
    counts = case.counts()
    growing: list[float] = [counts[name] * case.elements for name in GROWING]
    return [*(float(counts[name]) for name in (*ONCE_A_CALL, *GROWING)), *growing]


def report(chosen: Sequence[Case], counted: Sequence[int], found: Fit) -> str:
    """The page."""
    errors = [fitted / count - 1 for fitted, count in zip(found.fitted, counted, strict=True)]
    rows, columns, depth = REFERENCE_TILE
    lines = [
        "# Executed instructions of CPU kernels",
        "",
        "Made by `python benchmarks/fit_instructions.py`: callgrind's counts of the hand schedule",
        f"`cpu_gemm` for {TARGET['mcpu']}, register tile {REGISTER_TILE[0]} x {REGISTER_TILE[1]},",
        'all workers together on one thread, `merge="two_phase"`. The terms are the cost model\'s;',
        "each is a constant and a part that grows with the tile, none of them below 0.",
        "",
        f"| term | fixed | per element | {rows} x {columns}, panel of {depth} | in panels |",
        "|---|---|---|---|---|",
    ]
    for name, term in found.terms.items():
        at = term.at(rows * columns, depth if name == PANEL else 1)
        share = "" if name in ONCE_A_CALL else f"{found.over_panel(name):.4f}"
        lines.append(
            f"| {name} | {term.fixed:.0f} | {term.per_element:.4f} | {at:,.0f} | {share} |"
        )
    lines += [
        "",
        "`call` and `once` (the second nest, as soon as a tile is cut) are paid once a call. Of a",
        "panel, the part is for each multiply-add.",
        "",
        f"Largest error of the fit: {max(map(abs, errors)):.2%}.",
        "",
        "| tile | tiles | panels | decomposition | workers | counted | fitted | error |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case, count, fitted, error in zip(chosen, counted, found.fitted, errors, strict=True):
        lines.append(f"| {case} | {count:,} | {fitted:,.0f} | {error:+.2%} |")
    return "\n".join([*lines, ""])


def as_json(chosen: Sequence[Case], counted: Sequence[int], found: Fit) -> str:
    """Counts and terms for programs."""
    data = {
        "in_panels": {name: found.over_panel(name) for name in GROWING},
        "terms": {name: asdict(term) for name, term in found.terms.items()},
        "cases": [
            {**asdict(case), "counted": count} for case, count in zip(chosen, counted, strict=True)
        ],
    }
    return json.dumps(data, indent=1) + "\n"


def main() -> None:
    """Count, fit and write."""
    chosen = cases()
    console = Console()
    with console.status(f"{len(chosen)} kernels under callgrind"):
        counted = instructions_of([case.kernel() for case in chosen])
    found = fit(chosen, counted)
    text = report(chosen, counted, found)
    OUTPUT.with_suffix(".md").write_text(text, encoding="utf-8")
    OUTPUT.with_suffix(".json").write_text(as_json(chosen, counted, found), encoding="utf-8")
    console.print(text, markup=False)


if __name__ == "__main__":
    main()
