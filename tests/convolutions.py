# SPDX-License-Identifier: Apache-2.0
"""Convolutions of any rank as nests with several reduction axes, with exact inputs and answers.

The reduction block is ``C``; zeros around or between the pixels are made by a block ``padded_A``
that a schedule inlines into the loads.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te, tirx
from workloads import Workload

from tvm_streamk.testing import integer_inputs


@dataclass(frozen=True)
class Convolution:
    """One convolution.

    Attributes
    ----------
    size, kernel
        Extents of the image and of the kernel along each of its axes; their number is the rank.
    channels, filters
        Of the image and of the output. ``depthwise`` has one filter per channel.
    stride, dilation, padding
        The same along every axis.
    spacing
        For transposed convolutions: distance of the pixels, with zeros in between.
    channels_last
        NHWC rather than NCHW.
    """

    size: tuple[int, ...]
    kernel: tuple[int, ...]
    channels: int = 6
    filters: int = 5
    stride: int = 1
    dilation: int = 1
    padding: int = 0
    spacing: int = 1
    channels_last: bool = False
    depthwise: bool = False

    @property
    def _wide(self) -> tuple[int, ...]:
        """The image's extents with the zeros around and between its pixels."""
        return tuple((n - 1) * self.spacing + 1 + 2 * self.padding for n in self.size)

    @property
    def _output(self) -> tuple[int, ...]:
        pairs = zip(self._wide, self.kernel, strict=True)
        return tuple((n - (r - 1) * self.dilation - 1) // self.stride + 1 for n, r in pairs)

    def _placed(self, channel: Any, pixels: Any) -> tuple[Any, ...]:
        return (*pixels, channel) if self.channels_last else (channel, *pixels)

    def workload(self) -> Workload:
        """The function, its inputs and numpy's answer."""
        weight_shape = (self.channels if self.depthwise else self.filters,)
        weight_shape += () if self.depthwise else (self.channels,)
        weight_shape += self.kernel
        image = integer_inputs(self._placed(self.channels, self.size))
        weight = integer_inputs(weight_shape, seed=1)
        left = te.placeholder(image.shape, name="A")
        right = te.placeholder(weight.shape, name="B")
        function = te.create_prim_func([left, right, self._compute(left, right)])
        return Workload(function, (image, weight), self._expected(image, weight))

    def _padded(self, image: Any) -> Any:
        if self.padding == 0 and self.spacing == 1:
            return image

        def element(*index: Any) -> Any:
            channel = index[-1] if self.channels_last else index[0]
            pixels = index[:-1] if self.channels_last else index[1:]
            moved = [each - self.padding for each in pixels]
            inside = tirx.all(
                *(
                    tirx.all(0 <= each, each <= (n - 1) * self.spacing, each % self.spacing == 0)
                    for each, n in zip(moved, self.size, strict=True)
                )
            )
            value = image(*self._placed(channel, [each // self.spacing for each in moved]))
            return tirx.if_then_else(inside, value, tirx.const(0, "float32"))

        return te.compute(self._placed(self.channels, self._wide), element, name="padded_A")

    def _compute(self, left: Any, right: Any) -> Any:
        image = self._padded(left)
        channel = te.reduce_axis((0, self.channels), name="c")
        offsets = [te.reduce_axis((0, n), name=f"r{axis}") for axis, n in enumerate(self.kernel)]
        axes = offsets if self.depthwise else [channel, *offsets]

        def element(*index: Any) -> Any:
            output = index[-1] if self.channels_last else index[0]
            pixels = index[:-1] if self.channels_last else index[1:]
            read = [
                p * self.stride + r * self.dilation for p, r in zip(pixels, offsets, strict=True)
            ]
            source = output if self.depthwise else channel
            own = (output,) if self.depthwise else (output, channel)
            return te.sum(image(*self._placed(source, read)) * right(*own, *offsets), axis=axes)

        outputs = self.channels if self.depthwise else self.filters
        return te.compute(self._placed(outputs, self._output), element, name="C")

    def _expected(self, image: np.ndarray, weight: np.ndarray) -> np.ndarray:
        first = np.moveaxis(image, -1, 0) if self.channels_last else image
        wide = np.zeros((self.channels, *self._wide), "float32")
        inner = tuple(
            slice(self.padding, self.padding + (n - 1) * self.spacing + 1, self.spacing)
            for n in self.size
        )
        wide[(slice(None), *inner)] = first
        total: Any = 0
        for offset in itertools.product(*map(range, self.kernel)):
            window = tuple(
                slice(r * self.dilation, r * self.dilation + (n - 1) * self.stride + 1, self.stride)
                for r, n in zip(offset, self._output, strict=True)
            )
            pixels, factor = wide[(slice(None), *window)], weight[(..., *offset)]
            equation = "c...,c->c..." if self.depthwise else "c...,fc->f..."
            total = total + np.einsum(equation, pixels, factor)
        return (np.moveaxis(total, 0, -1) if self.channels_last else total).astype("float32")
