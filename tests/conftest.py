# SPDX-License-Identifier: Apache-2.0
"""What has to be set before TVM or an OpenCL platform is first used."""

from __future__ import annotations

import os

# Two workers at a time, everywhere: CPU grids are otherwise run by one thread on small machines.
os.environ.setdefault("TVM_NUM_THREADS", "2")
os.environ.setdefault("POCL_AFFINITY", "1")
# PoCL's default way to run a work-group crashes on some small groups.
os.environ.setdefault("POCL_WORK_GROUP_METHOD", "loopvec")
