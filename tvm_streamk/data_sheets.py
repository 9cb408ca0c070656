# SPDX-License-Identifier: Apache-2.0
"""What makers publish of their devices: the numbers behind the table of known devices."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class DataSheet(NamedTuple):
    """What the makers publish: processors, dense 16-bit matrix TFLOP/s, MHz, GB/s."""

    num_sms: int
    teraflops: float
    megahertz: int
    gigabytes_per_second: float
    architecture: str


# Clocks are those at which the maker's throughput holds. GeForce and RTX cards: the throughput
# with a 32-bit accumulator. An MI250X is two devices to its user; the row is one of them.
DATA_SHEETS: Mapping[str, DataSheet] = MappingProxyType(
    {
        "v100": DataSheet(80, 125, 1530, 900, "sm_70"),
        "t4": DataSheet(40, 65, 1590, 320, "sm_75"),
        "a100": DataSheet(108, 312, 1410, 2039, "sm_80"),
        "a30": DataSheet(56, 165, 1440, 933, "sm_80"),
        "a10": DataSheet(72, 125, 1695, 600, "sm_86"),
        "a40": DataSheet(84, 150, 1740, 696, "sm_86"),
        "rtx-a6000": DataSheet(84, 155, 1800, 768, "sm_86"),
        "rtx-3080": DataSheet(68, 59.5, 1710, 760, "sm_86"),
        "rtx-3090": DataSheet(82, 71, 1695, 936, "sm_86"),
        "l4": DataSheet(58, 121, 2040, 300, "sm_89"),
        "l40": DataSheet(142, 181, 2490, 864, "sm_89"),
        "l40s": DataSheet(142, 362, 2520, 864, "sm_89"),
        "rtx-4080": DataSheet(76, 97.5, 2505, 717, "sm_89"),
        "rtx-4090": DataSheet(128, 165, 2520, 1008, "sm_89"),
        "h100": DataSheet(132, 989, 1830, 3350, "sm_90"),
        "h100-pcie": DataSheet(114, 756, 1620, 2000, "sm_90"),
        "h200": DataSheet(132, 989, 1830, 4800, "sm_90"),
        "gh200": DataSheet(132, 989, 1830, 4000, "sm_90"),
        "b200": DataSheet(148, 2250, 1850, 8000, "sm_100"),
        "rtx-5090": DataSheet(170, 209.5, 2407, 1792, "sm_120"),
        "mi210": DataSheet(104, 181, 1700, 1638, "gfx90a"),
        "mi250x": DataSheet(110, 191.5, 1700, 1638, "gfx90a"),
        "mi300a": DataSheet(228, 980.6, 2100, 5300, "gfx942"),
        "mi300x": DataSheet(304, 1307, 2100, 5300, "gfx942"),
    }
)
