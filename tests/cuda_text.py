# SPDX-License-Identifier: Apache-2.0
"""Reading CUDA sources that TVM generated, and what ``ptxas`` says about them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_KERNEL = re.compile(
    r'extern "C" __global__ void [^{;]*?(\w+)\(([^()]*)\) \{\n(.*?)^\}', re.S | re.M
)
_ASSIGNMENT = re.compile(r"^\s*(?:\w+ )*(\w+)(?:\[.*?\])?(?:\.\w+)? = (.*);$")
_ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_ARRAY = re.compile(r"^ *(?:alignas\(\d+\) )?(?:float|double|int|half)(\d?) (\w+)\[(\d+)\];", re.M)
_SHARED = re.compile(
    r"^ *__shared__ (?:alignas\(\d+\) )?(?:float|double|int|half)(\d?) (\w+)\[(\d+)\];", re.M
)
BARRIER = "__syncthreads();"


@dataclass(frozen=True)
class Kernel:
    """One kernel of a source: its parameters' names and the text of its body."""

    name: str
    parameters: tuple[str, ...]
    body: str

    def private_arrays(self) -> dict[str, int]:
        """Arrays of each thread with the numbers of their elements."""
        return self._arrays(_ARRAY)

    def shared_arrays(self) -> dict[str, int]:
        """Arrays of each block with the numbers of their elements."""
        return self._arrays(_SHARED)

    def _arrays(self, declaration: re.Pattern[str]) -> dict[str, int]:
        found = declaration.findall(self.body)
        return {name: int(lanes or 1) * int(extent) for lanes, name, extent in found}


@dataclass(frozen=True)
class Frame:
    """Bytes of local memory that a kernel needs beyond registers."""

    stack: int
    spill_stores: int
    spill_loads: int


def kernels(source: str) -> list[Kernel]:
    """The kernels of a source in order."""
    return [
        Kernel(name, tuple(re.findall(r"(\w+)(?=,|$)", parameters)), body)
        for name, parameters, body in _KERNEL.findall(source)
    ]


def conditions_around_barriers(body: str) -> Iterator[list[str]]:
    """For each barrier, the heads of the blocks that it stands in, outermost first."""
    heads: list[str] = []
    for line in map(str.strip, body.splitlines()):
        if line.startswith("}"):
            heads.pop()
        if line == BARRIER:
            yield list(heads)
        if line.endswith("{"):
            heads.append(line)
    assert heads == []


def differs_between_threads(head: str, body: str) -> bool:
    """Whether the head of a block uses the thread's index, or anything computed from it."""
    dependent = {"threadIdx"}
    grown = True
    while grown:
        found = {
            match[1]
            for match in map(_ASSIGNMENT.match, body.splitlines())
            if match and dependent & set(re.findall(r"\w+", match[2]))
        }
        grown = not found <= dependent
        dependent |= found
    return bool(dependent & set(re.findall(r"\w+", head)))


def compile_for(source: str, folder: Path, *architectures: str) -> dict[tuple[str, str], Frame]:
    """Compile a source with ``nvcc``; local memory by kernel and architecture."""
    path = folder / "kernels.cu"
    path.write_text(source)
    code = [f"-gencode=arch=compute_{each},code=sm_{each}" for each in architectures]
    command = ["nvcc", *code, "-Xptxas", "-v", "--threads", "2", "-fatbin", str(path)]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"nvcc refuses the source:\n{result.stderr}")
    frames: dict[tuple[str, str], Frame] = {}
    entry = ("", "")
    for line in result.stderr.splitlines():
        if match := _ENTRY.search(line):
            entry = (match[1], match[2])
        if match := _FRAME.search(line):
            frames[entry] = Frame(*map(int, match.groups()))
    return frames
