# SPDX-License-Identifier: Apache-2.0
"""What has to be launched to run a TVM module, found without a device runtime.

TVM's wheel generates OpenCL C and CUDA C++ but cannot run either on a machine without the
device. `plan_launches` lowers a module through TVM's own pipeline, keeps the device source that
comes out, and follows the lowered host function to find the workspaces and, in order, the
kernels with their arguments, grids and blocks. Any engine that compiles the source can run that.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import tvm
from tvm import tirx

from .host_expressions import DevicePointer, HostEvaluationError, PackedArguments, TensorArgument
from .host_function import HostFunction, KernelCall, unique_name

_ENTRY = "main"
_SYMBOL = "global_symbol"
_SOURCE_FORMATS: Mapping[str, str] = MappingProxyType({"opencl": "cl", "cuda": "cuda"})
_DYNAMIC_SHARED_TAG = "tirx.use_dyn_shared_memory"
_VALUELESS_TAGS = ("tirx.use_cooperative_launch", "tirx.use_programtic_dependent_launch")
_AXES = "xyz"


class LaunchPlanError(ValueError):
    """The module cannot be turned into a list of kernel launches."""


@dataclass(frozen=True)
class Workspace:
    """A global buffer that the function allocates for itself; TVM never zeroes it.

    Attributes
    ----------
    name : str
        Unique among parameters and workspaces.
    dtype : str
        TVM's name of the element type.
    num_bytes : int
        Size in bytes.
    """

    name: str
    dtype: str
    num_bytes: int


@dataclass(frozen=True)
class KernelLaunch:
    """One launch of one kernel.

    Attributes
    ----------
    kernel : str
        Name of the kernel in the source.
    arguments : tuple[str | int | float, ...]
        In the order of the kernel's parameters: a buffer by its name (of a parameter or a
        workspace), a scalar by its value.
    grid, block : tuple[int, int, int]
        Blocks per grid and threads per block, in x, y, z.
    dynamic_shared_bytes : int
        Bytes of dynamically sized shared memory.
    argument_dtypes : tuple[str, ...]
        TVM's dtype of each argument; for a buffer that of its elements in the kernel.
    """

    kernel: str
    arguments: tuple[str | int | float, ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared_bytes: int
    argument_dtypes: tuple[str, ...]


@dataclass(frozen=True)
class LaunchPlan:
    """Everything needed to run a function on given shapes and scalars.

    Attributes
    ----------
    source : str
        Device source of all kernels, as TVM's pipeline makes it.
    parameters : tuple[str, ...]
        Names of the function's parameters, in order and unique.
    workspaces : tuple[Workspace, ...]
        Buffers to allocate, with unknown contents.
    launches : tuple[KernelLaunch, ...]
        In the order in which the host function makes them.
    parameter_dtypes : tuple[str, ...]
        Dtype of each parameter, for tensors that of the elements.
    """

    source: str
    parameters: tuple[str, ...]
    workspaces: tuple[Workspace, ...]
    launches: tuple[KernelLaunch, ...]
    parameter_dtypes: tuple[str, ...]


@dataclass(frozen=True)
class _Kernel:
    dtypes: tuple[str, ...]
    launch_tags: tuple[str, ...]


def plan_launches(
    module: Any,
    inputs: Sequence[np.ndarray | int | float],
    target: Any,
    pipeline: str = "s_tir",
) -> LaunchPlan:
    """Lower `module` for a device and find the launches that run it on `inputs`.

    Parameters
    ----------
    module : tvm.IRModule or tvm.tirx.PrimFunc
        One or more PrimFuncs; the entry is `main`, or the only one there is. Not changed.
    inputs : Sequence[numpy.ndarray | int | float]
        One per parameter of the entry: arrays (only shape and dtype are read) and numbers.
        Symbolic shapes take their values from here.
    target : str, dict or tvm.target.Target
        A device target, `opencl` or `cuda`.
    pipeline : str
        Name of a TVM pipeline, looked up now.

    Returns
    -------
    LaunchPlan
        Source and launches; launches with an empty grid are left out.

    Raises
    ------
    LaunchPlanError
        If there is no entry, no kernel, or the target has no source form known here.
    ArgumentMismatch
        If the module's own checks refuse `inputs`.
    HostEvaluationError
        If the host function depends on something that only a run can tell.
    """
    module, entry = runnable(module)
    target = tvm.target.Target(target)
    host, device = _lower(module, target, pipeline)
    values = named_inputs(module[entry], inputs)
    parameters = tuple(values)
    device_type = int(target.get_target_device_type())
    arguments = PackedArguments(
        tuple(_argument(name, value, device_type) for name, value in values.items())
    )
    kernels = {_symbol(name, function): _kernel(function) for name, function in _items(device)}
    function = HostFunction(host[entry], frozenset(kernels), frozenset(parameters))
    function.run(arguments)
    launches = (_launch(call, kernels[call.kernel]) for call in function.calls)
    return LaunchPlan(
        source=_source(device, target),
        parameters=parameters,
        parameter_dtypes=tuple(_dtype_of(parameter) for parameter in module[entry].params),
        workspaces=tuple(
            Workspace(name, function.workspace_dtypes[name], num_bytes)
            for name, num_bytes in function.workspace_bytes.items()
        ),
        launches=tuple(launch for launch in launches if 0 not in launch.grid),
    )


def runnable(module: Any) -> tuple[Any, str]:
    """The module to build and the name of its entry: `main`, or the only PrimFunc.

    A PrimFunc becomes a module, and an entry without a global symbol gets its name as symbol,
    since TVM makes no callable host function without one. `module` itself is not changed.

    Raises
    ------
    LaunchPlanError
        If there is no entry.
    """
    if isinstance(module, tirx.PrimFunc):
        symbol = module.attrs.get(_SYMBOL, _ENTRY)
        module = tvm.IRModule({str(symbol): module})
    functions = {name: f for name, f in _items(module) if isinstance(f, tirx.PrimFunc)}
    entry = _ENTRY if _ENTRY in functions or len(functions) != 1 else next(iter(functions))
    if entry not in functions:
        raise LaunchPlanError(
            f"no entry function: the module's PrimFuncs are {sorted(functions)}; "
            f"name one of them {_ENTRY!r} or leave only one"
        )
    if _SYMBOL not in functions[entry].attrs:
        public = functions[entry].with_attr(_SYMBOL, entry)
        module = tvm.IRModule({**module.functions, module.get_global_var(entry): public})
    return module, entry


def named_inputs(
    function: Any, inputs: Sequence[np.ndarray | int | float]
) -> dict[str, np.ndarray | int | float | bool]:
    """Inputs by the names of a PrimFunc's parameters, in order.

    Names that occur twice are told apart by a number at the end; NumPy scalars become Python's.

    Raises
    ------
    LaunchPlanError
        If there are too few or too many, or one is neither an array nor a number.
    """
    names: list[str] = []
    for parameter in function.params:
        names.append(unique_name(str(parameter.name), set(names)))
    if len(inputs) != len(names):
        raise LaunchPlanError(f"{len(names)} inputs needed, {names}, but {len(inputs)} given")
    values = (value.item() if isinstance(value, np.generic) else value for value in inputs)
    named = dict(zip(names, values, strict=True))
    for name, value in named.items():
        if not isinstance(value, np.ndarray | bool | int | float):
            raise LaunchPlanError(
                f"input for {name!r} is a {type(value).__name__}; give a numpy array or a number"
            )
    return named


def _lower(module: Any, target: Any, pipeline: str) -> tuple[Any, Any]:
    """Host module and device module, as `tvm.tirx.build` makes them before code generation."""
    host_kind = "llvm" if tvm.runtime.enabled("llvm") else "c"
    bound = target.with_host(target.host or tvm.target.Target(host_kind))
    passes, finalize_host, finalize_device = tirx.compilation_pipeline.get_tir_pipeline(pipeline)
    lowered = passes(tirx.transform.BindTarget(bound)(module))
    # `tvm.tirx.build` is the function of that name, which hides the module that has the split.
    build_module = importlib.import_module("tvm.tirx.build")
    host, devices = build_module.split_host_device_mods(lowered)
    if len(devices) != 1:
        raise LaunchPlanError(
            f"the module has kernels for {len(devices)} device targets, one is needed; "
            f"is every loop nest bound to threads, for target {target.kind.name!r}?"
        )
    (device,) = devices.values()
    return finalize_host()(host), finalize_device()(device)


def _source(device: Any, target: Any) -> str:
    kind = str(target.kind.name)
    if kind not in _SOURCE_FORMATS:
        raise LaunchPlanError(
            f"target {kind!r} has no source form known here; use one of {sorted(_SOURCE_FORMATS)}"
        )
    built = tvm.get_global_func(f"target.build.{kind}")(device, target)
    return str(built.inspect_source(_SOURCE_FORMATS[kind]))


def _argument(
    name: str, value: np.ndarray | int | float | bool, device_type: int
) -> TensorArgument | int | float | bool:
    if isinstance(value, np.ndarray):
        return TensorArgument(name, value.shape, str(value.dtype), device_type)
    return value


def _items(module: Any) -> Iterator[tuple[str, Any]]:
    return ((str(variable.name_hint), function) for variable, function in module.functions.items())


def _symbol(name: str, function: Any) -> str:
    return str(function.attrs.get(_SYMBOL, name))


def _kernel(function: Any) -> _Kernel:
    tags = function.attrs.get("tirx.kernel_launch_params", ())
    return _Kernel(
        dtypes=tuple(_dtype_of(parameter) for parameter in function.params),
        launch_tags=tuple(str(tag) for tag in tags if str(tag) not in _VALUELESS_TAGS),
    )


def _dtype_of(parameter: Any) -> str:
    """Dtype of a scalar parameter; of the elements, of a buffer or a pointer."""
    kind = parameter.ty
    if isinstance(kind, tvm.ir.PointerType):
        kind = kind.element_type
    return str(kind.dtype.dtype if isinstance(kind, tirx.BufferType) else kind.dtype)


def _launch(call: KernelCall, kernel: _Kernel) -> KernelLaunch:
    count = len(kernel.dtypes)
    sizes = dict(zip(kernel.launch_tags, call.values[count:], strict=True))
    dynamic_shared_bytes = sizes.pop(_DYNAMIC_SHARED_TAG, 0)
    grid, block = (
        tuple(sizes.pop(f"{index}.{axis}", 1) for axis in _AXES)
        for index in ("blockIdx", "threadIdx")
    )
    if sizes:
        raise LaunchPlanError(
            f"kernel {call.kernel!r} has unknown launch parameters {sorted(sizes)}"
        )
    arguments = tuple(_kernel_argument(value, call.kernel) for value in call.values[:count])
    return KernelLaunch(call.kernel, arguments, grid, block, dynamic_shared_bytes, kernel.dtypes)


def _kernel_argument(value: Any, kernel: str) -> str | int | float:
    if isinstance(value, DevicePointer):
        return value.name
    if isinstance(value, int | float):
        return value
    raise HostEvaluationError(kernel, f"its argument {value!r} is neither a buffer nor a number")
