# SPDX-License-Identifier: Apache-2.0
"""Operations between thread blocks, neutral in the schedule, given a body per target.

A schedule calls them as external functions, which every TensorIR pass leaves alone. The device pass
:func:`ProvideIntrinsics` then puts the helper functions of the target at hand into the device
source (``pragma_import_c``). So the schedule does not depend on the target, and the same mechanism
serves all of them. TVM's own ``atomic_add`` is not used: on OpenCL it is silently wrong for
float64.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import ir, tirx

from tvm_streamk.errors import MergeNotSupported
from tvm_streamk.expressions import Buffer, Expression, Statement, collect

_PREFIX = "tvm_streamk_"
_ATOMIC_ADD = _PREFIX + "atomic_add_"

CUDA, OPENCL, METAL = "cuda", "opencl", "metal"

_CUDA_ATOMIC = """\
static __device__ __forceinline__ {c} tvm_streamk_atomic_add_{dtype}({c}* address, {c} value) {{
  return atomicAdd(address, value);
}}
"""

# OpenCL 1.2 has integer atomics only: compare and exchange the bits until nobody was faster.
_OPENCL_ATOMIC_FLOAT = """\
{extension}{c} tvm_streamk_atomic_add_{dtype}(volatile __global {c}* address, {c} value) {{
  union {{ {bits} bits; {c} number; }} seen, wanted;
  seen.number = *address;
  for (;;) {{
    const {bits} expected = seen.bits;
    wanted.number = seen.number + value;
    seen.bits = {exchange}((volatile __global {bits}*)address, expected, wanted.bits);
    if (seen.bits == expected) return seen.number;
  }}
}}
"""
_OPENCL_ATOMIC_INT = """\
int tvm_streamk_atomic_add_int32(volatile __global int* address, int value) {
  return atomic_add(address, value);
}
"""
_CUDA_FENCE = """\
static __device__ __forceinline__ int tvm_streamk_device_fence_int32() {
  __threadfence();
  return 0;
}
"""
_OPENCL_FENCE = """\
int tvm_streamk_device_fence_int32(void) {
  mem_fence(CLK_GLOBAL_MEM_FENCE);
  return 0;
}
"""
_METAL_ATOMIC = """\
inline {c} tvm_streamk_atomic_add_{dtype}(device {c}* address, {c} value) {{
  return atomic_fetch_add_explicit((device atomic_{c}*)address, value, memory_order_relaxed);
}}
"""

_HELPERS: dict[str, dict[str, str]] = {
    CUDA: {
        "atomic_add_float32": _CUDA_ATOMIC.format(c="float", dtype="float32"),
        "atomic_add_float64": _CUDA_ATOMIC.format(c="double", dtype="float64"),
        "atomic_add_int32": _CUDA_ATOMIC.format(c="int", dtype="int32"),
        "device_fence_int32": _CUDA_FENCE,
    },
    OPENCL: {
        "atomic_add_float32": _OPENCL_ATOMIC_FLOAT.format(
            c="float", dtype="float32", bits="uint", exchange="atomic_cmpxchg", extension=""
        ),
        "atomic_add_float64": _OPENCL_ATOMIC_FLOAT.format(
            c="double",
            dtype="float64",
            bits="ulong",
            exchange="atom_cmpxchg",
            extension="#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable\n",
        ),
        "atomic_add_int32": _OPENCL_ATOMIC_INT,
        "device_fence_int32": _OPENCL_FENCE,
    },
    METAL: {
        "atomic_add_float32": _METAL_ATOMIC.format(c="float", dtype="float32"),
        "atomic_add_int32": _METAL_ATOMIC.format(c="int", dtype="int32"),
    },
}

ATOMIC_DTYPES = ("float32", "float64", "int32")
"""Types with an atomic add that does not round per peer; 16-bit floats would."""


def atomic_add(buffer: Buffer, indices: list[Expression], value: Expression) -> Expression:
    """Add ``value`` to an element in global memory atomically; gives the element's old value."""
    dtype = str(buffer.dtype)
    address = tirx.address_of(buffer[tuple(indices)])
    return tirx.call_extern(dtype, _ATOMIC_ADD + dtype, address, value)


def device_fence() -> Statement:
    """Order this thread's accesses to global memory before and after, for the whole device."""
    return tirx.Evaluate(tirx.call_extern("int32", _PREFIX + "device_fence_int32"))


def block_barrier() -> Statement:
    """Wait for all threads of the block; orders shared memory only."""
    return tirx.Evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", ir.StringImm("shared")))


def supports(target_kind: str, operation: str) -> bool:
    """Whether a target has a helper for an operation such as ``atomic_add_float64``."""
    return operation in _HELPERS.get(target_kind, {})


@tvm.transform.module_pass(opt_level=0, name="tvm_streamk.ProvideIntrinsics")
def ProvideIntrinsics(module: Any, _context: Any) -> Any:
    """Give the device functions that call our operations the helpers of their target."""
    changed = {
        variable: with_helpers(function)
        for variable, function in module.functions.items()
        if isinstance(function, tirx.PrimFunc) and _operations(function.body)
    }
    if not changed:
        return module
    return tvm.IRModule({**dict(module.functions.items()), **changed}, attrs=module.attrs)


def with_helpers(function: Any) -> Any:
    """One device function with the helper source that it needs."""
    kind = str(function.attrs["target"].kind.name)
    body = function.body
    for operation in _operations(function.body):
        if not supports(kind, operation):
            raise MergeNotSupported(
                f"target {kind!r} has no {operation}.",
                hint='merge="two_phase" works on every target.',
            )
        source = ir.StringImm(_guarded(operation, _HELPERS[kind][operation]))
        body = tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_c", source, body)
    return function.with_body(body)


def _guarded(operation: str, source: str) -> str:
    """The source behind a guard: several kernels of one module may bring the same helper."""
    guard = f"TVM_STREAMK_{operation.upper()}"
    return f"#ifndef {guard}\n#define {guard}\n{source}#endif\n"


def _operations(body: Statement) -> list[str]:
    """The names of our operations called in ``body``, without prefix, each once."""
    names: dict[str, None] = {}
    for call in collect(body, ir.Call):
        if isinstance(call.op, ir.Op) and call.op.name == "tirx.call_extern":
            name = str(getattr(call.args[0], "value", ""))
            if name.startswith(_PREFIX):
                names[name.removeprefix(_PREFIX)] = None
    return list(names)
