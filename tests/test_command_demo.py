# SPDX-License-Identifier: Apache-2.0
"""The demo: what it prints, what it does without a device, and that it notices wrong numbers."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from typer.testing import CliRunner

from tvm_streamk.__main__ import app
from tvm_streamk.commands import demo
from tvm_streamk.schedules import cpu_gemm, gpu_gemm
from tvm_streamk.testing import DeviceMissing

REAL_PRODUCTS = demo.PRODUCTS
WIDE = {"COLUMNS": "160"}
SMALL = demo.Product(
    "small",
    (14, 96, 64),
    lambda m, n, k: cpu_gemm(m, n, k, tile=(14, 32), panel=16),
    lambda m, n, k: gpu_gemm(m, n, k, threads=(7, 8), per_thread=(2, 4)),
)


@pytest.fixture(autouse=True)
def small_and_quick(monkeypatch):
    monkeypatch.setattr(demo, "PRODUCTS", (SMALL,))
    monkeypatch.setattr(demo, "TIMED_PAIRS", 3)
    monkeypatch.setattr(demo, "BATCH_SECONDS", 0.01)


def run_demo():
    return CliRunner().invoke(app, ["demo"], env=WIDE)


def no_device() -> int:
    raise DeviceMissing("there is no OpenCL device")


def test_table_and_words():
    result = run_demo()
    assert result.exit_code == 0, result.output
    assert "14x96x64" in result.output
    assert result.output.count("2 → 1.50") == 2
    assert "3 tiles on 2 processors take 2 waves of 4 panels" in result.output
    assert "Every result, of both schedules, is numpy's" in result.output


def test_the_table_fits_a_narrow_terminal():
    result = CliRunner().invoke(app, ["demo"], env={"COLUMNS": "80"})
    assert "tiles" in result.output and "…" not in result.output
    assert max(map(len, result.output.splitlines())) <= 80


def test_without_an_opencl_device_that_part_is_skipped_and_said(monkeypatch):
    monkeypatch.setattr(demo, "num_compute_units", no_device)
    result = run_demo()
    assert result.exit_code == 0, result.output
    assert result.output.count("2 → 1.50") == 1
    assert "The OpenCL part was skipped: there is no OpenCL device; install one" in result.output


def test_wrong_numbers_are_found(monkeypatch):
    device = demo.Device("llvm", "llvm", 2, is_gpu=False)
    outcome = demo.compare(SMALL, device)
    assert 0 <= outcome.difference <= outcome.limit < 1e-3
    wrong = dataclasses.replace(outcome, difference=outcome.limit * 2)
    monkeypatch.setattr(demo, "compare", lambda _product, _device: wrong)
    result = run_demo()
    assert result.exit_code == 1
    assert "WRONG RESULTS" in result.output


def test_an_element_that_nobody_wrote_is_the_largest_difference():
    left, right = np.ones((2, 3), "float32"), np.ones((3, 2), "float32")
    product = left @ right
    unwritten = product.copy()
    unwritten[1, 1] = np.nan
    assert demo._difference(left, right, [product, product])[0] == 0
    assert demo._difference(left, right, [product, unwritten])[0] == math.inf


def test_more_than_the_waves_allow_is_not_claimed():
    device = demo.Device("llvm", "llvm", 2, is_gpu=False)
    outcome = dataclasses.replace(demo.compare(SMALL, device), is_quiet=True)
    twice_as_fast = dataclasses.replace(
        outcome.times, first=(2.0,) * 3, second=(1.0,) * 3, again=(2.0,) * 3
    )
    assert "not Stream-K's merit" in demo._in_words(
        dataclasses.replace(outcome, times=twice_as_fast)
    )


def test_the_real_products_are_those_of_the_models():
    assert [str(product) for product in REAL_PRODUCTS] == [
        "ResNet-50 49x512x4608",
        "ResNet-50 196x256x2304",
        "LLM slice 16x768x4096",
    ]
