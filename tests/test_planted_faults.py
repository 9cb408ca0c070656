# SPDX-License-Identifier: Apache-2.0
"""Each part of the merges is needed, and the checks would notice if it were missing.

The CUDA source of a right kernel is edited; running it in several orders, or ThreadSanitizer, has
to find the fault. What may be missing without harm is listed with its reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import cuda_runs
import pytest
import schedules
from cuda_runs import ARRIVALS, BARRIER, FENCE, Kernel, edited, kernel_of, kernel_text, occurrences
from schedules import GpuTiling
from workloads import Workload, conv2d, gemm

import tvm_streamk
from tvm_streamk.testing.cuda_on_cpu import KernelFault

pytestmark = cuda_runs.needs_compiler

SMALL = GpuTiling(tile=(8, 16), per_thread=(2, 2), vthreads=(1, 2))
WORKERS = 10
GEMM = gemm(20, 40, 40)
SEEDS = range(4)
ORDERS = [
    ("forward", 0),
    ("reverse", 0),
    *((order, seed) for order in ("random", "priority") for seed in SEEDS),
]
Edit = Callable[[str], str]


def streamed(merge: str, schedule: Any = None, workload: Workload = GEMM) -> Kernel:
    """The hand kernel, or that of another schedule, under a merge."""
    schedule = schedule or schedules.hand_gpu(workload, SMALL)
    schedule.stream_k("C", num_workers=WORKERS, merge=merge)
    return kernel_of(schedule.mod, workload.inputs, [workload.expected])


def with_counters() -> Kernel:
    """The hand kernel whose caller keeps the counters."""
    schedule = schedules.hand_gpu(GEMM, SMALL)
    arguments: dict[str, Any] = {"num_workers": WORKERS, "merge": "last_arriver"}
    schedule.stream_k("C", counters="argument", lower=False, **arguments)
    module = tvm_streamk.LowerStreamK()(schedule.mod)
    return kernel_of(module, GEMM.inputs, [GEMM.expected], WORKERS)


def wrong_order(kernel: Kernel, launches: int = 1) -> str:
    """The first order in which a result is wrong or a rule of CUDA broken, else nothing."""
    for order, seed in ORDERS:
        fresh = kernel.with_source(kernel.plan.source)
        try:
            for _ in range(launches):
                fresh.poison_outputs()
                fresh.launch(order, seed)
        except KernelFault as fault:
            return f"{order} {seed}: {type(fault).__name__}"
        if not fresh.is_right():
            return f"{order} {seed}: wrong"
    return ""


def changed(kernel: Kernel, edit: Edit) -> Kernel:
    """A kernel with the text of its main part edited."""
    text = kernel_text(kernel.plan)
    new = edit(text)
    assert new != text, "the edit has found nothing"
    return kernel.with_source(kernel.plan.source.replace(text, new))


# -- right kernels are clean -----------------------------------------------------------------------

NESTS: dict[str, Callable[[], tuple[Workload, Any]]] = {
    "hand": lambda: (GEMM, None),
    "DLight": lambda: (GEMM, schedules.dlight_gpu(GEMM)),
    "MetaSchedule": lambda: (GEMM, schedules.metaschedule_gpu(GEMM)),
    "convolution": lambda: (conv2d(7, 3, 20), None),
}


@pytest.mark.parametrize(
    ("name", "merge"),
    [
        *((name, "last_arriver") for name in NESTS),
        ("hand", "two_phase"),
        ("MetaSchedule", "two_phase"),
        ("hand", "atomic"),
    ],
)
def test_unmodified_kernels_are_clean(name: str, merge: str) -> None:
    workload, schedule = NESTS[name]()
    kernel = streamed(merge, schedule, workload)
    assert wrong_order(kernel) == ""
    assert kernel.races() == []
    assert kernel.races("priority", seed=1) == []


# -- barriers and fences ---------------------------------------------------------------------------

NEEDED_BARRIERS = {0, 1, 3, 4}
"""Before and after the copies to shared memory; before the count; after the count."""
HARMLESS_BARRIERS = {2, 5, 6}
"""Behind loops that may run zero times, where TVM's own barrier might have been skipped. Here each
of them is followed by another barrier before the next access to the same memory."""
NEEDED_FENCES = {1, 2}
"""Both beside the count, in the thread that counts."""
HARMLESS_FENCES = {0}
"""In all threads, before the barrier. CUDA's barrier orders global memory within the block, so
that the counting thread's fence covers the stores of all; OpenCL's does not."""


def without(kernel: Kernel, part: str, number: int) -> Kernel:
    return changed(kernel, lambda text: edited(text, part, "", number))


@pytest.mark.parametrize("number", sorted(NEEDED_BARRIERS))
def test_missing_barrier_is_found(number: int) -> None:
    faulty = without(streamed("last_arriver"), BARRIER, number)
    assert wrong_order(faulty) or faulty.races()


@pytest.mark.parametrize("number", sorted(NEEDED_FENCES))
def test_missing_fence_is_found(number: int) -> None:
    faulty = without(streamed("last_arriver"), FENCE, number)
    races = faulty.races()
    assert any("stream_k_workspace" in race.memory for race in races)


@pytest.mark.parametrize(
    ("part", "numbers"), [(BARRIER, HARMLESS_BARRIERS), (FENCE, HARMLESS_FENCES)]
)
def test_what_may_be_missing(part: str, numbers: set[int]) -> None:
    kernel = streamed("last_arriver")
    text = kernel_text(kernel.plan)
    needed = NEEDED_BARRIERS if part == BARRIER else NEEDED_FENCES
    assert set(range(len(occurrences(text, part)))) == needed | numbers
    for number in sorted(numbers, reverse=True):
        kernel = without(kernel, part, number)
    assert wrong_order(kernel) == ""
    assert kernel.races() == []


def count_before_fence(text: str) -> str:
    """The thread's first fence behind its count instead of before it."""
    lines = text.splitlines(keepends=True)
    count = next(index for index, line in enumerate(lines) if "atomic_add_int32" in line)
    lines[count - 1], lines[count] = lines[count], lines[count - 1]
    return "".join(lines)


def counting_without_atomic(kernel: Kernel) -> Kernel:
    source = kernel.plan.source
    plain = "int old = *address; *address = old + value; return old;"
    return kernel.with_source(source.replace("return atomicAdd(address, value);", plain))


def test_fence_after_the_count_is_too_late() -> None:
    faulty = changed(streamed("last_arriver"), count_before_fence)
    assert any("stream_k_workspace" in race.memory for race in faulty.races())


def test_counting_without_an_atomic_is_found() -> None:
    faulty = counting_without_atomic(streamed("last_arriver"))
    assert any(ARRIVALS in race.memory for race in faulty.races())


def test_barrier_in_one_thread_only_is_found() -> None:
    """The barrier after the count moved into the condition of the counting thread."""

    def edit(text: str) -> str:
        barrier = occurrences(text, BARRIER)[4]
        closing = text.rindex("}", 0, barrier)
        return text[:closing] + BARRIER + " }" + text[barrier + len(BARRIER) :]

    assert "BarrierDivergence" in wrong_order(changed(streamed("last_arriver"), edit))


# -- wrong numbers ---------------------------------------------------------------------------------


def once(pattern: str, replacement: str) -> Edit:
    """Replace exactly one place."""

    def edit(text: str) -> str:
        new, count = re.subn(pattern, replacement, text)
        assert count == 1, f"{count} places match {pattern}"
        return new

    return edit


def everywhere(pattern: str, replacement: str) -> Edit:
    return lambda text: re.sub(pattern, replacement, text)


def in_stores(text: str) -> str:
    """Both segments of a worker in its first slot, as far as stores are concerned."""
    lines = text.splitlines(keepends=True)
    first = next(index for index, line in enumerate(lines) if "stream_k_workspace_ptr[" in line)
    fence = next(index for index, line in enumerate(lines) if FENCE in line)
    for index in range(first - 6, fence):
        lines[index] = lines[index].replace(" ? 0 : 1) * 128)", " ? 0 : 0) * 128)")
    return "".join(lines)


def without_start(text: str) -> str:
    """The last arriver adds to what is in its registers instead of starting from zero."""
    start = text.index("once_2 <")
    end = text.index("for (int peer", start)
    return text[:start] + text[start:end].replace("= 0x0p+0f", "+= 0x0p+0f") + text[end:]


def without_guard(text: str) -> str:
    """The last arriver stores all rows of a tile, those beyond the output too."""
    start = text.rindex("for (int ax0_")
    guarded = re.sub(r"(?m)^( +)if \(.*\{$", r"\1if (true) {", text[start:], count=1)
    return text[:start] + guarded


SEEN = r"stream_k_seen_arrivals_ptr\[0\] == "
FAULTS: dict[str, Edit] = {
    "both partial sums of a worker in one slot": in_stores,
    "slots of the peers the wrong way round": everywhere(
        r"\(0 < peer\) \? 0 : 1", "(0 < peer) ? 1 : 0"
    ),
    "one peer fewer": once(SEEN, "stream_k_seen_arrivals_ptr[0] + 1 == "),
    "one peer more": once(SEEN, "stream_k_seen_arrivals_ptr[0] - 1 == "),
    "everyone is last": once(r"= \(\(stream_k_seen.*\) \? 1 : 0\);", "= 1;"),
    "first peer left out": once(r"for \(int peer = 0;", "for (int peer = 1;"),
    "a counter of one's own": once(
        r"\(&\(stream_k_arrivals_ptr\[.*\]\)\), 1\)",
        "(&(stream_k_arrivals_ptr[blockIdx.x])), 1)",
    ),
    "no start from zero": without_start,
    "rows beyond the output": without_guard,
}


OVERWRITTEN = ("one peer fewer", "everyone is last")
"""Faults after which the real last arriver, too, finishes the tile: where it is the last to store,
the result is right."""


@pytest.mark.parametrize("name", FAULTS)
def test_wrong_number_is_found(name: str) -> None:
    faulty = changed(streamed("last_arriver"), FAULTS[name])
    if name in OVERWRITTEN:
        memories = {race.memory.partition(",")[0] for race in faulty.races()}
        assert {"C", "stream_k_workspace"} <= memories
    else:
        assert wrong_order(faulty)


RESET = re.compile(rf"(?m)^ +{ARRIVALS}_ptr\[.*\] = 0;$")


def test_counter_that_is_not_set_back_shows_in_the_next_launch() -> None:
    faulty = changed(with_counters(), lambda text: RESET.sub("", text))
    assert wrong_order(faulty, launches=1) == ""
    assert wrong_order(faulty, launches=2).endswith("wrong")


def test_counter_that_is_set_back_by_every_arriver_is_found() -> None:
    def edit(text: str) -> str:
        reset = RESET.search(text)
        assert reset is not None
        last = text.index("for (int once_2")
        return f"{text[:last]}if (threadIdx.x == 0 && threadIdx.y == 0) {{{reset[0]}}}{text[last:]}"

    faulty = changed(with_counters(), edit)
    assert wrong_order(faulty) or faulty.races()


def test_counters_that_nobody_zeroes_are_found() -> None:
    kernel = streamed("last_arriver")
    zeroing = kernel_text(kernel.plan, kernel.plan.launches[0].kernel)
    faulty = kernel.with_source(
        kernel.plan.source.replace(zeroing, zeroing.replace("] = 0;", "] += 0;"))
    )
    assert wrong_order(faulty).endswith("wrong")


def test_reset_is_not_needed_where_the_function_zeroes_the_counters() -> None:
    kernel = changed(streamed("last_arriver"), lambda text: RESET.sub("", text))
    assert wrong_order(kernel, launches=2) == ""


# -- the other merges ------------------------------------------------------------------------------


def test_two_phases_with_the_slots_the_wrong_way_round() -> None:
    kernel = streamed("two_phase")
    source = everywhere(r"\(0 < peer\) \? 0 : 1", "(0 < peer) ? 1 : 0")(kernel.plan.source)
    assert source != kernel.plan.source
    assert wrong_order(kernel.with_source(source))


def test_two_phases_in_one_slot() -> None:
    kernel = streamed("two_phase")
    source = kernel.plan.source.replace(" ? 0 : 1) * 128)", " ? 0 : 0) * 128)")
    assert source != kernel.plan.source
    assert wrong_order(kernel.with_source(source))


def test_atomic_without_zeroed_tiles() -> None:
    kernel = streamed("atomic")
    zeroing = kernel_text(kernel.plan, kernel.plan.launches[0].kernel)
    without_zeros = zeroing.replace("= 0x0p+0f", "+= 0x0p+0f")
    assert without_zeros != zeroing
    faulty = kernel.with_source(kernel.plan.source.replace(zeroing, without_zeros))
    assert wrong_order(faulty).endswith("wrong")


def test_atomic_that_only_adds() -> None:
    kernel = streamed("atomic")
    plain = "float old = *address; *address = old + value; return old;"
    source = kernel.plan.source.replace("return atomicAdd(address, value);", plain)
    faulty = kernel.with_source(source)
    assert any(race.memory.startswith("C, byte") for race in faulty.races())
