# SPDX-License-Identifier: Apache-2.0
"""ThreadSanitizer's reports as data: who touched what, in which line of the kernel."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .rewriting import KERNEL_FILE
from .source_text import source_line

_REPORT_START = "WARNING: ThreadSanitizer: "
_CRASH = "ThreadSanitizer:DEADLYSIGNAL"
_ACCESS = re.compile(
    r"^ +(?:Previous )?(?P<kind>(?:atomic )?(?:read|write)) of size (?P<size>\d+) "
    r"at 0x(?P<address>[0-9a-f]+) by (?:thread )?(?P<thread>[^:(\n]+?)(?: \(mutexes.*)?:$",
    re.IGNORECASE | re.MULTILINE,
)
_THREAD_NAME = re.compile(r"^ +Thread (?P<number>T\d+) '(?P<name>[^']*)'", re.MULTILINE)
_KERNEL_FRAME = re.compile(rf"^ +#\d+ .*?\b{re.escape(KERNEL_FILE)}:(?P<line>\d+)", re.MULTILINE)
_MEMORY = re.compile(r"^memory 0x(?P<start>[0-9a-f]+) (?P<bytes>\d+) (?P<name>.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Access:
    """One of the two accesses of a race.

    Attributes
    ----------
    kind : str
        "read", "write", "atomic read" or "atomic write".
    line : int
        In the plan's source, from 1; 0 if the sanitizer no longer knows.
    text : str
        That line.
    thread : str
        "block (x,y,z) thread (x,y,z)".
    """

    kind: str
    line: int
    text: str
    thread: str = field(compare=False)

    def __str__(self) -> str:
        return f"{self.kind} in line {self.line} by {self.thread}\n      {self.text}"


@dataclass(frozen=True)
class Race:
    """Two accesses to the same memory that nothing orders, at least one of them a write.

    Attributes
    ----------
    accesses : tuple[Access, Access]
        The one that was noticed, and the one before it.
    memory : str
        The buffer or shared array, with the offset in bytes.
    """

    accesses: tuple[Access, Access]
    memory: str

    @property
    def lines(self) -> tuple[int, ...]:
        """Source lines of the two accesses."""
        return tuple(access.line for access in self.accesses)

    def __str__(self) -> str:
        first, second = self.accesses
        return f"race on {self.memory}:\n    {first}\n    {second}"


@dataclass(frozen=True)
class _Region:
    start: int
    num_bytes: int
    name: str


def parse_races(reports: str, memory_map: str, source: str) -> list[Race]:
    """Races in the sanitizer's text, one for each pair of lines, in order of first lines.

    Parameters
    ----------
    reports : str
        What the sanitizer wrote.
    memory_map : str
        Lines `memory <address> <bytes> <name>`.
    source : str
        The kernels' source, whose lines are quoted.
    """
    regions = [
        _Region(int(match["start"], 16), int(match["bytes"]), match["name"])
        for match in _MEMORY.finditer(memory_map)
    ]
    races: dict[tuple[tuple[int, str], ...], Race] = {}
    for report in reports.split(_REPORT_START)[1:]:
        matches = list(_ACCESS.finditer(report))[:2]
        if len(matches) < 2:
            continue
        names = {name["number"]: name["name"] for name in _THREAD_NAME.finditer(report)}
        ends = [matches[1].start(), len(report)]
        first, second = (
            _access(match, report[match.end() : end], names, source)
            for match, end in zip(matches, ends, strict=True)
        )
        key = tuple(sorted((access.line, access.kind) for access in (first, second)))
        memory = _memory_name(int(matches[0]["address"], 16), regions)
        races.setdefault(key, Race((first, second), memory))
    return sorted(races.values(), key=lambda race: sorted(race.lines))


def _access(match: re.Match[str], following: str, names: dict[str, str], source: str) -> Access:
    # The frames of this access end at the first empty line.
    frame = _KERNEL_FRAME.search(following.split("\n\n")[0])
    line = int(frame["line"]) if frame else 0
    return Access(
        kind=match["kind"].lower(),
        line=line,
        text=source_line(source, line),
        thread=names.get(match["thread"], match["thread"]),
    )


def _memory_name(address: int, regions: list[_Region]) -> str:
    for region in regions:
        if region.start <= address < region.start + region.num_bytes:
            return f"{region.name}, byte {address - region.start}"
    return f"address {address:#x}"


def crash_line(reports: str) -> int | None:
    """Line of the kernel in which the sanitizer saw it crash; 0 if it is unknown."""
    start = reports.find(_CRASH)
    if start < 0:
        return None
    frame = _KERNEL_FRAME.search(reports, start)
    return int(frame["line"]) if frame else 0
