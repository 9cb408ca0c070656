# SPDX-License-Identifier: Apache-2.0
"""Partial sums on their way: from the accumulator to a slot, from the slots into a tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_streamk.elements import AccumulatorElements, ElementAccess, clone_with_new_names
from tvm_streamk.expressions import (
    Buffer,
    Expression,
    Statement,
    dtype_of,
    loop,
    point_region,
    pragmas,
    rebuild_loop,
    sequence,
)
from tvm_streamk.partition import Partition
from tvm_streamk.tile_nest import TileNest

MOST_AT_ONCE = 8


@dataclass(frozen=True)
class PartialSums:
    """The traffic between a nest's accumulator and the workspace.

    Attributes
    ----------
    nest, partition
        What is computed and who computes it.
    workspace
        ``(slot, element, thread)``, of the elements' slot type.
    sums
        Registers of the same type, one per element of a thread.
    """

    nest: TileNest
    partition: Partition
    workspace: Buffer
    sums: Buffer

    def publish(self, slot: Expression) -> list[Statement]:
        """Store the partial sum of a segment in its slot."""
        to_slot = self._store(slot)
        if self.nest.staging is None:
            return [to_slot]
        return [self.nest.staging.publishing(to_slot)]

    def finish(self, tile: Expression) -> list[Statement]:
        """Combine the slots of a tile's peers, in their order, and do what followed the panels."""
        from_slots = self._gather(tile)
        if self.nest.staging is not None:
            return self.nest.staging.finishing(from_slots)
        epilogue = self.nest.parts.epilogue
        return [*from_slots, *(clone_with_new_names(part, "_merged") for part in epilogue)]

    @property
    def _accumulator(self) -> Buffer:
        return self.nest.elements.buffer

    @property
    def _is_promoted(self) -> bool:
        return str(self.workspace.dtype) != str(self._accumulator.dtype)

    def _store(self, slot: Expression) -> Statement:
        workspace, accumulator = self.workspace, self._accumulator

        def body(indices: Sequence[Expression], position: Sequence[Expression]) -> ElementAccess:
            value = _as_type(accumulator[tuple(indices)], accumulator, workspace)
            statement = tirx.BufferStore(workspace, value, list(position))
            read, write = point_region(accumulator, indices), point_region(workspace, position)
            return ElementAccess(statement, (read,), (write,))

        return self._nest("partial_sum", body, slot)

    def _gather(self, tile: Expression) -> list[Statement]:
        if self._is_promoted or self.nest.staging is not None:
            return self._gather_in_registers(tile)
        peers = self.partition.num_peers(tile)

        def one_peer(peer: Any) -> Statement:
            return self._nest("merge", self._add_slot, self.partition.peer_slot(tile, peer))

        return [self._initialise(), loop("peer", peers, one_peer, dtype=dtype_of(tile))]

    def _initialise(self) -> Statement:
        accumulator, initial = self._accumulator, self.nest.reducer.initial

        def body(indices: Sequence[Expression], _position: Any) -> ElementAccess:
            statement = tirx.BufferStore(accumulator, initial, list(indices))
            return ElementAccess(statement, (), (point_region(accumulator, indices),))

        return self._nest("merge_init", body, None)

    def _add_slot(
        self, indices: Sequence[Expression], position: Sequence[Expression]
    ) -> ElementAccess:
        workspace, accumulator = self.workspace, self._accumulator
        combined = self.nest.reducer.combine(
            accumulator[tuple(indices)], workspace[tuple(position)]
        )
        statement = tirx.BufferStore(accumulator, combined, list(indices))
        own, other = point_region(accumulator, indices), point_region(workspace, position)
        return ElementAccess(statement, (own, other), (own,))

    def _gather_in_registers(self, tile: Expression) -> list[Statement]:
        """Combine in registers of the slots' type, and fill the accumulator or stage from them.

        In shared memory each step would need a barrier; in a 16-bit accumulator it would round.
        """
        elements, groups = summed_at_once(self.nest)
        workspace, accumulator, sums = self.workspace, self._accumulator, self.sums
        initial = _as_type(self.nest.reducer.initial, accumulator, sums)

        def start(_indices: Any, register: Sequence[Expression]) -> ElementAccess:
            statement = tirx.BufferStore(sums, initial, list(register))
            return ElementAccess(statement, (), (point_region(sums, register),))

        def add(_indices: Any, position: Sequence[Expression]) -> ElementAccess:
            *slot, register = position
            combined = self.nest.reducer.combine(sums[register], workspace[tuple(slot)])
            statement = tirx.BufferStore(sums, combined, [register])
            own, other = point_region(sums, [register]), point_region(workspace, slot)
            return ElementAccess(statement, (own, other), (own,))

        def finish(indices: Sequence[Expression], register: Sequence[Expression]) -> ElementAccess:
            value = _as_type(sums[tuple(register)], sums, accumulator)
            statement = tirx.BufferStore(accumulator, value, list(indices))
            read, write = point_region(sums, register), point_region(accumulator, indices)
            return ElementAccess(statement, (read,), (write,))

        def nest(name: str, body: Any, slot: tuple[Any, Any] | None = None) -> Statement:
            return elements.nest(f"{self.nest.block}_{name}", body, slot, register=True)

        def one_peer(peer: Any) -> Statement:
            slot = self.partition.peer_slot(tile, peer)
            return nest("merge", add, (self.partition.num_slots, slot))

        peers = self.partition.num_peers(tile)
        statement = sequence(
            [
                nest("merge_init", start),
                loop("peer", peers, one_peer, dtype=dtype_of(tile)),
                nest("merged_sum", finish),
            ]
        )
        for step in reversed(groups):
            statement = rebuild_loop(step, statement, annotations=pragmas(step))
        return [statement]

    def _nest(self, name: str, body: Any, slot: Expression | None) -> Statement:
        place = None if slot is None else (self.partition.num_slots, slot)
        return self.nest.elements.nest(f"{self.nest.block}_{name}", body, place)


def summed_at_once(nest: TileNest) -> tuple[AccumulatorElements, tuple[Any, ...]]:
    """The elements that a thread sums at a time in registers, and the loops over such groups.

    Those of a stage in small groups: enough loads at a time, and few registers. Those of an
    accumulator in registers all at once, since registers cannot be indexed by a loop.
    """
    if nest.staging is None:
        return nest.elements, ()
    return nest.elements.in_groups(MOST_AT_ONCE)


def _as_type(value: Expression, source: Buffer, target: Buffer) -> Expression:
    same = str(source.dtype) == str(target.dtype)
    return value if same else tirx.Cast(str(target.dtype), value)
