# SPDX-License-Identifier: Apache-2.0
"""Walks a lowered TVM host function and writes down what it would ask of a device.

The host function checks its arguments, allocates workspaces and calls kernels, possibly under
conditions and in loops. `HostFunction.run` follows it statement by statement with the given
arguments, and records the workspaces and kernel calls instead of performing them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from .host_expressions import (
    AnyStack,
    DevicePointer,
    HostEvaluationError,
    HostExpressions,
    PackedArguments,
    StructField,
    operator_name,
)

_SET_DEVICE = "__tvm_set_device"
_WORKSPACE_BYTES_ARGUMENT = 2


class ArgumentMismatch(ValueError):
    """The module's own checks refuse the given arguments."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")


@dataclass(frozen=True)
class KernelCall:
    """One call of a kernel: its arguments, then the values of its launch parameters."""

    kernel: str
    values: tuple[Any, ...]


class HostFunction:
    """Follows one lowered host function.

    Parameters
    ----------
    function : tvm.tirx.PrimFunc
        The packed function, after the pipeline's host passes.
    kernels : frozenset[str]
        Names of the kernels it may call.
    taken_names : frozenset[str]
        Names that no workspace may have, since parameters have them.
    """

    def __init__(self, function: Any, kernels: frozenset[str], taken_names: frozenset[str]) -> None:
        self._function = function
        self._kernels = kernels
        self._expressions = HostExpressions()
        self._names = set(taken_names)
        self._workspace_names: dict[Any, str] = {}
        self.workspace_bytes: dict[str, int] = {}
        self.workspace_dtypes: dict[str, str] = {}
        self.calls: list[KernelCall] = []

    def run(self, arguments: PackedArguments) -> None:
        """Follow the function with `arguments`, filling `calls` and `workspace_bytes`.

        Raises
        ------
        ArgumentMismatch
            If a check that TVM generated refuses an argument.
        HostEvaluationError
            If the function does something whose outcome cannot be known here.
        """
        _, packed, count, _ = self._function.params
        self._expressions.bind(packed, arguments)
        self._expressions.bind(count, len(arguments.values))
        self._execute(self._function.body)

    def _execute(self, statement: Any) -> bool:
        """Follow one statement; true if it returned from the function."""
        if isinstance(statement, tirx.SeqStmt):
            return any(self._execute(child) for child in statement.seq)
        if isinstance(statement, tirx.IfThenElse):
            return self._branch(statement)
        if isinstance(statement, tirx.For):
            return self._loop(statement)
        if isinstance(statement, tirx.AttrStmt):
            return self._execute(statement.body)
        if type(statement).__name__ == "Return":
            return True
        self._simple(statement)
        return False

    def _simple(self, statement: Any) -> None:
        if isinstance(statement, tirx.Bind):
            self._expressions.bind(statement.var, self._expressions.evaluate(statement.value))
        elif isinstance(statement, tirx.DeclBuffer):
            self._declare(statement.buffer, statement.data)
        elif isinstance(statement, tirx.AssertStmt):
            self._check(statement)
        elif isinstance(statement, tirx.Evaluate):
            self._evaluate(statement.value)
        else:
            raise HostEvaluationError(
                str(statement).strip(), f"{type(statement).__name__} works on host memory"
            )

    def _branch(self, statement: Any) -> bool:
        if self._expressions.evaluate(statement.condition):
            return self._execute(statement.then_case)
        return statement.else_case is not None and self._execute(statement.else_case)

    def _loop(self, loop: Any) -> bool:
        begin = self._expressions.evaluate(loop.min)
        extent = self._expressions.evaluate(loop.extent)
        step = 1 if loop.step is None else self._expressions.evaluate(loop.step)
        for value in range(begin, begin + extent, step):
            self._expressions.bind(loop.loop_var, value)
            if self._execute(loop.body):
                return True
        return False

    def _check(self, statement: Any) -> None:
        if not self._expressions.evaluate(statement.condition):
            parts = (str(self._expressions.evaluate(part)) for part in statement.message_parts)
            raise ArgumentMismatch(str(statement.error_kind.value), "".join(parts))

    def _declare(self, buffer: Any, data: Any) -> None:
        if type(data).__name__ == "Call" and operator_name(data) == "TVMBackendAllocWorkspace":
            pointer: Any = self._allocate(buffer, data)
        else:
            pointer = self._expressions.evaluate(data)
        self._expressions.bind(buffer, pointer)

    def _allocate(self, buffer: Any, call: Any) -> DevicePointer:
        if buffer not in self._workspace_names:
            name = unique_name(str(buffer.name), self._names)
            self._names.add(name)
            self._workspace_names[buffer] = name
            self.workspace_dtypes[name] = str(buffer.ty.dtype.dtype)
        name = self._workspace_names[buffer]
        num_bytes = self._expressions.evaluate(call.args[_WORKSPACE_BYTES_ARGUMENT])
        self.workspace_bytes[name] = max(num_bytes, self.workspace_bytes.get(name, 0))
        return DevicePointer(name)

    def _evaluate(self, value: Any) -> None:
        name = operator_name(value) if type(value).__name__ == "Call" else ""
        if name == "tvm_struct_set":
            self._store_argument(value)
        elif name == "tvm_call_packed_lowered":
            self._call_packed(value)
        elif name:
            raise HostEvaluationError(str(value), f"{name} acts on something outside the kernels")

    def _store_argument(self, call: Any) -> None:
        stack, slot, kind, value = (self._expressions.evaluate(argument) for argument in call.args)
        if isinstance(stack, AnyStack) and kind == StructField.ANY_VALUE:
            stack.slots[slot] = value

    def _call_packed(self, call: Any) -> None:
        name, stack, begin, end = (self._expressions.evaluate(argument) for argument in call.args)
        if name == _SET_DEVICE:
            return
        if name not in self._kernels:
            raise HostEvaluationError(str(call), f"{name!r} is none of the module's kernels")
        values = tuple(stack.slots[slot] for slot in range(begin, end))
        self.calls.append(KernelCall(name, values))


def unique_name(wanted: str, taken: set[str]) -> str:
    """`wanted`, or the first of `wanted_1`, `wanted_2`, … that is not in `taken`."""
    name, suffix = wanted, 0
    while name in taken:
        suffix += 1
        name = f"{wanted}_{suffix}"
    return name
