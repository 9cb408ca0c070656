# SPDX-License-Identifier: Apache-2.0
"""The cost model: XGBoost on times from which the plan's share is taken out by counting.

A launch takes as long as its busiest processor. So the time of a candidate is the product of what
its panels cost when they are shared evenly, which the nest decides, and the imbalance of its plan,
which is known without a measurement. In logarithms a product is a sum: trees start at the imbalance
and learn the rest, so that every measurement of a nest tells of all decisions on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule

from tvm_streamk.tuning.choices import MOST_SPATIAL, NUM_CHOICES, choice_features
from tvm_streamk.tuning.features import FEATURE_NAMES, LOG2_IMBALANCE, StreamKFeatures
from tvm_streamk.tuning.report import seconds_of

ROUNDS = 100
FORESTS = 3
TREES = {"max_depth": 4, "eta": 0.1, "subsample": 0.8, "base_score": 0.0}
"""Small trees on parts of the data, and the mean of several such models: a short run has fewer
candidates than features."""

VIEWS = ((slice(NUM_CHOICES), 0.6), (slice(NUM_CHOICES, None), 0.3))
"""Columns of a row, and the part of them that a tree gets: what the trace has sampled, and what
TVM and the plan say of the nest. Forests of each rank worse alone than both together."""

SIBLINGS_SHARE = 0.1
"""What is left of the score of a second decision on a nest of which one is to be measured."""

COUSINS_SHARE = 0.5
"""What is left of the score for each better nest with the same tiles that is to be measured."""

MEASURED_SHARE = 0.5
LEAST_PROMISE = 0.05
"""What is left of the score for each decision on the nest that was measured, unless the plan says
that this one takes less, by so much as a logarithm to base 2."""

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


class Variety:
    """Lets a search try different things: few nests with the same tiles in a batch, few decisions
    on the same nest.

    They are predicted alike, so that those of the best tiles would fill a whole batch, one batch
    after the other. A second decision on a nest tells little where the plan does not promise more
    than the first, and nests differ far more than decisions do.
    """

    def __init__(self) -> None:
        self.measured: set[bytes] = set()
        self.imbalances: dict[bytes, list[float]] = {}
        self.seen: dict[bytes, dict[bytes, tuple[bytes, float]]] = {}

    def next_batch(self, measured: Iterable[np.ndarray]) -> None:
        """Start anew when candidates have been measured."""
        for row in measured:
            if row.tobytes() not in self.measured:
                self.measured.add(row.tobytes())
                self.imbalances.setdefault(_nest(row), []).append(float(_imbalance(row)))
        self.seen = {}

    def weighed(self, rows: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """The scores, less for candidates to which better ones of the batch are related."""
        weighed = scores.copy()
        for index in np.argsort(-scores):
            if rows[index].tobytes() not in self.measured:
                weighed[index] *= self._share(rows[index], float(scores[index]))
        return weighed

    def _share(self, row: np.ndarray, score: float) -> float:
        candidate, nest = row.tobytes(), _nest(row)
        related = self.seen.setdefault(row[:MOST_SPATIAL].tobytes(), {})
        related[candidate] = nest, score
        better = [
            other
            for key, (other, its_score) in related.items()
            if key != candidate and its_score >= score
        ]
        promised = _imbalance(row) + LEAST_PROMISE
        as_good = sum(imbalance < promised for imbalance in self.imbalances.get(nest, []))
        share = COUSINS_SHARE ** len(set(better) - {nest}) * MEASURED_SHARE**as_good
        return share * SIBLINGS_SHARE if nest in better else share


def _nest(row: np.ndarray) -> bytes:
    """What is the same for all decisions on a nest."""
    return row[: -len(FEATURE_NAMES)].tobytes()


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
        self.variety = Variety()
        self.forests: list[tuple[slice, Any]] = []

    def update(self, context: Any, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        """Learn from measurements."""
        if not candidates:
            # TVM leaves out what could not be built.
            return
        workload = self.measured.setdefault(_key(context), Measured())
        rows = self._rows(context, candidates)
        self.variety.next_batch(rows)
        workload.rows += list(rows)
        workload.seconds += [seconds_of(result) or np.inf for result in results]
        self._train()

    def predict(self, context: Any, candidates: Sequence[Any]) -> np.ndarray:
        """What the search goes by: :meth:`scores`, with variety in each batch."""
        rows = self._rows(context, candidates)
        return self.variety.weighed(rows, self._scores(context, rows))

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
            self.variety.next_batch(each.rows)
        self._train()

    def _rows(self, context: Any, candidates: Sequence[Any]) -> np.ndarray:
        matrices = self.extractor.extract_from(context, candidates)
        return np.array(
            [
                np.concatenate([choice_features(each.sch.trace), summarized(matrix.numpy())])
                for each, matrix in zip(candidates, matrices, strict=True)
            ],
            dtype="float32",
        )

    def _scores(self, context: Any, rows: np.ndarray) -> np.ndarray:
        known = self.measured.get(_key(context), Measured())
        if not self.forests or len(known.seconds) < self.num_warmup_samples:
            return self.random.uniform(size=len(rows)) / np.exp2(_imbalance(rows))
        best = known.log2_seconds().min() - known.log2_even_seconds().mean()
        return np.exp2(best - self._log2_times(rows))

    def _train(self) -> None:
        known = [each for each in self.measured.values() if np.isfinite(each.seconds).any()]
        if not known:
            return
        rows = np.vstack([np.array(each.rows) for each in known])
        # What workloads of different sizes have in common is left when their mean is taken out.
        even = [each.log2_even_seconds() for each in known]
        labels = np.concatenate([each - each.mean() for each in even])
        self.forests = [
            (columns, self._forest(rows[:, columns], labels, part, seed))
            for columns, part in VIEWS
            for seed in range(FORESTS)
        ]

    def _forest(self, rows: np.ndarray, labels: np.ndarray, part: float, seed: int) -> Any:
        import xgboost

        settings = {"colsample_bytree": part, "seed": seed, "nthread": self.num_tuning_cores}
        data = xgboost.DMatrix(rows, label=labels)
        return xgboost.train({**TREES, **settings}, data, num_boost_round=ROUNDS)

    def _log2_times(self, rows: np.ndarray) -> np.ndarray:
        import xgboost

        predicted = [
            forest.predict(xgboost.DMatrix(rows[:, columns])) for columns, forest in self.forests
        ]
        return np.mean(predicted, axis=0) + _imbalance(rows)


def summarized(matrix: np.ndarray) -> np.ndarray:
    """One row for a candidate, from one per store: largest and sum of TVM's columns, the plan."""
    nest, plan = matrix[:, : -len(FEATURE_NAMES)], matrix[0, -len(FEATURE_NAMES) :]
    return np.concatenate([nest.max(axis=0), nest.sum(axis=0), plan]).astype("float32")


def _imbalance(rows: np.ndarray) -> Any:
    """Of one row, or of each."""
    return rows[..., FEATURE_NAMES.index(LOG2_IMBALANCE) - len(FEATURE_NAMES)].astype("float64")


def _key(context: Any) -> int:
    return int(tvm_ffi.structural_hash(context.mod))
