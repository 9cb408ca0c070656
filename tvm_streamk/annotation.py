# SPDX-License-Identifier: Apache-2.0
"""The recorded decision: what ``sch.stream_k`` writes into the trace and ``LowerStreamK`` reads.

TVM keeps its instruction kinds in C++, so the decision travels as a native ``annotate`` of the root
block: it is printed, stored in databases and replayed. The root block, because tensorization drops
the annotations of the block that it replaces; a list of words and integers, because a dictionary
cannot be replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_streamk.errors import InvalidAnnotation
from tvm_streamk.partition import DATA_PARALLEL, DECOMPOSITIONS, SPLIT_K

ANNOTATION_KEY = "tvm_streamk"
STREAMED_SUFFIX = "_stream_k"
KERNEL_MARK = "tvm_streamk.kernel"
"""Attribute around the work of a GPU worker: it tells our device passes which kernels are ours, and
they remove it. (Attributes of the function do not reach its kernels.)"""
FORMAT_VERSION = 1

ATOMIC = "atomic"
LAST_ARRIVER = "last_arriver"
TWO_PHASE = "two_phase"
MERGES = (ATOMIC, LAST_ARRIVER, TWO_PHASE)
COUNTERS = ("prologue", "argument")
RECORDED_DECOMPOSITIONS = tuple(word for word in DECOMPOSITIONS if word != DATA_PARALLEL)
"""Data-parallel is the nest as it is: there is nothing to record."""
_FIELDS = ("version", "block", "decomposition", "merge", "counters", "num_workers", "splits")


@dataclass(frozen=True)
class RecordedDecision:
    """Everything that the rewrite needs beside the nest itself."""

    block: str
    decomposition: str
    merge: str
    counters: str
    num_workers: int
    splits: int

    def encode(self) -> list[Any]:
        """The annotation's value."""
        return [
            FORMAT_VERSION,
            self.block,
            self.decomposition,
            self.merge,
            self.counters,
            self.num_workers,
            self.splits,
        ]


def decode(value: Any) -> RecordedDecision:
    """Read an annotation's value, trusting nothing: traces are files that people edit."""
    fields = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []
    if len(fields) != len(_FIELDS):
        raise _invalid(value, f"it must be a list of {len(_FIELDS)} entries: {', '.join(_FIELDS)}")
    version, block, decomposition, merge, counters, num_workers, splits = fields
    if _integer(value, "version", version) != FORMAT_VERSION:
        raise _invalid(value, f"its format version is {version}, this package reads 1")
    words = {
        "decomposition": (decomposition, RECORDED_DECOMPOSITIONS),
        "merge": (merge, MERGES),
        "counters": (counters, COUNTERS),
    }
    for name, (word, known) in words.items():
        if str(word) not in known:
            raise _invalid(value, f"its {name} {str(word)!r} is none of {', '.join(known)}")
    decision = RecordedDecision(
        str(block),
        str(decomposition),
        str(merge),
        str(counters),
        _integer(value, "num_workers", num_workers),
        _integer(value, "splits", splits),
    )
    if decision.num_workers < 1 or decision.splits < 0:
        raise _invalid(value, "num_workers must be at least 1 and splits at least 0")
    if (decision.decomposition == SPLIT_K) != (decision.splits > 0):
        raise _invalid(value, "splits belongs to split_k and to nothing else")
    return decision


def _integer(value: Any, name: str, entry: Any) -> int:
    if isinstance(entry, bool) or not isinstance(entry, (int, tirx.IntImm)):
        raise _invalid(value, f"its {name} {entry!r} is not an integer")
    return int(entry)


def _invalid(value: Any, reason: str) -> InvalidAnnotation:
    return InvalidAnnotation(
        f"the root block's annotation {ANNOTATION_KEY!r} = {value} cannot be read: {reason}.",
        hint="record the decision again with sch.stream_k(..., lower=False).",
    )
