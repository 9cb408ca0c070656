# SPDX-License-Identifier: Apache-2.0
"""Inline assembly in CUDA source, statement by statement: from PTX text to instructions.

A statement `asm volatile("text" : outputs : inputs : clobbers);` becomes an `Assembly`. Its
operands are C++ expressions already: `%1` is replaced by the expression that stands for it and a
register that the text declares by the name of a C++ variable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .errors import UnsupportedCode
from .source_text import (
    closing_position,
    joined_string,
    line_of,
    split_outside_brackets,
)

_STATEMENT = re.compile(r"\b(?:asm|__asm__)\b\s*(?:\b(?:volatile|__volatile__)\b)?\s*\(")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_CONSTRAINED = re.compile(r'"[^"]*"\s*\((?P<expression>.*)\)\s*$', re.DOTALL)
_DECLARATION = re.compile(r"\.reg\s+\.(?P<type>\w+)\s+(?P<names>[\w%, ]+)$")
_INSTRUCTION = re.compile(
    r"(?:@(?P<negated>!?)(?P<guard>%?\w+)\s+)?(?P<opcode>[A-Za-z][\w.:]*)\s*(?P<operands>.*)$",
    re.DOTALL,
)
_LABEL = re.compile(r"[\w$%]+\s*:(?!:)")
_NUMBER = re.compile(r"[-+]?(?:0[xX][0-9a-fA-F]+|\d+)U?$")
_PLACEHOLDER = re.compile(r"%(\d+)$")
_OFFSET = re.compile(r"(?P<base>%?\w+)\s*\+\s*(?P<offset>\d+)$")
_REGISTER_PREFIX = "ptx_register_"


@dataclass(frozen=True)
class Register:
    """A register that the text declares: its C++ name and PTX type."""

    name: str
    ptx_type: str


@dataclass(frozen=True)
class Instruction:
    """One PTX instruction.

    Attributes
    ----------
    opcode : str
        With all its suffixes.
    operands : tuple[str | tuple[str, ...], ...]
        C++ expressions; a tuple for a list of registers in braces.
    condition : str
        C++ expression of the predicate; empty if there is none.
    text : str
        As the source has it.
    """

    opcode: str
    operands: tuple[str | tuple[str, ...], ...]
    condition: str
    text: str


@dataclass(frozen=True)
class Assembly:
    """One statement, from `start` to `end` in the source."""

    start: int
    end: int
    line: int
    registers: tuple[Register, ...]
    instructions: tuple[Instruction, ...]


def find_assembly(source: str) -> Iterator[Assembly]:
    """All statements of inline assembly, in order.

    Parameters
    ----------
    source : str
        CUDA C++.

    Yields
    ------
    Assembly

    Raises
    ------
    UnsupportedCode
        If a statement cannot be parsed; the message has its line.
    """
    for match in _STATEMENT.finditer(source):
        close = closing_position(source, match.end())
        semicolon = source.find(";", close)
        if source[close + 1 : semicolon].strip():
            raise UnsupportedCode(f"line {line_of(source, close)}: no semicolon after asm(...)")
        line = line_of(source, match.start())
        registers, instructions = _parse(source[match.end() : close], line)
        yield Assembly(match.start(), semicolon + 1, line, registers, instructions)


def _parse(body: str, line: int) -> tuple[tuple[Register, ...], tuple[Instruction, ...]]:
    template, *lists = split_outside_brackets(body, ":")
    operands = [
        _operand_expression(operand, line)
        for operand_list in lists[:2]
        for operand in split_outside_brackets(operand_list, ",")
    ]
    text = _COMMENT.sub("", joined_string(template)).strip()
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1]
    registers: list[Register] = []
    instructions: list[Instruction] = []
    for statement in filter(None, (piece.strip() for piece in text.split(";"))):
        if declaration := _DECLARATION.match(statement):
            registers.extend(_registers(declaration))
        else:
            instructions.append(_instruction(statement, operands, registers, line))
    return tuple(registers), tuple(instructions)


def _operand_expression(operand: str, line: int) -> str:
    match = _CONSTRAINED.match(operand)
    if match is None:
        raise UnsupportedCode(f"line {line}: the operand {operand!r} of an asm is not understood")
    return f"({match['expression'].strip()})"


def _registers(declaration: re.Match[str]) -> Iterator[Register]:
    for name in declaration["names"].split(","):
        yield Register(_REGISTER_PREFIX + name.strip().lstrip("%"), declaration["type"])


def _instruction(
    statement: str, expressions: list[str], registers: list[Register], line: int
) -> Instruction:
    if _LABEL.match(statement):
        raise UnsupportedCode(f"line {line}: labels in an asm are not emulated: {statement!r}")
    match = _INSTRUCTION.match(statement)
    if match is None:
        raise UnsupportedCode(f"line {line}: {statement!r} in an asm is no PTX instruction")
    known = {register.name for register in registers}

    def expression(operand: str) -> str:
        return _expression(operand, expressions, known, line)

    operands = tuple(
        tuple(expression(part) for part in split_outside_brackets(operand[1:-1], ","))
        if operand.startswith("{")
        else expression(operand.strip("[]"))
        for operand in split_outside_brackets(match["operands"], ",")
    )
    condition = expression(match["guard"]) if match["guard"] else ""
    if condition and match["negated"]:
        condition = f"!{condition}"
    return Instruction(match["opcode"], operands, condition, " ".join(statement.split()))


def _expression(operand: str, expressions: list[str], registers: set[str], line: int) -> str:
    operand = operand.strip()
    if _NUMBER.match(operand):
        return operand
    if (placeholder := _PLACEHOLDER.match(operand)) and int(placeholder[1]) < len(expressions):
        return expressions[int(placeholder[1])]
    if (name := _REGISTER_PREFIX + operand.lstrip("%")) in registers:
        return name
    if offset := _OFFSET.match(operand):
        base = _expression(offset["base"], expressions, registers, line)
        return f"({base} + {offset['offset']})"
    raise UnsupportedCode(f"line {line}: the PTX operand {operand!r} is not understood")
