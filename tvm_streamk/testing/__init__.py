# SPDX-License-Identifier: Apache-2.0
"""Runs TVM modules for any target on any machine, for tests and benches.

`run(module, inputs, target)` builds and runs once; `prepare` keeps the built function and its
buffers for more launches. `integer_inputs` and `poisoned` make arrays for exact comparisons.
"""

from __future__ import annotations

from .arrays import integer_inputs, poisoned
from .opencl import DeviceMissing
from .runner import Prepared, prepare, run

__all__ = ["DeviceMissing", "Prepared", "integer_inputs", "poisoned", "prepare", "run"]
