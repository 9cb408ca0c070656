# SPDX-License-Identifier: Apache-2.0
"""Builders whose workers know Stream-K: every candidate is built as it will be deployed.

TVM's builder starts fresh processes. They import the package in their initializer, which has no
time limit, so that neither that import nor TVM's slow import of its tensor intrinsics counts
against the time limit of the first candidates.
"""

from __future__ import annotations

import importlib
import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.s_tir import meta_schedule
from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

from tvm_streamk.testing.arrays import element_dtype
from tvm_streamk.testing.launch_plan import LaunchPlan, plan_launches
from tvm_streamk.tuning.processors import runs_through_pyopencl
from tvm_streamk.tuning.slow_import import INTRINSICS_MODULE
from tvm_streamk.tuning.space import default_space

TIMEOUT_SECONDS = 60.0
PLAN_FILE = "launches.pickle"


def builder(
    target: Any, max_workers: int | None = None, timeout_seconds: float = TIMEOUT_SECONDS
) -> Any:
    """A local builder for a target.

    Parameters
    ----------
    target : str, dict or tvm.target.Target
        For OpenCL on a machine whose TVM has no OpenCL runtime, what is built is what
        :func:`tvm_streamk.meta_schedule_rule.runner` measures there.
    max_workers : int, optional
        Processes; by default one per core.
    timeout_seconds : float
        For one candidate, imports not included.

    Returns
    -------
    tvm.s_tir.meta_schedule.builder.LocalBuilder
    """
    target = tvm.target.Target(target)
    through_pyopencl = runs_through_pyopencl(target)
    needs_intrinsics = default_space(target).uses_tensor_intrinsics
    return meta_schedule.builder.LocalBuilder(
        max_workers=max_workers,
        timeout_sec=timeout_seconds,
        f_build=build_launches if through_pyopencl else build_library,
        f_export=export_launches if through_pyopencl else None,
        initializer=prepare_with_intrinsics if needs_intrinsics else prepare,
    )


def prepare() -> None:
    """What a worker does first. Importing this function's module has imported the package."""


def prepare_with_intrinsics() -> None:
    """What a worker does first where tensor intrinsics are used."""
    importlib.import_module(INTRINSICS_MODULE)


def build_library(module: Any, target: Any, _parameters: Any) -> Any:
    """Build a candidate as TVM's own builder does, through the pipeline that lowers Stream-K."""
    return tvm.tirx.build(_without_layout_blocks(module), target=target)


def build_launches(module: Any, target: Any, _parameters: Any) -> LaunchPlan:
    """Build a candidate to source and launches, for an engine other than TVM's runtime."""
    module = _without_layout_blocks(module)
    (function,) = module.functions.values()
    arrays = [
        np.empty(tuple(int(extent) for extent in each.shape), element_dtype(str(each.dtype)))
        for each in function.params
    ]
    return plan_launches(module, arrays, target)


def export_launches(plan: LaunchPlan) -> str:
    """Write a launch plan to a file of its own, in a folder of its own."""
    path = Path(tempfile.mkdtemp()) / PLAN_FILE
    path.write_bytes(pickle.dumps(plan))
    return str(path)


def _without_layout_blocks(module: Any) -> Any:
    return RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module)
