# SPDX-License-Identifier: Apache-2.0
"""Which PTX instructions are emulated, and by which C++ of `include/cuda_on_cpu/ptx.h`."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import MappingProxyType

from .errors import UnsupportedCode
from .inline_assembly import Assembly, Instruction, Register

_NAMESPACE = "cuda_on_cpu::ptx"
# Of variables in the emulation; kernels must not use such names themselves.
_LOCAL = "cuda_on_cpu_"
_TYPES = MappingProxyType(
    {
        "pred": "bool",
        "b8": "uint8_t", "u8": "uint8_t", "s8": "int8_t",
        "b16": "uint16_t", "u16": "uint16_t", "s16": "int16_t",
        "b32": "uint32_t", "u32": "uint32_t", "s32": "int32_t",
        "b64": "uint64_t", "u64": "uint64_t", "s64": "int64_t",
        "f32": "float", "f64": "double",
    }
)  # fmt: skip
_MMA_TYPES = MappingProxyType(
    {
        "f16": "__half",
        "bf16": "__nv_bfloat16",
        "f32": "float",
        "s8": "signed char",
        "u8": "unsigned char",
        "s32": "int",
    }
)
_COMPARISONS = MappingProxyType(
    {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
)
_TYPE = r"(?P<type>[bsuf](?:8|16|32|64))"
# After the order of a global access.
_GLOBAL = r"(?:\.(?:cta|cluster|gpu|sys))?\.global"

Operand = str | tuple[str, ...]
Emitter = Callable[[re.Match[str], tuple[Operand, ...]], str]


def emulation_of(assembly: Assembly) -> str:
    """C++ that does what a statement of inline assembly does, on one line.

    Raises
    ------
    UnsupportedCode
        If an instruction is not emulated; the message has it and its line.
    """
    parts = [_declaration(register) for register in assembly.registers]
    for instruction in assembly.instructions:
        emulation = _emulate(instruction, assembly.line)
        guard = f"if ({instruction.condition}) " if instruction.condition else ""
        parts.append(f"{guard}{{ {emulation} }}")
    return "{ " + " ".join(parts) + " }"


def _declaration(register: Register) -> str:
    if register.ptx_type not in _TYPES:
        raise UnsupportedCode(
            f"PTX registers of type .{register.ptx_type} are not emulated; known: {sorted(_TYPES)}"
        )
    return f"{_TYPES[register.ptx_type]} {register.name};"


def _emulate(instruction: Instruction, line: int) -> str:
    for pattern, operand_counts, emitter in _RULES:
        match = pattern.fullmatch(instruction.opcode)
        if match and len(instruction.operands) in operand_counts:
            return emitter(match, instruction.operands)
    raise UnsupportedCode(
        f"line {line}: the PTX instruction {instruction.text!r} is not emulated on the CPU; "
        "run this kernel on a GPU, or schedule it without this instruction"
    )


def _call(function: str, *arguments: Operand) -> str:
    return f"{_NAMESPACE}::{function}({', '.join(map(str, arguments))})"


def _elements(operand: Operand) -> tuple[str, ...]:
    return operand if isinstance(operand, tuple) else (operand,)


def _cp_async(_: re.Match[str], operands: tuple[Operand, ...]) -> str:
    return _call("cp_async", *operands) + ";"


def _cp_async_group(match: re.Match[str], operands: tuple[Operand, ...]) -> str:
    return _call(f"cp_async_{match['action']}", *operands) + ";"


def _set_predicate(match: re.Match[str], operands: tuple[Operand, ...]) -> str:
    predicate, left, right = operands
    kind = _TYPES[match["type"]]
    return f"{predicate} = {kind}({left}) {_COMPARISONS[match['comparison']]} {kind}({right});"


def _move(match: re.Match[str], operands: tuple[Operand, ...]) -> str:
    target, value = operands
    return f"{target} = {value};"


def _to_shared(_: re.Match[str], operands: tuple[Operand, ...]) -> str:
    target, pointer = operands
    return f"{target} = {_call('to_shared', pointer)};"


def _store_shared(match: re.Match[str], operands: tuple[Operand, ...]) -> str:
    address, values = operands
    function = f"st_shared<{_TYPES[match['type']]}>"
    return " ".join(
        _call(function, address, str(index), value) + ";"
        for index, value in enumerate(_elements(values))
    )


def _load_shared(match: re.Match[str], operands: tuple[Operand, ...]) -> str:
    targets, address = operands
    function = f"ld_shared<{_TYPES[match['type']]}>"
    return " ".join(
        f"{target} = {_call(function, address, str(index))};"
        for index, target in enumerate(_elements(targets))
    )


def _load_global(match: re.Match[str], operands: tuple[Operand, ...]) -> str:
    target, address = operands
    function = "ld_acquire" if match["order"] == "acquire" else "ld_relaxed"
    kind = _TYPES[match["type"]]
    call = _call(f"{function}<{kind}>", address)
    return f"{kind} {_LOCAL}value = {call}; {_assign(target)}"


def _store_global(match: re.Match[str], operands: tuple[Operand, ...]) -> str:
    address, value = operands
    function = "st_release" if match["order"] == "release" else "st_relaxed"
    return _call(f"{function}<{_TYPES[match['type']]}>", address, value) + ";"


def _atomic(match: re.Match[str], operands: tuple[Operand, ...]) -> str:
    targets = operands[:1] if match["kind"] == "atom" else ()
    address, *values = operands[len(targets) :]
    order = match["order"] or "relaxed"
    function = f"atom_{match['action']}<{_TYPES[match['type']]}>"
    pointer = _call("global_pointer", address)
    before = f"cuda_on_cpu::release_to({pointer}); " if order in ("release", "acq_rel") else ""
    after = f" cuda_on_cpu::acquire_from({pointer});" if order in ("acquire", "acq_rel") else ""
    call = _call(function, address, *values)
    if not targets:
        return f"{before}{call};{after}"
    kind = _TYPES[match["type"]]
    return f"{before}{kind} {_LOCAL}value = {call};{after} {_assign(targets[0])}"


def _assign(target: Operand) -> str:
    """Registers have no sign: the bits go into an operand of whatever type of that size."""
    return f"__builtin_memcpy(&{target}, &{_LOCAL}value, sizeof({_LOCAL}value));"


def _device_fence(_: re.Match[str], __: tuple[Operand, ...]) -> str:
    return "__threadfence();"


def _nothing(_: re.Match[str], __: tuple[Operand, ...]) -> str:
    return ";"


def _block_barrier(_: re.Match[str], operands: tuple[Operand, ...]) -> str:
    if operands != ("0",):
        raise UnsupportedCode(f"named barriers are not emulated, only number 0: {operands}")
    return "__syncthreads(__LINE__);"


def _warp_barrier(_: re.Match[str], operands: tuple[Operand, ...]) -> str:
    return f"__syncwarp({operands[0]}, __LINE__);"


def _ldmatrix(match: re.Match[str], operands: tuple[Operand, ...]) -> str:
    targets, address = _elements(operands[0]), operands[1]
    transposed = "true" if match["trans"] else "false"
    return " ".join(
        [
            f"uint32_t {_LOCAL}d[{len(targets)}];",
            _call("ldmatrix", _LOCAL + "d", address, transposed, "__LINE__") + ";",
            *_unpacked(targets),
        ]
    )


def _mma(match: re.Match[str], operands: tuple[Operand, ...]) -> str:
    targets, a, b, c = (_elements(operand) for operand in operands)
    sum_type, a_type, b_type = (_MMA_TYPES[match[name]] for name in ("d", "a", "b"))
    function = f"mma<{match['depth']}, {sum_type}, {a_type}, {b_type}>"
    return " ".join(
        [
            f"uint32_t {_LOCAL}d[{len(targets)}];",
            *(_packed(name, values) for name, values in (("a", a), ("b", b), ("c", c))),
            _call(function, *(_LOCAL + name for name in "dabc"), "__LINE__") + ";",
            *_unpacked(targets),
        ]
    )


def _packed(name: str, values: tuple[str, ...]) -> str:
    words = ", ".join(_call("word", value) for value in values)
    return f"const uint32_t {_LOCAL}{name}[] = {{{words}}};"


def _unpacked(targets: tuple[str, ...]) -> list[str]:
    return [
        _call("set_word", target, f"{_LOCAL}d[{index}]") + ";"
        for index, target in enumerate(targets)
    ]


def _dot_product(match: re.Match[str], operands: tuple[Operand, ...]) -> str:
    target, a, b, c = operands
    bytes_of = {"s32": "signed char", "u32": "unsigned char"}
    function = f"dp4a<{bytes_of[match['a']]}, {bytes_of[match['b']]}>"
    return f"{target} = {_call(function, a, b, c)};"


def _rule(
    pattern: str, counts: tuple[int, ...], emitter: Emitter
) -> tuple[re.Pattern[str], tuple[int, ...], Emitter]:
    return re.compile(pattern), counts, emitter


_ORDER = r"(?:\.(?P<order>relaxed|acquire|release|acq_rel))?"
_RULES = (
    _rule(r"cp\.async\.c[ag]\.shared(?:::cta)?\.global(?:\.L2::\d+B)?", (3, 4), _cp_async),
    _rule(r"cp\.async\.(?P<action>commit_group|wait_all)", (0,), _cp_async_group),
    _rule(r"cp\.async\.(?P<action>wait_group)", (1,), _cp_async_group),
    _rule(rf"setp\.(?P<comparison>eq|ne|lt|le|gt|ge)\.{_TYPE}", (3,), _set_predicate),
    _rule(rf"mov\.{_TYPE}", (2,), _move),
    _rule(r"cvt\.u32\.u64|cvt\.u64\.u32", (2,), _move),
    _rule(r"cvta\.to\.shared\.u64", (2,), _to_shared),
    _rule(rf"st\.shared(?:::cta)?(?:\.v[248])?\.{_TYPE}", (2,), _store_shared),
    _rule(rf"ld\.shared(?:::cta)?(?:\.v[248])?\.{_TYPE}", (2,), _load_shared),
    _rule(rf"ld\.(?P<order>relaxed|acquire|volatile){_GLOBAL}\.{_TYPE}", (2,), _load_global),
    _rule(rf"st\.(?P<order>relaxed|release|volatile){_GLOBAL}\.{_TYPE}", (2,), _store_global),
    _rule(rf"(?P<kind>red){_ORDER}{_GLOBAL}\.(?P<action>add)\.{_TYPE}", (2,), _atomic),
    _rule(rf"(?P<kind>atom){_ORDER}{_GLOBAL}\.(?P<action>add|exch)\.{_TYPE}", (3,), _atomic),
    _rule(rf"(?P<kind>atom){_ORDER}{_GLOBAL}\.(?P<action>cas)\.{_TYPE}", (4,), _atomic),
    _rule(r"fence\.(?:acq_rel|sc)\.(?:gpu|sys)|membar\.(?:gl|sys)", (0,), _device_fence),
    _rule(r"fence\.(?:acq_rel|sc)\.cta|membar\.cta", (0,), _nothing),
    _rule(r"(?:bar|barrier)\.sync(?:\.aligned)?", (1,), _block_barrier),
    _rule(r"bar\.warp\.sync", (1,), _warp_barrier),
    _rule(
        r"ldmatrix\.sync\.aligned\.m8n8\.x[124](?P<trans>\.trans)?\.shared(?:::cta)?\.b16",
        (2,),
        _ldmatrix,
    ),
    _rule(
        r"mma\.sync\.aligned\.m16n8k(?P<depth>8|16)\.row\.col"
        r"\.(?P<d>f16|f32)\.(?P<a>f16|bf16)\.(?P<b>(?P=a))\.(?P=d)",
        (4,),
        _mma,
    ),
    _rule(
        r"mma\.sync\.aligned\.m16n8k(?P<depth>16|32)\.row\.col"
        r"\.(?P<d>s32)\.(?P<a>[su]8)\.(?P<b>[su]8)\.s32",
        (4,),
        _mma,
    ),
    _rule(r"dp4a\.(?P<a>[su]32)\.(?P<b>[su]32)", (4,), _dot_product),
)
