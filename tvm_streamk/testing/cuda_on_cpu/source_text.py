# SPDX-License-Identifier: Apache-2.0
"""The little of C++'s grammar that rewriting needs: strings, brackets, lines."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .errors import UnsupportedCode

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_OPENING = "([{"
_CLOSING = ")]}"


def line_of(source: str, position: int) -> int:
    """Number of the line, from 1, in which a position lies."""
    return source.count("\n", 0, position) + 1


def source_line(source: str, line: int) -> str:
    """Text of a line without the blanks around it; empty if there is no such line."""
    lines = source.splitlines()
    return lines[line - 1].strip() if 1 <= line <= len(lines) else ""


def closing_position(source: str, start: int) -> int:
    """Where the bracket is closed that was opened just before `start`.

    Raises
    ------
    UnsupportedCode
        If it is not closed.
    """
    depth = 1
    for position, character in _outside_strings(source, start):
        if character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        if depth == 0:
            return position
    raise UnsupportedCode(f"line {line_of(source, start)}: a bracket is not closed")


def split_outside_brackets(text: str, separator: str) -> list[str]:
    """Pieces of `text` between separators that are in no bracket and no string, stripped.

    An empty text has no pieces.
    """
    pieces: list[str] = []
    depth = 0
    begin = 0
    for position, character in _outside_strings(text, 0):
        if character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        elif character == separator and depth == 0:
            pieces.append(text[begin:position].strip())
            begin = position + 1
    last = text[begin:].strip()
    return [*pieces, last] if pieces or last else []


def joined_string(literals: str) -> str:
    """Value of adjacent C string literals; of the escapes, those that inline assembly uses."""
    parts = (match.group()[1:-1] for match in _STRING.finditer(literals))
    text = "".join(parts)
    return text.replace("\\n", "\n").replace("\\t", "\t").replace('\\"', '"').replace("%%", "%")


def _outside_strings(source: str, start: int) -> Iterator[tuple[int, str]]:
    position = start
    while position < len(source):
        if source[position] == '"' and (match := _STRING.match(source, position)):
            position = match.end()
            continue
        yield position, source[position]
        position += 1
