# SPDX-License-Identifier: Apache-2.0
"""The DLight rule: what it schedules, what it streams, and that it never raises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from relax_models import ENTRY, fused, tensor_functions
from tvm import relax, s_tir, te, tirx
from tvm.relax.frontend import nn
from tvm.s_tir import dlight
from tvm.s_tir.dlight.base import ScheduleRule

from tvm_streamk.annotation import ANNOTATION_KEY
from tvm_streamk.cpu_gemm_rule import CpuGemm
from tvm_streamk.dlight_rule import (
    StreamK,
    default_rules,
    processors_of_cpu,
    rules_of_pipeline,
    scheduled_by,
)
from tvm_streamk.pipeline import recorded_decision
from tvm_streamk.testing import integer_inputs, poisoned, run

LLVM = tvm.target.Target("llvm")
TVM_ALIGNMENT = 64
THREE_WORKERS = StreamK(CpuGemm(), num_sms=3, decomposition="stream_k")


def product(left, right, output, sums, summand, dtype="float32", epilogue=None):
    """An unscheduled sum of products; its block is called C."""
    a, b = te.placeholder(left, dtype, name="A"), te.placeholder(right, dtype, name="B")
    axes = [te.reduce_axis((0, extent), name=f"k{i}") for i, extent in enumerate(sums)]
    result = te.compute(output, lambda *i: te.sum(summand(a, b, i, axes), axis=axes), name="C")
    last = result if epilogue is None else te.compute(output, lambda *i: epilogue(result[i]))
    return te.create_prim_func([a, b, last])


def wide(value: Any) -> Any:
    return value.astype("float32")


PRODUCTS = {
    "NN": lambda: product(
        (50, 512), (512, 70), (50, 70), [512], lambda a, b, i, k: a[i[0], k[0]] * b[k[0], i[1]]
    ),
    "NT": lambda: product(
        (50, 512), (70, 512), (50, 70), [512], lambda a, b, i, k: a[i[0], k[0]] * b[i[1], k[0]]
    ),
    "TN": lambda: product(
        (512, 50), (512, 70), (50, 70), [512], lambda a, b, i, k: a[k[0], i[0]] * b[k[0], i[1]]
    ),
    "3-D x 2-D": lambda: product(
        (2, 25, 96), (96, 70), (2, 25, 70), [96],
        lambda a, b, i, k: a[i[0], i[1], k[0]] * b[k[0], i[2]],
    ),
    "batched": lambda: product(
        (3, 17, 96), (3, 96, 33), (3, 17, 33), [96],
        lambda a, b, i, k: a[i[0], i[1], k[0]] * b[i[0], k[0], i[2]],
    ),
    "unit dimensions": lambda: product(
        (1, 17, 1, 96), (96, 1, 33), (1, 17, 1, 33), [96],
        lambda a, b, i, k: a[i[0], i[1], i[2], k[0]] * b[k[0], 0, i[3]],
    ),
    "one row": lambda: product(
        (1, 96), (96, 70), (1, 70), [96], lambda a, b, i, k: a[i[0], k[0]] * b[k[0], i[1]]
    ),
    "odd everything": lambda: product(
        (61, 131), (131, 97), (61, 97), [131], lambda a, b, i, k: a[i[0], k[0]] * b[k[0], i[1]]
    ),
    "several tiles, ragged both ways": lambda: product(
        (150, 96), (96, 300), (150, 300), [96], lambda a, b, i, k: a[i[0], k[0]] * b[k[0], i[1]]
    ),
    "convolution": lambda: product(
        (1, 24, 12, 12), (13, 24, 3, 3), (1, 13, 10, 10), [24, 3, 3],
        lambda a, b, i, k: a[i[0], k[0], i[2] + k[1], i[3] + k[2]] * b[i[1], k[0], k[1], k[2]],
    ),
    "float16 to float32": lambda: product(
        (50, 96), (96, 70), (50, 70), [96],
        lambda a, b, i, k: wide(a[i[0], k[0]]) * wide(b[k[0], i[1]]), dtype="float16",
    ),
    "int8 to int32": lambda: product(
        (50, 96), (96, 70), (50, 70), [96],
        lambda a, b, i, k: a[i[0], k[0]].astype("int32") * b[k[0], i[1]].astype("int32"),
        dtype="int8",
    ),
    "float64": lambda: product(
        (50, 96), (96, 70), (50, 70), [96], lambda a, b, i, k: a[i[0], k[0]] * b[k[0], i[1]],
        dtype="float64",
    ),
    "cast after it": lambda: product(
        (50, 96), (96, 70), (50, 70), [96], lambda a, b, i, k: a[i[0], k[0]] * b[k[0], i[1]],
        epilogue=lambda value: (value + 1.0).astype("float16"),
    ),
}  # fmt: skip


def shape_of(parameter: Any, rows: int) -> tuple[int, ...]:
    """A parameter's shape, symbolic extents being ``rows``."""
    return tuple(int(e) if isinstance(e, tirx.IntImm) else rows for e in parameter.shape)


def inputs_of(function: Any, rows: int = 0) -> list[np.ndarray]:
    """Whole numbers for the inputs, poison for the output."""
    *inputs, output = function.params
    given = [
        integer_inputs(shape_of(parameter, rows), str(parameter.dtype), seed=seed)
        for seed, parameter in enumerate(inputs)
    ]
    return [*given, poisoned(shape_of(output, rows), str(output.dtype))]


def check_same_numbers(scheduled: Any, original: Any, rows: int = 0) -> None:
    """Both give the same output for whole numbers, to the last bit."""
    expected = run(original, inputs_of(original, rows), "llvm")[-1]
    found = run(scheduled, inputs_of(original, rows), "llvm")[-1]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_tiled_streamed_and_right(name):
    function = PRODUCTS[name]()
    before = function.script()
    schedule = THREE_WORKERS.apply(function, LLVM)
    decision = recorded_decision(schedule.mod["main"])
    assert (decision.decomposition, decision.merge) == ("stream_k", "two_phase")
    assert function.script() == before
    check_same_numbers(schedule.mod, function)


def test_nothing_is_written_beside_the_output():
    """TVM loses a predicate where rows and columns are both ragged; the store must have both."""
    function = PRODUCTS["several tiles, ragged both ways"]()
    built = tvm.tirx.build(CpuGemm().apply(function, LLVM).mod, target="llvm")
    rows, columns, guard = 150, 300, 1 << 15
    memory = np.full(guard + rows * columns + guard, np.nan, "float32")
    # TVM takes memory from others only where it is aligned.
    start = guard + (-memory.ctypes.data % TVM_ALIGNMENT) // memory.itemsize
    end = start + rows * columns
    output = memory[start:end].reshape(rows, columns)
    left, right = integer_inputs((rows, 96)), integer_inputs((96, columns), seed=1)
    shared = tvm.runtime.from_dlpack(output)
    built["main"](tvm.runtime.tensor(left), tvm.runtime.tensor(right), shared)
    np.testing.assert_array_equal(output, left @ right)
    assert np.isnan(memory[:start]).all()
    assert np.isnan(memory[end:]).all()


# -- symbolic shapes -------------------------------------------------------------------------------


def symbolic_rows(depth: int = 512, columns: int = 70) -> Any:
    rows = te.var("n", "int32")
    return product(
        (rows, depth), (depth, columns), (rows, columns), [depth],
        lambda a, b, i, k: a[i[0], k[0]] * b[k[0], i[1]],
    )  # fmt: skip


@pytest.fixture(scope="module")
def streamed_for_any_row_count():
    function = symbolic_rows()
    schedule = StreamK(CpuGemm(), num_sms=3).apply(function, LLVM)
    assert recorded_decision(schedule.mod["main"]).decomposition == "stream_k"
    return function, schedule.mod


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 65, 200])
def test_one_kernel_is_right_for_every_number_of_rows(streamed_for_any_row_count, rows):
    function, streamed = streamed_for_any_row_count
    check_same_numbers(streamed, function, rows)


def test_symbolic_tiles_with_few_panels_are_left_whole():
    schedule, verdict = StreamK(CpuGemm(), num_sms=3).attempt(
        CpuGemm().apply(symbolic_rows(depth=256), LLVM), LLVM
    )
    assert not verdict.streams
    assert "8 panels per tile are too few to share a single tile" in verdict.reason
    assert recorded_decision(schedule.mod["main"]) is None


# -- what TVM's fusion makes -----------------------------------------------------------------------


class Epilogues(nn.Module):
    """A product with all that commonly follows one."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(512, 96)

    def main(self, x: Any, residual: Any) -> Any:
        return (nn.op.gelu(self.dense(x)) + residual).astype("float16")


def test_bias_gelu_residual_and_cast_run_once_on_the_sums():
    x, residual = nn.spec.Tensor((1, 20, 512), "float32"), nn.spec.Tensor((1, 20, 96), "float32")
    module, _ = Epilogues().export_tvm({ENTRY: {"x": x, "residual": residual}})
    functions = tensor_functions(fused(module, LLVM))
    (name,) = (name for name in functions if "matmul" in name)
    assert all(part in name for part in ("add", "gelu", "cast"))
    schedule = StreamK(CpuGemm(), num_sms=3, decomposition="stream_k").apply(functions[name], LLVM)
    assert recorded_decision(schedule.mod["main"]).decomposition == "stream_k"
    check_same_numbers(schedule.mod, functions[name])


# -- what does not fit -----------------------------------------------------------------------------


def depthwise() -> Any:
    return product(
        (1, 16, 12, 12), (16, 3, 3), (1, 16, 10, 10), [3, 3],
        lambda a, b, i, k: a[i[0], i[1], i[2] + k[0], i[3] + k[1]] * b[i[1], k[0], k[1]],
    )  # fmt: skip


def attention_scores() -> Any:
    length = te.var("n", "int32")
    return product(
        (12, length, 32), (12, length, 32), (12, length, length), [32],
        lambda a, b, i, k: a[i[0], i[1], k[0]] * b[i[0], i[2], k[0]],
    )  # fmt: skip


def elementwise() -> Any:
    a = te.placeholder((64, 64), name="A")
    return te.create_prim_func([a, te.compute((64, 64), lambda i, j: a[i, j] + 1.0)])


def row_sums() -> Any:
    a, k = te.placeholder((64, 64), name="A"), te.reduce_axis((0, 64), name="k")
    return te.create_prim_func([a, te.compute((64,), lambda i: te.sum(a[i, k], axis=k))])


def two_products() -> Any:
    a, b = te.placeholder((64, 64), name="A"), te.placeholder((64, 64), name="B")
    k, j = te.reduce_axis((0, 64), name="k"), te.reduce_axis((0, 64), name="j")
    first = te.compute((64, 64), lambda x, y: te.sum(a[x, k] * b[k, y], axis=k))
    second = te.compute((64, 64), lambda x, y: te.sum(first[x, j] * b[j, y], axis=j))
    return te.create_prim_func([a, b, second])


def two_outputs() -> Any:
    a, b = te.placeholder((64, 64), name="A"), te.placeholder((64, 64), name="B")
    k = te.reduce_axis((0, 64), name="k")
    first = te.compute((64, 64), lambda x, y: te.sum(a[x, k] * b[k, y], axis=k))
    second = te.compute((64, 64), lambda x, y: first[x, y] + 1.0)
    third = te.compute((64, 64), lambda x, y: first[x, y] + 2.0)
    return te.create_prim_func([a, b, second, third])


def without_root() -> Any:
    return tirx.PrimFunc([], tirx.Evaluate(tirx.const(0, "int32")))


UNFIT = (
    depthwise,
    attention_scores,
    elementwise,
    row_sums,
    two_products,
    two_outputs,
    without_root,
)


@pytest.mark.parametrize("make", UNFIT, ids=lambda make: make.__name__)
def test_functions_that_do_not_fit_are_left_alone(make):
    function = make()
    before = function.script()
    assert THREE_WORKERS.apply(function, LLVM) is None
    module = tvm.IRModule({"main": function})
    with LLVM:
        after = dlight.ApplyDefaultSchedule(THREE_WORKERS)(module)
    assert after["main"].script() == before


def test_a_gpu_function_is_none_of_the_cpu_rule():
    assert CpuGemm().apply(PRODUCTS["NN"](), tvm.target.Target("opencl")) is None


# -- wrapping any rule -----------------------------------------------------------------------------


class Raising(ScheduleRule):
    """A rule with a fault, as DLight's own have for functions that they were not written for."""

    def __init__(self, fault: Exception) -> None:
        self.fault = fault

    def apply(self, func: Any, target: Any, tunable: bool) -> Any:
        raise self.fault


class Untouched(ScheduleRule):
    """A rule that schedules nothing, once or in several ways."""

    def __init__(self, ways: int = 1) -> None:
        self.ways = ways

    def apply(self, func: Any, target: Any, tunable: bool) -> Any:
        schedules = [s_tir.Schedule(func) for _ in range(self.ways)]
        return schedules if tunable else schedules[0]


@pytest.mark.parametrize(
    "fault", [AssertionError(), ValueError("no"), s_tir.ScheduleError("no"), IndexError(3)]
)
def test_a_rule_that_raises_does_not_apply(fault):
    assert StreamK(Raising(fault), num_sms=2).apply(PRODUCTS["NN"](), LLVM) is None


def test_a_bug_of_a_rule_that_is_no_fault_is_not_hidden():
    with pytest.raises(KeyboardInterrupt):
        StreamK(Raising(KeyboardInterrupt()), num_sms=2).apply(PRODUCTS["NN"](), LLVM)


def test_an_assertion_inside_dlight_is_survived():
    """A convolution with one channel, for which TVM's own GEMV rule hits an assertion."""
    function = product(
        (1, 1, 6, 8), (1, 1, 1, 3), (1, 1, 6, 6), [1, 1, 3],
        lambda a, b, i, k: a[i[0], k[0], i[2] + k[1], i[3] + k[2]] * b[i[1], k[0], k[1], k[2]],
    )  # fmt: skip
    target = tvm.target.Target("opencl")
    for rule in default_rules(target, num_sms=4):
        rule.apply(function, target)


def test_a_tunable_rule_gives_all_its_schedules():
    function = PRODUCTS["NN"]()
    given = StreamK(Untouched(ways=3), num_sms=2).apply(function, LLVM, True)
    assert len(given) == 3
    assert isinstance(StreamK(Untouched(), num_sms=2).apply(function, LLVM), s_tir.Schedule)


def test_refusal_is_a_verdict_and_the_schedule_is_what_the_wrapped_rule_made():
    function = PRODUCTS["NN"]()
    plain = CpuGemm().apply(function, LLVM)
    before = plain.mod.script()
    schedule, verdict = StreamK(CpuGemm(), num_sms=2, merge="atomic").attempt(plain, LLVM)
    assert schedule is plain
    assert not verdict.streams
    assert verdict.reason.startswith("MergeNotSupported: ")
    assert schedule.mod.script() == before


def test_whole_waves_are_not_streamed():
    function = PRODUCTS["several tiles, ragged both ways"]()
    schedule, verdict = StreamK(CpuGemm(), num_sms=1).attempt(CpuGemm().apply(function, LLVM), LLVM)
    assert verdict.decision == "data_parallel"
    assert "no processor idles" in verdict.reason
    root = schedule.get(schedule.get_sblock("root"))
    assert ANNOTATION_KEY not in root.annotations


def test_unknown_processors_are_a_verdict():
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_80"})
    (schedule,) = scheduled_by(dlight.gpu.Matmul(), PRODUCTS["NN"](), target)
    _, verdict = StreamK(dlight.gpu.Matmul()).attempt(schedule, target)
    if verdict.reason.startswith("WorkersUnknown"):
        assert "nothing tells how many processors there are" in verdict.reason
    else:
        assert tvm.cuda(0).exist


def test_processors_of_a_cpu():
    assert processors_of_cpu(tvm.target.Target({"kind": "llvm", "num-cores": 12})) == 12
    assert processors_of_cpu(LLVM) >= 1
    assert processors_of_cpu(tvm.target.Target("opencl")) is None


def test_default_rules_are_those_of_tvm_wrapped():
    for kind in ("cuda", "opencl"):
        target = tvm.target.Target(kind)
        mine = [type(rule.base_rule) for rule in default_rules(target, num_sms=4)]
        assert mine == [type(rule) for rule in rules_of_pipeline(target)]
        assert mine[0] is dlight.gpu.Matmul
        assert mine[-1] is dlight.gpu.Fallback
    (rule,) = default_rules("llvm")
    assert isinstance(rule.base_rule, CpuGemm)


@pytest.mark.parametrize("merge", ["last_arriver", "two_phase", "atomic"])
def test_a_gpu_rule_is_streamed_and_right_on_opencl(merge):
    pytest.importorskip("pyopencl")
    target = tvm.target.Target("opencl")
    function = PRODUCTS["NN"]()
    rule = StreamK(dlight.gpu.Matmul(), num_sms=4, decomposition="stream_k", merge=merge)
    schedule = rule.apply(function, target)
    assert recorded_decision(schedule.mod["main"]).merge == merge
    expected = run(function, inputs_of(function), "llvm")[-1]
    np.testing.assert_array_equal(run(schedule.mod, inputs_of(function), target)[-1], expected)


def test_apply_default_schedule_gives_a_function_that_builds_alone():
    """Without any pass of ours in the model pipeline, the build pipeline finishes the decision."""
    function = PRODUCTS["NN"]()
    with LLVM:
        module = dlight.ApplyDefaultSchedule(THREE_WORKERS)(tvm.IRModule({"main": function}))
    assert module["main"].attrs["tirx.is_scheduled"]
    assert recorded_decision(module["main"]) is not None
    check_same_numbers(module, function)


def test_relax_models_without_our_pipeline_stream_too():
    x = nn.spec.Tensor((20, 512), "float32")
    module, _ = nn.Linear(512, 96).export_tvm({"forward": {"x": x}})
    with LLVM:
        scheduled = dlight.ApplyDefaultSchedule(THREE_WORKERS)(fused(module, LLVM))
    executable = tvm.compile(scheduled, LLVM, relax_pipeline="default")
    machine = relax.VirtualMachine(executable, tvm.cpu())
    arrays = [integer_inputs(shape, seed=seed) for seed, shape in enumerate([(20, 512), (96, 512)])]
    bias = integer_inputs((96,), seed=2)
    result = machine["forward"](*map(tvm.runtime.tensor, [arrays[0], arrays[1], bias])).numpy()
    np.testing.assert_array_equal(result, arrays[0] @ arrays[1].T + bias)
