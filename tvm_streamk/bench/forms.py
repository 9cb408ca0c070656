# SPDX-License-Identifier: Apache-2.0
"""The forms of one product: data-parallel, split-K with the best S, Stream-K with the best g, auto.

Which S and which g are best is found by running: a few that the cost model likes run in turn, and
the fastest is kept. It is timed anew afterwards, so that luck in the choice is not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

import tvm_streamk
from tvm_streamk.bench.products import Operands, Product
from tvm_streamk.candidates import divisors
from tvm_streamk.cost_model import predict
from tvm_streamk.devices import Device
from tvm_streamk.nest_device import device_for
from tvm_streamk.partition import DATA_PARALLEL, SPLIT_K, STREAM_K, Partition
from tvm_streamk.places import Place
from tvm_streamk.plan import Plan
from tvm_streamk.testing import Prepared, prepare
from tvm_streamk.testing.measure import take_turns
from tvm_streamk.tile_nest import TileNest

AUTO = "auto"
FORMS = (DATA_PARALLEL, SPLIT_K, STREAM_K, AUTO)
MOST_TRIED = 3
TRIAL_ROUNDS = 5
TRIAL_BATCH_SECONDS = 0.05


class WrongProduct(RuntimeError):
    """A kernel's product is not numpy's, so its time says nothing."""


@dataclass(frozen=True)
class Form:
    """One built and checked kernel."""

    plan: Plan
    prepared: Prepared


def build_forms(
    product: Product, where: Place, device: Device, builders: int = 1
) -> dict[str, Form]:
    """Build and check every form of a product that there is.

    Parameters
    ----------
    product
        What is computed.
    where
        The device that computes it.
    device
        Whose constants the policy uses.
    builders
        Kernels to compile at the same time.

    Returns
    -------
    dict
        By the words of :data:`FORMS`. A form is missing where no panel can be split off.
    """
    nest = tvm_streamk.analyze(product.make(), product.block)
    wanted: list[dict[str, Any]] = [
        {"decomposition": DATA_PARALLEL},
        {"decomposition": AUTO, "device": device},
    ]
    for word, options in (
        (SPLIT_K, _splits(nest, where, device)),
        (STREAM_K, _grids(nest, where, device)),
    ):
        wanted += [{"decomposition": word, **each} for each in options]
    operands = Operands.of(product)
    jobs = [Job(product, operands, how) for how in wanted]
    forms: dict[str, list[Form]] = {}
    for job, form in zip(jobs, build(jobs, where, builders), strict=True):
        forms.setdefault(job.how["decomposition"], []).append(form)
    return {word: _fastest(forms[word]) for word in FORMS if word in forms}


@dataclass(frozen=True)
class Job:
    """A kernel to build: a product, its operands, and the arguments of ``stream_k``."""

    product: Product
    operands: Operands
    how: Mapping[str, Any]

    def schedule(self) -> tuple[Any, Plan]:
        """The streamed schedule and its plan."""
        schedule = self.product.make()
        return schedule, tvm_streamk.stream_k(schedule, self.product.block, **self.how)

    def check(self, form: Form) -> None:
        """Run the kernel and raise ``WrongProduct`` if its product is not numpy's."""
        place = len(self.operands.inputs)
        form.prepared.write(place, self.product.output())
        form.prepared.launch()
        result = form.prepared.read()[place]
        if not np.array_equal(result, self.operands.expected):
            raise WrongProduct(
                f"{self.product.extents} on {form.prepared.engine}, {form.plan.decision}: the "
                "product is not numpy's"
            )


def build(
    jobs: Sequence[Job],
    where: Place,
    builders: int = 1,
    on_built: Callable[[], object] | None = None,
) -> list[Form]:
    """Build kernels, and check what each of them computes.

    Parameters
    ----------
    jobs
        What to build.
    where, builders
        As for :func:`build_forms`.
    on_built
        Called after each kernel.

    Raises
    ------
    WrongProduct
        If a kernel's product is not numpy's.
    """
    # TVM's schedule rules are not made for threads; compiling is.
    scheduled = [job.schedule() for job in jobs]

    def compiled(job: Job, schedule: Any) -> Prepared:
        arguments = [*job.operands.inputs, job.product.output()]
        prepared = prepare(schedule.mod, where.target, arguments)
        if on_built is not None:
            on_built()
        return prepared

    with ThreadPoolExecutor(builders) as pool:
        kernels = list(pool.map(compiled, jobs, [schedule for schedule, _ in scheduled]))
    first_of: dict[int, Prepared] = {}
    for job, kernel in zip(jobs, kernels, strict=True):
        first = first_of.setdefault(id(job.product), kernel)
        if kernel.can_share:
            kernel.share(first)
    forms = [Form(plan, kernel) for (_, plan), kernel in zip(scheduled, kernels, strict=True)]
    for job, form in zip(jobs, forms, strict=True):
        job.check(form)
    return forms


def _splits(nest: TileNest, where: Place, device: Device) -> list[dict[str, int]]:
    """The numbers of equal pieces that the model likes best."""
    tiles = _num_tiles(nest)
    pieces = [count for count in divisors(nest.panels) if 1 < count <= max(where.processors, 2) * 4]
    partitions = [Partition(tiles, nest.panels, tiles * count, SPLIT_K) for count in pieces]
    order = _by_prediction(nest, device, partitions)
    return [{"splits": pieces[place]} for place in order[:MOST_TRIED]]


def _grids(nest: TileNest, where: Place, device: Device) -> list[dict[str, int]]:
    """The grid sizes that the model likes best; from one wave on, one worker per processor."""
    tiles, slots = _num_tiles(nest), max(where.processors, device.num_slots)
    most = min(slots, tiles * nest.panels)
    grids = {most, min(where.processors, most)}
    grids |= {tiles * peers for peers in range(2, most // tiles + 1)}
    partitions = [Partition(tiles, nest.panels, grid, STREAM_K) for grid in sorted(grids)]
    order = _by_prediction(nest, device, partitions)
    return [{"num_workers": partitions[place].num_workers} for place in order[:MOST_TRIED]]


def _num_tiles(nest: TileNest) -> int:
    if not isinstance(nest.num_tiles, int):
        raise ValueError(f"{nest.block!r} has a symbolic number of tiles")
    return nest.num_tiles


def _by_prediction(nest: TileNest, device: Device, partitions: Sequence[Partition]) -> list[int]:
    """Places of the partitions, the fastest by the model first."""
    scaled = device_for(nest, device, device.num_slots)
    times = [predict(partition, scaled) for partition in partitions]
    return sorted(range(len(partitions)), key=times.__getitem__)


def _fastest(forms: Sequence[Form]) -> Form:
    if len(forms) == 1:
        return forms[0]
    launches = [form.prepared.launch for form in forms]
    turns = take_turns(launches, TRIAL_ROUNDS, TRIAL_BATCH_SECONDS, load_limit=math.inf)
    return min(zip(turns.medians, range(len(forms)), forms, strict=True))[2]
