# SPDX-License-Identifier: Apache-2.0
"""Workspace that Relax's memory planner sees.

A Stream-K kernel needs global memory for partial sums. A function on its own allocates it inside
itself, once per call. In a Relax module :func:`PlanWorkspace` turns it into one more output of the
``call_tir``, which nobody reads::

    y = R.call_tir(f, (x, w), out_ty=R.Tensor((64, 64)))
    ->
    t = R.call_tir(f, (x, w), out_ty=[R.Tensor((64, 64)), R.Tensor((4, 1024, 1))])
    y = t[0]

The planner then gives one piece of memory to the workspaces of all layers, and to other tensors
when no layer needs it. Nothing is allocated inside a kernel launch, so that the launches can be
captured in a CUDA graph.

The counters of the ``last_arriver`` merge must be zero before a launch, and the kernel leaves them
zero. They become an input: a constant of the module, zero, which all layers with as many workers
share. The virtual machine copies constants to the device when it is set up, so they have an address
that never changes, and no launch is spent on zeroing them. (A virtual machine runs one function at
a time; launches on one stream are in order. Two machines have two copies.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
from tvm import ir, relax, tirx

from tvm_streamk.annotation import (
    ANNOTATION_KEY,
    ARGUMENT,
    COUNTERS,
    LAST_ARRIVER,
    RecordedDecision,
)
from tvm_streamk.errors import InvalidArgument
from tvm_streamk.expressions import Buffer, collect, contains, rebuild_block, static_value
from tvm_streamk.merge_buffers import ARRIVALS_NAME, arrivals_parameter
from tvm_streamk.nest import root_block
from tvm_streamk.pipeline import lower_function, recorded_decision

LIFTED_BUFFERS = ("stream_k_workspace", ARRIVALS_NAME)
"""Names of the buffers in global memory that a merge needs beyond one worker's life."""

CALL_TIR = "relax.call_tir"


@dataclass(frozen=True)
class _Lowered:
    """A function whose workspace its caller provides.

    ``counters`` is the type of one more input, the last, or None; ``workspaces`` are those of the
    outputs after the function's own.
    """

    function: Any
    counters: Buffer | None
    workspaces: tuple[Buffer, ...]


def PlanWorkspace(counters: str = ARGUMENT) -> Any:
    """A module pass that carries out recorded decisions and gives their workspace to the caller.

    Parameters
    ----------
    counters : str
        For ``last_arriver``: ``argument`` passes zeroed counters in, ``prologue`` lets each
        function zero its own in a kernel of its own.

    Returns
    -------
    tvm.transform.Pass
        For a Relax module in which tensor functions are called by ``call_tir``. A function that is
        used in any other way keeps its decision for the build pipeline.

    Raises
    ------
    InvalidArgument
        If ``counters`` is another word.
    """
    if counters not in COUNTERS:
        raise InvalidArgument(f"counters must be one of {', '.join(COUNTERS)}; got {counters!r}.")

    @tvm.transform.module_pass(opt_level=0, name="tvm_streamk.PlanWorkspace")
    def plan_workspace(module: Any, _context: Any) -> Any:
        return _planned(module, counters)

    return plan_workspace


def _planned(module: Any, counters: str) -> Any:
    lowered = {
        variable: _lower(function, counters, num_inputs)
        for variable, function in module.functions.items()
        if isinstance(function, tirx.PrimFunc) and _is_decided(function)
        for num_inputs in [_inputs_of_calls(module, variable)]
        if num_inputs is not None
    }
    if not lowered:
        return module
    variables = {
        str(variable.name_hint): _typed_variable(variable, own.function)
        for variable, own in lowered.items()
    }
    kept = {
        variable: function
        for variable, function in module.functions.items()
        if variable not in lowered
    }
    new = {variables[str(old.name_hint)]: own.function for old, own in lowered.items()}
    changed = tvm.IRModule({**kept, **new}, attrs=module.attrs)
    by_name = {str(old.name_hint): own for old, own in lowered.items()}
    caller = _Caller(changed, by_name, variables)
    for variable, function in kept.items():
        if isinstance(function, relax.Function):
            changed[variable] = caller.visit_expr(function)
    return changed


def _typed_variable(variable: Any, function: Any) -> Any:
    """A variable of the same name with the type of the changed function."""
    return relax.BlockBuilder().add_func(function, str(variable.name_hint))


def _is_decided(function: Any) -> bool:
    return isinstance(recorded_decision(function), RecordedDecision)


def _inputs_of_calls(module: Any, variable: Any) -> int | None:
    """How many inputs every use of a function passes; None where a use is no ``call_tir``."""
    uses = 0
    inputs: list[int] = []
    for function in module.functions.values():
        if not isinstance(function, relax.Function):
            continue
        uses += sum(_same_name(used, variable) for used in collect(function, ir.GlobalVar))
        inputs += [
            len(call.args[1].fields)
            for call in collect(function, ir.Call)
            if _is_call_tir(call) and _same_name(call.args[0], variable)
        ]
    counts = set(inputs)
    return counts.pop() if uses == len(inputs) and len(counts) == 1 else None


def _same_name(used: Any, variable: Any) -> bool:
    return str(used.name_hint) == str(variable.name_hint)


def _is_call_tir(call: Any) -> bool:
    return isinstance(call.op, ir.Op) and call.op.name == CALL_TIR


# -- functions -------------------------------------------------------------------------------------


def _lower(function: Any, counters: str, num_inputs: int) -> _Lowered:
    """Carry out a function's decision and move what it allocates to its parameters."""
    lowered = lower_function(_with_counters(function, counters))
    root = root_block(lowered)
    own = [buffer for buffer in root.alloc_buffers if str(buffer.name) in LIFTED_BUFFERS]
    workspaces = [buffer for buffer in own if _is_static(buffer)]
    kept = [buffer for buffer in root.alloc_buffers if not contains(workspaces, buffer)]
    body = tvm.s_tir.SBlockRealize([], True, rebuild_block(root, alloc_buffers=kept))
    arrivals = arrivals_parameter(lowered)
    given = [] if arrivals is None else [arrivals]
    others = [parameter for parameter in lowered.params if not contains(given, parameter)]
    inputs, outputs = others[:num_inputs], others[num_inputs:]
    parameters = [*inputs, *given, *outputs, *workspaces]
    changed = tirx.PrimFunc(parameters, body, lowered.ret_type, lowered.attrs)
    return _Lowered(changed, arrivals, tuple(workspaces))


def _is_static(buffer: Buffer) -> bool:
    return all(static_value(extent) is not None for extent in buffer.shape)


def _with_counters(function: Any, counters: str) -> Any:
    """The function with its recorded decision about the counters replaced."""
    decision = recorded_decision(function)
    if not isinstance(decision, RecordedDecision) or decision.merge != LAST_ARRIVER:
        return function
    root = root_block(function)
    value = replace(decision, counters=counters).encode()
    annotations = {**dict(root.annotations.items()), ANNOTATION_KEY: value}
    changed = rebuild_block(root, annotations=annotations)
    return function.with_body(tvm.s_tir.SBlockRealize([], True, changed))


# -- calls -----------------------------------------------------------------------------------------


@relax.expr_functor.mutator
class _Caller(relax.PyExprMutator):
    """Rewrites the calls of the lowered functions."""

    def __init__(
        self, module: Any, lowered: Mapping[str, _Lowered], variables: Mapping[str, Any]
    ) -> None:
        super().__init__(module)
        self.lowered = lowered
        self.variables = variables
        self.zeros: dict[int, Any] = {}

    def visit_call_(self, call: Any) -> Any:
        """Pass counters in and take the workspace out, where the callee wants that."""
        call = self.visit_expr_post_order(call)
        if not _is_call_tir(call):
            return call
        name = str(call.args[0].name_hint)
        own = self.lowered.get(name)
        if own is None:
            return call
        arguments = list(call.args[1].fields)
        if own.counters is not None:
            arguments.append(self._zeros(own.counters))
        outputs = _output_types(call)
        types = [*outputs, *(_tensor_type(buffer) for buffer in own.workspaces)]
        changed = relax.call_tir(self.variables[name], relax.Tuple(arguments), types)
        if not own.workspaces:
            return changed
        results = self.builder_.emit(changed)
        kept = [relax.TupleGetItem(results, index) for index in range(len(outputs))]
        return kept[0] if not isinstance(call.ty, relax.TupleType) else relax.Tuple(kept)

    def _zeros(self, counters: Buffer) -> Any:
        extent = static_value(counters.shape[0])
        if extent is None:
            raise TypeError(f"the number of counters, {counters.shape[0]}, is not known")
        if extent not in self.zeros:
            self.zeros[extent] = relax.const(np.zeros(extent, "int32"))
        return self.zeros[extent]


def _output_types(call: Any) -> Sequence[Any]:
    kind = call.ty
    return list(kind.fields) if isinstance(kind, relax.TupleType) else [kind]


def _tensor_type(buffer: Buffer) -> Any:
    return relax.TensorType([int(extent) for extent in buffer.shape], str(buffer.dtype))
