# SPDX-License-Identifier: Apache-2.0
"""Small Relax models with exact inputs, and ways to look at them and to run them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import ir, relax, tirx
from tvm.relax.frontend import nn

from tvm_streamk.dlight_rule import backend_pipeline
from tvm_streamk.testing import integer_inputs, poisoned, run

ENTRY = "main"


class Layers(nn.Module):
    """Products with a bias, one after the other, with relu between them."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        pairs = itertools.pairwise(widths)
        self.layers = nn.ModuleList([nn.Linear(inner, outer) for inner, outer in pairs])

    def main(self, x: Any) -> Any:
        first, *others = self.layers
        x = first(x)
        for layer in others:
            x = layer(nn.op.relu(x))
        return x


def layers(widths: Sequence[int], rows: int | None) -> tuple[Any, list[np.ndarray]]:
    """A model with whole numbers for weights bound to it, and those; None rows are symbolic."""
    x = nn.spec.Tensor(("n" if rows is None else rows, widths[0]), "float32")
    module, parameters = Layers(widths).export_tvm({ENTRY: {"x": x}})
    weights = {
        name: integer_inputs(tuple(map(int, parameter.shape)), seed=seed)
        for seed, (name, parameter) in enumerate(parameters)
    }
    return relax.transform.BindParams(ENTRY, weights)(module), list(weights.values())


def layers_expected(x: np.ndarray, weights: Sequence[np.ndarray]) -> np.ndarray:
    """What numpy makes of it."""
    first, *others = zip(weights[::2], weights[1::2], strict=True)
    x = x @ first[0].T + first[1]
    for weight, bias in others:
        x = np.maximum(x, 0) @ weight.T + bias
    return x


def fused(module: Any, target: Any) -> Any:
    """A module after TVM's own fusion, before any scheduling."""
    steps = backend_pipeline(target).legalize_passes(target)
    steps = [step for step in steps if step.info.name != "ApplyDefaultSchedule"]
    with target:
        return tvm.transform.Sequential(steps)(module)


def tensor_functions(module: Any) -> dict[str, Any]:
    """The tensor functions of a module by name."""
    return {
        str(variable.name_hint): function
        for variable, function in module.functions.items()
        if isinstance(function, tirx.PrimFunc)
    }


def run_model(executable: Any, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """Run a compiled model on the CPU."""
    machine = relax.VirtualMachine(executable, tvm.cpu())
    result = machine[ENTRY](*map(tvm.runtime.tensor, inputs))
    return (result if hasattr(result, "numpy") else result[0]).numpy()


def run_function_by_function(
    module: Any, inputs: Sequence[np.ndarray], target: Any
) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """Interpret a Relax function, running every ``call_tir`` on its own.

    Returns the result, and the constants as they are afterwards, by their number of elements:
    kernels must leave those as they found them.
    """
    function = module[ENTRY]
    values: dict[Any, Any] = dict(zip(function.params, inputs, strict=True))
    constants: dict[int, np.ndarray] = {}

    def value_of(expression: Any) -> Any:
        if isinstance(expression, ir.GenericConst):
            return expression.value.numpy()
        if isinstance(expression, relax.TupleGetItem):
            return value_of(expression.tuple_value)[expression.index]
        if isinstance(expression, relax.Tuple):
            return tuple(value_of(field) for field in expression.fields)
        if isinstance(expression, ir.Call):
            return call(expression)
        return values[expression]

    def call(expression: Any) -> Any:
        assert expression.op.name == "relax.call_tir", expression
        variable, arguments = expression.args[0], expression.args[1].fields
        given = [value_of(argument) for argument in arguments]
        kinds = expression.ty.fields if hasattr(expression.ty, "fields") else [expression.ty]
        outputs = [
            poisoned(tuple(int(extent) for extent in kind.shape), str(kind.dtype)) for kind in kinds
        ]
        after = run(module[variable], [*given, *outputs], target)
        for argument, array in zip(arguments, after, strict=False):
            if isinstance(argument, ir.GenericConst) and str(array.dtype) == "int32":
                constants[array.size] = array
        results = after[len(given) :]
        return tuple(results) if len(results) > 1 else results[0]

    for block in function.body.blocks:
        for binding in block.bindings:
            values[binding.var] = value_of(binding.value)
    return value_of(function.body.body), constants
