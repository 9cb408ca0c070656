# SPDX-License-Identifier: Apache-2.0
"""Modules run for each target, through whichever engine this machine has."""

from __future__ import annotations

import shutil
import sys
import types

import ml_dtypes
import numpy as np
import pytest
import sample_kernels
import tvm
from tvm import te

from tvm_streamk.testing import DeviceMissing, integer_inputs, poisoned, prepare, run
from tvm_streamk.testing.launch_plan import LaunchPlanError

CPU_TARGETS = ["llvm", "c", {"kind": "llvm", "num-cores": 2}]
COMMON_DTYPES = ["float32", "float64", "int8", "uint8", "int16", "int32", "int64", "bfloat16"]


def plain_double(dtype: str):
    source = te.placeholder((32,), dtype, name="A")
    output = te.compute((32,), lambda i: source[i] + source[i], name="B")
    return te.create_prim_func([source, output])


@pytest.mark.parametrize("target", CPU_TARGETS, ids=["llvm", "c", "dict"])
def test_cpu_targets_run_through_tvm(target):
    left, right = integer_inputs((8, 5)), integer_inputs((5, 6), seed=1)
    prepared = prepare(sample_kernels.matmul(8, 6, 5), target, [poisoned((8, 6)), left, right])
    prepared.launch()
    product, left_after, right_after = prepared.read()
    np.testing.assert_array_equal(product, left @ right)
    np.testing.assert_array_equal(left_after, left)
    np.testing.assert_array_equal(right_after, right)
    assert prepared.engine == f"TVM runtime ({tvm.target.Target(target).kind.name})"


def test_opencl_names_its_engine():
    prepared = prepare(sample_kernels.add_one, "opencl", [integer_inputs((64,)), poisoned((64,))])
    assert prepared.engine.startswith(("pyopencl on ", "TVM runtime (opencl)"))
    assert prepared.engine != "pyopencl on "


@pytest.mark.parametrize("dtype", COMMON_DTYPES)
@pytest.mark.parametrize("target", ["llvm", "opencl"])
def test_dtypes(target, dtype):
    function = plain_double(dtype) if target == "llvm" else sample_kernels.doubled(dtype)
    source = integer_inputs((32,), dtype)
    outputs = run(function, [source, poisoned((32,), dtype)], target)
    np.testing.assert_array_equal(outputs[1], source + source)
    assert outputs[1].dtype == source.dtype


def test_float16_on_llvm():
    source = integer_inputs((32,), "float16")
    outputs = run(plain_double("float16"), [source, poisoned((32,), "float16")], "llvm")
    np.testing.assert_array_equal(outputs[1], source + source)


@pytest.mark.parametrize("target", ["llvm", tvm.target.Target("opencl")], ids=str)
def test_inputs_and_module_are_unchanged(target):
    function = plain_double("float32") if target == "llvm" else sample_kernels.doubled("float32")
    module = tvm.IRModule({"main": function})
    text = module.script()
    source, output = integer_inputs((32,)), poisoned((32,))
    kept = source.copy()
    run(module, [source, output], target)
    np.testing.assert_array_equal(source, kept)
    assert np.isnan(output).all()
    assert module.script() == text


def test_scalars_are_returned_without_dimensions():
    inputs = [integer_inputs((3, 16)), poisoned((3, 16)), np.float32(1.5), np.int64(-7)]
    outputs = run(sample_kernels.scale_through_workspace, inputs, "opencl")
    np.testing.assert_array_equal(outputs[1], inputs[0] * 1.5 - 7)
    assert [output.shape for output in outputs[2:]] == [(), ()]
    assert (outputs[2], outputs[3]) == (1.5, -7)


def test_scalars_on_llvm():
    source = te.placeholder((8,), name="A")
    alpha = tvm.tirx.Var("alpha", "float32")
    output = te.compute((8,), lambda i: source[i] * alpha, name="B")
    function = te.create_prim_func([source, alpha, output])
    values = integer_inputs((8,))
    outputs = run(function, [values, np.float32(0.5), poisoned((8,))], "llvm")
    np.testing.assert_array_equal(outputs[2], values * 0.5)


@pytest.mark.parametrize("target", ["llvm", "opencl"])
def test_buffers_stay_until_written(target):
    source = te.placeholder((16,), name="A")
    output = te.compute((16,), lambda i: source[i] + 1, name="B")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([source, output]))
    if target == "opencl":
        schedule.bind(schedule.get_loops("B")[0], "threadIdx.x")
    first, second = integer_inputs((16,)), integer_inputs((16,), seed=1)
    prepared = prepare(schedule.mod, target, [first, poisoned((16,))])
    prepared.launch()
    np.testing.assert_array_equal(prepared.read()[1], first + 1)
    prepared.write(0, second)
    np.testing.assert_array_equal(prepared.read()[1], first + 1)
    prepared.launch()
    np.testing.assert_array_equal(prepared.read()[1], second + 1)


@pytest.mark.parametrize(
    ("target", "function"),
    [
        ("llvm", sample_kernels.count_launches_on_cpu),
        ("opencl", sample_kernels.count_launches),
        ({"kind": "cuda", "arch": "sm_80"}, sample_kernels.count_launches),
    ],
    ids=["llvm", "opencl", "cuda"],
)
def test_several_launches_in_a_row(target, function):
    prepared = prepare(function, target, [np.zeros(16, "int32")])
    prepared.launch(5)
    assert prepared.read()[0].tolist() == [5] * 16
    prepared.launch()
    assert prepared.read()[0].tolist() == [6] * 16


@pytest.mark.parametrize("target", ["llvm", "opencl"])
def test_results_are_the_callers_own(target):
    function = plain_double("float32") if target == "llvm" else sample_kernels.doubled("float32")
    source = integer_inputs((32,))
    prepared = prepare(function, target, [source, poisoned((32,))])
    prepared.launch()
    prepared.read()[0][...] = 99
    np.testing.assert_array_equal(prepared.read()[0], source)


def test_shared_tensors_are_read_and_written_by_both():
    one = prepare(plain_double("float32"), "llvm", [integer_inputs((32,)), poisoned((32,))])
    other = prepare(plain_double("float32"), "llvm", [poisoned((32,)), poisoned((32,))])
    assert one.can_share
    other.share(one)
    other.launch()
    np.testing.assert_array_equal(one.read()[1], 2 * integer_inputs((32,)))
    one.write(0, integer_inputs((32,), seed=1))
    other.launch()
    np.testing.assert_array_equal(one.read()[1], 2 * integer_inputs((32,), seed=1))


@pytest.mark.parametrize(
    ("target", "dtype", "message"),
    [("llvm", "float64", "cannot be those of"), ("opencl", "float32", "cannot share tensors")],
)
def test_what_cannot_be_shared(target, dtype, message):
    one = prepare(plain_double("float32"), "llvm", [integer_inputs((32,)), poisoned((32,))])
    function = plain_double(dtype) if target == "llvm" else sample_kernels.doubled(dtype)
    other = prepare(function, target, [integer_inputs((32,), dtype), poisoned((32,), dtype)])
    with pytest.raises(ValueError, match=message):
        other.share(one)


@pytest.mark.parametrize(
    ("index", "array", "message"),
    [
        (0, poisoned((3, 15)), r"'A' is float32\[3, 16\], got float32\[3, 15\]"),
        (1, poisoned((3, 16), "int32"), r"'B' is float32\[3, 16\], got int32"),
        (2, poisoned(()), "'alpha' is a scalar"),
    ],
)
def test_write_refuses_another_kind_of_array(index, array, message):
    inputs = [integer_inputs((3, 16)), poisoned((3, 16)), 1.5, 2]
    prepared = prepare(sample_kernels.scale_through_workspace, "opencl", inputs)
    with pytest.raises(ValueError, match=message):
        prepared.write(index, array)


@pytest.mark.skipif(tvm.cuda(0).exist, reason="this machine runs CUDA itself")
def test_cuda_source_goes_to_the_cpu_engine(monkeypatch):
    received = []

    def run_plan(plan, arrays):
        received.append((plan, {name: array.copy() for name, array in arrays.items()}))
        arrays["B"][...] = 5

    engine = types.ModuleType("cuda_on_cpu")
    monkeypatch.setattr(engine, "run_plan", run_plan, raising=False)
    monkeypatch.setitem(sys.modules, "tvm_streamk.testing.cuda_on_cpu", engine)
    inputs = [integer_inputs((3, 16)), poisoned((3, 16)), 1.5, 2]
    prepared = prepare(sample_kernels.scale_through_workspace, {"kind": "cuda"}, inputs)
    prepared.launch()
    prepared.launch()
    assert prepared.engine == "CUDA source on the CPU"
    assert (prepared.read()[1] == 5).all()
    assert np.isnan(inputs[1]).all()
    plan, arrays = received[0]
    assert "__global__" in plan.source
    assert set(arrays) == {"A", "B", "scaled", "counters"}
    assert (arrays["scaled"] == 0xFF).all()
    assert (received[1][1]["B"] == 5).all()


@pytest.mark.skipif(
    not tvm.cuda(0).exist and shutil.which("g++") is None, reason="neither a GPU nor g++ is here"
)
def test_cuda_runs_without_or_with_a_gpu():
    left, right = integer_inputs((32, 24)), integer_inputs((24, 16), seed=1)
    outputs = run(
        sample_kernels.tiled_matmul(32, 16, 24), [poisoned((32, 16)), left, right], "cuda"
    )
    np.testing.assert_array_equal(outputs[0], left @ right)


def test_a_target_without_device_is_refused():
    with pytest.raises(DeviceMissing, match="no device for target 'metal' here; use target llvm"):
        run(sample_kernels.add_one, [integer_inputs((64,)), poisoned((64,))], "metal")


def test_input_count_is_checked_for_every_engine():
    with pytest.raises(LaunchPlanError, match="2 inputs needed"):
        run(plain_double("float32"), [integer_inputs((32,))], "llvm")


@pytest.mark.parametrize("target", ["llvm", "opencl"])
def test_strided_inputs_are_copied_as_they_look(target):
    function = plain_double("float32") if target == "llvm" else sample_kernels.doubled("float32")
    source = integer_inputs((64,))[::-2]
    outputs = run(function, [source, poisoned((32,))], target)
    np.testing.assert_array_equal(outputs[1], source * 2)


@pytest.mark.parametrize("dtype", [*COMMON_DTYPES, "float16", "bool"])
def test_integer_inputs_are_small_and_seeded(dtype):
    array = integer_inputs((100,), dtype, seed=3)
    np.testing.assert_array_equal(array, integer_inputs((100,), dtype, seed=3))
    assert array.dtype.name == dtype
    numbers = array.astype("float64")
    assert (numbers == np.round(numbers)).all()
    expected = {"float16": (-1, 1), "bfloat16": (-1, 1), "uint8": (0, 3), "bool": (0, 1)}
    assert (numbers.min(), numbers.max()) == expected.get(dtype, (-3, 3))


def test_integer_inputs_take_bounds():
    array = integer_inputs((1000,), "float16", low=5, high=8)
    assert (array.min(), array.max()) == (5, 7)


def test_poison_is_conspicuous():
    assert np.isnan(poisoned((3,), "float16")).all()
    assert np.isnan(poisoned((3,), ml_dtypes.bfloat16).astype("float32")).all()
    assert poisoned((2,), "int8").tolist() == [123, 123]
    assert poisoned((1,), "int32")[0] % 2 == 1
