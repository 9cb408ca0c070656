# SPDX-License-Identifier: Apache-2.0
"""``sch.stream_k(block, ...)``: check the arguments, analyse, decide, record, rewrite."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import s_tir

from tvm_streamk.analysis import analyze_function, block_name, only_function, underlining
from tvm_streamk.annotation import ANNOTATION_KEY, COUNTERS, MERGES
from tvm_streamk.decide import AUTO, Request, decide
from tvm_streamk.device_file import DeviceFileUnusable
from tvm_streamk.devices import Device, UnknownDevice, lookup
from tvm_streamk.errors import CountersNotUsable, InvalidArgument
from tvm_streamk.expressions import collect
from tvm_streamk.nest import UPDATE_SUFFIX, root_block
from tvm_streamk.partition import DATA_PARALLEL, DECOMPOSITIONS
from tvm_streamk.plan import Plan
from tvm_streamk.rewrite import rewrite


def stream_k(
    schedule: Any,
    block: Any,
    num_workers: int | None = None,
    decomposition: str = AUTO,
    merge: str = AUTO,
    counters: str = "prologue",
    lower: bool = True,
    *,
    num_sms: int | None = None,
    splits: int | None = None,
    device: Device | str | None = None,
    batch_invariant: bool = False,
    workspace_limit_bytes: int | None = None,
) -> Plan:
    """Turn a tiled reduction nest into a persistent Stream-K kernel.

    1. The nest around ``block`` is recognised: tile loops, thread loops, panel loop, epilogue.
    2. What ``auto`` leaves open is decided; the returned plan says what and why.
    3. The decision is recorded in the trace, as an annotation of the root block.
    4. With ``lower=True`` the nest is rewritten at once: a fixed grid of workers, each walking an
       equal slice of all (tile, panel) work; tiles that a slice cuts are merged.

    Parameters
    ----------
    schedule : tvm.s_tir.Schedule
        A schedule of a module with one function. Also a method: ``sch.stream_k(block, ...)``.
    block : str or SBlockRV
        The reduction block.
    num_workers : int, optional
        Workers of the persistent grid, at most one per panel (``persistent``: per tile). By default
        as many as there are processors, as ``num_sms`` or the current target tells.
    decomposition : str
        ``stream_k``, ``two_tile``, ``split_k`` (with ``splits``), ``persistent`` (whole tiles
        only), ``data_parallel`` (the nest as it is) or ``auto``: what a cost model expects to be
        fastest, which may be the nest as it is; the plan's notes say what and why. With
        ``num_workers`` given, ``auto`` means ``stream_k``.
    merge : str
        ``last_arriver`` (one kernel, deterministic; GPU grids), ``two_phase`` (a second nest,
        deterministic, works everywhere), ``atomic`` (GPU grids, plain sums) or ``auto``.
    counters : str
        For ``last_arriver``: ``prologue`` zeroes the arrival counters in a kernel of its own.
        ``argument`` has no such launch: the counters are the function's last parameter,
        ``stream_k_arrivals``, int32, one per worker, zeroed once by the caller and left zero by
        every launch. With ``lower=True`` the function must have that parameter already, since a
        schedule cannot add one; ``LowerStreamK`` adds it.
    lower : bool
        Whether to rewrite now, or to leave that to ``LowerStreamK`` in the build pipeline.
    num_sms : int, optional
        Processors of the device, where no target tells.
    splits : int, optional
        For ``split_k``: segments per tile, a divisor of the panels.
    device : Device or str, optional
        For ``auto``: whose constants the cost model uses, as a record, a known name, or the path
        of a ``.json`` file that ``python -m tvm_streamk calibrate`` wrote.
    batch_invariant : bool
        For ``auto``: let the split depend on K alone, so that the bits of a row of the output do
        not change with the number of rows.
    workspace_limit_bytes : int, optional
        Most bytes of global memory for partial sums. ``auto`` keeps to it, and says so where that
        changes what it chooses; what is asked for by name is refused above it.

    Returns
    -------
    Plan
        Tiles, panels, workers, waves before and after, cuts, peers, workspace; printable.

    Raises
    ------
    StreamKError
        A subclass per requirement; the schedule and its trace are then unchanged. The block must
        be (1) a reduction block (2) with an associative and commutative update from its identity;
        (3) its outermost reduction loop serial, of one constant extent; (4) tile loops
        independent; (5) the accumulator in registers or a buffer of the tile; (6) for ``atomic``,
        an output type with an atomic add and a plain store; (7) the output read by nothing else;
        (8) K not 0.

    Examples
    --------
    Before, one block per tile::

        for i_0 in T.thread_binding(3, thread="blockIdx.x"):
            for tx in T.thread_binding(64, thread="threadIdx.x"):
                <C_local = 0>
                for k_0 in range(128):
                    <C_local += panel k_0 of tile i_0>
                <C = C_local>

    after ``sch.stream_k("C", num_workers=2, merge="two_phase")``, two workers with 192 panels::

        for worker in T.thread_binding(2, thread="blockIdx.x"):
            for tx in T.thread_binding(64, thread="threadIdx.x"):
                for segment in range(2):
                    with T.sblock("C_stream_k"):
                        v_tile, v_k_begin, v_k_end = ...
                        <C_local = 0>
                        for k_0 in range(v_k_end - v_k_begin):
                            <C_local += panel v_k_begin + k_0 of tile v_tile>
                        <C = C_local if the tile is complete, else workspace = C_local>
        for boundary in T.thread_binding(1, thread="blockIdx.x"):
            <C = the sum of the workspace's slots, for the tile that the boundary cuts>
    """
    request = _checked(num_workers, decomposition, merge, counters, num_sms, splits)
    request = replace(
        request,
        device=_known_device(device),
        batch_invariant=bool(batch_invariant),
        workspace_limit_bytes=_checked_limit(workspace_limit_bytes),
    )
    if not isinstance(lower, bool):
        raise InvalidArgument(f"lower must be True or False, got {lower!r}.")
    name = block_name(schedule, block)
    before = only_function(schedule.mod)
    with underlining(before):
        nest = analyze_function(before, name)
        plan = decide(nest, request)
        if plan.decision.decomposition == DATA_PARALLEL:
            return plan
        function = rewrite(nest, plan.decision) if lower else None
        if function is not None and len(function.params) != len(nest.function.params):
            raise _parameter_missing(nest.block, plan)
    schedule.annotate(schedule.get_sblock("root"), ANNOTATION_KEY, plan.decision.encode())
    if function is not None:
        _install(schedule, function)
    return plan


def _checked(
    num_workers: Any, decomposition: Any, merge: Any, counters: Any, num_sms: Any, splits: Any
) -> Request:
    for name, value in (("num_workers", num_workers), ("num_sms", num_sms), ("splits", splits)):
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and (not is_integer or value < 1):
            raise InvalidArgument(f"{name} must be a positive int, got {value!r}.")
    words = {
        "decomposition": (decomposition, (AUTO, *DECOMPOSITIONS)),
        "merge": (merge, (AUTO, *MERGES)),
        "counters": (counters, COUNTERS),
    }
    for name, (word, known) in words.items():
        if word not in known:
            raise InvalidArgument(f"{name} must be one of {', '.join(known)}; got {word!r}.")
    return Request(num_workers, decomposition, merge, counters, num_sms, splits)


def _checked_limit(limit: Any) -> int | None:
    is_integer = isinstance(limit, int) and not isinstance(limit, bool)
    if limit is not None and (not is_integer or limit < 0):
        raise InvalidArgument(f"workspace_limit_bytes must be an int of at least 0, got {limit!r}.")
    return limit


def _known_device(device: Any) -> Device | None:
    if device is None or isinstance(device, Device):
        return device
    if not isinstance(device, str):
        raise InvalidArgument(f"device must be a Device or a known name, got {device!r}.")
    try:
        return lookup(device)
    except (UnknownDevice, DeviceFileUnusable) as error:
        raise InvalidArgument(f"device={device!r}: {error}") from error


def _parameter_missing(block: str, plan: Plan) -> CountersNotUsable:
    return CountersNotUsable(
        "counters='argument' needs a parameter for the arrival counters, and a schedule cannot "
        "add one.",
        block=block,
        hint=f"lower=False and LowerStreamK, which adds it, or a function whose last parameter is "
        f"`stream_k_arrivals`, int32 of shape ({plan.num_workers},).",
    )


def _install(schedule: Any, function: Any) -> None:
    """Put the rewritten function into the schedule.

    Blocks that the kernel still has keep their handles: a random variable that was obtained before
    resolves to the block of the same name in the persistent kernel.
    """
    root = root_block(only_function(schedule.mod))
    new_root = root_block(function)
    new_blocks: dict[str, Any] = {}
    for block in collect(new_root, s_tir.SBlock):
        new_blocks.setdefault(str(block.name_hint), block)
    reused = {}
    for block in collect(root, s_tir.SBlock):
        name = str(block.name_hint)
        successor = new_blocks.get(name, new_blocks.get(name + UPDATE_SUFFIX))
        if successor is not None:
            reused[block] = successor
    schedule.state.replace(schedule.get_sref(root), new_root, reused)
