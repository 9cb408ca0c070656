# SPDX-License-Identifier: Apache-2.0
"""The ways into TVM's own entry points that take no design space."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tvm
import tvm_ffi
import workloads
from load_tuning_database import relax_module
from tuning_samples import LLVM, OPENCL, decision_of, default_context, is_ours, own_spaces, sample
from tvm import relax, te
from tvm.s_tir import Schedule, meta_schedule

from tvm_streamk.errors import WorkersUnknown
from tvm_streamk.meta_schedule_rule import in_tuning_passes, register_schedule_rule

GEMM = workloads.gemm(48, 32, 516).function
NAMES = ("tvm.s_tir.meta_schedule.tune_tir", "tvm.s_tir.meta_schedule.tune_relax")


@pytest.fixture
def registered() -> Iterator[str]:
    symbol = register_schedule_rule(OPENCL, name="stream_k_for_tests")
    yield symbol
    tvm_ffi.remove_global_func(symbol)


def asking_for(function: Any, rule: str) -> Any:
    """The function with the annotation on its reduction block."""
    schedule = Schedule(tvm.IRModule({"main": function}))
    schedule.annotate(schedule.get_sblock("C"), "schedule_rule", rule)
    return schedule.mod["main"]


def test_a_block_may_ask_for_stream_k_in_tvms_own_space(registered: str) -> None:
    assert registered == "s_tir.meta_schedule.opencl.stream_k_for_tests"
    tuning = default_context(asking_for(GEMM, "stream_k_for_tests"), OPENCL)
    plain, ours = sorted(tuning.generate_design_space(), key=is_ours)
    assert not is_ours(plain)
    (same,) = own_spaces(tuning)
    assert is_ours(ours) and is_ours(same)
    # The block is tiled all the same: the choice only comes on top.
    assert "blockIdx.x" in ours.mod.script()
    assert "schedule_rule" not in ours.mod.script()
    assert decision_of(sample(tuning, ours, seed=1)).block == "C"


def test_a_block_that_does_not_fit_gets_tvms_rules(registered: str) -> None:
    source = te.placeholder((64, 64), name="A")
    copy = te.compute((64, 64), lambda *index: source(*index) + 1, name="C")
    function = asking_for(te.create_prim_func([source, copy]), "stream_k_for_tests")
    spaces = default_context(function, OPENCL).generate_design_space()
    assert not any(map(is_ours, spaces))


def test_a_rule_needs_a_processor_count() -> None:
    with pytest.raises(WorkersUnknown):
        register_schedule_rule({"kind": "cuda", "arch": "sm_70"})


class Called:
    """Stands in for TVM's tuning functions, and keeps what they are called with."""

    def __init__(self) -> None:
        self.keywords: dict[str, Any] = {}

    def __call__(self, *_arguments: Any, **keywords: Any) -> None:
        self.keywords = keywords

    @property
    def rules(self) -> int:
        return len(self.keywords["space"].sch_rules)


def passes(folder: Path) -> dict[str, Any]:
    with tvm.target.Target(LLVM):
        return {
            "tune_tir": relax.transform.MetaScheduleTuneTIR(str(folder), 2),
            "tune_relax": relax.transform.MetaScheduleTuneIRMod({}, str(folder), 2, 1),
        }


@pytest.mark.parametrize(
    ("where", "name"),
    [(meta_schedule, "tune_tir"), (meta_schedule.relax_integration, "tune_relax")],
    ids=["tune_tir", "tune_relax"],
)
def test_tuning_passes_use_our_space(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: Any, name: str
) -> None:
    called = Called()
    monkeypatch.setattr(where, name, called)
    module = tvm.relax.get_pipeline("zero")(relax_module())
    theirs = default_context(GEMM, LLVM).space_generator
    with in_tuning_passes(LLVM):
        passes(tmp_path)[name](module)
    assert called.rules == len(theirs.sch_rules) + 1
    assert {"builder", "runner", "cost_model"} <= set(called.keywords)


def test_outside_of_the_context_tvms_own_functions_are_back() -> None:
    before = [tvm_ffi.get_global_func(name) for name in NAMES]
    with in_tuning_passes(LLVM):
        inside = [tvm_ffi.get_global_func(name) for name in NAMES]
    after = [tvm_ffi.get_global_func(name) for name in NAMES]
    for old, ours, new in zip(before, inside, after, strict=True):
        assert new.same_as(old)
        assert not ours.same_as(old)
