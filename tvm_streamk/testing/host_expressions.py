# SPDX-License-Identifier: Apache-2.0
"""Values of the expressions in a lowered TVM host function, computed in Python.

A lowered host function reads its packed arguments, checks them and computes what each kernel
launch needs. `HostExpressions` computes the same values from the same IR, with C's rules for
integers of fixed width, so that a launch can be known without a device runtime.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Any

import numpy as np
import tvm
import tvm_ffi

_DLTENSOR_DEVICE_ID = 0
_SUCCESS = 0


class HostEvaluationError(RuntimeError):
    """The host function holds something whose value cannot be known without running it."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(
            f"cannot evaluate `{what}` in the lowered host function: {reason}. "
            "Run the module on a target that TVM itself can execute, or move it into a kernel."
        )


class StructField(IntEnum):
    """Which member a struct access names (TVM's `builtin::TVMStructFieldKind`)."""

    DATA = 1
    SHAPE = 2
    STRIDES = 3
    NDIM = 4
    TYPE_CODE = 5
    TYPE_BITS = 6
    TYPE_LANES = 7
    BYTE_OFFSET = 8
    DEVICE_ID = 9
    DEVICE_TYPE = 10
    ANY_TYPE_INDEX = 13
    ANY_PADDING = 14
    ANY_VALUE = 15
    INT64_ELEMENT = 17


class AnyType(IntEnum):
    """The type indices of packed values that a kernel's host function meets."""

    INT = 1
    BOOL = 2
    FLOAT = 3
    DLTENSOR = 7


@dataclass(frozen=True)
class DevicePointer:
    """The address of a buffer on the device, known by the buffer's name."""

    name: str


@dataclass(frozen=True)
class TensorArgument:
    """What the host function can ask of one tensor argument.

    Attributes
    ----------
    name : str
        Name of the buffer, unique in the function.
    shape : tuple[int, ...]
        Extents; the data are compact and row-major.
    dtype : str
        TVM's name of the element type.
    device_type : int
        DLPack's device type.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    device_type: int

    def member(self, kind: int) -> Any:
        """Value of one DLTensor member; null strides mean compact data."""
        dtype = tvm_ffi.dtype(self.dtype)
        members = {
            StructField.DATA: DevicePointer(self.name),
            StructField.SHAPE: self.shape,
            StructField.STRIDES: None,
            StructField.NDIM: len(self.shape),
            StructField.TYPE_CODE: int(dtype.type_code),
            StructField.TYPE_BITS: int(dtype.bits),
            StructField.TYPE_LANES: int(dtype.lanes),
            StructField.BYTE_OFFSET: 0,
            StructField.DEVICE_ID: _DLTENSOR_DEVICE_ID,
            StructField.DEVICE_TYPE: self.device_type,
        }
        return members[StructField(kind)]


@dataclass(frozen=True)
class PackedArguments:
    """The array of packed arguments that a host function receives."""

    values: tuple[TensorArgument | int | float | bool, ...]

    def member(self, index: int, kind: int) -> Any:
        """Type index or value of one argument."""
        value = self.values[index]
        if kind == StructField.ANY_VALUE:
            return value
        return _type_index(value)


@dataclass
class AnyStack:
    """The stack array through which a host function passes arguments to a kernel."""

    slots: dict[int, Any] = field(default_factory=dict)


def _type_index(value: TensorArgument | int | float | bool) -> int:
    if isinstance(value, TensorArgument):
        return AnyType.DLTENSOR
    if isinstance(value, bool):
        return AnyType.BOOL
    return AnyType.INT if isinstance(value, int) else AnyType.FLOAT


def convert_scalar(value: Any, dtype: str) -> Any:
    """Convert a Python number as C converts it to `dtype`: integers wrap, floats round."""
    kind = tvm_ffi.dtype(dtype)
    if dtype == "bool":
        return bool(value)
    if dtype.startswith(("int", "uint")):
        wrapped = int(value) & ((1 << kind.bits) - 1)
        negative = dtype.startswith("int") and wrapped >> (kind.bits - 1)
        return wrapped - (1 << kind.bits) if negative else wrapped
    if dtype in ("float16", "float32", "float64"):
        return float(np.dtype(dtype).type(value))
    raise HostEvaluationError(f"{dtype}({value})", f"no conversion to {dtype} is known here")


def _truncated_quotient(left: Any, right: Any) -> Any:
    if isinstance(left, float) or isinstance(right, float):
        return left / right
    magnitude = abs(left) // abs(right)
    return magnitude if (left < 0) == (right < 0) else -magnitude


def _truncated_remainder(left: int, right: int) -> int:
    return left - right * int(_truncated_quotient(left, right))


_BINARY: Mapping[str, Callable[[Any, Any], Any]] = MappingProxyType(
    {
        "Add": operator.add,
        "Sub": operator.sub,
        "Mul": operator.mul,
        "Div": _truncated_quotient,
        "Mod": _truncated_remainder,
        "FloorDiv": operator.floordiv,
        "FloorMod": operator.mod,
        "Min": min,
        "Max": max,
        "EQ": operator.eq,
        "NE": operator.ne,
        "LT": operator.lt,
        "LE": operator.le,
        "GT": operator.gt,
        "GE": operator.ge,
        "LShift": operator.lshift,
        "RShift": operator.rshift,
        "BitwiseAnd": operator.and_,
        "BitwiseOr": operator.or_,
        "BitwiseXor": operator.xor,
    }
)


class HostExpressions:
    """Evaluates expressions of one host function under an environment of variables."""

    def __init__(self) -> None:
        self._values: dict[Any, Any] = {}

    def bind(self, variable: Any, value: Any) -> None:
        """Give `variable` (a TVM variable or buffer) a value."""
        self._values[variable] = value

    def evaluate(self, expression: Any) -> Any:
        """Value of `expression`.

        Raises
        ------
        HostEvaluationError
            If the expression reads memory, calls something unknown or has no value yet.
        """
        kind = type(expression).__name__
        if kind in ("IntImm", "FloatImm", "StringImm"):
            return self._literal(expression)
        if isinstance(expression, tvm.ir.Var):
            return self._variable(expression)
        if isinstance(expression, tvm.ir.Call):
            return self._call(expression)
        if kind in _BINARY:
            return self._binary(kind, expression)
        return self._other(kind, expression)

    def _literal(self, expression: Any) -> Any:
        value = expression.value
        return str(value) if isinstance(expression, tvm.ir.StringImm) else value

    def _variable(self, variable: Any) -> Any:
        if variable not in self._values:
            raise HostEvaluationError(str(variable), "the variable has no value at this point")
        return self._values[variable]

    def _binary(self, kind: str, expression: Any) -> Any:
        left, right = self.evaluate(expression.a), self.evaluate(expression.b)
        try:
            value = _BINARY[kind](left, right)
        except (TypeError, ZeroDivisionError) as error:
            raise HostEvaluationError(str(expression), str(error)) from error
        return convert_scalar(value, _dtype(expression))

    def _other(self, kind: str, expression: Any) -> Any:
        if kind == "Cast":
            return convert_scalar(self.evaluate(expression.value), _dtype(expression))
        if kind == "And":
            return self.evaluate(expression.a) and self.evaluate(expression.b)
        if kind == "Or":
            return self.evaluate(expression.a) or self.evaluate(expression.b)
        if kind == "Not":
            return not self.evaluate(expression.a)
        if kind == "Select":
            chosen = self.evaluate(expression.condition)
            return self.evaluate(expression.true_value if chosen else expression.false_value)
        if kind == "Let":
            self.bind(expression.var, self.evaluate(expression.value))
            return self.evaluate(expression.body)
        if kind == "TensorLoad":
            reason = "it reads a buffer, whose contents only a run knows"
            raise HostEvaluationError(str(expression), reason)
        raise HostEvaluationError(str(expression), f"no value is known for {kind}")

    def _call(self, call: Any) -> Any:
        name = operator_name(call)
        if name == "if_then_else":
            condition, then_value, else_value = call.args
            return self.evaluate(then_value if self.evaluate(condition) else else_value)
        if name in ("buffer_data", "likely"):
            return self.evaluate(call.args[0])
        if name == "reinterpret":
            return self._reinterpret(call)
        if name == "isnullptr":
            return self.evaluate(call.args[0]) is None
        if name == "tvm_struct_get":
            return self._struct_get(call)
        if name == "tvm_stack_alloca":
            return AnyStack()
        if name == "TVMBackendFreeWorkspace":
            return _SUCCESS
        raise HostEvaluationError(str(call), f"no value is known for a call of {name}")

    def _reinterpret(self, call: Any) -> Any:
        value = self.evaluate(call.args[0])
        if value is None or isinstance(value, DevicePointer):
            return value
        raise HostEvaluationError(str(call), "only pointers can be reinterpreted here")

    def _struct_get(self, call: Any) -> Any:
        struct = self.evaluate(call.args[0])
        index, kind = (int(argument) for argument in call.args[1:3])
        if isinstance(struct, PackedArguments):
            return struct.member(index, kind)
        if isinstance(struct, TensorArgument) and index == 0:
            return struct.member(kind)
        if isinstance(struct, tuple) and kind == StructField.INT64_ELEMENT:
            return struct[index]
        raise HostEvaluationError(str(call), f"field {kind} of {struct!r} is not known")


def _dtype(expression: Any) -> str:
    return str(expression.ty.dtype)


def operator_name(call: Any) -> str:
    """Last part of the name of a called operator, e.g. `tvm_struct_get`."""
    return str(call.op.name).rpartition(".")[2] if isinstance(call.op, tvm.ir.Op) else str(call.op)
