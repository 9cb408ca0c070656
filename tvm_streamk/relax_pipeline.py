# SPDX-License-Identifier: Apache-2.0
"""TVM's own pipeline for Relax models, with Stream-K in it.

``tvm.compile(module, target, relax_pipeline=relax_pipeline(target))`` compiles a model as TVM does,
with three changes: a tuning database is applied where one is current, TVM's list of DLight rules is
replaced by ours (:func:`tvm_streamk.dlight_rule.default_rules`), and the workspace of the kernels
is planned together with the model's other tensors (:mod:`tvm_streamk.relax_workspace`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.s_tir import meta_schedule
from tvm.target import Target

from tvm_streamk.annotation import ARGUMENT
from tvm_streamk.dlight_rule import (
    StreamK,
    Verdict,
    backend_pipeline,
    default_rules,
    scheduled_by,
)
from tvm_streamk.relax_workspace import PlanWorkspace
from tvm_streamk.report import VERDICTS_KEY, encode_verdict

PIPELINE_NAME = "stream_k"
IS_SCHEDULED = "tirx.is_scheduled"
"""TVM's mark on functions that no other rule shall schedule again."""

_TVM_SCHEDULING = "ApplyDefaultSchedule"


def relax_pipeline(
    target: Any = None,
    *,
    rules: Sequence[Any] | None = None,
    counters: str = ARGUMENT,
    **options: Any,
) -> Any:
    """TVM's pipeline for a target, with Stream-K where it pays.

    Parameters
    ----------
    target : tvm.target.Target, str or dict, optional
        What to compile for; the current target by default.
    rules : sequence of ScheduleRule, optional
        DLight rules instead of :func:`tvm_streamk.dlight_rule.default_rules`.
    counters : str
        As for :func:`tvm_streamk.relax_workspace.PlanWorkspace`.
    options
        ``num_sms``, ``device``, ``decomposition``, ``merge``, ``batch_invariant``, as for
        :class:`tvm_streamk.dlight_rule.StreamK`; not together with ``rules``.

    Returns
    -------
    tvm.transform.Pass
        For ``tvm.compile(module, target, relax_pipeline=...)``. Applied by hand, it gives a module
        that :func:`tvm_streamk.report` can read and that ``tvm.compile(module, target,
        relax_pipeline=None)`` builds.

    Raises
    ------
    ValueError
        No target is given and none is current.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_streamk.relax_pipeline")
    def pipeline(module: Any, _context: Any) -> Any:
        chosen = Target.current() if target is None else Target(target)
        own = default_rules(chosen, **options) if rules is None else rules
        with chosen:
            return tvm.transform.Sequential(_passes(chosen, own, counters))(module)

    return pipeline


def _passes(target: Any, rules: Sequence[Any], counters: str) -> list[Any]:
    backend = backend_pipeline(target)
    legalize = [
        step for step in backend.legalize_passes(target) if step.info.name != _TVM_SCHEDULING
    ]
    return [
        *backend.library_dispatch_passes(target),
        *legalize,
        *_database_passes(),
        ScheduleFunctions(rules),
        PlanWorkspace(counters),
        *backend.dataflow_lower_passes(target),
        *backend.finalize_passes(target),
    ]


def _database_passes() -> list[Any]:
    if meta_schedule.Database.current() is None:
        return []
    return [relax.transform.MetaScheduleApplyDatabase()]


def ScheduleFunctions(rules: Sequence[Any]) -> Any:
    """A module pass like ``dl.ApplyDefaultSchedule`` that also keeps every rule's verdict.

    Parameters
    ----------
    rules : sequence of ScheduleRule
        Tried in order on each function that is not scheduled yet; the first that applies wins.

    Returns
    -------
    tvm.transform.Pass
        It sets a module attribute, so that functions that no rule wants stay what they were.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_streamk.ScheduleFunctions")
    def schedule_functions(module: Any, _context: Any) -> Any:
        functions, verdicts = dict(module.functions.items()), {}
        for variable, function in module.functions.items():
            if not isinstance(function, tirx.PrimFunc):
                continue
            scheduled, verdict = _schedule(function, rules)
            verdicts[str(variable.name_hint)] = encode_verdict(verdict)
            if scheduled is not None:
                functions[variable] = scheduled
        changed = tvm.IRModule(functions, attrs=module.attrs)
        return changed.with_attr(VERDICTS_KEY, verdicts)

    return schedule_functions


def _schedule(function: Any, rules: Sequence[Any]) -> tuple[Any | None, Verdict]:
    if function.attrs.get(IS_SCHEDULED, 0) == 1:
        return None, Verdict("", "scheduled before, by a tuning database or by hand")
    target = function.attrs.get("target") or Target.current(allow_none=False)
    for rule in rules:
        base = rule.base_rule if isinstance(rule, StreamK) else rule
        given = scheduled_by(base, function, target)
        if not given:
            continue
        schedule = given[0]
        verdict = Verdict("", f"scheduled by {type(base).__name__}, which is not wrapped")
        if isinstance(rule, StreamK):
            schedule, verdict = rule.attempt(schedule, target)
        return schedule.mod["main"].with_attr(IS_SCHEDULED, True), verdict
    return None, Verdict("", "no rule applies")


def register() -> None:
    """Make the pipeline known to TVM by its name; doing it again changes nothing."""
    if PIPELINE_NAME not in relax.pipeline.PIPELINE_MAP:
        relax.pipeline.register_pipeline(PIPELINE_NAME)(relax_pipeline)
