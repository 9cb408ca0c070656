# SPDX-License-Identifier: Apache-2.0
"""Registers and spills of every Stream-K form beside its data-parallel kernel, as ptxas counts.

Writes ``registers.md`` beside this file. No GPU is needed, only ``nvcc``: for one version of it,
the figures are the same on every machine. A form passes where it spills no byte more than its
data-parallel kernel and takes at most ``MOST_EXTRA_REGISTERS`` registers more. ptxas chooses freely
how many registers it uses, and would rather spill a few bytes than lose a resident block; so where
its own choice does not pass, it is asked again with that limit (``__maxnreg__``).

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
    MMA,
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
REGISTERS_PER_BLOCK = 65536
QUOTED_CHARACTERS = 500

_BOUNDS = re.compile(r"__launch_bounds__\((\d+)\)")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_RELEASE = re.compile(r"release [\d.]+, V([\d.]+)")


class CompilerMissing(RuntimeError):
    """There is no nvcc on this machine."""


class CompilationFailed(RuntimeError):
    """nvcc does not compile what TVM has generated."""


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
            and self.registers <= data_parallel.limit_of_forms
        )

    @property
    def limit_of_forms(self) -> int:
        """The most registers for forms of a data-parallel kernel with this usage."""
        return self.registers + MOST_EXTRA_REGISTERS

    def __str__(self) -> str:
        spilled = f", {self.spilled_bytes} bytes spilled" if self.spilled_bytes else ""
        return f"{self.registers}{spilled}"


@dataclass(frozen=True)
class Figures:
    """What one architecture's ptxas makes of a form.

    Attributes
    ----------
    free : Usage
        By its own choice.
    held : Usage or None
        Under the limit for forms of this nest, where its own choice does not pass.
    """

    free: Usage
    held: Usage | None = None

    def passes(self, data_parallel: Usage) -> bool:
        """Whether either is no more than a Stream-K form may need."""
        return (self.held or self.free).passes(data_parallel)

    def __str__(self) -> str:
        return str(self.free) if self.held is None else f"{self.free} (held: {self.held})"


@dataclass(frozen=True)
class Form:
    """One way to stream a nest; none for the nest as it is."""

    label: str
    arguments: Mapping[str, Any]


def _forms() -> tuple[Form, ...]:
    decompositions: dict[str, dict[str, Any]] = {
        "stream_k": {"num_workers": 7},
        "two_tile": {"num_workers": 7},
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
        "MetaSchedule, float16 to float32, mma": Nest(
            functools.partial(
                metaschedule_schedule,
                product(SHAPE, "float16", "float32", transposed=False),
                MMA,
            )
        ),
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


def usage_of(source: str, architecture: str, limit: int | None = None) -> Usage:
    """Registers and spills of CUDA source.

    Parameters
    ----------
    source
        With TVM's ``__launch_bounds__``.
    architecture
        Such as ``sm_80``.
    limit
        The most registers per thread that the kernels may use.

    Raises
    ------
    CompilerMissing
        If there is no nvcc.
    CompilationFailed
        If it refuses the source.
    """
    compiler = _compiler()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernels.cu"
        file.write_text(source if limit is None else held_to(source, limit))
        command = [compiler, f"-arch={architecture}", "-cubin", "-Xptxas", "-v", "-w", str(file)]
        done = subprocess.run(
            [*command, "-o", str(Path(folder) / "kernels.cubin")],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise CompilationFailed(f"nvcc refuses the source: {done.stderr[:QUOTED_CHARACTERS]}")
    return _parse(done.stderr)


def held_to(source: str, limit: int) -> str:
    """The source with a limit of registers instead of one of threads; all threads still fit."""

    def bound(match: re.Match[str]) -> str:
        return f"__maxnreg__({min(limit, REGISTERS_PER_BLOCK // int(match[1]))})"

    return _BOUNDS.sub(bound, source)


def _parse(report: str) -> Usage:
    spilled = sum(int(number) for pair in _SPILLS.findall(report) for number in pair)
    return Usage(max(int(number) for number in _REGISTERS.findall(report)), spilled)


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


Row = tuple[str, str, dict[str, Figures]]
"""Nest, form, and the figures per architecture."""


def measure(nests: Mapping[str, Nest], forms: Sequence[Form] = FORMS) -> Iterator[Row]:
    """Compile every nest in every form that it has, the data-parallel one first."""
    for name in track(nests, description="ptxas", console=Console(stderr=True)):
        base: dict[str, Usage] = {}
        for form in forms:
            source = source_of(nests[name], form)
            if source is None:
                continue
            figures = {each: _figures(source, each, base.get(each)) for each in ARCHITECTURES}
            if not base:
                base = {each: figures[each].free for each in ARCHITECTURES}
            yield name, form.label, figures


def _figures(source: str, architecture: str, data_parallel: Usage | None) -> Figures:
    free = usage_of(source, architecture)
    if data_parallel is None or free.passes(data_parallel):
        return Figures(free)
    return Figures(free, usage_of(source, architecture, data_parallel.limit_of_forms))


def failures(rows: Sequence[Row]) -> list[str]:
    """The forms that spill, or take too many registers, in words."""
    base = {name: figures for name, label, figures in rows if label == DATA_PARALLEL}
    return [
        f"{name}, {label}, {arch}: {each}, data-parallel {base[name][arch]}"
        for name, label, figures in rows
        for arch, each in figures.items()
        if not each.passes(base[name][arch].free)
    ]


HEAD = """\
# Registers per thread

Made by `python benchmarks/registers.py` with nvcc {version}. Kernels of a product of {shape};
where a form has several kernels, the most registers of one and the spills of all.

A form may take at most {extra} registers more than its data-parallel kernel, and spill nothing
beyond it. ptxas chooses freely how many registers it uses: it takes more than it needs where no
block is lost by it, and spills a few bytes where that keeps one more block resident. *Held* is
what it does with the limit for the form as an order (`__maxnreg__`), where its own choice is not
within it.

"""


def table(rows: Sequence[Row], version: str) -> str:
    """The text of ``registers.md``."""
    shape = " x ".join(str(extent) for extent in SHAPE)
    lines = [
        "| nest | form | " + " | ".join(ARCHITECTURES) + " |",
        "|---|---|" + "---|" * len(ARCHITECTURES),
        *(
            f"| {name} | {label} | " + " | ".join(str(each) for each in figures.values()) + " |"
            for name, label, figures in rows
        ),
    ]
    head = HEAD.format(version=version, shape=shape, extra=MOST_EXTRA_REGISTERS)
    return head + "\n".join(lines) + "\n"


def parse_table(text: str) -> tuple[str, list[Row]]:
    """Version and rows of a text that ``table`` has made."""
    version = re.search(r"with nvcc ([\d.]+)\. ", text)
    rows: list[Row] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and cells[0] != "nest":
            figures = map(_parse_cell, cells[2:])
            rows.append((cells[0], cells[1], dict(zip(ARCHITECTURES, figures, strict=True))))
    return version[1] if version else "unknown", rows


def _parse_cell(cell: str) -> Figures:
    usages = [
        Usage(int(registers), int(spilled or 0))
        for registers, spilled in re.findall(r"(\d+)(?:, (\d+) bytes spilled)?", cell)
    ]
    return Figures(*usages)


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
