# SPDX-License-Identifier: Apache-2.0
"""A device's record as a JSON file: the constants that were measured, and how they were.

The file is for people too: constants by name, in microseconds. :meth:`Device.from_file
<tvm_streamk.devices.Device.from_file>` and ``to_file`` are the way in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

SUFFIX = ".json"
FORMAT = "tvm_streamk device"
VERSION = 1


class DeviceFileUnusable(ValueError):
    """A file does not hold a device's record."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"{str(path)!r} is no device's record: {why}; make one with "
            f"`python -m tvm_streamk calibrate --output {path}`"
        )


def write_record(
    path: Path, fields: Mapping[str, Any], measurement: Mapping[str, Any] | None
) -> None:
    """Write a device's fields and, where they were measured, how."""
    record: dict[str, Any] = {"format": FORMAT, "version": VERSION, "device": dict(fields)}
    if measurement is not None:
        record["measurement"] = dict(measurement)
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def read_record(path: Path, names: Iterable[str], required: Iterable[str]) -> dict[str, Any]:
    """Return the fields that a file gives.

    Parameters
    ----------
    path : Path
        The file.
    names, required : iterable of str
        Fields that a device has, and those without a default.

    Raises
    ------
    DeviceFileUnusable
        If there is no such file, or it holds something else.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DeviceFileUnusable(path, str(error.strerror)) from error
    except ValueError as error:
        raise DeviceFileUnusable(path, f"not JSON ({error})") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise DeviceFileUnusable(path, f"its format is not {FORMAT!r}")
    if record.get("version") != VERSION:
        raise DeviceFileUnusable(path, f"version {record.get('version')!r}, expected {VERSION}")
    fields = record.get("device")
    if not isinstance(fields, dict):
        raise DeviceFileUnusable(path, "it has no 'device'")
    unknown = sorted(set(fields) - set(names))
    missing = sorted(set(required) - set(fields))
    if unknown or missing:
        raise DeviceFileUnusable(path, f"unknown fields {unknown}, missing fields {missing}")
    return fields
