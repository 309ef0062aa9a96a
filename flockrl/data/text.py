"""CSV files from strangers, read line by line: one row in each, of bounded length."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from flockrl.core.errors import UsageError
from flockrl.data.columns import KEY, LONGEST, BadData
from flockrl.data.writing import COMMENT

GROWTH = 64
"""Bytes of memory that a character may become, as a number in a list."""


def first_line(path: Path) -> str:
    """The first line of a file, cut where it is too long for a schema."""
    with path.open(encoding="utf-8", newline="") as file:
        try:
            return file.readline(LONGEST + len(COMMENT) + 1)
        except UnicodeDecodeError as error:
            raise BadData("It is not UTF-8 text.") from error


def csv_schema(path: Path) -> pa.Schema:
    """The metadata of flockrl's CSV file as a schema without columns."""
    line = first_line(path)
    said = line.removeprefix(COMMENT).strip().encode() if line.startswith(COMMENT) else b""
    return pa.schema([], metadata={KEY: said})


def read_rows(path: Path, skip: int, most: int) -> Iterator[tuple[int, list[str]]]:
    """The cells of each line after the first `skip`, with its number from 1 on. Every row has as many as the first.

    most: bytes of memory for the values of one line.
    """
    longest = max(most // GROWTH, 1 << 12)
    csv.field_size_limit(longest)
    columns, number = 0, 0
    with path.open(encoding="utf-8", newline="") as file:
        try:
            while line := file.readline(longest if number >= skip else LONGEST):
                number += 1
                if number <= skip:
                    continue
                if len(line) == longest and not line.endswith(("\n", "\r")):
                    raise BadData(f"a line has more than {longest} characters: raise --memory-limit, or mend it.")
                row = next(csv.reader([line], strict=True), [])
                columns = columns or len(row)
                if len(row) != columns:
                    raise BadData(f"it has {len(row)} cells instead of {columns}.")
                yield number, row
        except (UsageError, csv.Error) as error:
            raise BadData(f"{path}, line {number}: {str(error).rstrip('.')}.") from error
        except UnicodeDecodeError as error:
            raise BadData(f"{path}, after line {number}: it is not UTF-8 text.") from error


def read_json(cell: str) -> Any:
    """A value in JSON. Raises ValueError where it is none."""
    try:
        return json.loads(cell)
    except RecursionError:
        raise ValueError("lists inside lists go too deep") from None
