# SPDX-License-Identifier: Apache-2.0
"""Random sequences of TVM's own schedule primitives, legal or not: TVM skips what is not.

What comes out is some valid schedule, as a rule not one that anybody would write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm.s_tir import Schedule, ScheduleError

from tvm_streamk.expressions import collect
from tvm_streamk.nest import root_block

FACTORS = (1, 2, 3, 4, 5, 8)
SCOPES = ("global", "local")
THREADS = ("blockIdx.x", "blockIdx.y", "threadIdx.x", "threadIdx.y", "vthread.x")


class PrimitiveBroken(Exception):
    """A primitive of TVM failed with an internal error."""


@dataclass(frozen=True)
class Step:
    """One attempt: a primitive, and numbers that pick blocks, loops and factors."""

    primitive: str
    numbers: tuple[int, int, int]

    def apply(self, schedule: Schedule) -> bool:
        """Apply it where TVM lets it; tells whether anything was done.

        Raises
        ------
        PrimitiveBroken
            TVM fails in a way that is no refusal; the schedule may be in no valid state then.
        """
        blocks = block_names(schedule)
        try:
            block = schedule.get_sblock(blocks[self.numbers[0] % len(blocks)])
            loops = schedule.get_loops(block)
            if not loops:
                return False
            PRIMITIVES[self.primitive](schedule, block, loops, self.numbers)
        except ScheduleError:
            return False
        except (tvm.error.InternalError, ValueError, IndexError, TypeError) as error:
            raise PrimitiveBroken(self.primitive) from error
        return True


def block_names(schedule: Schedule) -> list[str]:
    """The names of all blocks but the root."""
    from tvm import s_tir

    (function,) = schedule.mod.functions.values()
    root = root_block(function)
    return [str(block.name_hint) for block in collect(root.body, s_tir.SBlock)]


def applied(schedule: Schedule, steps: Sequence[Step]) -> list[Step]:
    """Apply what can be applied; gives those steps."""
    return [step for step in steps if step.apply(schedule)]


def _pick(items: Sequence[Any], number: int) -> Any:
    if not items:
        raise ScheduleError("there is none to pick")
    return items[number % len(items)]


def _split(schedule: Schedule, _block: Any, loops: Any, numbers: Any) -> None:
    schedule.split(_pick(loops, numbers[1]), [None, _pick(FACTORS, numbers[2])])


def _fuse(schedule: Schedule, _block: Any, loops: Any, numbers: Any) -> None:
    first = numbers[1] % len(loops)
    schedule.fuse(*loops[first : first + 2])


def _reorder(schedule: Schedule, _block: Any, loops: Any, numbers: Any) -> None:
    first, second = _pick(loops, numbers[1]), _pick(loops, numbers[2])
    if not first.same_as(second):
        schedule.reorder(first, second)


def _cache_read(schedule: Schedule, block: Any, loops: Any, numbers: Any) -> None:
    count = len(schedule.get(block).reads)
    if count:
        copy = schedule.cache_read(block, numbers[1] % count, _pick(SCOPES, numbers[2]))
        schedule.compute_at(copy, _pick(loops, numbers[1]))


def _cache_write(schedule: Schedule, block: Any, loops: Any, numbers: Any) -> None:
    store = schedule.cache_write(block, 0, _pick(SCOPES, numbers[2]))
    schedule.reverse_compute_at(store, _pick(schedule.get_loops(block), numbers[1]))


def _compute_at(schedule: Schedule, block: Any, _loops: Any, numbers: Any) -> None:
    (consumer, *_) = [*schedule.get_consumers(block), block]
    schedule.compute_at(block, _pick(schedule.get_loops(consumer), numbers[1]))


def _reverse_compute_at(schedule: Schedule, block: Any, _loops: Any, numbers: Any) -> None:
    (producer, *_) = [*schedule.get_producers(block), block]
    schedule.reverse_compute_at(block, _pick(schedule.get_loops(producer), numbers[1]))


def _bind(schedule: Schedule, _block: Any, loops: Any, numbers: Any) -> None:
    schedule.bind(_pick(loops, numbers[1]), _pick(THREADS, numbers[2]))


Primitive = Callable[[Schedule, Any, Any, Any], Any]
PRIMITIVES: dict[str, Primitive] = {
    "split": _split,
    "fuse": _fuse,
    "reorder": _reorder,
    "cache_read": _cache_read,
    "cache_write": _cache_write,
    "compute_at": _compute_at,
    "reverse_compute_at": _reverse_compute_at,
    "bind": _bind,
    "parallel": lambda s, _b, loops, n: s.parallel(_pick(loops, n[1])),
    "vectorize": lambda s, _b, loops, n: s.vectorize(_pick(loops, n[1])),
    "unroll": lambda s, _b, loops, n: s.unroll(_pick(loops, n[1])),
    "compute_inline": lambda s, block, _l, _n: s.compute_inline(block),
    "reverse_compute_inline": lambda s, block, _l, _n: s.reverse_compute_inline(block),
    "decompose_reduction": lambda s, b, loops, n: s.decompose_reduction(b, _pick(loops, n[1])),
    "rfactor": lambda s, _b, loops, n: s.rfactor(_pick(loops, n[1]), n[2] % 2),
    "blockize": lambda s, _b, loops, n: s.blockize(_pick(loops, n[1])),
    "add_unit_loop": lambda s, _b, loops, n: s.add_unit_loop(_pick(loops, n[1])),
    "unroll pragma": lambda s, _b, loops, n: s.annotate(
        _pick(loops, n[1]), "pragma_auto_unroll_max_step", 16
    ),
    "storage_align": lambda s, block, _l, _n: s.storage_align(block, 0, -2, 8, 4),
    "transform_layout": lambda s, block, _l, _n: s.transform_layout(
        block, ("write", 0), lambda *i: [*reversed(i)]
    ),
    "pad_einsum": lambda s, block, _l, n: s.pad_einsum(
        block, [_pick(FACTORS, n[1])] * len(s.get(block).iter_vars)
    ),
}
CPU_PRIMITIVES = tuple(name for name in PRIMITIVES if name != "bind")
