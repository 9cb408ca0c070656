# SPDX-License-Identifier: Apache-2.0
"""Runs any TVM module on this machine, whatever its target.

CPU targets run through TVM's own runtime. A GPU target runs through TVM's runtime where that has
the device; else OpenCL source runs through pyopencl, and CUDA source on the CPU.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tvm

from .launch_plan import LaunchPlan, named_inputs, plan_launches, runnable
from .opencl import POISON_BYTE, DeviceMissing, OpenCLProgram

_CPU_KINDS = ("llvm", "c")


class Engine(Protocol):
    """Something that holds the tensor parameters of a built function and can launch it."""

    def launch(self, times: int = 1) -> None:
        """Run so many times in a row and wait until all is done."""

    def write(self, name: str, array: np.ndarray) -> None:
        """Replace the contents of one parameter."""

    def read(self, name: str) -> np.ndarray:
        """Contents of one parameter."""


class Prepared:
    """A built function with its parameters on the device; made by `prepare`.

    Attributes
    ----------
    engine : str
        What runs it, e.g. `TVM runtime (llvm)`, `pyopencl on <device>`,
        `CUDA source on the CPU`.
    """

    def __init__(self, engine: str, program: Engine, values: Mapping[str, Any]) -> None:
        self.engine = engine
        self._program = program
        self._values = dict(values)

    def launch(self, times: int = 1) -> None:
        """Run the function and wait for it. All buffers keep what the launch left there.

        Parameters
        ----------
        times : int
            Launches in a row, with one wait at the end: what a launch itself takes then matters
            less, where the device queues launches.
        """
        self._program.launch(times)

    @property
    def can_share(self) -> bool:
        """Whether `share` works here: where TVM's runtime runs the function."""
        return isinstance(self._program, _TVMRuntime)

    def share(self, other: Prepared) -> None:
        """Use the tensors of another function with equal parameters instead of copies.

        Where an array lies in memory can change a time by a tenth, so functions whose times are to
        be compared should read the same ones.

        Raises
        ------
        ValueError
            If TVM's runtime does not run both, or their parameters differ in shape or dtype.
        """
        if not (isinstance(self._program, _TVMRuntime) and isinstance(other._program, _TVMRuntime)):
            raise ValueError(f"{self.engine} and {other.engine} cannot share tensors")
        mine, theirs = (
            [(np.shape(each), np.asarray(each).dtype) for each in prepared._values.values()]
            for prepared in (self, other)
        )
        if mine != theirs:
            raise ValueError(f"parameters {mine} cannot be those of {theirs}")
        self._program.arguments = dict(
            zip(self._program.arguments, other._program.arguments.values(), strict=True)
        )

    def write(self, index: int, array: np.ndarray) -> None:
        """Replace the contents of a tensor parameter.

        Parameters
        ----------
        index : int
            Which parameter, counted in the function's order.
        array : numpy.ndarray
            Of the shape and dtype that `prepare` was given. Not changed.

        Raises
        ------
        ValueError
            If the parameter is a scalar, or shape or dtype differ.
        """
        name, old = list(self._values.items())[index]
        if not isinstance(old, np.ndarray):
            raise ValueError(f"parameter {name!r} is a scalar, fixed by prepare; prepare anew")
        if (array.shape, array.dtype) != (old.shape, old.dtype):
            raise ValueError(
                f"parameter {name!r} is {old.dtype}{list(old.shape)}, "
                f"got {array.dtype}{list(array.shape)}; prepare anew for another shape"
            )
        self._program.write(name, array)

    def read(self) -> list[np.ndarray]:
        """Every parameter as it is now, in order; a scalar as an array without dimensions."""
        return [
            self._program.read(name) if isinstance(value, np.ndarray) else np.asarray(value)
            for name, value in self._values.items()
        ]


def run(
    module: Any,
    inputs: Sequence[np.ndarray | int | float],
    target: Any,
    pipeline: str = "s_tir",
) -> list[np.ndarray]:
    """Build `module`, run it once, and return every parameter as it is afterwards.

    Parameters
    ----------
    module : tvm.IRModule or tvm.tirx.PrimFunc
        One or more PrimFuncs; the entry is `main`, or the only one there is. Not changed.
    inputs : Sequence[numpy.ndarray | int | float]
        In the function's parameter order, outputs included. Not changed.
    target : str, dict or tvm.target.Target
        `llvm`, `c`, `opencl`, `cuda`, or another target whose device TVM can use.
    pipeline : str
        Name of a TVM pipeline.

    Returns
    -------
    list[numpy.ndarray]
        One array per parameter; a scalar as an array without dimensions.

    Raises
    ------
    DeviceMissing
        If nothing on this machine can run the target's code.
    """
    prepared = prepare(module, target, inputs, pipeline)
    prepared.launch()
    return prepared.read()


def prepare(
    module: Any,
    target: Any,
    inputs: Sequence[np.ndarray | int | float],
    pipeline: str = "s_tir",
) -> Prepared:
    """Build `module` once and put copies of `inputs` on the device, for repeated launches.

    Parameters
    ----------
    module, target, inputs, pipeline
        As for `run`.

    Returns
    -------
    Prepared
        Launches, writes and reads.

    Raises
    ------
    DeviceMissing
        If nothing on this machine can run the target's code.
    """
    module, entry = runnable(module)
    target = tvm.target.Target(target)
    values = named_inputs(module[entry], inputs)
    engine, program = _program(module, entry, target, values, pipeline)
    return Prepared(engine, program, values)


def _program(
    module: Any, entry: str, target: Any, values: Mapping[str, Any], pipeline: str
) -> tuple[str, Engine]:
    """The engine for `target` on this machine, and what to call it."""
    kind = str(target.kind.name)
    device = _tvm_device(target)
    if device is not None:
        return f"TVM runtime ({kind})", _TVMRuntime(module, entry, target, device, values, pipeline)
    if kind not in ("opencl", "cuda"):
        raise DeviceMissing(
            f"TVM has no device for target {kind!r} here",
            "use target llvm, c, opencl or cuda, which run on any machine",
        )
    plan = plan_launches(module, list(values.values()), target, pipeline)
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    if kind == "opencl":
        program = OpenCLProgram(plan, arrays)
        return f"pyopencl on {program.device_name}", program
    return "CUDA source on the CPU", _CudaOnCpu(plan, arrays)


def _tvm_device(target: Any) -> Any | None:
    """TVM's device for a target, or None where TVM's runtime has none."""
    kind = str(target.kind.name)
    if kind in _CPU_KINDS:
        return tvm.cpu(0)
    device = tvm.device(kind, 0)
    return device if device.exist else None


class _TVMRuntime:
    """A function built and run by TVM itself."""

    def __init__(
        self,
        module: Any,
        entry: str,
        target: Any,
        device: Any,
        values: Mapping[str, Any],
        pipeline: str,
    ) -> None:
        built = tvm.tirx.build(module, target=target, pipeline=pipeline)
        library = _compiled(built) if str(target.kind.name) == "c" else built
        self._function = library[str(module[entry].attrs["global_symbol"])]
        self._device = device
        self.arguments = {
            name: tvm.runtime.tensor(np.asarray(value, order="C"), device)
            if isinstance(value, np.ndarray)
            else value
            for name, value in values.items()
        }

    def launch(self, times: int = 1) -> None:
        for _ in range(times):
            self._function(*self.arguments.values())
        self._device.sync()

    def write(self, name: str, array: np.ndarray) -> None:
        self.arguments[name].copyfrom(np.asarray(array, order="C"))

    def read(self, name: str) -> np.ndarray:
        return self.arguments[name].numpy()


def _compiled(built: Any) -> Any:
    """Compile a module of C source with the system's compiler and load it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "module.so"
        built.export_library(str(path))
        return tvm.runtime.load_module(str(path))


class _CudaOnCpu:
    """CUDA source compiled and run on the CPU."""

    def __init__(self, plan: LaunchPlan, arrays: Mapping[str, np.ndarray]) -> None:
        self._engine = importlib.import_module("tvm_streamk.testing.cuda_on_cpu")
        self._plan = plan
        self._arrays = {name: np.array(array, order="C") for name, array in arrays.items()}
        for workspace in plan.workspaces:
            self._arrays[workspace.name] = np.full(workspace.num_bytes, POISON_BYTE, np.uint8)

    def launch(self, times: int = 1) -> None:
        for _ in range(times):
            self._engine.run_plan(self._plan, self._arrays)

    def write(self, name: str, array: np.ndarray) -> None:
        self._arrays[name][...] = array

    def read(self, name: str) -> np.ndarray:
        return self._arrays[name].copy()
