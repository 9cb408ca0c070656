# SPDX-License-Identifier: Apache-2.0
"""The schedule rule and the space it makes: TVM's spaces, and beside them ours."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
import tvm_ffi
import workloads
from tuning_samples import (
    CUDA,
    LLVM,
    OPENCL,
    accepted,
    context,
    decision_of,
    default_context,
    is_ours,
    own_spaces,
    sample,
)
from tvm import te
from tvm.s_tir import Schedule, meta_schedule
from tvm.s_tir.meta_schedule.testing.te_workload import create_te_workload
from tvm.s_tir.schedule.testing import verify_trace_roundtrip

from tvm_streamk import LowerStreamK
from tvm_streamk.annotation import ANNOTATION_KEY, TAKEN_KEY, Choice
from tvm_streamk.errors import WorkersUnknown
from tvm_streamk.meta_schedule_rule import StreamK, applicability, space_generator
from tvm_streamk.pipeline import without_annotation

GEMM = workloads.gemm(48, 32, 516).function
GPU_SMS = 108
TE_WORKLOADS = (
    "C1D", "C2D", "C3D", "GMM", "DIL", "DEP", "T2D", "GRP", "NRM", "SFM", "CBR", "TBG",
)  # fmt: skip
SAMPLES_PER_SPACE = 3
SEEDS = 60


def elementwise() -> Any:
    source = te.placeholder((64, 64), name="A")
    return te.create_prim_func([source, te.compute((64, 64), lambda *i: source(*i) + 1, name="C")])


def text_of(schedule: Schedule) -> str:
    """The instructions of a design space, without what is sampled."""
    return "\n".join(str(each.kind.name) for each in schedule.trace.insts)


# -- the space -------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [LLVM, OPENCL, CUDA], ids=lambda target: target["kind"])
def test_a_product_has_all_of_tvms_spaces_and_ours(target: Any) -> None:
    theirs = default_context(GEMM, target).generate_design_space()
    both = context(GEMM, target, num_sms=GPU_SMS).generate_design_space()
    plain = [space for space in both if not is_ours(space)]
    assert sorted(map(text_of, plain)) == sorted(map(text_of, theirs))
    own = [space for space in both if is_ours(space)]
    assert own
    # The instructions of a space of ours are those of one of TVM's, then the choice.
    recorded = "\nSampleCategorical\nGetSBlock\nAnnotate\nAnnotate"
    assert {text_of(space) for space in own} <= {text_of(space) + recorded for space in theirs}


@pytest.mark.parametrize("target", [LLVM, OPENCL], ids=lambda target: target["kind"])
def test_without_a_fitting_reduction_the_space_is_tvms(target: Any) -> None:
    theirs = default_context(elementwise(), target).generate_design_space()
    both = context(elementwise(), target).generate_design_space()
    assert [text_of(space) for space in both] == [text_of(space) for space in theirs]


def test_a_reduction_that_tvm_split_itself_is_left_alone() -> None:
    spaces = context(workloads.gemm(4, 4, 4096).function, LLVM).generate_design_space()
    split = [space for space in spaces if "RFactor" in text_of(space)]
    assert split
    assert not any(is_ours(space) for space in split)


def test_the_rules_stand_where_they_have_to() -> None:
    space = context(GEMM, OPENCL).space_generator
    theirs = default_context(GEMM, OPENCL).space_generator
    for ours, default in ((space.sch_rules, theirs.sch_rules), (space.postprocs, theirs.postprocs)):
        assert [type(each) for each in ours[:-1]] == [type(each) for each in default]
    assert len(space.mutator_probs) == len(theirs.mutator_probs) + 1


def test_the_choice_is_replayed_from_text_and_json() -> None:
    tuning = context(GEMM, OPENCL)
    (space,) = own_spaces(tuning)
    verify_trace_roundtrip(space, tuning.mod, text_format=["json", "python"])


def test_the_choice_changes_nothing_but_the_root() -> None:
    theirs, ours = context(GEMM, OPENCL).generate_design_space()
    plain, chosen = (theirs, ours) if is_ours(ours) else (ours, theirs)
    bare = without_annotation(chosen.mod["main"])
    assert tvm_ffi.structural_equal(bare, plain.mod["main"])


def test_options_are_sampled() -> None:
    tuning = context(GEMM, OPENCL)
    (space,) = own_spaces(tuning)
    taken = {decision_of(sample(tuning, space, seed)).option for seed in range(1, SEEDS)}
    assert {option.decomposition for option in taken} == {
        "data_parallel", "split_k", "stream_k", "two_tile",
    }  # fmt: skip
    assert {option.merge for option in taken} == {"atomic", "last_arriver", "two_phase"}


# -- what does not fit -----------------------------------------------------------------------------


def rule_for(function: Any, target: Any = LLVM) -> tuple[Any, Schedule]:
    rule = StreamK()
    rule._initialize_with_tune_context(default_context(function, target))
    return rule, Schedule(tvm.IRModule({"main": function}))


def test_symbolic_shapes_are_skipped_on_purpose() -> None:
    function = workloads.symbolic_gemm(48, 32, 64).function
    rule = StreamK(num_sms=2)
    rule._initialize_with_tune_context(default_context(GEMM, LLVM))
    schedule = Schedule(tvm.IRModule({"main": function}))
    (left_alone,) = rule.apply(schedule, schedule.get_sblock("C"))
    assert left_alone.same_as(schedule)
    verdict = applicability(schedule, schedule.get_sblock("C"))
    assert not verdict
    assert "SymbolicShapes" in str(verdict)
    assert "`A` is of shape [m, " in str(verdict)


def test_a_block_without_reduction_is_left_alone() -> None:
    rule, schedule = rule_for(elementwise())
    (left_alone,) = rule.apply(schedule, schedule.get_sblock("C"))
    assert left_alone.same_as(schedule)
    assert "NotAReductionBlock" in str(applicability(schedule, schedule.get_sblock("C")))


def test_a_schedule_with_a_choice_gets_no_second_one() -> None:
    rule, schedule = rule_for(GEMM)
    _, chosen = rule.apply(schedule, schedule.get_sblock("C"))
    (left_alone,) = rule.apply(chosen, chosen.get_sblock("C"))
    assert left_alone.same_as(chosen)


def test_the_rule_does_not_change_what_it_is_given() -> None:
    rule, schedule = rule_for(GEMM)
    block = schedule.get_sblock("C")
    before = schedule.mod.script(), str(schedule.trace)
    _, chosen = rule.apply(schedule, block)
    assert (schedule.mod.script(), str(schedule.trace)) == before
    root = chosen.get(chosen.get_sblock("root"))
    assert {ANNOTATION_KEY, TAKEN_KEY} <= set(root.annotations)
    assert isinstance(decision_of(chosen), Choice)


def test_a_target_that_tells_no_processors_is_refused() -> None:
    with pytest.raises(WorkersUnknown, match="num_sms=132"):
        space_generator(CUDA)
    with pytest.raises(WorkersUnknown, match="num-cores"):
        space_generator("llvm")


def test_processors_by_the_tag_of_a_target() -> None:
    rule = StreamK()
    with pytest.raises(WorkersUnknown):
        rule._initialize_with_tune_context(default_context(GEMM, CUDA))
    tagged = space_generator("nvidia/nvidia-v100")
    (space,) = own_spaces(context(GEMM, "nvidia/nvidia-v100", tagged))
    grids = {option.num_workers for option in decision_of(space).options}
    assert grids == {0, 40, 80, 160, 320}


# -- TVM's own workloads ---------------------------------------------------------------------------


def check_workload(name: str, target: Any, build: bool) -> None:
    """Sample every space of ours; what passes the postprocs must lower, and build."""
    tuning = context(create_te_workload(name, 0), target, num_sms=GPU_SMS)
    theirs = default_context(create_te_workload(name, 0), target).generate_design_space()
    spaces = tuning.generate_design_space()
    assert len([space for space in spaces if not is_ours(space)]) == len(theirs)
    for space in filter(is_ours, spaces):
        passed = 0
        for seed in range(1, SEEDS):
            candidate = sample(tuning, space, seed)
            if not accepted(tuning, candidate) or decision_of(candidate) is None:
                continue
            passed += 1
            assert "_stream_k" in LowerStreamK()(candidate.mod).script()
            if build:
                tvm.tirx.build(candidate.mod, target=tvm.target.Target(target))
            if passed == SAMPLES_PER_SPACE:
                break


@pytest.mark.parametrize("target", [LLVM, CUDA], ids=lambda target: target["kind"])
@pytest.mark.parametrize("name", ["GMM", "C1D", "SFM", "TBG", "NRM"])
def test_samples_of_tvms_workloads_lower(name: str, target: Any) -> None:
    check_workload(name, target, build=False)


@pytest.mark.long
@pytest.mark.parametrize("target", [LLVM, CUDA], ids=lambda target: target["kind"])
@pytest.mark.parametrize("name", TE_WORKLOADS)
def test_samples_of_tvms_workloads_build(name: str, target: Any) -> None:
    check_workload(name, target, build=True)


def test_a_space_can_be_cloned_for_several_tasks() -> None:
    space = space_generator(LLVM)
    first, second = (context(GEMM, LLVM, space.clone()) for _ in range(2))
    assert len(first.generate_design_space()) == len(second.generate_design_space())
    assert isinstance(space, meta_schedule.SpaceGenerator)
