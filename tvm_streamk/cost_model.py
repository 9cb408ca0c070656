# SPDX-License-Identifier: Apache-2.0
"""What a partition costs on a device, in closed form: the model behind every decision.

The "Stream-K" paper (section 5.1) predicts a grid of ``g`` workers, one segment each, as
``start + split * [peers > 1] + panel * panels + peer * (peers - 1)``. The model here has the same
four constants and gives the same figure there. Where a worker has several segments it counts a
start for each segment and a split for each partial one, takes the worker that has most to do, and
adds the largest merge; :mod:`tvm_streamk.simulate` plays the same costs event by event.

Two rules make it careful, so that what it recommends is not slower than what it replaces:

- Data-parallel is taken at its best. A block that is alone on its processor runs at the whole
  processor's speed, so blocks per processor do not make its waves longer. A persistent worker
  gets no such bonus.
- Memory is a floor for the arithmetic, for every decomposition alike, and merges come on top.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_streamk.devices import Device
from tvm_streamk.partition import DATA_PARALLEL, SPLIT_K, Partition

ATOMIC = "atomic"
LAST_ARRIVER = "last_arriver"
TWO_PHASE = "two_phase"
MERGES = (LAST_ARRIVER, TWO_PHASE, ATOMIC)
"""The words for a merge, in the order in which they are preferred."""

MERGES_IN_A_ROW = 2
"""Rounds of ``split_k`` whose merges are counted in full."""

Array = Any
"""A NumPy array of int64 or float64."""


class NumpyIntegers:
    """The operators of :class:`tvm_streamk.partition.Operators` on integers and NumPy arrays."""

    def minimum(self, left: Array, right: Array) -> Array:
        """Return the smaller of two integers, element by element."""
        return np.minimum(left, right)

    def maximum(self, left: Array, right: Array) -> Array:
        """Return the larger of two integers, element by element."""
        return np.maximum(left, right)

    def where_less(self, left: Array, right: Array, then: Array, otherwise: Array) -> Array:
        """Return ``then`` where ``left < right``, else ``otherwise``."""
        return np.where(left < right, then, otherwise)


@dataclass(frozen=True)
class WorkerLoads:
    """What each worker has to do; arrays of one element per worker.

    ``panels``, ``segments`` and ``partial_segments`` are counts; ``peers`` is the number of
    workers on the tile that the worker's slice begins in, 1 where it begins no tile midway;
    ``is_second_peer`` holds for one worker of every tile that is cut.
    """

    panels: Array
    segments: Array
    partial_segments: Array
    peers: Array
    is_second_peer: Array


def worker_loads(partition: Partition, workers: Array) -> WorkerLoads:
    """Count what workers have to do, by the partition's own formulas on whole arrays.

    Parameters
    ----------
    partition : Partition
        With :class:`NumpyIntegers`. ``num_workers`` may be a column of several grid sizes; the
        counts then have one row for each.
    workers : array of int
        Worker indices. Indices beyond a row's grid count as idle.
    """
    panels = partition.panels
    begin, end = partition.slice_begin(workers), partition.slice_begin(workers + 1)
    busy = (end > begin) & (workers < partition.num_workers)
    first, last = begin // panels, (end - 1) // panels
    starts_midway = (begin % panels != 0) & busy
    ends_midway = (end % panels != 0) & busy
    both_in_one = starts_midway & ends_midway & (first == last)
    partial = starts_midway.astype(np.int64) + ends_midway - both_in_one
    whole = partition.num_whole_segments(workers)
    return WorkerLoads(
        panels=np.where(busy, end - begin, 0) + whole * panels,
        segments=np.where(busy, last - first + 1, 0) + whole,
        partial_segments=partial,
        peers=np.where(starts_midway, partition.num_peers(first), 1),
        is_second_peer=starts_midway & (partition.slice_begin(workers - 1) <= first * panels),
    )


@dataclass(frozen=True)
class Prediction:
    """Times in microseconds and counts, a scalar each or an array with one row per grid size."""

    time_us: Any
    most_peers: Any


def _merge_us(device: Device, merge: str, most_peers: Array, num_cut_tiles: Array) -> Array:
    """Return what comes after the last worker's own segments."""
    is_cut = most_peers > 1
    if merge == ATOMIC:
        return np.where(is_cut, device.start_us, 0.0)
    adding = device.peer_us * (most_peers - 1)
    if merge == LAST_ARRIVER:
        return adding
    rounds = -(-num_cut_tiles // device.num_slots)
    return np.where(is_cut, rounds * (device.start_us + adding), 0.0)


def predict_streamed(
    partition: Partition, device: Device, merge: str, floor_us: float = 0.0
) -> Prediction:
    """Predict a partition whose workers all run at once.

    Parameters
    ----------
    partition : Partition
        ``stream_k``, ``two_tile`` or ``persistent``, with :class:`NumpyIntegers`; no more workers
        than the device has slots. ``num_workers`` may be a column of grid sizes.
    device : Device
        Its constants must be those of the partition's tile.
    merge : str
        One of :data:`MERGES`.
    floor_us : float
        Time for the memory traffic alone.
    """
    workers: Array = np.arange(int(np.max(partition.num_workers)), dtype=np.int64)
    loads = worker_loads(partition, workers)
    computing = device.start_us * loads.segments + device.panel_us * loads.panels
    busy_us = np.maximum(computing, floor_us) + device.split_us * loads.partial_segments
    most_peers = loads.peers.max(axis=-1)
    num_cut_tiles = loads.is_second_peer.sum(axis=-1)
    merge_us = _merge_us(device, merge, most_peers, num_cut_tiles)
    return Prediction(busy_us.max(axis=-1) + merge_us, most_peers)


def data_parallel_us(num_tiles: int, panels: int, device: Device, floor_us: float = 0.0) -> float:
    """Predict the data-parallel kernel: tiles in waves, one block each.

    The blocks of a processor share its arithmetic and hide each other's starts, so they take as
    long as if they came one by one, each alone and ``blocks_per_sm`` times as fast.
    """
    tiles_per_processor = -(-num_tiles // device.num_sms)
    one_tile_us = (device.start_us + panels * device.panel_us) / device.blocks_per_sm
    return max(tiles_per_processor * one_tile_us, floor_us)


def split_k_us(
    num_tiles: int, panels: int, splits: int, device: Device, merge: str, floor_us: float = 0.0
) -> float:
    """Predict ``split_k``: ``num_tiles * splits`` equal pieces, in rounds if there are many.

    Where the last arriver merges, one piece in ``splits`` does so. A merge delays what its
    processor does next, which may be the last piece of another tile: two merges in a row are
    counted in full, later ones by their share.
    """
    rounds = -(-num_tiles * splits // device.num_slots)
    computing = rounds * (device.start_us + device.panel_us * (panels // splits))
    merging = float(_merge_us(device, merge, np.int64(splits), np.int64(num_tiles)))
    if merge == LAST_ARRIVER:
        merging *= min(rounds, MERGES_IN_A_ROW) + max(rounds - MERGES_IN_A_ROW, 0) / splits
    return max(computing, floor_us) + rounds * device.split_us + merging


def predict(
    partition: Partition, device: Device, merge: str = LAST_ARRIVER, floor_us: float = 0.0
) -> float:
    """Predict any partition of a constant number of tiles, in microseconds."""
    if partition.num_tiles == 0:
        return 0.0
    if partition.decomposition == DATA_PARALLEL:
        return data_parallel_us(partition.num_tiles, partition.panels, device, floor_us)
    if partition.decomposition == SPLIT_K:
        splits = partition.num_workers // partition.num_tiles
        if splits == 1:
            return data_parallel_us(partition.num_tiles, partition.panels, device, floor_us)
        return split_k_us(partition.num_tiles, partition.panels, splits, device, merge, floor_us)
    vectorised = Partition(
        partition.num_tiles,
        partition.panels,
        partition.num_workers,
        partition.decomposition,
        NumpyIntegers(),
    )
    return float(predict_streamed(vectorised, device, merge, floor_us).time_us)


def traffic_bytes(
    m: int, n: int, k: int, batch: int = 1, input_bytes: int = 2, output_bytes: int = 2
) -> int:
    """Return the bytes that a matrix product must move at least: every operand once."""
    return batch * ((m * k + k * n) * input_bytes + m * n * output_bytes)


def floor_us(device: Device, traffic: int | None) -> float:
    """Return the time that the memory traffic alone takes; 0 where it is not known."""
    return 0.0 if traffic is None else traffic / device.memory_bytes_per_us
