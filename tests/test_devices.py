# SPDX-License-Identifier: Apache-2.0
"""Devices: the table, its lookup by name and TVM tag, and the scaling of the constants."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from types import SimpleNamespace

import pytest
import tvm

from tvm_streamk.devices import (
    CPU,
    DEFAULT_DEVICE,
    KNOWN_DEVICES,
    REFERENCE_TILE,
    Device,
    TargetWithoutTag,
    UnknownDevice,
    cpu,
    lookup,
    lookup_target,
    normalise,
    running_device,
)


@pytest.mark.parametrize(
    ("name", "num_sms"),
    [
        ("A100", 108),
        ("H100", 132),
        ("H200", 132),
        ("B200", 148),
        ("L40S", 142),
        ("RTX 4090", 128),
        ("MI300X", 304),
        ("V100", 80),
        ("T4", 40),
        ("NVIDIA A100-SXM4-80GB", 108),
        ("NVIDIA H100 80GB HBM3", 132),
        ("NVIDIA H100 PCIe", 114),
        ("NVIDIA GeForce RTX 3090", 82),
        ("AMD Instinct MI300X", 304),
        ("nvidia/nvidia-a100", 108),
        ("nvidia/geforce-rtx-4090", 128),
    ],
)
def test_processor_counts_by_name_and_tag(name: str, num_sms: int) -> None:
    assert lookup(name).num_sms == num_sms


def test_tags_of_tvm_that_are_known_have_the_architecture_that_tvm_says() -> None:
    tags = tvm.target.list_tags()
    known = {str(tag): normalise(str(tag)) for tag in tags}
    known = {tag: name for tag, name in known.items() if name in KNOWN_DEVICES}
    assert {"nvidia/nvidia-a100", "nvidia/nvidia-h100", "nvidia/nvidia-t4"} <= known.keys()
    for tag, name in known.items():
        architecture = str(tvm.target.Target(tag).attrs["arch"])
        assert KNOWN_DEVICES[name].architecture == architecture.rstrip("a"), tag
        assert lookup_target(tag) == KNOWN_DEVICES[name]


@pytest.mark.parametrize("name", ["RTX 3080 Ti", "nvidia/geforce-rtx-3090-ti", "A1000", "", "gpu"])
def test_a_near_miss_is_no_hit(name: str) -> None:
    with pytest.raises(UnknownDevice, match="is not known; known are a10, a100") as caught:
        lookup(name)
    assert repr(name) in str(caught.value)


def test_a_target_without_tag_is_refused_with_what_to_try() -> None:
    target = tvm.target.Target("nvidia/nvidia-a100")
    with pytest.raises(TargetWithoutTag, match=r"has no tag.*give num_sms"):
        lookup_target(target)
    assert lookup_target(SimpleNamespace(tag="nvidia/nvidia-a100")).name == "a100"


def test_running_device_has_its_own_count_and_the_tables_constants() -> None:
    present = SimpleNamespace(multi_processor_count=98, device_name="NVIDIA H100 80GB HBM3")
    device = running_device(present)
    assert (device.num_sms, device.panel_us) == (98, lookup("h100").panel_us)
    unnamed = running_device(SimpleNamespace(multi_processor_count=7))
    assert (unnamed.num_sms, unnamed.peer_us) == (7, DEFAULT_DEVICE.peer_us)


def test_a100_constants_lie_where_the_paper_needs_them() -> None:
    panel, peer, split = (getattr(lookup("a100"), f"{n}_us") for n in ("panel", "peer", "split"))
    assert 7 * panel < peer < 10 * panel
    assert split + peer > 13 * panel


@pytest.mark.parametrize("device", KNOWN_DEVICES.values(), ids=KNOWN_DEVICES.keys())
def test_every_known_device_is_plausible(device: Device) -> None:
    assert device.limits is not None
    assert device.max_registers_per_sm in (64 * 1024, 128 * 1024)
    assert device.max_threads_per_sm in (1024, 1536, 2048)
    assert device.max_shared_bytes_per_sm == device.limits.shared_bytes
    assert 0.05 < device.panel_us < 5
    assert device.start_us < device.split_us < device.peer_us * 2
    assert device.num_slots == device.num_sms
    assert device.occupancy(128, 256, 32 * 1024) >= 1


def test_scaling_to_another_tile() -> None:
    device = lookup("a100")
    assert device.for_tile(REFERENCE_TILE) == device
    half = device.for_tile((64, 64, 16), accumulator_bytes=8, speed=1 / 16)
    assert half.panel_us == pytest.approx(device.panel_us / 4 / 2 * 16)
    # A quarter of the area at twice the bytes: half of the transfer, the whole latency.
    assert half.peer_us == pytest.approx(device.peer_us * (0.2 + 0.8 / 2))
    assert half.start_us == device.start_us


def test_more_blocks_per_processor_share_its_arithmetic() -> None:
    device = lookup("h200").with_processors(blocks_per_sm=2)
    assert (device.num_sms, device.num_slots) == (132, 264)
    assert device.panel_us == pytest.approx(2 * lookup("h200").panel_us)
    assert device.with_processors(blocks_per_sm=1) == lookup("h200")


def test_cpu_has_cores_and_no_occupancy() -> None:
    device = cpu(2)
    assert (device.num_sms, device.kind) == (2, CPU)
    assert device.limits is None and device.max_threads_per_sm is None
    with pytest.raises(ValueError, match="no occupancy limits for architecture ''"):
        device.occupancy(32, 32, 0)


def test_devices_are_frozen_and_checked() -> None:
    device = lookup("h200")
    with pytest.raises(FrozenInstanceError):
        device.num_sms = 3  # type: ignore[misc]
    with pytest.raises(ValueError, match="num_sms must be at least 1, got 0"):
        replace(device, num_sms=0)
    with pytest.raises(ValueError, match="panel_us must be positive, got 0"):
        replace(device, panel_us=0)
    with pytest.raises(ValueError, match="peer_us must not be negative, got -1"):
        replace(device, peer_us=-1)
