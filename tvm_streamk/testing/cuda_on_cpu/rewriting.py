# SPDX-License-Identifier: Apache-2.0
"""CUDA C++ to C++: the few constructs that headers and macros cannot express.

Shared memory declarations become references into the block's memory, inline assembly becomes
calls, and every kernel is registered by its name. All else stays, line by line, so that line
numbers of the result are those of the source.
"""

from __future__ import annotations

import re

from .errors import UnsupportedCode
from .inline_assembly import find_assembly
from .ptx_instructions import emulation_of
from .source_text import line_of, source_line

KERNEL_FILE = "kernel.cu"

_ALIGNMENT = r"(?:(?:alignas|__align__)\((?P<alignment>\d+)\)\s*)?"
_TYPE_AND_NAME = r"(?P<type>[\w:][\w:<>, ]*?)\s+(?P<name>\w+)\s*"
_DYNAMIC_SHARED = re.compile(rf"\bextern\s+__shared__\s+{_ALIGNMENT}{_TYPE_AND_NAME}\[\s*\]\s*;")
_STATIC_SHARED = re.compile(
    rf"\b__shared__\s+{_ALIGNMENT}{_TYPE_AND_NAME}(?P<extents>(?:\[[^\]]+\]\s*)*);"
)
_KERNEL = re.compile(r"\b__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(?P<name>\w+)\s*\(")
# A promise to the optimiser that holds for no buffer which other blocks write; on the CPU it
# would only let the compiler move accesses across barriers.
_RESTRICT = re.compile(r"\b__restrict__\b")


def rewrite(source: str) -> str:
    """C++ that g++ compiles against the package's headers.

    Parameters
    ----------
    source : str
        CUDA C++ of one or more kernels.

    Returns
    -------
    str
        The same program; `#line` makes compilers speak of `kernel.cu` and the source's lines.

    Raises
    ------
    UnsupportedCode
        If a shared declaration or an instruction is not known; the message quotes it.
    """
    kernels = list(dict.fromkeys(match["name"] for match in _KERNEL.finditer(source)))
    if not kernels:
        raise UnsupportedCode("the source has no '__global__ void' function")
    text = _replace_assembly(source)
    text = _DYNAMIC_SHARED.sub(_dynamic_shared, text)
    text = _replace_static_shared(text)
    _refuse_other_shared(text)
    text = _RESTRICT.sub("", text)
    return "\n".join(
        [
            '#include "cuda.h"',
            '#include "cuda_on_cpu/kernel_entry.h"',
            f'#line 1 "{KERNEL_FILE}"',
            text,
            *(f"CUDA_ON_CPU_KERNEL({kernel})" for kernel in kernels),
            "",
        ]
    )


def _replace_assembly(source: str) -> str:
    pieces: list[str] = []
    end = 0
    for assembly in find_assembly(source):
        replaced = source[assembly.start : assembly.end]
        pieces += [source[end : assembly.start], emulation_of(assembly), _line_breaks(replaced)]
        end = assembly.end
    return "".join([*pieces, source[end:]])


def _dynamic_shared(match: re.Match[str]) -> str:
    kind, name = match["type"], match["name"]
    declaration = f'{kind}* const {name} = cuda_on_cpu::declare_dynamic_shared<{kind}>("{name}");'
    return declaration + _line_breaks(match.group())


def _replace_static_shared(text: str) -> str:
    pieces: list[str] = []
    end = 0
    for number, match in enumerate(_STATIC_SHARED.finditer(text)):
        object_type = f"{match['type']}{match['extents']}".strip()
        arguments = f'{number}, "{match["name"]}", {match["alignment"] or 1}'
        pieces += [
            text[end : match.start()],
            f"auto& {match['name']} = cuda_on_cpu::declare_shared<{object_type}>({arguments});",
            _line_breaks(match.group()),
        ]
        end = match.end()
    return "".join([*pieces, text[end:]])


def _refuse_other_shared(text: str) -> None:
    position = text.find("__shared__")
    if position >= 0:
        line = line_of(text, position)
        raise UnsupportedCode(
            f"line {line}: this declaration of shared memory is not understood: "
            f"{source_line(text, line)!r}"
        )


def _line_breaks(text: str) -> str:
    return "\n" * text.count("\n")
