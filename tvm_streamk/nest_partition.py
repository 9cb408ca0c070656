# SPDX-License-Identifier: Apache-2.0
"""The partition of a nest: the mathematics over the nest's own number of tiles."""

from __future__ import annotations

from tvm_streamk.annotation import RecordedDecision
from tvm_streamk.expressions import Expression, TirIntegers, dtype_of
from tvm_streamk.partition import PERSISTENT, SPLIT_K, Partition
from tvm_streamk.tile_nest import TileNest

INT32_LIMIT = 2**31


def index_dtype(nest: TileNest) -> str:
    """The type that holds every flattened panel number: int64 where int32 might not."""
    if isinstance(nest.num_tiles, int):
        return "int32" if nest.num_tiles * nest.panels < INT32_LIMIT else "int64"
    return dtype_of(nest.num_tiles)


def is_wide(dtype: str) -> bool:
    """Whether an index type has 64 bits."""
    return dtype == "int64"


def partition_of(nest: TileNest, decision: RecordedDecision) -> Partition:
    """Who does what, over the nest's own (possibly symbolic) number of tiles."""
    workers: int | Expression = decision.num_workers
    if decision.decomposition == SPLIT_K:
        workers = nest.num_tiles * decision.splits
    return Partition(
        nest.num_tiles,
        nest.panels,
        workers,
        decision.decomposition,
        TirIntegers(index_dtype(nest)),
        decision.splits,
    )


def needs_merge(partition: Partition) -> bool:
    """Whether a tile may be cut; with a symbolic number of tiles it may unless none ever is."""
    if isinstance(partition.num_tiles, int):
        return partition.cuts > 0
    return partition.decomposition != PERSISTENT and partition.splits_per_tile != 1
