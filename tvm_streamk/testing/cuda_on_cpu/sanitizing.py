# SPDX-License-Identifier: Apache-2.0
"""Looking for races: the launches of a plan under ThreadSanitizer, in a process of their own.

Every CUDA thread is one of the sanitizer's threads. Order between them comes from barriers,
`__syncwarp` and launches, and from a fence with an atomic after it to an atomic that reads it with
a fence after that one, each pair in one thread. So a race is found whether or not it showed in the
order that was run, and a fence that is missing is found though this processor needs none.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ..launch_plan import KernelLaunch, LaunchPlan
from .buffers import DeviceBuffer, upload
from .compiler import compile_sanitized
from .errors import Deadlock, SanitizerMissing, TooManyThreads
from .launching import ORDERS, Schedule, fault_error
from .race_reports import Race, crash_line, parse_races

# libtsan numbers threads with 13 bits, and a process may have 65530 mappings, of which each thread
# takes about eight. A CUDA thread with atomics takes up to two more of the sanitizer's threads.
MOST_THREADS = 6000

_OPTIONS = "report_bugs=1:halt_on_error=0:exitcode=0:history_size=4:report_thread_leaks=0"
_TIME_LIMIT_SECONDS = 300.0
_FAULT = "fault "
_DONE = "done"
_QUOTED_CHARACTERS = 500


def find_races(
    plan: LaunchPlan,
    arrays: Mapping[str, np.ndarray],
    order: str = "forward",
    seed: int = 0,
    resident_blocks: int | None = None,
) -> list[Race]:
    """Accesses to the same memory, in the launches of a plan, that nothing orders.

    Parameters
    ----------
    plan : LaunchPlan
        CUDA source and launches, as `plan_launches` makes them. Small ones: a launch has at most
        `MOST_THREADS` threads, and is some ten times slower than under `run_plan`.
    arrays : Mapping[str, numpy.ndarray]
        Contents of the buffers by parameter name, as for `run_plan`, but never changed.
    order, seed, resident_blocks
        As for `run_plan`. They matter only where the kernel itself takes another path.

    Returns
    -------
    list[Race]
        One for each pair of source lines; empty for a kernel without races.

    Raises
    ------
    CompilerMissing, UnsupportedCode, BadLaunch, KernelFault
        As `run_plan` does.
    SanitizerMissing
        If there is no ThreadSanitizer, or it cannot run here.
    TooManyThreads
        If a launch has more threads than the sanitizer can tell apart.
    """
    schedule = Schedule(order, seed, resident_blocks)
    for launch in plan.launches:
        _check_threads(launch)
    buffers = upload(plan, arrays)
    program = compile_sanitized(plan.source)
    with tempfile.TemporaryDirectory() as folder:
        job = _write_job(Path(folder), plan, buffers, schedule)
        done = _run(program, job)
    _check_end(done, plan.source)
    return parse_races(done.stderr, done.stdout, plan.source)


def _check_end(done: subprocess.CompletedProcess[str], source: str) -> None:
    lines = done.stdout.splitlines()
    for line in lines:
        if line.startswith(_FAULT):
            kind, message = line.removeprefix(_FAULT).split(" ", 1)
            raise fault_error(kind, message, source)
    if _DONE in lines:
        return
    if (line_number := crash_line(done.stderr)) is not None:
        raise fault_error("memory", f"a thread crashes in line {line_number}", source)
    raise SanitizerMissing(
        f"the run under ThreadSanitizer ended early, with code {done.returncode}: "
        f"{done.stderr.strip()[-_QUOTED_CHARACTERS:]}"
    )


def _check_threads(launch: KernelLaunch) -> None:
    threads = int(np.prod(launch.grid)) * int(np.prod(launch.block))
    if threads > MOST_THREADS:
        raise TooManyThreads(
            f"kernel {launch.kernel!r} has {threads} threads (grid {launch.grid}, block "
            f"{launch.block}); ThreadSanitizer can tell {MOST_THREADS} apart. Use a smaller shape"
        )


def _write_job(
    folder: Path, plan: LaunchPlan, buffers: Mapping[str, DeviceBuffer], schedule: Schedule
) -> Path:
    lines: list[str] = []
    for number, buffer in enumerate(buffers.values()):
        path = folder / f"buffer{number}"
        buffer.data.tofile(path)
        lines.append(f"buffer {buffer.name} {buffer.data.size} {path}")
    numbers = {name: number for number, name in enumerate(buffers)}
    lines += [_job_line(launch, numbers, schedule) for launch in plan.launches]
    job = folder / "job"
    job.write_text("\n".join(lines))
    return job


def _job_line(launch: KernelLaunch, buffers: Mapping[str, int], schedule: Schedule) -> str:
    words = [
        "launch",
        launch.kernel,
        *launch.grid,
        *launch.block,
        launch.dynamic_shared_bytes,
        ORDERS.index(schedule.order),
        schedule.seed,
        schedule.resident_blocks_of(launch),
        len(launch.arguments),
    ]
    for argument in launch.arguments:
        if isinstance(argument, str):
            words += ["buffer", buffers[argument]]
        else:
            whole = int(argument) if np.isfinite(argument) else 0
            words += ["scalar", whole, float(argument)]
    return " ".join(map(str, words))


def _run(program: Path, job: Path) -> subprocess.CompletedProcess[str]:
    # ThreadSanitizer's shadow memory has fixed places, which random addresses may take. Where a
    # container forbids to ask for fixed addresses, the program may still be lucky.
    command = [str(program), str(job)]
    if setarch := shutil.which("setarch"):
        done = _run_command([setarch, "-R", *command])
        if not done.stderr.startswith("setarch:"):
            return done
    return _run_command(command)


def _run_command(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIME_LIMIT_SECONDS,
            env={**os.environ, "TSAN_OPTIONS": _OPTIONS},
        )
    except subprocess.TimeoutExpired as error:
        raise Deadlock(
            f"the kernels did not end within {_TIME_LIMIT_SECONDS:.0f} s under ThreadSanitizer"
        ) from error
