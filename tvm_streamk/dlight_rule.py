# SPDX-License-Identifier: Apache-2.0
"""Stream-K for models that nobody tunes: a DLight rule around any other rule.

:class:`StreamK` lets the rule that it wraps schedule a function, then asks the policy whether that
nest should be streamed, and records the decision in the schedule. It neither refuses nor raises:
where Stream-K does not fit, what the wrapped rule made comes out as it is, and where the wrapped
rule does not fit either, ``None``.

The decision is recorded and not yet carried out: the build pipeline does that
(:func:`tvm_streamk.LowerStreamK`), or a pass of the model pipeline that also makes the workspace
visible to the memory planner (:mod:`tvm_streamk.relax_workspace`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import s_tir
from tvm.relax import backend as relax_backend
from tvm.s_tir.dlight.base import ScheduleRule

from tvm_streamk.analysis import only_function
from tvm_streamk.annotation import PROLOGUE
from tvm_streamk.candidates import MIN_PANELS
from tvm_streamk.cpu_gemm_rule import CpuGemm
from tvm_streamk.decide import AUTO
from tvm_streamk.devices import Device
from tvm_streamk.errors import StreamKError
from tvm_streamk.expressions import static_value
from tvm_streamk.nest import block_paths, find_parts, reduction_iterators, root_block
from tvm_streamk.partition import DATA_PARALLEL
from tvm_streamk.plan import Plan
from tvm_streamk.primitive import stream_k

LEAST_SYMBOLIC_PANELS = 2 * MIN_PANELS
"""Fewest panels of a tile to be streamed where the number of tiles is symbolic: it may be 1."""

RULE_FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What DLight's rules raise for functions that they were not written for. (TVM's own errors are
``RuntimeError``\\ s.)"""


@dataclass(frozen=True)
class Verdict:
    """What became of one function, and why.

    Attributes
    ----------
    decision
        ``data_parallel`` where the nest stays as it is, else the decomposition; empty where no
        rule applies.
    reason
        In words and numbers.
    plan
        Where the policy was asked and had an answer.
    """

    decision: str
    reason: str
    plan: Plan | None = None

    @property
    def streams(self) -> bool:
        """Whether the function becomes a Stream-K kernel."""
        return self.decision not in ("", DATA_PARALLEL)


@dataclass(frozen=True)
class Options:
    """What is passed on to ``sch.stream_k``; see there."""

    num_sms: int | None = None
    device: Device | str | None = None
    decomposition: str = AUTO
    merge: str = AUTO
    counters: str = PROLOGUE
    batch_invariant: bool = False


class StreamK(ScheduleRule):
    """Schedule with another rule, then stream the nest where that pays.

    Parameters
    ----------
    base_rule : tvm.s_tir.dlight.ScheduleRule
        Any rule: one of ``dl.gpu``, :class:`tvm_streamk.cpu_gemm_rule.CpuGemm`, a user's own.
    num_sms : int, optional
        Processors. By default the target tells: a CPU's ``num-cores`` (else the threads that TVM
        uses here), a GPU's tag, the GPU that is present.
    device : Device or str, optional
        Whose constants the cost model uses, as a record or a known name.
    decomposition, merge, batch_invariant
        As for ``sch.stream_k``.

    Examples
    --------
    >>> from tvm.s_tir import dlight as dl
    >>> rules = [StreamK(dl.gpu.Matmul(), num_sms=132), dl.gpu.Fallback()]
    >>> dl.ApplyDefaultSchedule(*rules)  # doctest: +ELLIPSIS
    <...>
    """

    def __init__(
        self,
        base_rule: ScheduleRule,
        *,
        num_sms: int | None = None,
        device: Device | str | None = None,
        decomposition: str = AUTO,
        merge: str = AUTO,
        batch_invariant: bool = False,
    ) -> None:
        self.base_rule = base_rule
        self.options = Options(
            num_sms, device, decomposition, merge, batch_invariant=batch_invariant
        )

    def apply(self, func: Any, target: Any, tunable: bool = False) -> Any:
        """Schedule a function; see :class:`tvm.s_tir.dlight.base.ScheduleRule`.

        Returns
        -------
        Schedule, list of Schedule, or None
            As many as the wrapped rule gives; ``None`` where it does not apply.
        """
        given = scheduled_by(self.base_rule, func, target, tunable)
        if given is None:
            return None
        schedules = [self.attempt(schedule, target)[0] for schedule in given]
        return schedules if tunable else schedules[0]

    def attempt(self, schedule: Any, target: Any) -> tuple[Any, Verdict]:
        """Decide about a schedule that the wrapped rule has made.

        Parameters
        ----------
        schedule : Schedule
            Annotated where the decision is to stream, else left as it is.
        target : tvm.target.Target
            What the schedule is for.

        Returns
        -------
        Schedule, Verdict
        """
        options = self.options
        if options.num_sms is None and options.device is None:
            options = replace(options, num_sms=processors_of_cpu(target))
        try:
            with target:
                return schedule, _stream(schedule, options)
        except RULE_FAULTS as error:
            return schedule, Verdict(DATA_PARALLEL, f"stream_k failed: {_first_line(error)}")


def scheduled_by(rule: Any, func: Any, target: Any, tunable: bool = False) -> list[Any] | None:
    """The schedules that a rule gives, or None: a rule that fails does not apply.

    Parameters
    ----------
    rule : ScheduleRule
        Any DLight rule.
    func : PrimFunc
        The function to schedule.
    target : tvm.target.Target
        What it is for.
    tunable : bool
        Whether the rule may leave choices open.
    """
    try:
        given = rule.apply(func, target, tunable)
    except RULE_FAULTS:
        return None
    return [given] if isinstance(given, s_tir.Schedule) else given


def processors_of_cpu(target: Any) -> int | None:
    """The processors of a CPU target: its ``num-cores``, else TVM's threads on this machine.

    None for other targets: there the primitive itself finds out.
    """
    if target.kind.name != "llvm":
        return None
    cores = target.attrs.get("num-cores")
    return int(cores) if cores is not None else int(_threads_here())


def _threads_here() -> int:
    count: Callable[[], int] = tvm.get_global_func("runtime.NumThreads")
    return count()


def _stream(schedule: Any, options: Options) -> Verdict:
    """Annotate the first reduction block that fits, or say why none does."""
    function = only_function(schedule.mod)
    is_open = _is_symbolic(function) and options.decomposition == AUTO
    refusal: StreamKError | None = None
    for name in _reduction_blocks(function):
        try:
            if is_open and (panels := _panels(function, name)) < LEAST_SYMBOLIC_PANELS:
                return Verdict(DATA_PARALLEL, _too_few(panels))
            plan = stream_k(schedule, name, lower=False, **vars(options))
        except StreamKError as error:
            refusal = refusal or error
            continue
        return Verdict(plan.decision.decomposition, "; ".join(plan.notes) or _asked(plan), plan)
    if refusal is None:
        return Verdict(DATA_PARALLEL, "no block adds anything up")
    return Verdict(DATA_PARALLEL, f"{type(refusal).__name__}: {_short(refusal.message)}")


def _is_symbolic(function: Any) -> bool:
    shapes = [parameter.shape for parameter in function.params if hasattr(parameter, "shape")]
    return any(static_value(extent) is None for shape in shapes for extent in shape)


def _panels(function: Any, block: str) -> int:
    """The panels of a tile, before the nest is analysed, which takes longer than all else."""
    extent = static_value(find_parts(function, block).panel_loop.extent)
    return LEAST_SYMBOLIC_PANELS if extent is None else extent


def _too_few(panels: int) -> str:
    return (
        f"shapes are symbolic, and {panels} panels per tile are too few to share a single tile: "
        f"two workers need {MIN_PANELS} each"
    )


def _asked(plan: Plan) -> str:
    if plan.num_tiles is not None:
        return "the decomposition was given"
    return (
        f"the number of tiles is symbolic: at run time, at most {plan.num_workers - 1} of them are "
        f"cut, and none where all {plan.num_workers} workers get as many"
    )


def _reduction_blocks(function: Any) -> list[str]:
    return [
        str(path.block.name_hint)
        for path in block_paths(root_block(function).body)
        if reduction_iterators(path.realize)
    ]


LONGEST_REASON = 200


def _short(message: str) -> str:
    return message if len(message) <= LONGEST_REASON else f"{message[:LONGEST_REASON]} ..."


def _first_line(error: Exception) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return _short(f"{type(error).__name__}: {text}")


def default_rules(target: Any, **options: Any) -> list[ScheduleRule]:
    """TVM's own list of rules for a target, with Stream-K around those that tile reductions.

    Parameters
    ----------
    target : tvm.target.Target
        A GPU target: what TVM's pipeline for it applies, each rule wrapped. An llvm target, for
        which TVM has no rule: :class:`tvm_streamk.cpu_gemm_rule.CpuGemm`, wrapped.
    options
        Passed on to :class:`StreamK`.

    Returns
    -------
    list of ScheduleRule
        For ``dl.ApplyDefaultSchedule``, or :func:`tvm_streamk.relax_pipeline`.
    """
    target = tvm.target.Target(target)
    if target.kind.name == "llvm":
        return [StreamK(CpuGemm(), **options)]
    return [StreamK(rule, **options) for rule in rules_of_pipeline(target)]


def rules_of_pipeline(target: Any) -> Sequence[ScheduleRule]:
    """The DLight rules in TVM's own pipeline for a target, in their order."""
    passes = backend_pipeline(target).legalize_passes(target)
    return [rule for step in passes for rule in getattr(step, "rules", ())]


def backend_pipeline(target: Any) -> Any:
    """TVM's module with the pipeline for a target."""
    kind = str(target.kind.name)
    if kind == "opencl" and "adreno" in target.keys:
        return relax_backend.adreno
    modules = {
        "cuda": relax_backend.cuda.pipeline,
        "rocm": relax_backend.rocm.pipeline,
        "llvm": relax_backend.cpu_generic.pipeline,
    }
    return modules.get(kind, relax_backend.gpu_generic.pipeline)
