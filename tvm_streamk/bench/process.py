# SPDX-License-Identifier: Apache-2.0
"""Measures products in a process of its own: ``python -m tvm_streamk.bench.process``.

Between processes the spread is larger than within one, since memory lies differently; so a bench
starts several. The request comes as JSON on standard input, and each record goes out as one line.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from tvm_streamk.bench.measurement import Conditions, Record, measure
from tvm_streamk.bench.products import Shape, hand_product
from tvm_streamk.devices import lookup
from tvm_streamk.places import place, prepare_environment

LAST_LINES = 12


class ProcessFailed(RuntimeError):
    """The process that measures has stopped before its end."""


@dataclass(frozen=True)
class Request:
    """What a process measures.

    Attributes
    ----------
    target
        ``llvm``, ``opencl`` or ``cuda``.
    shapes
        The products.
    device
        A device's name or file, whose constants the policy uses; None for the place's own.
    conditions
        How to time.
    """

    target: str
    shapes: tuple[Shape, ...]
    device: str | None
    conditions: Conditions

    def encode(self) -> str:
        """The request as JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def decode(text: str) -> Request:
        """The request that :meth:`encode` wrote."""
        fields = json.loads(text)
        return Request(
            fields["target"],
            tuple((m, n, k) for m, n, k in fields["shapes"]),
            fields["device"],
            Conditions(**fields["conditions"]),
        )


def records(request: Request) -> Iterator[Record]:
    """Measure in this process."""
    where = place(request.target)
    device = where.device if request.device is None else lookup(request.device)
    for shape in request.shapes:
        yield measure(hand_product(where, shape), where, device, request.conditions)


def in_fresh_process(request: Request) -> Iterator[Record]:
    """Measure in another process; each record comes as soon as it is there.

    Raises
    ------
    ProcessFailed
        With the end of what the process said.
    """
    command = [sys.executable, "-m", "tvm_streamk.bench.process"]
    with tempfile.TemporaryFile("w+") as complaints, tempfile.TemporaryFile("w+") as asked:
        asked.write(request.encode())
        asked.seek(0)
        with subprocess.Popen(
            command, stdin=asked, stdout=subprocess.PIPE, stderr=complaints, text=True
        ) as running:
            for line in running.stdout or ():
                yield json.loads(line)
        if running.returncode:
            complaints.seek(0)
            raise ProcessFailed("\n".join(complaints.read().splitlines()[-LAST_LINES:]))


def run(requests: Sequence[Request], processes: int) -> Iterator[Record]:
    """Measure every request in several processes, one after the other.

    Place after place, again and again: what changes with time does not hit one place only.
    """
    for _ in range(processes):
        for request in requests:
            yield from in_fresh_process(request)


def main() -> None:
    """Measure what standard input asks for."""
    prepare_environment()
    for record in records(Request.decode(sys.stdin.read())):
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
