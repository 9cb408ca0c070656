# SPDX-License-Identifier: Apache-2.0
"""The elements of an accumulator that one thread or task owns, as a nest enumerates them.

The init nest touches each element exactly once (and so does the reader of a fragment's stage). A
copy of it with another body therefore does anything that is to be done to every element: write
back, store to a slot, add from a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx

from tvm_streamk.expressions import (
    Buffer,
    Expression,
    Statement,
    block_iterator,
    collect,
    constant,
    dtype_of,
    is_thread_loop,
    rebuild_block,
    rebuild_loop,
    static_value,
    substitute,
    thread_tag,
)
from tvm_streamk.nest import GPU, BlockPath

PROMOTED_DTYPES = {"float16": "float32", "bfloat16": "float32"}


@dataclass(frozen=True)
class ElementAccess:
    """What is done to one element, with the regions that it reads and writes."""

    statement: Statement
    reads: tuple[Any, ...]
    writes: tuple[Any, ...]


ElementBody = Callable[[Sequence[Expression], Sequence[Expression]], ElementAccess]
"""From the element's indices in the accumulator and its position ``[slot, element, thread]`` in the
workspace (empty where no slot was given)."""


@dataclass(frozen=True)
class AccumulatorElements:
    """How to walk over the accumulator's elements.

    Attributes
    ----------
    buffer
        The accumulator.
    indices
        The indices of the element, over that block's iterators.
    path
        A block that touches each element once, with the loops between the sequence and it.
    thread_loops
        The thread loops around the sequence.
    grid
        ``gpu`` or ``cpu``.
    outer_loops
        Loops that stand around every copy of the nest and are not copied with it.
    """

    buffer: Buffer
    indices: tuple[Expression, ...]
    path: BlockPath
    thread_loops: tuple[Any, ...]
    grid: str
    outer_loops: tuple[Any, ...] = ()

    @property
    def _element_loops(self) -> tuple[Any, ...]:
        loops = (*self.outer_loops, *self.path.loops)
        return tuple(step for step in loops if not is_thread_loop(step))

    @property
    def _all_thread_loops(self) -> tuple[Any, ...]:
        """Thread loops around an element, one per thread axis: loops on one axis are one index."""
        loops = (*self.thread_loops, *self.outer_loops, *self.path.loops)
        by_axis = {thread_tag(step): step for step in loops if is_thread_loop(step)}
        return tuple(by_axis.values())

    @property
    def per_thread(self) -> int:
        """Elements that one thread (GPU) or task (CPU) owns."""
        return _product(self._element_loops)

    @property
    def threads(self) -> int:
        """Threads of a worker, virtual threads included; 1 on a CPU."""
        return _product(self._all_thread_loops)

    @property
    def slot_shape(self) -> tuple[int, int]:
        """Shape of a slot: ``(element, thread)``, so that a GPU's threads touch neighbours."""
        return self.per_thread, self.threads

    @property
    def slot_dtype(self) -> str:
        """The type of a slot: the accumulator's own, never narrower; 16-bit floats are promoted.

        A 16-bit accumulator rounds while it sums its panels, which is what the nest asks for.
        Adding such sums up in 16 bits would round once more per peer, so that is done in float32.
        """
        dtype = str(self.buffer.dtype)
        return PROMOTED_DTYPES.get(dtype, dtype)

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot."""
        return self.per_thread * self.threads * tvm.DataType(self.slot_dtype).itemsize

    def nest(
        self,
        name: str,
        body: ElementBody,
        slot: tuple[Expression, Expression] | None = None,
    ) -> Statement:
        """A copy of the enumerating nest whose block is called ``name`` and does ``body``.

        ``slot`` is the number of slots and the one to use. It becomes a block iterator, as do the
        element's and the thread's number: a block must not use the loop variables around it.
        """
        fresh_loops = {step.loop_var: _renamed(step.loop_var) for step in self.path.loops}
        iterators = [
            tirx.IterVar(iterator.dom, _renamed(iterator.var), tirx.IterVar.DataPar)
            for iterator in self.path.block.iter_vars
        ]
        pairs = zip(self.path.block.iter_vars, iterators, strict=True)
        fresh_iterators = {old.var: new.var for old, new in pairs}
        indices = [substitute(index, fresh_iterators) for index in self.indices]
        values = [substitute(value, fresh_loops) for value in self.path.realize.iter_values]
        position, numbers = self._position(slot, fresh_loops)
        access = body(indices, [iterator.var for iterator in position])
        iterators += position
        values += numbers
        block = s_tir.SBlock(iterators, access.reads, access.writes, name, access.statement)
        predicate = substitute(self.path.realize.predicate, fresh_loops)
        return self._around(s_tir.SBlockRealize(values, predicate, block), fresh_loops)

    def _position(
        self, slot: tuple[Expression, Expression] | None, fresh_loops: dict[Any, Any]
    ) -> tuple[list[Any], list[Expression]]:
        """Block iterators for a position in the workspace and what they are bound to.

        They are data-parallel: for any other kind, TVM would plan the accumulator that the block
        writes above the thread loops.
        """
        if slot is None:
            return [], []
        num_slots, slot_value = slot
        dtype = dtype_of(slot_value)
        iterators = [
            block_iterator("v_slot", num_slots, tirx.IterVar.DataPar, dtype),
            block_iterator("v_element", self.per_thread, tirx.IterVar.DataPar),
            block_iterator("v_thread", self.threads, tirx.IterVar.DataPar),
        ]
        element = _flattened(self._element_loops, fresh_loops)
        thread = _flattened(self._all_thread_loops, fresh_loops)
        return iterators, [slot_value, element, thread]

    def _around(self, statement: Statement, fresh_loops: dict[Any, Any]) -> Statement:
        for step in reversed(self.path.loops):
            changes: dict[str, Any] = {"loop_var": fresh_loops[step.loop_var], "annotations": {}}
            # A slot is register-major: neighbours in a vector are far apart in it.
            if self.grid == GPU and step.kind == tirx.ForKind.VECTORIZED:
                changes["kind"] = tirx.ForKind.SERIAL
            statement = rebuild_loop(step, statement, **changes)
        return statement


def _product(loops: Sequence[Any]) -> int:
    result = 1
    for step in loops:
        result *= static_value(step.extent) or 0
    return result


def _flattened(loops: Sequence[Any], fresh_loops: dict[Any, Any]) -> Expression:
    number: Expression = tirx.const(0, "int32")
    for step in loops:
        variable = fresh_loops.get(step.loop_var, step.loop_var)
        number = number * constant(step.extent, "int32") + constant(variable, "int32")
    return number


def _renamed(variable: Any) -> Any:
    return ir.Var(f"{variable.name}_e", dtype_of(variable))


def clone_with_new_names(statement: Statement, suffix: str) -> Statement:
    """The same statement with everything that it defines defined afresh, and renamed blocks.

    A function must not define a variable twice, and a schedule finds blocks by name.
    """
    defined = [step.loop_var for step in collect(statement, tirx.For)]
    matched: list[Buffer] = []
    for block in collect(statement, s_tir.SBlock):
        defined.extend(iterator.var for iterator in block.iter_vars)
        matched.extend(match.buffer for match in block.match_buffers)
    fresh = {variable: ir.Var(str(variable.name), dtype_of(variable)) for variable in defined}
    for buffer in matched:
        fresh |= _fresh_match(buffer)

    def rename(block: Any) -> Any:
        return rebuild_block(block, name_hint=f"{block.name_hint}{suffix}")

    renamed = tvm_ffi.structural_map(statement, (s_tir.SBlock, rename), order="post")
    # The mapping reaches definitions as well as uses, so that both change together.
    return substitute(renamed, fresh)


def _fresh_match(buffer: Buffer) -> dict[Any, Any]:
    """A matched buffer and the variables that the match defines, with their replacements."""
    layout = buffer.ty
    variables = [*layout.strides, layout.elem_offset]
    fresh = {
        variable: ir.Var(str(variable.name), dtype_of(variable))
        for variable in variables
        if isinstance(variable, ir.Var)
    }
    copy = tirx.decl_buffer(
        layout.shape,
        str(buffer.dtype),
        name=str(buffer.name),
        strides=[fresh.get(stride, stride) for stride in layout.strides],
        elem_offset=fresh.get(layout.elem_offset, layout.elem_offset),
        scope=buffer.scope(),
        data_alignment=int(layout.data_alignment),
        offset_factor=int(layout.offset_factor),
        layout=layout.layout,
    )
    return {**fresh, buffer: copy}
