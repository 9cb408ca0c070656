# SPDX-License-Identifier: Apache-2.0
"""Skips the tests that need ThreadSanitizer where it is missing."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_kernels import plan_of

from tvm_streamk.testing.cuda_on_cpu import SanitizerMissing, find_races

NOTHING = '#include <cuda.h>\nextern "C" __global__ void kernel(int* data) {}\n'


@pytest.fixture(scope="session")
def needs_sanitizer() -> None:
    try:
        find_races(plan_of(NOTHING, ("data",)), {"data": np.zeros(1, np.int32)})
    except SanitizerMissing as error:
        pytest.skip(str(error))
