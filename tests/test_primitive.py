# SPDX-License-Identifier: Apache-2.0
"""``sch.stream_k``: arguments, what it leaves unchanged, handles, and the plan that it returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import schedules
import tvm
import tvm_ffi
from helpers import refused, state_of
from schedules import GpuTiling
from tvm.s_tir import Schedule
from workloads import Workload, gemm, row_extremes, symbolic_gemm

import tvm_streamk
from tvm_streamk import errors
from tvm_streamk.annotation import ANNOTATION_KEY

TILES, PANELS = 9, 5
GEMM = gemm(20, 40, 40)
SMALL = GpuTiling(tile=(8, 16), per_thread=(2, 2), vthreads=(1, 2))


def gpu(workload: Workload = GEMM) -> Schedule:
    """The GPU schedule of these tests: 3 x 3 tiles of 5 panels for the default workload."""
    return schedules.hand_gpu(workload, SMALL)


def cpu(workload: Workload = GEMM) -> Schedule:
    """The CPU schedule of these tests: 9 tiles of 5 panels for the default workload."""
    return schedules.hand_cpu(workload, tile=(8, 16))


# -- arguments -------------------------------------------------------------------------------------

POSITIVE = "must be a positive int, got"
BAD_ARGUMENTS: list[tuple[dict[str, Any], type[Exception], str]] = [
    *(
        ({name: value}, errors.InvalidArgument, f"{name} {POSITIVE} {shown}")
        for name in ("num_workers", "num_sms", "splits")
        for value, shown in ((0, "0"), (-1, "-1"), ("4", "'4'"), (True, "True"), (2.0, r"2\.0"))
    ),
    ({"num_workers": np.int64(4)}, errors.InvalidArgument, f"num_workers {POSITIVE} np.int64"),
    (
        {"num_workers": 2, "decomposition": "streamk"},
        errors.InvalidArgument,
        "decomposition must be one of auto, data_parallel, .*; got 'streamk'",
    ),
    (
        {"num_workers": 2, "decomposition": ["stream_k"]},
        errors.InvalidArgument,
        r"decomposition must be one of .*; got \['stream_k'\]",
    ),
    ({"num_workers": 2, "merge": "last"}, errors.InvalidArgument, "merge must be .* got 'last'"),
    ({"num_workers": 2, "merge": None}, errors.InvalidArgument, "merge must be one .* got None"),
    ({"num_workers": 2, "counters": "x"}, errors.InvalidArgument, "counters must be .* got 'x'"),
    ({"num_workers": 2, "lower": 1}, errors.InvalidArgument, "lower must be True or False, got 1"),
    ({"num_workers": 2, "splits": 5}, errors.InvalidArgument, "splits=5 belongs to .*'split_k'"),
    ({"decomposition": "split_k"}, errors.InvalidArgument, "needs splits, .* Try: splits=5"),
    (
        {"decomposition": "split_k", "splits": 2},
        errors.SplitsDoNotDivide,
        "splits=2 does not divide the 5 panels of a tile. Try: splits=5, or",
    ),
    (
        {"decomposition": "split_k", "splits": 5, "num_workers": 7},
        errors.InvalidArgument,
        "num_workers=7, but 'split_k' has 5 per tile and there are 9 tiles",
    ),
    (
        {"decomposition": "data_parallel", "num_workers": 7},
        errors.InvalidArgument,
        "num_workers=7, but 'data_parallel' has 1 per tile and there are 9 tiles",
    ),
    ({}, errors.WorkersUnknown, "nothing tells how many processors there are. Try: num_workers"),
    (
        {"num_workers": TILES * PANELS + 1},
        errors.TooManyWorkers,
        "num_workers=46, but there are only 9 tiles x 5 panels = 45 panels: 1 workers would",
    ),
    (
        {"num_workers": TILES + 1, "decomposition": "persistent"},
        errors.TooManyWorkers,
        "num_workers=10, but there are only 9 tiles, done whole: 1 workers would",
    ),
]


@pytest.mark.parametrize("make", [gpu, cpu])
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    BAD_ARGUMENTS,
    ids=[str(arguments) for arguments, _, _ in BAD_ARGUMENTS],
)
def test_bad_arguments(
    make: Callable[[], Schedule], arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    schedule = make()
    with refused(schedule, error, message):
        schedule.stream_k("C", **arguments)


@pytest.mark.parametrize(
    ("block", "error", "message"),
    [
        ("D", errors.BlockNotFound, "block 'D': there is no such block .*; the blocks are: "),
        ("", errors.BlockNotFound, "there is no such block in the nest"),
        ("root", errors.BlockNotFound, "block 'root': there is no such block in the nest"),
        (None, errors.InvalidArgument, "name of a block or an SBlockRV, got None"),
        (7, errors.InvalidArgument, r"name of a block or an SBlockRV, got 7 \(int\)"),
    ],
)
def test_bad_block(block: Any, error: type[Exception], message: str) -> None:
    schedule = gpu()
    with refused(schedule, error, message):
        schedule.stream_k(block, num_workers=2)


def test_loop_instead_of_block() -> None:
    schedule = gpu()
    (loop, *_) = schedule.get_loops("C_update")
    with refused(schedule, errors.InvalidArgument, "name of a block or an SBlockRV, got .*LoopRV"):
        schedule.stream_k(loop, num_workers=2)


def test_block_of_another_schedule() -> None:
    schedule, other = gpu(), gpu()
    block = other.get_sblock("C_update")
    with refused(schedule, errors.BlockNotFound, "does not belong to this schedule"):
        schedule.stream_k(block, num_workers=2)


def test_arguments_are_checked_before_the_nest() -> None:
    schedule = gpu()
    with refused(schedule, errors.InvalidArgument, "num_workers must be a positive int, got 0"):
        schedule.stream_k("no such block", num_workers=0)


def test_several_functions() -> None:
    module = tvm.IRModule({"main": GEMM.function, "other": gemm(4, 4, 8).function})
    schedule = Schedule(module)
    with refused(schedule, errors.SeveralKernels, r"has 2 TensorIR functions \(main, other\)"):
        schedule.stream_k("C", num_workers=2)


def test_no_tiles() -> None:
    schedule = cpu(gemm(0, 40, 40))
    with refused(schedule, errors.TooManyWorkers, "an output extent is 0, so there is no tile"):
        schedule.stream_k("C", num_workers=2)


# -- merges that do not suit -----------------------------------------------------------------------


@pytest.mark.parametrize("merge", ["atomic", "last_arriver"])
def test_merges_of_gpu_grids_on_a_cpu_grid(merge: str) -> None:
    schedule = cpu()
    with refused(schedule, errors.MergeNotSupported, f'merge="{merge}" needs a GPU grid'):
        schedule.stream_k("C", num_workers=2, merge=merge)


def test_atomic_needs_a_plain_store() -> None:
    schedule = gpu(gemm(20, 40, 40, epilogue=lambda value: value * 2))
    schedule.reverse_compute_inline("D")
    message = r"block 'C_local' stores `C_local\[v0.*, v1.*\] \* T.float32\(2.0\)`"
    with refused(schedule, errors.AtomicNeedsPlainStore, message):
        schedule.stream_k("C", num_workers=2, merge="atomic")


def test_atomic_needs_a_sum() -> None:
    schedule = schedules.hand_gpu_rows(row_extremes(40, 50))
    with refused(schedule, errors.AtomicNeedsSum, "can add, but the reduction is a max"):
        schedule.stream_k("C", num_workers=2, merge="atomic")


@pytest.mark.parametrize("dtype", ["float16", "int64"])
def test_atomic_needs_a_type_with_an_atomic_add(dtype: str) -> None:
    schedule = gpu(gemm(20, 40, 40, dtype))
    with refused(schedule, errors.AtomicNotSupported, f"the output `C` is {dtype}; atomic adds"):
        schedule.stream_k("C", num_workers=2, merge="atomic")


def test_merge_is_not_judged_where_nothing_is_cut() -> None:
    plan = cpu().stream_k("C", num_workers=3, decomposition="persistent", merge="atomic")
    assert plan.cuts == 0


# -- applied twice ---------------------------------------------------------------------------------


def test_applied_twice() -> None:
    schedule = gpu()
    schedule.stream_k("C", num_workers=4, merge="two_phase")
    with refused(schedule, errors.AlreadyStreamed, r"Stream-K kernel already \(block 'C_stream_k'"):
        schedule.stream_k("C", num_workers=4, merge="two_phase")


def test_recorded_twice() -> None:
    schedule = gpu()
    schedule.stream_k("C", num_workers=4, merge="two_phase", lower=False)
    with refused(schedule, errors.AlreadyStreamed, 'carries a decision: .*"two_phase".* 4, 0'):
        schedule.stream_k("C", num_workers=4, merge="two_phase", lower=False)


# -- how many workers ------------------------------------------------------------------------------


def test_workers_from_the_cores_of_the_target() -> None:
    with tvm.target.Target({"kind": "llvm", "num-cores": 4}):
        plan = cpu().stream_k("C", decomposition="stream_k")
    assert (plan.num_workers, plan.processors) == (4, 4)


def test_workers_from_num_sms() -> None:
    plan = gpu().stream_k("C", num_sms=4, merge="two_phase", decomposition="stream_k")
    assert (plan.num_workers, plan.processors, plan.notes) == (4, 4, ())


def test_more_processors_than_panels_are_capped_and_said() -> None:
    plan = gpu().stream_k("C", num_sms=132, merge="two_phase", decomposition="stream_k")
    assert plan.num_workers == TILES * PANELS
    assert any("132 processors, but only 9 tiles x 5 panels" in note for note in plan.notes)
    assert "note: 132 processors, but only" in str(plan)


def test_target_without_a_count() -> None:
    schedule = gpu()
    with (
        tvm.target.Target({"kind": "cuda", "arch": "sm_80"}),
        refused(schedule, errors.WorkersUnknown, "num_workers=132"),
    ):
        schedule.stream_k("C", merge="two_phase", decomposition="stream_k")


# -- what must not change --------------------------------------------------------------------------

WAYS_TO_SCHEDULE: dict[str, Callable[[Any], Schedule]] = {
    "function": Schedule,
    "module": lambda function: Schedule(tvm.IRModule({"main": function})),
    "derived function": lambda function: Schedule(function.with_attr("note", 1)),
    "derived in a module": lambda function: Schedule(
        tvm.IRModule({"main": function.with_attr("note", 1)})
    ),
    "all checks": lambda function: Schedule(function.with_attr("note", 1), debug_mask="all"),
}


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("way", WAYS_TO_SCHEDULE)
@pytest.mark.parametrize("make", [gpu, cpu, lambda: schedules.fresh(GEMM)])
def test_the_input_function_is_unchanged(
    make: Callable[[], Schedule], way: str, lower: bool
) -> None:
    function = make().mod["main"]
    text, number = function.script(), tvm_ffi.structural_hash(function)
    WAYS_TO_SCHEDULE[way](function).stream_k("C", num_workers=4, merge="two_phase", lower=lower)
    assert function.script() == text
    assert tvm_ffi.structural_hash(function) == number


@pytest.mark.parametrize("lower", [True, False])
def test_the_module_before_is_unchanged(lower: bool) -> None:
    schedule = gpu()
    module = schedule.mod
    text, copy = module.script(), schedule.copy()
    schedule.stream_k("C", num_workers=4, merge="two_phase", lower=lower)
    assert module.script() == text
    assert copy.mod.script() == text
    assert schedule.mod.script() != text


def test_attributes_of_the_function_are_kept() -> None:
    function = gpu().mod["main"].with_attr("note", 7)
    schedule = Schedule(function)
    schedule.stream_k("C", num_workers=4, merge="two_phase")
    assert schedule.mod["main"].attrs["note"] == 7
    assert [p.name for p in schedule.mod["main"].params] == ["A", "B", "C"]


def test_data_parallel_leaves_the_nest_as_it_is() -> None:
    schedule = gpu()
    before = state_of(schedule)
    plan = schedule.stream_k("C", decomposition="data_parallel")
    assert state_of(schedule) == before
    assert (plan.num_workers, plan.cuts) == (TILES, 0)


def test_not_lowered_means_annotated_only() -> None:
    schedule = gpu()
    text = schedule.mod.script()
    schedule.stream_k("C", num_workers=4, merge="two_phase", lower=False)
    root = schedule.get_sblock("root")
    value = list(schedule.get(root).annotations[ANNOTATION_KEY])
    assert value == [1, "C", "stream_k", "two_phase", "prologue", 4, 0]
    schedule.unannotate(root, ANNOTATION_KEY)
    assert schedule.mod.script() == text


# -- handles ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", ["none", "all"])
@pytest.mark.parametrize("merge", ["two_phase", "atomic", "last_arriver"])
def test_handles_still_resolve(merge: str, mask: str) -> None:
    schedule = Schedule(gpu().mod, debug_mask=mask)
    names = ["root", "C_init", "A_shared", "B_shared", "C_update", "C_local"]
    handles = {name: schedule.get_sblock(name) for name in names}
    schedule.stream_k("C", num_workers=4, merge=merge)
    for name, handle in handles.items():
        assert schedule.get(handle).same_as(schedule.get(schedule.get_sblock(name)))
        assert schedule.get(handle).name_hint == name


def test_handle_of_the_block_whose_init_was_inside() -> None:
    schedule = schedules.fresh(GEMM)
    handle = schedule.get_sblock("C")
    schedule.stream_k(handle, num_workers=4)
    assert schedule.get(handle).same_as(schedule.get(schedule.get_sblock("C_update")))


def test_the_kernel_can_be_scheduled_further() -> None:
    schedule = cpu()
    schedule.stream_k("C", num_workers=4)
    (worker, _segment) = schedule.get_loops("C_stream_k")
    schedule.annotate(worker, "note", 1)
    assert schedule.get(worker).annotations["note"] == 1


@pytest.mark.parametrize("merge", ["two_phase", "atomic", "last_arriver"])
@pytest.mark.parametrize("decomposition", ["stream_k", "two_tile", "persistent"])
def test_what_comes_out_is_well_formed(merge: str, decomposition: str) -> None:
    schedule = gpu()
    schedule.stream_k("C", num_workers=4, merge=merge, decomposition=decomposition)
    assert tvm.s_tir.analysis.verify_well_formed(schedule.mod)


def test_free_function_and_method_are_the_same() -> None:
    by_method, by_function = gpu(), gpu()
    plan = by_method.stream_k("C", num_workers=4, merge="two_phase")
    assert tvm_streamk.stream_k(by_function, "C", num_workers=4, merge="two_phase") == plan
    tvm.ir.assert_structural_equal(by_method.mod, by_function.mod)


# -- the plan --------------------------------------------------------------------------------------


def test_numbers_of_the_plan() -> None:
    plan = gpu().stream_k("C", num_workers=4, merge="two_phase")
    slot_bytes = 8 * 16 * 4
    assert (plan.num_tiles, plan.panels, plan.num_workers) == (TILES, PANELS, 4)
    assert (plan.waves_before, plan.waves_after) == (3, 12 / 5)
    assert (plan.cuts, plan.most_peers) == (3, 2)
    assert plan.slot_bytes == slot_bytes
    assert plan.workspace_bytes == 2 * 4 * slot_bytes


def test_plan_prints() -> None:
    plan = gpu().stream_k("C", num_workers=4, merge="two_phase", decomposition="stream_k")
    assert str(plan) == (
        "Stream-K plan\n"
        "  block                  C on a gpu grid\n"
        "  decomposition          stream_k\n"
        "  merge                  two_phase\n"
        "  tiles                  9\n"
        "  panels per tile        5\n"
        "  workers                4 on 4 processors\n"
        "  waves before -> after  3 -> 2.40\n"
        "  cuts                   3\n"
        "  most peers             2\n"
        "  workspace              4.0 KiB"
    )


def workspaces(schedule: Schedule) -> list[Any]:
    """The global buffers that the function allocates at its root."""
    root = schedule.get(schedule.get_sblock("root"))
    return [buffer for buffer in root.alloc_buffers if "workspace" in buffer.name]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize(
    "arguments",
    [
        {"num_workers": 4},
        {"num_workers": 4, "decomposition": "two_tile"},
        {"decomposition": "split_k", "splits": 5},
    ],
)
def test_workspace_is_as_large_as_the_plan_says(dtype: str, arguments: dict[str, Any]) -> None:
    schedule = gpu(gemm(20, 40, 40, dtype))
    plan = schedule.stream_k("C", merge="two_phase", **arguments)
    (workspace,) = workspaces(schedule)
    elements = np.prod([int(extent) for extent in workspace.shape])
    assert workspace.dtype == dtype
    assert elements * np.dtype(dtype).itemsize == plan.workspace_bytes


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_workers": 4, "merge": "atomic"},
        {"num_workers": 3, "merge": "two_phase"},
        {"num_workers": 4, "merge": "two_phase", "decomposition": "persistent"},
    ],
)
def test_no_workspace_where_none_is_needed(arguments: dict[str, Any]) -> None:
    schedule = gpu()
    plan = schedule.stream_k("C", **arguments)
    assert plan.workspace_bytes == 0
    assert workspaces(schedule) == []


def test_plan_says_what_auto_chose() -> None:
    plan = gpu().stream_k("C", num_workers=4)
    assert (plan.decision.decomposition, plan.decision.merge) == ("stream_k", "last_arriver")
    assert any("num_workers was given" in note for note in plan.notes)
    assert cpu().stream_k("C", num_workers=4).decision.merge == "two_phase"


def test_plan_of_a_symbolic_shape() -> None:
    plan = cpu(symbolic_gemm(5, 40, 24)).stream_k("C", num_workers=3)
    assert plan.num_tiles is None
    assert (plan.waves_before, plan.waves_after, plan.cuts, plan.most_peers) == (None,) * 4
    assert plan.workspace_bytes == 2 * 3 * plan.slot_bytes
    assert str(plan).count("symbolic") == 4


def test_plan_of_a_symbolic_split() -> None:
    schedule = cpu(symbolic_gemm(5, 40, 24))
    plan = schedule.stream_k("C", decomposition="split_k", splits=3)
    assert plan.workspace_bytes is None
    assert "3 per tile on 3 processors" in str(plan)
    assert "KiB per tile" in str(plan)
