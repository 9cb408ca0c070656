# SPDX-License-Identifier: Apache-2.0
"""The partition, exhaustively: who does which panels, who shares a tile, where partial sums wait.

The counting tests run the package's formulas on whole NumPy arrays, which the formulas allow since
they only use the operators that are passed in; a small sample is repeated with Python integers and
with TensorIR expressions.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import tirx

from tvm_streamk.cost_model import NumpyIntegers
from tvm_streamk.integers import PythonIntegers
from tvm_streamk.partition import (
    DATA_PARALLEL,
    DECOMPOSITIONS,
    MAX_PARTIAL_SEGMENTS,
    PERSISTENT,
    SPLIT_K,
    STREAM_K,
    TWO_TILE,
    Partition,
    Segment,
    SliceValues,
)

MOST_ROWS = MOST_COLUMNS = 24
MOST_BATCH = 3
MOST_PANELS = 128
MOST_WORKERS = 140
SAMPLES_PER_TILE_COUNT = 2
EDGE_PANELS = (1, 2, 3, 7, 31, 32, 127, 128)
SEED = 20230301


def tile_counts() -> dict[int, tuple[int, int, int]]:
    """Every number of tiles of an m x n x batch grid, each with one grid that has it."""
    return {
        rows * columns * batch: (rows, columns, batch)
        for rows in range(1, MOST_ROWS + 1)
        for columns in range(1, MOST_COLUMNS + 1)
        for batch in range(1, MOST_BATCH + 1)
    }


def divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def partitions(num_tiles: int, panels: int, workers: int) -> Iterator[Partition]:
    """All decompositions of one size, with arrays allowed for worker and tile indices."""
    operators = NumpyIntegers()
    for decomposition in (STREAM_K, TWO_TILE, PERSISTENT):
        yield Partition(num_tiles, panels, workers, decomposition, operators)
    yield Partition(num_tiles, panels, num_tiles, DATA_PARALLEL, operators)
    splits = divisors(panels)[workers % len(divisors(panels))]
    yield Partition(num_tiles, panels, num_tiles * splits, SPLIT_K, operators)


class Table:
    """All segments of all workers of a partition, as flat arrays."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        workers = np.arange(partition.num_workers, dtype=np.int64)
        self.per_worker = np.broadcast_to(partition.num_segments(workers), workers.shape)
        self.worker = np.repeat(workers, self.per_worker)
        first = np.cumsum(self.per_worker) - self.per_worker
        self.index = np.arange(self.worker.size) - np.repeat(first, self.per_worker)
        segment = partition.segment(self.worker, self.index)
        shape = self.worker.shape
        self.tile = np.broadcast_to(segment.tile, shape)
        self.k_begin = np.broadcast_to(segment.k_begin, shape)
        self.k_end = np.broadcast_to(segment.k_end, shape)

    @property
    def length(self) -> np.ndarray:
        return self.k_end - self.k_begin

    @property
    def partial(self) -> np.ndarray:
        return self.length != self.partition.panels


def visits(table: Table) -> np.ndarray:
    """How often each (tile, panel) is done: a counter raised at k_begin and lowered at k_end."""
    panels, tiles = table.partition.panels, table.partition.num_tiles
    steps = np.zeros((tiles, panels + 1), dtype=np.int64)
    np.add.at(steps, (table.tile, table.k_begin), 1)
    np.add.at(steps, (table.tile, table.k_end), -1)
    return np.cumsum(steps, axis=1)[:, :-1]


def check_coverage(table: Table) -> None:
    panels = table.partition.panels
    assert (table.k_begin >= 0).all() and (table.k_end <= panels).all()
    assert (table.length > 0).all()
    assert (visits(table) == 1).all()


def check_segments(table: Table) -> None:
    """No worker has more partial segments than slots, nor streamed ones after whole ones."""
    partition = table.partition
    per_worker = np.bincount(table.worker, table.partial, partition.num_workers)
    limit = 1 if partition.decomposition == SPLIT_K else MAX_PARTIAL_SEGMENTS
    assert per_worker.max(initial=0) <= limit
    streamed = table.index < np.repeat(
        np.broadcast_to(
            partition.num_streamed_segments(np.arange(partition.num_workers)),
            table.per_worker.shape,
        ),
        table.per_worker,
    )
    assert ((table.tile < partition.streamed_tiles) == streamed).all()


def check_balance(table: Table) -> None:
    """No worker idles where there is work for all; streamed shares differ by one panel at most."""
    partition = table.partition
    done = np.bincount(table.worker, table.length, partition.num_workers)
    assert done.max() == partition.most_panels
    streamed = int(partition.streamed_panels)
    if streamed >= partition.num_workers or partition.num_tiles >= partition.num_workers:
        assert (done > 0).all()
    if partition.decomposition in (STREAM_K, SPLIT_K):
        assert done.max() - done.min() <= 1
    if partition.decomposition == TWO_TILE:
        assert done.max() - done.min() <= 1 or streamed == 0


def check_peers(table: Table) -> None:
    """Peers of a streamed tile are first_peer, first_peer + 1, ... in the order of their panels."""
    partition = table.partition
    streamed = table.tile < partition.streamed_tiles
    tiles = np.arange(int(partition.streamed_tiles), dtype=np.int64)
    if tiles.size == 0:
        assert not table.partial.any()
        return
    first, count = partition.first_peer(tiles), partition.num_peers(tiles)
    assert (np.bincount(table.tile[streamed], minlength=tiles.size)[: tiles.size] == count).all()
    order = np.lexsort((table.k_begin[streamed], table.tile[streamed]))
    expected = np.repeat(first, count) + np.concatenate([np.arange(c) for c in count])
    assert (table.worker[streamed][order] == expected).all()
    if partition.num_workers <= partition.num_tiles and partition.decomposition != SPLIT_K:
        assert count.max() <= 2
    if partition.decomposition == SPLIT_K:
        assert (count == partition.num_workers // partition.num_tiles).all()


def check_slots(table: Table) -> None:
    """Every partial segment has a slot of its own, inside the workspace; readers find it."""
    partition = table.partition
    partial = table.partial
    slots = partition.slot(table.worker, table.k_begin)
    slots = np.broadcast_to(slots, table.worker.shape)[partial]
    assert slots.size == np.unique(slots).size
    if slots.size:
        assert 0 <= slots.min() and slots.max() < partition.num_slots
        assert partition.num_slots == partition.num_workers * partition.slots_per_worker
        tile, worker = table.tile[partial], table.worker[partial]
        peer = worker - partition.first_peer(tile)
        assert (partition.peer_slot(tile, peer) == slots).all()
    else:
        assert partition.num_slots == 0


def check_counts(table: Table) -> None:
    """The counts that a plan reports, against what the segments show."""
    partition = table.partition
    cut = np.unique(table.tile[table.partial])
    assert partition.cut_tiles == tuple(cut.tolist())
    peers = np.bincount(table.tile, minlength=max(partition.num_tiles, 1))
    assert partition.most_peers == max(int(peers.max(initial=1)), 1)
    assert partition.cuts == int((peers[peers > 1] - 1).sum())


def check_waves(table: Table) -> None:
    """What two_tile streams: nothing for whole waves, else between one and two tiles a worker."""
    partition = table.partition
    if partition.decomposition != TWO_TILE:
        return
    tiles, workers = partition.num_tiles, partition.num_workers
    streamed = int(partition.streamed_tiles)
    if tiles % workers == 0:
        assert streamed == 0
    elif tiles > workers:
        assert workers < streamed < 2 * workers
        assert (tiles - streamed) % workers == 0
    else:
        assert streamed == tiles


CHECKS = (
    check_coverage,
    check_segments,
    check_balance,
    check_peers,
    check_slots,
    check_counts,
    check_waves,
)


def check_everything(num_tiles: int, panels: int, workers: int) -> None:
    for partition in partitions(num_tiles, panels, workers):
        table = Table(partition)
        for check in CHECKS:
            try:
                check(table)
            except AssertionError as error:
                error.add_note(f"{check.__name__} of {partition}")
                raise


def sampled_sizes(num_tiles: int, count: int) -> list[tuple[int, int]]:
    """Panels and workers for one tile count: random ones, and worker counts next to the tiles'."""
    chance = random.Random(SEED + num_tiles)
    near = [w for w in (num_tiles - 1, num_tiles, num_tiles + 1) if 1 <= w <= MOST_WORKERS]
    sizes = [(chance.choice(EDGE_PANELS), chance.choice([*near, 1, MOST_WORKERS]))]
    for _ in range(count):
        sizes.append((chance.randint(1, MOST_PANELS), chance.randint(1, MOST_WORKERS)))
    return sizes


@pytest.mark.parametrize("batch", range(1, MOST_BATCH + 1))
def test_every_invariant_for_every_tile_grid(batch: int) -> None:
    counts = sorted(n for n, grid in tile_counts().items() if grid[2] == batch)
    for num_tiles in counts:
        for panels, workers in sampled_sizes(num_tiles, SAMPLES_PER_TILE_COUNT):
            check_everything(num_tiles, panels, workers)


@pytest.mark.parametrize("panels", EDGE_PANELS)
def test_every_invariant_for_every_worker_count(panels: int) -> None:
    chance = random.Random(SEED + panels)
    for workers in range(1, MOST_WORKERS + 1):
        check_everything(chance.randint(1, 2 * MOST_WORKERS), panels, workers)


def test_every_invariant_for_every_panel_count() -> None:
    chance = random.Random(SEED)
    for panels in range(1, MOST_PANELS + 1):
        check_everything(chance.randint(1, 40), panels, chance.randint(1, MOST_WORKERS))


def test_every_invariant_for_all_small_sizes() -> None:
    for num_tiles in range(1, 8):
        for panels in range(1, 7):
            for workers in range(1, num_tiles * panels + 3):
                check_everything(num_tiles, panels, workers)


@pytest.mark.long
@pytest.mark.parametrize("num_tiles", sorted(tile_counts()))
def test_every_invariant_long(num_tiles: int) -> None:
    # The offsets move, so that all tile counts together meet 96 % of the sizes.
    for panels in range(1 + num_tiles % 9, MOST_PANELS + 1, 9):
        for workers in range(1 + (panels + num_tiles // 9) % 11, MOST_WORKERS + 1, 11):
            check_everything(num_tiles, panels, workers)


# -- the same with plain integers ------------------------------------------------------------------


@given(st.integers(1, 60), st.integers(1, 40), st.integers(1, 90), st.sampled_from(DECOMPOSITIONS))
@settings(max_examples=150, deadline=None)
def test_python_integers_and_arrays_agree(
    num_tiles: int, panels: int, workers: int, decomposition: str
) -> None:
    if decomposition == DATA_PARALLEL:
        workers = num_tiles
    if decomposition == SPLIT_K:
        workers = num_tiles * divisors(panels)[workers % len(divisors(panels))]
    partition = Partition(num_tiles, panels, workers, decomposition)
    table = Table(Partition(num_tiles, panels, workers, decomposition, NumpyIntegers()))
    rows = zip(table.worker, table.tile, table.k_begin, table.k_end, strict=True)
    found = [
        (w, *(s.tile, s.k_begin, s.k_end)) for w in range(workers) for s in segments(partition, w)
    ]
    assert [tuple(map(int, row)) for row in rows] == found
    for tile in range(num_tiles):
        assert partition.peers(tile) == [row[0] for row in found if row[1] == tile]


def segments(partition: Partition, worker: int) -> list[Segment]:
    return list(partition.segments(worker))


@given(st.integers(1, 10**6), st.integers(1, 10**5), st.integers(1, 10**4), st.data())
@settings(max_examples=200, deadline=None)
def test_owner_is_the_inverse_of_slices_at_any_size(
    num_tiles: int, panels: int, workers: int, data: st.DataObject
) -> None:
    partition = Partition(num_tiles, panels, workers)
    flat = data.draw(st.integers(0, num_tiles * panels - 1))
    owner = partition.slice_owner(flat)
    assert 0 <= owner < workers
    assert partition.slice_begin(owner) <= flat < partition.slice_begin(owner + 1)


def test_no_intermediate_value_exceeds_the_panel_count_by_more_than_the_workers() -> None:
    """``tiles * panels * workers`` is never formed: indices stay in the type of tiles x panels."""
    largest = [0]

    class Watched(int):
        def _seen(self, value: int) -> Watched:
            largest[0] = max(largest[0], abs(value))
            return Watched(value)

        def __add__(self, other: int) -> Watched:
            return self._seen(int(self) + int(other))

        def __sub__(self, other: int) -> Watched:
            return self._seen(int(self) - int(other))

        def __mul__(self, other: int) -> Watched:
            return self._seen(int(self) * int(other))

        def __floordiv__(self, other: int) -> Watched:
            return self._seen(int(self) // int(other))

        def __mod__(self, other: int) -> Watched:
            return self._seen(int(self) % int(other))

        __radd__, __rmul__ = __add__, __mul__

    tiles, panels, workers = 1 << 20, 2000, 140
    for decomposition in (STREAM_K, TWO_TILE):
        partition = Partition(Watched(tiles), Watched(panels), Watched(workers), decomposition)
        for worker in (0, 1, workers - 1):
            list(partition.segments(Watched(worker)))
        partition.num_peers(Watched(partition.streamed_tiles - 1))
    assert tiles * panels // workers < largest[0] <= tiles * panels + workers


# -- worked examples of the paper ------------------------------------------------------------------


def test_paper_basic_stream_k_384_384_128_on_four_workers() -> None:
    partition = Partition(num_tiles=9, panels=32, num_workers=4)
    assert partition.streamed_panels == 288
    done = [sum(s.k_end - s.k_begin for s in partition.segments(w)) for w in range(4)]
    assert done == [72, 72, 72, 72]
    assert list(partition.segments(0)) == [Segment(0, 0, 32), Segment(1, 0, 32), Segment(2, 0, 8)]
    assert partition.cut_tiles == (2, 4, 6)
    assert partition.most_peers == 2


def test_paper_two_tile_896_384_128_on_four_workers() -> None:
    partition = Partition(num_tiles=21, panels=32, num_workers=4, decomposition=TWO_TILE)
    # Five full waves and one tile: all waves but the last full one are done whole.
    assert partition.streamed_tiles == 5
    assert partition.whole_tiles == 16
    streamed = [partition.slice_begin(w + 1) - partition.slice_begin(w) for w in range(4)]
    assert streamed == [40, 40, 40, 40]
    assert all(partition.panels <= share < 2 * partition.panels for share in streamed)
    assert partition.most_peers == 2
    assert partition.most_panels == 4 * 32 + 40
    assert all(partition.num_whole_segments(worker) == 4 for worker in range(4))


def test_quota_rounded_up_would_leave_a_worker_idle_but_slices_do_not() -> None:
    partition = Partition(num_tiles=5, panels=2, num_workers=8)
    assert -(-10 // 8) * 5 == 10  # rounded up, five workers would do everything
    assert all(partition.num_segments(worker) >= 1 for worker in range(8))


# -- the same with TensorIR expressions ------------------------------------------------------------


class Expressions:
    """The operators on TensorIR expressions."""

    def minimum(self, left: Any, right: Any) -> Any:
        return tirx.min(left, right)

    def maximum(self, left: Any, right: Any) -> Any:
        return tirx.max(left, right)

    def where_less(self, left: Any, right: Any, then: Any, otherwise: Any) -> Any:
        left, right, then, otherwise = map(self._expression, (left, right, then, otherwise))
        return tirx.Select(left < right, then, otherwise)

    def _expression(self, value: Any) -> Any:
        return tirx.IntImm("int32", value) if isinstance(value, int) else value


def evaluate(expression: Any, values: dict[Any, int]) -> int:
    """Substitute constants for variables and let TVM's simplifier compute the value."""
    if isinstance(expression, int):
        return expression

    def constant(variable: Any) -> Any:
        value = next(value for own, value in values.items() if own.same_as(variable))
        return tirx.IntImm("int32", value)

    simplified = tvm.sym.Analyzer().simplify(
        tvm_ffi.structural_map(expression, (tirx.Var, constant))
    )
    assert isinstance(simplified, tirx.IntImm), f"{expression} left {simplified}"
    return int(simplified)


SIZES = [(1, 1, 1), (1, 7, 3), (3, 4, 2), (5, 3, 2), (4, 6, 4), (7, 5, 3), (2, 9, 5), (13, 8, 6)]


def workers_of(decomposition: str, num_tiles: int, panels: int, workers: int) -> int:
    if decomposition == DATA_PARALLEL:
        return num_tiles
    return num_tiles * divisors(panels)[-1] if decomposition == SPLIT_K else workers


@pytest.mark.parametrize("decomposition", DECOMPOSITIONS)
def test_symbolic_worker_gives_the_same_integers(decomposition: str) -> None:
    worker, index, tile = (tirx.Var(name, "int32") for name in ("worker", "index", "tile"))
    for num_tiles, panels, wanted in SIZES:
        count = workers_of(decomposition, num_tiles, panels, wanted)
        plain = Partition(num_tiles, panels, count, decomposition)
        symbolic = Partition(num_tiles, panels, count, decomposition, Expressions())
        symbolic_count = symbolic.num_segments(worker)
        segment = symbolic.segment(worker, index)
        for number in range(count):
            assert evaluate(symbolic_count, {worker: number}) == plain.num_segments(number)
            for position, expected in enumerate(plain.segments(number)):
                values = {worker: number, index: position}
                found = [evaluate(part, values) for part in parts(segment)]
                assert found == parts(expected)
        for number in range(plain.streamed_tiles):
            values = {tile: number}
            assert evaluate(symbolic.first_peer(tile), values) == plain.first_peer(number)
            assert evaluate(symbolic.num_peers(tile), values) == plain.num_peers(number)
            assert evaluate(symbolic.peer_slot(tile, 1), values) == plain.peer_slot(number, 1)


def parts(segment: Segment) -> list[Any]:
    return [segment.tile, segment.k_begin, segment.k_end]


SYMBOLIC_PANELS = 5


def symbolic_segments(
    partition: Partition, tiles: Any, num_tiles: int, workers: int
) -> list[tuple[int, Segment, int]]:
    """``(worker, segment, slot)`` of a partition whose number of tiles is an expression."""
    worker, index = tirx.Var("worker", "int32"), tirx.Var("index", "int32")
    count, segment = partition.num_segments(worker), partition.segment(worker, index)
    slot = partition.slot(worker, segment.k_begin)
    found = []
    for number in range(workers):
        values = {tiles: num_tiles, worker: number}
        for position in range(evaluate(count, values)):
            values[index] = position
            whole = Segment(*(evaluate(part, values) for part in parts(segment)))
            found.append((number, whole, evaluate(slot, values)))
    return found


@pytest.mark.parametrize("workers", [1, 3, 4])
@pytest.mark.parametrize("decomposition", [STREAM_K, TWO_TILE, PERSISTENT])
def test_symbolic_number_of_tiles_shares_out_every_panel(decomposition: str, workers: int) -> None:
    tiles = tirx.Var("tiles", "int32")
    symbolic = Partition(tiles, SYMBOLIC_PANELS, workers, decomposition, Expressions())
    for num_tiles in (0, 1, 2, 3, 4, 5, 8, 9, 11):
        found = symbolic_segments(symbolic, tiles, num_tiles, workers)
        panels = [
            (segment.tile, panel)
            for _, segment, _ in found
            for panel in range(segment.k_begin, segment.k_end)
        ]
        assert sorted(panels) == [
            (tile, panel) for tile in range(num_tiles) for panel in range(SYMBOLIC_PANELS)
        ]
        loads = [
            sum(segment.k_end - segment.k_begin for owner, segment, _ in found if owner == number)
            for number in range(workers)
        ]
        plain = Partition(num_tiles, SYMBOLIC_PANELS, workers, decomposition)
        assert max(loads) == plain.most_panels


@pytest.mark.parametrize("workers", [1, 3, 4])
@pytest.mark.parametrize("decomposition", [STREAM_K, TWO_TILE])
def test_symbolic_peers_find_the_slots_of_their_tile(decomposition: str, workers: int) -> None:
    tiles, tile, peer = (tirx.Var(name, "int32") for name in ("tiles", "tile", "peer"))
    symbolic = Partition(tiles, SYMBOLIC_PANELS, workers, decomposition, Expressions())
    num_peers, peer_slot = symbolic.num_peers(tile), symbolic.peer_slot(tile, peer)
    for num_tiles in (1, 2, 3, 4, 5, 8, 9, 11):
        found = symbolic_segments(symbolic, tiles, num_tiles, workers)
        partial = [entry for entry in found if not entry[1].is_full(SYMBOLIC_PANELS)]
        slots = [slot for _, _, slot in partial]
        assert len(set(slots)) == len(slots)
        assert all(slot < symbolic.num_slots for slot in slots)
        for number in {segment.tile for _, segment, _ in partial}:
            stored = [entry for entry in partial if entry[1].tile == number]
            in_order = [slot for _, _, slot in sorted(stored, key=lambda entry: entry[1].k_begin)]
            values = {tiles: num_tiles, tile: number}
            assert evaluate(num_peers, values) == len(stored)
            read = [evaluate(peer_slot, {**values, peer: i}) for i in range(len(stored))]
            assert read == in_order


@pytest.mark.parametrize("workers", [1, 3, 4])
@pytest.mark.parametrize("decomposition", [STREAM_K, TWO_TILE])
def test_values_computed_once_give_the_same_segments(decomposition: str, workers: int) -> None:
    """Step by step, each value from the ones before, as a kernel keeps them in registers."""
    tiles, worker, index = (tirx.Var(name, "int32") for name in ("tiles", "worker", "index"))
    symbolic = Partition(tiles, SYMBOLIC_PANELS, workers, decomposition, Expressions())
    names: list[str] = []
    for num_tiles in (0, 1, 2, 3, 4, 5, 8, 9, 11):
        for number in range(workers):
            values = {tiles: num_tiles, worker: number}

            def keep(name: str, formula: Any, values: dict[Any, int] = values) -> int:
                names.append(name)
                return evaluate(formula, values)

            once = replace(symbolic, known=symbolic.slice_values(worker, keep))
            count = evaluate(once.num_segments(worker), values)
            assert count == evaluate(symbolic.num_segments(worker), values)
            for position in range(count):
                values[index] = position
                expected, segment = (
                    [evaluate(part, values) for part in parts(each.segment(worker, index))]
                    for each in (symbolic, once)
                )
                assert segment == expected
    assert set(names) == {field.name for field in fields(SliceValues)}


def test_only_symbolic_tiles_pay_for_values_computed_once() -> None:
    def keep(name: str, formula: Any) -> Any:
        raise AssertionError(f"{name} is short anyway")

    assert Partition(7, SYMBOLIC_PANELS, 3).slice_values(0, keep) is None


@pytest.mark.parametrize("decomposition", [STREAM_K, TWO_TILE, PERSISTENT])
def test_no_tiles_give_no_segments(decomposition: str) -> None:
    partition = Partition(0, 4, 3, decomposition)
    assert [partition.num_segments(worker) for worker in range(3)] == [0, 0, 0]
    assert (partition.cuts, partition.most_peers, partition.num_slots) == (0, 1, 0)


# -- bad arguments ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, 4, 2, "streamk"), "decomposition 'streamk' is none of data_parallel, persistent"),
        ((-1, 4, 2), "num_tiles must be at least 0, got -1"),
        ((3, 0, 2), "panels must be at least 1, got 0"),
        ((3, 4, 0), "num_workers must be at least 1, got 0"),
        ((3, 4, 2, DATA_PARALLEL), "one worker per tile: 3, got 2"),
        ((3, 4, 9, SPLIT_K), "got 9 workers, 3 tiles, 4 panels"),
        ((3, 4, 7, SPLIT_K), "got 7 workers, 3 tiles, 4 panels"),
    ],
)
def test_bad_arguments_are_quoted(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Partition(*arguments)


def test_the_default_operators_are_python_integers() -> None:
    assert isinstance(Partition(1, 1, 1).operators, PythonIntegers)
