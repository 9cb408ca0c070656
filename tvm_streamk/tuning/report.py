# SPDX-License-Identifier: Apache-2.0
"""What a tuning run found: the best of each decomposition, and why the winner won."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from tvm.s_tir import Schedule

from tvm_streamk.analysis import only_function
from tvm_streamk.annotation import RecordedDecision
from tvm_streamk.devices import Device
from tvm_streamk.partition import DATA_PARALLEL, SPLIT_K
from tvm_streamk.pipeline import recorded_decision, without_annotation
from tvm_streamk.tuning.counts import Counts, count, reduction_blocks
from tvm_streamk.tuning.features import partition_of

RFACTOR = "rfactor"
"""TVM's own split of a reduction, which its CPU space has."""

MICROSECONDS = 1e6
LEAST_GAIN = 1.03
FAILED_SECONDS = 1e9
"""TVM records ten thousand million seconds for a candidate that could not be measured."""


@dataclass(frozen=True)
class Finding:
    """One measured candidate.

    Attributes
    ----------
    decomposition
        One of the package's words, or ``rfactor`` for TVM's own split of the reduction.
    seconds
        Median time of a launch.
    decision
        What was recorded; None for TVM's own candidates.
    counts
        Tiles and panels; None where the candidate is no single nest.
    """

    decomposition: str
    seconds: float
    decision: RecordedDecision | None
    counts: Counts | None

    @property
    def microseconds(self) -> float:
        """Median time of a launch."""
        return self.seconds * MICROSECONDS

    def waves(self, device: Device) -> tuple[int, float] | None:
        """Rounds of tiles on a device's processors, data-parallel and as this candidate."""
        if self.counts is None:
            return None
        partition = partition_of(self.counts, self.decision)
        rounds = -(-partition.num_workers // device.num_sms)
        before = -(-self.counts.num_tiles // device.num_sms)
        return before, rounds * partition.most_panels / self.counts.panels


def findings(records: Iterable[Any]) -> list[Finding]:
    """All candidates of a database that could be measured, fastest first.

    Parameters
    ----------
    records : iterable of TuningRecord
        Of one workload. Each is replayed, to see what it does.

    Returns
    -------
    list of Finding

    Raises
    ------
    InvalidAnnotation
        A record carries a decision that this package does not know.
    """
    found = [_finding(record) for record in records if seconds_of(record) is not None]
    return sorted(found, key=lambda finding: finding.seconds)


def seconds_of(record: Any) -> float | None:
    """Median time of a record in seconds, or None where the candidate could not be measured."""
    seconds = [float(each) for each in record.run_secs or ()]
    if not seconds or statistics.median(seconds) >= FAILED_SECONDS:
        return None
    return statistics.median(seconds)


def replayed(record: Any) -> Schedule:
    """The candidate of a record, as it was built."""
    schedule = Schedule(record.workload.mod)
    record.trace.apply_to_schedule(schedule, remove_postproc=False)
    return schedule


def best_of_each(found: Sequence[Finding]) -> dict[str, Finding]:
    """The fastest candidate of each decomposition, fastest decomposition first."""
    best: dict[str, Finding] = {}
    for finding in found:
        best.setdefault(finding.decomposition, finding)
    return best


def table(found: Sequence[Finding], device: Device) -> Table:
    """The best of each decomposition, as a table to print."""
    shown = Table(
        box=None, padding=(0, 1), collapse_padding=True, pad_edge=False, header_style="underline"
    )
    shown.add_column("decomposition", no_wrap=True)
    for heading in ("tried", "best us", "gain", "tiles", "panels", "workers", "waves", "peers"):
        shown.add_column(heading, justify="right", no_wrap=True)
    shown.add_column("merge", no_wrap=True)
    best = best_of_each(found)
    base = best.get(DATA_PARALLEL)
    for number, (word, finding) in enumerate(best.items()):
        tried = sum(each.decomposition == word for each in found)
        gain = f"{base.seconds / finding.seconds:.2f}" if base else "-"
        cells = [_name(finding), str(tried), f"{finding.microseconds:.1f}", gain]
        shown.add_row(*cells, *_plan_cells(finding, device), style=None if number else "bold")
    return shown


def why(found: Sequence[Finding], device: Device) -> str:
    """Why the winner won, in one or two sentences."""
    best = best_of_each(found)
    (word, winner), *others = best.items()
    if not others:
        return f"Only {word} candidates were measured."
    base = best.get(DATA_PARALLEL)
    if word == DATA_PARALLEL:
        second = others[0][1]
        ratio = second.seconds / winner.seconds
        return (
            f"The nest as it is won: {_layout(winner, device)}. The best alternative, "
            f"{second.decomposition}, took {ratio:.2f} times as long: {_layout(second, device)}."
        )
    compared = "no data-parallel candidate was measured"
    if base is not None:
        compared = (
            f"{base.seconds / winner.seconds:.2f} times as fast as the best data-parallel "
            f"candidate, which has {_layout(base, device)}"
        )
    return f"{word} won with {_layout(winner, device)}; {compared}.{_caution(winner, base, device)}"


def _caution(winner: Finding, base: Finding | None, device: Device) -> str:
    """What to keep in mind where the plans alone do not explain who won."""
    waves = winner.waves(device)
    if base is not None and base.seconds / winner.seconds < LEAST_GAIN:
        return " That is within the noise of most machines."
    if waves is not None and waves[1] >= waves[0]:
        return " It has no fewer waves: tile sizes, or the persistent loop itself, made the gain."
    return ""


def _finding(record: Any) -> Finding:
    function = only_function(replayed(record).mod)
    recorded = recorded_decision(function)
    seconds = seconds_of(record) or 0.0
    if recorded is None:
        names = reduction_blocks(function)
        kinds = {str(instruction.kind.name) for instruction in record.trace.insts}
        word = RFACTOR if "RFactor" in kinds else DATA_PARALLEL
        counts = next(filter(None, (count(function, name) for name in names)), None)
        return Finding(word, seconds, None, counts)
    counts = count(without_annotation(function), recorded.block)
    decision = None if counts is None else recorded.resolve(counts.num_tiles, counts.panels)
    word = DATA_PARALLEL if decision is None else decision.decomposition
    return Finding(word, seconds, decision, counts)


def _name(finding: Finding) -> str:
    decision = finding.decision
    if decision is None or decision.decomposition != SPLIT_K:
        return finding.decomposition
    return f"{SPLIT_K}({decision.splits})"


def _plan_cells(finding: Finding, device: Device) -> list[str]:
    waves = finding.waves(device)
    if finding.counts is None or waves is None:
        return ["-"] * 6
    partition = partition_of(finding.counts, finding.decision)
    decision = finding.decision
    return [
        str(finding.counts.num_tiles),
        str(finding.counts.panels),
        str(partition.num_workers),
        f"{waves[0]} -> {waves[1]:.2f}",
        str(partition.most_peers),
        "-" if decision is None or partition.cuts == 0 else decision.merge,
    ]


def _layout(finding: Finding, device: Device) -> str:
    waves = finding.waves(device)
    if finding.counts is None or waves is None:
        return "TVM's own split of the reduction"
    tiles, (before, after) = finding.counts.num_tiles, waves
    what = f"{tiles} {'tile' if tiles == 1 else 'tiles'} on {device.num_sms} processors"
    shown = f"{after:.2f}".rstrip("0").rstrip(".")
    rounds = f"{shown} {'wave' if shown == '1' else 'waves'}"
    instead = f" instead of {before}" if after < before else ""
    return f"{what} in {rounds}{instead}"
