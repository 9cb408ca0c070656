# SPDX-License-Identifier: Apache-2.0
"""The shapes of ``data/shapes.json``: matrix products of public workloads and bug reports."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SHAPES_FILE = Path(__file__).parent / "data" / "shapes.json"
TILE = (128, 128, 32)


class Shape(NamedTuple):
    """One matrix product, ``batch`` times M x K by K x N."""

    group: str
    batch: int
    m: int
    n: int
    k: int

    @property
    def num_tiles(self) -> int:
        """Tiles of 128 x 128."""
        return self.batch * -(-self.m // TILE[0]) * -(-self.n // TILE[1])

    @property
    def panels(self) -> int:
        """Panels of 32."""
        return -(-self.k // TILE[2])


def all_shapes() -> list[Shape]:
    """Return every shape, in the order of the file."""
    return list(_read())


def _read() -> Iterator[Shape]:
    for name, group in json.loads(SHAPES_FILE.read_text())["groups"].items():
        for shape in group["shapes"]:
            yield Shape(name, *shape)
