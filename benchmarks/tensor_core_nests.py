# SPDX-License-Identifier: Apache-2.0
"""Products as TVM's own generators tile them for tensor cores, ready for ``sch.stream_k``.

DLight's matmul rule, and MetaSchedule's tensor-core rules: the one that it applies by itself, which
has two sketches through ``wmma``, and the one for ``mma.sync``, which it applies where the first is
left out. Used by ``registers.py`` and by the tests.

Importing TVM's tensor intrinsics, which both generators need, takes some 20 seconds.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from typing import Any

import tvm
from tvm import te
from tvm.s_tir import Schedule, dlight
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import Trace

import tvm_streamk

A100 = "nvidia/nvidia-a100"
RULES = "cuda-tensorcore"
MMA = "mma"
MMA_STEP = 32
"""TVM cannot lay out its shared memory for panels of less depth, or of no multiple of it."""
PASS_CONFIG = {"tirx.merge_static_smem": True}
"""Without it, TVM 0.27 lets float16 and float32 share one static buffer and fails to lower
MetaSchedule's kernels."""
MOST_SEEDS = 400
FEW_TILES = range(2, 40)
FEWEST_PANELS = 4
MOST_PER_LANE = 128
"""Accumulators of one lane: with more, the data-parallel kernels themselves spill."""


def product(
    shape: tuple[int, int, int],
    in_dtype: str,
    sum_dtype: str,
    out_dtype: str | None = None,
    *,
    transposed: bool = True,
) -> Any:
    """An unscheduled product of A, m by k, and B.

    Parameters
    ----------
    shape
        m, n and k.
    in_dtype, sum_dtype
        Of both operands, and of the products and sums.
    out_dtype
        Of the output ``D``, a cast of the sums; by default the sums are the output.
    transposed
        Whether B is n by k, as DLight likes it, or k by n, as MetaSchedule's ``mma.sync`` needs it.

    Returns
    -------
    tvm.tirx.PrimFunc
        Parameters A, B and the output; the reduction block is called ``C``.
    """
    m, n, k = shape
    left = te.placeholder((m, k), in_dtype, name="A")
    right = te.placeholder((n, k) if transposed else (k, n), in_dtype, name="B")
    depth = te.reduce_axis((0, k), name="k")

    def element(i: Any, j: Any) -> Any:
        other = right[j, depth] if transposed else right[depth, j]
        return te.sum(left[i, depth].astype(sum_dtype) * other.astype(sum_dtype), axis=depth)

    sums = te.compute((m, n), element, name="C")
    if out_dtype in (None, sum_dtype):
        return te.create_prim_func([left, right, sums])
    output = te.compute((m, n), lambda i, j: sums[i, j].astype(out_dtype), name="D")
    return te.create_prim_func([left, right, output])


def dlight_schedule(function: Any) -> Schedule:
    """What ``dl.gpu.Matmul`` makes of a product on an A100; the reduction block is ``C_o_update``.

    With int8 inputs the software pipeline is taken out: TVM 0.27 cannot lower it, with or without
    Stream-K (``InjectSoftwarePipeline`` fails).
    """
    with tvm.target.Target(A100):
        module = dlight.ApplyDefaultSchedule(dlight.gpu.Matmul())(tvm.IRModule({"main": function}))
    schedule = Schedule(module)
    operand = next(iter(function.params))
    if str(operand.dtype) == "int8":
        _without_pipeline(schedule)
    return schedule


def reduction_block(schedule: Schedule) -> str:
    """The name of the block that adds up: the tensorized one where there is one."""
    names = {str(schedule.get(block).name_hint) for block in _leaf_blocks(schedule)}
    return next(name for name in ("C_o_update", "C_update", "C") if name in names)


def metaschedule_schedule(function: Any, sketch: int | str, panels_multiple: int = 1) -> Schedule:
    """One of MetaSchedule's tensor-core sketches, with the first tile sizes that serve.

    Parameters
    ----------
    function
        A product with float16 inputs.
    sketch
        0 or 1, through ``wmma``: to store the fragments to the output through shared memory, one
        takes a whole tile at a time, the other a row of fragments. Or ``"mma"``: with a software
        pipeline, and straight from registers to the output.
    panels_multiple
        What the number of panels is to be a multiple of.
    """
    is_mma = sketch == MMA
    space, sketches = _sketches(tvm.ir.save_json(function), is_mma)
    samples = _samples(function, sketches[0 if is_mma else int(sketch)], space)
    depth = int(function.params[0].shape[-1])
    step = MMA_STEP if is_mma else 1
    return next(
        sample
        for sample, panels in samples
        if panels % panels_multiple == 0 and depth // panels % step == 0
    )


@functools.cache
def _sketches(function_json: str, is_mma: bool) -> tuple[Any, list[Schedule]]:
    function = tvm.ir.load_json(function_json)
    # The rules exist only once the intrinsics that they name do.
    importlib.import_module("tvm.s_tir.tensor_intrin")
    rules = list(ms.schedule_rule.ScheduleRule.create(RULES))
    wmma, mma = (rule for rule in rules if "TensorCore" in str(rule))
    left_out = wmma if is_mma else mma
    space = ms.space_generator.PostOrderApply(
        sch_rules=[rule for rule in rules if not rule.same_as(left_out)],
        postprocs=RULES,
        mutator_probs=RULES,
    )
    context = ms.TuneContext(
        mod=tvm.IRModule({"main": function}),
        target=tvm.target.Target(A100),
        space_generator=space,
        task_name="product",
    )
    return space, list(context.generate_design_space())


def _samples(function: Any, sketch: Schedule, space: Any) -> Iterator[tuple[Schedule, int]]:
    """The sketch with random tile sizes that all postprocs accept, and its panels."""
    for seed in range(1, MOST_SEEDS):
        sample = Schedule(tvm.IRModule({"main": function}), seed=seed)
        Trace(sketch.trace.insts, {}).apply_to_schedule(sample, remove_postproc=True)
        sample.enter_postproc()
        if not all(postproc.apply(sample) for postproc in space.postprocs):
            continue
        nest = tvm_streamk.analyze(sample, reduction_block(sample))
        fits = (
            nest.num_tiles in FEW_TILES
            and nest.elements.per_thread <= MOST_PER_LANE
            # With 3 warps, TVM vectorizes index arithmetic into types that CUDA does not have.
            and nest.elements.threads.bit_count() == 1
        )
        if fits and nest.panels >= FEWEST_PANELS:
            yield sample, nest.panels


def _leaf_blocks(schedule: Schedule) -> list[Any]:
    return list(schedule.get_child_blocks(schedule.get_sblock("root")))


def _without_pipeline(schedule: Schedule) -> None:
    for loop in schedule.get_loops("C_o_update"):
        for key in list(schedule.get(loop).annotations):
            if "pipeline" in key:
                schedule.unannotate(loop, key)
