# SPDX-License-Identifier: Apache-2.0
"""Why a kernel's bits may change from run to run, and how a merge through a workspace keeps them.

Run it with ``python tutorials/02_deterministic.py``. The kernels are the CUDA C++ that TVM emits.
Without a GPU they run on the CPU, where the order of the thread blocks can be chosen: a GPU chooses
too, but does not say.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("TVM_NUM_THREADS", "2")

import numpy as np

import tvm_streamk
from tvm_streamk.schedules import gpu_gemm
from tvm_streamk.testing.cuda_on_cpu import CompilerMissing, run_plan
from tvm_streamk.testing.launch_plan import LaunchPlan, plan_launches

M, N, K = 32, 64, 512
TARGET = {"kind": "cuda", "arch": "sm_80"}
WORKERS = 7
LAUNCHES = 12
SHOWN_DIGITS = 9


def title(text: str) -> None:
    """Print a heading."""
    print(f"\n=== {text} ===\n")


def operands() -> tuple[np.ndarray, np.ndarray]:
    """A and B with fractions: their sums have to be rounded."""
    generator = np.random.default_rng(0)
    left, right = generator.standard_normal((M, K)), generator.standard_normal((K, N))
    return left.astype("float32"), right.astype("float32")


def show_rounding() -> None:
    """Section 1: adding is not associative where numbers are rounded."""
    a, b, c = np.float32(1e8), np.float32(-1e8), np.float32(1.5)
    print(f"(a + b) + c = {(a + b) + c}")
    print(f"a + (b + c) = {a + (b + c)}")
    assert (a + b) + c != a + (b + c)


def kernel(merge: str, workers: int = WORKERS) -> tuple[LaunchPlan, str]:
    """The launches of a product in Stream-K form, and the text of its program."""
    schedule = gpu_gemm(M, N, K, threads=(8, 8), per_thread=(4, 4), panel=16)
    print(schedule.stream_k("C", num_workers=workers, merge=merge))
    empty: np.ndarray = np.zeros((M, N), "float32")
    plan = plan_launches(schedule.mod, [*operands(), empty], TARGET)
    return plan, schedule.mod.script()


def print_blocks(script: str, names: Sequence[str]) -> None:
    """The blocks of a program with one of these names, as they stand in it."""
    lines = script.splitlines()
    for name in names:
        start = next(index for index, line in enumerate(lines) if f'T.sblock("{name}")' in line)
        indent = len(lines[start]) - len(lines[start].lstrip())
        print(lines[start][indent:])
        for line in lines[start + 1 :]:
            if len(line) - len(line.lstrip()) <= indent:
                break
            if "T.reads" not in line and "T.writes" not in line:
                print(line[indent:])


def launch(plan: LaunchPlan, number: int) -> np.ndarray:
    """One launch with its blocks in an order of its own, on memory full of garbage of its own."""
    left, right = operands()
    garbage = np.random.default_rng(number)
    arrays: dict[str, np.ndarray] = {"A": left, "B": right}
    arrays["C"] = garbage.standard_normal((M, N)).astype("float32")
    for space in plan.workspaces:
        arrays[space.name] = garbage.integers(0, 256, space.num_bytes, dtype=np.uint8)
    run_plan(plan, arrays, order="random", seed=number)
    np.testing.assert_allclose(arrays["C"], left @ right, rtol=1e-4, atol=1e-4)
    return arrays["C"]


def show_launches(plan: LaunchPlan) -> list[np.ndarray]:
    """Launch many times; print how many different results there were, and where they differ."""
    results = [launch(plan, number) for number in range(LAUNCHES)]
    different = {result.tobytes() for result in results}
    unequal = np.argwhere(np.ptp(np.stack(results), axis=0) > 0)
    found = f"{len(different)} different results" if len(different) > 1 else "always the same bits"
    print(f"{LAUNCHES} launches, {found}.")
    if len(unequal):
        row, column = (int(index) for index in unequal[0])
        values = sorted({float(result[row, column]) for result in results})
        shown = ", ".join(f"{value:.{SHOWN_DIGITS}g}" for value in values)
        print(f"{len(unequal)} of {M * N} elements vary; C[{row}, {column}] was {shown}.")
    return results


def bits(results: Sequence[np.ndarray]) -> set[bytes]:
    """The different results."""
    return {result.tobytes() for result in results}


def show_atomics() -> None:
    """Section 2: every peer adds its partial sum when it happens to be done."""
    plan, script = kernel("atomic")
    print()
    print_blocks(script, ["C_local_atomic"])
    print()
    assert len(bits(show_launches(plan))) > 1


def show_last_arriver() -> np.ndarray:
    """Section 3: the partial sums are kept apart, and added in the order of the peers."""
    plan, script = kernel("last_arriver")
    print()
    print_blocks(script, ["C_partial_sum", "C_arrive", "C_merge"])
    print()
    results = show_launches(plan)
    assert len(bits(results)) == 1
    return results[0]


def show_two_phase(expected: np.ndarray) -> None:
    """Section 4: the same sums in the same order, by a second kernel."""
    plan, _ = kernel("two_phase")
    results = show_launches(plan)
    assert bits(results) == {expected.tobytes()}
    print("They are those of last_arriver.")


def show_other_grid(expected: np.ndarray) -> None:
    """Section 5: what is cut elsewhere is rounded elsewhere."""
    plan, _ = kernel("last_arriver", workers=WORKERS + 1)
    results = show_launches(plan)
    assert len(bits(results)) == 1 and bits(results) != {expected.tobytes()}
    most = float(np.abs(results[0] - expected).max())
    print(f"They differ from those of {WORKERS} workers by up to {most:.1e}.")


def show_refusal() -> None:
    """Section 6: what else atomics cannot do."""
    schedule: Any = gpu_gemm(M, N, K, dtype="float16")
    try:
        schedule.stream_k("C", num_workers=WORKERS, merge="atomic")
    except tvm_streamk.errors.AtomicNotSupported as error:
        print(error)
    else:
        raise AssertionError("an atomic merge of float16 was not refused")


def main() -> None:
    """Walk through all sections."""
    title("1. Sums in another order are other sums")
    show_rounding()

    try:
        title("2. Atomics: the order of the blocks is the order of the sum")
        show_atomics()

        title("3. A workspace: the last worker to arrive adds the partial sums in their order")
        expected = show_last_arriver()

        title("4. Two phases: the same order, so the same bits")
        show_two_phase(expected)

        title("5. Another number of workers: always the same bits again, but other ones")
        show_other_grid(expected)
    except CompilerMissing as reason:
        print(f"Not run: {reason}.")

    title("6. What atomics cannot do at all")
    show_refusal()


if __name__ == "__main__":
    main()
