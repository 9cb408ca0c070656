# SPDX-License-Identifier: Apache-2.0
"""The closed form: its counts against brute force, its figures against the paper's formula."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_streamk.cost_model import (
    ATOMIC,
    LAST_ARRIVER,
    TWO_PHASE,
    NumpyIntegers,
    data_parallel_us,
    floor_us,
    predict,
    predict_streamed,
    split_k_us,
    traffic_bytes,
    worker_loads,
)
from tvm_streamk.devices import Device, lookup
from tvm_streamk.partition import PERSISTENT, SPLIT_K, STREAM_K, TWO_TILE, Partition

SIMPLE = Device(
    name="simple",
    num_sms=8,
    start_us=3.0,
    split_us=6.0,
    panel_us=1.0,
    peer_us=8.0,
    memory_bytes_per_us=1e6,
)


@given(
    st.integers(1, 50),
    st.integers(1, 30),
    st.integers(1, 40),
    st.sampled_from([STREAM_K, TWO_TILE, PERSISTENT]),
)
@settings(max_examples=200, deadline=None)
def test_loads_against_brute_force(
    num_tiles: int, panels: int, workers: int, decomposition: str
) -> None:
    plain = Partition(num_tiles, panels, workers, decomposition)
    arrays = Partition(num_tiles, panels, workers, decomposition, NumpyIntegers())
    loads = worker_loads(arrays, np.arange(workers))
    cut = []
    for worker in range(workers):
        segments = list(plain.segments(worker))
        partial = [s for s in segments if not s.is_full(panels)]
        midway = [s.tile for s in segments if s.k_begin > 0]
        cut += midway
        assert loads.segments[worker] == len(segments)
        assert loads.partial_segments[worker] == len(partial)
        assert loads.panels[worker] == sum(s.k_end - s.k_begin for s in segments)
        assert loads.peers[worker] == (len(plain.peers(midway[0])) if midway else 1)
    assert loads.is_second_peer.sum() == len(set(cut)) == len(plain.cut_tiles)


def test_a_column_of_grids_gives_what_each_grid_gives() -> None:
    grids = np.arange(1, 90)
    together = Partition(7, 40, grids[:, None], STREAM_K, NumpyIntegers())
    device = SIMPLE.with_processors(90)
    for merge in (LAST_ARRIVER, TWO_PHASE, ATOMIC):
        found = predict_streamed(together, device, merge)
        for row, grid in enumerate(grids.tolist()):
            plain = Partition(7, 40, grid, STREAM_K)
            assert found.time_us[row] == predict(plain, device, merge)
            assert found.most_peers[row] == plain.most_peers


@pytest.mark.parametrize("workers", [1, 2, 4, 8, 16, 32])
def test_one_segment_each_is_the_papers_formula(workers: int) -> None:
    partition = Partition(1, 64, workers)
    cut = workers > 1
    expected = 3 + 6 * cut + 64 / workers + 8 * (workers - 1)
    assert predict(partition, SIMPLE.with_processors(32)) == expected


def test_data_parallel_in_waves_and_with_shared_processors() -> None:
    assert data_parallel_us(8, 10, SIMPLE) == 13
    assert data_parallel_us(9, 10, SIMPLE) == 26
    # Two blocks on a processor share it: nine tiles still mean two on one processor.
    shared = SIMPLE.with_processors(blocks_per_sm=2)
    assert data_parallel_us(9, 10, shared) == 2 * 10 + 3
    assert data_parallel_us(8, 10, shared) < 13


def test_split_k_in_rounds() -> None:
    assert split_k_us(2, 64, 4, SIMPLE, LAST_ARRIVER) == 3 + 16 + 6 + 3 * 8
    assert split_k_us(3, 64, 4, SIMPLE, LAST_ARRIVER) == 2 * (3 + 16 + 6 + 3 * 8)
    assert split_k_us(9, 64, 4, SIMPLE, LAST_ARRIVER) == 5 * 25 + (2 + 3 / 4) * 24
    assert split_k_us(3, 64, 4, SIMPLE, TWO_PHASE) == 2 * (3 + 16 + 6) + 3 + 3 * 8
    assert split_k_us(2, 64, 4, SIMPLE, ATOMIC) == 3 + 16 + 6 + 3
    partition = Partition(2, 64, 8, SPLIT_K)
    assert predict(partition, SIMPLE) == split_k_us(2, 64, 4, SIMPLE, LAST_ARRIVER)
    assert predict(Partition(2, 64, 2, SPLIT_K), SIMPLE) == data_parallel_us(2, 64, SIMPLE)


def test_uncut_partitions_pay_no_merge() -> None:
    for merge in (LAST_ARRIVER, TWO_PHASE, ATOMIC):
        assert predict(Partition(16, 10, 8), SIMPLE, merge) == 2 * 13
        assert predict(Partition(16, 10, 8, PERSISTENT), SIMPLE, merge) == 2 * 13
    assert predict(Partition(0, 10, 8), SIMPLE) == 0


def test_memory_is_a_floor_below_the_arithmetic_and_merges_come_on_top() -> None:
    device = replace(SIMPLE, memory_bytes_per_us=100.0)
    assert traffic_bytes(10, 20, 30, batch=2) == 2 * 2 * (300 + 600 + 200)
    floor = floor_us(device, traffic_bytes(10, 20, 30, batch=2))
    assert floor == 44.0
    assert floor_us(device, None) == 0.0
    assert data_parallel_us(1, 16, device, floor) == 44.0
    assert predict(Partition(1, 16, 2), device, LAST_ARRIVER, floor) == 44.0 + 6 + 8


def test_two_tile_costs_its_slice_and_its_whole_tiles() -> None:
    # 21 tiles of 32 panels on 4: slices of 40 panels, at most 2 partial segments, 4 whole tiles.
    device = SIMPLE.with_processors(4)
    partition = Partition(21, 32, 4, TWO_TILE)
    most = max(
        3 * partition.num_segments(w)
        + 6 * sum(not s.is_full(32) for s in partition.segments(w))
        + sum(s.k_end - s.k_begin for s in partition.segments(w))
        for w in range(4)
    )
    assert predict(partition, device) == most + 8
    assert most == 4 * (3 + 32) + 2 * 3 + 2 * 6 + 40


def test_a_faster_device_is_never_predicted_slower() -> None:
    slow = lookup("a100")
    for field in ("start_us", "split_us", "panel_us", "peer_us"):
        fast = replace(slow, **{field: getattr(slow, field) / 2})
        for partition in (Partition(133, 40, 108, TWO_TILE), Partition(3, 400, 100)):
            assert predict(partition, fast) < predict(partition, slow)
