# SPDX-License-Identifier: Apache-2.0
"""Executed instructions of a CPU kernel, as a number that a busy machine cannot change.

``python benchmarks/count_instructions.py`` prints, for products whose waves are full, how many
instructions Stream-K executes beside the persistent form with whole tiles only. The kernel is built
here and run by ``run_kernel.py`` under ``valgrind --tool=callgrind``, which counts from entering to
leaving it. One thread runs all workers: waiting threads would be counted too.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tvm
from rich.console import Console
from rich.table import Table
from tvm.s_tir import Schedule

import tvm_streamk
from tvm_streamk.schedules import REDUCTION_BLOCK, cpu_gemm

# What callgrind knows: it has no instructions on 512 bits.
TARGET = {"kind": "llvm", "mcpu": "haswell"}
ENTRY = "__tvm_ffi_main"
DATA_PARALLEL, PERSISTENT, STREAM_K, TWO_TILE = (
    "data_parallel",
    "persistent",
    "stream_k",
    "two_tile",
)
MOST_EXTRA = 0.03
TILE, PANEL, REGISTER_TILE = (14, 32), 24, (7, 16)
# Products of whole waves: as many tiles as workers, or a multiple.
FULL_WAVES = (((14, 64, 264), 2), ((42, 64, 264), 3))
DUMP = "callgrind.out"
_TOTALS = re.compile(r"^totals: (\d+)$", re.MULTILINE)


class CannotCount(RuntimeError):
    """Nothing on this machine counts instructions."""


@dataclass(frozen=True)
class Kernel:
    """A float32 product: its schedule, and its rows, columns and length of the reduction."""

    schedule: Schedule
    shape: tuple[int, int, int]


def kernel(shape: tuple[int, int, int], decomposition: str, num_workers: int) -> Kernel:
    """A product in one of its forms.

    Parameters
    ----------
    shape
        Rows, columns and length of the reduction.
    decomposition
        As for ``stream_k``; ``data_parallel`` is the nest as it is.
    num_workers
        Workers of the persistent forms.
    """
    schedule = cpu_gemm(*shape, tile=TILE, panel=PANEL, register_tile=REGISTER_TILE)
    if decomposition != DATA_PARALLEL:
        tvm_streamk.stream_k(
            schedule, REDUCTION_BLOCK, num_workers=num_workers, decomposition=decomposition
        )
    return Kernel(schedule, shape)


def instructions_of(kernels: Sequence[Kernel]) -> list[int]:
    """Instructions that one launch of each kernel executes, all workers together.

    Starting a program under callgrind takes longer than counting, so one program runs them all.

    Raises
    ------
    CannotCount
        If there is no valgrind here, or it cannot run the kernels.
    """
    with tempfile.TemporaryDirectory() as folder:
        runs = []
        for number, kernel in enumerate(kernels):
            library = Path(folder) / f"kernel_{number}.so"
            _build(kernel.schedule, library)
            runs.append((library, kernel.shape))
        return _counted(runs, Path(folder))


def _build(schedule: Schedule, library: Path) -> None:
    built = tvm.tirx.build(schedule.mod, target=tvm.target.Target(TARGET), pipeline="s_tir")
    try:
        built.export_library(str(library))
    except (RuntimeError, FileNotFoundError) as error:
        raise CannotCount(f"linking the kernel needs a C++ compiler ({error})") from error


def _counted(runs: Sequence[tuple[Path, tuple[int, int, int]]], folder: Path) -> list[int]:
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise CannotCount("there is no valgrind; install it with your system's package manager")
    command = [
        valgrind,
        "--tool=callgrind",
        f"--callgrind-out-file={folder / DUMP}",
        "--collect-atstart=no",
        f"--toggle-collect={ENTRY}",
        f"--dump-after={ENTRY}",
        sys.executable,
        str(Path(__file__).with_name("run_kernel.py")),
    ]
    # The first one also starts TVM's threads, so it runs twice; its first count is not used.
    for library, shape in [runs[0], *runs]:
        command += [str(library), *(str(extent) for extent in shape)]
    # Symbols are resolved when a library is loaded, not when its kernel first needs them.
    settings = {"TVM_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "LD_BIND_NOW": "1"}
    environment = {**os.environ, **settings}
    finished = subprocess.run(command, capture_output=True, text=True, env=environment)
    if finished.returncode:
        raise CannotCount(f"callgrind cannot run the kernels:\n{finished.stderr[-2000:]}")
    # One dump when each kernel returns, numbered from 1.
    dumps = [folder / f"{DUMP}.{number}" for number in range(2, len(runs) + 2)]
    return [_total(dump) for dump in dumps]


def _total(dump: Path) -> int:
    found = _TOTALS.search(dump.read_text(encoding="utf-8")) if dump.exists() else None
    if found is None:
        raise CannotCount(f"callgrind has left no count in {dump.name}")
    return int(found.group(1))


def main() -> None:
    """Print the table."""
    table = Table(title="Executed instructions where waves are full")
    columns = ("M x N x K", "workers", DATA_PARALLEL, PERSISTENT, STREAM_K, TWO_TILE, "most extra")
    for column in columns:
        table.add_column(column, justify="right")
    for shape, workers in FULL_WAVES:
        counts = instructions_of(
            [
                kernel(shape, decomposition, workers)
                for decomposition in (DATA_PARALLEL, PERSISTENT, STREAM_K, TWO_TILE)
            ]
        )
        most = max(counts[2:]) / counts[1] - 1
        cells = (str(workers), *(f"{count:,}" for count in counts), f"{most:+.2%}")
        table.add_row(" x ".join(str(extent) for extent in shape), *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
