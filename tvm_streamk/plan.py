# SPDX-License-Identifier: Apache-2.0
"""What was decided, in numbers: the object that ``sch.stream_k`` returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tvm_streamk.annotation import RecordedDecision
from tvm_streamk.devices import Device
from tvm_streamk.errors import ShapesSymbolic
from tvm_streamk.partition import SPLIT_K, Partition

BYTES_PER_KIB = 1024


@dataclass(frozen=True)
class Plan:
    """The decision for one block and what follows from it.

    Attributes
    ----------
    block
        The reduction block.
    grid
        ``gpu`` or ``cpu``.
    decision
        Decomposition, merge, workers and splits.
    num_tiles
        Tiles; None where shapes are symbolic. Then the counts below are None too.
    panels
        Panels per tile.
    slot_bytes
        Bytes of one partial sum.
    processors
        Workers that run at the same time; a wave is as many tiles.
    notes
        What was chosen for the caller, and why.
    predicted_gain
        Predicted time of the data-parallel nest over that of the decision, where the policy made
        it; else None.
    device
        Whose constants the policy used, or would have used, scaled to the nest's tile.
    """

    block: str
    grid: str
    decision: RecordedDecision
    num_tiles: int | None
    panels: int
    slot_bytes: int
    processors: int
    uses_workspace: bool
    notes: tuple[str, ...] = field(default=())
    predicted_gain: float | None = None
    device: Device | None = field(default=None, repr=False)

    @property
    def partition(self) -> Partition | None:
        """Who does what; None where the number of tiles is symbolic."""
        if self.num_tiles is None:
            return None
        decision = self.decision
        return Partition(self.num_tiles, self.panels, decision.num_workers, decision.decomposition)

    @property
    def num_workers(self) -> int:
        """Workers of the grid; for ``split_k`` with a symbolic number of tiles, those per tile."""
        return self.decision.num_workers

    @property
    def waves_before(self) -> int | None:
        """Rounds of whole tiles that the data-parallel nest takes."""
        return None if self.num_tiles is None else -(-self.num_tiles // self.processors)

    @property
    def waves_after(self) -> float | None:
        """The same for this decision: panels of the busiest processor, in tiles."""
        partition = self.partition
        if partition is None:
            return None
        rounds = -(-self.num_workers // self.processors)
        return rounds * partition.most_panels / self.panels

    @property
    def cuts(self) -> int | None:
        """Boundaries between workers that fall inside a tile."""
        return None if self.partition is None else self.partition.cuts

    @property
    def most_peers(self) -> int | None:
        """The largest number of workers that share a tile."""
        return None if self.partition is None else self.partition.most_peers

    @property
    def workspace_bytes(self) -> int | None:
        """Bytes of global memory for partial sums: slots times the bytes of a tile's sums.

        None for ``split_k`` where the number of tiles, and with it that of workers, is symbolic.
        """
        if not self.uses_workspace:
            return 0
        partition = self.partition
        if partition is not None:
            return int(partition.num_slots) * self.slot_bytes
        if self.decision.decomposition == SPLIT_K:
            return None
        per_worker = Partition(
            self.num_workers, self.panels, self.num_workers, self.decision.decomposition
        ).slots_per_worker
        return per_worker * self.num_workers * self.slot_bytes

    def plot(self, path: str | Path) -> Path:
        """Draw the data-parallel nest and this decision, workers against time.

        The times are the cost model's, for :attr:`device`.

        Parameters
        ----------
        path : str or Path
            Where to: a ``.png`` or ``.svg`` file. Needs Matplotlib.

        Returns
        -------
        Path
            The file that was written.

        Raises
        ------
        ShapesSymbolic
            If the number of tiles is not known.
        UnknownPictureFormat, MatplotlibMissing
            As :func:`tvm_streamk.plot.plot`.
        """
        from tvm_streamk.plot import plot

        partition = self.partition
        if partition is None:
            raise ShapesSymbolic(
                "the number of tiles is symbolic, so there is no one schedule to draw.",
                block=self.block,
                hint="tvm_streamk.plot.plot(Partition(num_tiles, ...), path) for a number of "
                "tiles of your choice.",
            )
        return plot(partition, path, self.device, self.decision.merge)

    def rows(self) -> list[tuple[str, Any]]:
        """Names and values, as they are printed."""
        unknown = "symbolic"
        waves = "symbolic"
        if self.waves_before is not None and self.waves_after is not None:
            waves = f"{self.waves_before} -> {self.waves_after:.2f}"
        words = self.decision.decomposition
        if self.decision.splits:
            words = f"{words}({self.decision.splits})"
        rows: list[tuple[str, Any]] = [
            ("block", f"{self.block} on a {self.grid} grid"),
            ("decomposition", words),
            ("merge", self.decision.merge if self.cuts != 0 else "none needed"),
            ("tiles", unknown if self.num_tiles is None else self.num_tiles),
            ("panels per tile", self.panels),
            ("workers", f"{self._workers_shown} on {self.processors} processors"),
            ("waves before -> after", waves),
            ("cuts", unknown if self.cuts is None else self.cuts),
            ("most peers", unknown if self.most_peers is None else self.most_peers),
            ("workspace", self._workspace_shown),
        ]
        if self.predicted_gain is not None:
            rows.append(("predicted gain", f"{self.predicted_gain:.2f}"))
        return rows

    @property
    def _is_symbolic_split(self) -> bool:
        return self.num_tiles is None and self.decision.decomposition == SPLIT_K

    @property
    def _workers_shown(self) -> str:
        return f"{self.num_workers}{' per tile' if self._is_symbolic_split else ''}"

    @property
    def _workspace_shown(self) -> str:
        total = self.workspace_bytes
        if total is None:
            per_tile = self.num_workers * self.slot_bytes
            return f"{per_tile / BYTES_PER_KIB:.1f} KiB per tile"
        return f"{total / BYTES_PER_KIB:.1f} KiB"

    def __str__(self) -> str:
        width = max(len(name) for name, _ in self.rows())
        lines = [f"  {name:<{width}}  {value}" for name, value in self.rows()]
        return "\n".join(["Stream-K plan", *lines, *(f"  note: {note}" for note in self.notes)])
