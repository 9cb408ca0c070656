# SPDX-License-Identifier: Apache-2.0
"""What can go wrong in tuning for a user's reasons, each with a class of its own."""

from __future__ import annotations

import tvm

from tvm_streamk.errors import StreamKError


@tvm.error.register_error
class SymbolicShapes(StreamKError):
    """The function has symbolic shapes: there are no tile counts to choose by."""

    requirement = "tuning needs constant shapes"


@tvm.error.register_error
class NothingGained(StreamKError):
    """Tiles would be shared out in another way, and no processor would finish earlier."""

    requirement = "the decision shortens the longest processor's work"


class WorkDirectoryIsAFile(NotADirectoryError):
    """The work directory of a tuning run exists and is a file."""

    def __init__(self, work_dir: object) -> None:
        super().__init__(
            f"the work directory {str(work_dir)!r} is a file; give a directory, which is made if "
            "it does not exist"
        )


class NothingMeasured(RuntimeError):
    """Not one candidate of a tuning run could be built and measured."""

    def __init__(self, work_dir: object, records: int) -> None:
        super().__init__(
            f"none of the {records} candidates recorded in {str(work_dir)!r} could be measured; "
            "the log files in its folder `logs` say why, the one that ends with the task's name "
            "for each candidate"
        )


class RemoteWithoutRuntime(ValueError):
    """Servers cannot run what only this machine's OpenCL engine can."""

    def __init__(self, kind: str) -> None:
        super().__init__(
            f"target {kind!r}: this TVM has no runtime for it, so what is built here can be "
            "measured through pyopencl on this machine only; leave rpc out, or use a TVM with "
            "that runtime"
        )
