# SPDX-License-Identifier: Apache-2.0
"""The merges by the words that name them."""

from __future__ import annotations

from tvm_streamk.annotation import ATOMIC, LAST_ARRIVER, TWO_PHASE
from tvm_streamk.last_arriver import LastArriverMerge
from tvm_streamk.merge import AtomicMerge, Merge, TwoPhaseMerge


def merge_named(word: str) -> Merge:
    """The merge that a word stands for."""
    merges: dict[str, Merge] = {
        ATOMIC: AtomicMerge(),
        LAST_ARRIVER: LastArriverMerge(),
        TWO_PHASE: TwoPhaseMerge(),
    }
    return merges[word]
