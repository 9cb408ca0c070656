# SPDX-License-Identifier: Apache-2.0
"""Which decisions the tuner may choose among: the table that a sampled index points into."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

from tvm_streamk.annotation import ATOMIC, LAST_ARRIVER, TWO_PHASE, Option
from tvm_streamk.intrinsics import supports
from tvm_streamk.partition import DATA_PARALLEL, SPLIT_K, STREAM_K, TWO_TILE
from tvm_streamk.tuning.processors import is_cpu

WORKERS_PER_PROCESSOR = (Fraction(1, 2), Fraction(1), Fraction(2), Fraction(4))
"""Grid sizes, in processors: one may hold several blocks, or all may have too little to do."""

SPLITS = (2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
MOST_SPLITS_PER_PROCESSOR = 4

SHARE = {DATA_PARALLEL: 1, STREAM_K: 3, TWO_TILE: 2, SPLIT_K: 3}
"""How often each decomposition is sampled at first, in parts; measurements decide later."""


def merges_for(target: Any, dtype: str) -> tuple[str, ...]:
    """The merges that a target's kernels may use for sums of a type, preferred ones first."""
    kind = str(target.kind.name)
    if is_cpu(target):
        return (TWO_PHASE,)
    needs = {
        LAST_ARRIVER: ("device_fence_int32", "atomic_add_int32"),
        TWO_PHASE: (),
        ATOMIC: (f"atomic_add_{dtype}",),
    }
    return tuple(
        merge
        for merge, operations in needs.items()
        if all(supports(kind, operation) for operation in operations)
    )


def options_for(processors: int, merges: Sequence[str], depth: int) -> tuple[Option, ...]:
    """The table of options for one reduction block.

    Parameters
    ----------
    processors : int
        Workers that run at the same time.
    merges : sequence of str
        Merges that the target allows.
    depth : int
        Length of the whole reduction. Splits that do not divide it divide no number of panels.

    Returns
    -------
    tuple of Option
        The nest as it is first.
    """
    grids = sorted({int(processors * share) for share in WORKERS_PER_PROCESSOR} - {0, 1})
    found = [Option(DATA_PARALLEL, merges[0], 0, 0)]
    for merge in merges:
        found += [Option(word, merge, grid, 0) for word in (STREAM_K, TWO_TILE) for grid in grids]
        found += [Option(SPLIT_K, merge, 0, splits) for splits in _splits(processors, depth)]
    return tuple(found)


def probabilities(options: Sequence[Option]) -> list[float]:
    """How often each option is sampled at first; a decomposition's share is its options' sum."""
    counts = Counter(option.decomposition for option in options)
    whole = sum(SHARE[word] for word in counts)
    return [SHARE[each.decomposition] / whole / counts[each.decomposition] for each in options]


def _splits(processors: int, depth: int) -> Iterator[int]:
    for splits in SPLITS:
        if splits <= MOST_SPLITS_PER_PROCESSOR * processors and depth % splits == 0:
            yield splits
