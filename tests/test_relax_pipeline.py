# SPDX-License-Identifier: Apache-2.0
"""Whole models: the pipeline, the workspace in the memory plan, and the report."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from relax_models import (
    ENTRY,
    fused,
    layers,
    layers_expected,
    run_function_by_function,
    run_model,
    tensor_functions,
)
from tvm import ir, relax
from tvm.s_tir import dlight, meta_schedule
from tvm.s_tir.dlight.base import ScheduleRule

import tvm_streamk
from tvm_streamk.dlight_rule import backend_pipeline, default_rules
from tvm_streamk.errors import InvalidArgument
from tvm_streamk.expressions import collect
from tvm_streamk.nest import root_block
from tvm_streamk.relax_pipeline import ScheduleFunctions, relax_pipeline
from tvm_streamk.relax_workspace import PlanWorkspace
from tvm_streamk.report import report
from tvm_streamk.testing import integer_inputs

LLVM = tvm.target.Target("llvm")
OPENCL = tvm.target.Target("opencl")
CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_80"})
WIDTHS = (1200, 528, 40)
WORKERS = 4
WORKSPACE = "stream_k_workspace"
ARRIVALS = "stream_k_arrivals"


def planned(module: Any, target: Any, counters: str = "argument", **options: Any) -> Any:
    """A model after our own passes, before TVM lowers its calls and plans its memory."""
    steps = [ScheduleFunctions(default_rules(target, **options)), PlanWorkspace(counters)]
    with target:
        return tvm.transform.Sequential(steps)(fused(module, target))


def call_names(module: Any) -> list[str]:
    """The tensor functions that the entry calls, in their order."""
    calls = [call for call in collect(module[ENTRY], ir.Call) if "call_tir" in str(call.op)]
    return [str(call.args[0].name_hint) for call in calls]


def parameter_names(function: Any) -> list[str]:
    return [str(parameter.name) for parameter in function.params]


@pytest.fixture(scope="module")
def symbolic_model():
    return layers(WIDTHS, rows=None)


@pytest.fixture(scope="module")
def model():
    return layers(WIDTHS, rows=20)


# -- right on the CPU ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled_for_any_row_count(symbolic_model):
    pipeline = relax_pipeline(LLVM, num_sms=WORKERS)
    lowered = pipeline(symbolic_model[0])
    assert len(report(lowered).streamed) == 2
    return tvm.compile(lowered, LLVM, relax_pipeline=None)


@pytest.mark.parametrize("rows", [0, 1, 20, 65, 200])
def test_one_compilation_serves_every_number_of_rows(
    symbolic_model, compiled_for_any_row_count, rows
):
    x = integer_inputs((rows, WIDTHS[0]), seed=5)
    expected = layers_expected(x, symbolic_model[1])
    np.testing.assert_array_equal(run_model(compiled_for_any_row_count, [x]), expected)


def test_constant_shapes_by_the_name_of_the_pipeline(model):
    module, weights = model
    target = tvm.target.Target({"kind": "llvm", "num-cores": 5})
    executable = tvm.compile(module, target, relax_pipeline="stream_k")
    x = integer_inputs((20, WIDTHS[0]), seed=5)
    np.testing.assert_array_equal(run_model(executable, [x]), layers_expected(x, weights))


def test_target_may_be_text_or_left_to_the_context(model):
    with LLVM:
        by_context = relax_pipeline(num_sms=WORKERS)(model[0])
    tvm.ir.assert_structural_equal(by_context, relax_pipeline("llvm", num_sms=WORKERS)(model[0]))


def test_a_function_of_the_package_is_the_pipeline():
    assert tvm_streamk.relax_pipeline is relax_pipeline
    assert relax.pipeline.PIPELINE_MAP["stream_k"] is relax_pipeline


# -- what is left alone ----------------------------------------------------------------------------


@pytest.mark.parametrize("target", [LLVM, CUDA, OPENCL], ids=lambda target: target.kind.name)
def test_functions_that_do_not_stream_are_those_of_the_plain_pipeline(target):
    module = relax.transform.Normalize()(attention_like())
    plain = tensor_functions(relax.get_default_pipeline(target)(module))
    ours = relax_pipeline(target, num_sms=WORKERS, decomposition="stream_k")(module)
    after, streamed = tensor_functions(ours), report(ours).streamed
    assert streamed
    rescheduled = {name for name in after if report(ours)[name].decision == "data_parallel"}
    kept = set(plain) - set(streamed) - (rescheduled if target is LLVM else set())
    assert kept
    for name in kept:
        assert after[name].script() == plain[name].script(), name


def attention_like() -> Any:
    """A product, a softmax, a mean and an element-wise function that cannot be fused with it."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((64, 640), "float32"))
    weight = relax.Var("weight", relax.TensorType((640, 64), "float32"))
    with builder.function(ENTRY, [x, weight]):
        with builder.dataflow():
            scores = builder.emit(relax.op.nn.softmax(builder.emit(relax.op.matmul(x, weight))))
            middle = builder.emit(relax.op.mean(scores, axis=[0]))
            result = builder.emit_output(builder.emit(relax.op.exp(middle)))
        builder.emit_func_output(result)
    return builder.get()


# -- workspace -------------------------------------------------------------------------------------


def test_workspace_is_an_output_that_nobody_reads(model):
    module = planned(model[0], LLVM, num_sms=WORKERS, decomposition="stream_k")
    streamed = report(module).streamed
    assert len(streamed) == 2
    for name in streamed:
        function = module[name]
        assert parameter_names(function)[-1] == WORKSPACE
        allocated = [str(buffer.name) for buffer in root_block(function).alloc_buffers]
        assert WORKSPACE not in allocated
    text = module[ENTRY].script()
    assert text.count("out_ty=[") == 2
    relax.analysis.well_formed(module)


def test_two_layers_share_the_storage_of_their_workspaces(model):
    """The planner sees them: fewer pieces of storage than tensors, and none in the functions."""
    steps = backend_pipeline(LLVM).dataflow_lower_passes(LLVM)
    with LLVM:
        module = tvm.transform.Sequential([*steps, relax.transform.StaticPlanBlockMemory()])(
            planned(model[0], LLVM, num_sms=WORKERS, decomposition="stream_k")
        )
    text = module[ENTRY].script()
    tensors, storages = text.count("alloc_tensor("), text.count("alloc_storage(")
    assert tensors == 4
    assert storages < tensors
    shapes = [tuple(map(int, parameter.shape)) for parameter in workspaces(module)]
    for shape in shapes:
        assert f"R.shape([{', '.join(map(str, shape))}])" in text


def workspaces(module: Any) -> list[Any]:
    """The parameters for workspace of all functions."""
    return [
        parameter
        for function in tensor_functions(module).values()
        for parameter in function.params
        if str(parameter.name) == WORKSPACE
    ]


def test_counters_are_one_constant_that_layers_share(model):
    module = planned(model[0], OPENCL, num_sms=WORKERS, decomposition="stream_k")
    constants = [
        constant
        for constant in collect(module[ENTRY], ir.GenericConst)
        if str(constant.value.dtype) == "int32"
    ]
    assert len(constants) == 2
    assert constants[0].same_as(constants[1])
    np.testing.assert_array_equal(constants[0].value.numpy(), np.zeros(WORKERS, "int32"))
    for name in report(module).streamed:
        names = parameter_names(module[name])
        # Inputs, counters, output, workspace: the order that call_tir passes them in.
        assert names[-3] == ARRIVALS
        assert names[-1] == WORKSPACE


def test_counters_in_a_prologue_are_planned_like_the_workspace(model):
    options = {"num_sms": WORKERS, "decomposition": "stream_k"}
    module = planned(model[0], OPENCL, counters="prologue", **options)
    assert not any(
        str(constant.value.dtype) == "int32" for constant in collect(module[ENTRY], ir.GenericConst)
    )
    for name in report(module).streamed:
        assert set(parameter_names(module[name])[-2:]) == {ARRIVALS, WORKSPACE}


def test_unknown_word_for_counters():
    with pytest.raises(InvalidArgument, match="must be one of prologue, argument; got 'x'"):
        PlanWorkspace("x")


def test_a_function_that_is_not_only_called_keeps_its_own_workspace(model):
    steps = [ScheduleFunctions(default_rules(LLVM, num_sms=WORKERS, decomposition="stream_k"))]
    with LLVM:
        module = tvm.transform.Sequential(steps)(fused(model[0], LLVM))
    first, *_ = report(module).streamed
    before = module[first].script()
    variable = module.get_global_var(first)
    builder = relax.BlockBuilder(module)
    x = relax.Var("x", relax.AnyType())
    with builder.function("other", [x]):
        builder.emit_func_output(builder.emit(relax.op.call_pure_packed(
            relax.ExternFunc("takes_a_function"), variable, x, ty_args=relax.AnyType()
        )))  # fmt: skip
    with LLVM:
        after = PlanWorkspace()(builder.get())
    assert after[first].script() == before
    assert WORKSPACE in parameter_names(after[report(module).streamed[1]])


def test_nothing_is_allocated_while_a_cuda_graph_is_captured():
    module, _ = layers([640, 600, 560, 520, 480], rows=20)
    with tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": True}):
        lowered = relax_pipeline(CUDA, num_sms=WORKERS, decomposition="stream_k")(module)
    functions = {
        str(variable.name_hint): function.script()
        for variable, function in lowered.functions.items()
        if isinstance(function, relax.Function)
    }
    (captured,) = (text for name, text in functions.items() if "capture" in name)
    (allocating,) = (text for name, text in functions.items() if "alloc" in name)
    # The first layer reads, and the last one writes, memory that changes from call to call.
    inside = [name for name in report(lowered).streamed if f"{name}(" in captured]
    assert len(inside) == 2
    for name in inside:
        assert "global" not in root_block_scopes(lowered[name])
    assert "alloc_storage" not in captured
    assert "alloc_storage" in allocating


def root_block_scopes(function: Any) -> set[str]:
    """The scopes of what a function allocates at its root."""
    return {str(buffer.scope()) for buffer in root_block(function).alloc_buffers}


# -- executed as GPU code --------------------------------------------------------------------------


@pytest.mark.parametrize("counters", ["argument", "prologue"])
def test_two_layers_on_opencl_function_by_function(model, counters):
    pytest.importorskip("pyopencl")
    check_function_by_function(model, OPENCL, counters)


def test_two_layers_from_cuda_source_on_the_cpu():
    model = layers([400, 96, 24], rows=20)
    check_function_by_function(model, CUDA, "argument")


def check_function_by_function(model: Any, target: Any, counters: str) -> None:
    """Two streamed layers give numpy's numbers and leave the shared counters zero."""
    module, weights = model
    width = weights[0].shape[1]
    lowered = planned(module, target, counters, num_sms=WORKERS, decomposition="stream_k")
    assert len(report(lowered).streamed) == 2
    x = integer_inputs((20, width), seed=5)
    result, constants = run_function_by_function(lowered, [x], target)
    np.testing.assert_array_equal(result, layers_expected(x, weights))
    for array in constants.values():
        assert not array.any()
    assert bool(constants) == (counters == "argument")


# -- rules and databases of the user ---------------------------------------------------------------


class Nothing(ScheduleRule):
    """A rule that applies to no function."""

    def apply(self, func: Any, target: Any, tunable: bool) -> Any:
        return None


def test_rules_of_the_user(model):
    module = relax_pipeline(LLVM, rules=[Nothing()])(model[0])
    assert all(entry.reason == "no rule applies" for entry in report(module))
    wrapped = relax_pipeline(OPENCL, rules=[dlight.gpu.Fallback()])(model[0])
    reasons = {entry.reason for entry in report(wrapped)}
    assert reasons == {"scheduled by Fallback, which is not wrapped"}


def test_a_current_tuning_database_comes_first(model):
    before = fused(model[0], LLVM)
    (name,) = (name for name in tensor_functions(before) if "relu" in name)
    tasks = meta_schedule.relax_integration.extract_tasks(before, LLVM)
    (task,) = (task for task in tasks if task.task_name == name)
    (original,) = task.dispatched
    schedule = tvm.s_tir.Schedule(original)
    schedule.parallel(schedule.get_loops(schedule.get_sblock("matmul"))[0])
    database = meta_schedule.database.MemoryDatabase()
    workload = database.commit_workload(original)
    database.commit_tuning_record(
        meta_schedule.database.TuningRecord(schedule.trace, workload, [1e-6], LLVM)
    )
    with database:
        module = relax_pipeline(LLVM, num_sms=WORKERS, decomposition="stream_k")(model[0])
    assert report(module)[name].reason == "scheduled before, by a tuning database or by hand"
    assert "T.parallel" in module[name].script()
    assert len(report(module).streamed) == 1


# -- report ----------------------------------------------------------------------------------------


def test_report_lists_every_function_with_its_reason(model):
    module = relax_pipeline(LLVM, num_sms=WORKERS)(model[0])
    listed = report(module)
    assert {entry.name for entry in listed} == set(tensor_functions(module))
    first = next(entry for entry in listed if entry.streams)
    assert first.num_workers in (2, 3, 4)
    assert first.merge == "two_phase"
    assert first.workspace_bytes
    assert "predicted" in first.reason
    printed = str(listed)
    for entry in listed:
        assert entry.name in printed.replace("\n", "")
    assert f"{len(listed.streamed)} of {len(listed.entries)} functions take Stream-K" in printed


def test_report_of_an_unknown_function(model):
    with pytest.raises(KeyError, match="no function 'absent'; the functions are: "):
        report(relax_pipeline(LLVM, num_sms=WORKERS)(model[0]))["absent"]


def test_report_reads_off_what_no_pipeline_has_kept(model):
    with LLVM:
        rules = default_rules(LLVM, num_sms=WORKERS, decomposition="stream_k")
        annotated = dlight.ApplyDefaultSchedule(*rules)(fused(model[0], LLVM))
        lowered = tvm_streamk.LowerStreamK()(annotated)
    streamed = report(annotated).streamed
    assert len(streamed) == 2
    assert report(annotated)[streamed[0]].decision == "stream_k"
    assert report(lowered).streamed == streamed
    assert "a Stream-K kernel (block 'matmul" in report(lowered)[streamed[0]].reason
    untouched = report(fused(model[0], LLVM))
    assert not untouched.streamed
    assert "no rule of ours has seen it" in untouched[streamed[0]].reason


def test_calls_are_kept_in_their_order(model):
    module = planned(model[0], LLVM, num_sms=WORKERS, decomposition="stream_k")
    assert call_names(module) == call_names(fused(model[0], LLVM))
