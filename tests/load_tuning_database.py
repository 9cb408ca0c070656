# SPDX-License-Identifier: Apache-2.0
"""A process that only loads a tuning database: ``load_tuning_database.py <folder> [package]``.

Run by the tests. With a second argument it imports the package first. What comes out of each of
TVM's ways to apply a database is lowered, saved as JSON into the folder, and run.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.s_tir import meta_schedule
from tvm.tirx import compilation_pipeline

TARGET = {"kind": "llvm", "num-cores": 2}
ROWS, COLUMNS, DEPTH = 15, 7, 60


def arrays() -> list[np.ndarray]:
    """Inputs and an output full of NaN."""
    numbers = np.random.default_rng(0)
    left = numbers.integers(-3, 4, (ROWS, DEPTH)).astype("float32")
    right = numbers.integers(-3, 4, (DEPTH, COLUMNS)).astype("float32")
    return [left, right, np.full((ROWS, COLUMNS), np.nan, "float32")]


def relax_module() -> Any:
    """The product as a model."""
    builder = relax.BlockBuilder()
    left = relax.Var("left", relax.TensorType((ROWS, DEPTH), "float32"))
    right = relax.Var("right", relax.TensorType((DEPTH, COLUMNS), "float32"))
    with builder.function("main", [left, right]):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(relax.op.matmul(left, right)))
        builder.emit_func_output(result)
    return builder.get()


def capture_what_is_built() -> list[Any]:
    """A list that gets every module which TVM's pipeline starts from, from now on."""
    modules: list[Any] = []
    pipelines = compilation_pipeline.PIPELINE_MAP
    base = pipelines["s_tir"]

    @tvm.transform.module_pass(opt_level=0, name="capture")
    def capture(module: Any, _context: Any) -> Any:
        modules.append(module)
        return module

    def factory(**options: Any) -> Any:
        passes, *rest = base(**options)
        return tvm.transform.Sequential([capture, passes]), *rest

    pipelines["s_tir"] = factory
    return modules


def run(function: Any) -> None:
    """Build a function, run it and compare exactly."""
    built = tvm.compile(function, target=tvm.target.Target(TARGET))
    values = arrays()
    tensors = [tvm.runtime.tensor(each) for each in values]
    built(*tensors)
    np.testing.assert_array_equal(tensors[-1].numpy(), values[0] @ values[1])


def run_model(executable: Any) -> None:
    machine = relax.VirtualMachine(executable, tvm.cpu())
    left, right, _ = arrays()
    given = [tvm.runtime.tensor(each) for each in (left, right)]
    np.testing.assert_array_equal(machine["main"](*given).numpy(), left @ right)


def main(folder: Path, package: str | None) -> None:
    """Apply the database in every way and write down what comes out."""
    lower = importlib.import_module(package).LowerStreamK() if package else None
    target = tvm.target.Target(TARGET)
    database = meta_schedule.database.JSONDatabase(work_dir=str(folder))
    (record,) = database.get_all_tuning_records()
    function = record.workload.mod["main"]
    found = {}
    schedule = meta_schedule.tir_integration.compile_tir(database, record.workload.mod, target)
    found["compile_tir"] = schedule.mod
    with target, database:
        applied = relax.transform.MetaScheduleApplyDatabase()(tvm.IRModule({"main": function}))
    found["apply_database"] = applied
    built = capture_what_is_built()
    executable = meta_schedule.relax_integration.compile_relax(
        database, relax_module(), target, params=None
    )
    found["compile_relax"] = next(each for each in built if "matmul" in each.script())
    run_model(executable)
    for name, module in found.items():
        if "main" in [variable.name_hint for variable in module.get_global_vars()]:
            run(module["main"])
        lowered = lower(module) if lower else module
        (folder / f"{name}.json").write_text(tvm.ir.save_json(lowered))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
