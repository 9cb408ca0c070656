# SPDX-License-Identifier: Apache-2.0
"""The recorded decision: what ``sch.stream_k`` writes into the trace and ``LowerStreamK`` reads.

TVM keeps its instruction kinds in C++, so the decision travels as a native ``annotate`` of the root
block: it is printed, stored in databases and replayed. The root block, because tensorization drops
the annotations of the block that it replaces; a list of words and integers, because a dictionary
cannot be replayed.

Two formats, told apart by the first entry. Format 1 is a decision: the primitive's arguments, all
decided. Format 2 is a choice of the tuner: a table of decisions, where what depends on sampled tile
sizes is left open until the nest is known. Which of them is taken stands in an annotation of its
own, as a random variable of the trace that a mutation changes: TVM drops the sampling of a variable
that is used in a list only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_streamk.errors import InvalidAnnotation
from tvm_streamk.partition import (
    DATA_PARALLEL,
    DECOMPOSITIONS,
    PERSISTENT,
    SPLIT_K,
    STREAM_K,
    TWO_TILE,
    Partition,
)

ANNOTATION_KEY = "tvm_streamk"
TAKEN_KEY = "tvm_streamk.taken"
STREAMED_SUFFIX = "_stream_k"
KERNEL_MARK = "tvm_streamk.kernel"
"""Attribute around the work of a GPU worker: it tells our device passes which kernels are ours, and
they remove it. (Attributes of the function do not reach its kernels.)"""
FORMAT_VERSION = 1
CHOICE_VERSION = 2

ATOMIC = "atomic"
LAST_ARRIVER = "last_arriver"
TWO_PHASE = "two_phase"
MERGES = (ATOMIC, LAST_ARRIVER, TWO_PHASE)
PROLOGUE = "prologue"
ARGUMENT = "argument"
COUNTERS = (PROLOGUE, ARGUMENT)
RECORDED_DECOMPOSITIONS = tuple(word for word in DECOMPOSITIONS if word != DATA_PARALLEL)
"""Data-parallel is the nest as it is: there is nothing to record."""
_FIELDS = ("version", "block", "decomposition", "merge", "counters", "num_workers", "splits")
_CHOICE_FIELDS = ("version", "block", "counters")
_OPTION_FIELDS = ("decomposition", "merge", "num_workers", "splits")


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

    def resolve(self, _num_tiles: Any, _panels: int) -> RecordedDecision | None:
        """The decision itself: nothing is left open. See :meth:`Choice.resolve`."""
        return self


@dataclass(frozen=True)
class Option:
    """One entry of a choice: a decision as far as it can be taken before tile sizes are known.

    Attributes
    ----------
    decomposition, merge
        Words, as in :class:`RecordedDecision`; ``data_parallel`` leaves the nest as it is.
    num_workers
        Workers of the grid; 0 where the decomposition itself fixes their number.
    splits
        For ``split_k``: segments per tile, else 0.
    """

    decomposition: str
    merge: str
    num_workers: int
    splits: int

    def resolve(
        self, block: str, counters: str, num_tiles: int, panels: int
    ) -> RecordedDecision | None:
        """The decision that this stands for on a nest; None for the nest as it is.

        Options that make the same kernel on that nest give the same decision, so that a search
        does not measure it twice. Whether the decision is legal there is not judged.
        """
        word, merge, workers = self.decomposition, self.merge, self.num_workers
        if word == DATA_PARALLEL:
            return None
        if word == SPLIT_K:
            return RecordedDecision(
                block, word, merge, counters, num_tiles * self.splits, self.splits
            )
        partition = Partition(num_tiles, panels, workers, word)
        if word == TWO_TILE and partition.whole_tiles == 0:
            word = STREAM_K
        elif partition.streamed_tiles == 0:
            word = PERSISTENT
        if partition.cuts == 0 and workers == num_tiles:
            return None
        if partition.cuts == 0:
            merge = TWO_PHASE
        return RecordedDecision(block, word, merge, counters, workers, 0)


@dataclass(frozen=True)
class Choice:
    """A table of options for one block, and the index of the one that is taken."""

    block: str
    counters: str
    options: tuple[Option, ...]
    taken: int = 0

    def encode(self) -> list[Any]:
        """The value of the table's annotation: three entries, then four per option."""
        flat = [
            entry
            for option in self.options
            for entry in (option.decomposition, option.merge, option.num_workers, option.splits)
        ]
        return [CHOICE_VERSION, self.block, self.counters, *flat]

    @property
    def option(self) -> Option:
        """The option that is taken."""
        return self.options[self.taken]

    def resolve(self, num_tiles: Any, panels: int) -> RecordedDecision | None:
        """The decision that the taken option stands for on a nest; None for the nest as it is.

        Raises
        ------
        InvalidAnnotation
            The number of tiles is symbolic.
        """
        if not isinstance(num_tiles, int):
            raise _invalid(self.encode(), f"a choice needs a number of tiles, not {num_tiles}")
        return self.option.resolve(self.block, self.counters, num_tiles, panels)


def decode(value: Any, taken: Any = None) -> RecordedDecision | Choice:
    """Read an annotation's value, trusting nothing: traces are files that people edit.

    Parameters
    ----------
    value
        Of the annotation :data:`ANNOTATION_KEY`.
    taken
        Of the annotation :data:`TAKEN_KEY`; None where there is none.

    Raises
    ------
    InvalidAnnotation
        With the value, and what is wrong with it.
    """
    fields = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []
    if fields and _is_integer(fields[0]) and int(fields[0]) == CHOICE_VERSION:
        return _decode_choice(value, fields, taken)
    if taken is not None:
        raise _invalid(value, f"it has no options, but {TAKEN_KEY!r} takes option {taken}")
    return _decode_decision(value, fields)


def _decode_choice(value: Any, fields: list[Any], taken: Any) -> Choice:
    head, flat = fields[: len(_CHOICE_FIELDS)], fields[len(_CHOICE_FIELDS) :]
    width = len(_OPTION_FIELDS)
    if len(head) < len(_CHOICE_FIELDS) or not flat or len(flat) % width:
        raise _invalid(
            value,
            f"a choice has the {len(_CHOICE_FIELDS)} entries {', '.join(_CHOICE_FIELDS)}, then "
            f"{width} for each option: {', '.join(_OPTION_FIELDS)}",
        )
    _, block, counters = head
    if taken is None:
        raise _invalid(value, f"the annotation {TAKEN_KEY!r}, which option it takes, is missing")
    index = _integer(value, TAKEN_KEY, taken)
    _require_known(value, {"counters": (counters, COUNTERS)})
    options = [
        _decode_option(value, flat[first : first + width]) for first in range(0, len(flat), width)
    ]
    if not 0 <= index < len(options):
        raise _invalid(value, f"it takes option {index} of {len(options)}, counted from 0")
    return Choice(str(block), str(counters), tuple(options), index)


def _decode_option(value: Any, fields: list[Any]) -> Option:
    decomposition, merge, num_workers, splits = fields
    _require_known(
        value, {"decomposition": (decomposition, DECOMPOSITIONS), "merge": (merge, MERGES)}
    )
    option = Option(
        str(decomposition),
        str(merge),
        _integer(value, "num_workers", num_workers),
        _integer(value, "splits", splits),
    )
    has_own_workers = option.decomposition not in (DATA_PARALLEL, SPLIT_K)
    if (option.num_workers > 0) != has_own_workers or option.num_workers < 0:
        raise _invalid(value, f"num_workers={option.num_workers} of {option.decomposition}")
    _require_splits_where_due(value, option.decomposition, option.splits)
    return option


def _decode_decision(value: Any, fields: list[Any]) -> RecordedDecision:
    if len(fields) != len(_FIELDS):
        raise _invalid(value, f"it must be a list of {len(_FIELDS)} entries: {', '.join(_FIELDS)}")
    version, block, decomposition, merge, counters, num_workers, splits = fields
    if _integer(value, "version", version) != FORMAT_VERSION:
        raise _invalid(value, f"its format version is {version}, this package reads 1 and 2")
    _require_known(
        value,
        {
            "decomposition": (decomposition, RECORDED_DECOMPOSITIONS),
            "merge": (merge, MERGES),
            "counters": (counters, COUNTERS),
        },
    )
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
    _require_splits_where_due(value, decision.decomposition, decision.splits)
    return decision


def _require_known(value: Any, words: Mapping[str, tuple[Any, Sequence[str]]]) -> None:
    for name, (word, known) in words.items():
        if str(word) not in known:
            raise _invalid(value, f"its {name} {str(word)!r} is none of {', '.join(known)}")


def _require_splits_where_due(value: Any, decomposition: str, splits: int) -> None:
    if (decomposition == SPLIT_K) != (splits > 0):
        raise _invalid(value, "splits belongs to split_k and to nothing else")


def _is_integer(entry: Any) -> bool:
    return isinstance(entry, (int, tirx.IntImm)) and not isinstance(entry, bool)


def _integer(value: Any, name: str, entry: Any) -> int:
    if not _is_integer(entry):
        raise _invalid(value, f"its {name} {entry!r} is not an integer")
    return int(entry)


def _invalid(value: Any, reason: str) -> InvalidAnnotation:
    return InvalidAnnotation(
        f"the root block's annotation {ANNOTATION_KEY!r} = {value} cannot be read: {reason}.",
        hint="record the decision again with sch.stream_k(..., lower=False), or tune again.",
    )
