# SPDX-License-Identifier: Apache-2.0
"""Let measurements decide: Stream-K as one more thing that TVM's tuner tries.

Run it with ``python tutorials/04_tuning.py``. It measures a few candidates on this machine's CPU;
``docs/tuning.md`` has the rest: GPUs, many machines, and TVM's own entry points.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("TVM_NUM_THREADS", "2")

import numpy as np
import tvm
from tvm.s_tir import Schedule, meta_schedule

import tvm_streamk
from tvm_streamk import meta_schedule_rule as tuning
from tvm_streamk.schedules import gemm
from tvm_streamk.testing import integer_inputs, poisoned, run

M, N, K = 4, 4, 4128
TARGET = {"kind": "llvm", "num-cores": 2}
TRIALS = 8
TRIALS_OF_A_REAL_RUN = 1000
SEED = 3


def title(text: str) -> None:
    """Print a heading."""
    print(f"\n=== {text} ===\n")


def show_the_space() -> None:
    """Section 1: TVM's spaces for the product, and beside each that fits one of ours."""
    with tuning.without_tensor_intrinsics():
        context = meta_schedule.TuneContext(
            gemm(M, N, K),
            target=tvm.target.Target(TARGET),
            space_generator=tuning.space_generator(TARGET),
        )
        spaces = context.generate_design_space()
    for number, space in enumerate(spaces):
        split = ", TVM's own split of K" if is_split_by_tvm(space) else ""
        choice = ", with a choice of decompositions" if has_choice(space) else ""
        print(f"space {number}: {len(space.trace.insts)} instructions{split}{choice}")
    split_by_tvm = next(filter(is_split_by_tvm, spaces))
    print("\nWhy a space that TVM has split has no choice beside it:")
    print(tuning.applicability(split_by_tvm, "C"))


def is_split_by_tvm(space: Schedule) -> bool:
    """Whether TVM's rule ``AddRFactor`` made the space."""
    return any(str(instruction.kind.name) == "RFactor" for instruction in space.trace.insts)


def has_choice(space: Schedule) -> bool:
    """Whether a space carries a choice of ours, on its root block."""
    return '"tvm_streamk"' in space.mod.script()


def deploy(folder: Path) -> None:
    """Section 3: a database on disk is all that a deployment needs."""
    database = meta_schedule.database.JSONDatabase(work_dir=str(folder))
    target = tvm.target.Target(TARGET)
    schedule = meta_schedule.tir_integration.compile_tir(database, gemm(M, N, K), target)
    # What is recorded is carried out by TVM's pipeline, since the package is imported.
    lowered = tvm_streamk.LowerStreamK()(schedule.mod)
    is_streamed = "_stream_k" in lowered.script()
    print(f"The best record is {'a Stream-K kernel' if is_streamed else 'no Stream-K kernel'}.")
    left, right = integer_inputs((M, K)), integer_inputs((K, N), seed=1)
    _, _, product = run(schedule.mod, [left, right, poisoned((M, N))], TARGET)
    np.testing.assert_array_equal(product, left @ right)
    print("Its product equals numpy's, to the last bit.")


def show_refusals(folder: Path) -> None:
    """Section 4: what is refused, and how."""
    a_file = folder / "a_file"
    a_file.write_text("")
    attempts: dict[str, tuple[Any, Any]] = {
        "a work directory that is a file": (TARGET, a_file),
        "a target that tells no processor count": ("llvm", folder),
    }
    for what, (target, work_dir) in attempts.items():
        try:
            tuning.tune(gemm(M, N, K), target, work_dir, TRIALS)
        except (tuning.WorkDirectoryIsAFile, tvm_streamk.StreamKError) as error:
            print(f"{what}:\n  {type(error).__name__}: {error}\n")
        else:
            raise AssertionError(f"{what} was not refused")


def main() -> None:
    """Walk through all sections."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        title("1. The space that is searched")
        show_the_space()

        title(f"2. {TRIALS} candidates, measured (a real run measures {TRIALS_OF_A_REAL_RUN})")
        tuning.tune(gemm(M, N, K), TARGET, folder, TRIALS, seed=SEED)

        title("3. Deploying from the database")
        deploy(folder)

        title("4. What is refused")
        show_refusals(folder)


if __name__ == "__main__":
    main()
