# SPDX-License-Identifier: Apache-2.0
"""``LowerStreamK`` and its place in TVM's lowering pipeline.

Importing the package replaces the pipeline named ``s_tir``, through TVM's public
``register_tir_pipeline``, by one that lowers recorded decisions first, runs TVM's own passes, and
among the device passes mends a barrier that TVM forgets and provides our intrinsics. A function
that has nothing of ours in it comes out exactly as TVM makes it.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.tirx import compilation_pipeline

from tvm_streamk.analysis import analyze_function
from tvm_streamk.annotation import (
    ANNOTATION_KEY,
    KERNEL_MARK,
    TAKEN_KEY,
    Choice,
    RecordedDecision,
    decode,
)
from tvm_streamk.decide import check_recorded
from tvm_streamk.errors import InvalidAnnotation, MergeNotSupported, StreamKError
from tvm_streamk.expressions import Statement, collect, rebuild_block, static_value
from tvm_streamk.intrinsics import ProvideIntrinsics
from tvm_streamk.nest import root_block
from tvm_streamk.partition import DATA_PARALLEL
from tvm_streamk.rewrite import rewrite

PIPELINE_NAME = "s_tir"
GPU_TARGETS = ("cuda", "rocm", "opencl", "metal")
"""Targets whose kernels for GPU grids are known to be right, or at least to compile."""


def recorded_decision(function: Any) -> RecordedDecision | Choice | None:
    """The decision, or the tuner's choice, recorded in a function, or None."""
    body = getattr(function, "body", None)
    block = getattr(body, "block", None)
    if block is None or ANNOTATION_KEY not in block.annotations:
        return None
    return decode(block.annotations[ANNOTATION_KEY], block.annotations.get(TAKEN_KEY))


def lower_function(function: Any) -> Any:
    """The function with its recorded decision carried out.

    Raises
    ------
    InvalidAnnotation
        The annotation cannot be read, or does not fit the function: somebody changed one of them.
    """
    recorded = recorded_decision(function)
    if recorded is None:
        return function
    bare = without_annotation(function)
    if isinstance(recorded, Choice) and recorded.option.decomposition == DATA_PARALLEL:
        return bare
    try:
        nest = analyze_function(bare, recorded.block)
        decision = recorded.resolve(nest.num_tiles, nest.panels)
        if decision is None:
            return bare
        check_recorded(nest, decision)
    except InvalidAnnotation:
        raise
    except StreamKError as error:
        raise InvalidAnnotation(
            f"the recorded decision {recorded.encode()} does not fit the function: {error}",
            block=recorded.block,
            hint="record the decision again with sch.stream_k(..., lower=False).",
        ) from error
    return rewrite(nest, decision)


def without_annotation(function: Any) -> Any:
    """The function without its recorded decision."""
    root = root_block(function)
    own = (ANNOTATION_KEY, TAKEN_KEY)
    kept = {key: value for key, value in root.annotations.items() if key not in own}
    return function.with_body(s_tir.SBlockRealize([], True, rebuild_block(root, annotations=kept)))


@tvm.transform.module_pass(opt_level=0, name="tvm_streamk.LowerStreamK")
def _lower_stream_k(module: Any, _context: Any) -> Any:
    changed = {
        variable: lower_function(function)
        for variable, function in module.functions.items()
        if isinstance(function, tirx.PrimFunc) and recorded_decision(function) is not None
    }
    if not changed:
        return module
    return tvm.IRModule({**dict(module.functions.items()), **changed}, attrs=module.attrs)


def LowerStreamK() -> Any:
    """A module pass that rewrites every function with a recorded decision.

    Functions without one are left alone. The result is the module that ``sch.stream_k`` with
    ``lower=True`` gives.

    Returns
    -------
    tvm.transform.Pass

    Raises
    ------
    InvalidAnnotation
        When run: a recorded decision cannot be read or does not fit its function.
    """
    return _lower_stream_k


@tvm.transform.module_pass(opt_level=0, name="tvm_streamk.RepairZeroTripBarriers")
def RepairZeroTripBarriers(module: Any, _context: Any) -> Any:
    """Add the barrier that TVM forgets after a loop that may run zero times.

    TVM's ``ThreadSync`` counts a barrier inside a loop as passed even if the loop runs zero times,
    so that what follows may read shared memory that nobody has waited for. Its own software
    pipelines make such loops whenever the trip count is not constant. Stream-K makes trip counts
    that are not constant, so a barrier goes after every such loop. Loops of our own functions only
    are touched; their bounds are the same for all threads of a block.

    Raises
    ------
    MergeNotSupported
        A kernel of ours is for a target whose kernels nobody has looked at.
    """
    ours = {
        variable: function
        for variable, function in module.functions.items()
        if isinstance(function, tirx.PrimFunc) and _is_ours(function)
    }
    if not ours:
        return module
    for function in ours.values():
        _require_known_target(function)
    changed = {
        variable: function.with_body(_with_barriers(_without_marks(function.body)))
        for variable, function in ours.items()
    }
    return tvm.IRModule({**dict(module.functions.items()), **changed}, attrs=module.attrs)


def _require_known_target(function: Any) -> None:
    target = function.attrs.get("target")
    kind = None if target is None else str(target.kind.name)
    if kind not in (None, *GPU_TARGETS):
        raise MergeNotSupported(
            f"target {kind!r} has no Stream-K kernels; these have: {', '.join(GPU_TARGETS)}.",
            hint="compile the data-parallel nest for it.",
        )


def _is_ours(function: Any) -> bool:
    return any(mark.attr_key == KERNEL_MARK for mark in collect(function.body, tirx.AttrStmt))


def _without_marks(body: Statement) -> Statement:
    def strip(mark: Any) -> Any:
        return mark.body if mark.attr_key == KERNEL_MARK else mark

    return tvm_ffi.structural_map(body, (tirx.AttrStmt, strip), order="post")


def _with_barriers(body: Statement) -> Statement:
    def repair(step: Any) -> Any:
        if not (_may_run_zero_times(step) and _has_barrier(step.body)):
            return step
        barrier = tirx.call_intrin("int32", "tirx.tvm_storage_sync", ir.StringImm("shared"))
        return tirx.SeqStmt([step, tirx.Evaluate(barrier)])

    return tvm_ffi.structural_map(body, (tirx.For, repair), order="post")


def _may_run_zero_times(step: Any) -> bool:
    extent = static_value(step.extent)
    return extent is None or extent == 0


def _has_barrier(body: Statement) -> bool:
    def visit(call: Any) -> Any:
        if isinstance(call.op, ir.Op) and call.op.name == "tirx.tvm_storage_sync":
            return tvm_ffi.VisitInterrupt(1)
        return None

    return tvm_ffi.structural_walk(body, (ir.Call, visit), order="pre") is not None


def stream_k_pipeline(base: Any) -> Any:
    """A pipeline factory that puts our passes around those of ``base``, another factory."""

    def factory(**options: Any) -> Any:
        passes, finalize_host, finalize_device = base(**options)

        def finalize_device_with_repair() -> Any:
            own = [RepairZeroTripBarriers, ProvideIntrinsics]
            return tvm.transform.Sequential([*own, finalize_device()])

        return (
            tvm.transform.Sequential([LowerStreamK(), passes]),
            finalize_host,
            finalize_device_with_repair,
        )

    factory.tvm_streamk_base = base  # type: ignore[attr-defined]
    return factory


def register() -> None:
    """Put our pipeline in the place of TVM's ``s_tir``; doing it again changes nothing."""
    current = compilation_pipeline.PIPELINE_MAP[PIPELINE_NAME]
    if not hasattr(current, "tvm_streamk_base"):
        compilation_pipeline.register_tir_pipeline(PIPELINE_NAME, stream_k_pipeline(current))
