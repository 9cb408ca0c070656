# SPDX-License-Identifier: Apache-2.0
"""Decisions: a table of known cases, then rules that must hold over all public shapes."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from shapes import Shape, all_shapes

from tvm_streamk.candidates import best_of_all_us, candidates, divisors, peer_cap
from tvm_streamk.cost_model import (
    ATOMIC,
    LAST_ARRIVER,
    TWO_PHASE,
    predict,
    traffic_bytes,
)
from tvm_streamk.devices import DEFAULT_DEVICE, Device, cpu, lookup
from tvm_streamk.partition import (
    DATA_PARALLEL,
    SPLIT_K,
    STREAM_K,
    TWO_TILE,
    Partition,
)
from tvm_streamk.policy import (
    LEAST_GAIN,
    MIN_PANELS,
    Decision,
    WorkspaceLimitTooSmall,
    choose,
    pose,
)

PROCESSORS = (32, 56, 80, 108, 132, 148, 228, 304)
LEAST_PANELS_FOR_THE_BOUND = 32
SEED = 5
KIB = 1024


def decide_product(m: int, n: int, k: int, num_sms: int, **options: Any) -> Decision:
    shape = Shape("", 1, m, n, k)
    return choose(shape.num_tiles, shape.panels, num_sms, **options)


# -- known cases -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "num_sms", "decomposition", "num_workers", "splits"),
    [
        pytest.param((8448, 1500, 2816), 132, DATA_PARALLEL, 792, 1, id="six whole waves"),
        pytest.param((8448, 3000, 2816), 132, DATA_PARALLEL, 1584, 1, id="twelve whole waves"),
        pytest.param((4224, 1500, 176), 132, DATA_PARALLEL, 396, 1, id="three whole waves"),
        pytest.param((1760, 7133, 1760), 132, DATA_PARALLEL, 784, 1, id="nearly whole waves"),
        pytest.param((128, 128, 16384), 108, SPLIT_K, 8, 8, id="paper: g = 8"),
        pytest.param((1024, 1024, 1024), 108, DATA_PARALLEL, 64, 1, id="paper: g = 64"),
        pytest.param((256, 3584, 8192), 108, STREAM_K, 108, 1, id="paper: g = 108"),
        pytest.param((128, 128, 256), 132, DATA_PARALLEL, 1, 1, id="one tile, short K"),
        pytest.param((128, 128, 8192), 132, STREAM_K, 6, 1, id="one tile, long K"),
        pytest.param((128, 128, 4096), 132, SPLIT_K, 4, 4, id="one tile, K of 128 panels"),
        pytest.param((4096, 4224, 32), 108, DATA_PARALLEL, 1056, 1, id="K of one panel"),
        pytest.param((1, 1, 1), 132, DATA_PARALLEL, 1, 1, id="one element"),
        pytest.param((256, 256, 16384), 132, SPLIT_K, 32, 8, id="four tiles, long K"),
        pytest.param((512, 5120, 27648), 132, TWO_TILE, 132, 1, id="160 tiles, long K"),
        pytest.param((512, 5120, 5120), 132, TWO_TILE, 132, 1, id="160 tiles"),
        pytest.param((1024, 2112, 7168), 132, TWO_TILE, 132, 1, id="136 tiles"),
        pytest.param((384, 384, 128), 4, DATA_PARALLEL, 9, 1, id="too few panels to pay"),
    ],
)
def test_known_cases(
    shape: tuple[int, int, int], num_sms: int, decomposition: str, num_workers: int, splits: int
) -> None:
    decision = decide_product(*shape, num_sms)
    assert (decision.decomposition, decision.num_workers) == (decomposition, num_workers)
    assert decision.splits == splits


def test_whole_waves_stream_no_tile_even_where_everything_else_is_free() -> None:
    free = replace(DEFAULT_DEVICE, start_us=0.0, split_us=0.0, peer_us=0.0)
    decision = decide_product(8448, 1500, 2816, 132, device=free)
    assert decision.decomposition == DATA_PARALLEL
    assert decision.reason == (
        "792 tiles are exactly 6 whole waves on 132 processors: no processor idles"
    )
    assert Partition(792, 88, 132, TWO_TILE).streamed_tiles == 0


@pytest.mark.parametrize("device", ["A100", "H200", "B200", "MI300X"])
@pytest.mark.parametrize("rows", [1, 2, 4])
def test_products_with_a_few_rows_are_bound_by_memory(device: str, rows: int) -> None:
    shape = Shape("", 1, rows, 57344, 8192)
    traffic = traffic_bytes(shape.m, shape.n, shape.k)
    decision = choose(shape.num_tiles, shape.panels, device=lookup(device), traffic_bytes=traffic)
    assert decision.decomposition == DATA_PARALLEL
    assert decision.reason.startswith("bound by memory: moving the operands takes ")


def test_few_rows_and_wide_columns_on_132_processors_stay_out() -> None:
    for rows in (1, 2, 4):
        traffic = traffic_bytes(rows, 28672, 4096)
        decision = choose(224, 128, device=lookup("H200"), traffic_bytes=traffic)
        assert decision.decomposition == DATA_PARALLEL


def test_long_k_on_a_few_tiles_is_not_taken_for_memory_bound() -> None:
    traffic = traffic_bytes(512, 8, 500000)
    decision = choose(4, 15625, device=lookup("H200"), traffic_bytes=traffic)
    assert decision.decomposition in (SPLIT_K, STREAM_K)
    assert decision.predicted_gain > 10


def test_any_constants_in_the_papers_range_give_the_papers_grids() -> None:
    chance = random.Random(SEED)
    for _ in range(200):
        peer = chance.uniform(7.01, 9.99)
        split = chance.uniform(max(13.01 - peer, 3.1), 20)
        constants = {"panel_us": 1.0, "peer_us": peer, "split_us": split}
        device = replace(DEFAULT_DEVICE, start_us=chance.uniform(0, 10), **constants)
        workers = [
            decide_product(*shape, 108, device=device).num_workers
            for shape in ((128, 128, 16384), (1024, 1024, 1024), (256, 3584, 8192))
        ]
        assert workers == [8, 64, 108], device


# -- what must hold over all shapes ----------------------------------------------------------------


@cache
def decided(device: Device) -> tuple[tuple[Shape, Decision], ...]:
    return tuple((s, choose(s.num_tiles, s.panels, device=device)) for s in all_shapes())


def everywhere() -> Iterator[Device]:
    for num_sms in PROCESSORS:
        yield DEFAULT_DEVICE.with_processors(num_sms)


ALL_DEVICES = pytest.mark.parametrize("device", list(everywhere()), ids=lambda d: str(d.num_sms))


@ALL_DEVICES
def test_never_worse_than_data_parallel(device: Device) -> None:
    for shape, decision in decided(device):
        partition = decision.partition(shape.num_tiles, shape.panels)
        base = Partition(shape.num_tiles, shape.panels, shape.num_tiles, DATA_PARALLEL)
        time = predict(partition, device, decision.merge or LAST_ARRIVER)
        assert time == decision.predicted_us, (shape, decision)
        assert predict(base, device) == decision.data_parallel_us
        assert time <= decision.data_parallel_us
        if decision.decomposition != DATA_PARALLEL:
            assert decision.data_parallel_us >= LEAST_GAIN * time
            assert partition.most_panels < decision.waves * shape.panels


@ALL_DEVICES
def test_whole_waves_are_left_alone_and_the_rest_is_within_the_rules(device: Device) -> None:
    for shape, decision in decided(device):
        if shape.num_tiles % device.num_sms == 0 or shape.panels == 1:
            assert decision.decomposition == DATA_PARALLEL
        partition = decision.partition(shape.num_tiles, shape.panels)
        assert decision.most_peers == partition.most_peers
        assert decision.most_peers <= peer_cap(shape.panels, device)
        assert decision.workspace_bytes == partition.num_slots * 128 * 128 * 4
        if decision.decomposition == DATA_PARALLEL:
            assert decision.merge is None and decision.workspace_bytes == 0
            continue
        assert decision.merge == LAST_ARRIVER
        streamed = [
            partition.slice_begin(w + 1) - partition.slice_begin(w)
            for w in range(decision.num_workers)
        ]
        assert min(streamed) >= MIN_PANELS
        assert decision.num_workers <= device.num_slots or decision.decomposition == SPLIT_K


def gains_of_the_bound(device: Device) -> list[float]:
    """Share of the quantisation bound that is gained, of every shape that has one.

    A quantisation bound is what rounding up to whole waves costs: more than one wave, the last one
    not full.
    """
    return [
        decision.predicted_gain / decision.bound
        for shape, decision in decided(device)
        if shape.num_tiles > device.num_sms
        and shape.num_tiles % device.num_sms
        and shape.panels >= LEAST_PANELS_FOR_THE_BOUND
    ]


@ALL_DEVICES
def test_at_least_nine_tenths_of_the_quantisation_bound_on_average(device: Device) -> None:
    shares = gains_of_the_bound(device)
    assert len(shares) > 100
    assert max(shares) <= 1.0
    assert np.mean(shares) >= 0.9


@pytest.mark.parametrize("name", ["H100", "H200", "MI300X", "L40S", "RTX 4090"])
def test_nine_tenths_of_the_bound_with_each_devices_own_constants(name: str) -> None:
    assert np.mean(gains_of_the_bound(lookup(name))) >= 0.9


def test_a_tile_too_small_for_the_device_reaches_a_little_less() -> None:
    # A B200 does a panel of 128 x 128 x 32 so fast that reading a partial sum takes 32 of them.
    device = lookup("B200")
    assert device.peer_us > 30 * device.panel_us
    assert np.mean(gains_of_the_bound(device)) >= 0.88


@pytest.mark.parametrize(("tiles", "panels"), [(1, 60), (5, 24), (7, 31), (13, 48), (29, 12)])
def test_best_of_all_is_what_trying_every_grid_finds(tiles: int, panels: int) -> None:
    device = DEFAULT_DEVICE.with_processors(12)
    tried = [Partition(tiles, panels, tiles, DATA_PARALLEL)]
    tried += [Partition(tiles, panels, grid, STREAM_K) for grid in range(1, 13)]
    tried += [Partition(tiles, panels, grid, TWO_TILE) for grid in range(1, 13)]
    tried += [Partition(tiles, panels, tiles * s, SPLIT_K) for s in divisors(panels)]
    best = min(predict(partition, device) for partition in tried)
    assert best_of_all_us(tiles, panels, device) == best


@pytest.mark.parametrize("num_sms", [32, 108, 132, 304])
def test_within_two_percent_of_the_best_of_all_on_95_percent_of_the_shapes(num_sms: int) -> None:
    device = DEFAULT_DEVICE.with_processors(num_sms)
    sample = random.Random(SEED).sample(range(len(all_shapes())), 150)
    worse = []
    for number in sample:
        shape, decision = decided(device)[number]
        best = best_of_all_us(shape.num_tiles, shape.panels, device)
        assert decision.predicted_us >= best * (1 - 1e-9)
        worse.append(decision.predicted_us / best - 1)
    assert np.mean(np.array(worse) <= 0.02) >= 0.95, sorted(worse)[-10:]


@pytest.mark.long
@pytest.mark.parametrize("num_sms", PROCESSORS)
def test_within_two_percent_of_the_best_of_all_long(num_sms: int) -> None:
    device = DEFAULT_DEVICE.with_processors(num_sms)
    worse = [
        decision.predicted_us / best_of_all_us(shape.num_tiles, shape.panels, device) - 1
        for shape, decision in decided(device)
    ]
    assert np.mean(np.array(worse) <= 0.02) >= 0.95


def test_no_worker_is_ever_empty() -> None:
    device = DEFAULT_DEVICE.with_processors(132)
    for shape, decision in decided(device):
        if decision.num_workers <= 1000:
            partition = decision.partition(shape.num_tiles, shape.panels)
            assert all(partition.num_segments(w) >= 1 for w in range(decision.num_workers))


def test_deciding_takes_less_than_a_millisecond() -> None:
    device = DEFAULT_DEVICE.with_processors(304)
    shapes = random.Random(SEED).sample(all_shapes(), 60)
    for shape in shapes:
        elapsed = []
        for _ in range(5):
            begin = time.perf_counter()
            choose(shape.num_tiles, shape.panels, device=device)
            elapsed.append(time.perf_counter() - begin)
        assert min(elapsed) < 1e-3, shape


# -- limits, merges, blocks per processor ----------------------------------------------------------


@pytest.mark.parametrize("kib", [0, 63, 64, 1000, 16 * 1024, 17 * 1024])
def test_the_workspace_limit_is_kept_and_said(kib: int) -> None:
    for shape, free in decided(DEFAULT_DEVICE.with_processors(132))[::7]:
        decision = choose(shape.num_tiles, shape.panels, 132, workspace_limit_bytes=kib * KIB)
        assert decision.workspace_bytes <= kib * KIB
        if decision.decomposition == DATA_PARALLEL != free.decomposition:
            assert (
                f"the workspace limit of {kib * KIB} bytes" in decision.reason
                or "not the 1.02 times that pay for a rewrite" in decision.reason
            )


def test_atomics_stand_in_where_the_workspace_is_too_small() -> None:
    decision = choose(
        160, 864, 132, workspace_limit_bytes=KIB, merges_allowed=(LAST_ARRIVER, ATOMIC)
    )
    assert (decision.decomposition, decision.merge) == (TWO_TILE, ATOMIC)
    assert decision.workspace_bytes == 0
    assert "merge atomic, since last_arriver would need more than 1024 bytes" in decision.reason


def test_merges_are_taken_in_the_order_given_and_by_kind_of_device() -> None:
    assert choose(160, 864, 132).merge == LAST_ARRIVER
    assert choose(3, 400, device=cpu(2)).merge == TWO_PHASE
    assert choose(160, 864, 132, merges_allowed=(TWO_PHASE, ATOMIC)).merge == TWO_PHASE
    none = choose(160, 864, 132, merges_allowed=())
    assert none.decomposition == DATA_PARALLEL
    assert none.reason == "no merge is allowed, so no tile can be cut"


@pytest.mark.parametrize(("tiles", "workers"), [(1, 2), (2, 2), (3, 2), (4, 4)])
def test_two_cores(tiles: int, workers: int) -> None:
    decision = choose(tiles, 64, device=cpu(2))
    whole = tiles % 2 == 0
    assert (decision.decomposition == DATA_PARALLEL) == whole
    assert decision.num_workers == workers
    assert decision.predicted_gain > (0.99 if whole else 1.2)


def test_a_cap_of_one_peer_streams_nothing() -> None:
    assert choose(160, 864, 132, most_peers=1).decomposition == DATA_PARALLEL
    assert choose(1, 512, 132, most_peers=3).most_peers == 3
    assert choose(1, 512, 132, most_peers=2).most_peers == 2


def test_fewest_panels_of_a_worker_can_be_set() -> None:
    assert choose(1, 512, 132, min_panels=200).num_workers == 2
    assert choose(1, 512, 132, min_panels=257).decomposition == DATA_PARALLEL


def test_fewest_panels_hold_from_one_wave_on_too() -> None:
    free = replace(DEFAULT_DEVICE, start_us=0.0, split_us=0.0, peer_us=0.0)
    assert choose(133, 4, 132, device=free).decomposition == DATA_PARALLEL
    assert choose(133, 16, 132, device=free).decomposition == TWO_TILE


def test_blocks_that_share_a_processor_are_not_idle_processors() -> None:
    # 132 tiles on 264 slots: the processors are full, each with one block at its whole speed.
    device = lookup("H200").with_processors(blocks_per_sm=2)
    assert choose(132, 256, device=device).decomposition == DATA_PARALLEL
    assert choose(396, 256, device=device).decomposition == DATA_PARALLEL
    shared = choose(133, 512, device=device)
    assert shared.decomposition != DATA_PARALLEL
    assert choose(133, 512, 132, device=lookup("H200"), blocks_per_sm=2) == shared
    assert choose(700, 512, device=device).num_workers == 264


def test_no_tiles() -> None:
    decision = choose(0, 8, 132)
    assert (decision.decomposition, decision.num_workers) == (DATA_PARALLEL, 1)
    assert decision.predicted_gain == 1.0 and decision.bound == 1.0
    assert decision.reason == "there is no tile"


# -- batch-invariant -------------------------------------------------------------------------------


@pytest.mark.parametrize("panels", [1, 7, 64, 127, 128, 224, 512, 864])
@pytest.mark.parametrize("device", ["A100", "H200", "MI300X"])
def test_batch_invariant_split_depends_on_the_panels_alone(panels: int, device: str) -> None:
    rows = [-(-m // 128) for m in (4, 16, 64, 257)]
    tiles = {r * columns for r in rows for columns in (1, 7, 132, 304)}
    decisions = [
        choose(n, panels, device=lookup(device), batch_invariant=True) for n in sorted(tiles)
    ]
    assert len({decision.splits for decision in decisions}) == 1
    assert len({decision.merge for decision in decisions}) == 1
    splits = decisions[0].splits
    assert panels % splits == 0
    for n, decision in zip(sorted(tiles), decisions, strict=True):
        assert decision.num_workers == n * splits
        assert decision.decomposition == (SPLIT_K if splits > 1 else DATA_PARALLEL)
        assert decision.reason.startswith("batch-invariant: ")


def test_batch_invariant_cuts_long_k_and_costs_little_where_waves_are_full() -> None:
    one = choose(1, 512, 132, batch_invariant=True)
    assert one.splits >= 4 and one.predicted_gain > 2
    full = choose(132 * 8, 512, 132, batch_invariant=True)
    assert full.splits == one.splits
    assert 0.75 < full.predicted_gain <= 1.0
    assert choose(1, 16, 132, batch_invariant=True).splits == 1


def test_batch_invariant_never_uses_atomics_nor_falls_back_silently() -> None:
    merges = (ATOMIC, LAST_ARRIVER)
    assert choose(1, 512, 132, batch_invariant=True, merges_allowed=merges).merge == LAST_ARRIVER
    only = choose(1, 512, 132, batch_invariant=True, merges_allowed=(ATOMIC,))
    assert only.decomposition == DATA_PARALLEL
    assert "no merge is allowed that adds in a fixed order" in only.reason
    with pytest.raises(WorkspaceLimitTooSmall, match=r"needs 4194304 bytes.*the limit is 1000"):
        choose(16, 512, 132, batch_invariant=True, workspace_limit_bytes=1000, min_panels=100)


# -- arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((4, 8), {}, ValueError, "processor count is not known; give num_sms or device"),
        ((-1, 8, 2), {}, ValueError, "num_tiles must be at least 0, got -1"),
        ((4, 0, 2), {}, ValueError, "panels must be at least 1, got 0"),
        ((4, "8", 2), {}, TypeError, "panels must be an int, got '8'"),
        ((4, True, 2), {}, TypeError, "panels must be an int, got True"),
        ((4, 8, 0), {}, ValueError, "num_sms must be at least 1, got 0"),
        ((4, 8, 2), {"min_panels": 0}, ValueError, "min_panels must be at least 1, got 0"),
        ((4, 8, 2), {"merges_allowed": ("add",)}, ValueError, "merge 'add' is none of last_arr"),
    ],
)
def test_bad_arguments_are_quoted(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        choose(*arguments, **options)


def test_peer_cap_is_near_the_root() -> None:
    device = replace(DEFAULT_DEVICE, panel_us=1.0, peer_us=8.0)
    assert peer_cap(512, device) == 10
    assert peer_cap(2, device) == 2
    assert peer_cap(15625, device) == 47
    assert peer_cap(128, replace(device, peer_us=0.0)) == 16
    assert peer_cap(24, replace(device, peer_us=0.01)) == 3


def test_divisors() -> None:
    for number in range(1, 200):
        assert divisors(number) == [d for d in range(1, number + 1) if number % d == 0]


def test_candidates_start_with_data_parallel_and_are_distinct() -> None:
    found = candidates(pose(40, 96, 132))
    assert found[0].decomposition == DATA_PARALLEL
    keys = [(c.decomposition, c.num_workers) for c in found]
    assert len(keys) == len(set(keys)) > 4
