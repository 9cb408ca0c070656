# SPDX-License-Identifier: Apache-2.0
"""Index private buffers relative to the tile and the panel.

A producer's nest indexes its private buffers with coordinates of the whole output: the accumulator
of tile 5 is ``C_local[5 * 32 + i, j]`` in a buffer as large as ``C``. TVM shrinks such buffers
later, if its arithmetic sees that the accesses of one tile differ by constants. With a tile number
that is a quotient of the worker's slice it often does not see it: registers become kilobytes of
local memory, or the offsets of a tensor intrinsic cannot be proved equal. So the tile's part is
taken out of the indices while it is still a plain loop variable.

This is right where every index of a buffer is the sum of a part that depends on the tile alone, the
same for all accesses of the buffer, and a part that does not. Other buffers stay as they are. Where
the second part can be negative (an operand with zeros before its first element), the smallest value
that it takes anywhere becomes 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, sym, tirx

from tvm_streamk.expressions import (
    Buffer,
    Expression,
    Statement,
    collect,
    constant,
    contains,
    dtype_of,
    rebuild_block,
    rebuild_loop,
    static_value,
    substitute,
    uses_any,
)

Environment = dict[Any, Expression]
UNBOUNDED = 2**31
"""Extents from here on are bounds that the arithmetic does not know."""


def with_relative_indices(
    statement: Statement,
    outer: Sequence[Any],
    private: Sequence[Buffer],
    around: Sequence[Any] = (),
) -> tuple[Statement, dict[Buffer, Buffer]]:
    """The statement with its private buffers indexed as if all ``outer`` variables were 0.

    Parameters
    ----------
    statement : Stmt
        All that accesses the private buffers.
    outer : sequence of Var
        Loop variables around ``statement``: those of the tile loops, of the thread loops or of the
        panel loop.
    private : sequence of Buffer
        Buffers whose contents do not outlive one iteration of the outer loops.
    around : sequence of For
        The loops around ``statement``, whose ranges bound its indices.

    Returns
    -------
    Stmt
        Equivalent to the given one where each iteration of the outer loops has its own buffers.
    dict
        The buffers that have become smaller, with what replaces them in the statement.
    """
    analyzer = _analyzer(statement, around)
    offsets = _Offsets(list(outer), list(private), analyzer, _defined_in(statement))
    offsets.visit(statement, {})
    chosen = offsets.consistent_buffers()
    if not chosen:
        return statement, {}
    zero = {variable: tirx.const(0, dtype_of(variable)) for variable in outer}
    starts = {buffer: offsets.starts(buffer) for buffer in chosen}
    moved = _Rewriter(starts, offsets.analyzer).visit(statement, zero)
    smaller = {buffer: small for buffer in chosen if (small := offsets.shrunk(buffer)) is not None}
    return substitute(moved, smaller), smaller


def has_absolute_indices(
    statement: Statement, outer: Sequence[Any], private: Sequence[Buffer]
) -> bool:
    """Whether some private buffer is still indexed with what ``outer`` variables make."""
    offsets = _Offsets(list(outer), list(private), _analyzer(statement, ()), _defined_in(statement))
    offsets.visit(statement, {})
    found = [offset for _, each in offsets.found for offset in each]
    return bool(offsets.unfit) or uses_any(found, outer)


def _analyzer(statement: Statement, around: Sequence[Any]) -> Any:
    analyzer = sym.Analyzer()
    for step in (*around, *collect(statement, tirx.For)):
        if static_value(step.extent) is not None:
            analyzer.bind(step.loop_var, ir.Range.from_min_extent(step.min, step.extent))
    return analyzer


def _defined_in(statement: Statement) -> list[Any]:
    """The variables that have one value per place in the statement; shapes have one everywhere."""
    loops = [step.loop_var for step in collect(statement, tirx.For)]
    blocks = [block.iter_vars for block in collect(statement, s_tir.SBlock)]
    iterators = [iterator.var for iter_vars in blocks for iterator in iter_vars]
    return [*loops, *iterators, *(bind.var for bind in collect(statement, tirx.Bind))]


@dataclass
class _Offsets:
    """Collects, per buffer and dimension, the part of the index that the outer loops make."""

    outer: list[Any]
    private: list[Buffer]
    analyzer: Any
    inner: list[Any]
    found: list[tuple[Buffer, list[Expression]]] = field(default_factory=list)
    first: list[tuple[Buffer, list[Expression]]] = field(default_factory=list)
    last: list[tuple[Buffer, list[Expression]]] = field(default_factory=list)
    unfit: list[Buffer] = field(default_factory=list)

    def consistent_buffers(self) -> list[Buffer]:
        """The buffers whose accesses all have the same offsets."""
        return [
            buffer
            for buffer in self.private
            if not contains(self.unfit, buffer)
            and self._same_offsets(buffer)
            and all(start > -UNBOUNDED for start in self.starts(buffer))
        ]

    def _same_offsets(self, buffer: Buffer) -> bool:
        offsets = [offset for candidate, offset in self.found if candidate.same_as(buffer)]
        return bool(offsets) and all(
            self.analyzer.can_prove_equal(mine, first)
            for other in offsets[1:]
            for mine, first in zip(other, offsets[0], strict=True)
        )

    def starts(self, buffer: Buffer) -> list[int]:
        """Per dimension, the smallest index relative to the tile, if it is negative; else 0.

        Where the tile is not in the index, a negative one is never accessed, here as before.
        """
        moving = [
            uses_any(
                [offsets[axis] for each, offsets in self.found if each.same_as(buffer)], self.outer
            )
            for axis in range(len(buffer.shape))
        ]
        return [
            min([0, *(int(bound.min_value) for bound in self._bounds(self.first, buffer, axis))])
            if moves
            else 0
            for axis, moves in enumerate(moving)
        ]

    def _bounds(self, reached: list[Any], buffer: Buffer, dimension: int) -> list[Any]:
        return [
            self.analyzer.const_int_bound(indices[dimension])
            for candidate, indices in reached
            if candidate.same_as(buffer)
        ]

    def shrunk(self, buffer: Buffer) -> Buffer | None:
        """The buffer with the extents that its relative accesses need, or None if that is all."""
        extents: list[Expression] = []
        starts = self.starts(buffer)
        for dimension, extent in enumerate(buffer.shape):
            bounds = self._bounds(self.last, buffer, dimension)
            start = starts[dimension]
            needed = 1 + max(int(bound.max_value) for bound in bounds) - start
            # All that is accessed is in the buffer, which has moved by the start.
            moved = extent if start == 0 else constant(extent - start, dtype_of(extent))
            whole = static_value(moved)
            fits = needed < (UNBOUNDED if whole is None else whole)
            extents.append(tirx.const(needed, dtype_of(extent)) if fits else moved)
        if all(new.same_as(old) for new, old in zip(extents, buffer.shape, strict=True)):
            return None
        dtype, scope = str(buffer.dtype), buffer.scope()
        return tirx.decl_buffer(extents, dtype, name=str(buffer.name), scope=scope)

    def visit(self, statement: Statement, environment: Environment) -> None:
        """Walk over a statement; ``environment`` maps block iterators to what they are bound to."""
        if isinstance(statement, tirx.SeqStmt):
            for child in statement.seq:
                self.visit(child, environment)
        elif isinstance(statement, tirx.For):
            self._expressions([statement.min, statement.extent], environment)
            self.visit(statement.body, environment)
        elif isinstance(statement, s_tir.SBlockRealize):
            self._block(statement, environment)
        else:
            self._expressions([statement], environment)

    def _block(self, realize: Any, environment: Environment) -> None:
        block = realize.block
        inner = dict(environment)
        for iterator, value in zip(block.iter_vars, realize.iter_values, strict=True):
            inner[iterator.var] = substitute(value, environment)
        matched = [match.source for match in block.match_buffers]
        for region in (*block.reads, *block.writes, *matched):
            starts = [axis.min for axis in region.region]
            self._access(region.source, starts, inner, [axis.extent for axis in region.region])
            if uses_any([axis.extent for axis in region.region], self.outer):
                self.unfit.append(region.source)
        if block.init is not None:
            self.visit(block.init, inner)
        self.visit(block.body, inner)

    def _expressions(self, nodes: Sequence[Any], environment: Environment) -> None:
        for node in nodes:
            for load in collect(node, ir.TensorLoad):
                self._access(load.source, list(load.indices), environment)
            for store in collect(node, tirx.BufferStore):
                self._access(store.buffer, list(store.indices), environment)
            for call in collect(node, ir.Call):
                raw = [argument for argument in call.args if isinstance(argument, ir.Var)]
                self.unfit += [buffer for buffer in raw if contains(self.private, buffer)]

    def _access(
        self,
        buffer: Buffer,
        indices: Sequence[Expression],
        environment: Environment,
        lengths: Sequence[Expression] | None = None,
    ) -> None:
        if not contains(self.private, buffer):
            return
        zero = {variable: tirx.const(0, dtype_of(variable)) for variable in self.outer}
        offsets, first, last = [], [], []
        for dimension, index in enumerate(indices):
            over_loops = substitute(index, environment)
            at_zero = self.analyzer.simplify(substitute(over_loops, zero))
            length = 1 if lengths is None else lengths[dimension]
            offsets.append(self.analyzer.simplify(over_loops - at_zero))
            first.append(at_zero)
            last.append(at_zero + (length - 1))
        self.found.append((buffer, offsets))
        self.first.append((buffer, first))
        self.last.append((buffer, last))
        if uses_any(offsets, self.inner):
            self.unfit.append(buffer)


class _Rewriter:
    """Replaces, in accesses of the chosen buffers only, outer variables by what they are at 0."""

    def __init__(self, starts: Mapping[Buffer, Sequence[int]], analyzer: Any) -> None:
        self.starts = dict(starts)
        self.chosen = list(starts)
        self.analyzer = analyzer

    def visit(self, statement: Statement, relative: Environment) -> Statement:
        """Rewrite a statement; ``relative`` maps variables to their values relative to the tile."""
        if isinstance(statement, tirx.SeqStmt):
            return tirx.SeqStmt([self.visit(child, relative) for child in statement.seq])
        if isinstance(statement, tirx.For):
            return rebuild_loop(statement, self.visit(statement.body, relative))
        if isinstance(statement, s_tir.SBlockRealize):
            return self._block(statement, relative)
        return self._accesses(statement, relative)

    def _block(self, realize: Any, relative: Environment) -> Any:
        block = realize.block
        inner = dict(relative)
        added: list[tuple[Any, Expression]] = []
        for iterator, value in zip(block.iter_vars, realize.iter_values, strict=True):
            if not uses_any(value, relative):
                continue
            dtype = dtype_of(iterator.var)
            variable = ir.Var(f"{iterator.var.name}_in_tile", dtype)
            inner[iterator.var] = variable
            new = tirx.IterVar(iterator.dom, variable, tirx.IterVar.DataPar)
            at_zero = self.analyzer.simplify(substitute(value, relative))
            added.append((new, constant(at_zero, dtype)))
        changed = rebuild_block(
            block,
            reads=[self._accesses(region, inner) for region in block.reads],
            writes=[self._accesses(region, inner) for region in block.writes],
            match_buffers=[self._accesses(match, inner) for match in block.match_buffers],
            init=None if block.init is None else self.visit(block.init, inner),
            body=self.visit(block.body, inner),
        )
        used = [pair for pair in added if uses_any(_parts(changed), [pair[0].var])]
        return s_tir.SBlockRealize(
            [*realize.iter_values, *(value for _, value in used)],
            realize.predicate,
            rebuild_block(changed, iter_vars=[*block.iter_vars, *(new for new, _ in used)]),
        )

    def _accesses(self, node: Any, relative: Environment) -> Any:
        def moved(buffer: Buffer, indices: Sequence[Expression]) -> list[Expression]:
            pairs = zip(indices, self.starts[buffer], strict=True)
            return [
                substitute(index, relative) - start if start else substitute(index, relative)
                for index, start in pairs
            ]

        def on_load(load: Any) -> Any:
            if not contains(self.chosen, load.source):
                return load
            return load.source[tuple(moved(load.source, load.indices))]

        def on_store(store: Any) -> Any:
            if not contains(self.chosen, store.buffer):
                return store
            return tirx.BufferStore(store.buffer, store.value, moved(store.buffer, store.indices))

        def on_region(region: Any) -> Any:
            if not contains(self.chosen, region.source):
                return region
            starts = moved(region.source, [axis.min for axis in region.region])
            ranges = [
                ir.Range.from_min_extent(start, axis.extent)
                for start, axis in zip(starts, region.region, strict=True)
            ]
            return tirx.BufferRegion(region.source, ranges)

        handlers: list[tuple[Any, Callable[[Any], Any]]] = [
            (ir.TensorLoad, on_load),
            (tirx.BufferStore, on_store),
            (ir.TensorRegion, on_region),
        ]
        return tvm_ffi.structural_map(node, handlers, order="post")


def _parts(block: Any) -> list[Any]:
    init = [] if block.init is None else [block.init]
    return [*block.reads, *block.writes, *block.match_buffers, *init, block.body]
