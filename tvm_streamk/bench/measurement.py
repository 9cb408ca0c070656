# SPDX-License-Identifier: Apache-2.0
"""Times the forms of a product in turn and makes a record of them, as plain data for JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tvm_streamk.bench.forms import AUTO, Form, build_forms
from tvm_streamk.bench.products import Product
from tvm_streamk.devices import Device
from tvm_streamk.partition import DATA_PARALLEL, SPLIT_K
from tvm_streamk.places import Place
from tvm_streamk.plan import Plan
from tvm_streamk.testing.measure import (
    FOREIGN_LOAD_LIMIT,
    LEAST_PAIRS,
    NotQuiet,
    Turns,
    take_turns,
)

Launch = Callable[[], object]
LaunchMany = Callable[[int], object]
"""Launches so many times, and waits at the end."""

Record = dict[str, Any]

SHORTEST_TIMING_SECONDS = 5e-4
MOST_LAUNCHES = 64


@dataclass(frozen=True)
class Conditions:
    """How to time.

    Attributes
    ----------
    rounds
        Undisturbed rounds that a figure needs.
    batch_seconds
        How long a batch lasts, which is kept or dropped as a whole.
    even_if_busy
        Keep batches whatever others do; the record says so.
    builders
        Kernels to compile at the same time, before anything is timed.
    """

    rounds: int = LEAST_PAIRS
    batch_seconds: float = 0.4
    even_if_busy: bool = False
    builders: int = 1

    @property
    def load_limit(self) -> float:
        """Cores that others may use during a batch."""
        return math.inf if self.even_if_busy else FOREIGN_LOAD_LIMIT


def measure(
    product: Product,
    where: Place,
    device: Device,
    conditions: Conditions,
    others: Mapping[str, LaunchMany] | None = None,
) -> Record:
    """Build, check and time every form of a product.

    Parameters
    ----------
    product, where, device
        As for :func:`tvm_streamk.bench.forms.build_forms`.
    conditions
        How to time.
    others
        What else takes turns, by name: a library's kernel for the same product. Each is told how
        many launches to make, and waits for the last.

    Returns
    -------
    dict
        Counts, and for each form what it is, its median time in seconds, its gain over
        data-parallel and the quartiles of the gain. Without enough undisturbed rounds there is
        ``not_quiet``, a sentence, and no times.
    """
    forms = build_forms(product, where, device, conditions.builders)
    times = launches_per_timing(forms[DATA_PARALLEL].prepared.launch)
    launches = {name: _launch_many(form, times) for name, form in forms.items()}
    launches |= {name: _call_many(call, times) for name, call in (others or {}).items()}
    turns = take_turns(
        [*launches.values(), launches[DATA_PARALLEL]],
        conditions.rounds,
        conditions.batch_seconds,
        load_limit=conditions.load_limit,
    )
    record = _described(product, where, forms)
    record |= {"batches": turns.batches, "dropped": turns.dropped, "rounds": len(turns.times[0])}
    record["even_if_busy"] = conditions.even_if_busy
    try:
        return record | _figures(record["forms"], list(launches), turns, times)
    except NotQuiet as reason:
        return record | {"not_quiet": str(reason)}


def _described(product: Product, where: Place, forms: Mapping[str, Form]) -> Record:
    auto = forms[AUTO].plan
    tiles = auto.num_tiles or 1
    waves = -(-tiles // where.processors)
    return {
        "target": where.name,
        "engine": forms[AUTO].prepared.engine,
        "dtype": product.name,
        "shape": list(product.shape),
        "tiles": tiles,
        "panels": auto.panels,
        "processors": where.processors,
        "waves": waves,
        "bound": waves * where.processors / tiles,
        "predicted_gain": auto.predicted_gain,
        "reason": "; ".join(auto.notes),
        "forms": {name: _form(form.plan) for name, form in forms.items()},
    }


def _form(plan: Plan) -> Record:
    decision = plan.decision
    return {
        "decomposition": decision.decomposition,
        "workers": plan.num_workers,
        "splits": decision.splits if decision.decomposition == SPLIT_K else 1,
        "merge": decision.merge if plan.cuts else None,
        "cuts": plan.cuts,
        "most_peers": plan.most_peers,
        "workspace_bytes": plan.workspace_bytes,
    }


def _figures(forms: Mapping[str, Record], names: list[str], turns: Turns, times: int) -> Record:
    base, again = names.index(DATA_PARALLEL), len(names)
    found: dict[str, Record] = {}
    for place, name in enumerate(names):
        pair = turns.paired(base, place, again)
        found[name] = {
            **forms.get(name, {}),
            "seconds": pair.seconds[1] / times,
            "gain": pair.ratio,
            "spread": list(pair.spread),
        }
    control = turns.paired(base, base, again)
    return {"forms": found, "control": control.control, "valid": control.is_valid}


def launches_per_timing(launch: Launch) -> int:
    """How many launches make one timing: short ones are timed together."""
    shortest = take_turns([launch], 1, 0.0, load_limit=math.inf).least[0]
    return min(max(math.ceil(SHORTEST_TIMING_SECONDS / shortest), 1), MOST_LAUNCHES)


def _launch_many(form: Form, times: int) -> Launch:
    return lambda: form.prepared.launch(times)


def _call_many(call: LaunchMany, times: int) -> Launch:
    return lambda: call(times)
