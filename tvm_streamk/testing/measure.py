# SPDX-License-Identifier: Apache-2.0
"""Times launches against each other on a machine that others use too.

Two are timed in turn, together with a second timing of the first one as a control, and compared
pair by pair; more than two take turns in the same way. Timings are taken in batches; a batch during
which other processes used the CPUs is dropped, whatever its times say.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

LEAST_PAIRS = 41
FOREIGN_LOAD_LIMIT = 0.15
CONTROL_RANGE = (0.97, 1.03)

_BATCH_SECONDS = 0.4
_SHORTEST_SECONDS = 1e-7
_MOST_BATCHES_PER_NEEDED = 4
_WARM_UP_ROUNDS = 3
_FEWEST_ROUNDS_PER_BATCH = 3
_QUARTILES = 4
_PROC_STAT = Path("/proc/stat")
# user, nice, system, idle, iowait, irq, softirq, steal
_BUSY_COLUMNS = (0, 1, 2, 5, 6, 7)


class NotQuiet(RuntimeError):
    """The machine was too busy for a figure."""


@dataclass(frozen=True)
class PairedTimes:
    """Times in seconds of two launches, and of the first one again, round by round.

    Attributes
    ----------
    first, second, again
        One entry per round that was kept; ``again`` are the control's, of the first launch.
    batches, dropped
        How many batches were timed, and how many of them were dropped for foreign load.
    needed
        Rounds that a figure needs.
    """

    first: tuple[float, ...]
    second: tuple[float, ...]
    again: tuple[float, ...]
    batches: int
    dropped: int
    needed: int = LEAST_PAIRS

    @property
    def is_quiet(self) -> bool:
        """Whether enough rounds were kept."""
        return len(self.first) >= self.needed

    @property
    def seconds(self) -> tuple[float, float]:
        """Median time of the first launch and of the second. Raises ``NotQuiet`` as ``ratio``."""
        self._ratios(self.second)
        return statistics.median(self.first), statistics.median(self.second)

    @property
    def ratio(self) -> float:
        """Median over the rounds of first time / second time: how much faster the second is.

        Raises
        ------
        NotQuiet
            If too few rounds were kept.
        """
        return statistics.median(self._ratios(self.second))

    @property
    def spread(self) -> tuple[float, float]:
        """First and third quartile of the paired ratios. Raises ``NotQuiet`` as ``ratio``."""
        lower, _, upper = statistics.quantiles(self._ratios(self.second), n=_QUARTILES)
        return lower, upper

    @property
    def control(self) -> float:
        """Median ratio of the first launch to itself. Raises ``NotQuiet`` as ``ratio``."""
        return statistics.median(self._ratios(self.again))

    @property
    def is_valid(self) -> bool:
        """Whether enough rounds were kept and the control shows no difference."""
        return self.is_quiet and CONTROL_RANGE[0] <= self.control <= CONTROL_RANGE[1]

    def _ratios(self, other: Sequence[float]) -> list[float]:
        if not self.is_quiet:
            raise NotQuiet(
                f"not quiet: other processes were busy during {self.dropped} of {self.batches} "
                f"batches, which leaves {len(self.first)} of the {self.needed} rounds that a "
                "figure needs. Try again when the machine is idle."
            )
        return [mine / theirs for mine, theirs in zip(self.first, other, strict=True)]


@dataclass(frozen=True)
class Turns:
    """Times in seconds of several launches that took turns.

    Attributes
    ----------
    times
        For each launch, one entry per round that was kept.
    batches, dropped
        How many batches were timed, and how many of them were dropped for foreign load.
    needed
        Rounds that a figure needs.
    """

    times: tuple[tuple[float, ...], ...]
    batches: int
    dropped: int
    needed: int = LEAST_PAIRS

    def paired(self, first: int, second: int, again: int) -> PairedTimes:
        """Compare two launches by their places; ``again`` is where ``first`` runs once more."""
        times = self.times
        return PairedTimes(
            times[first], times[second], times[again], self.batches, self.dropped, self.needed
        )

    @property
    def medians(self) -> tuple[float, ...]:
        """Median time of each launch.

        Raises
        ------
        NotQuiet
            If too few rounds were kept.
        """
        return tuple(self.paired(0, place, 0).seconds[1] for place in range(len(self.times)))

    @property
    def least(self) -> tuple[float, ...]:
        """Least time of each launch. Raises ``NotQuiet`` as ``medians``."""
        return tuple(min(times) for times, _ in zip(self.times, self.medians, strict=True))


class LoadMeter(Protocol):
    """Tells how busy other processes keep the CPUs."""

    def start(self) -> None:
        """Begin an interval."""

    def stop(self) -> float:
        """End it: CPU time of others during the interval, in cores."""


class ForeignLoad:
    """What others used of the CPUs: the machine's busy time without this process's own.

    Time that a hypervisor gave to other machines counts as others'. Where the system does not
    tell (no ``/proc/stat``), the load is 0: nothing is dropped then.
    """

    def __init__(self) -> None:
        self._before = self._reading()

    def start(self) -> None:
        """Begin an interval."""
        self._before = self._reading()

    def stop(self) -> float:
        """End it: CPU time of others during the interval, in cores."""
        after = self._reading()
        wall, busy, own = (new - old for new, old in zip(after, self._before, strict=True))
        return max(busy - own, 0.0) / wall if wall > 0 else 0.0

    def _reading(self) -> tuple[float, float, float]:
        own = time.process_time()
        return time.perf_counter(), _busy_seconds(own), own


def _busy_seconds(without_system: float) -> float:
    if not _PROC_STAT.exists():
        return without_system
    columns = _PROC_STAT.read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
    return sum(int(columns[index]) for index in _BUSY_COLUMNS) / os.sysconf("SC_CLK_TCK")


def interleaved(
    first: Callable[[], object],
    second: Callable[[], object],
    pairs: int = LEAST_PAIRS,
    batch_seconds: float = _BATCH_SECONDS,
    load: LoadMeter | None = None,
    load_limit: float = FOREIGN_LOAD_LIMIT,
    on_batch: Callable[[int], object] | None = None,
) -> PairedTimes:
    """Time two launches in turn until enough undisturbed pairs are there.

    A round runs ``first``, ``second`` and ``first`` again; see :func:`take_turns`.

    Parameters
    ----------
    first, second
        What is timed; each returns when its work is done.
    pairs
        Rounds to keep.
    batch_seconds, load, load_limit, on_batch
        As for :func:`take_turns`.

    Returns
    -------
    PairedTimes
        It may hold too few rounds; then it refuses to give a figure.
    """
    launches = (first, second, first)
    return take_turns(launches, pairs, batch_seconds, load, load_limit, on_batch).paired(0, 1, 2)


def take_turns(
    launches: Sequence[Callable[[], object]],
    rounds: int = LEAST_PAIRS,
    batch_seconds: float = _BATCH_SECONDS,
    load: LoadMeter | None = None,
    load_limit: float = FOREIGN_LOAD_LIMIT,
    on_batch: Callable[[int], object] | None = None,
) -> Turns:
    """Time several launches in turn until enough undisturbed rounds are there.

    A round runs each launch once, in an order that rotates, so that each takes every place equally
    often. Rounds are made in batches.

    Parameters
    ----------
    launches
        What is timed; each returns when its work is done.
    rounds
        Rounds to keep.
    batch_seconds
        How long a batch should last: the system counts CPU time in hundredths of a second, so
        that shorter ones cannot be judged.
    load
        Tells how busy others keep the machine; by default ``ForeignLoad()``.
    load_limit
        Cores that others may use during a batch; ``math.inf`` keeps every batch.
    on_batch
        Called after each batch with the number of rounds kept so far.

    Returns
    -------
    Turns
        It may hold too few rounds; then it refuses to give a figure.
    """
    meter = ForeignLoad() if load is None else load
    warm_up = [_round(launches, number) for number in range(_WARM_UP_ROUNDS)]
    typical = statistics.median(sum(times) for times in warm_up)
    size = max(_FEWEST_ROUNDS_PER_BATCH, round(batch_seconds / max(typical, _SHORTEST_SECONDS)))
    most_batches = _MOST_BATCHES_PER_NEEDED * -(-rounds // size)
    kept: list[tuple[float, ...]] = []
    batches = dropped = 0
    while len(kept) < rounds and batches < most_batches:
        meter.start()
        batch = [_round(launches, number) for number in range(size)]
        is_disturbed = meter.stop() > load_limit
        batches += 1
        dropped += is_disturbed
        kept += [] if is_disturbed else batch
        if on_batch is not None:
            on_batch(len(kept))
    columns = tuple(tuple(times[column] for times in kept) for column in range(len(launches)))
    return Turns(columns, batches, dropped, rounds)


def _round(launches: Sequence[Callable[[], object]], number: int) -> tuple[float, ...]:
    """Seconds of each launch, made in an order that starts with launch ``number``, in turn."""
    times = [0.0] * len(launches)
    for step in range(len(launches)):
        which = (number + step) % len(launches)
        begin = time.perf_counter()
        launches[which]()
        times[which] = time.perf_counter() - begin
    return tuple(times)
