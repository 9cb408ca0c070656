# SPDX-License-Identifier: Apache-2.0
"""One small class per requirement, so that a refusal can be caught by its reason.

Every class is a :class:`StreamKError`, which is also TVM's own ``ScheduleError``. A message has
three parts: which block, what was found there (quoted, with its values), and what to try. Under it,
a traceback shows the function with the block underlined, as TVM's own schedule errors do.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm.s_tir import ScheduleError


@tvm.error.register_error
class StreamKError(ScheduleError):
    """Base of all refusals. The schedule and its trace are unchanged when it is raised."""

    requirement = "the nest must fit Stream-K"

    def __init__(self, message: str, *, block: str = "", hint: str = "") -> None:
        self.message = message
        self.block = block
        self.hint = hint
        where = f"block {block!r}: " if block else ""
        advice = f" Try: {hint}" if hint else ""
        super().__init__(f"stream_k: {where}{message}{advice}")

    def underline(self, function: Any, block: Any) -> None:
        """Show a function with one of its blocks underlined below the message, in tracebacks.

        It is a note: the message itself stays one line.
        """
        text = function.script(obj_to_underline=[block])
        self.add_note(f"\nThe block in its function:\n\n{text}")


@tvm.error.register_error
class InvalidArgument(StreamKError, ValueError):
    """An argument has the wrong kind, or a word that no option knows."""

    requirement = "arguments are of the documented kinds and words"


@tvm.error.register_error
class BlockNotFound(StreamKError):
    """The function has no block of that name at the level of the tiled nest."""

    requirement = "the block exists"


@tvm.error.register_error
class SeveralKernels(StreamKError):
    """The module has several functions, or the function several nests: which one is meant?"""

    requirement = "one function with one nest"


@tvm.error.register_error
class AlreadyStreamed(StreamKError):
    """The block is already part of a Stream-K kernel, or marked to become one."""

    requirement = "the primitive is applied once"


@tvm.error.register_error
class NotATiledNest(StreamKError):
    """The loops around the block are not tile loops, thread loops, then init, panels, epilogue."""

    requirement = "tile loops outermost, then threads, then [init, panel loop, epilogue]"


@tvm.error.register_error
class NotAReductionBlock(StreamKError):
    """Requirement 1: an iterator of the block is declared as a reduction."""

    requirement = "1: the block is a reduction block"


@tvm.error.register_error
class ReducerNotSupported(StreamKError):
    """Requirement 2: the update is an associative and commutative reduction from its identity."""

    requirement = "2: the reduction is associative and commutative"


@tvm.error.register_error
class SeveralReductions(StreamKError):
    """Requirement 2: one reduction is carried by the panel loop, not several."""

    requirement = "2: one reduction per panel loop"


@tvm.error.register_error
class PanelLoopNotSerial(StreamKError):
    """Requirement 3: the outermost reduction loop is a serial loop."""

    requirement = "3: the panel loop is serial"


@tvm.error.register_error
class PanelCountVaries(StreamKError):
    """Requirement 3: every tile has the same, constant number of panels."""

    requirement = "3: the panel count is one constant"


@tvm.error.register_error
class TileLoopsDependent(StreamKError):
    """Requirement 4: the extent of a tile loop does not depend on another loop."""

    requirement = "4: tile loops are independent"


@tvm.error.register_error
class AccumulatorNotPrivate(StreamKError):
    """Requirement 5: partial sums stay in registers, fragments or a buffer of the tile."""

    requirement = "5: the accumulator is private to the tile"


@tvm.error.register_error
class AtomicNotSupported(StreamKError):
    """Requirement 6: the output's type has an atomic add that does not round per peer."""

    requirement = "6: the output's dtype has an atomic add"


@tvm.error.register_error
class AtomicNeedsPlainStore(StreamKError):
    """Requirement 6: with atomics, what follows the panel loop is a plain store of the sum."""

    requirement = "6: atomic merges have no epilogue"


@tvm.error.register_error
class AtomicNeedsSum(StreamKError):
    """Requirement 2: atomic merges are for sums only."""

    requirement = "2: atomic merges are sums"


@tvm.error.register_error
class OutputReadElsewhere(StreamKError):
    """Requirement 7: nothing else in the kernel reads the output or writes global memory."""

    requirement = "7: the output is written by the epilogue and read by nothing else"


@tvm.error.register_error
class EmptyReduction(StreamKError):
    """Requirement 8: there is at least one panel."""

    requirement = "8: K is not 0"


@tvm.error.register_error
class WorkersUnknown(StreamKError):
    """Nothing says how many processors there are."""

    requirement = "num_workers, num_sms or a target that tells"


@tvm.error.register_error
class ShapesSymbolic(StreamKError):
    """Something needs the number of tiles, and it depends on a shape variable."""

    requirement = "the number of tiles is known"


@tvm.error.register_error
class WorkspaceTooSmall(StreamKError):
    """A split that may not change does not fit in the workspace that the caller allows."""

    requirement = "the batch-invariant split fits in the workspace"


@tvm.error.register_error
class TooManyWorkers(StreamKError):
    """More workers than panels: some would have nothing to do."""

    requirement = "at most one worker per panel"


@tvm.error.register_error
class SplitsDoNotDivide(StreamKError):
    """``split_k`` needs splits that divide the panels."""

    requirement = "splits divide the panels"


@tvm.error.register_error
class MergeNotSupported(StreamKError):
    """The merge does not exist on this kind of grid or target."""

    requirement = "the merge exists on this grid and target"


@tvm.error.register_error
class CountersNotUsable(StreamKError):
    """``counters="argument"`` finds no parameter for the arrival counters, or not a fitting one."""

    requirement = "one int32 counter per worker, in a parameter that nothing else uses"


@tvm.error.register_error
class InvalidAnnotation(StreamKError):
    """The recorded decision in the root block's annotation cannot be read."""

    requirement = "the recorded decision is as sch.stream_k wrote it"
