# SPDX-License-Identifier: Apache-2.0
"""The ways to share out a kernel that are worth a prediction, each with what it takes and needs.

:class:`Problem` is the question, :class:`Candidate` a possible answer. The rules that make a
candidate possible are those of :mod:`tvm_streamk.policy`, which asks and decides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tvm_streamk.cost_model import (
    ATOMIC,
    LAST_ARRIVER,
    Array,
    NumpyIntegers,
    data_parallel_us,
    predict_streamed,
    split_k_us,
)
from tvm_streamk.devices import Device
from tvm_streamk.partition import DATA_PARALLEL, SPLIT_K, STREAM_K, TWO_TILE, Partition

MIN_PANELS = 8
"""Fewest streamed panels of a worker: below it, filling the pipeline costs more than the panels."""

SPARE_PEERS = 2
"""How many more peers than the best number of them :func:`peer_cap` allows."""


@dataclass(frozen=True)
class Candidate:
    """One way to do the work: a decomposition with its grid, its predicted time and its needs."""

    decomposition: str
    num_workers: int
    splits: int
    merge: str | None
    predicted_us: float
    most_peers: int
    workspace_bytes: int


@dataclass(frozen=True)
class Problem:
    """What :func:`choose` was asked, checked and with its defaults filled in.

    The parameters of :func:`choose` say what each field means.
    """

    num_tiles: int
    panels: int
    device: Device
    min_panels: int
    peer_cap: int
    workspace_limit_bytes: int | None
    tile_bytes: int
    merges: tuple[str, ...]
    floor_us: float

    @property
    def waves(self) -> int:
        """Rounds of tiles on all processors."""
        return -(-self.num_tiles // self.device.num_sms)

    @property
    def bound(self) -> float:
        """Rounds of tiles over the tiles of one processor, were they divisible at will."""
        if self.num_tiles == 0:
            return 1.0
        return self.waves * self.device.num_sms / self.num_tiles

    def merge_for(self, num_slots: int) -> str | None:
        """Return the first allowed merge whose workspace fits, or None."""
        limit = self.workspace_limit_bytes
        fits = limit is None or num_slots * self.tile_bytes <= limit
        return next((merge for merge in self.merges if fits or merge == ATOMIC), None)

    def workspace(self, merge: str | None, num_slots: int) -> int:
        """Return the bytes for partial sums: ``atomic`` adds to the output itself."""
        return 0 if merge in (None, ATOMIC) else num_slots * self.tile_bytes


def peer_cap(panels: int, device: Device, min_panels: int = MIN_PANELS) -> int:
    """Return how many workers may share one tile.

    Splitting ``panels`` panels over s peers takes ``panel * panels / s + peer * s``, which is least
    at ``s = sqrt(panels * panel / peer)``. :data:`SPARE_PEERS` more are allowed, for slices that
    straddle tiles and for numbers of peers that happen to divide the panels.
    No more peers than give each of them ``min_panels`` panels, but at least two.
    """
    by_panels = max(2, panels // max(min_panels, 1))
    if device.peer_us == 0:
        return by_panels
    best = math.sqrt(panels * device.panel_us / device.peer_us)
    return max(2, min(by_panels, math.ceil(best) + SPARE_PEERS))


def divisors(number: int) -> list[int]:
    """Return the divisors of a positive integer, ascending."""
    low = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return low + [number // d for d in reversed(low) if d * d != number]


def data_parallel_candidate(problem: Problem) -> Candidate:
    """Return the kernel as it is, one block per tile."""
    time = data_parallel_us(problem.num_tiles, problem.panels, problem.device, problem.floor_us)
    return Candidate(DATA_PARALLEL, max(problem.num_tiles, 1), 1, None, time, 1, 0)


def split_k_candidates(problem: Problem) -> Iterator[Candidate]:
    """Yield ``split_k`` for every allowed number of equal pieces."""
    most = min(problem.peer_cap, problem.panels // problem.min_panels)
    for splits in divisors(problem.panels):
        workers = problem.num_tiles * splits
        merge = problem.merge_for(workers)
        if not 2 <= splits <= most or merge is None:
            continue
        time = split_k_us(
            problem.num_tiles, problem.panels, splits, problem.device, merge, problem.floor_us
        )
        needs = problem.workspace(merge, workers)
        yield Candidate(SPLIT_K, workers, splits, merge, time, splits, needs)


def _grids_below_one_wave(problem: Problem, most: int) -> list[int]:
    """Return the grid sizes worth a look where every tile may have several peers.

    For each number of peers: the grid that gives every tile exactly so many, and the largest grid
    whose slices are long enough that no tile has more. And the largest grid of all.
    """
    tiles, panels = problem.num_tiles, problem.panels
    grids = {most}
    for peers in range(2, problem.peer_cap + 1):
        grids.add(tiles * peers)
        if peers > 2:
            shortest = (panels - 2) // (peers - 1) + 1
            grids.add(tiles * panels // shortest)
    return sorted(grid for grid in grids if tiles < grid <= most)


def _streamed_candidates(
    problem: Problem, decomposition: str, grids: Sequence[int]
) -> Iterator[Candidate]:
    if not grids:
        return
    slots_per_worker = Partition(1, 1, 1, decomposition).slots_per_worker
    by_merge = [problem.merge_for(grid * slots_per_worker) for grid in grids]
    for merge in dict.fromkeys(by_merge):
        if merge is None:
            continue
        chosen = [grid for grid, own in zip(grids, by_merge, strict=True) if own == merge]
        workers = chosen[0] if len(chosen) == 1 else np.array(chosen, dtype=np.int64)[:, None]
        partition = Partition(
            problem.num_tiles, problem.panels, workers, decomposition, NumpyIntegers()
        )
        found = predict_streamed(partition, problem.device, merge, problem.floor_us)
        times, peers = np.atleast_1d(found.time_us), np.atleast_1d(found.most_peers)
        for grid, time, most_peers in zip(chosen, times.tolist(), peers.tolist(), strict=True):
            used = merge if most_peers > 1 else None
            needs = problem.workspace(used, grid * slots_per_worker)
            if most_peers <= problem.peer_cap:
                yield Candidate(decomposition, grid, 1, used, time, most_peers, needs)


def streamed_candidates(problem: Problem) -> Iterator[Candidate]:
    """Yield ``two_tile`` and ``stream_k`` on every grid size worth a look.

    From one wave on, a grid of fewer workers than slots only makes slices longer: one grid is
    enough. Below one wave the two decompositions are the same, and several grids compete.
    """
    tiles, panels, slots = problem.num_tiles, problem.panels, problem.device.num_slots
    if tiles >= slots:
        if tiles * panels // slots >= problem.min_panels:
            yield from _streamed_candidates(problem, TWO_TILE, [slots])
            yield from _streamed_candidates(problem, STREAM_K, [slots])
        return
    most = min(slots, tiles * panels // problem.min_panels)
    yield from _streamed_candidates(problem, STREAM_K, _grids_below_one_wave(problem, most))


def candidates(problem: Problem) -> list[Candidate]:
    """Return everything that rules 3 to 6 allow, data-parallel first."""
    found = [data_parallel_candidate(problem)]
    if problem.num_tiles > 0:
        found += split_k_candidates(problem)
        found += streamed_candidates(problem)
    return found


def best_of_all_us(num_tiles: int, panels: int, device: Device) -> float:
    """Return the least predicted time of every decomposition on every grid, rules or no rules.

    Slow, and no decision: it measures what the rules and the short list of grids cost.
    """
    problem = Problem(num_tiles, panels, device, 1, panels, None, 0, (LAST_ARRIVER,), 0.0)
    grids: Array = np.arange(1, device.num_slots + 1, dtype=np.int64)[:, None]
    streamed = Partition(num_tiles, panels, grids, STREAM_K, NumpyIntegers())
    times = [
        data_parallel_candidate(problem).predicted_us,
        float(predict_streamed(streamed, device, LAST_ARRIVER).time_us.min()),
    ]
    times += [candidate.predicted_us for candidate in split_k_candidates(problem)]
    times += [
        candidate.predicted_us
        for candidate in _streamed_candidates(problem, TWO_TILE, range(1, device.num_slots + 1))
    ]
    return min(times)
