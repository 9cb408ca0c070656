# SPDX-License-Identifier: Apache-2.0
"""Ways into TVM's own entry points that take no design space as an argument."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tvm
import tvm_ffi
from tvm.s_tir import meta_schedule

from tvm_streamk.tuning.builder import builder
from tvm_streamk.tuning.processors import device_of
from tvm_streamk.tuning.rule import applicability, with_sampled_choice
from tvm_streamk.tuning.runner import runner
from tvm_streamk.tuning.space import space_generator, tensor_intrinsics_for
from tvm_streamk.tuning.tune import xgboost_model

RULE_NAME = "stream_k"
_RULE_ANNOTATION = "schedule_rule"
_TUNE_TIR = "tvm.s_tir.meta_schedule.tune_tir"
_TUNE_RELAX = "tvm.s_tir.meta_schedule.tune_relax"


def register_schedule_rule(target: Any, num_sms: int | None = None, name: str = RULE_NAME) -> str:
    """Let blocks ask for Stream-K by their annotation ``schedule_rule``, in any design space.

    TVM's rule ``ApplyCustomRule`` looks such an annotation up among its global functions. The
    block is then tiled by the rules of the design space, as without the annotation, and the
    choice of the decomposition is added. Without :class:`VerifyStreamK` among the postprocessors,
    a choice that does not fit is found by the builder only, and that trial is lost.

    Parameters
    ----------
    target : str, dict or tvm.target.Target
        The rule is registered for targets of this kind.
    num_sms : int, optional
        Processors of the device, where the target does not tell.
    name : str
        The annotation's value.

    Returns
    -------
    str
        The name of the global function; registering again replaces it.

    Raises
    ------
    WorkersUnknown
        Nothing tells how many processors the target has.
    """
    processors = device_of(target, num_sms).num_slots
    target = tvm.target.Target(target)
    symbol = f"s_tir.meta_schedule.{target.keys[0]}.{name}"

    def offer(schedule: Any, block: Any) -> list[Any]:
        # The annotation would keep every later rule away from the block, the tiling included.
        schedule.unannotate(block, _RULE_ANNOTATION)
        if not applicability(schedule, block):
            return [schedule]
        return [schedule, with_sampled_choice(schedule, block, target, processors)]

    tvm_ffi.register_global_func(symbol, offer, override=True)
    return symbol


@contextlib.contextmanager
def in_tuning_passes(target: Any, num_sms: int | None = None) -> Iterator[None]:
    """Let TVM's tuning passes use our design space, builder, runner and cost model.

    ``relax.transform.MetaScheduleTuneTIR``, ``MetaScheduleTuneIRMod`` and the pipeline
    ``static_shape_tuning`` call global functions, which are replaced inside this context.

    Parameters
    ----------
    target : str, dict or tvm.target.Target
        The target of the passes.
    num_sms : int, optional
        Processors of the device, where the target does not tell.

    Raises
    ------
    WorkersUnknown
        Nothing tells how many processors the target has.
    """
    processors = device_of(target, num_sms).num_slots
    target = tvm.target.Target(target)

    def ours() -> dict[str, Any]:
        return {
            "space": space_generator(target, processors),
            "builder": builder(target),
            "runner": runner(target),
            "cost_model": xgboost_model(processors),
        }

    def tune_tir(module: Any, pass_target: Any, work_dir: str, trials: int) -> Any:
        with tensor_intrinsics_for(target):
            meta_schedule.tune_tir(module, pass_target, work_dir, int(trials), **ours())
        return module

    def tune_relax(
        module: Any,
        parameters: Any,
        pass_target: Any,
        work_dir: str,
        trials: int,
        trials_per_task: Any = None,
        names: Any = None,
    ) -> Any:
        per_task = None if trials_per_task is None else int(trials_per_task)
        with tensor_intrinsics_for(target):
            meta_schedule.relax_integration.tune_relax(
                module, parameters, pass_target, work_dir, int(trials), per_task, names, **ours()
            )
        return module

    with _replaced(_TUNE_TIR, tune_tir), _replaced(_TUNE_RELAX, tune_relax):
        yield


@contextlib.contextmanager
def _replaced(name: str, function: Callable[..., Any]) -> Iterator[None]:
    """A global function of TVM replaced for a while."""
    original = tvm_ffi.get_global_func(name)
    tvm_ffi.register_global_func(name, function, override=True)
    try:
        yield
    finally:
        tvm_ffi.register_global_func(name, original, override=True)
