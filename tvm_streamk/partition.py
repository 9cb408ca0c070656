# SPDX-License-Identifier: Apache-2.0
"""The mathematics of Stream-K: who does which panels of which tile, and who merges with whom.

The words, used with these meanings everywhere in the package:

tile
    The part of the output that one thread block owns in the data-parallel kernel.
panel
    One trip of the outermost reduction loop. Every tile has the same number of them.
worker
    One persistent thread block (GPU) or one parallel task (CPU).
segment
    The consecutive panels ``[k_begin, k_end)`` of one tile that one worker does. A segment is
    *full* if it is all panels of its tile, else *partial*.
partial sum
    The accumulator at the end of a partial segment.
peers
    The workers that share one tile. They are consecutive.
slot
    The place in the workspace where one partial sum waits for the merge.

All decompositions are one partition with different constants. Tiles ``[0, streamed_tiles)`` are
*streamed*: their panels, flattened as ``tile * panels + panel``, are cut into one balanced slice
per worker. Tiles ``[streamed_tiles, num_tiles)`` are done *whole*, dealt round robin. A worker does
its streamed segments first, so that merges happen in the middle of a kernel and not at its end.

Nothing here imports TVM. The formulas use only ``+ - * // %`` and three operators that are passed
in (:class:`Operators`), so that what the tests check with Python integers is the very expression
that the kernel evaluates.

The slices follow the "Stream-K" paper (Osama et al., PPoPP 2023, section 4), the hybrid its
"two-tile" schedule (section 5.2); the inverse that finds a tile's peers is our own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tvm_streamk.integers import PYTHON_INTEGERS, Integer, Operators

DATA_PARALLEL = "data_parallel"
PERSISTENT = "persistent"
SPLIT_K = "split_k"
STREAM_K = "stream_k"
TWO_TILE = "two_tile"
DECOMPOSITIONS = (DATA_PARALLEL, PERSISTENT, SPLIT_K, STREAM_K, TWO_TILE)
"""The words for a decomposition. ``persistent`` is whole tiles only, dealt round robin to a fixed
grid: what data-parallel waves look like in persistent form, and the yardstick for Stream-K."""

MAX_PARTIAL_SEGMENTS = 2
"""A contiguous slice has at most one segment that does not start its tile (its first one) and at
most one that does not end its tile (its last one)."""


def _is_zero(value: Integer) -> bool:
    """Whether a value is known to be 0, so that what depends on it need not be computed."""
    return isinstance(value, int) and value == 0


@dataclass(frozen=True)
class Segment:
    """The panels ``[k_begin, k_end)`` of ``tile``, done by one worker without interruption."""

    tile: Integer
    k_begin: Integer
    k_end: Integer

    def is_full(self, panels: int) -> bool:
        """Whether the segment is all ``panels`` of its tile."""
        return bool(self.k_begin == 0 and self.k_end == panels)


@dataclass(frozen=True)
class SliceValues:
    """What one worker's formulas of a symbolic partition need, so that it can be computed once.

    Attributes
    ----------
    begin, end
        The worker's slice of the flattened panels.
    first_tile, streamed_segments
        The first streamed tile that it touches, and how many.
    whole_segments
        Whole tiles that it does after its slice.
    streamed_tiles
        Tiles that are streamed.
    quota
        Panels of the longest slice, at least 1.
    """

    begin: Integer
    end: Integer
    first_tile: Integer
    streamed_segments: Integer
    whole_segments: Integer
    streamed_tiles: Integer
    quota: Integer


@dataclass(frozen=True)
class Partition:
    """How ``num_tiles * panels`` panels are shared by ``num_workers`` workers.

    Parameters
    ----------
    num_tiles : int or expression
        Output tiles, batch included.
    panels : int
        Panels per tile, the same for every tile; at least 1.
    num_workers : int
        Workers. ``data_parallel`` needs one per tile, ``split_k`` as many per tile as it splits.
    decomposition : str
        One of :data:`DECOMPOSITIONS`.
    operators : Operators
        :class:`PythonIntegers`, or the operators of expressions where ``num_tiles`` is symbolic.
    splits : int
        For ``split_k`` with a symbolic ``num_tiles``: segments per tile, a divisor of ``panels``.
    known : SliceValues, optional
        Where ``num_tiles`` is symbolic: variables that hold :meth:`slice_values` of the worker
        that everything else is going to be asked about.

    Examples
    --------
    >>> partition = Partition(num_tiles=3, panels=4, num_workers=2)
    >>> list(partition.segments(0))
    [Segment(tile=0, k_begin=0, k_end=4), Segment(tile=1, k_begin=0, k_end=2)]
    >>> partition.peers(1)
    [0, 1]
    """

    num_tiles: Integer
    panels: int
    num_workers: Integer
    decomposition: str = STREAM_K
    operators: Operators = PYTHON_INTEGERS
    splits: int = 0
    known: SliceValues | None = None

    def __post_init__(self) -> None:
        if self.decomposition not in DECOMPOSITIONS:
            words = ", ".join(DECOMPOSITIONS)
            raise ValueError(f"decomposition {self.decomposition!r} is none of {words}")
        for name in ("num_tiles", "panels", "num_workers"):
            value = getattr(self, name)
            least = 0 if name == "num_tiles" else 1
            if isinstance(value, int) and value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        self._check_static_worker_count()

    def _check_static_worker_count(self) -> None:
        if not (isinstance(self.num_tiles, int) and isinstance(self.num_workers, int)):
            return
        tiles, workers = self.num_tiles, self.num_workers
        if self.decomposition == DATA_PARALLEL and workers != max(tiles, 1):
            raise ValueError(f"data_parallel needs one worker per tile: {tiles}, got {workers}")
        if self.decomposition == SPLIT_K and tiles > 0:
            splits, rest = divmod(workers, tiles)
            if rest or splits < 1 or self.panels % splits:
                raise ValueError(
                    f"split_k needs num_workers = num_tiles * splits with splits dividing the "
                    f"panels; got {workers} workers, {tiles} tiles, {self.panels} panels"
                )

    # -- tiles: which are streamed, which are done whole ---------------------------------------

    @functools.cached_property
    def streamed_tiles(self) -> Integer:
        """Tiles ``[0, streamed_tiles)`` are cut into slices; the rest is done whole."""
        if self.known is not None:
            return self.known.streamed_tiles
        if self.decomposition == PERSISTENT:
            return 0
        if self.decomposition != TWO_TILE:
            return self.num_tiles
        remainder = self.num_tiles % self.num_workers
        below_two_waves = self.operators.minimum(self.num_tiles, remainder + self.num_workers)
        if not (isinstance(self.num_tiles, int) and isinstance(self.num_workers, int)):
            # Where the waves are full this streams one wave, of which every worker gets one whole
            # tile: the same work, from a formula without a case distinction.
            return below_two_waves
        return below_two_waves if remainder else 0

    @functools.cached_property
    def whole_tiles(self) -> Integer:
        """Tiles that one worker does from the first panel to the last, never cut."""
        return self.num_tiles - self.streamed_tiles

    @functools.cached_property
    def _has_streamed_tiles(self) -> bool:
        return not _is_zero(self.streamed_tiles)

    @functools.cached_property
    def _has_whole_tiles(self) -> bool:
        return self.decomposition in (PERSISTENT, TWO_TILE) and not _is_zero(self.whole_tiles)

    @functools.cached_property
    def splits_per_tile(self) -> int:
        """For ``split_k``: into how many segments of equal length every tile is cut; else 0."""
        if self.decomposition != SPLIT_K:
            return 0
        known = isinstance(self.num_tiles, int) and self.num_tiles > 0
        return self.splits or (int(self.num_workers) // int(self.num_tiles) if known else 1)

    @property
    def all_partial(self) -> bool:
        """Whether no segment can be full, known without looking at any."""
        return self.splits_per_tile > 1

    @property
    def mixes_tiles(self) -> bool:
        """Whether a worker may have streamed and whole tiles, so that a tile is chosen by cases."""
        return self._has_streamed_tiles and self._has_whole_tiles

    # -- slices of the flattened panels ---------------------------------------------------------

    @functools.cached_property
    def streamed_panels(self) -> Integer:
        """The length of the flattened (tile, panel) space of the streamed tiles."""
        return self.streamed_tiles * self.panels

    @property
    def _is_symbolic(self) -> bool:
        return not isinstance(self.num_tiles, int)

    @functools.cached_property
    def _quota(self) -> Integer:
        """Panels per worker, rounded up, where the number of tiles is symbolic; at least 1."""
        if self.known is not None:
            return self.known.quota
        return self._rounded_up_quota(self.streamed_panels)

    def _rounded_up_quota(self, streamed_panels: Integer) -> Integer:
        rounded_up = (streamed_panels + self.num_workers - 1) // self.num_workers
        return self.operators.maximum(rounded_up, 1)

    def slice_values(
        self, worker: Integer, keep: Callable[[str, Integer], Integer]
    ) -> SliceValues | None:
        """A worker's values, if computing them once pays: None where the formulas are short.

        ``keep`` gets the name and the formula of one value after the other, and returns what
        stands for it in the formulas of the next ones.
        """
        if not self._is_symbolic or self.decomposition not in (STREAM_K, TWO_TILE):
            return None
        streamed_tiles = keep("streamed_tiles", self.streamed_tiles)
        streamed_panels = streamed_tiles * self.panels
        quota = keep("quota", self._rounded_up_quota(streamed_panels))
        begin = keep("begin", self.operators.minimum(worker * quota, streamed_panels))
        end = keep("end", self.operators.minimum(begin + quota, streamed_panels))
        first_tile = keep("first_tile", begin // self.panels)
        whole_segments: Integer = 0
        if self._has_whole_tiles:
            whole_segments = (self.num_tiles - streamed_tiles) // self.num_workers
        return SliceValues(
            begin=begin,
            end=end,
            first_tile=first_tile,
            # An empty slice begins and ends at the end of the last tile, which gives 0 here too.
            streamed_segments=keep("streamed_segments", (end - 1) // self.panels - first_tile + 1),
            whole_segments=keep("whole_segments", whole_segments),
            streamed_tiles=streamed_tiles,
            quota=quota,
        )

    @functools.cached_property
    def _quotient(self) -> Integer:
        if self.splits_per_tile:
            return self.panels // self.splits_per_tile
        return self.streamed_panels // self.num_workers

    @functools.cached_property
    def _remainder(self) -> Integer:
        if self.splits_per_tile:
            return 0
        return self.streamed_panels % self.num_workers

    def slice_begin(self, worker: Integer) -> Integer:
        """First flattened panel of a worker; ``slice_begin(worker + 1)`` is one past its last.

        The first ``remainder`` workers get one panel more. ``num_tiles * panels * num_workers``
        is never formed, so the index type that holds ``num_tiles * panels`` suffices.

        Where the number of tiles is symbolic, every slice has the length of the longest and the
        last ones are cut off: the kernel takes as long, and its index arithmetic is far smaller.
        """
        if self._is_symbolic and not self.splits_per_tile:
            return self.operators.minimum(worker * self._quota, self.streamed_panels)
        if _is_zero(self._remainder):
            return worker * self._quotient
        return worker * self._quotient + self.operators.minimum(worker, self._remainder)

    def slice_bounds(self, worker: Integer) -> tuple[Integer, Integer]:
        """The first flattened panel of a worker and one past its last."""
        if self.known is not None:
            return self.known.begin, self.known.end
        return self.slice_begin(worker), self.slice_begin(worker + 1)

    def slice_owner(self, flat_panel: Integer) -> Integer:
        """The worker whose slice holds a flattened panel: the inverse of :meth:`slice_begin`."""
        if self._is_symbolic and not self.splits_per_tile:
            return flat_panel // self._quota
        if _is_zero(self._remainder) and self._slices_never_empty:
            return flat_panel // self._quotient
        longer = self._quotient + 1
        longer_end = self._remainder * longer
        # Where every slice is empty or one panel long, all panels belong to the longer ones; the
        # quotient is then 0 and must not divide, although its branch is not taken.
        shorter = self.operators.maximum(self._quotient, 1)
        return self.operators.where_less(
            flat_panel,
            longer_end,
            flat_panel // longer,
            self._remainder + (flat_panel - longer_end) // shorter,
        )

    # -- segments of a worker ---------------------------------------------------------------------

    def num_streamed_segments(self, worker: Integer) -> Integer:
        """How many streamed tiles a worker touches."""
        if not self._has_streamed_tiles:
            return 0
        if self.known is not None:
            return self.known.streamed_segments
        begin, end = self.slice_bounds(worker)
        # An empty slice begins and ends at the end of the last tile, which gives 0 here too.
        return (end - 1) // self.panels - begin // self.panels + 1

    @functools.cached_property
    def _slices_never_empty(self) -> bool:
        return isinstance(self._quotient, int) and self._quotient >= 1

    def num_whole_segments(self, worker: Integer) -> Integer:
        """How many whole tiles a worker does."""
        if not self._has_whole_tiles:
            return 0
        if self.known is not None:
            return self.known.whole_segments
        if self.decomposition == TWO_TILE or self._has_full_waves:
            return self.whole_tiles // self.num_workers
        return (self.whole_tiles - worker + self.num_workers - 1) // self.num_workers

    @property
    def _has_full_waves(self) -> bool:
        """Whether all workers are known to do the same number of whole tiles."""
        counts = (self.whole_tiles, self.num_workers)
        return all(isinstance(each, int) for each in counts) and counts[0] % counts[1] == 0

    def num_segments(self, worker: Integer) -> Integer:
        """How many segments a worker does, streamed ones first."""
        return self.num_streamed_segments(worker) + self.num_whole_segments(worker)

    def segment(self, worker: Integer, index: Integer) -> Segment:
        """The segment number ``index`` of a worker, in closed form: no state is carried."""
        if self.splits_per_tile:
            return self._split_segment(worker)
        if not self._has_whole_tiles:
            return self._streamed_segment(worker, index)
        count = self.num_streamed_segments(worker)
        whole_tile = self.streamed_tiles + worker + (index - count) * self.num_workers
        if not self._has_streamed_tiles:
            return Segment(whole_tile, 0, self.panels)
        streamed = self._streamed_segment(worker, index)
        # After the slice, the streamed formulas give k_begin 0 and a negative k_end. Another
        # ``where_less`` for each would be simpler to read, but TVM's arithmetic follows both
        # branches of every one, in every index.
        whole_end = (index - count + 1) * self.panels
        return Segment(
            self.operators.where_less(index, count, streamed.tile, whole_tile),
            streamed.k_begin,
            self.operators.minimum(self.operators.maximum(streamed.k_end, whole_end), self.panels),
        )

    def _split_segment(self, worker: Integer) -> Segment:
        tile, split = worker // self.splits_per_tile, worker % self.splits_per_tile
        length = self.panels // self.splits_per_tile
        return Segment(tile, split * length, split * length + length)

    def _streamed_segment(self, worker: Integer, index: Integer) -> Segment:
        begin, end = self.slice_bounds(worker)
        first_tile = begin // self.panels if self.known is None else self.known.first_tile
        tile = first_tile + index
        first_panel = tile * self.panels
        return Segment(
            tile,
            self.operators.maximum(begin - first_panel, 0),
            self.operators.minimum(end - first_panel, self.panels),
        )

    def segments(self, worker: int) -> Iterator[Segment]:
        """All segments of a worker in the order in which it does them."""
        return (self.segment(worker, index) for index in range(self.num_segments(worker)))

    # -- peers of a tile, slots of the workspace ---------------------------------------------------

    def first_peer(self, tile: Integer) -> Integer:
        """The worker that does panel 0 of a streamed tile."""
        return self.slice_owner(tile * self.panels)

    def num_peers(self, tile: Integer) -> Integer:
        """How many workers share a streamed tile; they are consecutive."""
        last = self.slice_owner(tile * self.panels + (self.panels - 1))
        return last - self.first_peer(tile) + 1

    def peers(self, tile: int) -> list[int]:
        """The workers that share a tile, in the order in which their partial sums are added."""
        if tile >= self.streamed_tiles:
            return [(tile - self.streamed_tiles) % self.num_workers]
        first = self.first_peer(tile)
        return list(range(first, first + self.num_peers(tile)))

    @property
    def slots_per_worker(self) -> int:
        """Slots that one worker owns: it has one segment in ``split_k``, else at most two cut."""
        return 1 if self.decomposition == SPLIT_K else MAX_PARTIAL_SEGMENTS

    def slot(self, worker: Integer, k_begin: Integer) -> Integer:
        """The slot for the partial sum of a worker's partial segment that begins at ``k_begin``."""
        if self.slots_per_worker == 1:
            return worker
        starts_tile = self.operators.where_less(0, k_begin, 0, 1)
        return worker * self.slots_per_worker + starts_tile

    def peer_slot(self, tile: Integer, peer: Integer) -> Integer:
        """The slot of peer number ``peer`` of a tile: only peer 0 starts the tile at panel 0."""
        return self.slot(self.first_peer(tile) + peer, peer)

    # -- counts that a plan reports ----------------------------------------------------------------

    @functools.cached_property
    def cuts(self) -> int:
        """Worker boundaries that fall inside a tile."""
        boundaries = (self.slice_begin(worker) for worker in range(1, self.num_workers))
        end = self.streamed_panels
        return len({cut for cut in boundaries if cut % self.panels and cut < end})

    @functools.cached_property
    def cut_tiles(self) -> tuple[int, ...]:
        """The tiles with more than one peer, ascending."""
        boundaries = (self.slice_begin(worker) for worker in range(1, self.num_workers))
        end = self.streamed_panels
        tiles = {cut // self.panels for cut in boundaries if cut % self.panels and cut < end}
        return tuple(sorted(tiles))

    @functools.cached_property
    def most_peers(self) -> int:
        """The largest number of workers that share one tile; 1 where no tile is cut."""
        return max((self.num_peers(tile) for tile in self.cut_tiles), default=1)

    @functools.cached_property
    def most_panels(self) -> int:
        """Panels of the worker that has most: the length of the kernel, in panels."""
        whole = self.num_whole_segments(0) * self.panels
        return self._quotient + (1 if self._remainder else 0) + whole

    @functools.cached_property
    def num_slots(self) -> Integer:
        """Slots of the workspace: none where no tile is cut, whatever M, N and K otherwise."""
        if isinstance(self.num_tiles, int) and self.cuts == 0:
            return 0
        return self.slots_per_worker * self.num_workers
