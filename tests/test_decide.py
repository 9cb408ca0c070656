# SPDX-License-Identifier: Apache-2.0
"""What ``auto`` decides for real nests: it says why, keeps to limits, and takes little time."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import schedules
from helpers import check_numerics, refused, state_of
from tvm.s_tir import Schedule
from workloads import Workload, gemm, symbolic_gemm

from tvm_streamk import errors
from tvm_streamk.devices import Device, cpu, lookup
from tvm_streamk.policy import choose
from tvm_streamk.schedules import cpu_gemm, gpu_gemm
from tvm_streamk.testing import poisoned, prepare

LONG_K = 4096
PANEL = 8
LLVM, OPENCL = "llvm", "opencl"
MOST_DECISION_SECONDS = 1e-3
MOST_PRIMITIVE_SECONDS = 0.1
TRIES = 9


def long_and_narrow(tiles: int = 1, depth: int = LONG_K) -> Workload:
    return gemm(16 * tiles, 32, depth)


def cpu_nest(workload: Workload) -> Schedule:
    return schedules.hand_cpu(workload, cached=True)


NESTS = pytest.mark.parametrize(
    ("make", "target"), [(cpu_nest, LLVM), (schedules.hand_gpu, OPENCL)], ids=[LLVM, OPENCL]
)


# -- what is chosen, and that it is said -----------------------------------------------------------


@NESTS
@pytest.mark.parametrize("tiles", [2, 4, 6])
def test_whole_waves_leave_the_nest_alone_and_say_so(
    make: Callable[[Workload], Schedule], target: str, tiles: int
) -> None:
    schedule = make(long_and_narrow(tiles, depth=256))
    before = state_of(schedule)
    plan = schedule.stream_k("C", num_sms=2)
    assert state_of(schedule) == before
    assert plan.decision.decomposition == "data_parallel"
    assert "no processor idles" in plan.notes[0]
    assert plan.predicted_gain == 1.0
    assert "predicted gain         1.00" in str(plan)


@NESTS
def test_one_tile_with_a_long_sum_is_cut(make: Callable[[Workload], Schedule], target: str) -> None:
    workload = long_and_narrow()
    schedule = make(workload)
    plan = schedule.stream_k("C", num_sms=2)
    assert plan.decision.decomposition in ("stream_k", "split_k")
    assert (plan.num_workers, plan.most_peers, plan.waves_after) == (2, 2, 0.5)
    assert plan.predicted_gain is not None and 1.5 < plan.predicted_gain < 2
    assert f"{plan.predicted_gain:.2f} times as fast" in plan.notes[0]
    assert f"predicted gain         {plan.predicted_gain:.2f}" in str(plan)
    check_numerics(schedule.mod, workload, target)


@NESTS
def test_a_short_sum_is_not_cut(make: Callable[[Workload], Schedule], target: str) -> None:
    plan = make(long_and_narrow(1, depth=16)).stream_k("C", num_sms=2)
    assert plan.decision.decomposition == "data_parallel"
    assert "too few to cut" in plan.notes[0] or "not the 1.02 times" in plan.notes[0]


def test_with_workers_given_nothing_is_predicted() -> None:
    plan = cpu_nest(long_and_narrow(3)).stream_k("C", num_workers=2)
    assert plan.decision.decomposition == "stream_k"
    assert plan.predicted_gain is None
    assert "predicted gain" not in str(plan)


@pytest.mark.parametrize(("grid", "word"), [(LLVM, "stream_k"), (OPENCL, "two_tile")])
def test_a_symbolic_number_of_tiles_is_decided_by_rule(grid: str, word: str) -> None:
    workload = symbolic_gemm(33, 40, 64)
    schedule = cpu_nest(workload) if grid == LLVM else schedules.hand_gpu(workload)
    plan = schedule.stream_k("C", num_sms=3)
    assert plan.decision.decomposition == word
    assert (plan.num_workers, plan.predicted_gain) == (3, None)
    assert "number of tiles is symbolic" in plan.notes[0]
    check_numerics(schedule.mod, workload, grid)


@pytest.mark.parametrize(
    ("columns", "processors", "reason"),
    [
        (40, 1, "one processor has nothing to share"),
        (96, 3, "always a multiple of 3 processors"),
    ],
)
def test_symbolic_tiles_that_can_gain_nothing(columns: int, processors: int, reason: str) -> None:
    """96 columns are three tiles."""
    schedule = cpu_nest(symbolic_gemm(33, columns, 64))
    before = schedule.mod.script()
    plan = schedule.stream_k("C", num_sms=processors)
    assert plan.decision.decomposition == "data_parallel"
    assert reason in plan.notes[0]
    assert schedule.mod.script() == before


def test_blocks_that_share_a_processor_are_workers() -> None:
    device = lookup("A100").with_processors(4, blocks_per_sm=2)
    nest = schedules.hand_gpu(long_and_narrow(9))
    plan = nest.stream_k("C", device=device)
    assert plan.processors == 8
    assert plan.device is not None
    assert (plan.device.num_sms, plan.device.blocks_per_sm) == (4, 2)


# -- whose constants -------------------------------------------------------------------------------


def test_a_calibrated_devices_file_is_a_device(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    cpu(3).to_file(file)
    by_record = cpu_nest(long_and_narrow(4)).stream_k("C", device=cpu(3))
    by_file = cpu_nest(long_and_narrow(4)).stream_k("C", device=str(file))
    assert by_file == by_record
    assert by_file.processors == 3


def test_the_files_constants_count(tmp_path: Path) -> None:
    file = tmp_path / "slow_merge.json"
    constants = {"start_us": 0.0, "split_us": 1e6, "panel_us": 1.0, "peer_us": 0.0}
    Device("slow merge", 2, memory_bytes_per_us=1.0, kind="cpu", **constants).to_file(file)
    plan = cpu_nest(long_and_narrow()).stream_k("C", device=str(file))
    assert plan.decision.decomposition == "data_parallel"


def test_a_file_that_is_not_there_is_refused() -> None:
    schedule = cpu_nest(long_and_narrow())
    with refused(schedule, errors.InvalidArgument, r"nowhere.json.*No such file.*calibrate"):
        schedule.stream_k("C", device="nowhere.json")


# -- the workspace ---------------------------------------------------------------------------------


@NESTS
@pytest.mark.parametrize("tiles", [1, 3, 5])
def test_auto_never_needs_more_workspace_than_allowed(
    make: Callable[[Workload], Schedule], target: str, tiles: int
) -> None:
    unlimited = make(long_and_narrow(tiles)).stream_k("C", num_sms=2)
    needs = unlimited.workspace_bytes
    assert needs
    same = make(long_and_narrow(tiles)).stream_k("C", num_sms=2, workspace_limit_bytes=needs)
    assert same.decision == unlimited.decision
    for limit in (needs - 1, unlimited.slot_bytes, 0):
        plan = make(long_and_narrow(tiles)).stream_k("C", num_sms=2, workspace_limit_bytes=limit)
        assert plan.workspace_bytes is not None and plan.workspace_bytes <= limit
        assert plan.decision != unlimited.decision
    assert "workspace limit of 0 bytes" in plan.notes[0]


def test_what_is_asked_for_by_name_is_refused_above_the_limit() -> None:
    schedule = cpu_nest(long_and_narrow(3))
    with refused(schedule, errors.WorkspaceTooSmall, r"needs 8192 bytes.*limit_bytes is 8191"):
        schedule.stream_k("C", num_workers=2, workspace_limit_bytes=8191)
    assert schedule.stream_k("C", num_workers=2, workspace_limit_bytes=8192).cuts == 1


def test_a_symbolic_number_of_tiles_keeps_to_the_limit_too() -> None:
    nest = cpu_nest(symbolic_gemm(33, 40, 64))
    before = state_of(nest)
    plan = nest.stream_k("C", num_sms=3, workspace_limit_bytes=100)
    assert plan.decision.decomposition == "data_parallel"
    assert "more than the limit of 100: the nest stays" in plan.notes[0]
    assert state_of(nest) == before


@pytest.mark.parametrize("limit", [-1, 1.5, "1 MiB", True])
def test_a_limit_that_is_no_size_is_refused(limit: Any) -> None:
    schedule = cpu_nest(long_and_narrow())
    with refused(schedule, errors.InvalidArgument, "workspace_limit_bytes must be an int"):
        schedule.stream_k("C", num_sms=2, workspace_limit_bytes=limit)


# -- the same bits for any number of rows ----------------------------------------------------------

ROW_COUNTS = (4, 16, 64, 257)
INVARIANT_COLUMNS, INVARIANT_DEPTH = 48, 4608


def cpu_rows(rows: int) -> Schedule:
    return cpu_gemm(
        rows, INVARIANT_COLUMNS, INVARIANT_DEPTH, (16, 32), panel=16, register_tile=(8, 16)
    )


def gpu_rows(rows: int) -> Schedule:
    return gpu_gemm(rows, INVARIANT_COLUMNS, INVARIANT_DEPTH, (4, 8), (4, 4), panel=16)


def product_of(schedule: Schedule, left: np.ndarray, right: np.ndarray, target: str) -> np.ndarray:
    output = poisoned((len(left), INVARIANT_COLUMNS))
    prepared = prepare(schedule.mod, target, [left, right, output])
    prepared.launch()
    return prepared.read()[2]


@pytest.mark.parametrize(("make", "target"), [(cpu_rows, LLVM), (gpu_rows, OPENCL)])
def test_a_rows_bits_do_not_change_with_the_number_of_rows(
    make: Callable[[int], Schedule], target: str
) -> None:
    random = np.random.default_rng(seed=7)
    left = random.standard_normal((max(ROW_COUNTS), INVARIANT_DEPTH)).astype("float32")
    right = random.standard_normal((INVARIANT_DEPTH, INVARIANT_COLUMNS)).astype("float32")
    products, splits = [], set()
    for rows in ROW_COUNTS:
        schedule = make(rows)
        plan = schedule.stream_k("C", num_sms=2, batch_invariant=True)
        splits.add((plan.decision.decomposition, plan.decision.splits))
        products.append(product_of(schedule, left[:rows], right, target))
    assert splits == {("split_k", max(splits)[1])} and max(splits)[1] > 1
    for rows, product in zip(ROW_COUNTS, products, strict=True):
        np.testing.assert_array_equal(
            product.view("uint32"), products[-1][:rows].view("uint32"), err_msg=str(rows)
        )
    # The data is such that another split does give other bits.
    whole = product_of(make(16), left[:16], right, target)
    assert (whole.view("uint32") != products[-1][:16].view("uint32")).any()


def test_a_symbolic_number_of_rows_gets_the_same_split() -> None:
    concrete = cpu_nest(gemm(33, 40, LONG_K)).stream_k("C", num_sms=2, batch_invariant=True)
    workload = symbolic_gemm(33, 40, LONG_K)
    schedule = cpu_nest(workload)
    plan = schedule.stream_k("C", num_sms=2, batch_invariant=True)
    assert plan.decision.decomposition == "split_k"
    assert plan.decision.splits == concrete.decision.splits
    assert plan.predicted_gain is None
    check_numerics(schedule.mod, workload, LLVM)


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_workers": 2},
        {"num_sms": 2, "decomposition": "stream_k"},
        {"num_sms": 2, "decomposition": "two_tile"},
    ],
)
def test_cuts_that_depend_on_the_number_of_tiles_are_refused(arguments: dict[str, Any]) -> None:
    schedule = cpu_nest(long_and_narrow(3))
    with refused(schedule, errors.InvalidArgument, "batch_invariant=True and .*number of tiles"):
        schedule.stream_k("C", batch_invariant=True, **arguments)


def test_an_invariant_split_does_not_give_way_to_a_limit() -> None:
    schedule = cpu_nest(long_and_narrow(3))
    with refused(schedule, errors.WorkspaceTooSmall, "another split would change the bits"):
        schedule.stream_k("C", num_sms=2, batch_invariant=True, workspace_limit_bytes=1024)
    symbolic = cpu_nest(symbolic_gemm(33, 40, LONG_K))
    with refused(symbolic, errors.WorkspaceTooSmall, "each of a symbolic number of tiles"):
        symbolic.stream_k("C", num_sms=2, batch_invariant=True, workspace_limit_bytes=2**30)


# -- pictures --------------------------------------------------------------------------------------


def test_a_plan_can_be_drawn(tmp_path: Path) -> None:
    plan = cpu_nest(long_and_narrow(3)).stream_k("C", num_sms=2)
    written = plan.plot(tmp_path / "plan.svg")
    text = written.read_text()
    assert "3 tiles of 512 panels on 2 processors" in text
    assert plan.decision.decomposition in text


def test_a_plan_with_workers_given_can_be_drawn(tmp_path: Path) -> None:
    plan = schedules.hand_gpu(long_and_narrow(3)).stream_k("C", num_workers=2)
    assert "on 2 processors" in plan.plot(tmp_path / "plan.svg").read_text()


def test_a_symbolic_plan_cannot_be_drawn(tmp_path: Path) -> None:
    plan = cpu_nest(symbolic_gemm(33, 40, 64)).stream_k("C", num_sms=2)
    with pytest.raises(errors.ShapesSymbolic, match=r"no one schedule to draw.*Try: .*Partition"):
        plan.plot(tmp_path / "plan.svg")


# -- time ------------------------------------------------------------------------------------------


def cpu_seconds(action: Callable[[], object]) -> float:
    """The least CPU time of a few tries: others on the machine do not count."""
    times = []
    for _ in range(TRIES):
        begin = time.process_time()
        action()
        times.append(time.process_time() - begin)
    return min(times)


def test_deciding_takes_less_than_a_millisecond() -> None:
    device = lookup("H200")
    for tiles, panels in ((1, 512), (133, 128), (66, 864), (1000, 64)):
        assert cpu_seconds(lambda t=tiles, p=panels: choose(t, p, device=device)) < (
            MOST_DECISION_SECONDS
        )


def test_the_primitive_takes_less_than_a_tenth_of_a_second_on_dlights_nest() -> None:
    nest = schedules.dlight_gpu(gemm(256, 256, 4096))
    block = schedules_block(nest)
    copies = iter([nest.copy() for _ in range(TRIES)])
    taken = cpu_seconds(lambda: next(copies).stream_k(block, num_sms=7))
    assert taken < MOST_PRIMITIVE_SECONDS


def schedules_block(schedule: Schedule) -> str:
    """The reduction block of DLight's nest."""
    names = ("C_update", "C")
    return next(name for name in names if name in schedule.mod.script())
