# SPDX-License-Identifier: Apache-2.0
"""TVM's own test functions as outside inputs: collect them, judge them, run what is accepted.

    python tests/conformance.py SOURCE

``SOURCE`` is an unpacked TVM source tree. Its schedule, DLight and MetaSchedule tests are run with
a recorder that notes every TensorIR function that a schedule, a rule or a tuner is made for;
nothing is copied from that tree. The report counts what was accepted, refused and executed.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import tvm
import tvm_ffi
from tvm import s_tir, tirx

from tvm_streamk import StreamKError, can_stream_k
from tvm_streamk.expressions import collect as nodes_of

FOLDERS = ("schedule", "dlight", "meta_schedule")
ROOT = Path("tests/python/s_tir")
SKIPPED = (
    "tune_tir",
    "runner",
    "builder",
    "cost_model",
    "measure_callback",
    "task_scheduler",
    "search_strategy",
    "ldmatrix_mma_numeric",
    "mfma_numeric",
    "benchmark",
)
"""Parts of file names: tests that tune, need devices or other processes; they make the same
functions as the rest."""


@dataclass(frozen=True)
class Collected:
    """One function, and where it was first seen."""

    origin: str
    function: Any

    @property
    def blocks(self) -> list[str]:
        """The names of the blocks below the root."""
        return [str(block.name_hint) for block in _blocks(self.function)]

    @property
    def has_reduction(self) -> bool:
        """Whether an iterator of any block is a reduction."""
        reduction = tirx.IterVar.CommReduce
        return any(
            iterator.iter_type == reduction
            for block in _blocks(self.function)
            for iterator in block.iter_vars
        )


@dataclass
class Verdict:
    """What the analysis says about one function."""

    item: Collected
    accepted: list[str] = field(default_factory=list)
    refused: dict[str, list[str]] = field(default_factory=dict)
    crashed: dict[str, str] = field(default_factory=dict)


def _blocks(function: Any) -> list[Any]:
    return [block for block in nodes_of(function.body, s_tir.SBlock) if block.name_hint != "root"]


# -- collecting ------------------------------------------------------------------------------------


class Recorder:
    """A pytest plugin that notes every function that a schedule is made for."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.seen: set[int] = set()
        self.test = "import"

    def pytest_runtest_setup(self, item: Any) -> None:
        """Remember which test runs."""
        self.test = item.nodeid.split("/")[-1]

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Note what the test modules define, whether or not their tests run here."""
        for module in {item.module for item in items}:
            self.test = Path(str(module.__file__)).name
            for value in list(vars(module).values()):
                self.note(value)

    def note(self, value: Any) -> None:
        """Save a function, or the functions of a module, unless known."""
        if isinstance(value, tvm.IRModule):
            for function in value.functions.values():
                self.note(function)
        if not isinstance(value, tirx.PrimFunc) or not _is_schedulable(value):
            return
        number = tvm_ffi.structural_hash(value)
        if number not in self.seen:
            self.seen.add(number)
            text = f"{self.test}\n{tvm.ir.save_json(value)}"
            (self.output / f"{len(self.seen):04d}.txt").write_text(text)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Note the module of every schedule and tuning context."""
        from tvm.s_tir import meta_schedule

        classes = (s_tir.Schedule, meta_schedule.TuneContext)
        originals = [each.__init__ for each in classes]

        def noting(original: Any) -> Any:
            def init(instance: Any, mod: Any = None, *args: Any, **kwargs: Any) -> None:
                self.note(mod)
                original(instance, mod, *args, **kwargs)

            return init

        for each, original in zip(classes, originals, strict=True):
            each.__init__ = noting(original)
        try:
            yield
        finally:
            for each, original in zip(classes, originals, strict=True):
                each.__init__ = original


def _is_schedulable(function: Any) -> bool:
    body = function.body
    return isinstance(body, s_tir.SBlockRealize) and bool(_blocks(function))


def record(source: Path, output: Path) -> None:
    """Run the tests of a source tree in this process and save the functions that they use."""
    recorder = Recorder(output)
    files = [
        str(path)
        for folder in FOLDERS
        for path in sorted((source / ROOT / folder).glob("test_*.py"))
        if not any(part in path.name for part in SKIPPED)
    ]
    with recorder.listening():
        options = ["-q", "-p", "no:cacheprovider", "--tb=no", "--continue-on-collection-errors"]
        pytest.main([*options, "--rootdir", str(source), *files], plugins=[recorder])


def collect(source: Path) -> list[Collected]:
    """Every function that the tests of a source tree use, each once.

    Another process runs them: they change global state, and a crash must not be ours.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--record", folder, str(source)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        collected = load(Path(folder))
    if not collected:
        raise RuntimeError(f"no function collected from {source}:\n{done.stdout[-2000:]}")
    return collected


def load(folder: Path) -> list[Collected]:
    """The functions that were saved to a folder."""
    texts = [path.read_text().split("\n", 1) for path in sorted(folder.glob("*.txt"))]
    return [Collected(origin, tvm.ir.load_json(text)) for origin, text in texts]


# -- judging ---------------------------------------------------------------------------------------


def judge(item: Collected) -> Verdict:
    """Ask the analysis about every block of a function."""
    verdict = Verdict(item)
    # Some are ill-formed on purpose: TVM makes no schedule of them, but the analysis may be asked.
    schedule = types.SimpleNamespace(mod=tvm.IRModule({"main": item.function}))
    before = tvm_ffi.structural_hash(schedule.mod)
    for name in dict.fromkeys(item.blocks):
        try:
            answer = can_stream_k(schedule, name)
        except Exception as error:
            verdict.crashed[name] = f"{type(error).__name__}: {error}"
            continue
        if answer:
            verdict.accepted.append(name)
        else:
            verdict.refused[name] = [type(reason).__name__ for reason in answer.reasons]
            assert all(isinstance(reason, StreamKError) for reason in answer.reasons)
    if tvm_ffi.structural_hash(schedule.mod) != before:
        verdict.crashed["(all)"] = "the analysis changed the function"
    return verdict


def report(verdicts: Sequence[Verdict]) -> str:
    """The counts."""
    reasons = collections.Counter(
        names[0] for verdict in verdicts for names in verdict.refused.values()
    )
    accepted = [verdict for verdict in verdicts if verdict.accepted]
    lines = [
        f"{len(verdicts)} functions",
        f"{sum(verdict.item.has_reduction for verdict in verdicts)} functions with a reduction",
        f"{sum(len(set(verdict.item.blocks)) for verdict in verdicts)} blocks judged",
        f"{len(accepted)} functions accepted",
        *(f"  refused first by {name}: {count} blocks" for name, count in reasons.most_common()),
        *(f"  CRASHED {v.item.origin}: {v.crashed}" for v in verdicts if v.crashed),
        *(f"  accepted {v.item.origin}: {', '.join(v.accepted)}" for v in accepted),
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> None:
    """Collect, judge and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="an unpacked TVM source tree")
    parser.add_argument("--record", type=Path, help="only save the functions to this folder")
    parser.add_argument("--recorded", type=Path, help="a folder that --record has filled")
    options = parser.parse_args(arguments)
    if options.record is not None:
        record(options.source.resolve(), options.record.resolve())
        return
    items = load(options.recorded) if options.recorded else collect(options.source)
    print(report([judge(item) for item in items]))


if __name__ == "__main__":
    os.environ.setdefault("TVM_NUM_THREADS", "2")
    main(sys.argv[1:])
