# SPDX-License-Identifier: Apache-2.0
"""Kernels of DLight's matmul rule, in every order, against numpy."""

from __future__ import annotations

import cuda_kernels
import numpy as np
import pytest
from cuda_kernels import BARRIER, matmul_arrays, matmul_plan, matmul_result, positions, without

from tvm_streamk.testing.cuda_on_cpu import ORDERS, run_plan

pytestmark = cuda_kernels.needs_compiler

CASES = {
    "float32": (64, 48, 64, "float32", "float32"),
    "float16 to float32": (128, 128, 128, "float16", "float32"),
    "int8 to int32": (128, 128, 128, "int8", "int32"),
}
SHAPES = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


@SHAPES
def test_result_is_exact_in_every_order(case: tuple) -> None:
    plan = matmul_plan(*case)
    for order in ORDERS:
        arrays = matmul_arrays(*case)
        run_plan(plan, arrays, order=order, seed=5)
        np.testing.assert_array_equal(arrays["C"], matmul_result(arrays), err_msg=order)


def test_tensor_core_kernels_use_dynamic_shared_memory_and_wmma() -> None:
    for name in ("float16 to float32", "int8 to int32"):
        plan = matmul_plan(*CASES[name])
        assert "nvcuda::wmma::mma_sync" in plan.source
        assert plan.launches[0].dynamic_shared_bytes > 0


def test_every_missing_barrier_shows_in_some_order() -> None:
    case = CASES["float32"]
    plan = matmul_plan(*case)
    barriers = positions(plan, BARRIER)
    assert len(barriers) == 2
    for number in range(len(barriers)):
        wrong_orders = []
        for order in ORDERS:
            arrays = matmul_arrays(*case)
            run_plan(without(plan, BARRIER, number), arrays, order=order)
            if not np.array_equal(arrays["C"], matmul_result(arrays)):
                wrong_orders.append(order)
        assert wrong_orders, f"barrier {number}"
