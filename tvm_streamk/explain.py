# SPDX-License-Identifier: Apache-2.0
"""What would be decided for a matrix product, and why: every decomposition's predicted time."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from tvm_streamk.candidates import MIN_PANELS, Candidate, Problem, candidates
from tvm_streamk.cost_model import predict, traffic_bytes
from tvm_streamk.devices import DEFAULT_DEVICE, REFERENCE_ACCUMULATOR_BYTES, Device, lookup
from tvm_streamk.partition import DATA_PARALLEL, PERSISTENT, SPLIT_K, STREAM_K, TWO_TILE, Partition
from tvm_streamk.policy import Decision, decide, pose

HALF_BYTES = 2
DEFAULT_TILE = (128, 128, 32)
TEXT_COLUMNS = 100
KIB = 1024


@dataclass(frozen=True)
class Row:
    """One decomposition on its best grid.

    ``predicted_us`` is None where the decomposition is not possible, and ``note`` then says why.
    """

    decomposition: str
    num_workers: int | None
    merge: str | None
    most_panels: int | None
    most_peers: int | None
    workspace_bytes: int | None
    predicted_us: float | None
    note: str = ""


@dataclass(frozen=True)
class Explanation:
    """A decision with everything it was weighed against; prints as a table.

    Parameters
    ----------
    shape : tuple of four int
        Batch, M, N, K.
    tile : tuple of three int
        Rows, columns and panel depth.
    problem : Problem
        Tiles, panels and the device with its constants scaled to the tile.
    decision : Decision
        What was chosen, with its reason.
    rows : tuple of Row
        One for each decomposition.
    """

    shape: tuple[int, int, int, int]
    tile: tuple[int, int, int]
    problem: Problem
    decision: Decision
    rows: tuple[Row, ...]

    @property
    def partition(self) -> Partition:
        """The chosen partition."""
        return self.decision.partition(self.problem.num_tiles, self.problem.panels)

    def plot(self, path: str | Path) -> Path:
        """Draw the data-parallel and the chosen schedule; see :func:`tvm_streamk.plot.plot`."""
        from tvm_streamk.plot import plot

        return plot(self.partition, path, self.problem.device, self.decision.merge)

    def __rich__(self) -> RenderableType:
        return Group(Text(_headline(self)), _table(self), Text(_verdict(self)))

    def __str__(self) -> str:
        output = io.StringIO()
        Console(file=output, width=TEXT_COLUMNS, no_color=True).print(self)
        return output.getvalue()


def explain(
    m: int,
    n: int,
    k: int,
    tile: tuple[int, int, int] = DEFAULT_TILE,
    device: Device | str | None = None,
    num_sms: int | None = None,
    batch: int = 1,
    *,
    blocks_per_sm: int | None = None,
    input_bytes: int = HALF_BYTES,
    output_bytes: int = HALF_BYTES,
    accumulator_bytes: int = REFERENCE_ACCUMULATOR_BYTES,
    min_panels: int = MIN_PANELS,
    workspace_limit_bytes: int | None = None,
    merges_allowed: Sequence[str] | None = None,
    batch_invariant: bool = False,
) -> Explanation:
    """Explain what would be done with a product of an M x K and a K x N matrix.

    Parameters
    ----------
    m, n, k : int
        Extents; the tile need not divide them.
    tile : tuple of three int
        Rows, columns and panel depth of the kernel.
    device : Device or str, optional
        A record, a name or a TVM target tag. Default: the constants of
        :data:`tvm_streamk.devices.DEFAULT_DEVICE` on ``num_sms`` processors.
    num_sms : int, optional
        Processors, instead of the device's own number; needed where no device is given.
    batch : int
        Independent products.
    blocks_per_sm : int, optional
        Blocks that a processor holds.
    input_bytes, output_bytes, accumulator_bytes : int
        Bytes of one element.
    min_panels, workspace_limit_bytes, merges_allowed, batch_invariant
        As in :func:`tvm_streamk.policy.choose`.

    Returns
    -------
    Explanation
    """
    _check_positive({"M": m, "N": n, "K": k, "batch": batch})
    _check_positive(dict(zip(("tile rows", "tile columns", "tile depth"), tile, strict=True)))
    described = _describe(device, num_sms)
    problem = pose(
        batch * _ceil_div(m, tile[0]) * _ceil_div(n, tile[1]),
        _ceil_div(k, tile[2]),
        num_sms,
        blocks_per_sm=blocks_per_sm,
        device=described.for_tile(tile, accumulator_bytes),
        min_panels=min_panels,
        workspace_limit_bytes=workspace_limit_bytes,
        tile_bytes=tile[0] * tile[1] * accumulator_bytes,
        merges_allowed=merges_allowed,
        traffic_bytes=traffic_bytes(m, n, k, batch, input_bytes, output_bytes),
    )
    decision = decide(problem, batch_invariant)
    return Explanation((batch, m, n, k), tile, problem, decision, tuple(_rows(problem, decision)))


def _describe(device: Device | str | None, num_sms: int | None) -> Device:
    if isinstance(device, str):
        return lookup(device)
    if device is not None:
        return device
    if num_sms is None:
        raise ValueError("the processor count is not known; give num_sms or device")
    return replace(DEFAULT_DEVICE, name=f"a device with the constants of {DEFAULT_DEVICE.name}")


def _ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


def _check_positive(values: dict[str, int]) -> None:
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")


def _rows(problem: Problem, decision: Decision) -> list[Row]:
    found = candidates(problem)
    rows = []
    for decomposition in (DATA_PARALLEL, PERSISTENT, SPLIT_K, STREAM_K, TWO_TILE):
        own = [c for c in found if c.decomposition == decomposition]
        if decomposition == decision.decomposition:
            own = [c for c in own if c.num_workers == decision.num_workers] or own
        if decomposition == PERSISTENT:
            rows.append(_persistent_row(problem))
        elif own:
            rows.append(_row(problem, min(own, key=lambda c: c.predicted_us)))
        else:
            note = _why_impossible(problem, decomposition)
            rows.append(Row(decomposition, None, None, None, None, None, None, note))
    return rows


def _row(problem: Problem, candidate: Candidate) -> Row:
    if candidate.decomposition == DATA_PARALLEL:
        most_panels = problem.waves * problem.panels
    elif candidate.decomposition == SPLIT_K:
        rounds = _ceil_div(candidate.num_workers, problem.device.num_slots)
        most_panels = rounds * problem.panels // candidate.splits
    else:
        partition = Partition(
            problem.num_tiles, problem.panels, candidate.num_workers, candidate.decomposition
        )
        most_panels = partition.most_panels
    return Row(
        candidate.decomposition,
        candidate.num_workers,
        candidate.merge,
        most_panels,
        candidate.most_peers,
        candidate.workspace_bytes,
        candidate.predicted_us,
    )


def _persistent_row(problem: Problem) -> Row:
    workers = max(1, min(problem.num_tiles, problem.device.num_slots))
    partition = Partition(problem.num_tiles, problem.panels, workers, PERSISTENT)
    time = predict(partition, problem.device, floor_us=problem.floor_us)
    note = "whole tiles on a fixed grid: a yardstick, never chosen"
    return Row(PERSISTENT, workers, None, partition.most_panels, 1, 0, time, note)


def _why_impossible(problem: Problem, decomposition: str) -> str:
    if decomposition == TWO_TILE and problem.num_tiles < problem.device.num_slots:
        return "the same as stream_k below one wave"
    if not problem.merges:
        return "no merge is allowed"
    if decomposition == SPLIT_K:
        most = min(problem.peer_cap, problem.panels // problem.min_panels)
        what = f"no divisor of {problem.panels} panels from 2 to {most}"
    else:
        what = f"no grid gives {problem.min_panels} panels a worker and {problem.peer_cap} peers"
    if problem.workspace_limit_bytes is not None:
        what += f", or more than {problem.workspace_limit_bytes} bytes of workspace"
    return what


# -- as text ---------------------------------------------------------------------------------------


def _headline(explanation: Explanation) -> str:
    batch, m, n, k = explanation.shape
    rows, columns, depth = explanation.tile
    problem = explanation.problem
    device = problem.device
    product = f"{m} x {n} x {k}" if batch == 1 else f"{batch} times {m} x {n} x {k}"
    waves = "1 wave" if problem.waves == 1 else f"{problem.waves} waves"
    return (
        f"{product} in tiles of {rows} x {columns}, panels of {depth}, on {device.name}: "
        f"{device.num_sms} processors, {device.blocks_per_sm} block(s) each\n"
        f"{problem.num_tiles} tiles of {problem.panels} panels, {waves} "
        f"({100 / problem.bound:.0f} % of the processors' time used, quantisation bound "
        f"{problem.bound:.2f})"
    )


def _table(explanation: Explanation) -> Table:
    table = Table(
        box=None, padding=(0, 1), collapse_padding=True, pad_edge=False, header_style="underline"
    )
    table.add_column("decomposition", no_wrap=True)
    for heading in ("workers", "panels", "peers", "workspace", "time us", "gain"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("merge", no_wrap=True)
    for row in explanation.rows:
        chosen = row.decomposition == explanation.decision.decomposition
        style = "bold" if chosen else None
        table.add_row(*_cells(row, explanation.decision), style=style)
    return table


def _cells(row: Row, decision: Decision) -> list[str]:
    if row.predicted_us is None:
        return [row.decomposition, *["-"] * 7]
    chosen = row.decomposition == decision.decomposition
    gain = decision.data_parallel_us / row.predicted_us if row.predicted_us else 1.0
    return [
        f"> {row.decomposition}" if chosen else row.decomposition,
        str(row.num_workers),
        str(row.most_panels),
        str(row.most_peers),
        _bytes(row.workspace_bytes or 0),
        f"{row.predicted_us:.1f}",
        f"{gain:.2f}",
        row.merge or "-",
    ]


def _bytes(count: int) -> str:
    if count < KIB * KIB:
        return f"{count / KIB:.0f} KiB"
    return f"{count / KIB**2:.1f} MiB" if count < KIB**3 else f"{count / KIB**3:.1f} GiB"


def _verdict(explanation: Explanation) -> str:
    decision = explanation.decision
    notes = [f"{row.decomposition}: {row.note}." for row in explanation.rows if row.note]
    return "\n".join([*notes, f"Chosen: {decision.decomposition}. {decision.reason}."])
