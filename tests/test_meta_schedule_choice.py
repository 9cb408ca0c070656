# SPDX-License-Identifier: Apache-2.0
"""The tuner's choice as it is recorded: what it stands for on a nest, and strict reading."""

from __future__ import annotations

from typing import Any

import pytest
import schedules
import tvm
import tvm_ffi
import workloads

import tvm_streamk
from tvm_streamk.annotation import (
    ANNOTATION_KEY,
    TAKEN_KEY,
    Choice,
    Option,
    RecordedDecision,
    decode,
)
from tvm_streamk.errors import InvalidAnnotation
from tvm_streamk.tuning.options import SHARE, merges_for, options_for, probabilities

OPTIONS = (
    Option("data_parallel", "two_phase", 0, 0),
    Option("stream_k", "two_phase", 4, 0),
    Option("split_k", "two_phase", 0, 4),
    Option("two_tile", "two_phase", 2, 0),
)


def choice(taken: int) -> Choice:
    return Choice("C", "prologue", OPTIONS, taken)


@pytest.mark.parametrize("taken", range(len(OPTIONS)))
def test_what_is_encoded_is_decoded(taken: int) -> None:
    assert decode(choice(taken).encode(), taken) == choice(taken)


@pytest.mark.parametrize(
    ("option", "tiles", "panels", "expected"),
    [
        (Option("stream_k", "atomic", 4, 0), 3, 8, ("stream_k", "atomic", 4, 0)),
        (Option("split_k", "atomic", 0, 4), 3, 8, ("split_k", "atomic", 12, 4)),
        (Option("two_tile", "atomic", 2, 0), 5, 8, ("two_tile", "atomic", 2, 0)),
        # Fewer than two waves are all streamed: that is stream_k.
        (Option("two_tile", "atomic", 4, 0), 3, 8, ("stream_k", "atomic", 4, 0)),
        (Option("two_tile", "atomic", 4, 0), 7, 8, ("stream_k", "atomic", 4, 0)),
        # Whole waves are not streamed at all, and what is not cut needs no merge.
        (Option("two_tile", "atomic", 2, 0), 6, 8, ("persistent", "two_phase", 2, 0)),
        (Option("stream_k", "atomic", 2, 0), 6, 8, ("stream_k", "two_phase", 2, 0)),
    ],
)
def test_options_that_make_one_kernel_give_one_decision(
    option: Option, tiles: int, panels: int, expected: tuple[Any, ...]
) -> None:
    resolved = option.resolve("C", "prologue", tiles, panels)
    word, merge, workers, splits = expected
    assert resolved == RecordedDecision("C", word, merge, "prologue", workers, splits)


@pytest.mark.parametrize(
    "option",
    [
        Option("data_parallel", "two_phase", 0, 0),
        # A worker per tile and no cut: nothing that the nest does not do itself.
        Option("stream_k", "two_phase", 6, 0),
        Option("two_tile", "two_phase", 6, 0),
    ],
)
def test_options_that_leave_the_nest_as_it_is(option: Option) -> None:
    assert option.resolve("C", "prologue", 6, 8) is None


def test_a_symbolic_number_of_tiles_cannot_be_resolved() -> None:
    with pytest.raises(InvalidAnnotation, match="needs a number of tiles"):
        choice(1).resolve(tvm.tirx.Var("tiles", "int32"), 8)


@pytest.mark.parametrize(
    ("value", "taken", "message"),
    [
        ([2, "C", "prologue"], 0, "a choice has the 3 entries"),
        ([2, "C", "prologue", "stream_k", "two_phase", 4], 0, "then 4 for each option"),
        ([2, "C", "argv", "stream_k", "two_phase", 4, 0], 0, "counters 'argv' is none of"),
        ([2, "C", "prologue", "magic", "two_phase", 4, 0], 0, "'magic' is none of"),
        ([2, "C", "prologue", "stream_k", "glue", 4, 0], 0, "merge 'glue' is none of"),
        ([2, "C", "prologue", "stream_k", "two_phase", 0, 0], 0, "num_workers=0 of stream_k"),
        ([2, "C", "prologue", "stream_k", "two_phase", -3, 0], 0, "num_workers=-3 of stream_k"),
        ([2, "C", "prologue", "split_k", "two_phase", 4, 2], 0, "num_workers=4 of split_k"),
        ([2, "C", "prologue", "split_k", "two_phase", 0, 0], 0, "splits belongs to split_k"),
        ([2, "C", "prologue", "stream_k", "two_phase", 4, 0], 1, "takes option 1 of 1"),
        ([2, "C", "prologue", "stream_k", "two_phase", 4, 0], -1, "takes option -1 of 1"),
        ([2, "C", "prologue", "stream_k", "two_phase", 4, 0], "0", "is not an integer"),
        ([2, "C", "prologue", "stream_k", "two_phase", 4, 0], None, "is missing"),
        ([1, "C", "stream_k", "two_phase", "prologue", 4, 0], 0, "it has no options"),
        ([3, "C", "stream_k", "two_phase", "prologue", 4, 0], None, "this package reads 1 and 2"),
    ],
)
def test_what_cannot_be_read_is_refused(value: list[Any], taken: Any, message: str) -> None:
    with pytest.raises(InvalidAnnotation, match=message):
        decode(value, taken)


def chosen(taken: int) -> Any:
    schedule = schedules.hand_cpu(workloads.gemm(48, 32, 64))
    root = schedule.get_sblock("root")
    schedule.annotate(root, ANNOTATION_KEY, choice(taken).encode())
    schedule.annotate(root, TAKEN_KEY, taken)
    return schedule


@pytest.mark.parametrize("taken", range(len(OPTIONS)))
def test_a_choice_is_lowered_as_the_primitive_lowers_it(taken: int) -> None:
    lowered = tvm_streamk.LowerStreamK()(chosen(taken).mod)
    expected = schedules.hand_cpu(workloads.gemm(48, 32, 64))
    calls: list[dict[str, Any]] = [
        {"decomposition": "data_parallel"},
        {"decomposition": "stream_k", "num_workers": 4},
        {"decomposition": "split_k", "splits": 4},
        # Three tiles on two workers are less than two waves.
        {"decomposition": "stream_k", "num_workers": 2},
    ]
    expected.stream_k("C", merge="two_phase", **calls[taken])
    assert tvm_ffi.structural_equal(lowered, expected.mod)


def test_a_choice_that_does_not_fit_is_refused_by_the_pass() -> None:
    options = (Option("split_k", "two_phase", 0, 7),)
    schedule = schedules.hand_cpu(workloads.gemm(48, 32, 64))
    root = schedule.get_sblock("root")
    schedule.annotate(root, ANNOTATION_KEY, Choice("C", "prologue", options).encode())
    schedule.annotate(root, TAKEN_KEY, 0)
    with pytest.raises(InvalidAnnotation, match="splits=7 does not divide the 8 panels"):
        tvm_streamk.LowerStreamK()(schedule.mod)


def test_a_schedule_with_a_choice_is_not_streamed_again() -> None:
    assert "AlreadyStreamed" in str(tvm_streamk.can_stream_k(chosen(1), "C"))


# -- the table of options --------------------------------------------------------------------------


def test_options_of_a_cpu_with_two_cores() -> None:
    options = options_for(2, ("two_phase",), 4096)
    streamed = {(o.decomposition, o.num_workers) for o in options if o.num_workers}
    assert streamed == {(word, n) for word in ("stream_k", "two_tile") for n in (2, 4, 8)}
    assert [o.splits for o in options if o.splits] == [2, 4, 8]
    assert options[0].decomposition == "data_parallel"


def test_options_of_a_gpu() -> None:
    options = options_for(132, ("last_arriver", "atomic"), 9 * 64)
    grids = {o.num_workers for o in options if o.decomposition == "stream_k"}
    assert grids == {66, 132, 264, 528}
    assert {o.merge for o in options if o.num_workers} == {"last_arriver", "atomic"}
    splits = {o.splits for o in options if o.splits}
    assert {3, 9 * 64 // 6} <= splits | {96}
    assert all(9 * 64 % each == 0 for each in splits)


def test_every_option_can_be_decoded() -> None:
    options = options_for(132, ("last_arriver", "two_phase", "atomic"), 4096)
    for taken in range(len(options)):
        table = Choice("C", "prologue", options, taken)
        assert decode(table.encode(), taken).option == options[taken]


def test_probabilities_are_shares_of_decompositions() -> None:
    options = options_for(132, ("last_arriver", "two_phase", "atomic"), 4096)
    chances = probabilities(options)
    assert sum(chances) == pytest.approx(1)
    for word, share in SHARE.items():
        own = sum(p for p, o in zip(chances, options, strict=True) if o.decomposition == word)
        assert own == pytest.approx(share / sum(SHARE.values()))


@pytest.mark.parametrize(
    ("target", "dtype", "merges"),
    [
        ("llvm", "float32", ("two_phase",)),
        ("cuda", "float32", ("last_arriver", "two_phase", "atomic")),
        ("cuda", "float16", ("last_arriver", "two_phase")),
        ("opencl", "float64", ("last_arriver", "two_phase", "atomic")),
        ("metal", "float32", ("two_phase", "atomic")),
        ("vulkan", "float32", ("two_phase",)),
    ],
)
def test_merges_that_a_target_allows(target: str, dtype: str, merges: tuple[str, ...]) -> None:
    assert merges_for(tvm.target.Target(target), dtype) == merges
