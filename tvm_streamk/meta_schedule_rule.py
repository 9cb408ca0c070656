# SPDX-License-Identifier: Apache-2.0
"""Stream-K in MetaSchedule's search: the tuner tries it, measurements decide.

::

    from tvm_streamk import meta_schedule_rule as sk_tuning

    result = sk_tuning.tune(function, {"kind": "llvm", "num-cores": 8}, "work_dir")
    schedule = result.schedule()

The same pieces fit TVM's own entry points: ``ms.tune_tir(..., space=space_generator(target),
builder=builder(target), runner=runner(target))``.

A choice of the decomposition is sampled as a tile size is, recorded in the trace, and carried out
by the build pipeline that the package registers when it is imported. So what was measured is what a
database gives back, in any process that imports the package; in one that does not, the same record
gives the data-parallel kernel.
"""

from __future__ import annotations

from tvm_streamk.tuning.builder import builder
from tvm_streamk.tuning.errors import (
    NothingMeasured,
    RemoteWithoutRuntime,
    SymbolicShapes,
    WorkDirectoryIsAFile,
)
from tvm_streamk.tuning.features import FEATURE_NAMES, StreamKFeatures, plan_features
from tvm_streamk.tuning.mutator import MutateStreamK
from tvm_streamk.tuning.opencl_runner import OpenCLRunner
from tvm_streamk.tuning.postproc import VerifyStreamK
from tvm_streamk.tuning.registration import in_tuning_passes, register_schedule_rule
from tvm_streamk.tuning.report import Finding, findings
from tvm_streamk.tuning.rule import StreamK, applicability
from tvm_streamk.tuning.runner import runner
from tvm_streamk.tuning.slow_import import without_tensor_intrinsics
from tvm_streamk.tuning.space import space_generator
from tvm_streamk.tuning.time_model import PlanAwareModel
from tvm_streamk.tuning.tune import TuningResult, tune, xgboost_model

__all__ = [
    "FEATURE_NAMES",
    "Finding",
    "MutateStreamK",
    "NothingMeasured",
    "OpenCLRunner",
    "PlanAwareModel",
    "RemoteWithoutRuntime",
    "StreamK",
    "StreamKFeatures",
    "SymbolicShapes",
    "TuningResult",
    "VerifyStreamK",
    "WorkDirectoryIsAFile",
    "applicability",
    "builder",
    "findings",
    "in_tuning_passes",
    "plan_features",
    "register_schedule_rule",
    "runner",
    "space_generator",
    "tune",
    "without_tensor_intrinsics",
    "xgboost_model",
]
