# SPDX-License-Identifier: Apache-2.0
"""Registers and spills of every Stream-K form beside its data-parallel kernel, as ptxas counts.

Writes ``registers.md`` beside this file. No GPU is needed, only ``nvcc``: for one version of it,
the figures are the same on every machine. A form passes where it spills no byte more than its
data-parallel kernel and takes at most ``MOST_EXTRA_REGISTERS`` registers more.

Run with ``python benchmarks/registers.py`` where the package is; it takes a few minutes.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from rich.console import Console
from rich.progress import track
from tensor_core_nests import (
    PASS_CONFIG,
    dlight_schedule,
    metaschedule_schedule,
    product,
    reduction_block,
)
from tvm.s_tir import Schedule

from tvm_streamk import errors
from tvm_streamk.schedules import gpu_gemm
from tvm_streamk.testing.arrays import element_dtype
from tvm_streamk.testing.launch_plan import plan_launches

ARCHITECTURES = ("sm_80", "sm_90")
TARGET = {"kind": "cuda", "arch": "sm_80"}
MOST_EXTRA_REGISTERS = 24
DATA_PARALLEL = "data_parallel"
OUTPUT = Path(__file__).parent / "registers.md"
SHAPE = (512, 384, 4096)

_ENTRY = re.compile(r"Compiling entry function '(?P<name>\w+)' for '(?P<arch>sm_\w+)'")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_RELEASE = re.compile(r"release [\d.]+, V([\d.]+)")


class CompilerMissing(RuntimeError):
    """There is no nvcc on this machine."""


@dataclass(frozen=True)
class Usage:
    """What ptxas says of a function: the most registers of a kernel, the spills of all.

    Attributes
    ----------
    registers : int
        Per thread.
    spilled_bytes : int
        Stores and loads, per thread.
    """

    registers: int
    spilled_bytes: int

    def passes(self, data_parallel: Usage) -> bool:
        """Whether that is no more than a Stream-K form may need."""
        return (
            self.spilled_bytes <= data_parallel.spilled_bytes
            and self.registers <= data_parallel.registers + MOST_EXTRA_REGISTERS
        )

    def __str__(self) -> str:
        spilled = f", {self.spilled_bytes} bytes spilled" if self.spilled_bytes else ""
        return f"{self.registers}{spilled}"


@dataclass(frozen=True)
class Form:
    """One way to stream a nest; none for the nest as it is."""

    label: str
    arguments: Mapping[str, Any]


def _forms() -> tuple[Form, ...]:
    decompositions: dict[str, dict[str, Any]] = {
        "stream_k": {"num_workers": 7},
        "two_tile": {"num_workers": 3},
        "split_k": {"splits": 2},
    }
    combinations = [
        *((word, merge) for word in decompositions for merge in ("last_arriver", "two_phase")),
        ("stream_k", "atomic"),
    ]
    return (
        Form(DATA_PARALLEL, {}),
        *(
            Form(
                f"{word}, {merge}",
                {"decomposition": word, "merge": merge, **decompositions[word]},
            )
            for word, merge in combinations
        ),
    )


FORMS = _forms()


@dataclass(frozen=True)
class Nest:
    """A data-parallel kernel to be streamed.

    Attributes
    ----------
    make
        Gives a fresh schedule of it.
    pass_config
        TVM options without which it cannot be lowered.
    """

    make: Callable[[], Schedule]
    pass_config: Mapping[str, Any] = field(default_factory=dict)


def plain_nests() -> dict[str, Nest]:
    """The nests without tensor cores, by name."""
    return {
        "hand, float32": Nest(
            lambda: gpu_gemm(*SHAPE, threads=(16, 16), per_thread=(4, 4), panel=16)
        ),
        "DLight, float32": Nest(lambda: dlight_schedule(product(SHAPE, "float32", "float32"))),
    }


def tensor_core_nests() -> dict[str, Nest]:
    """The nests with fragments, by name; the first takes the time of TVM's import."""
    half = product(SHAPE, "float16", "float32")
    dlight = {
        "DLight, float16 to float32": half,
        "DLight, float16": product(SHAPE, "float16", "float16"),
        "DLight, int8 to int32": product(SHAPE, "int8", "int32"),
    }
    return {
        **{
            name: Nest(functools.partial(dlight_schedule, function))
            for name, function in dlight.items()
        },
        **{
            f"MetaSchedule, float16 to float32, sketch {number}": Nest(
                functools.partial(metaschedule_schedule, half, number), PASS_CONFIG
            )
            for number in range(2)
        },
    }


def source_of(nest: Nest, form: Form) -> str | None:
    """CUDA source of a nest in a form, or None where the nest has no such form."""
    schedule = nest.make()
    if form.arguments:
        try:
            schedule.stream_k(reduction_block(schedule), **form.arguments)
        except (errors.AtomicNeedsPlainStore, errors.AtomicNotSupported):
            return None
    parameters = schedule.mod["main"].params
    arrays = [
        np.zeros([int(extent) for extent in each.shape], element_dtype(str(each.dtype)))
        for each in parameters
    ]
    with tvm.transform.PassContext(config=dict(nest.pass_config)):
        return plan_launches(schedule.mod, arrays, TARGET).source


def usage_of(source: str) -> dict[str, Usage]:
    """Registers and spills of CUDA source, per architecture.

    Raises
    ------
    CompilerMissing
        If there is no nvcc.
    """
    compiler = _compiler()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernels.cu"
        file.write_text(source)
        codes = [
            f"-gencode=arch=compute_{name.removeprefix('sm_')},code={name}"
            for name in ARCHITECTURES
        ]
        command = [compiler, *codes, "-fatbin", "-Xptxas", "-v", "-w", str(file)]
        done = subprocess.run(
            [*command, "-o", str(Path(folder) / "kernels.fatbin")],
            capture_output=True,
            text=True,
            check=True,
        )
    return _parse(done.stderr)


def _parse(report: str) -> dict[str, Usage]:
    found: dict[str, Usage] = dict.fromkeys(ARCHITECTURES, Usage(0, 0))
    starts = list(_ENTRY.finditer(report))
    ends = [*(match.start() for match in starts[1:]), len(report)]
    for start, end in zip(starts, ends, strict=True):
        part = report[start.end() : end]
        spilled = sum(int(number) for pair in _SPILLS.findall(part) for number in pair)
        registers = max(int(number) for number in _REGISTERS.findall(part))
        old = found[start["arch"]]
        found[start["arch"]] = Usage(max(old.registers, registers), old.spilled_bytes + spilled)
    return found


def _compiler() -> str:
    path = shutil.which("nvcc")
    if path is None:
        raise CompilerMissing("no nvcc on the PATH; install the CUDA toolkit")
    return path


def compiler_version() -> str:
    """The version of nvcc, such as 13.0.88.

    Raises
    ------
    CompilerMissing
        If there is no nvcc.
    """
    said = subprocess.run([_compiler(), "--version"], capture_output=True, text=True, check=True)
    match = _RELEASE.search(said.stdout)
    return match[1] if match else "unknown"


Row = tuple[str, str, dict[str, Usage]]
"""Nest, form, and the usage per architecture."""


def measure(nests: Mapping[str, Nest], quiet: bool = False) -> Iterator[Row]:
    """Compile every nest in every form that it has."""
    pairs = [(name, form) for name in nests for form in FORMS]
    for name, form in track(pairs, description="ptxas", disable=quiet):
        source = source_of(nests[name], form)
        if source is not None:
            yield name, form.label, usage_of(source)


def failures(rows: Sequence[Row]) -> list[str]:
    """The forms that spill, or take too many registers, in words."""
    base = {name: usage for name, label, usage in rows if label == DATA_PARALLEL}
    return [
        f"{name}, {label}, {arch}: {used}, data-parallel {base[name][arch]}"
        for name, label, usage in rows
        for arch, used in usage.items()
        if not used.passes(base[name][arch])
    ]


def table(rows: Sequence[Row], version: str) -> str:
    """The text of ``registers.md``."""
    lines = [
        "# Registers per thread",
        "",
        f"Made by `python benchmarks/registers.py` with nvcc {version}. Kernels of a product of",
        f"{SHAPE[0]} x {SHAPE[1]} x {SHAPE[2]}; where a form has several kernels, the most "
        "registers "
        "of",
        "one and the spills of all. A form may spill nothing beyond its data-parallel kernel, and",
        f"take at most {MOST_EXTRA_REGISTERS} registers more.",
        "",
        "| nest | form | " + " | ".join(ARCHITECTURES) + " |",
        "|---|---|" + "---|" * len(ARCHITECTURES),
    ]
    for name, label, usage in rows:
        cells = [str(usage[arch]) for arch in ARCHITECTURES]
        lines.append(f"| {name} | {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def parse_table(text: str) -> tuple[str, list[Row]]:
    """Version and rows of a text that ``table`` has made."""
    version = re.search(r"with nvcc ([\d.]+)\. ", text)
    rows: list[Row] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if not line.startswith("| ") or cells[0] == "nest":
            continue
        usage = {}
        for arch, cell in zip(ARCHITECTURES, cells[2:], strict=True):
            numbers = [int(number) for number in re.findall(r"\d+", cell)]
            usage[arch] = Usage(numbers[0], numbers[1] if len(numbers) > 1 else 0)
        rows.append((cells[0], cells[1], usage))
    return version[1] if version else "unknown", rows


def main() -> None:
    """Measure everything, write the table, and fail where a form does not pass."""
    console = Console()
    version = compiler_version()
    rows = list(measure({**plain_nests(), **tensor_core_nests()}))
    OUTPUT.write_text(table(rows, version))
    console.print(f"Wrote {OUTPUT}.")
    if failed := failures(rows):
        console.print("\n".join(failed))
        sys.exit(1)


if __name__ == "__main__":
    main()
