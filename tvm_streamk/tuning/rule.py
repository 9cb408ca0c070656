# SPDX-License-Identifier: Apache-2.0
"""The schedule rule: offer the tuner a choice of decompositions beside TVM's own spaces."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from tvm import tirx
from tvm.ir.utils import derived_object
from tvm.s_tir import Schedule, meta_schedule
from tvm.s_tir.schedule import Trace

from tvm_streamk.analysis import Applicability, block_name, can_stream_k, only_function
from tvm_streamk.annotation import ANNOTATION_KEY, COUNTERS, TAKEN_KEY, Choice
from tvm_streamk.errors import NotAReductionBlock, SeveralKernels, StreamKError
from tvm_streamk.expressions import static_value
from tvm_streamk.tuning.errors import SymbolicShapes
from tvm_streamk.tuning.options import merges_for, options_for, probabilities
from tvm_streamk.tuning.processors import device_of

SAMPLES_OF_LOCATIONS = 16
"""How many samples may show that several nests become one. Where it is rarer, most candidates of
the space would be rejected."""


@derived_object
class StreamK(meta_schedule.schedule_rule.PyScheduleRule):
    """For every schedule with a fitting reduction: itself, and one with a sampled choice.

    The choice is among the data-parallel nest, splits of K, Stream-K and two-tile Stream-K on
    several grid sizes, with the merges that the target allows. It is recorded on the root block,
    where any rule before or after this one leaves it alone, and is carried out in the build
    pipeline. A block that does not fit leaves the schedule as it is; :func:`applicability` says
    why.

    Parameters
    ----------
    num_sms : int, optional
        Processors of the device; by default what the target of the tuning context tells.
    """

    def __init__(self, num_sms: int | None = None) -> None:
        super().__init__()
        self.num_sms = num_sms
        self.module: Any = None
        self.target: Any = None
        self.processors = 0

    def _initialize_with_tune_context(self, context: Any) -> None:
        self.module = context.mod
        self.target = context.target
        self.processors = device_of(context.target, self.num_sms).num_slots

    def apply(self, sch: Any, block: Any) -> list[Any]:
        """Give the schedule, and with a fitting block one more that carries a sampled choice."""
        if not applicability(sch, block, self.module):
            return [sch]
        return [sch, with_sampled_choice(sch, block, self.target, self.processors)]

    def clone(self) -> Any:
        """A rule of the same kind, to be initialized with a context of its own."""
        return StreamK(self.num_sms)


def with_sampled_choice(schedule: Any, block: Any, target: Any, processors: int) -> Any:
    """A copy of a schedule with a sampled choice among all options recorded on its root."""
    offered = schedule.copy()
    reduction = offered.get(block)
    dtype = str(reduction.writes[0].source.dtype)
    options = options_for(processors, merges_for(target, dtype), _depth(reduction))
    choice = Choice(block_name(offered, block), COUNTERS[0], options)
    taken = offered.sample_categorical(list(range(len(options))), probabilities(options))
    root = offered.get_sblock("root")
    offered.annotate(root, ANNOTATION_KEY, choice.encode())
    offered.annotate(root, TAKEN_KEY, taken)
    return offered


def applicability(schedule: Any, block: Any, module: Any = None) -> Applicability:
    """Whether the rule offers a choice for a block, with the reasons where it does not.

    The nest is judged before the postprocs have run. Where a block's place is still to be sampled
    (``SampleComputeLocation``), several nests may become one: then a few samples are tried, and
    the block fits if one of them does. The postprocessor judges every candidate anyway.

    Parameters
    ----------
    schedule : tvm.s_tir.Schedule
        At any stage of MetaSchedule's rules. It is not changed.
    block : str or SBlockRV
        Any block.
    module : tvm.IRModule, optional
        What the schedule started from, so that its trace can be sampled anew.

    Returns
    -------
    Applicability
    """
    name = ""
    try:
        name = block_name(schedule, block)
        function = only_function(schedule.mod)
        _require_reduction(schedule, block, name)
        require_constant_shapes(function, name)
    except StreamKError as error:
        return Applicability(name, (error,))
    verdict = can_stream_k(schedule, block)
    has_several_nests = any(isinstance(reason, SeveralKernels) for reason in verdict.reasons)
    if has_several_nests and module is not None and _has_open_locations(schedule):
        fits = any(can_stream_k(each, name) for each in _samples(schedule, module))
        return Applicability(name) if fits else verdict
    return verdict


def _samples(schedule: Any, module: Any) -> Iterator[Any]:
    """Schedules from the same instructions, with every decision sampled anew."""
    undecided = Trace(schedule.trace.insts, {})
    for seed in range(1, SAMPLES_OF_LOCATIONS + 1):
        sampled = Schedule(module, seed=seed)
        undecided.apply_to_schedule(sampled, remove_postproc=True)
        yield sampled


def _require_reduction(schedule: Any, block: Any, name: str) -> None:
    if isinstance(block, str):
        return
    if not any(_is_reduction(each) for each in schedule.get(block).iter_vars):
        raise NotAReductionBlock(
            "none of its iterators is a reduction.", block=name, hint="nothing: there is no K."
        )


def require_constant_shapes(function: Any, name: str) -> None:
    """Refuse symbolic shapes on purpose: TVM cannot resample their traces."""
    for parameter in function.params:
        shape = getattr(parameter.ty, "shape", None)
        extents = [static_value(extent) for extent in shape or ()]
        if shape is None or None in extents:
            raise SymbolicShapes(
                f"the parameter `{parameter.name}` is "
                f"{'a number' if shape is None else f'of shape {list(shape)}'}.",
                block=name,
                hint="tune a function of constant shapes; for symbolic ones apply sch.stream_k to "
                "a fixed schedule.",
            )


def _has_open_locations(schedule: Any) -> bool:
    kinds = {str(instruction.kind.name) for instruction in schedule.trace.insts}
    return "SampleComputeLocation" in kinds and "RFactor" not in kinds


def _is_reduction(iterator: Any) -> bool:
    return bool(iterator.iter_type == tirx.IterVar.CommReduce)


def _depth(reduction: Any) -> int:
    extents = [each.dom.extent for each in reduction.iter_vars if _is_reduction(each)]
    return math.prod(static_value(extent) or 1 for extent in extents)
