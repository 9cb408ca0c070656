# SPDX-License-Identifier: Apache-2.0
"""Finding g++, and keeping what it has made."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

import cuda_kernels
import numpy as np
import pytest
from cuda_kernels import plan_of

from tvm_streamk.testing.cuda_on_cpu import CompilerMissing, SanitizerMissing, find_races, run_plan
from tvm_streamk.testing.cuda_on_cpu import compiler as compiler_module
from tvm_streamk.testing.cuda_on_cpu.compiler import (
    CACHE_VARIABLE,
    cache_directory,
    compile_kernels,
    find_toolchain,
)

SOURCE = '#include <cuda.h>\nextern "C" __global__ void kernel(int* data) { data[0] = %d; }\n'


@pytest.fixture
def fresh_search() -> Iterator[None]:
    find_toolchain.cache_clear()
    yield
    find_toolchain.cache_clear()


def fake_compiler(folder: Path, version: str) -> None:
    """A g++ that knows its version and nothing else."""
    program = folder / "g++"
    program.write_text(f"#!/bin/sh\ncase $1 in -dumpversion) echo {version};; esac\n")
    program.chmod(0o755)


@cuda_kernels.needs_compiler
def test_kernels_are_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_kernels(SOURCE % 1)
    runtimes = list(cache_directory().glob("*.runtime.o"))
    kept = tmp_path / "kept"
    monkeypatch.setenv(CACHE_VARIABLE, str(kept))
    kept.mkdir()
    for runtime in runtimes:
        shutil.copy(runtime, kept)
    first = compile_kernels(SOURCE % 1)
    assert first.parent == kept
    written = first.stat().st_mtime_ns
    assert compile_kernels(SOURCE % 1) == first
    assert first.stat().st_mtime_ns == written
    second = compile_kernels(SOURCE % 2)
    assert second != first
    # Two libraries, and nothing of what was in between.
    assert {path for path in kept.iterdir() if path.suffix != ".o"} == {first, second}
    data = np.zeros(1, np.int32)
    for value in (1, 2, 1):
        run_plan(plan_of(SOURCE % value, ("data",)), {"data": data})
        assert data[0] == value


def test_cache_directory_falls_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "tvm_streamk" / "cuda_on_cpu"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(compiler_module.tempfile, "gettempdir", lambda: str(tmp_path / "temporary"))
    assert cache_directory().parent == tmp_path / "temporary"


@pytest.mark.usefixtures("fresh_search")
def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompilerMissing, match=r"no g\+\+ on the PATH"):
        run_plan(plan_of(SOURCE % 1, ("data",)), {"data": np.zeros(1, np.int32)})
    fake_compiler(tmp_path, "11.4.0")
    with pytest.raises(CompilerMissing, match=r"is version 11\.4\.0; version 12 is the first"):
        find_toolchain()


@pytest.mark.usefixtures("fresh_search")
def test_other_machines_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(CompilerMissing, match=r"x86-64 Linux only, this is .*aarch64"):
        find_toolchain()


@pytest.mark.usefixtures("fresh_search")
def test_compiler_without_sanitizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_compiler(tmp_path, "13.2.0")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SanitizerMissing, match="has no libtsan"):
        find_races(plan_of(SOURCE % 1, ("data",)), {"data": np.zeros(1, np.int32)})
