# SPDX-License-Identifier: Apache-2.0
"""Plays a partition on a device's processors, event by event, with the cost model's constants.

The closed form of :mod:`tvm_streamk.cost_model` adds up worst cases; this module lets every worker
run on its own clock and lets whoever finishes a tile last merge it. It checks the decisions on
devices that are not at hand, and its timeline is what :mod:`tvm_streamk.plot` draws.

A worker occupies one processor from its first segment to its last. A segment costs a start and its
panels; a partial one then publishes its partial sum (a split). The merges:

``last_arriver``
    The peer that publishes last adds up the others' partial sums, then goes on.
``atomic``
    Publishing is the merge; a kernel that zeroes the output (a start) comes first.
``two_phase``
    When all workers are done, the tiles that were cut are merged, one processor each.

Memory is not simulated: where it is the limit, the closed form's floor says so.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from tvm_streamk.cost_model import ATOMIC, LAST_ARRIVER, MERGES, TWO_PHASE
from tvm_streamk.devices import Device
from tvm_streamk.partition import DATA_PARALLEL, Partition, Segment

PANELS = "panels"
PUBLISH = "publish"
MERGE = "merge"
ACTIVITIES = (PANELS, PUBLISH, MERGE)
"""The words for what a processor does: start and panels of a segment, publish, merge."""


@dataclass(frozen=True)
class Activity:
    """What a processor did from ``begin_us`` to ``end_us``, for which worker and tile."""

    processor: int
    worker: int
    tile: int
    kind: str
    begin_us: float
    end_us: float


@dataclass(frozen=True)
class Simulation:
    """The outcome of one run.

    Parameters
    ----------
    partition : Partition
        What was played.
    num_processors : int
        Blocks or tasks that ran at once.
    makespan_us : float
        When the last processor was done.
    activities : tuple of Activity
        In the order in which they were begun; empty if it was not asked for.
    """

    partition: Partition
    num_processors: int
    makespan_us: float
    activities: tuple[Activity, ...] = ()


@dataclass
class _Run:
    """The state of one simulation: arrivals per tile and what has happened so far."""

    partition: Partition
    device: Device
    speed: float
    merge: str
    record: bool
    arrived: dict[int, int] = field(default_factory=dict)
    activities: list[Activity] = field(default_factory=list)
    makespan_us: float = 0.0

    def note(
        self, processor: int, worker: int, tile: int, kind: str, begin: float, end: float
    ) -> float:
        """Record an activity and return its end."""
        self.makespan_us = max(self.makespan_us, end)
        if self.record and end > begin:
            self.activities.append(Activity(processor, worker, tile, kind, begin, end))
        return end

    def compute(self, processor: int, worker: int, segment: Segment, time: float) -> float:
        """Play start, panels and, for a partial segment, publishing; return the time after."""
        panels_us = self.device.panel_us * (segment.k_end - segment.k_begin)
        computed = time + (self.device.start_us + panels_us) / self.speed
        time = self.note(processor, worker, segment.tile, PANELS, time, computed)
        if segment.is_full(self.partition.panels):
            return time
        published = time + self.device.split_us
        return self.note(processor, worker, segment.tile, PUBLISH, time, published)

    def arrive(self, processor: int, worker: int, tile: int, time: float) -> float:
        """Count an arrival at a cut tile; the last one merges. Return the time after."""
        self.arrived[tile] = self.arrived.get(tile, 0) + 1
        if self.merge != LAST_ARRIVER:
            return time
        peers = self.partition.num_peers(tile)
        if self.arrived[tile] < peers:
            return time
        merged = time + self.device.peer_us * (peers - 1)
        return self.note(processor, worker, tile, MERGE, time, merged)


def simulate(
    partition: Partition,
    device: Device,
    merge: str = LAST_ARRIVER,
    *,
    record: bool = True,
) -> Simulation:
    """Play a partition.

    Parameters
    ----------
    partition : Partition
        Of a constant number of tiles.
    device : Device
        Its constants must be those of the partition's tile. Workers beyond ``device.num_slots``
        wait for a free processor. Data-parallel tiles run one to a processor at the processor's
        whole speed, as in the closed form.
    merge : str
        One of :data:`tvm_streamk.cost_model.MERGES`; of no effect where no tile is cut.
    record : bool
        Whether to keep the activities; off for long sweeps.

    Returns
    -------
    Simulation
    """
    if merge not in MERGES:
        raise ValueError(f"merge {merge!r} is none of {', '.join(MERGES)}")
    alone = partition.decomposition == DATA_PARALLEL
    processors = device.num_sms if alone else device.num_slots
    speed = float(device.blocks_per_sm) if alone else 1.0
    run = _Run(partition, device, speed, merge, record)
    prologue = merge == ATOMIC and partition.cuts > 0
    _run_workers(run, processors, device.start_us if prologue else 0.0)
    if merge == TWO_PHASE:
        _run_second_phase(run, processors)
    return Simulation(partition, processors, run.makespan_us, tuple(run.activities))


def _run_workers(run: _Run, processors: int, begin_us: float) -> None:
    """Let the workers run, always going on with whichever has the earliest next event."""
    partition = run.partition
    waiting = iter(range(partition.num_workers if partition.num_tiles else 0))
    # An event: time, processor, worker, number of the next segment, tile to arrive at or None.
    events: list[tuple[float, int, int, int, int | None]] = []
    for processor, worker in zip(range(processors), waiting, strict=False):
        events.append((begin_us, processor, worker, 0, None))
    heapq.heapify(events)
    while events:
        time, processor, worker, index, arriving = heapq.heappop(events)
        if arriving is not None:
            time = run.arrive(processor, worker, arriving, time)
        if index == partition.num_segments(worker):
            following = next(waiting, None)
            if following is not None:
                heapq.heappush(events, (time, processor, following, 0, None))
            continue
        segment = partition.segment(worker, index)
        after = run.compute(processor, worker, segment, time)
        cut = None if segment.is_full(partition.panels) else segment.tile
        heapq.heappush(events, (after, processor, worker, index + 1, cut))


def _run_second_phase(run: _Run, processors: int) -> None:
    """Merge the tiles that were cut, after everything else, each on the next free processor."""
    free = [(run.makespan_us, processor) for processor in range(processors)]
    for tile in sorted(run.arrived):
        time, processor = heapq.heappop(free)
        adding = run.device.peer_us * (run.partition.num_peers(tile) - 1)
        end = time + run.device.start_us + adding
        worker = run.partition.first_peer(tile)
        run.note(processor, worker, tile, MERGE, time, end)
        heapq.heappush(free, (end, processor))
