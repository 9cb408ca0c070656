# SPDX-License-Identifier: Apache-2.0
"""Who measures the candidates of a target: this machine, or servers behind an RPC tracker."""

from __future__ import annotations

from typing import Any

import tvm
from tvm.s_tir.meta_schedule.runner import EvaluatorConfig, LocalRunner, RPCConfig, RPCRunner

from tvm_streamk.tuning.errors import RemoteWithoutRuntime
from tvm_streamk.tuning.opencl_runner import TIMEOUT_SECONDS, OpenCLRunner
from tvm_streamk.tuning.processors import runs_through_pyopencl


def runner(
    target: Any,
    rpc: RPCConfig | None = None,
    evaluator_config: EvaluatorConfig | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> Any:
    """A runner for a target.

    Parameters
    ----------
    target : str, dict or tvm.target.Target
        On this machine, OpenCL runs through pyopencl where this TVM has no OpenCL runtime, so that
        GPU kernels are measured on any machine that has PoCL.
    rpc : RPCConfig, optional
        A tracker and the key of its servers. Candidates then run there, as many at a time as there
        are servers; they are built here, and servers need nothing but TVM's runtime.
    evaluator_config : EvaluatorConfig, optional
        How often to launch. By default as TVM does: at least 3 times and 100 ms.
    timeout_seconds : float
        For one candidate, on this machine. Servers have the time limit of ``rpc``.

    Returns
    -------
    tvm.s_tir.meta_schedule.runner.Runner

    Raises
    ------
    RemoteWithoutRuntime
        ``rpc`` for a target that only pyopencl can run.
    ValueError
        The tracker does not answer, or has no server of that key.
    """
    target = tvm.target.Target(target)
    through_pyopencl = runs_through_pyopencl(target)
    if rpc is not None:
        if through_pyopencl:
            raise RemoteWithoutRuntime(str(target.kind.name))
        rpc = RPCConfig._normalized(rpc)
        servers = rpc.count_num_servers(allow_missing=False)
        return RPCRunner(rpc, evaluator_config, max_workers=servers)
    if through_pyopencl:
        return OpenCLRunner(evaluator_config, timeout_seconds)
    return LocalRunner(timeout_sec=timeout_seconds, evaluator_config=evaluator_config)
