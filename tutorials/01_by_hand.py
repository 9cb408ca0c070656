# SPDX-License-Identifier: Apache-2.0
"""From a plain matrix product to a running Stream-K kernel, one step at a time.

Run it with ``python tutorials/01_by_hand.py``. Each section prints the program as it is then; the
numbers are compared with numpy's on the way. The last section shows what is refused, and how.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TVM_NUM_THREADS", "2")

import numpy as np
import tvm
from tvm import te
from tvm.s_tir import Schedule

import tvm_streamk
from tvm_streamk.testing import DeviceMissing, integer_inputs, poisoned, run

M, N, K = 48, 32, 256
TILE_ROWS, TILE_COLUMNS, PANEL = 16, 32, 16
WORKERS = 2


def title(text: str) -> None:
    """Print a heading."""
    print(f"\n=== {text} ===\n")


def plain_product(depth: int = K) -> Any:
    """Section 1: what is to be computed, with no word about how."""
    left = te.placeholder((M, depth), name="A")
    right = te.placeholder((depth, N), name="B")
    k = te.reduce_axis((0, depth), name="k")
    product = te.compute((M, N), lambda i, j: te.sum(left[i, k] * right[k, j], axis=k), name="C")
    return te.create_prim_func([left, right, product])


def tiled_for_cpu() -> Schedule:
    """Section 2: three tiles of 16 x 32, one parallel task each, and K in 16 panels.

    This order of loops is all that Stream-K asks for: tiles outermost, then the panel loop, with
    the sums of a tile in a buffer of its own until they are complete.
    """
    schedule = Schedule(tvm.IRModule({"main": plain_product()}))
    block = schedule.get_sblock("C")
    store = schedule.cache_write(block, 0, "local")
    i, j, k = schedule.get_loops(block)
    row_tile, row = schedule.split(i, [None, TILE_ROWS])
    column_tile, column = schedule.split(j, [None, TILE_COLUMNS])
    panel, step = schedule.split(k, [None, PANEL])
    schedule.reorder(row_tile, column_tile, panel, row, step, column)
    tiles = schedule.fuse(row_tile, column_tile)
    schedule.parallel(tiles)
    schedule.reverse_compute_at(store, tiles)
    schedule.vectorize(column)
    schedule.decompose_reduction(block, panel)
    return schedule


def tiled_for_gpu() -> Schedule:
    """Section 5: the same tiles as thread blocks of 8 x 8 threads, 2 x 4 elements each."""
    schedule = Schedule(tvm.IRModule({"main": plain_product()}))
    block = schedule.get_sblock("C")
    store = schedule.cache_write(block, 0, "local")
    i, j, k = schedule.get_loops(block)
    row_tile, row_thread, row = schedule.split(i, [None, 8, TILE_ROWS // 8])
    column_tile, column_thread, column = schedule.split(j, [None, 8, TILE_COLUMNS // 8])
    panel, step = schedule.split(k, [None, PANEL])
    schedule.reorder(row_tile, column_tile, row_thread, column_thread, panel, step, row, column)
    thread = schedule.fuse(row_thread, column_thread)
    schedule.bind(schedule.fuse(row_tile, column_tile), "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    schedule.reverse_compute_at(store, thread)
    schedule.decompose_reduction(block, panel)
    return schedule


def check(schedule: Schedule, target: str) -> None:
    """Run a schedule on whole numbers, where every order of adding gives the same bits."""
    left, right = integer_inputs((M, K)), integer_inputs((K, N), seed=1)
    # The output starts as NaN: an element that nobody writes cannot pass.
    _, _, product = run(schedule.mod, [left, right, poisoned((M, N))], target)
    np.testing.assert_array_equal(product, left @ right)
    print(f"The product on {target} equals numpy's, to the last bit.")


def refusals() -> dict[str, Callable[[], object]]:
    """Section 6: what a beginner runs into, by name."""
    return {
        "a block that is not there": lambda: tiled_for_cpu().stream_k("D", num_workers=WORKERS),
        "the block that initialises": lambda: tiled_for_cpu().stream_k("C_init", num_workers=2),
        "no number of workers": lambda: tiled_for_cpu().stream_k("C"),
        "no worker at all": lambda: tiled_for_cpu().stream_k("C", num_workers=0),
        "more workers than panels": lambda: tiled_for_cpu().stream_k("C", num_workers=1000),
        "a word that no option knows": lambda: tiled_for_cpu().stream_k(
            "C", num_workers=WORKERS, merge="semaphore"
        ),
        "atomics on a CPU": lambda: tiled_for_cpu().stream_k(
            "C", num_workers=WORKERS, merge="atomic"
        ),
        "panels that are not a serial loop": unrolled_panels,
        "a second time": twice,
    }


def unrolled_panels() -> None:
    """Only a serial loop can be cut anywhere."""
    schedule = tiled_for_cpu()
    block = schedule.get_sblock("C_update")
    schedule.unroll(schedule.get_loops(block)[1])
    schedule.stream_k(block, num_workers=WORKERS)


def twice() -> None:
    """The result is no longer a nest of tiles and panels."""
    schedule = tiled_for_cpu()
    schedule.stream_k("C", num_workers=WORKERS)
    schedule.stream_k("C", num_workers=WORKERS)


def show_refusal(what: str, attempt: Callable[[], object]) -> None:
    """Print the error that an attempt gives; each reason has a class of its own."""
    try:
        attempt()
    except tvm_streamk.StreamKError as error:
        print(f"{what}:\n  {type(error).__name__}: {error}\n")
    else:
        raise AssertionError(f"{what} was not refused")


def show_refused_schedule_is_unchanged() -> None:
    """A refusal comes before any change: the schedule can be used as if nothing had been tried."""
    schedule = tiled_for_cpu()
    before = schedule.mod.script(), str(schedule.trace)
    print(f"Asked first: {tvm_streamk.can_stream_k(schedule, 'C_init')}")
    try:
        schedule.stream_k("C_init", num_workers=WORKERS)
    except tvm_streamk.StreamKError:
        assert before == (schedule.mod.script(), str(schedule.trace))
    print("The refused schedule and its trace are as they were.")


def show_gpu_grid() -> None:
    """Section 5: on a GPU grid the same line makes persistent thread blocks."""
    schedule = tiled_for_gpu()
    print(schedule.stream_k("C", num_workers=WORKERS))
    print(schedule.mod.script())
    try:
        check(schedule, "opencl")
    except DeviceMissing as reason:
        print(f"Not run: {reason}.")


def main() -> None:
    """Walk through all sections."""
    title("1. A plain product")
    print(plain_product().script())

    title("2. Tiles in parallel, K in panels: the data-parallel schedule")
    schedule = tiled_for_cpu()
    print(schedule.mod.script())
    check(schedule, "llvm")

    title("3. One line: three tiles for two workers, an equal share of the panels each")
    print(schedule.stream_k("C", num_workers=WORKERS))
    print("\nThree tiles on two processors take two rounds, the second one half idle. Now each")
    print("worker does 24 of the 48 panels: its own tile and half of the one that is cut.")

    title("4. What came out, and whether it is right")
    print(schedule.mod.script())
    check(schedule, "llvm")

    title("5. The same on a GPU grid")
    show_gpu_grid()

    title("6. What is refused")
    for what, attempt in refusals().items():
        show_refusal(what, attempt)
    show_refused_schedule_is_unchanged()


if __name__ == "__main__":
    main()
