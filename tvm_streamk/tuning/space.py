# SPDX-License-Identifier: Apache-2.0
"""TVM's design space for a target, with ours in it."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import te
from tvm.s_tir import meta_schedule

from tvm_streamk.tuning.mutator import MutateStreamK
from tvm_streamk.tuning.postproc import VerifyStreamK
from tvm_streamk.tuning.processors import device_of
from tvm_streamk.tuning.rule import StreamK
from tvm_streamk.tuning.slow_import import INTRINSICS_MODULE, without_tensor_intrinsics

MUTATION_WEIGHT = 0.2
"""Weight of another decision against 0.9 for another tile size: sizes have far more values."""


@dataclass(frozen=True)
class DefaultSpace:
    """What TVM itself uses for a target.

    ``uses_tensor_intrinsics`` tells whether one of the rules names a tensor intrinsic.
    """

    rules: tuple[Any, ...]
    postprocs: tuple[Any, ...]
    mutators: Mapping[Any, float]
    uses_tensor_intrinsics: bool


def space_generator(target: Any, num_sms: int | None = None) -> Any:
    """TVM's default design space for a target, with Stream-K in it.

    The rule comes behind TVM's rules, since it looks for what they made; the postprocessor behind
    TVM's postprocessors, since it judges the final nest.

    Parameters
    ----------
    target : str, dict or tvm.target.Target
        For a CPU with ``num-cores``.
    num_sms : int, optional
        Processors of the device, where the target does not tell.

    Returns
    -------
    tvm.s_tir.meta_schedule.space_generator.PostOrderApply
        For ``space=`` of ``ms.tune_tir``, ``ms.relax_integration.tune_relax`` and ``tune``.

    Raises
    ------
    WorkersUnknown
        Nothing tells how many processors the target has.
    """
    processors = device_of(target, num_sms).num_slots
    default = default_space(tvm.target.Target(target))
    return meta_schedule.space_generator.PostOrderApply(
        sch_rules=[*default.rules, StreamK(processors)],
        postprocs=[*default.postprocs, VerifyStreamK(processors)],
        mutator_probs={**default.mutators, MutateStreamK(): MUTATION_WEIGHT},
    )


def default_space(target: Any) -> DefaultSpace:
    """TVM's own rules, postprocessors and mutators for a target: those it fills in itself."""
    try:
        with without_tensor_intrinsics():
            return _filled_in(target, uses_tensor_intrinsics=False)
    except ValueError as error:
        if "TensorIntrin" not in str(error):
            raise
    importlib.import_module(INTRINSICS_MODULE)
    return _filled_in(target, uses_tensor_intrinsics=True)


def tensor_intrinsics_for(target: Any) -> contextlib.AbstractContextManager[None]:
    """A context in which TVM may tune for the target, importing no more than it needs."""
    if default_space(target).uses_tensor_intrinsics:
        return contextlib.nullcontext()
    return without_tensor_intrinsics()


def _filled_in(target: Any, uses_tensor_intrinsics: bool) -> DefaultSpace:
    """Let TVM initialize an empty generator, and take what it put there."""
    space = meta_schedule.space_generator.PostOrderApply()
    meta_schedule.TuneContext(mod=_copy(), target=target, space_generator=space)
    return DefaultSpace(
        tuple(rule.clone() for rule in space.sch_rules),
        tuple(postproc.clone() for postproc in space.postprocs),
        {mutator.clone(): float(weight) for mutator, weight in space.mutator_probs.items()},
        uses_tensor_intrinsics,
    )


def _copy() -> Any:
    """The smallest function that TVM's mutators can be initialized with."""
    source = te.placeholder((1,), name="A")
    return te.create_prim_func([source, te.compute((1,), lambda i: source[i], name="B")])
