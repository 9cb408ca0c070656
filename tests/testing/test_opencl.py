# SPDX-License-Identifier: Apache-2.0
"""Launch plans run on an OpenCL device, and the errors where there is none."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import numpy as np
import pytest
import sample_kernels

from tvm_streamk.testing import DeviceMissing, integer_inputs, poisoned
from tvm_streamk.testing.launch_plan import LaunchPlanError, plan_launches
from tvm_streamk.testing.opencl import (
    KernelBuildError,
    OpenCLProgram,
    num_compute_units,
    run_plan,
    split_kernels,
)


def run_opencl(function, arrays, *scalars):
    """Run on OpenCL, in place; arrays by parameter name, in order."""
    plan = plan_launches(function, [*arrays.values(), *scalars], "opencl")
    run_plan(plan, arrays)


def test_elementwise():
    arrays = {"A": integer_inputs((64,)), "B": poisoned((64,))}
    run_opencl(sample_kernels.add_one, arrays)
    np.testing.assert_array_equal(arrays["B"], arrays["A"] + 1)


def test_tiled_matmul_with_shared_memory():
    left, right = integer_inputs((48, 24)), integer_inputs((24, 32), seed=1)
    arrays = {"C": poisoned((48, 32)), "A": left, "B": right}
    run_opencl(sample_kernels.tiled_matmul(48, 32, 24), arrays)
    np.testing.assert_array_equal(arrays["C"], left @ right)


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_kernels_in_order_through_a_workspace(rows):
    arrays = {"A": integer_inputs((rows, 16)), "B": poisoned((rows, 16))}
    run_opencl(sample_kernels.scale_through_workspace, arrays, 1.5, -7)
    np.testing.assert_array_equal(arrays["B"], arrays["A"] * 1.5 - 7)


def test_workspaces_hold_nan_at_first():
    arrays = {"B": np.zeros(16, "float32")}
    run_opencl(sample_kernels.read_unwritten_workspace, arrays)
    assert np.isnan(arrays["B"]).all()


@pytest.mark.parametrize(("flag", "last"), [(1, 200), (2, 100)])
def test_loops_and_branches_on_the_host(flag, last):
    arrays = {"A": poisoned((4, 16), "int32")}
    run_opencl(sample_kernels.loop_and_branch_on_host, arrays, flag)
    np.testing.assert_array_equal(arrays["A"], np.repeat([[0], [1], [2], [last]], 16, axis=1))


def test_two_kernels_may_import_the_same_helper():
    before = integer_inputs((16,))
    arrays = {"A": before.copy(), "B": poisoned((16,))}
    run_opencl(sample_kernels.call_helper_in_two_kernels, arrays)
    np.testing.assert_array_equal(arrays["B"], before * 2)
    np.testing.assert_array_equal(arrays["A"], before * 4)


def test_buffers_stay_between_launches():
    arrays = {"A": integer_inputs((16,)), "B": poisoned((16,))}
    plan = plan_launches(sample_kernels.call_helper_in_two_kernels, list(arrays.values()), "opencl")
    program = OpenCLProgram(plan, arrays)
    program.launch()
    program.launch()
    np.testing.assert_array_equal(program.read("A"), arrays["A"] * 16)
    program.write("A", arrays["A"][::-1])
    program.launch()
    np.testing.assert_array_equal(program.read("A"), arrays["A"][::-1] * 4)


def test_split_kernels_keeps_each_kernels_own_helpers():
    source = "// Function: a\nint f();\nvoid a() {}\n\n// Function: b\nint f();\nvoid b() {}\n"
    assert split_kernels(source) == {
        "a": "int f();\nvoid a() {}\n\n",
        "b": "int f();\nvoid b() {}\n",
    }


def test_dynamic_shared_memory_is_refused():
    arrays = {"A": integer_inputs((64,)), "B": poisoned((64,))}
    with pytest.raises(LaunchPlanError, match="needs dynamic shared memory, which OpenCL has not"):
        run_opencl(sample_kernels.reverse_dynamic_shared, arrays)


def test_a_kernel_that_does_not_compile_is_named():
    arrays = {"A": integer_inputs((64,)), "B": poisoned((64,))}
    plan = plan_launches(sample_kernels.add_one, list(arrays.values()), "opencl")
    source = plan.source.replace("A_ptr[", "undeclared[")
    with pytest.raises(KernelBuildError, match=r"'add_one_kernel' does not compile[\s\S]*undecl"):
        OpenCLProgram(replace(plan, source=source), arrays)


def test_missing_pyopencl_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    with pytest.raises(DeviceMissing, match=r"pip install 'pyopencl\[pocl\]'.*pocl-opencl-icd"):
        num_compute_units()


@pytest.mark.parametrize("failure", ["no platform", "no device"])
def test_missing_device_says_what_to_install(monkeypatch, failure):
    import pyopencl

    def no_platforms():
        if failure == "no platform":
            raise pyopencl.LogicError("clGetPlatformIDs failed: PLATFORM_NOT_FOUND_KHR")
        return []

    monkeypatch.setattr(pyopencl, "get_platforms", no_platforms)
    with pytest.raises(DeviceMissing, match=rf"there is {failure[:2]} OpenCL.*pip install"):
        num_compute_units()


def test_compute_units_are_the_devices():
    import pyopencl

    (device, *_) = (d for p in pyopencl.get_platforms() for d in p.get_devices())
    assert num_compute_units() == device.max_compute_units


@pytest.mark.parametrize(("before", "after"), [(None, "loopvec"), ("cbs", "cbs")])
def test_work_group_method_is_a_default(monkeypatch, before, after):
    monkeypatch.delenv("POCL_WORK_GROUP_METHOD", raising=False)
    if before is not None:
        monkeypatch.setenv("POCL_WORK_GROUP_METHOD", before)
    num_compute_units()
    assert os.environ["POCL_WORK_GROUP_METHOD"] == after
