# SPDX-License-Identifier: Apache-2.0
"""What a tuning run shows while it runs."""

from __future__ import annotations

import contextlib
import logging
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule

MICROSECONDS = 1e6
_TVM_LOGGER = "tvm.s_tir.meta_schedule"


@derived_object
class ShowProgress(meta_schedule.measure_callback.PyMeasureCallback):
    """Advances a bar by the candidates that were measured, with the best time so far.

    Parameters
    ----------
    bar : rich.progress.Progress
        Where to show it.
    total : int
        Trials of the whole run.
    """

    def __init__(self, bar: Progress, total: int) -> None:
        super().__init__()
        self.bar = bar
        self.row = bar.add_task("measuring", total=total)
        self.best = float("inf")
        self.failed = 0

    def apply(
        self,
        task_scheduler: Any,
        task_id: int,
        measure_candidates: Sequence[Any],
        builder_results: Sequence[Any],
        runner_results: Sequence[Any],
    ) -> None:
        """Count the results of one batch."""
        for result in runner_results:
            seconds = [float(each) for each in result.run_secs or ()]
            self.failed += not seconds
            if seconds:
                self.best = min(self.best, statistics.median(seconds))
        best = f"best {self.best * MICROSECONDS:.1f} us" if self.best < float("inf") else ""
        failed = f", {self.failed} failed" if self.failed else ""
        self.bar.update(
            self.row, advance=len(runner_results), description=f"measuring {best}{failed}"
        )


def bar_on(console: Console) -> Progress:
    """A progress bar that disappears when it is done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), console=console, transient=True)


@contextlib.contextmanager
def log_in_files() -> Iterator[None]:
    """Let TVM's log go to the work directory only, unless the user has set its level.

    Where nothing is set, TVM copies all of it to the standard output. It reconfigures its logger
    on every run and fails on handlers without a name, so that the logger's state is put aside and
    comes back afterwards.
    """
    logger = logging.getLogger(_TVM_LOGGER)
    level, propagates, handlers = logger.level, logger.propagate, list(logger.handlers)
    for handler in handlers:
        logger.removeHandler(handler)
    if level == logging.NOTSET:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for handler in list(logger.handlers):
            logger.removeHandler(handler)
            handler.close()
        for handler in handlers:
            logger.addHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates
