# SPDX-License-Identifier: Apache-2.0
"""Every row of docs/what_fits.md by its name: executed, compiled for its targets, or refused."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cuda_runs
import numpy as np
import pytest
import schedules
import tvm
from contractions import Contraction
from helpers import check_numerics, refused
from random_nests import CUDA
from schedules import LLVM, OPENCL, GpuTiling
from tvm import te
from tvm.s_tir import Schedule
from tvm.script import tirx as T
from unfit_nests import symbolic_depth
from workload_rows import ROWS
from workloads import Workload, batched_gemm, gemm, symbolic_gemm

from tvm_streamk import errors
from tvm_streamk.partition import Partition
from tvm_streamk.testing import integer_inputs, poisoned, run

GPU_ROWS = [
    name if row.opencl else pytest.param(name, marks=cuda_runs.needs_compiler)
    for name, row in ROWS.items()
]
PAGE = Path(__file__).parents[1] / "docs" / "what_fits.md"
SMALL = GpuTiling(tile=(8, 16), per_thread=(2, 2), vthreads=(1, 2))
UNEVEN_WORKERS = 5


@pytest.mark.parametrize("decomposition", ["stream_k", "two_tile"])
@pytest.mark.parametrize("name", ROWS)
def test_row_on_llvm(name: str, decomposition: str) -> None:
    row = ROWS[name]
    workload = row.workload()
    schedule = row.cpu_nest().schedule(workload)
    schedule.stream_k("C", num_workers=UNEVEN_WORKERS, decomposition=decomposition)
    check_numerics(schedule.mod, workload, LLVM)


@pytest.mark.parametrize("name", GPU_ROWS)
def test_row_on_a_gpu_grid(name: str) -> None:
    row = ROWS[name]
    workload = row.workload()
    schedule = row.gpu_nest().schedule(workload)
    plan = schedule.stream_k("C", num_workers=UNEVEN_WORKERS)
    assert plan.decision.merge == "last_arriver"
    check_numerics(schedule.mod, workload, OPENCL if row.opencl else CUDA)


def test_every_row_is_in_the_page() -> None:
    text = PAGE.read_text()
    assert [name for name in ROWS if f"| {name} |" not in text] == []


def test_float8_gives_what_the_nest_itself_gives() -> None:
    operands = ("float8_e4m3fn", "float8_e4m3fn")
    contraction = Contraction("ik,jk->ij", {"i": 19, "j": 21, "k": 33}, operands)
    workload = contraction.workload()
    nest = ROWS["GEMM NT"].cpu_nest()
    plain, streamed = nest.schedule(workload), nest.schedule(workload)
    # One worker adds in the nest's own order: TVM's conversion of float8 is not exact.
    streamed.stream_k("C", num_workers=1)
    output = poisoned(workload.expected.shape)
    (*_, expected), (*_, result) = (
        run(each.mod, [*workload.inputs, output], LLVM) for each in (plain, streamed)
    )
    np.testing.assert_array_equal(result, expected)
    np.testing.assert_allclose(result, workload.expected, atol=0.5)


# -- outputs that are read -------------------------------------------------------------------------


@T.prim_func(s_tir=True)
def in_place(
    A: T.Buffer((19, 33), "float32"),
    B: T.Buffer((33, 21), "float32"),
    C: T.Buffer((19, 21), "float32"),
):
    sums = T.sblock_alloc_buffer((19, 21))
    for i, j in T.grid(19, 21):
        for k in range(33):
            with T.sblock("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    sums[vi, vj] = T.float32(0)
                sums[vi, vj] = sums[vi, vj] + A[vi, vk] * B[vk, vj]
        with T.sblock("store"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = sums[vi, vj] + T.float32(3) * C[vi, vj]


@pytest.mark.parametrize("workers", [1, 7, 400])
def test_output_updated_in_place(workers: int) -> None:
    left, right = integer_inputs((19, 33)), integer_inputs((33, 21), seed=1)
    old = integer_inputs((19, 21), seed=2)
    schedule = Schedule(in_place)
    schedule.stream_k("C", num_workers=workers)
    *_, result = run(schedule.mod, [left, right, old], LLVM)
    np.testing.assert_array_equal(result, left @ right + 3 * old)


@T.prim_func(s_tir=True)
def square_in_place(A: T.Buffer((16, 16), "float32")):
    sums = T.sblock_alloc_buffer((16, 16))
    for i, j in T.grid(16, 16):
        for k in range(16):
            with T.sblock("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    sums[vi, vj] = T.float32(0)
                sums[vi, vj] = sums[vi, vj] + A[vi, vk] * A[vk, vj]
        with T.sblock("store"):
            vi, vj = T.axis.remap("SS", [i, j])
            A[vi, vj] = sums[vi, vj]


def test_operand_overwritten_is_refused() -> None:
    schedule = Schedule(square_in_place)
    with refused(schedule, errors.OutputReadElsewhere, "the panels read `A`"):
        schedule.stream_k("C", num_workers=3)


# -- shapes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 33])
def test_symbolic_rows(rows: int) -> None:
    workload = symbolic_gemm(rows, 40, 24)
    schedule = schedules.hand_cpu(workload)
    schedule.stream_k("C", num_workers=3)
    check_numerics(schedule.mod, workload, LLVM)


@T.prim_func(s_tir=True)
def symbolic_batch_and_columns(a: T.handle, b: T.handle, c: T.handle):
    batch, columns = T.int64(), T.int64()
    A = T.match_buffer(a, (batch, 7, 24), "float32")
    B = T.match_buffer(b, (batch, 24, columns), "float32")
    C = T.match_buffer(c, (batch, 7, columns), "float32")
    for n, i, j, k in T.grid(batch, T.int64(7), columns, T.int64(24)):
        with T.sblock("C"):
            vn, vi, vj, vk = T.axis.remap("SSSR", [n, i, j, k])
            with T.init():
                C[vn, vi, vj] = T.float32(0)
            C[vn, vi, vj] = C[vn, vi, vj] + A[vn, vi, vk] * B[vn, vk, vj]


@pytest.mark.parametrize(("batch", "columns"), [(1, 1), (2, 13), (5, 30)])
def test_symbolic_batch_and_columns(batch: int, columns: int) -> None:
    concrete = batched_gemm(batch, 7, columns, 24)
    workload = Workload(symbolic_batch_and_columns, concrete.inputs, concrete.expected)
    schedule = schedules.hand_cpu(workload, (4, 8), 4)
    schedule.stream_k("C", num_workers=UNEVEN_WORKERS)
    check_numerics(schedule.mod, workload, LLVM)


def test_symbolic_depth_is_refused() -> None:
    schedule = Schedule(symbolic_depth)
    with refused(schedule, errors.PanelCountVaries, "symbolic M, N and batch are fine"):
        schedule.stream_k("C", num_workers=2)


@T.prim_func(s_tir=True)
def ragged_groups(
    A: T.Buffer((4, 8, 32), "float32"),
    lengths: T.Buffer((4,), "int32"),
    C: T.Buffer((4, 8), "float32"),
):
    for g, i in T.grid(4, 8):
        for k in range(lengths[g]):
            with T.sblock("C"):
                vg, vi = T.axis.remap("SS", [g, i])
                vk = T.axis.reduce(32, k)
                with T.init():
                    C[vg, vi] = T.float32(0)
                C[vg, vi] = C[vg, vi] + A[vg, vi, vk]


def test_groups_with_different_depths_are_refused() -> None:
    schedule = Schedule(ragged_groups)
    with refused(schedule, errors.PanelCountVaries, r"`k` has lengths\[g\] trips"):
        schedule.stream_k("C", num_workers=2)


# -- the width of indices --------------------------------------------------------------------------


@pytest.mark.parametrize(("tiles", "width"), [(2**15, "int32"), (2**16 + 5, "int64")])
def test_panels_beyond_int32_are_counted_in_int64(tiles: int, width: str) -> None:
    workload = outer_product_sums(tiles, 2**15)
    schedule = schedules.fresh(workload)
    schedule.stream_k("C", num_workers=UNEVEN_WORKERS)
    (worker, *_) = schedule.get_loops("C_stream_k")
    assert str(schedule.get(worker).loop_var.ty.dtype) == width
    check_numerics(schedule.mod, workload, LLVM)


def outer_product_sums(rows: int, depth: int) -> Workload:
    """C[i] = the sum over k of A[i] * B[k]: many panels of which each is quick."""
    left, right = te.placeholder((rows,), "int32", "A"), te.placeholder((depth,), "int32", "B")
    k = te.reduce_axis((0, depth), name="k")
    result = te.compute((rows,), lambda i: te.sum(left[i] * right[k], axis=k), name="C")
    values = integer_inputs((rows,), "int32"), integer_inputs((depth,), "int32", seed=1)
    expected = (values[0] * values[1].sum()).astype("int32")
    return Workload(te.create_prim_func([left, right, result]), values, expected)


@pytest.mark.parametrize("kind", ["cuda", "opencl"])
def test_kernel_with_more_panels_than_int32_compiles(kind: str) -> None:
    schedule = schedules.hand_gpu_rows(outer_product_sums(2**20, 2**15), panel=1)
    schedule.stream_k("C", num_workers=132)
    source = source_of(schedule, kind)
    wide = "int64_t" if kind == "cuda" else "long"
    assert re.search(rf"{wide} stream_k_tile_ptr\[3\]", source)


@pytest.mark.parametrize("tiles", [2**20, 2**31 + 12345])
def test_slices_beyond_int32_are_exact(tiles: int) -> None:
    panels, workers = 4096 + 7, 132
    partition = Partition(tiles, panels, workers)
    bounds = [partition.slice_begin(worker) for worker in range(workers + 1)]
    assert (bounds[0], bounds[-1]) == (0, tiles * panels)
    lengths = {after - before for before, after in itertools.pairwise(bounds)}
    assert max(lengths) - min(lengths) <= 1
    for worker in (0, 1, workers // 2, workers - 1):
        assert partition.slice_owner(bounds[worker]) == worker
        assert partition.slice_owner(bounds[worker + 1] - 1) == worker


# -- targets ---------------------------------------------------------------------------------------

TARGETS: dict[str, Any] = {
    "cuda": {"kind": "cuda", "arch": "sm_80"},
    "rocm": {"kind": "rocm", "mcpu": "gfx90a"},
    "opencl": OPENCL,
    "metal": {"kind": "metal"},
    "webgpu": {"kind": "webgpu"},
}
MERGES_OF: dict[str, tuple[str, ...]] = {
    "cuda": ("two_phase", "last_arriver", "atomic"),
    "rocm": ("two_phase",),
    "opencl": ("two_phase", "last_arriver", "atomic"),
    "metal": ("two_phase", "atomic"),
    "webgpu": (),
}
KERNEL_WORDS = {
    "cuda": "__global__", "rocm": "amdgpu_kernel", "opencl": "__kernel", "metal": "kernel void",
}  # fmt: skip


@contextlib.contextmanager
def without_rocm_tools() -> Iterator[None]:
    """TVM asks the ROCm installation for libraries and a linker; the source needs neither."""
    replaced = {
        "tvm_callback_rocm_bitcode_path": lambda *_: [],
        "tvm_callback_rocm_link": lambda _: bytearray(b"not linked"),
    }
    before = {name: tvm.get_global_func(name, allow_missing=True) for name in replaced}
    for name, function in replaced.items():
        tvm.register_global_func(name, function, override=True)
    try:
        yield
    finally:
        for name, function in before.items():
            if function is not None:
                tvm.register_global_func(name, function, override=True)


def kernels(merge: str, kind: str) -> str:
    schedule = schedules.hand_gpu(gemm(20, 40, 40), SMALL)
    schedule.stream_k("C", num_workers=4, merge=merge)
    return source_of(schedule, kind)


def source_of(schedule: Schedule, kind: str) -> str:
    target = tvm.target.Target(TARGETS[kind]).with_host("llvm")
    with without_rocm_tools():
        built = tvm.tirx.build(schedule.mod, target=target)
    return str(built.imports[0].inspect_source())


@pytest.mark.parametrize("merge", ["two_phase", "last_arriver", "atomic"])
@pytest.mark.parametrize("kind", TARGETS)
def test_merge_on_a_gpu_target(kind: str, merge: str) -> None:
    if merge in MERGES_OF[kind]:
        assert KERNEL_WORDS[kind] in kernels(merge, kind)
        return
    with pytest.raises(errors.MergeNotSupported, match=f"target '{kind}'"):
        kernels(merge, kind)


@pytest.mark.parametrize("kind", ["llvm", "c"])
def test_cpu_target(kind: str) -> None:
    workload = gemm(20, 40, 40)
    schedule = schedules.hand_cpu(workload, (8, 16))
    schedule.stream_k("C", num_workers=4)
    check_numerics(schedule.mod, workload, LLVM if kind == "llvm" else {"kind": "c"})


@pytest.mark.parametrize("merge", ["last_arriver", "atomic"])
def test_merge_refused_on_a_cpu_grid(merge: str) -> None:
    schedule = schedules.hand_cpu(gemm(20, 40, 40), (8, 16))
    with refused(schedule, errors.MergeNotSupported, "needs a GPU grid"):
        schedule.stream_k("C", num_workers=4, merge=merge)


def test_every_target_is_in_the_page() -> None:
    text = PAGE.read_text()
    for kind, merges in MERGES_OF.items():
        yes = [
            "yes" if word in merges else "refused"
            for word in ("two_phase", "last_arriver", "atomic")
        ]
        assert f"| {kind} | {' | '.join(yes)} |" in text
