# SPDX-License-Identifier: Apache-2.0
"""The launches read from lowered host functions, compared with what the functions say."""

from __future__ import annotations

import numpy as np
import pytest
import sample_kernels
import tvm
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.tirx import compilation_pipeline

from tvm_streamk.testing.host_expressions import (
    HostEvaluationError,
    HostExpressions,
    convert_scalar,
)
from tvm_streamk.testing.host_function import ArgumentMismatch
from tvm_streamk.testing.launch_plan import (
    KernelLaunch,
    LaunchPlanError,
    Workspace,
    plan_launches,
)

DEVICE_TARGETS = ["opencl", {"kind": "cuda", "arch": "sm_80"}]


def zeros(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.zeros(shape, dtype)


@pytest.mark.parametrize("target", DEVICE_TARGETS, ids=["opencl", "cuda"])
def test_elementwise_has_one_launch(target):
    plan = plan_launches(sample_kernels.add_one, [zeros(64), zeros(64)], target)
    assert plan.parameters == ("A", "B")
    assert plan.parameter_dtypes == ("float32", "float32")
    assert plan.workspaces == ()
    assert plan.launches == (
        KernelLaunch("add_one_kernel", ("A", "B"), (4, 1, 1), (16, 1, 1), 0, ("float32",) * 2),
    )
    assert "void add_one_kernel" in plan.source or "add_one_kernel(float*" in plan.source


def test_arguments_follow_the_kernel_and_parameters_the_function():
    module = sample_kernels.tiled_matmul(48, 32, 24)
    plan = plan_launches(module, [zeros(48, 32), zeros(48, 24), zeros(24, 32)], "opencl")
    assert plan.parameters == ("C", "A", "B")
    (launch,) = plan.launches
    assert launch.arguments == ("A", "B", "C")
    assert (launch.grid, launch.block) == ((2, 3, 1), (4, 4, 1))


def test_workspaces_and_scalars_of_several_kernels():
    arrays = [zeros(5, 16), zeros(5, 16)]
    plan = plan_launches(sample_kernels.scale_through_workspace, [*arrays, 1.5, 7], "opencl")
    assert plan.parameters == ("A", "B", "alpha", "offset")
    assert plan.parameter_dtypes == ("float32", "float32", "float32", "int64")
    assert set(plan.workspaces) == {
        Workspace("scaled", "float32", 5 * 16 * 4),
        Workspace("counters", "int32", 4 * 4),
    }
    clear, scale, add = plan.launches
    assert clear.arguments == ("counters",)
    assert dict(zip(scale.arguments, scale.argument_dtypes, strict=True)) == {
        "A": "float32",
        "scaled": "float32",
        1.5: "float32",
        5: "int32",
    }
    assert set(add.arguments) == {"B", "counters", "scaled", 7, 5}
    assert add.argument_dtypes[add.arguments.index(7)] == "int64"


@pytest.mark.parametrize("rows", [1, 3, 1000])
def test_symbolic_extent_sets_grid_and_workspace(rows):
    arrays = [zeros(rows, 16), zeros(rows, 16)]
    plan = plan_launches(sample_kernels.scale_through_workspace, [*arrays, 1.0, 0], "opencl")
    assert [launch.grid for launch in plan.launches] == [(1, 1, 1), (rows, 1, 1), (rows, 1, 1)]
    assert {w.name: w.num_bytes for w in plan.workspaces}["scaled"] == rows * 16 * 4


def test_empty_grids_are_left_out():
    arrays = [zeros(0, 16), zeros(0, 16)]
    plan = plan_launches(sample_kernels.scale_through_workspace, [*arrays, 1.0, 0], "opencl")
    assert [launch.arguments for launch in plan.launches] == [("counters",)]


@pytest.mark.parametrize(("flag", "branch"), [(1, 2), (2, 1)])
def test_loops_and_branches_on_the_host_are_followed(flag, branch):
    inputs = [zeros(4, 16, dtype="int32"), flag]
    plan = plan_launches(sample_kernels.loop_and_branch_on_host, inputs, "opencl")
    kernel = "loop_and_branch_on_host_kernel"
    assert [(launch.kernel, launch.arguments) for launch in plan.launches] == [
        (kernel, ("A", 0)),
        (kernel, ("A", 1)),
        (kernel, ("A", 2)),
        (f"{kernel}_{branch}", ("A",)),
    ]


def test_dynamic_shared_memory_is_counted():
    plan = plan_launches(
        sample_kernels.reverse_dynamic_shared, [zeros(64), zeros(64)], {"kind": "cuda"}
    )
    (launch,) = plan.launches
    assert launch.dynamic_shared_bytes == 64 * 4
    assert (launch.grid, launch.block) == ((1, 1, 1), (64, 1, 1))


def test_equal_names_are_told_apart():
    left = te.placeholder((16,), name="A")
    right = te.placeholder((16,), name="A")
    middle = te.compute((16,), lambda i: left[i] - right[i], name="A")
    output = te.compute((16,), lambda i: middle[i] * 2, name="D")
    schedule = Schedule(te.create_prim_func([left, right, output]))
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        schedule.bind(schedule.get_loops(block)[0], "threadIdx.x")
    plan = plan_launches(schedule.mod, [zeros(16), zeros(16), zeros(16)], "opencl")
    assert plan.parameters == ("A", "A_1", "D")
    assert [w.name for w in plan.workspaces] == ["A_2"]
    first, second = plan.launches
    assert sorted(first.arguments) == ["A", "A_1", "A_2"]
    assert sorted(second.arguments) == ["A_2", "D"]


def test_source_is_what_the_pipelines_device_passes_make(monkeypatch):
    original = compilation_pipeline.PIPELINE_MAP["s_tir"]

    def with_barrier_at_the_end():
        passes, finalize_host, finalize_device = original()
        barrier = tirx.Evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared"))

        @tvm.transform.module_pass(opt_level=0, name="AddBarrier")
        def add_barrier(module, _context):
            return tvm.IRModule(
                {
                    name: function.with_body(tirx.SeqStmt([function.body, barrier]))
                    for name, function in module.functions.items()
                }
            )

        return (
            passes,
            finalize_host,
            lambda: tvm.transform.Sequential([add_barrier, finalize_device()]),
        )

    inputs = [zeros(64), zeros(64)]
    before = plan_launches(sample_kernels.add_one, inputs, "opencl")
    monkeypatch.setitem(compilation_pipeline.PIPELINE_MAP, "s_tir", with_barrier_at_the_end)
    after = plan_launches(sample_kernels.add_one, inputs, "opencl")
    assert "barrier(" not in before.source
    assert "barrier(" in after.source
    assert after.launches == before.launches


def test_module_and_inputs_are_unchanged():
    module = sample_kernels.tiled_matmul(16, 16, 16)
    text = module.script()
    inputs = [np.full((16, 16), 2.0, "float32") for _ in range(3)]
    plan_launches(module, inputs, "opencl")
    assert module.script() == text
    assert all((array == 2.0).all() for array in inputs)


def test_entry_without_symbol_and_with_another_name():
    function = sample_kernels.add_one
    inputs = [zeros(64), zeros(64)]
    private = tvm.IRModule({"any": function.without_attr("global_symbol")})
    assert plan_launches(private, inputs, "opencl").launches[0].grid == (4, 1, 1)
    both = tvm.IRModule({"main": function, "other": sample_kernels.doubled("float32")})
    assert plan_launches(both, inputs, "opencl").launches[0].arguments == ("A", "B")


def test_no_entry_is_refused():
    functions = {"one": sample_kernels.add_one, "two": sample_kernels.doubled("float32")}
    with pytest.raises(LaunchPlanError, match=r"\['one', 'two'\]; name one of them 'main'"):
        plan_launches(tvm.IRModule(functions), [], "opencl")


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([zeros(64)], r"2 inputs needed, \['A', 'B'\], but 1 given"),
        ([zeros(64), "text"], "input for 'B' is a str"),
    ],
)
def test_wrong_inputs_are_refused(inputs, message):
    with pytest.raises(LaunchPlanError, match=message):
        plan_launches(sample_kernels.add_one, inputs, "opencl")


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (zeros(63), r"ValueError: Invalid B.shape\[0\] on argument #1"),
        (zeros(64, dtype="float64"), r"TypeError: Mismatched B.dtype on argument #1"),
        (zeros(8, 8), r"ValueError: Mismatched B.ndim on argument #1"),
        (1.5, "TypeError: Mismatched type on argument #1"),
    ],
    ids=["shape", "dtype", "ndim", "scalar"],
)
def test_the_modules_own_checks_are_made(second, message):
    with pytest.raises(ArgumentMismatch, match=message):
        plan_launches(sample_kernels.add_one, [zeros(64), second], "opencl")


def test_symbolic_shapes_must_agree():
    inputs = [zeros(4, 16), zeros(5, 16), 1.0, 0]
    with pytest.raises(ArgumentMismatch, match=r"Mismatched B.shape\[0\]"):
        plan_launches(sample_kernels.scale_through_workspace, inputs, "opencl")


def test_a_branch_on_memory_cannot_be_known():
    inputs = [zeros(16, dtype="int32"), zeros(1, dtype="int32")]
    with pytest.raises(HostEvaluationError, match=r"`flag\[0\]`.*only a run knows"):
        plan_launches(sample_kernels.branch_on_memory, inputs, "opencl")


def test_a_cpu_target_has_no_kernels():
    unbound = te.create_prim_func(
        [a := te.placeholder((8,), name="A"), te.compute((8,), lambda i: a[i] + 1, name="B")]
    )
    with pytest.raises(LaunchPlanError, match="kernels for 0 device targets"):
        plan_launches(unbound, [zeros(8), zeros(8)], "llvm")


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (2**31, "int32", -(2**31)),
        (-1, "uint8", 255),
        (2.9, "int32", 2),
        (-2.9, "int32", -2),
        (0.1, "float32", float(np.float32(0.1))),
        (2, "bool", True),
    ],
)
def test_scalars_convert_as_in_c(value, dtype, expected):
    converted = convert_scalar(value, dtype)
    assert converted == expected
    assert type(converted) is type(expected)


@pytest.mark.parametrize("left", [-7, 7])
@pytest.mark.parametrize("right", [-2, 2])
def test_division_rounds_as_each_operator_says(left, right):
    n = tirx.Var("n", "int32")
    expressions = HostExpressions()
    expressions.bind(n, left)
    assert expressions.evaluate(tirx.Div(n, right)) == int(left / right)
    assert expressions.evaluate(tirx.Mod(n, right)) == left - right * int(left / right)
    assert expressions.evaluate(tirx.FloorDiv(n, right)) == left // right
    assert expressions.evaluate(tirx.FloorMod(n, right)) == left % right


def test_an_unbound_variable_is_named():
    with pytest.raises(HostEvaluationError, match=r"`n`.*no value at this point"):
        HostExpressions().evaluate(tirx.Var("n", "int32") + 1)
