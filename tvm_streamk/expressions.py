# SPDX-License-Identifier: Apache-2.0
"""Small tools over TensorIR: integer operators, substitution, walking, building.

TVM 0.27 has no functor classes in Python; everything rests on ``tvm_ffi.structural_*``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, tirx

Expression = Any
Statement = Any
Buffer = Any


class TirIntegers:
    """The operators of :class:`~tvm_streamk.partition.Operators` on expressions of one dtype."""

    def __init__(self, dtype: str = "int32") -> None:
        self.dtype = dtype

    def minimum(self, left: Expression, right: Expression) -> Expression:
        """Return the smaller of two integers."""
        if isinstance(left, int) and isinstance(right, int):
            return min(left, right)
        return tirx.min(self._expression(left), self._expression(right))

    def maximum(self, left: Expression, right: Expression) -> Expression:
        """Return the larger of two integers."""
        if isinstance(left, int) and isinstance(right, int):
            return max(left, right)
        return tirx.max(self._expression(left), self._expression(right))

    def where_less(
        self, left: Expression, right: Expression, then: Expression, otherwise: Expression
    ) -> Expression:
        """Return ``then`` if ``left < right``, else ``otherwise``."""
        if isinstance(left, int) and isinstance(right, int):
            return then if left < right else otherwise
        condition = self._expression(left) < self._expression(right)
        return tirx.Select(condition, self._expression(then), self._expression(otherwise))

    def _expression(self, value: Expression) -> Expression:
        return tirx.const(value, self.dtype) if isinstance(value, int) else value


def zero_or_one(condition: Expression) -> Expression:
    """A trip count of 1 where ``condition`` holds, else 0.

    A barrier may not stand under ``if`` (TVM's ``ThreadSync`` refuses it), but may stand in a loop.
    """
    return tirx.Select(condition, tirx.const(1, "int32"), tirx.const(0, "int32"))


def dtype_of(value: Expression) -> str:
    """The dtype of an expression, a variable or a buffer's elements."""
    return str(value.dtype) if hasattr(value, "dtype") else str(value.ty.dtype)


def constant(value: Expression, dtype: str) -> Expression:
    """An expression of ``dtype`` from a Python integer or an expression."""
    number = static_value(value)
    if number is not None:
        return tirx.const(number, dtype)
    return value if dtype_of(value) == dtype else tirx.Cast(dtype, value)


def static_value(value: Expression) -> int | None:
    """The Python integer that an expression is, or None where it is symbolic."""
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, tirx.IntImm) else None


def substitute(node: Any, replacements: Mapping[Any, Expression]) -> Any:
    """Replace variables (buffers among them) in ``node``, definitions of buffers included."""
    if not replacements:
        return node
    return tvm_ffi.structural_map(
        node, (ir.Var, lambda var: replacements.get(var, var)), order="post"
    )


def collect(node: Any, kind: Any, *, into_blocks: bool = True) -> list[Any]:
    """All nodes of a kind in ``node``, outermost first."""
    found: list[Any] = []

    def visit(value: Any) -> Any:
        found.append(value)
        return None

    visitors: list[tuple[Any, Callable[[Any], Any]]] = [(kind, visit)]
    tvm_ffi.structural_walk(node, visitors, order="pre")
    return found


def divides_indices(node: Any) -> bool:
    """Whether an element that is read is found by divisions, as where an image is gathered."""
    indices = [index for load in collect(node, ir.TensorLoad) for index in load.indices]
    return any(collect(indices, kind) for kind in (tirx.FloorDiv, tirx.FloorMod))


def uses_any(node: Any, variables: Iterable[Any]) -> bool:
    """Whether any of the variables occurs in ``node``."""
    wanted = list(variables)
    return any(any(found.same_as(var) for var in wanted) for found in collect(node, ir.Var))


def buffers_read(node: Any) -> list[Buffer]:
    """The buffers that ``node`` loads from, in order, with repetitions."""
    return [load.source for load in collect(node, ir.TensorLoad)]


def buffers_stored(node: Any) -> list[Buffer]:
    """The buffers that ``node`` stores to, in order, with repetitions."""
    return [store.buffer for store in collect(node, tirx.BufferStore)]


def buffers_accessed(node: Any) -> list[Buffer]:
    """The buffers that ``node`` loads, stores or declares to access, with repetitions."""
    declared = [
        region.source
        for block in collect(node, s_tir.SBlock)
        for region in (*block.reads, *block.writes)
    ]
    return [*buffers_read(node), *buffers_stored(node), *declared]


def contains(buffers: Iterable[Buffer], buffer: Buffer) -> bool:
    """Whether ``buffer`` is among ``buffers``, by identity."""
    return any(candidate.same_as(buffer) for candidate in buffers)


_DECLARATION = re.compile(r"\w+ = T\.\w+\(.*\)$")


def shown(node: Any) -> str:
    """A statement or expression on one line for a message, without the printer's declarations."""
    lines = (line.strip() for line in str(node).splitlines())
    code = [line for line in lines if line and not line.startswith(("#", "@"))]
    return " ".join(line for line in code if not _DECLARATION.match(line)) or " ".join(code)


def full_region(buffer: Buffer) -> Any:
    """The region that is all of a buffer."""
    ranges = [
        ir.Range.from_min_extent(tirx.const(0, dtype_of(extent)), extent) for extent in buffer.shape
    ]
    return tirx.BufferRegion(buffer, ranges)


def point_region(buffer: Buffer, indices: Sequence[Expression]) -> Any:
    """The region that is one element of a buffer."""
    return tirx.BufferRegion(buffer, [ir.Range.from_min_extent(index, 1) for index in indices])


def sequence(statements: Sequence[Statement]) -> Statement:
    """One statement from several; nested sequences are flattened."""
    flat = list(_flattened(statements))
    return flat[0] if len(flat) == 1 else tirx.SeqStmt(flat)


def _flattened(statements: Sequence[Statement]) -> Iterator[Statement]:
    for statement in statements:
        if isinstance(statement, tirx.SeqStmt):
            yield from _flattened(statement.seq)
        else:
            yield statement


def loop(
    name: str,
    extent: Expression,
    body: Callable[[Any], Statement],
    *,
    kind: Any = None,
    thread: str | None = None,
    annotations: Mapping[str, Any] | None = None,
    dtype: str = "int32",
) -> Any:
    """A loop from 0 to ``extent``; ``body`` builds the inside from the new loop variable."""
    variable = ir.Var(name, dtype)
    kind = tirx.ForKind.SERIAL if kind is None else kind
    binding = None
    if thread is not None:
        kind = tirx.ForKind.THREAD_BINDING
        thread_var = ir.Var(thread.replace(".", "_"), dtype)
        binding = tirx.IterVar(None, thread_var, tirx.IterVar.ThreadIndex, thread)
    return tirx.For(
        variable,
        tirx.const(0, dtype),
        constant(extent, dtype),
        kind,
        body(variable),
        binding,
        dict(annotations or {}),
    )


def once_if(condition: Expression, body: Statement) -> Statement:
    """Run ``body`` once where ``condition`` holds, as a loop that barriers may stand in."""
    return loop("once", zero_or_one(condition), lambda _: body)


def rebuild_loop(original: Any, body: Statement, **changes: Any) -> Any:
    """The loop ``original`` with another body and, by keyword, other fields."""
    fields = {
        "loop_var": original.loop_var,
        "min": original.min,
        "extent": original.extent,
        "kind": original.kind,
        "thread_binding": original.thread_binding,
        "annotations": original.annotations,
    } | changes
    return tirx.For(
        fields["loop_var"],
        fields["min"],
        fields["extent"],
        fields["kind"],
        body,
        fields["thread_binding"],
        fields["annotations"],
    )


def pragmas(original: Any) -> dict[str, Any]:
    """The annotations of a loop that hold for whatever its body is (unrolling, say)."""
    found = original.annotations.items()
    return {key: value for key, value in found if str(key).startswith("pragma_")}


def rebuild_block(original: Any, **changes: Any) -> Any:
    """The block ``original`` with, by keyword, other fields."""
    names = (
        "iter_vars reads writes name_hint body init alloc_buffers match_buffers annotations".split()
    )
    fields = {name: getattr(original, name) for name in names} | changes
    return s_tir.SBlock(*(fields[name] for name in names))


def opaque_block(
    name: str, body: Statement, reads: Sequence[Any] = (), writes: Sequence[Any] = ()
) -> Any:
    """A block without iterators: its body may use the variables around it."""
    return s_tir.SBlockRealize([], True, s_tir.SBlock([], list(reads), list(writes), name, body))


def block_iterator(name: str, extent: Expression, kind: Any, dtype: str = "int32") -> Any:
    """A block iterator over ``[0, extent)``."""
    domain = ir.Range.from_min_extent(tirx.const(0, dtype), constant(extent, dtype))
    return tirx.IterVar(domain, ir.Var(name, dtype), kind)


def is_thread_loop(candidate: Any) -> bool:
    """Whether a loop is bound to ``threadIdx.*`` or to a virtual thread."""
    return thread_tag(candidate).startswith(("threadIdx", "vthread"))


def is_grid_loop(candidate: Any) -> bool:
    """Whether a loop is bound to ``blockIdx.*``."""
    return thread_tag(candidate).startswith("blockIdx")


def thread_tag(candidate: Any) -> str:
    """The thread axis that a loop is bound to, or the empty string."""
    if candidate.kind != tirx.ForKind.THREAD_BINDING or candidate.thread_binding is None:
        return ""
    return str(candidate.thread_binding.thread_tag)


def simplified(expression: Expression) -> Expression:
    """The expression after TVM's arithmetic simplification."""
    if isinstance(expression, int):
        return expression
    return tvm_symbolic().simplify(expression)


def tvm_symbolic() -> Any:
    """A fresh arithmetic analyzer."""
    from tvm import sym

    return sym.Analyzer()
