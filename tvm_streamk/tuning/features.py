# SPDX-License-Identifier: Apache-2.0
"""Features of the decomposition, for the cost model, beside TVM's own features of the nest.

TVM extracts its features from the annotated nest, which is the data-parallel one: two candidates
that differ in the decision alone look the same to it. The features here are what the plan says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule

from tvm_streamk.analysis import only_function
from tvm_streamk.annotation import MERGES, TWO_PHASE, RecordedDecision
from tvm_streamk.cost_model import predict
from tvm_streamk.devices import Device
from tvm_streamk.errors import StreamKError
from tvm_streamk.partition import DATA_PARALLEL, DECOMPOSITIONS, Partition
from tvm_streamk.pipeline import recorded_decision, without_annotation
from tvm_streamk.tuning.counts import Counts, count, reduction_blocks
from tvm_streamk.tuning.processors import device_of

COUNT_NAMES = (
    "log2_tiles",
    "log2_panels",
    "log2_workers",
    "log2_waves_before",
    "log2_waves_after",
    "log2_gain_of_waves",
    "log2_cuts",
    "log2_most_peers",
    "log2_workspace_bytes",
    "log2_predicted_us",
    "log2_predicted_gain",
)
LOG2_IMBALANCE = "log2_imbalance"
FEATURE_NAMES = (
    "is_one_nest",
    *(f"is_{word}" for word in DECOMPOSITIONS),
    *(f"merges_by_{word}" for word in MERGES),
    *COUNT_NAMES,
    LOG2_IMBALANCE,
)
"""The columns that :class:`StreamKFeatures` adds, in order; counts are ``log2(1 + n)``. The
imbalance is ``log2`` of the busiest processor's panels over an even share of all panels."""


@derived_object
class StreamKFeatures(meta_schedule.feature_extractor.PyFeatureExtractor):
    """TVM's features per store, each with the candidate's plan appended.

    Parameters
    ----------
    num_sms : int, optional
        Processors of the device; by default what the target of the tuning context tells.
    """

    def __init__(self, num_sms: int | None = None) -> None:
        super().__init__()
        self.num_sms = num_sms
        self.of_the_nest = meta_schedule.feature_extractor.PerStoreFeature()

    def extract_from(self, context: Any, candidates: Sequence[Any]) -> list[Any]:
        """One matrix per candidate: a row per store, TVM's columns and ours."""
        device = device_of(context.target, self.num_sms)
        extended = []
        nests = self.of_the_nest.extract_from(context, candidates)
        for nest, candidate in zip(nests, candidates, strict=True):
            rows = nest.numpy()
            plan = plan_features(candidate.sch, device)
            extended.append(np.hstack([rows, np.tile(plan, (rows.shape[0], 1))]))
        return [tvm.runtime.tensor(np.ascontiguousarray(matrix)) for matrix in extended]


def plan_features(schedule: Any, device: Device) -> np.ndarray:
    """The plan of a candidate as numbers.

    Parameters
    ----------
    schedule : tvm.s_tir.Schedule
        A candidate, after its postprocs.
    device : Device
        Whose processors share the work.

    Returns
    -------
    numpy.ndarray
        float64, one entry per name in :data:`FEATURE_NAMES`; all zero where the candidate is no
        single nest of constant tiles and panels (a reduction that TVM split by ``rfactor``).
    """
    features = dict.fromkeys(FEATURE_NAMES, 0.0)
    described = _counts_and_decision(schedule)
    if described is not None:
        counts, decision = described
        features["is_one_nest"] = 1.0
        features[f"is_{DATA_PARALLEL if decision is None else decision.decomposition}"] = 1.0
        if decision is not None:
            features[f"merges_by_{decision.merge}"] = 1.0
        features.update(_plan_counts(counts, decision, device))
    return np.array(list(features.values()))


def partition_of(counts: Counts, decision: RecordedDecision | None) -> Partition:
    """Who does what, by a decision; data-parallel where there is none."""
    tiles, panels = counts.num_tiles, counts.panels
    if decision is None:
        return Partition(tiles, panels, max(tiles, 1), DATA_PARALLEL)
    return Partition(tiles, panels, decision.num_workers, decision.decomposition)


def _counts_and_decision(schedule: Any) -> tuple[Counts, RecordedDecision | None] | None:
    try:
        function = only_function(schedule.mod)
        recorded = recorded_decision(function)
        bare = function if recorded is None else without_annotation(function)
        blocks = reduction_blocks(bare)
        names = blocks if recorded is None else [recorded.block]
        counts = next(filter(None, (count(bare, name) for name in names)), None)
        if counts is None:
            return None
        if recorded is None:
            return counts, None
        return counts, recorded.resolve(counts.num_tiles, counts.panels)
    except StreamKError:
        return None


def _plan_counts(
    counts: Counts, decision: RecordedDecision | None, device: Device
) -> dict[str, float]:
    partition = partition_of(counts, decision)
    waves_before = -(-counts.num_tiles // device.num_sms)
    rounds = -(-partition.num_workers // device.num_sms)
    waves_after = rounds * partition.most_panels / counts.panels
    scaled = device.for_tile((counts.tile_elements, 1, counts.panel_depth), counts.element_bytes)
    merge = TWO_PHASE if decision is None else decision.merge
    time_us = predict(partition, scaled, merge)
    base_us = predict(partition_of(counts, None), scaled, merge)
    values = (
        counts.num_tiles,
        counts.panels,
        partition.num_workers,
        waves_before,
        waves_after,
        waves_before / waves_after,
        partition.cuts,
        partition.most_peers,
        0 if decision is None else partition.num_slots * counts.tile_bytes,
        time_us,
        base_us / time_us,
    )
    features = {name: math.log2(1 + value) for name, value in zip(COUNT_NAMES, values, strict=True)}
    features[LOG2_IMBALANCE] = math.log2(waves_after * device.num_sms / counts.num_tiles)
    return features
