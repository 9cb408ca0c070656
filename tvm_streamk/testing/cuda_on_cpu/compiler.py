# SPDX-License-Identifier: Apache-2.0
"""Compiling rewritten kernels with g++, each once: results are kept by the hash of their text.

Files are kept in the directory that the environment variable `TVM_STREAMK_CUDA_CACHE` names, else
below the user's cache directory, else below the directory for temporary files.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .errors import CompilationFailed, CompilerMissing, SanitizerMissing
from .rewriting import rewrite

CACHE_VARIABLE = "TVM_STREAMK_CUDA_CACHE"

_PACKAGE = Path(__file__).parent
_INCLUDE = _PACKAGE / "include"
_RUNTIME = _PACKAGE / "runtime"
_SANITIZER_MAIN = _RUNTIME / "sanitizer_main.cpp"
_FIRST_VERSION_WITH_HALF = 12
_MACHINE = ("Linux", "x86_64")
_REPORTED_ERROR_LINES = 8
_DIGEST_LENGTH = 32

_COMMON_FLAGS = (
    "-std=c++17",
    "-march=native",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-strict-aliasing",  # TVM reads half4 through uint2 and the like
    "-fwrapv",
    "-ffp-contract=off",  # the same sums on every machine
)
_RUNTIME_FLAGS = (*_COMMON_FLAGS, "-O2", "-Wall", "-Wextra")
_KERNEL_FLAGS = (
    *_COMMON_FLAGS,
    "-O1",  # half of what -O2 takes to compile, and small kernels run for milliseconds
    "-ftrivial-auto-var-init=pattern",  # registers that nothing was written to show up
    "-w",
    f"-I{_INCLUDE}",
)
_SANITIZER_FLAGS = (
    "-fsanitize=thread",
    "-g1",
    "--param=tsan-distinguish-volatile=1",
    "-fno-omit-frame-pointer",
)
_SANITIZED_RUNTIME = ("-DCUDA_ON_CPU_SANITIZER",)


@dataclass(frozen=True)
class Toolchain:
    """A g++ that can do it.

    Attributes
    ----------
    path : str
        The executable.
    fingerprint : str
        Changes with its version and with the processor that it compiles for.
    """

    path: str
    fingerprint: str


@functools.cache
def find_toolchain() -> Toolchain:
    """The machine's g++.

    Raises
    ------
    CompilerMissing
        If there is none, if it is older than version 12, or the machine is not x86-64 Linux.
    """
    machine = (platform.system(), platform.machine())
    if machine != _MACHINE:
        raise CompilerMissing(f"CUDA on the CPU runs on x86-64 Linux only, this is {machine}")
    path = shutil.which("g++")
    if path is None:
        raise CompilerMissing(
            f"no g++ on the PATH; install version {_FIRST_VERSION_WITH_HALF} or later"
        )
    version = _output([path, "-dumpversion"]).strip()
    if int(version.split(".")[0]) < _FIRST_VERSION_WITH_HALF:
        raise CompilerMissing(
            f"{path} is version {version}; version {_FIRST_VERSION_WITH_HALF} is the first that "
            "has _Float16 in C++"
        )
    macros = _output([path, "-march=native", "-dM", "-E", "-x", "c++", os.devnull])
    return Toolchain(path, _digest(version, macros))


def compile_kernels(source: str) -> Path:
    """A shared library with the kernels of CUDA source and the runtime, from the cache if it can.

    Parameters
    ----------
    source : str
        CUDA C++.

    Returns
    -------
    pathlib.Path
        The library; it exports `cuda_on_cpu_launch`.

    Raises
    ------
    CompilerMissing, UnsupportedCode, CompilationFailed
    """
    toolchain = find_toolchain()
    runtime = _runtime(toolchain, ())
    text = rewrite(source)

    def build(folder: Path) -> Path:
        (folder / "kernels.cpp").write_text(text)
        library = folder / "kernels.so"
        inputs = (str(folder / "kernels.cpp"), str(runtime))
        _compile([toolchain.path, *_KERNEL_FLAGS, "-shared", *inputs, "-o", str(library)])
        return library

    return _cached(_digest(text, runtime.name, *_header_texts(), *_KERNEL_FLAGS), ".so", build)


def compile_sanitized(source: str) -> Path:
    """An executable that runs the kernels of CUDA source under ThreadSanitizer.

    Parameters, results and errors are those of `compile_kernels`, and `SanitizerMissing` is
    raised if g++ has no ThreadSanitizer library.
    """
    toolchain = find_toolchain()
    library = _output([toolchain.path, "-print-file-name=libtsan.so"]).strip()
    if not os.path.isabs(library):
        raise SanitizerMissing(f"{toolchain.path} has no libtsan; install the one of its version")
    runtime = _runtime(toolchain, _SANITIZED_RUNTIME)
    text = rewrite(source)
    flags = (*_KERNEL_FLAGS, *_SANITIZER_FLAGS)

    def build(folder: Path) -> Path:
        (folder / "kernels.cpp").write_text(text)
        kernels, program = folder / "kernels.o", folder / "kernels"
        _compile([toolchain.path, *flags, "-c", str(folder / "kernels.cpp"), "-o", str(kernels)])
        linked = (str(kernels), str(runtime), "-o", str(program))
        _compile([toolchain.path, "-fsanitize=thread", *linked])
        return program

    return _cached(_digest(text, runtime.name, *_header_texts(), *flags), ".sanitized", build)


def cache_directory() -> Path:
    """Where compiled files are kept; it exists and can be written to."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return _made(Path(chosen))
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        return _made(home / "tvm_streamk" / "cuda_on_cpu")
    except OSError:
        return _made(Path(tempfile.gettempdir()) / f"tvm_streamk_cuda_on_cpu_{os.getuid()}")


def _made(directory: Path) -> Path:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.access(directory, os.W_OK):
        raise PermissionError(f"{directory} can't be written to; set {CACHE_VARIABLE}")
    return directory


def _runtime(toolchain: Toolchain, extra_flags: tuple[str, ...]) -> Path:
    """The runtime as one object file."""
    sources = sorted(path for path in _RUNTIME.glob("*.cpp") if path != _SANITIZER_MAIN)
    if extra_flags:
        sources.append(_SANITIZER_MAIN)
    flags = (*_RUNTIME_FLAGS, *extra_flags)

    def build(folder: Path) -> Path:
        result = folder / "runtime.o"
        files = [str(path) for path in sources]
        _compile([toolchain.path, *flags, "-r", "-nostdlib", *files, "-o", str(result)])
        return result

    texts = [path.read_text() for path in sorted(_RUNTIME.iterdir()) if path.is_file()]
    digest = _digest(toolchain.fingerprint, *flags, *texts, *_header_texts())
    return _cached(digest, ".runtime.o", build)


def _header_texts() -> list[str]:
    return [path.read_text() for path in sorted(_INCLUDE.rglob("*.h"))]


def _cached(digest: str, suffix: str, build: Callable[[Path], Path]) -> Path:
    target = cache_directory() / (digest + suffix)
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            # Several processes may do this at once; the last one to finish wins, with equal files.
            os.replace(build(Path(folder)), target)
    return target


def _compile(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CompilationFailed(
            "g++ refuses the rewritten kernel; what it uses may be missing in the headers that "
            f"stand in for CUDA's:\n{_first_errors(done.stderr)}"
        )


def _first_errors(messages: str) -> str:
    lines = messages.splitlines()
    errors = [line for line in lines if "error" in line or "undefined reference" in line]
    return "\n".join((errors or lines)[:_REPORTED_ERROR_LINES])


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _digest(*texts: str) -> str:
    state = hashlib.sha256()
    for text in texts:
        state.update(text.encode())
        state.update(b"\0")
    return state.hexdigest()[:_DIGEST_LENGTH]
