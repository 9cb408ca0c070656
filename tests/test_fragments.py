# SPDX-License-Identifier: Apache-2.0
"""Tensor-core kernels of both generators: partial sums of accumulators in fragments.

Fragments of ``wmma`` have no elements, but their stage has; those of ``mma.sync`` have elements for
the lane that holds them.

The one test file that imports TVM's tensor intrinsics, which takes some 20 seconds.
"""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cuda_runs
import numpy as np
import pytest
import tvm
from cuda_runs import (
    PUBLICATION,
    WORKSPACE,
    Kernel,
    check_orders,
    kernel_of,
    kernel_parameters,
    kernel_text,
    private_arrays,
    publication,
)
from helpers import refused
from tvm.s_tir import Schedule

import tvm_streamk
from tvm_streamk import errors
from tvm_streamk.testing import integer_inputs

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
nests = importlib.import_module("tensor_core_nests")


@dataclass(frozen=True)
class Producer:
    """A generator's nest for one product.

    Attributes
    ----------
    shape
        Rows, columns and depth.
    dtypes
        Of the operands, the sums and the output.
    sketch
        MetaSchedule's sketch, 0, 1 or "mma", or None for DLight.
    """

    shape: tuple[int, int, int]
    dtypes: tuple[str, str, str]
    sketch: int | str | None = None

    @property
    def pass_config(self) -> Mapping[str, Any]:
        """TVM options that the nest needs."""
        return {} if self.sketch is None else nests.PASS_CONFIG

    @property
    def is_transposed(self) -> bool:
        """Whether B is columns by depth."""
        return self.sketch is None

    def schedule(self) -> Schedule:
        """A fresh schedule."""
        return Schedule(tvm.IRModule({"main": _function(self)}))

    def operands(self) -> tuple[np.ndarray, np.ndarray]:
        """A and B: whole numbers whose sums are exact even in float16."""
        m, n, k = self.shape
        dtype = self.dtypes[0]
        right = integer_inputs((n, k) if self.is_transposed else (k, n), dtype, seed=1)
        return integer_inputs((m, k), dtype), right

    def result(self) -> np.ndarray:
        """What the output has to be."""
        left, right = (each.astype("float64") for each in self.operands())
        product = left @ (right.T if self.is_transposed else right)
        assert np.abs(product).max() < 2048
        return product.astype(self.dtypes[2])

    def streamed(self, **arguments: Any) -> tuple[Any, Kernel]:
        """The plan and the kernel; without arguments, the nest as it is."""
        schedule = self.schedule()
        block = nests.reduction_block(schedule)
        plan = schedule.stream_k(block, **arguments) if arguments else None
        with tvm.transform.PassContext(config=dict(self.pass_config)):
            return plan, kernel_of(schedule.mod, self.operands(), [self.result()])


@functools.cache
def _function(producer: Producer) -> Any:
    function = nests.product(producer.shape, *producer.dtypes, transposed=producer.is_transposed)
    if producer.sketch is None:
        return nests.dlight_schedule(function).mod["main"]
    return nests.metaschedule_schedule(function, producer.sketch, PANELS_MULTIPLE).mod["main"]


# DLight's tiles are 128 x 128 x 64 in float16 and 128 x 128 x 16 in int8.
DLIGHT = (128, 256, 768)
METASCHEDULE = (128, 64, 768)
PANELS_MULTIPLE = 12
"""So that 2, 3 and 4 splits divide the panels."""
PRODUCERS = {
    "DLight, float16 to float32": Producer(DLIGHT, ("float16", "float32", "float32")),
    "DLight, float16": Producer(DLIGHT, ("float16", "float16", "float16")),
    "DLight, int8 to int32": Producer((128, 256, 192), ("int8", "int32", "int32")),
    "DLight, with a cast": Producer(DLIGHT, ("float16", "float32", "float16")),
    "MetaSchedule, sketch 0": Producer(METASCHEDULE, ("float16", "float32", "float32"), 0),
    "MetaSchedule, sketch 1": Producer(METASCHEDULE, ("float16", "float32", "float32"), 1),
    "MetaSchedule, float16": Producer(METASCHEDULE, ("float16", "float16", "float16"), 0),
    "MetaSchedule, mma": Producer(METASCHEDULE, ("float16", "float32", "float32"), nests.MMA),
    "MetaSchedule, mma, float16": Producer(
        METASCHEDULE, ("float16", "float16", "float16"), nests.MMA
    ),
}
FULLY_TESTED = ("DLight, float16 to float32", "MetaSchedule, sketch 0", "MetaSchedule, mma")
WORKERS = 5
"""For the two tiles or more of each producer: neither a divisor nor a multiple."""


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """All splits for one nest of each generator, some for others; stream_k for all."""
    for name in PRODUCERS:
        for splits in (2, 3, 4) if name in FULLY_TESTED else ():
            yield name, {"decomposition": "split_k", "splits": splits}
        yield name, {"decomposition": "stream_k", "num_workers": WORKERS}
    yield "DLight, int8 to int32", {"decomposition": "split_k", "splits": 4}
    yield "DLight, float16", {"decomposition": "split_k", "splits": 3}
    yield FULLY_TESTED[0], {"decomposition": "two_tile", "num_workers": WORKERS}


@cuda_runs.needs_compiler
@pytest.mark.parametrize(("name", "arguments"), list(cases()), ids=str)
def test_results_are_exact(name: str, arguments: dict[str, Any]) -> None:
    plan, kernel = PRODUCERS[name].streamed(merge="last_arriver", **arguments)
    assert plan.num_tiles >= 2 and plan.cuts > 0
    assert plan.most_peers >= arguments.get("splits", 2)
    check_orders(kernel, launches=3)


@cuda_runs.needs_compiler
@pytest.mark.parametrize("name", FULLY_TESTED)
def test_two_phases_agree(name: str) -> None:
    _, kernel = PRODUCERS[name].streamed(merge="two_phase", num_workers=WORKERS)
    check_orders(kernel, launches=2)


@pytest.mark.parametrize("name", PRODUCERS)
def test_accumulators_stay_as_they_are(name: str) -> None:
    """As many fragments as in the data-parallel kernel, and none becomes a parameter."""
    _, plain = PRODUCERS[name].streamed()
    _, kernel = PRODUCERS[name].streamed(merge="last_arriver", num_workers=WORKERS)
    text = kernel_text(kernel.plan)
    after = private_arrays(text)
    before = private_arrays(kernel_text(plain.plan))
    kept = {name: count for name, count in after.items() if not name.startswith("stream_k_")}
    assert kept == before
    assert any("accumulator" in array or "matrixC" in array for array in kept)
    added = ["stream_k_arrivals_ptr", f"{WORKSPACE}_ptr"]
    assert sorted([*kernel_parameters(kernel_text(plain.plan)), *added]) == sorted(
        kernel_parameters(text)
    )


@pytest.mark.parametrize("name", PRODUCERS)
def test_order_of_publication_in_the_source(name: str) -> None:
    _, kernel = PRODUCERS[name].streamed(merge="last_arriver", num_workers=WORKERS)
    assert re.fullmatch(PUBLICATION, publication(kernel_text(kernel.plan)))


def panel_loops(text: str) -> list[str]:
    """Bounds of the loops around the matrix products, outermost first."""
    first = re.search(r"wmma::mma_sync|mma\.sync\.aligned", text).start()
    lines = text[:first].splitlines()
    depth, bounds = len(lines[-1]), []
    for line in reversed(lines):
        indent = len(line) - len(line.lstrip())
        if indent < depth and (match := re.match(r" *for \(int (\w+) = 0; \1 < (.*); \+\+", line)):
            bounds.append(match[2])
            depth = indent
    return bounds[::-1]


@pytest.mark.parametrize("name", FULLY_TESTED)
def test_splits_keep_constant_trip_counts(name: str) -> None:
    plan, split = PRODUCERS[name].streamed(merge="last_arriver", decomposition="split_k", splits=3)
    bounds = panel_loops(kernel_text(split.plan))
    assert all(bound.isdigit() for bound in bounds)
    # MetaSchedule's mma nest asks for unrolling, which only constant trip counts get.
    assert bool(bounds) == (name != "MetaSchedule, mma")
    ahead = {"DLight, float16 to float32": 1}.get(name, 0)
    assert not bounds or int(bounds[0]) == plan.panels // 3 - ahead
    _, streamed = PRODUCERS[name].streamed(merge="last_arriver", num_workers=WORKERS)
    assert any("segment" in bound for bound in panel_loops(kernel_text(streamed.plan)))


@pytest.mark.parametrize(
    "name", ["DLight, float16", "MetaSchedule, float16", "MetaSchedule, mma, float16"]
)
def test_partial_sums_of_float16_are_kept_and_added_in_float32(name: str) -> None:
    """What a worker sums in float16 it rounds as the nest asks; the merge rounds once more only."""
    _, kernel = PRODUCERS[name].streamed(merge="last_arriver", num_workers=WORKERS)
    (space,) = (each for each in kernel.plan.workspaces if each.name == WORKSPACE)
    assert space.dtype == "float32"
    assert f"float* __restrict__ {WORKSPACE}_ptr" in kernel_text(kernel.plan)


@pytest.mark.parametrize("name", PRODUCERS)
def test_workspace_is_of_two_tiles_per_worker_at_most(name: str) -> None:
    plan, kernel = PRODUCERS[name].streamed(merge="last_arriver", num_workers=WORKERS)
    (space,) = (each for each in kernel.plan.workspaces if each.name == WORKSPACE)
    rows, columns, _ = PRODUCERS[name].shape
    assert plan.slot_bytes * plan.num_tiles == rows * columns * 4
    assert space.num_bytes == plan.workspace_bytes <= 2 * WORKERS * plan.slot_bytes


@cuda_runs.needs_compiler
@pytest.mark.parametrize(
    "name", ["MetaSchedule, sketch 0", "MetaSchedule, sketch 1", "MetaSchedule, mma"]
)
def test_no_races(name: str) -> None:
    _, kernel = PRODUCERS[name].streamed(merge="last_arriver", num_workers=WORKERS)
    assert kernel.races() == []


@pytest.mark.parametrize("name", PRODUCERS)
def test_atomics_are_refused(name: str) -> None:
    schedule = PRODUCERS[name].schedule()
    block = nests.reduction_block(schedule)
    with refused(schedule, errors.AtomicNeedsPlainStore, r"but it has \d blocks \('C_reindex"):
        schedule.stream_k(block, num_workers=WORKERS, merge="atomic")


def test_copies_that_are_far_ahead_are_ordinary_where_the_trip_count_is_not_constant() -> None:
    """CUDA waits for all but a constant number of asynchronous copies."""
    producer = PRODUCERS["MetaSchedule, mma"]
    with_waits = {
        "data-parallel": producer.streamed()[1],
        "split": producer.streamed(decomposition="split_k", splits=2)[1],
    }
    _, streamed = producer.streamed(num_workers=WORKERS)
    for kernel in with_waits.values():
        assert "wait_group" in kernel_text(kernel.plan)
    assert "wait_group" not in kernel_text(streamed.plan)


def test_splits_that_do_not_divide() -> None:
    schedule = PRODUCERS["DLight, float16 to float32"].schedule()
    with refused(schedule, errors.SplitsDoNotDivide, "splits=5 does not divide the 12 panels"):
        schedule.stream_k("C_o_update", decomposition="split_k", splits=5)


def test_tvm_itself_cannot_lower_the_pipeline_of_int8() -> None:
    """Why the int8 nests here have no software pipeline; when this passes, they shall have it."""
    function = nests.product((128, 256, 192), "int8", "int32")
    with tvm.target.Target(nests.A100):
        rule = tvm.s_tir.dlight.ApplyDefaultSchedule(tvm.s_tir.dlight.gpu.Matmul())
        module = rule(tvm.IRModule({"main": function}))
    producer = PRODUCERS["DLight, int8 to int32"]
    with pytest.raises(tvm.error.InternalError):
        kernel_of(module, producer.operands(), [producer.result()])
    assert tvm_streamk.can_stream_k(Schedule(module), "C_o_update")
