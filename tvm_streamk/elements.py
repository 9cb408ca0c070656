# SPDX-License-Identifier: Apache-2.0
"""The elements of an accumulator that one thread or task owns, as a nest enumerates them.

The init nest touches each element exactly once (and so does the reader of a fragment's stage). A
copy of it with another body therefore does anything that is to be done to every element: write
back, store to a slot, add from a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
    pragmas,
    rebuild_block,
    rebuild_loop,
    static_value,
    substitute,
    thread_tag,
)
from tvm_streamk.fragment_window import FragmentWindow
from tvm_streamk.nest import CPU, GPU, BlockPath

PROMOTED_DTYPES = {"float16": "float32", "bfloat16": "float32"}


@dataclass(frozen=True)
class ElementAccess:
    """What is done to one element, with the regions that it reads and writes."""

    statement: Statement
    reads: tuple[Any, ...]
    writes: tuple[Any, ...]


_KINDS_NOT_COPIED = {GPU: tirx.ForKind.VECTORIZED, CPU: tirx.ForKind.UNROLLED}
"""On a GPU a slot is register-major: neighbours in a vector are far apart in it. On a CPU there are
no registers to be kept by unrolling, which multiplies what TVM has to compile."""

ElementBody = Callable[[Sequence[Expression], Sequence[Expression]], ElementAccess]
"""From the element's indices in the accumulator and its position ``[slot, element, thread]`` in the
workspace (empty where no slot was given), with its register at the end where that was asked for."""


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
    window
        For fragments that each lane addresses: the matrix that the element is in.
    """

    buffer: Buffer
    indices: tuple[Expression, ...]
    path: BlockPath
    thread_loops: tuple[Any, ...]
    grid: str
    outer_loops: tuple[Any, ...] = ()
    window: FragmentWindow | None = None

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
    def per_copy(self) -> int:
        """Elements that a thread touches in one copy of the nest, without the loops around it."""
        return _product_of_serial(self.path.loops)

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

    def in_groups(self, most: int) -> tuple[AccumulatorElements, tuple[Any, ...]]:
        """The same elements, of which one copy of the nest touches a group of at most ``most``.

        Returns
        -------
        AccumulatorElements
            With fewer or shorter loops in a copy of the nest, as far as thread loops allow.
        tuple of loops
            The loops over the groups, for the caller to put around what is done to each.
        """
        around: list[Any] = []
        path = self.path
        while _product_of_serial(path.loops) > most and not is_thread_loop(path.loops[0]):
            outer, path = _peeled(path, most)
            around.append(outer)
        outer_loops = (*self.outer_loops, *around)
        return replace(self, path=path, outer_loops=outer_loops), tuple(around)

    def nest(
        self,
        name: str,
        body: ElementBody,
        slot: tuple[Expression, Expression] | None = None,
        *,
        register: bool = False,
    ) -> Statement:
        """A copy of the enumerating nest whose block is called ``name`` and does ``body``.

        ``slot`` is the number of slots and the one to use. It becomes a block iterator, as do the
        element's and the thread's number: a block must not use the loop variables around it. With
        ``register``, the element's number within this copy comes last.
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
        if register:
            position.append(block_iterator("v_register", self.per_copy, tirx.IterVar.DataPar))
            copied = [step for step in self.path.loops if not is_thread_loop(step)]
            numbers.append(_flattened(copied, fresh_loops))
        access = body(indices, [iterator.var for iterator in position])
        iterators += position
        values += numbers
        block = s_tir.SBlock(iterators, access.reads, access.writes, name, access.statement)
        if self.window is not None:
            block = self.window.substituted(fresh_iterators).seen_through(block)
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
            changes: dict[str, Any] = {
                "loop_var": fresh_loops[step.loop_var],
                "annotations": pragmas(step),
            }
            if step.kind == _KINDS_NOT_COPIED[self.grid]:
                changes["kind"] = tirx.ForKind.SERIAL
            statement = rebuild_loop(step, statement, **changes)
        return statement


def _peeled(path: BlockPath, most: int) -> tuple[Any, BlockPath]:
    """The first loop of a path, or the outer part of it, and the path below."""
    first, *below = path.loops
    extent = static_value(first.extent) or 1
    room = max(most // _product_of_serial(below), 1)
    kept = max(count for count in range(1, room + 1) if extent % count == 0)
    realize = path.realize
    if kept > 1:
        dtype = dtype_of(first.loop_var)
        group, inside = (ir.Var(f"{first.loop_var.name}_{each}", dtype) for each in ("g", "i"))
        number = {first.loop_var: group * kept + inside}
        realize = s_tir.SBlockRealize(
            [substitute(value, number) for value in realize.iter_values],
            substitute(realize.predicate, number),
            realize.block,
        )
        below = [rebuild_loop(first, first.body, loop_var=inside, extent=kept), *below]
        first = rebuild_loop(first, first.body, loop_var=group, extent=extent // kept)
    return first, BlockPath(tuple(below), (None,) * len(below), realize)


def _product_of_serial(loops: Sequence[Any]) -> int:
    return _product([step for step in loops if not is_thread_loop(step)])


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
