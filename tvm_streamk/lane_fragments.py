# SPDX-License-Identifier: Apache-2.0
"""Fragments of ``mma.sync``, whose elements each lane of a warp can address.

Until TVM lays such a buffer out in registers (``TransformMmaBufferLayout``), it is indexed like the
matrix that it holds, and a lane that indexes an element of its own reads its own register. The init
of the nest names, per lane, the elements that it owns::

    with T.sblock("C_init"):                                  # one 16 x 8 matrix
        for tx in T.thread_binding(32, "threadIdx.x"):
            for b in range(2):
                for v in T.vectorized(2):
                    fragment[b * 8 + tx // 4, tx % 4 * 2 + v] = 0

So partial sums need no stage: the loops inside that block become loops around an ordinary block
that touches one element, and a copy of that nest stores to a slot or adds from one.
"""

from __future__ import annotations

from typing import Any

from tvm import s_tir, tirx

from tvm_streamk.elements import AccumulatorElements
from tvm_streamk.expressions import (
    Buffer,
    block_iterator,
    contains,
    dtype_of,
    point_region,
    substitute,
)
from tvm_streamk.fragment_window import FragmentWindow
from tvm_streamk.nest import BlockPath, NestParts

LANE_SCOPES = ("m16n8k8.matrixC",)


def is_addressed_by_lane(buffer: Buffer) -> bool:
    """Whether each lane of a warp can address the elements of a fragment that it holds."""
    return str(buffer.scope()) in LANE_SCOPES


def lane_elements(
    parts: NestParts, init: BlockPath, fragment: Buffer
) -> AccumulatorElements | None:
    """The elements of a fragment accumulator, as the init names them lane by lane.

    Returns
    -------
    AccumulatorElements or None
        None where the init is not loops around one store to the fragment.
    """
    block = init.block
    loops, body = _loops_around(block.body)
    matches = [match for match in block.match_buffers if match.source.source.same_as(fragment)]
    if not isinstance(body, tirx.BufferStore) or len(matches) != 1 or not loops:
        return None
    (match,) = matches
    if not contains([match.buffer], body.buffer):
        return None
    iterators = [
        block_iterator(
            f"v_{step.loop_var.name}", step.extent, tirx.IterVar.DataPar, dtype_of(step.loop_var)
        )
        for step in loops
    ]
    to_iterators = {
        step.loop_var: iterator.var for step, iterator in zip(loops, iterators, strict=True)
    }
    inner = [substitute(index, to_iterators) for index in body.indices]
    matrix = tuple(match.source.region)
    indices = [axis.min + index for axis, index in zip(matrix, inner, strict=True)]
    one_element = s_tir.SBlock(
        [*block.iter_vars, *iterators],
        [],
        [point_region(fragment, indices)],
        str(block.name_hint),
        tirx.BufferStore(fragment, body.value, indices),
    )
    realize = s_tir.SBlockRealize(
        [*init.realize.iter_values, *(step.loop_var for step in loops)],
        init.realize.predicate,
        one_element,
    )
    path = BlockPath((*init.steps, *loops), (*init.positions, *(None for _ in loops)), realize)
    return AccumulatorElements(
        fragment,
        tuple(indices),
        path,
        parts.thread_loops,
        parts.grid,
        window=FragmentWindow(fragment, matrix, tuple(inner)),
    )


def _loops_around(statement: Any) -> tuple[list[Any], Any]:
    loops = []
    while isinstance(statement, tirx.For):
        loops.append(statement)
        statement = statement.body
    return loops, statement
