# SPDX-License-Identifier: Apache-2.0
"""Checks that several test files share."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from workloads import Workload

from tvm_streamk.testing import poisoned, prepare

LAUNCHES = 2
"""Twice in a row on the same buffers: what a first launch leaves behind must not matter."""


def check_numerics(module: Any, workload: Workload, target: Any) -> None:
    """Run a module on poisoned outputs, twice, and compare exactly with numpy."""
    output = poisoned(workload.expected.shape, workload.expected.dtype)
    prepared = prepare(module, target, [*workload.inputs, output])
    for _ in range(LAUNCHES):
        prepared.launch()
        *inputs, result = prepared.read()
        np.testing.assert_array_equal(result, workload.expected)
    for before, after in zip(workload.inputs, inputs, strict=True):
        np.testing.assert_array_equal(after, before)


def state_of(schedule: Any) -> tuple[str, str]:
    """The text of a schedule's module and of its trace."""
    return schedule.mod.script(), str(schedule.trace)


@contextlib.contextmanager
def refused(schedule: Any, error: type[Exception], message: str) -> Iterator[None]:
    """Expect exactly ``error`` with ``message`` in it, and nothing changed by the attempt."""
    before = state_of(schedule)
    with pytest.raises(error, match=message) as caught:
        yield
    assert type(caught.value) is error
    assert state_of(schedule) == before


def pairwise(**factors: Sequence[Any]) -> list[dict[str, Any]]:
    """Few combinations in which every two values of different factors meet at least once.

    Greedy, and the same on every run: each next combination is the one of all that brings together
    the most pairs that have not met.
    """
    combinations = every_combination(**factors)

    def pairs(combination: dict[str, Any]) -> set[Any]:
        return set(itertools.combinations(combination.items(), 2))

    missing = set().union(*map(pairs, combinations))
    chosen = []
    while missing:
        best = max(combinations, key=lambda combination: len(pairs(combination) & missing))
        missing -= pairs(best)
        chosen.append(best)
    return chosen


def every_combination(**factors: Sequence[Any]) -> list[dict[str, Any]]:
    """The full product of the factors."""
    return [
        dict(zip(factors, values, strict=True)) for values in itertools.product(*factors.values())
    ]


def workers_from(word: str, num_tiles: int, panels: int) -> int:
    """A number of workers from a word: a number, ``T``, ``T+1`` or ``T*P``."""
    named = {"T": num_tiles, "T+1": num_tiles + 1, "T*P": num_tiles * panels}
    return named[word] if word in named else int(word)
