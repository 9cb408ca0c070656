# SPDX-License-Identifier: Apache-2.0
"""Candidates measured by servers behind a tracker: built here, with our pipeline, run there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import workloads
from tuning_samples import LLVM, OPENCL, context, first_with
from tvm.rpc.server import Server
from tvm.rpc.tracker import Tracker
from tvm.s_tir import meta_schedule
from tvm.s_tir.meta_schedule.runner import EvaluatorConfig, RPCConfig

from tvm_streamk.meta_schedule_rule import (
    RemoteWithoutRuntime,
    builder,
    runner,
    tune,
)
from tvm_streamk.testing import poisoned

HOST = "127.0.0.1"
KEY = "board"
SERVERS = 2
TRIALS = 4
QUICK = EvaluatorConfig(number=1, repeat=1, min_repeat_ms=0)
WORKLOAD = workloads.gemm(15, 7, 60)


@pytest.fixture(scope="module")
def farm() -> Iterator[RPCConfig]:
    """A tracker and two servers on this machine."""
    tracker = Tracker(host=HOST, port=9190, port_end=9290, silent=True)
    servers = [
        Server(host=HOST, key=KEY, tracker_addr=(HOST, tracker.port), silent=True)
        for _ in range(SERVERS)
    ]
    yield RPCConfig(HOST, tracker.port, KEY, session_timeout_sec=60)
    for server in servers:
        server.terminate()
    tracker.terminate()


def stream_k_candidate() -> Any:
    return first_with(context(WORKLOAD.function, LLVM), "stream_k").mod


def build(module: Any) -> str:
    """The artifact that the builder sends."""
    target = tvm.target.Target(LLVM)
    inputs = [meta_schedule.builder.BuilderInput(module, target)]
    (built,) = builder(LLVM, max_workers=1).build(inputs)
    assert built.error_msg is None, built.error_msg
    return str(built.artifact_path)


def test_servers_measure_what_was_built_here(farm: RPCConfig) -> None:
    module = stream_k_candidate()
    artifact = build(module)
    arguments = meta_schedule.arg_info.ArgInfo.from_prim_func(module["main"])
    remote = runner(LLVM, rpc=farm, evaluator_config=QUICK)
    inputs = [meta_schedule.runner.RunnerInput(artifact, "cpu", arguments)] * TRIALS
    results = [future.result() for future in remote.run(inputs)]
    assert [result.error_msg for result in results] == [None] * TRIALS
    assert all(float(seconds) > 0 for result in results for seconds in result.run_secs)


def test_as_many_at_a_time_as_there_are_servers(farm: RPCConfig) -> None:
    assert farm.count_num_servers() == SERVERS
    assert runner(LLVM, rpc=farm).pool._threadpool._max_workers == SERVERS


def test_a_server_that_knows_nothing_of_us_gives_the_right_numbers(farm: RPCConfig) -> None:
    artifact = build(stream_k_candidate())
    session = farm.connect_server()
    session.upload(artifact, "kernel.tar")
    function = session.load_module("kernel.tar")
    output = poisoned(WORKLOAD.expected.shape)
    arrays = [tvm.runtime.tensor(each, session.cpu(0)) for each in (*WORKLOAD.inputs, output)]
    function["main"](*arrays)
    np.testing.assert_array_equal(arrays[-1].numpy(), WORKLOAD.expected)


def test_a_run_on_the_farm(farm: RPCConfig, tmp_path: Path) -> None:
    result = tune(
        WORKLOAD.function,
        LLVM,
        tmp_path,
        TRIALS,
        seed=1,
        runner=runner(LLVM, rpc=farm, evaluator_config=QUICK),
    )
    assert len(result.findings) == TRIALS


def test_a_key_that_no_server_has(farm: RPCConfig) -> None:
    with pytest.raises(ValueError, match="Unable to find servers"):
        runner(LLVM, rpc=farm._replace(tracker_key="another"))


def test_servers_cannot_run_what_only_pyopencl_can(farm: RPCConfig) -> None:
    with pytest.raises(RemoteWithoutRuntime, match="leave rpc out"):
        runner(OPENCL, rpc=farm)
