# SPDX-License-Identifier: Apache-2.0
"""The simulation: by hand on a small case, by its own rules, and against the closed form."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shapes import all_shapes

from tvm_streamk.cost_model import ATOMIC, LAST_ARRIVER, MERGES, TWO_PHASE, predict
from tvm_streamk.devices import DEFAULT_DEVICE, Device, lookup
from tvm_streamk.partition import DATA_PARALLEL, PERSISTENT, SPLIT_K, STREAM_K, TWO_TILE, Partition
from tvm_streamk.policy import choose
from tvm_streamk.simulate import MERGE, PANELS, PUBLISH, Activity, Simulation, simulate

SIMPLE = Device(
    name="simple",
    num_sms=2,
    start_us=3.0,
    split_us=6.0,
    panel_us=1.0,
    peer_us=8.0,
    memory_bytes_per_us=1e6,
)
SEED = 11


def test_three_tiles_on_two_workers_by_hand() -> None:
    run = simulate(Partition(3, 10, 2), SIMPLE)
    assert run.activities == (
        Activity(0, 0, 0, PANELS, 0, 13),
        Activity(1, 1, 1, PANELS, 0, 8),
        Activity(1, 1, 1, PUBLISH, 8, 14),
        Activity(0, 0, 1, PANELS, 13, 21),
        Activity(0, 0, 1, PUBLISH, 21, 27),
        Activity(1, 1, 2, PANELS, 14, 27),
        Activity(0, 0, 1, MERGE, 27, 35),
    )
    assert run.makespan_us == 35


def test_the_other_merges_by_hand() -> None:
    atomic = simulate(Partition(3, 10, 2), SIMPLE, ATOMIC)
    assert min(a.begin_us for a in atomic.activities) == 3
    assert atomic.makespan_us == 3 + 27
    assert not [a for a in atomic.activities if a.kind == MERGE]
    two_phase = simulate(Partition(3, 10, 2), SIMPLE, TWO_PHASE)
    (merge,) = (a for a in two_phase.activities if a.kind == MERGE)
    assert (merge.tile, merge.begin_us, merge.end_us) == (1, 27, 27 + 3 + 8)


def test_data_parallel_tiles_queue_for_processors() -> None:
    run = simulate(Partition(3, 10, 3, DATA_PARALLEL), SIMPLE)
    assert [(a.processor, a.begin_us, a.end_us) for a in run.activities] == [
        (0, 0, 13),
        (1, 0, 13),
        (0, 13, 26),
    ]
    shared = simulate(Partition(3, 10, 3, DATA_PARALLEL), SIMPLE.with_processors(blocks_per_sm=2))
    assert (shared.num_processors, shared.makespan_us) == (2, 2 * (10 + 1.5))


def test_nothing_to_do() -> None:
    for partition in (Partition(0, 4, 2), Partition(0, 4, 1, DATA_PARALLEL)):
        assert simulate(partition, SIMPLE) == Simulation(partition, 2, 0.0)


def check_run(run: Simulation, device: Device, merge: str) -> None:
    """No processor does two things at once; no tile is merged before all of it is published."""
    partition = run.partition
    by_processor: dict[int, list[Activity]] = defaultdict(list)
    panels_us: dict[int, float] = defaultdict(float)
    published: dict[int, list[Activity]] = defaultdict(list)
    segments: dict[int, int] = defaultdict(int)
    for activity in run.activities:
        by_processor[activity.processor].append(activity)
        if activity.kind == PANELS:
            panels_us[activity.tile] += activity.end_us - activity.begin_us
            segments[activity.tile] += 1
        if activity.kind == PUBLISH:
            published[activity.tile].append(activity)
    assert len(by_processor) <= run.num_processors
    for activities in by_processor.values():
        ordered = sorted(activities, key=lambda a: a.begin_us)
        for before, after in itertools.pairwise(ordered):
            assert before.end_us <= after.begin_us + 1e-9
    for tile in range(partition.num_tiles):
        peers = len(partition.peers(tile))
        assert segments[tile] == peers
        expected = partition.panels * device.panel_us + peers * device.start_us
        assert panels_us[tile] == pytest.approx(expected)
        assert len(published[tile]) == (peers if peers > 1 else 0)
    merges = [a for a in run.activities if a.kind == MERGE]
    if merge != ATOMIC:
        assert sorted(a.tile for a in merges) == sorted(t for t in published if published[t])
    for activity in merges:
        last = max(published[activity.tile], key=lambda a: a.end_us)
        assert activity.begin_us >= last.end_us - 1e-9
        if merge == LAST_ARRIVER:
            assert activity.begin_us == pytest.approx(last.end_us)


@given(
    st.integers(1, 40),
    st.integers(1, 24),
    st.integers(1, 20),
    st.sampled_from([STREAM_K, TWO_TILE, PERSISTENT, SPLIT_K]),
    st.sampled_from(MERGES),
)
@settings(max_examples=150, deadline=None)
def test_rules_of_every_run(
    num_tiles: int, panels: int, workers: int, decomposition: str, merge: str
) -> None:
    count = num_tiles * panels if decomposition == SPLIT_K else workers
    device = SIMPLE.with_processors(max(workers, 2))
    partition = Partition(num_tiles, panels, count, decomposition)
    run = simulate(partition, device, merge)
    check_run(run, device, merge)
    assert run.makespan_us == pytest.approx(max(a.end_us for a in run.activities))
    assert simulate(partition, device, merge, record=False).makespan_us == run.makespan_us
    if decomposition != SPLIT_K:
        predicted = predict(partition, device, merge)
        assert 0.75 * predicted <= run.makespan_us <= predicted * (1 + 1e-9)


def test_the_closed_form_is_close_where_decisions_are_taken() -> None:
    chance = random.Random(SEED)
    ratios = []
    for shape in chance.sample(all_shapes(), 120):
        device = DEFAULT_DEVICE.with_processors(chance.choice([32, 108, 132]))
        decision = choose(shape.num_tiles, shape.panels, device=device)
        if decision.num_workers > 3000 or shape.num_tiles > 3000:
            continue
        partition = decision.partition(shape.num_tiles, shape.panels)
        ratios.append(simulate(partition, device, record=False).makespan_us / decision.predicted_us)
    assert len(ratios) > 80
    assert 0.85 < min(ratios) and max(ratios) < 1 + 1e-9
    assert sum(ratios) / len(ratios) > 0.98


@pytest.mark.parametrize("name", ["A100", "H200", "B200", "MI300X"])
def test_decisions_are_not_slower_than_data_parallel_when_played(name: str) -> None:
    device = lookup(name)
    streamed = 0
    for shape in random.Random(SEED).sample(all_shapes(), 150):
        decision = choose(shape.num_tiles, shape.panels, device=device)
        if decision.decomposition == DATA_PARALLEL:
            continue
        streamed += 1
        partition = decision.partition(shape.num_tiles, shape.panels)
        base = Partition(shape.num_tiles, shape.panels, shape.num_tiles, DATA_PARALLEL)
        played = simulate(partition, device, decision.merge or LAST_ARRIVER, record=False)
        alone = simulate(base, device, record=False)
        assert played.makespan_us <= alone.makespan_us
        assert alone.makespan_us == pytest.approx(decision.data_parallel_us)
    assert streamed > 30


def test_an_unknown_merge_is_refused() -> None:
    with pytest.raises(ValueError, match="merge 'later' is none of last_arriver, two_phase"):
        simulate(Partition(3, 10, 2), SIMPLE, "later")
