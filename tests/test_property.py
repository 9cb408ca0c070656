# SPDX-License-Identifier: Apache-2.0
"""Random contractions under random schedules and decisions are executed and compared exactly.

Hypothesis draws; ``-m long`` draws many more. A failure shrinks to a small case, which becomes one
of the named cases at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from contractions import EPILOGUES, Contraction
from helpers import check_numerics
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from random_nests import CUDA, THREAD_AXES, CpuNest, GpuNest
from schedules import LLVM

from tvm_streamk import analyze

SLOW = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))
SOME = settings(SLOW, derandomize=True)
MANY = settings(SLOW, max_examples=1000)
EQUATIONS = (
    "ik,kj->ij",
    "ik,jk->ij",
    "ki,kj->ij",
    "ki,jk->ij",
    "ik,kj->ji",
    "bik,bkj->bij",
    "bik,kj->bij",
    "bik,bjk->ibj",
    "ik,k->i",
    "ki,k->i",
    "ikl,klj->ij",
    "kil,jlk->ij",
    "abk,kcd->acbd",
    "ik->i",
    "kil->i",
)
TYPES = (
    (("float32", "float32"), "float32"),
    (("float64", "float64"), "float64"),
    (("int32", "int32"), "int32"),
    (("int8", "int8"), "int32"),
    (("uint8", "int8"), "int32"),
    (("float16", "float16"), "float32"),
    (("float16", "float16"), "float16"),
    (("bfloat16", "bfloat16"), "float32"),
    (("int64", "int64"), "int64"),
)
ATOMIC_TYPES = ("float32", "float64", "int32")
MOST_WORKERS = 100


@dataclass(frozen=True)
class Case:
    """A contraction, a nest for it, and the arguments of the primitive."""

    contraction: Contraction
    nest: CpuNest | GpuNest
    arguments: dict[str, Any]

    def check(self) -> None:
        """Build, run twice and compare."""
        workload = self.contraction.workload()
        schedule = self.nest.schedule(workload)
        schedule.stream_k("C", **self.arguments)
        is_gpu = isinstance(self.nest, GpuNest)
        check_numerics(schedule.mod, workload, CUDA if is_gpu else LLVM)


@st.composite
def contractions(draw: Any, types: Any, most: int) -> Contraction:
    equation = draw(st.sampled_from(EQUATIONS))
    operands, output = equation.split("->")
    summed = [each for each in dict.fromkeys(operands) if each.isalpha() and each not in output]
    short, long = st.integers(1, most if len(output) < 3 else 9), st.integers(1, most)
    extents = {each: draw(short) for each in output}
    extents |= {each: draw(long if len(summed) == 1 else short) for each in summed}
    dtypes, accumulator = draw(st.sampled_from(types))
    epilogue = draw(st.sampled_from(EPILOGUES))
    letters = sorted(set(operands) - {","})
    padded = draw(st.lists(st.sampled_from(letters), max_size=2, unique=True))
    padding = {each: draw(st.integers(0, extents[each] - 1)) for each in padded}
    count = operands.count(",") + 1
    return Contraction(equation, extents, dtypes[:count], accumulator, epilogue, padding or None)


def orders(length: int) -> Any:
    return st.permutations(range(length)).map(tuple)


def sizes(letters: str, most: int) -> Any:
    return st.tuples(*(st.integers(1, most) for _ in letters))


@st.composite
def cpu_nests(draw: Any, contraction: Contraction) -> CpuNest:
    spatial, summed = contraction.output, contraction.summed
    flags = st.booleans()
    return CpuNest(
        tiles=draw(sizes(spatial, 17)),
        panels=draw(sizes(summed, 9)),
        tile_order=draw(orders(len(spatial))),
        panel_order=draw(orders(len(summed))),
        inner_order=draw(orders(len(spatial) + len(summed))),
        fuse_tiles=draw(flags),
        fuse_panels=draw(flags),
        parallel=draw(flags),
        vectorize=draw(flags),
        accumulate_in=draw(st.sampled_from([None, "global", "local"])),
        decompose=draw(flags),
        inline=draw(flags),
    )


@st.composite
def gpu_nests(draw: Any, contraction: Contraction) -> GpuNest:
    spatial, summed = contraction.output, contraction.summed
    flags = st.booleans()
    most_threads = 8 if len(spatial) < 3 else 4
    # Only three axes can be bound to threads: the last ones.
    bindable = [each >= len(spatial) - len(THREAD_AXES) for each in range(len(spatial))]
    threads = [draw(st.integers(1, most_threads)) if each else 1 for each in bindable]
    vthreads = [draw(st.integers(1, 2)) if each else 1 for each in bindable]
    has_epilogue = contraction.epilogue != "none"
    stage = tuple(draw(flags) for _ in contraction.operands)
    return GpuNest(
        threads=tuple(threads),
        per_thread=draw(sizes(spatial, 3)),
        vthreads=tuple(vthreads),
        panels=draw(sizes(summed, 9)),
        tile_order=draw(orders(len(spatial))),
        panel_order=draw(orders(len(summed))),
        inner_order=draw(orders(len(spatial) + len(summed))),
        fuse_tiles=draw(flags) or len(spatial) > 3,
        bind_tiles=draw(flags),
        # With several thread axes TVM forgets barriers around small copies, in plain nests as well.
        fuse_threads=draw(flags) or any(stage),
        fuse_panels=draw(flags),
        stage=stage,
        accumulate=has_epilogue or draw(flags),
        decompose=draw(flags),
    )


@st.composite
def decisions(draw: Any, num_tiles: int, panels: int, merges: tuple[str, ...]) -> dict[str, Any]:
    word = draw(st.sampled_from(["stream_k", "two_tile", "split_k", "persistent"]))
    merge = draw(st.sampled_from(merges))
    if word == "split_k":
        divisors = [count for count in range(1, panels + 1) if panels % count == 0]
        return {"decomposition": word, "merge": merge, "splits": draw(st.sampled_from(divisors))}
    most = min(num_tiles * (1 if word == "persistent" else panels), MOST_WORKERS)
    near = [count for count in (1, 2, num_tiles, num_tiles + 1, most) if count <= most]
    workers = draw(st.sampled_from(near) | st.integers(1, most))
    return {"decomposition": word, "merge": merge, "num_workers": workers}


def merges_for(contraction: Contraction) -> tuple[str, ...]:
    """The merges that a GPU nest of the contraction has."""
    can_add = contraction.accumulator in ATOMIC_TYPES and contraction.epilogue == "none"
    return ("two_phase", "last_arriver", *(["atomic"] if can_add else []))


def check_random(data: Any, contraction: Contraction, nest: Any, merges: tuple[str, ...]) -> None:
    found = analyze(nest.schedule(contraction.workload()), "C")
    arguments = data.draw(decisions(found.num_tiles, found.panels, merges))
    case = Case(contraction, nest, arguments)
    note(repr(case))
    case.check()


def check_random_cpu(data: Any) -> None:
    contraction = data.draw(contractions(TYPES, most=40))
    check_random(data, contraction, data.draw(cpu_nests(contraction)), ("two_phase",))


def check_random_gpu(data: Any) -> None:
    contraction = data.draw(contractions(TYPES, most=24))
    nest = data.draw(gpu_nests(contraction))
    check_random(data, contraction, nest, merges_for(contraction))


@settings(SOME, max_examples=60)
@given(st.data())
def test_random_cpu_nest(data: Any) -> None:
    check_random_cpu(data)


@settings(SOME, max_examples=60)
@given(st.data())
def test_random_gpu_nest(data: Any) -> None:
    check_random_gpu(data)


@pytest.mark.long
@MANY
@given(st.data())
def test_many_random_cpu_nests(data: Any) -> None:
    check_random_cpu(data)


@pytest.mark.long
@MANY
@given(st.data())
def test_many_random_gpu_nests(data: Any) -> None:
    check_random_gpu(data)


# -- cases that were wrong once --------------------------------------------------------------------

CASES = {
    "an operand staged with zeros before its first element": Case(
        Contraction("ik,kj->ij", {"i": 3, "j": 4, "k": 6}, padding={"k": 2}),
        GpuNest(
            (1, 2), (1, 1), (1, 1), (1,), (0, 1), (0,), (0, 1, 2),
            stage=(False, True), accumulate=False,
        ),
        {"decomposition": "split_k", "merge": "two_phase", "splits": 2},
    ),
    "zeros before the only element of an operand": Case(
        Contraction(
            "ik,kj->ij", {"i": 1, "j": 2, "k": 1}, epilogue="scale and add", padding={"j": 1}
        ),
        GpuNest(
            (2, 2), (1, 1), (1, 1), (1,), (0, 1), (0,), (0, 1, 2),
            bind_tiles=False, fuse_threads=True, stage=(False, True), decompose=False,
        ),
        {"decomposition": "split_k", "merge": "two_phase", "splits": 1},
    ),
    "zeros before the first row of a tile": Case(
        Contraction("ik,kj->ij", {"i": 9, "j": 4, "k": 6}, padding={"i": 5, "k": 1}),
        GpuNest(
            (2, 2), (2, 1), (1, 1), (4,), (0, 1), (0,), (0, 1, 2), stage=(True, True)
        ),
        {"decomposition": "stream_k", "merge": "last_arriver", "num_workers": 5},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    CASES[name].check()
