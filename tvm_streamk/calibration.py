# SPDX-License-Identifier: Apache-2.0
"""From times of real kernels to the four constants of the cost model, by least squares.

The kernels differ in panels, in segments per worker, in partial segments and in peers, so that
each constant has a count of its own. Two more terms are fitted with them:

``launch``
    What every call takes, whatever it does. No decision changes it, so it is left out of the
    device's record.
``once``
    What a call takes on top as soon as a tile is cut: the kernel that zeroes the counters, the
    second nest. The record has no place for it and counts it with every split, which errs towards
    leaving a kernel alone.

Nothing here runs a kernel; :mod:`tvm_streamk.commands.calibrate` does.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tvm_streamk.cost_model import TWO_PHASE
from tvm_streamk.devices import Device

TERMS = ("launch", "once", "start", "split", "panel", "peer")
PANELS = (48, 144)
SEGMENTS_PER_WORKER = (1, 2, 4)
SPLITS = (2, 4, 8, 16)
PARTS_OF_A_WAVE = (8, 4, 2)
FEWEST_PIECES = 8
"""Even on few processors, tiles are cut into so many pieces: more of them than processors then run
in rounds."""


class CannotFit(ValueError):
    """The times do not determine the constants."""


@dataclass(frozen=True)
class Sample:
    """A kernel that is timed: whole tiles on a persistent grid, or every tile in equal pieces.

    Parameters
    ----------
    num_tiles, panels : int
        Tiles, and panels of each.
    splits : int
        Pieces of a tile; 1 is a persistent grid of whole tiles.
    """

    num_tiles: int
    panels: int
    splits: int = 1

    def __str__(self) -> str:
        pieces = f", {self.splits} pieces each" if self.splits > 1 else ""
        return f"{self.num_tiles} tiles of {self.panels} panels{pieces}"


@dataclass(frozen=True)
class Fit:
    """The constants in microseconds, for the tile that was timed, and how well they fit.

    Parameters
    ----------
    launch_us, once_us, start_us, split_us, panel_us, peer_us : float
        See the module; all at least 0.
    fitted_us : tuple of float
        For each sample the time that the constants give.
    """

    launch_us: float
    once_us: float
    start_us: float
    split_us: float
    panel_us: float
    peer_us: float
    fitted_us: tuple[float, ...]

    def errors(self, times_us: Sequence[float]) -> list[float]:
        """Relative errors of the fitted times."""
        return [fit / time - 1 for fit, time in zip(self.fitted_us, times_us, strict=True)]


def samples(
    processors: int, panels: tuple[int, int] = PANELS, shared: bool = False
) -> list[Sample]:
    """Return the kernels that determine the constants on so many processors.

    Parameters
    ----------
    processors : int
        Workers that run at the same time.
    panels : tuple of two int
        Panels of a tile, few and many.
    shared : bool
        Whether several workers share a processor's arithmetic. Then all of them must always be
        busy, since a worker is faster where it is alone.
    """
    found = [
        Sample(processors * segments, many) for many in panels for segments in SEGMENTS_PER_WORKER
    ]
    return found + list(_cut_samples(processors, panels, shared))


def _cut_samples(processors: int, panels: tuple[int, int], shared: bool) -> Iterator[Sample]:
    if shared:
        pairs = [(processors // splits, splits) for splits in SPLITS if splits <= processors]
    else:
        most = max(processors, FEWEST_PIECES)
        tiles = {1, 2, 4, *(processors // part for part in PARTS_OF_A_WAVE)} - {0}
        pairs = [
            (num_tiles, splits)
            for num_tiles, splits in itertools.product(sorted(tiles), SPLITS)
            if num_tiles * splits <= most
        ]
    few, many = panels
    for num_tiles, splits in pairs:
        if many % splits == 0:
            yield Sample(num_tiles, many, splits)
        if (num_tiles == 1 or shared) and few % splits == 0:
            yield Sample(num_tiles, few, splits)


def counts(sample: Sample, processors: int, merge: str) -> tuple[float, ...]:
    """Return how often the busiest processor pays each of :data:`TERMS`."""
    rounds = -(-sample.num_tiles * sample.splits // processors)
    panels = rounds * sample.panels / sample.splits
    if sample.splits == 1:
        return (1.0, 0.0, rounds, 0.0, panels, 0.0)
    merges = -(-sample.num_tiles // processors)
    starts = rounds + (merges if merge == TWO_PHASE else 0)
    return (1.0, 1.0, starts, rounds, panels, merges * (sample.splits - 1))


def fit(measured: Sequence[Sample], times_us: Sequence[float], processors: int, merge: str) -> Fit:
    """Fit the constants to times, none of them below 0.

    Relative errors are squared, so that short kernels count as much as long ones. With so few
    terms, every set of terms that may be 0 is tried: that is exact.

    Parameters
    ----------
    measured : sequence of Sample
        What was timed.
    times_us : sequence of float
        One call of each, in microseconds.
    processors : int
        Workers that ran at the same time.
    merge : str
        How partial sums were merged.

    Raises
    ------
    CannotFit
        If the samples do not tell the terms apart, or a time is not positive.
    """
    times = np.asarray(times_us, dtype=float)
    if not (times > 0).all():
        raise CannotFit(f"every time must be positive, got {list(times_us)}")
    table = np.array([counts(sample, processors, merge) for sample in measured], dtype=float)
    once, split = TERMS.index("once"), TERMS.index("split")
    if (table[:, once] == table[:, split]).all():
        table[:, once] = 0
    if np.linalg.matrix_rank(table) < np.count_nonzero(table.any(axis=0)):
        raise CannotFit(f"{len(measured)} samples do not tell {', '.join(TERMS)} apart")
    terms = least_squares(table / times[:, None])
    values = dict(zip((f"{term}_us" for term in TERMS), terms.tolist(), strict=True))
    if not values["panel_us"] > 0:
        raise CannotFit("the times do not grow with the panels; is the machine busy?")
    return Fit(**values, fitted_us=tuple((table @ terms).tolist()))


def least_squares(relative: np.ndarray) -> np.ndarray:
    """Return the non-negative terms for which ``relative @ terms`` comes nearest to 1 everywhere.

    Parameters
    ----------
    relative : array of shape (samples, terms)
        Counts of each term over what was measured. A column of zeros gives a term of 0.
    """
    ones = np.ones(len(relative))
    best, least = np.zeros(relative.shape[1]), np.inf
    counted = np.flatnonzero(relative.any(axis=0))
    for used in itertools.product((False, True), repeat=len(counted)):
        columns = counted[list(used)]
        solution = np.zeros(relative.shape[1])
        if columns.size:
            solution[columns] = np.linalg.lstsq(relative[:, columns], ones, rcond=None)[0]
        error = float(((relative @ solution - ones) ** 2).sum())
        if (solution >= 0).all() and error < least:
            best, least = solution, error
    return best


def calibrated(
    device: Device, found: Fit, scaling: tuple[tuple[int, int, int], int, float]
) -> Device:
    """Return a device's record with measured constants.

    Parameters
    ----------
    device : Device
        Its other fields are kept.
    found : Fit
        For the tile that was timed.
    scaling : tuple
        The arguments of :meth:`~tvm_streamk.devices.Device.for_tile` for that tile.
    """
    measured = replace(
        device,
        start_us=found.start_us,
        split_us=found.split_us + found.once_us,
        panel_us=found.panel_us,
        peer_us=found.peer_us,
    )
    return measured.from_tile(*scaling)
