# SPDX-License-Identifier: Apache-2.0
"""From a recognised nest and a decision to the persistent kernel.

The main nest that comes out, on a GPU grid (on a CPU grid the workers are ``T.parallel``)::

    for w in T.thread_binding(workers, "blockIdx.x"):
        for thread and virtual thread loops, as they were:
            for s in range(<segments of w>):
                with T.sblock("C_stream_k"):
                    v_worker, v_tile, v_k_begin, v_k_end = <closed forms of w and s>
                    <prelude and init nest>
                    for k in range(v_k_end - v_k_begin):
                        <panel body, at panel v_k_begin + k>
                    <merge; epilogue>

The block is not decoration. Without it the binding of the reduction iterator depends on ``w`` and
``s``, TVM then plans the accumulator's allocation above those loops, and registers silently become
a global argument of the kernel.

Nothing here can fail for a user's reasons: the analysis has judged the nest, the caller the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, tirx

from tvm_streamk.annotation import (
    ARGUMENT,
    KERNEL_MARK,
    STREAMED_SUFFIX,
    RecordedDecision,
)
from tvm_streamk.expressions import (
    Buffer,
    Expression,
    Statement,
    block_iterator,
    buffers_accessed,
    buffers_read,
    buffers_stored,
    collect,
    constant,
    contains,
    divides_indices,
    dtype_of,
    full_region,
    loop,
    once_if,
    rebuild_block,
    rebuild_loop,
    sequence,
    static_value,
    substitute,
)
from tvm_streamk.merge import CutTileNest, Merge, MergeSite, SegmentVariables
from tvm_streamk.merge_buffers import merge_site, with_parameter
from tvm_streamk.merges import merge_named
from tvm_streamk.nest import CPU, GPU, is_private, root_block
from tvm_streamk.nest_partition import index_dtype, is_wide, needs_merge, partition_of
from tvm_streamk.normalize import with_ordinary_iterators
from tvm_streamk.partition import SPLIT_K, Partition, Segment
from tvm_streamk.relative import has_absolute_indices
from tvm_streamk.slice_buffer import Registers, in_registers, registers_in, slice_buffer
from tvm_streamk.software_pipelines import pipeline_of_unknown_length
from tvm_streamk.tile_loops import at_tile, grid_loop, thread_iterators
from tvm_streamk.tile_nest import TileNest


def rewrite(nest: TileNest, decision: RecordedDecision) -> Any:
    """The function with the nest as a Stream-K kernel.

    Parameters
    ----------
    nest : TileNest
        What the analysis found.
    decision : RecordedDecision
        Decomposition, merge and number of workers, already checked against the nest.

    Returns
    -------
    PrimFunc
        A function with the same parameters. The nest's function is not changed.
    """
    return _Builder.create(nest, decision).function()


@dataclass(frozen=True)
class _Builder:
    """Builds the nests of one function; all state is in the fields."""

    nest: TileNest
    decision: RecordedDecision
    partition: Partition
    merge: Merge | None
    site: MergeSite
    dtype: str
    can_keep: bool

    @staticmethod
    def create(nest: TileNest, decision: RecordedDecision) -> _Builder:
        partition = partition_of(nest, decision)
        merge = merge_named(decision.merge) if needs_merge(partition) else None
        site = merge_site(nest, partition, decision.counters)
        dtype, can_keep = index_dtype(nest), not _has_absolute_buffers(nest)
        return _Builder(nest, decision, partition, merge, site, dtype, can_keep)

    def function(self) -> Any:
        """The whole function: nests before, main nest, nests after."""
        nests = [self._main_nest()]
        if self.merge is not None:
            before = self._cut_tile_nests(self.merge.nests_before)
            after = self._cut_tile_nests(self.merge.nests_after)
            first = self.merge.kernels_before(self.site, self.decision.counters)
            nests = [*first, *before, *nests, *after]
        root = root_block(self.nest.function)
        new_root = rebuild_block(
            root,
            body=sequence(nests),
            alloc_buffers=[
                *self._shared_by_tiles(),
                *self._merge_allocations(),
                *registers_in(nests),
            ],
        )
        function = self.nest.function.with_body(s_tir.SBlockRealize([], True, new_root))
        if self._adds_parameter:
            return with_parameter(function, self.site.arrivals)
        return function

    @property
    def _adds_parameter(self) -> bool:
        """Whether the caller shall pass the counters, but the function has no parameter for it."""
        uses_counters = self.merge is not None and self.merge.needs_counters
        given = contains(self.nest.function.params, self.site.arrivals)
        return uses_counters and self.decision.counters == ARGUMENT and not given

    def _merge_allocations(self) -> list[Buffer]:
        """Global memory that the merge needs, for the root block."""
        if self.merge is None:
            return []
        buffers = [self.site.workspace] if self.merge.needs_workspace else []
        if self.merge.needs_counters and self.decision.counters != ARGUMENT:
            buffers.append(self.site.arrivals)
        return buffers

    # -- buffers -----------------------------------------------------------------------------------

    def _is_private(self, buffer: Buffer) -> bool:
        """Whether a root allocation belongs to one tile at a time."""
        return is_private(buffer, self.nest.grid)

    def _shared_by_tiles(self) -> list[Buffer]:
        allocated = root_block(self.nest.function).alloc_buffers
        return [buffer for buffer in allocated if not self._is_private(buffer)]

    def _private_in(self, body: Statement) -> list[Buffer]:
        used = buffers_accessed(body)
        allocated = root_block(self.nest.function).alloc_buffers
        private = [buffer for buffer in allocated if self._is_private(buffer)]
        private += [self.site.seen_arrivals, self.site.is_last, self.site.sums]
        return [buffer for buffer in private if contains(used, buffer)]

    # -- the main nest -----------------------------------------------------------------------------

    def _main_nest(self) -> Statement:
        def of_worker(worker: Any) -> Statement:
            return self._with_known_slices(
                "main", worker, lambda builder: builder._segments(worker)
            )

        return grid_loop(self.nest, self.dtype, self.partition.num_workers, "worker", of_worker)

    def _with_known_slices(
        self, name: str, worker: Expression, build: Callable[[_Builder], Statement]
    ) -> Statement:
        """What ``build`` makes for a worker, with its slice in registers where it is symbolic."""
        if not self.can_keep:
            return build(self)
        known = slice_buffer(self.partition, self.nest, name, worker, self.dtype)
        if known is None:
            return build(self)
        site = replace(self.site, partition=known.partition)
        return sequence([known.fill, build(replace(self, partition=known.partition, site=site))])

    def _segments(self, worker: Any) -> Statement:
        count = self._num_segments(worker)
        if static_value(count) == 1:
            return self._segment_block(worker, tirx.const(0, self.dtype))
        return loop(
            "segment",
            count,
            lambda index: self._segment_block(worker, index),
            dtype=self.dtype,
        )

    def _num_segments(self, worker: Expression) -> Expression:
        if self.decision.decomposition == SPLIT_K:
            return 1
        return self.partition.num_segments(worker)

    def _segment_block(self, worker: Expression, index: Expression) -> Statement:
        segment = self.partition.segment(worker, index)
        kept = {name: getattr(segment, name) for name in self._names_in_registers}
        if not kept:
            return self._block_of_segment(worker, segment)
        registers = self._registers(kept)
        known = replace(segment, **registers.values)
        return sequence([registers.fill, self._block_of_segment(worker, known)])

    def _registers(self, values: Mapping[str, Expression]) -> Registers:
        tiles, panels = self.nest.num_tiles, self.nest.panels
        last_tile = max(tiles - 1, 0) if isinstance(tiles, int) else None
        limits = {"tile": (0, last_tile), "k_begin": (0, panels - 1)}
        known = {name: limit for name, limit in limits.items() if name in values}
        return in_registers(self.nest, values, self.dtype, known)

    @property
    def _names_in_registers(self) -> tuple[str, ...]:
        """What of a segment is computed once, and not in every index that uses it.

        The bounds of the panels only where it must be on a GPU: a pipeline of copies needs to see
        its trip count. The tile's number between fragments, which leave few registers, and on a
        CPU where indices are divided: there its limits are worth more than its formula.
        """
        if self._computes_once:
            return tuple(field.name for field in fields(Segment))
        if not self.can_keep:
            return ()
        gathers = self.nest.grid == CPU and divides_indices(self.nest.parts.panel_statement)
        pays = gathers or self.nest.staging is not None
        is_fixed = self.decision.decomposition == SPLIT_K
        return ("tile",) if self.partition.mixes_tiles or (pays and not is_fixed) else ()

    @property
    def _computes_once(self) -> bool:
        is_symbolic_on_cpu = self.partition.known is not None and self.nest.grid == CPU
        return is_symbolic_on_cpu or self._indices_are_narrower

    @property
    def _indices_are_narrower(self) -> bool:
        """Whether panels are counted in 64 bits in a nest whose own indices have 32."""
        loops = (*self.nest.parts.tile_loops, self.nest.parts.panel_loop)
        return any(dtype_of(step.loop_var) != self.dtype for step in loops) and is_wide(self.dtype)

    def _block_of_segment(self, worker: Expression, segment: Segment) -> Statement:
        bounds = {
            "v_worker": (self.partition.num_workers, worker),
            "v_tile": (self.nest.num_tiles, segment.tile),
            "v_k_begin": (self.nest.panels, segment.k_begin),
            "v_k_end": (self.nest.panels + 1, segment.k_end),
        }
        iterators = {
            name: block_iterator(name, extent, tirx.IterVar.Opaque, self.dtype)
            for name, (extent, _) in bounds.items()
        }
        values = [constant(value, self.dtype) for _, value in bounds.values()]
        variables = SegmentVariables(*(iterator.var for iterator in iterators.values()))
        statements = [self._panels(part, variables) for part in self.nest.parts.segment_statements]
        if self.merge is None:
            statements.append(self.site.epilogue)
        else:
            statements += self.merge.finish_segment(self.site, variables)
        body = at_tile(self.nest, self.dtype, sequence(statements), variables.tile)
        name = f"{self.nest.block}{STREAMED_SUFFIX}"
        return self._block(name, list(iterators.values()), values, body)

    def _panels(self, statement: Statement, segment: SegmentVariables) -> Statement:
        """The statement with its panel loop running over the segment's panels only."""
        panel_loop = self.nest.parts.panel_loop
        count = self._static_panels_per_segment()
        statement = with_ordinary_iterators(statement)
        if count == self.nest.panels:
            return statement

        def shortened(step: Any) -> Any:
            if not step.loop_var.same_as(panel_loop.loop_var):
                return step
            dtype = dtype_of(step.loop_var)
            panel = ir.Var(str(step.loop_var.name), dtype)
            first = constant(segment.k_begin, dtype) + step.min
            extent = segment.k_end - segment.k_begin if count is None else count
            return rebuild_loop(
                step,
                substitute(step.body, {step.loop_var: first + panel}),
                loop_var=panel,
                min=tirx.const(0, dtype),
                extent=constant(extent, dtype),
                annotations=step.annotations if count else pipeline_of_unknown_length(step),
            )

        return tvm_ffi.structural_map(statement, (tirx.For, shortened), order="post")

    def _static_panels_per_segment(self) -> int | None:
        """The trip count that all segments share, where they do: pipelines stay as they are."""
        if self.merge is None:
            return self.nest.panels
        if self.decision.decomposition == SPLIT_K:
            return self.nest.panels // self.decision.splits
        return None

    # -- nests over the cut tiles ------------------------------------------------------------------

    def _cut_tile_nests(
        self, specifications: Callable[[MergeSite], Sequence[CutTileNest]]
    ) -> list[Statement]:
        """One worker per boundary between workers; it works if it is the first in its tile."""

        def nest(position: int) -> Statement:
            def of_boundary(boundary: Any) -> Statement:
                def build(builder: _Builder) -> Statement:
                    specification = specifications(builder.site)[position]
                    return builder._cut_tile_block(specification, boundary)

                return self._with_known_slices(f"boundary_{position}", boundary, build)

            grid = grid_loop(
                self.nest, self.dtype, self.partition.num_workers - 1, "boundary", of_boundary
            )
            return self._with_fresh_definitions(grid)

        return [nest(position) for position in range(len(specifications(self.site)))]

    def _cut_tile_block(self, specification: CutTileNest, boundary: Any) -> Statement:
        begin, cut = self.partition.slice_bounds(boundary)
        is_first = begin <= cut - cut % self.nest.panels
        inside = constant(0, self.dtype) < constant(cut % self.nest.panels, self.dtype)
        tile = block_iterator("v_tile", self.nest.num_tiles, tirx.IterVar.Opaque, self.dtype)
        once = block_iterator("v_is_cut", 2, tirx.IterVar.Opaque, self.dtype)
        statements = sequence(specification.statements(tile.var))
        body = once_if(once.var > 0, at_tile(self.nest, self.dtype, statements, tile.var))
        is_cut = _as_integer(tirx.all(is_first, inside), self.dtype)
        values = {"tile": constant(cut // self.nest.panels, self.dtype), "is_cut": is_cut}
        before = []
        if self._computes_once:
            registers = self._registers(values)
            before, values = [registers.fill], registers.values
        name = f"{specification.name}{STREAMED_SUFFIX}"
        block = self._block(name, [tile, once], list(values.values()), body)
        return sequence([*before, block])

    def _with_fresh_definitions(self, nest: Statement) -> Statement:
        """Loop variables of thread loops and buffers must not be defined by two nests."""
        threads = {
            step.loop_var: ir.Var(str(step.loop_var.name), dtype_of(step.loop_var))
            for step in self.nest.parts.thread_loops
        }
        buffers = {
            buffer: _renamed_buffer(buffer, "_merge")
            for block in collect(nest, s_tir.SBlock)
            for buffer in block.alloc_buffers
        }
        return substitute(nest, {**threads, **buffers})

    # -- shared pieces -----------------------------------------------------------------------------

    def _block(
        self, name: str, iterators: Sequence[Any], values: Sequence[Expression], body: Statement
    ) -> Statement:
        private = self._private_in(body)
        threads = thread_iterators(self.nest)
        body = substitute(body, {variable: each.var for variable, each in threads.items()})
        if self.nest.grid == GPU:
            body = tirx.AttrStmt(tirx.const(0, "int32"), KERNEL_MARK, tirx.const(1, "int32"), body)
        return s_tir.SBlockRealize(
            [*values, *threads],
            True,
            s_tir.SBlock(
                [*iterators, *threads.values()],
                [full_region(buffer) for buffer in self._global_only(buffers_read(body), private)],
                [full_region(buffer) for buffer in self._global_only(_written(body), private)],
                name,
                body,
                None,
                private,
            ),
        )

    def _global_only(self, buffers: Iterable[Buffer], private: list[Buffer]) -> list[Buffer]:
        kept: list[Buffer] = []
        for buffer in buffers:
            if not contains(private, buffer) and not contains(kept, buffer):
                kept.append(buffer)
        return [buffer for buffer in kept if self._is_visible(buffer)]

    def _is_visible(self, buffer: Buffer) -> bool:
        """Whether a buffer exists outside the block: matched buffers inside it do not."""
        outside = [*self.nest.function.params, *self._shared_by_tiles()]
        return contains([*outside, self.site.workspace, self.site.arrivals], buffer)


def _has_absolute_buffers(nest: TileNest) -> bool:
    parts = nest.parts
    outer = [step.loop_var for step in (*parts.tile_loops, parts.panel_loop)]
    allocated = root_block(nest.function).alloc_buffers
    private = [each for each in allocated if is_private(each, nest.grid)]
    body = sequence([*parts.segment_statements, *parts.epilogue])
    return has_absolute_indices(body, outer, private)


def _written(body: Statement) -> list[Buffer]:
    """Buffers that a body writes: by stores, or as its blocks declare (calls, atomics)."""
    declared = [region.source for block in collect(body, s_tir.SBlock) for region in block.writes]
    return [*buffers_stored(body), *declared]


def _renamed_buffer(buffer: Buffer, suffix: str) -> Buffer:
    return tirx.decl_buffer(
        buffer.shape, str(buffer.dtype), name=f"{buffer.name}{suffix}", scope=buffer.scope()
    )


def _as_integer(condition: Expression, dtype: str) -> Expression:
    return tirx.Select(condition, tirx.const(1, dtype), tirx.const(0, dtype))
