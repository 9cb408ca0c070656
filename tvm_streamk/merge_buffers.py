# SPDX-License-Identifier: Apache-2.0
"""The buffers that a merge works with, and the function parameter that may be one of them."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_streamk.annotation import ARGUMENT
from tvm_streamk.expressions import Buffer, Expression, static_value
from tvm_streamk.merge import MergeSite
from tvm_streamk.nest import CPU
from tvm_streamk.partial_sums import summed_at_once
from tvm_streamk.partition import Partition
from tvm_streamk.tile_nest import TileNest

ARRIVALS_NAME = "stream_k_arrivals"


def merge_site(nest: TileNest, partition: Partition, counters: str) -> MergeSite:
    """Declare the buffers of a merge; which of them are allocated is up to the merge."""

    def integers(name: str, extent: Expression, scope: str) -> Buffer:
        return tirx.decl_buffer((extent,), "int32", name=name, scope=scope)

    slots = partition.num_slots
    given = arrivals_parameter(nest.function) if counters == ARGUMENT else None
    return MergeSite(
        nest,
        partition,
        workspace=tirx.decl_buffer(
            (1 if static_value(slots) == 0 else slots, *nest.elements.slot_shape),
            nest.elements.slot_dtype,
            name="stream_k_workspace",
        ),
        # A buffer has no truth value: `given or ...` would raise.
        arrivals=given
        if given is not None
        else integers(ARRIVALS_NAME, partition.num_workers, "global"),
        seen_arrivals=integers("stream_k_seen_arrivals", 1, "shared"),
        is_last=integers("stream_k_is_last", 1, "local"),
        sums=tirx.decl_buffer(
            (summed_at_once(nest)[0].per_copy,),
            nest.elements.slot_dtype,
            name="stream_k_sums",
            scope="global" if nest.grid == CPU else "local",
        ),
    )


def arrivals_parameter(function: Any) -> Buffer | None:
    """The function's parameter for arrival counters, where it has one."""
    for parameter in function.params:
        if str(parameter.name) == ARRIVALS_NAME:
            return parameter
    return None


def with_parameter(function: Any, parameter: Any) -> Any:
    """The function with one more parameter, the last."""
    return tirx.PrimFunc(
        [*function.params, parameter], function.body, function.ret_type, function.attrs
    )
