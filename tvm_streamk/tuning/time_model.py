# SPDX-License-Identifier: Apache-2.0
"""The cost model: XGBoost on times from which the plan's share is taken out by counting.

A launch takes as long as its busiest processor. So the time of a candidate is the product of what
its panels cost when they are shared evenly, which the nest decides, and the imbalance of its plan,
which is known without a measurement. In logarithms a product is a sum: trees start at the imbalance
and learn the rest, so that every measurement of a nest tells of all decisions on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule

from tvm_streamk.tuning.features import FEATURE_NAMES, LOG2_IMBALANCE, StreamKFeatures
from tvm_streamk.tuning.report import seconds_of

ROUNDS = 100
FORESTS = 5
TREES = {
    "max_depth": 4,
    "eta": 0.1,
    "subsample": 0.8,
    "colsample_bytree": 0.3,
    "base_score": 0.0,
}
"""Small trees on parts of the data, and the mean of several such models: a short run has fewer
candidates than features."""

SIBLINGS_SHARE = 0.1
"""What is left of the score of a second decision on a nest of which one is to be measured."""

FAILED_FACTOR = 2.0
"""A candidate that could not be measured counts as this much slower than the slowest one."""

ROWS_OF, SECONDS_OF = "rows_", "seconds_"
"""What the arrays of a file are called, before the number of their workload."""


@dataclass
class Measured:
    """What was measured of one workload: a row of features and seconds per candidate.

    A failed candidate has infinitely many seconds.
    """

    rows: list[np.ndarray] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def log2_seconds(self) -> np.ndarray:
        """Logarithms of the times, failures a little above the slowest."""
        seconds = np.array(self.seconds)
        succeeded = np.isfinite(seconds)
        slowest = seconds[succeeded].max() if succeeded.any() else 1.0
        return np.log2(np.where(succeeded, seconds, slowest * FAILED_FACTOR))

    def log2_even_seconds(self) -> np.ndarray:
        """Logarithms of what the times would be if the panels were shared evenly."""
        return self.log2_seconds() - _imbalance(np.array(self.rows))


class OnePerNest:
    """Of the decisions on a nest that are not measured yet, let one be tried at a time.

    They are predicted alike, so that the best nest's would fill a whole batch; and when one has
    been measured, the model knows more about the others. The same holds for nests that look the
    same to the model.
    """

    def __init__(self) -> None:
        self.measured: set[bytes] = set()
        self.tried: dict[bytes, tuple[bytes, float]] = {}

    def next_batch(self, measured: np.ndarray) -> None:
        """Start anew when candidates have been measured."""
        self.measured |= {row.tobytes() for row in measured}
        self.tried = {}

    def weighed(self, rows: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """The scores, less for all but one decision of each nest."""
        weighed = scores.copy()
        for index in np.argsort(-scores):
            candidate = rows[index].tobytes()
            if candidate in self.measured:
                continue
            nest = rows[index, : -len(FEATURE_NAMES)].tobytes()
            first, best = self.tried.get(nest, (candidate, 0.0))
            if first == candidate or scores[index] > best:
                self.tried[nest] = candidate, float(scores[index])
            else:
                weighed[index] *= SIBLINGS_SHARE
        return weighed


@derived_object
class PlanAwareModel(meta_schedule.cost_model.PyCostModel):
    """Predicts times; before anything was measured, by the plan alone.

    Parameters
    ----------
    num_sms : int, optional
        Processors of the device; by default what the target of the tuning context tells.
    num_warmup_samples : int
        Candidates to measure before predictions are made from measurements.
    num_tuning_cores : int, optional
        Threads of XGBoost; by default all.
    seed : int, optional
        Of the order in which candidates with the same plan are tried at first.
    """

    def __init__(
        self,
        num_sms: int | None = None,
        num_warmup_samples: int = 1,
        num_tuning_cores: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.extractor = StreamKFeatures(num_sms)
        self.num_warmup_samples = num_warmup_samples
        self.num_tuning_cores = num_tuning_cores
        self.random = np.random.default_rng(seed)
        self.measured: dict[int, Measured] = {}
        self.one_per_nest = OnePerNest()
        self.forests: list[Any] = []

    def update(self, context: Any, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        """Learn from measurements."""
        workload = self.measured.setdefault(_key(context), Measured())
        rows = self._rows(context, candidates)
        self.one_per_nest.next_batch(rows)
        workload.rows += list(rows)
        workload.seconds += [seconds_of(result) or np.inf for result in results]
        self._train()

    def predict(self, context: Any, candidates: Sequence[Any]) -> np.ndarray:
        """What the search goes by: :meth:`scores`, with one decision per nest in a batch."""
        rows = self._rows(context, candidates)
        return self.one_per_nest.weighed(rows, self._scores(context, rows))

    def scores(self, context: Any, candidates: Sequence[Any]) -> np.ndarray:
        """Scores, higher for faster candidates: 1 for the fastest that was measured.

        Returns
        -------
        numpy.ndarray
            float64, positive. The search draws candidates to change in proportion to them.
        """
        return self._scores(context, self._rows(context, candidates))

    def save(self, path: str) -> None:
        """Write what was measured."""
        arrays = {f"{ROWS_OF}{key}": np.array(each.rows) for key, each in self.measured.items()}
        arrays |= {f"{SECONDS_OF}{key}": each.seconds for key, each in self.measured.items()}
        with Path(path).open("wb") as file:
            np.savez(file, **arrays)

    def load(self, path: str) -> None:
        """Read what was measured, and learn from it."""
        with np.load(path) as arrays:
            keys = [name.removeprefix(ROWS_OF) for name in arrays if name.startswith(ROWS_OF)]
            self.measured = {
                int(key): Measured(
                    list(arrays[f"{ROWS_OF}{key}"]), arrays[f"{SECONDS_OF}{key}"].tolist()
                )
                for key in keys
            }
        for each in self.measured.values():
            self.one_per_nest.next_batch(np.array(each.rows))
        self._train()

    def _rows(self, context: Any, candidates: Sequence[Any]) -> np.ndarray:
        matrices = self.extractor.extract_from(context, candidates)
        return np.array([summarized(each.numpy()) for each in matrices])

    def _scores(self, context: Any, rows: np.ndarray) -> np.ndarray:
        known = self.measured.get(_key(context), Measured())
        if not self.forests or len(known.seconds) < self.num_warmup_samples:
            return self.random.uniform(size=len(rows)) / np.exp2(_imbalance(rows))
        best = known.log2_seconds().min() - known.log2_even_seconds().mean()
        return np.exp2(best - self._log2_times(rows))

    def _train(self) -> None:
        import xgboost

        known = [each for each in self.measured.values() if np.isfinite(each.seconds).any()]
        if not known:
            return
        rows = np.vstack([np.array(each.rows) for each in known])
        # What workloads of different sizes have in common is left when their mean is taken out.
        even = [each.log2_even_seconds() for each in known]
        data = xgboost.DMatrix(rows, label=np.concatenate([each - each.mean() for each in even]))
        self.forests = [
            xgboost.train(
                {**TREES, "seed": seed, "nthread": self.num_tuning_cores},
                data,
                num_boost_round=ROUNDS,
            )
            for seed in range(FORESTS)
        ]

    def _log2_times(self, rows: np.ndarray) -> np.ndarray:
        import xgboost

        data = xgboost.DMatrix(rows)
        predicted = [forest.predict(data) for forest in self.forests]
        return np.mean(predicted, axis=0) + _imbalance(rows)


def summarized(matrix: np.ndarray) -> np.ndarray:
    """One row for a candidate, from one per store: largest and sum of TVM's columns, the plan."""
    nest, plan = matrix[:, : -len(FEATURE_NAMES)], matrix[0, -len(FEATURE_NAMES) :]
    return np.concatenate([nest.max(axis=0), nest.sum(axis=0), plan]).astype("float32")


def _imbalance(rows: np.ndarray) -> np.ndarray:
    return rows[:, FEATURE_NAMES.index(LOG2_IMBALANCE) - len(FEATURE_NAMES)].astype("float64")


def _key(context: Any) -> int:
    return int(tvm_ffi.structural_hash(context.mod))
