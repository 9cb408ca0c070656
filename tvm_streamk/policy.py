# SPDX-License-Identifier: Apache-2.0
"""Which decomposition to use: pure arithmetic from counts and a device to a decision.

:func:`choose` lists the candidates that its hard rules allow, asks the cost model for the time of
each, and takes the fastest; data-parallel stays unless another is faster by :data:`LEAST_GAIN`.

Hard rules, before any prediction:

1. Tiles that fill whole rounds of processors are never streamed: there is nothing to gain.
2. Where the device's memory alone takes longer than its arithmetic would and every processor has a
   tile, the kernel is bound by memory, and nothing is streamed.
3. A worker gets at least ``min_panels`` streamed panels. (Its slice may still be cut into a short
   and a long segment: slices are equal, wherever the tile boundaries fall.)
4. A tile has at most :func:`peer_cap` peers.
5. The workspace for partial sums stays within the limit that the user gives.
6. At most as many workers as the device runs at once, except for ``split_k``, whose pieces are
   equal and may come in rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tvm_streamk import reasons
from tvm_streamk.candidates import (
    MIN_PANELS,
    Candidate,
    Problem,
    candidates,
    data_parallel_candidate,
    divisors,
    peer_cap,
)
from tvm_streamk.cost_model import (
    ATOMIC,
    LAST_ARRIVER,
    MERGES,
    TWO_PHASE,
    floor_us,
    split_k_us,
)
from tvm_streamk.devices import CPU, DEFAULT_DEVICE, Device
from tvm_streamk.partition import SPLIT_K, STREAM_K, TWO_TILE, Partition

LEAST_GAIN = 1.02
"""A nest is rewritten only for a predicted gain of 2 %: what the persistent form's index
arithmetic may cost, and the model does not see."""

BATCH_INVARIANT_MOST_OVERHEAD = 0.25
"""What splitting every tile may add, at most, to a kernel whose waves are full anyway."""

REFERENCE_TILE_BYTES = 128 * 128 * 4


class WorkspaceLimitTooSmall(ValueError):
    """The batch-invariant split does not fit in the workspace that the user allows."""


@dataclass(frozen=True)
class Decision:
    """What to do with one kernel, and why.

    Parameters
    ----------
    decomposition : str
        One of :data:`tvm_streamk.partition.DECOMPOSITIONS`. ``data_parallel``: leave the nest.
    num_workers : int
        Workers of the partition.
    splits : int
        Pieces of each tile in ``split_k``, else 1.
    merge : str or None
        One of :data:`tvm_streamk.cost_model.MERGES`; None where no tile is cut.
    reason : str
        Why, in words and numbers.
    predicted_us, data_parallel_us : float
        The model's times of the decision and of the data-parallel kernel, in microseconds.
    waves : int
        Rounds of tiles that the data-parallel kernel needs.
    bound : float
        How much faster than data-parallel a perfectly even distribution would be; at least 1.
    most_peers : int
        The largest number of workers that share a tile.
    workspace_bytes : int
        Bytes for partial sums, counters not included.
    """

    decomposition: str
    num_workers: int
    splits: int
    merge: str | None
    reason: str
    predicted_us: float
    data_parallel_us: float
    waves: int
    bound: float
    most_peers: int
    workspace_bytes: int

    @property
    def predicted_gain(self) -> float:
        """Predicted time of data-parallel over that of the decision."""
        return self.data_parallel_us / self.predicted_us if self.predicted_us else 1.0

    def partition(self, num_tiles: int, panels: int) -> Partition:
        """Return the partition that the decision stands for."""
        return Partition(num_tiles, panels, self.num_workers, self.decomposition)


def pose(
    num_tiles: int,
    panels: int,
    num_sms: int | None = None,
    *,
    blocks_per_sm: int | None = None,
    device: Device | None = None,
    min_panels: int = MIN_PANELS,
    workspace_limit_bytes: int | None = None,
    tile_bytes: int = REFERENCE_TILE_BYTES,
    merges_allowed: Sequence[str] | None = None,
    most_peers: int | None = None,
    traffic_bytes: int | None = None,
) -> Problem:
    """Check the arguments of :func:`choose` and fill in its defaults."""
    counts = {"num_tiles": (num_tiles, 0), "panels": (panels, 1), "min_panels": (min_panels, 1)}
    for name, (value, least) in counts.items():
        if not isinstance(value, int | np.integer) or isinstance(value, bool):
            raise TypeError(f"{name} must be an int, got {value!r}")
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    if device is None and num_sms is None:
        raise ValueError("the processor count is not known; give num_sms or device")
    described = (device or DEFAULT_DEVICE).with_processors(num_sms, blocks_per_sm)
    if merges_allowed is None:
        merges_allowed = (TWO_PHASE,) if described.kind == CPU else (LAST_ARRIVER,)
    unknown = [merge for merge in merges_allowed if merge not in MERGES]
    if unknown:
        raise ValueError(f"merge {unknown[0]!r} is none of {', '.join(MERGES)}")
    cap = peer_cap(panels, described, min_panels)
    return Problem(
        num_tiles=int(num_tiles),
        panels=int(panels),
        device=described,
        min_panels=int(min_panels),
        peer_cap=cap if most_peers is None else most_peers,
        workspace_limit_bytes=workspace_limit_bytes,
        tile_bytes=tile_bytes,
        merges=tuple(merges_allowed),
        floor_us=floor_us(described, traffic_bytes),
    )


def choose(
    num_tiles: int,
    panels: int,
    num_sms: int | None = None,
    *,
    blocks_per_sm: int | None = None,
    device: Device | None = None,
    min_panels: int = MIN_PANELS,
    workspace_limit_bytes: int | None = None,
    tile_bytes: int = REFERENCE_TILE_BYTES,
    merges_allowed: Sequence[str] | None = None,
    most_peers: int | None = None,
    traffic_bytes: int | None = None,
    batch_invariant: bool = False,
) -> Decision:
    """Decide how to share out ``num_tiles`` tiles of ``panels`` panels.

    Parameters
    ----------
    num_tiles : int
        Output tiles, batch included. 0 is allowed and gives ``data_parallel``.
    panels : int
        Panels per tile, at least 1.
    num_sms : int, optional
        Processors; the device's own number if not given.
    blocks_per_sm : int, optional
        Blocks that a processor holds at a time; the device's own number if not given.
    device : Device, optional
        Whose constants the model uses, for the kernel's own tile (see :meth:`Device.for_tile`).
        Default: those of :data:`tvm_streamk.devices.DEFAULT_DEVICE`.
    min_panels : int
        Fewest streamed panels of a worker.
    workspace_limit_bytes : int, optional
        Most bytes for partial sums. Candidates above it are not considered.
    tile_bytes : int
        Bytes of one partial sum: rows x columns x bytes of the accumulator.
    merges_allowed : sequence of str, optional
        Merges that the caller can carry out, best first. Default: ``last_arriver`` on a GPU,
        ``two_phase`` on a CPU. Empty: no tile may be cut.
    most_peers : int, optional
        Most workers on one tile. Default: :func:`peer_cap`.
    traffic_bytes : int, optional
        Bytes that the kernel must move from and to memory. Default: memory is no limit.
    batch_invariant : bool
        Let the split depend on ``panels`` (and the device's constants) alone, never on the number
        of tiles, so that the bits of a row do not change with the number of rows. This may be
        slower than data-parallel where there are many tiles.

    Returns
    -------
    Decision

    Raises
    ------
    TypeError, ValueError
        For arguments that make no sense, with the value.
    WorkspaceLimitTooSmall
        Only with ``batch_invariant``: falling back would change the bits.
    """
    problem = pose(
        num_tiles,
        panels,
        num_sms,
        blocks_per_sm=blocks_per_sm,
        device=device,
        min_panels=min_panels,
        workspace_limit_bytes=workspace_limit_bytes,
        tile_bytes=tile_bytes,
        merges_allowed=merges_allowed,
        most_peers=most_peers,
        traffic_bytes=traffic_bytes,
    )
    return decide(problem, batch_invariant)


def decide(problem: Problem, batch_invariant: bool = False) -> Decision:
    """Decide a problem that :func:`pose` has checked."""
    if batch_invariant:
        return _decide_batch_invariant(problem)
    base = data_parallel_candidate(problem)
    why_not = reasons.nothing_to_gain(problem)
    if why_not:
        return _decision(problem, base, base, why_not)
    others = candidates(problem)[1:]
    order = (SPLIT_K, TWO_TILE, STREAM_K)
    best = min(others, key=lambda c: (c.predicted_us, order.index(c.decomposition)), default=None)
    if best is None or base.predicted_us < LEAST_GAIN * best.predicted_us:
        return _decision(
            problem, base, base, reasons.why_data_parallel(problem, base, best, LEAST_GAIN)
        )
    return _decision(problem, best, base, reasons.why_streamed(problem, best, base))


def batch_invariant_splits(problem: Problem) -> int:
    """Return the number of pieces per tile that depends on the panels alone.

    The largest divisor of the panels that rules 3 and 4 allow and whose starts, splits and merges
    add at most :data:`BATCH_INVARIANT_MOST_OVERHEAD` to a tile's panels.
    """
    device, panels = problem.device, problem.panels
    if not any(merge != ATOMIC for merge in problem.merges):
        return 1
    allowed = BATCH_INVARIANT_MOST_OVERHEAD * panels * device.panel_us

    def overhead(splits: int) -> float:
        starts = (splits - 1) * (device.start_us + device.peer_us)
        return starts + splits * device.split_us

    most = min(problem.peer_cap, panels // problem.min_panels)
    fitting = [s for s in divisors(panels) if 2 <= s <= most and overhead(s) <= allowed]
    return max(fitting, default=1)


def _decide_batch_invariant(problem: Problem) -> Decision:
    base = data_parallel_candidate(problem)
    splits = batch_invariant_splits(problem)
    if splits == 1 or problem.num_tiles == 0:
        reason = (
            f"batch-invariant: no split of {problem.panels} panels into equal pieces costs so "
            f"little that every tile could be cut, so none is, whatever the number of tiles"
        )
        if all(merge == ATOMIC for merge in problem.merges):
            reason = "batch-invariant: no merge is allowed that adds in a fixed order"
        return _decision(problem, base, base, reason)
    # The order in which atomics add is not fixed, so they cannot give the same bits.
    merge = next(merge for merge in problem.merges if merge != ATOMIC)
    workers = problem.num_tiles * splits
    needs, limit = problem.workspace(merge, workers), problem.workspace_limit_bytes
    if limit is not None and needs > limit:
        raise WorkspaceLimitTooSmall(
            f"the batch-invariant split of {problem.panels} panels into {splits} needs {needs} "
            f"bytes for {problem.num_tiles} tiles, the limit is {limit}; raise the limit or give "
            f"up batch_invariant (another split would change the bits)"
        )
    time = split_k_us(
        problem.num_tiles, problem.panels, splits, problem.device, merge, problem.floor_us
    )
    chosen = Candidate(SPLIT_K, workers, splits, merge, time, splits, needs)
    reason = (
        f"batch-invariant: every tile's {problem.panels} panels are cut into {splits} equal "
        f"pieces, whatever the number of tiles; predicted "
        f"{base.predicted_us / time:.2f} times as fast as data-parallel"
    )
    return _decision(problem, chosen, base, reason)


def _decision(problem: Problem, chosen: Candidate, base: Candidate, reason: str) -> Decision:
    return Decision(
        decomposition=chosen.decomposition,
        num_workers=chosen.num_workers,
        splits=chosen.splits,
        merge=chosen.merge,
        reason=reason,
        predicted_us=chosen.predicted_us,
        data_parallel_us=base.predicted_us,
        waves=problem.waves,
        bound=problem.bound,
        most_peers=chosen.most_peers,
        workspace_bytes=chosen.workspace_bytes,
    )
