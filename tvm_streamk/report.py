# SPDX-License-Identifier: Apache-2.0
"""Which functions of a model take Stream-K, and why the others do not."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from tvm import s_tir, tirx

from tvm_streamk.annotation import STREAMED_SUFFIX, Choice, RecordedDecision
from tvm_streamk.contraction import find_reduction
from tvm_streamk.expressions import collect
from tvm_streamk.partition import DATA_PARALLEL
from tvm_streamk.pipeline import recorded_decision

if TYPE_CHECKING:
    from tvm_streamk.dlight_rule import Verdict

VERDICTS_KEY = "tvm_streamk.verdicts"
"""Module attribute: by function name, the fields of an :class:`Entry` after the name."""

UNKNOWN = -1
TEXT_COLUMNS = 120
BYTES_PER_KIB = 1024


@dataclass(frozen=True)
class Entry:
    """What was decided for one function.

    Attributes
    ----------
    name
        The function.
    decision
        A decomposition, ``data_parallel``, or empty where no rule of ours schedules it.
    merge
        How cut tiles are merged; empty where none is cut.
    num_workers, num_tiles, panels, workspace_bytes
        Counts; None where they are unknown (symbolic shapes) or have no meaning.
    reason
        Why.
    """

    name: str
    decision: str
    merge: str
    num_workers: int | None
    num_tiles: int | None
    panels: int | None
    workspace_bytes: int | None
    reason: str

    @property
    def streams(self) -> bool:
        """Whether the function is, or becomes, a Stream-K kernel."""
        return self.decision not in ("", DATA_PARALLEL)


@dataclass(frozen=True)
class Report:
    """One entry per tensor function; prints as a table."""

    entries: tuple[Entry, ...]

    @property
    def streamed(self) -> tuple[str, ...]:
        """The functions that take Stream-K."""
        return tuple(entry.name for entry in self.entries if entry.streams)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __getitem__(self, name: str) -> Entry:
        for entry in self.entries:
            if entry.name == name:
                return entry
        known = ", ".join(entry.name for entry in self.entries) or "none"
        raise KeyError(f"no function {name!r}; the functions are: {known}")

    def __rich__(self) -> Table:
        table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="underline")
        table.add_column("function", overflow="fold", max_width=40)
        table.add_column("decision", no_wrap=True)
        for heading in ("workers", "tiles", "panels", "workspace"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("reason", overflow="fold")
        for entry in self.entries:
            style = "bold" if entry.streams else None
            table.add_row(*_cells(entry), style=style)
        return table

    def __str__(self) -> str:
        output = io.StringIO()
        Console(file=output, width=TEXT_COLUMNS, no_color=True).print(self)
        count = f"{len(self.streamed)} of {len(self.entries)} functions take Stream-K"
        return f"{output.getvalue()}{count}"


def report(module: Any) -> Report:
    """List each tensor function of a module, what was decided for it, and why.

    Parameters
    ----------
    module : tvm.IRModule
        A model after :func:`tvm_streamk.relax_pipeline`, or after DLight with rules of ours. What
        the pipeline decided is kept in the module; for functions that it has not seen, what can be
        read off them is reported.

    Returns
    -------
    Report
        In the order of the functions' names.
    """
    kept = module.attrs.get(VERDICTS_KEY, {}) if module.attrs is not None else {}
    known = {str(name): fields for name, fields in kept.items()}
    functions = {
        str(variable.name_hint): function
        for variable, function in module.functions.items()
        if isinstance(function, tirx.PrimFunc)
    }
    return Report(
        tuple(
            _decoded(name, known[name]) if name in known else _read_off(name, functions[name])
            for name in sorted(functions)
        )
    )


def encode_verdict(verdict: Verdict) -> list[Any]:
    """A verdict as the fields of an entry, in the form that module attributes can hold."""
    plan = verdict.plan
    if plan is None or not verdict.streams:
        tiles = UNKNOWN if plan is None else _or_unknown(plan.num_tiles)
        panels = UNKNOWN if plan is None else plan.panels
        return [verdict.decision, "", UNKNOWN, tiles, panels, UNKNOWN, verdict.reason]
    return [
        verdict.decision,
        plan.decision.merge if plan.uses_workspace else "",
        plan.num_workers,
        _or_unknown(plan.num_tiles),
        plan.panels,
        _or_unknown(plan.workspace_bytes),
        verdict.reason,
    ]


def _or_unknown(value: int | None) -> int:
    return UNKNOWN if value is None else value


def _decoded(name: str, fields: Any) -> Entry:
    decision, merge, workers, tiles, panels, workspace, reason = fields
    counts = (None if int(n) == UNKNOWN else int(n) for n in (workers, tiles, panels, workspace))
    num_workers, num_tiles, num_panels, num_bytes = counts
    return Entry(
        name,
        str(decision),
        str(merge),
        num_workers,
        num_tiles,
        num_panels,
        num_bytes,
        str(reason),
    )


def _read_off(name: str, function: Any) -> Entry:
    """What a function itself tells, where no pipeline has kept a verdict."""
    recorded = recorded_decision(function)
    if isinstance(recorded, Choice):
        taken = recorded.option
        return _entry(name, taken.decomposition, taken.merge, None, "chosen by the tuner")
    if isinstance(recorded, RecordedDecision):
        reason = "recorded in the function, to be carried out by the build pipeline"
        workers = recorded.num_workers
        return _entry(name, recorded.decomposition, recorded.merge, workers, reason)
    blocks = [str(block.name_hint) for block in collect(function.body, s_tir.SBlock)]
    streamed = [block for block in blocks if block.endswith(STREAMED_SUFFIX)]
    if streamed:
        return _entry(name, "streamed", "", None, f"a Stream-K kernel (block {streamed[0]!r})")
    reduces = find_reduction(function) is not None
    why = "no rule of ours has seen it" if reduces else "it has no reduction, or several"
    return _entry(name, "", "", None, why)


def _entry(name: str, decision: str, merge: str, workers: int | None, reason: str) -> Entry:
    return Entry(name, decision, merge, workers, None, None, None, reason)


def _cells(entry: Entry) -> list[str]:
    def shown(count: int | None) -> str:
        return "-" if count is None else str(count)

    workspace = entry.workspace_bytes
    return [
        entry.name,
        f"{entry.decision or '-'}{f', {entry.merge}' if entry.merge else ''}",
        shown(entry.num_workers),
        shown(entry.num_tiles),
        shown(entry.panels),
        "-" if workspace is None else f"{workspace / BYTES_PER_KIB:.0f} KiB",
        entry.reason,
    ]
