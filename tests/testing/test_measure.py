# SPDX-License-Identifier: Apache-2.0
"""Interleaved timing: what is kept, what is dropped, and when a figure is refused."""

from __future__ import annotations

import math
import os
import time
from collections import Counter

import pytest

from tvm_streamk.testing.measure import (
    FOREIGN_LOAD_LIMIT,
    ForeignLoad,
    NotQuiet,
    PairedTimes,
    Turns,
    interleaved,
    take_turns,
)

SHORT_BATCH = 0.01
FAST, SLOW = 0.001, 0.002
BUSY_SECONDS = 0.3


class LoadSequence:
    """Loads that were decided before; the last one repeats."""

    def __init__(self, *loads: float) -> None:
        self._loads = list(loads)

    def start(self) -> None:
        """Begin an interval."""

    def stop(self) -> float:
        return self._loads.pop(0) if len(self._loads) > 1 else self._loads[0]


def sleeper(seconds: float, calls: list[float] | None = None):
    def launch() -> None:
        if calls is not None:
            calls.append(seconds)
        time.sleep(seconds)

    return launch


def paired(first, second, again=None, needed=3) -> PairedTimes:
    again = first if again is None else again
    return PairedTimes(tuple(first), tuple(second), tuple(again), 1, 0, needed)


def test_ratio_is_the_median_of_paired_ratios_not_the_ratio_of_medians():
    times = paired([1.0, 2.0, 10.0], [1.0, 1.0, 40.0])
    assert times.ratio == 1.0
    assert times.seconds == (2.0, 1.0)


def test_spread_is_the_quartiles():
    times = paired([1.0, 2.0, 3.0, 4.0, 5.0], [1.0] * 5)
    assert times.spread == (1.5, 4.5)


@pytest.mark.parametrize(
    ("again", "valid"), [(1.0, True), (1.02, True), (1.05, False), (0.9, False)]
)
def test_a_control_that_differs_makes_the_figure_void(again, valid):
    times = paired([1.0] * 3, [0.5] * 3, [again] * 3)
    assert times.control == pytest.approx(1 / again)
    assert times.is_valid is valid


def test_slower_launch_shows():
    times = interleaved(sleeper(SLOW), sleeper(FAST), 5, SHORT_BATCH, LoadSequence(0.0))
    assert times.is_quiet
    assert 1.3 < times.ratio < 2.1
    assert 0.8 < times.control < 1.25


def test_each_launch_follows_each_other_equally_often():
    calls: list[float] = []
    first, second = sleeper(SLOW, calls), sleeper(FAST, calls)
    interleaved(first, second, 9, SHORT_BATCH * 6, LoadSequence(0.0))
    rounds = len(calls) // 3
    counted = Counter(calls)
    assert counted[SLOW] == 2 * rounds and counted[FAST] == rounds
    starts = Counter(tuple(calls[index : index + 3]) for index in range(0, rounds * 3, 3))
    assert len(starts) == 3
    assert max(starts.values()) - min(starts.values()) <= rounds // 3


def test_disturbed_batches_are_dropped_whatever_their_times():
    loads = LoadSequence(FOREIGN_LOAD_LIMIT * 2, FOREIGN_LOAD_LIMIT * 2, 0.0)
    seen: list[int] = []
    times = interleaved(sleeper(FAST), sleeper(FAST), 6, SHORT_BATCH, loads, on_batch=seen.append)
    assert times.dropped == 2
    assert times.batches == len(seen) >= 3
    assert seen[:2] == [0, 0]
    assert len(times.first) == len(times.second) == len(times.again) >= 6


def test_a_busy_machine_gives_no_figure():
    times = interleaved(sleeper(FAST), sleeper(FAST), 6, SHORT_BATCH, LoadSequence(1.0))
    assert times.dropped == times.batches > 1
    assert not times.is_quiet and not times.is_valid
    for figure in ("ratio", "spread", "control", "seconds"):
        with pytest.raises(NotQuiet, match=r"not quiet.*0 of the 6 rounds"):
            getattr(times, figure)


def test_without_a_limit_every_batch_is_kept():
    times = interleaved(
        sleeper(FAST), sleeper(FAST), 6, SHORT_BATCH, LoadSequence(5.0), load_limit=math.inf
    )
    assert times.dropped == 0 and times.is_quiet


def test_own_work_is_not_foreign_load():
    load = ForeignLoad()
    own, begin = time.process_time(), time.perf_counter()
    load.start()
    while time.process_time() - own < BUSY_SECONDS:
        pass
    foreign = load.stop()
    own_cores = (time.process_time() - own) / (time.perf_counter() - begin)
    # Were it counted twice, the sum could pass the number of CPUs; the counters are coarse.
    assert foreign + own_cores <= (os.cpu_count() or 1) + 0.1


def test_machine_time_is_more_than_own(monkeypatch):
    readings = iter([(0.0, 10.0, 1.0), (2.0, 13.0, 2.0)])
    monkeypatch.setattr(ForeignLoad, "_reading", lambda _self: next(readings))
    # In two seconds the CPUs were busy for three, one of them with this process.
    assert ForeignLoad().stop() == 1.0


def test_several_launches_take_every_place_equally_often():
    calls: list[int] = []
    launches = [lambda number=number: calls.append(number) for number in range(4)]
    turns = take_turns(launches, 8, 0.0, LoadSequence(0.0))
    rounds = [tuple(calls[index : index + 4]) for index in range(0, len(calls), 4)]
    assert all(sorted(each) == [0, 1, 2, 3] for each in rounds)
    starts = Counter(each[0] for each in rounds)
    assert max(starts.values()) - min(starts.values()) <= len(rounds) // 3
    assert len(turns.times) == 4 and all(len(times) >= 8 for times in turns.times)


def test_medians_and_least_of_turns():
    turns = Turns(((3.0, 1.0, 2.0), (6.0, 4.0, 9.0)), 1, 0, 3)
    assert turns.medians == (2.0, 6.0)
    assert turns.least == (1.0, 4.0)
    assert turns.paired(0, 1, 0).ratio == pytest.approx(0.25)


def test_turns_of_a_busy_machine_give_no_figure():
    turns = take_turns([sleeper(FAST)] * 3, 6, SHORT_BATCH, LoadSequence(1.0))
    assert turns.dropped == turns.batches
    for figure in ("medians", "least"):
        with pytest.raises(NotQuiet, match=r"0 of the 6 rounds"):
            getattr(turns, figure)
