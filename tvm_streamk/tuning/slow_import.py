# SPDX-License-Identifier: Apache-2.0
"""TVM's tensor intrinsics are slow to import, and most targets do not use them."""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator

INTRINSICS_MODULE = "tvm.s_tir.tensor_intrin"


@contextlib.contextmanager
def without_tensor_intrinsics() -> Iterator[None]:
    """Keep MetaSchedule from importing TVM's tensor intrinsics, which takes some 20 seconds.

    MetaSchedule imports them whatever the target. The import is only put off: a later one, outside
    of the context, finds the real module. Where they are imported already, nothing happens.
    """
    if INTRINSICS_MODULE in sys.modules:
        yield
        return
    package_name, _, name = INTRINSICS_MODULE.rpartition(".")
    package = importlib.import_module(package_name)
    placeholder = types.ModuleType(INTRINSICS_MODULE)
    sys.modules[INTRINSICS_MODULE] = placeholder
    setattr(package, name, placeholder)
    try:
        yield
    finally:
        if sys.modules.get(INTRINSICS_MODULE) is placeholder:
            del sys.modules[INTRINSICS_MODULE]
            delattr(package, name)
