# SPDX-License-Identifier: Apache-2.0
"""A BERT encoder in numpy, written from its weights alone: what compiled ones must agree with."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

_erf = np.vectorize(math.erf, otypes=[np.float64])


def encode(
    weights: Mapping[str, np.ndarray], tokens: np.ndarray, heads: int, layers: int, epsilon: float
) -> np.ndarray:
    """One vector per token, float64 of shape ``(n, width)``, for tokens of shape ``(1, n)``."""
    exact = {name: value.astype("float64") for name, value in weights.items()}

    def normalised(values: np.ndarray, name: str) -> np.ndarray:
        centred = values - values.mean(-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
        return centred / deviation * exact[f"{name}.weight"] + exact[f"{name}.bias"]

    def linear(values: np.ndarray, name: str) -> np.ndarray:
        return values @ exact[f"{name}.weight"].T + exact[f"{name}.bias"]

    def attention(values: np.ndarray, name: str) -> np.ndarray:
        length, width = values.shape
        query, key, value = (
            linear(values, f"{name}.{part}").reshape(length, heads, -1).transpose(1, 0, 2)
            for part in ("query", "key", "value")
        )
        scores = query @ key.transpose(0, 2, 1) / math.sqrt(width // heads)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (shares / shares.sum(-1, keepdims=True)) @ value
        return mixed.transpose(1, 0, 2).reshape(length, width)

    table = "embeddings.{}_embeddings.weight"
    (sentence,) = tokens
    words = exact[table.format("word")][sentence] + exact[table.format("token_type")][0]
    hidden = normalised(
        words + exact[table.format("position")][: len(sentence)], "embeddings.LayerNorm"
    )
    for number in range(layers):
        layer = f"encoder.layer.{number}"
        mixed = attention(hidden, f"{layer}.attention.self")
        mixed = linear(mixed, f"{layer}.attention.output.dense")
        hidden = normalised(mixed + hidden, f"{layer}.attention.output.LayerNorm")
        inner = linear(hidden, f"{layer}.intermediate.dense")
        inner = inner * (1 + _erf(inner / math.sqrt(2))) / 2
        inner = linear(inner, f"{layer}.output.dense")
        hidden = normalised(inner + hidden, f"{layer}.output.LayerNorm")
    return hidden
