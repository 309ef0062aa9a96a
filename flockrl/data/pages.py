"""What the row groups of a Parquet file will need in memory, from the headers of their pages.

The footer's sizes are claims that Arrow does not rely on, and repeated values are kept once: a few kilobytes can become
gigabytes. So the header of every page is read by hand before Arrow decodes any of them. The footer is read by hand too,
because Arrow ends the process where it is asked about a column whose statistics are damaged.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa

from flockrl.data.columns import BadData, too_large
from flockrl.data.thrift import BYTES, INT, LONG, STRUCT, Lists, Long, Reader, damaged, whole

SIZES: Lists = {2: (LONG, {}), 3: (LONG, {})}
COLUMN: Lists = {2: (INT, {}), 3: (BYTES, {}), 8: (STRUCT, {}), 13: (STRUCT, {}), 16: SIZES}
GROUP = {1: (STRUCT, {3: COLUMN}), 4: (STRUCT, {})}
FOOTER = {2: (STRUCT, {}), 4: (STRUCT, GROUP), 5: (STRUCT, {}), 7: (STRUCT, {})}
"""The lists in a footer: of columns' statistics, of columns, of row groups, of the file."""
WIDTHS = {0: 1, 1: 4, 2: 8, 4: 4, 5: 8}
"""Bytes of a value by the code of its type: booleans, whole numbers and real ones."""
TEXT = 6
CODECS = {1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
LARGEST_DICTIONARY = 4 << 20
"""Bytes of a dictionary page; writers stop at 1 MB."""
LEVELS = 8
"""Bytes of a value's levels and of its share in the offsets of lists."""
PLAIN, DICTIONARY = 0, (2, 8)
"""Codes of the encodings that text may have. Others make long texts out of little, by repeating their beginnings."""
DATA, DICTIONARY_PAGE, DATA_V2 = 0, 2, 3
"""Kinds of pages."""
OLD = re.compile(r"parquet-mr(?! version (1\.([3-9]|\d\d)|[2-9]))", re.IGNORECASE)
"""Writers whose columns Arrow takes to be longer than they say."""


class Column(NamedTuple):
    """A column chunk. kind, codec: codes of its type and its compression; start, size: its bytes in the file."""

    kind: int
    codec: int
    start: int
    size: int


def row_groups(file: BinaryIO) -> Iterator[tuple[int, list[Column]]]:
    """The row groups that a footer describes: their rows and their columns."""
    size = file.seek(0, 2)
    file.seek(max(size - 8, 0))
    tail = file.read(8)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != b"PAR1" or length > size - 12:
        raise BadData("The Parquet file is cut short.")
    file.seek(size - 8 - length)
    groups = Reader(memoryview(file.read(length))).struct(FOOTER).get(4)
    for group in groups if isinstance(groups, list) else []:
        if not isinstance(group.get(1), list):
            raise damaged()
        yield whole(group.get(3), Long), [_chunk(chunk) for chunk in group[1]]


def _chunk(chunk: dict[int, Any]) -> Column:
    said = chunk.get(3)
    if not isinstance(said, dict) or 8 in chunk or 1 in chunk:
        raise BadData("The Parquet file is encrypted, or has columns in other files.")
    start = whole(said.get(9), Long)
    if 11 in said and 0 < whole(said[11], Long) < start:
        start = whole(said[11], Long)
    found = Column(whole(said.get(1)), whole(said.get(4)), start, whole(said.get(7), Long))
    if found.start < 4 or found.size < 0:
        raise BadData("A column of the Parquet file lies outside the file.")
    return found


def needed(file: BinaryIO, rows: int, columns: list[Column], most: int) -> int:
    """Bytes that a row group will need. One that needs more than `most` is refused."""
    total = 0
    for column in columns:
        if column.size > most:
            raise too_large(column.size, most, "A row group of the Parquet file")
        file.seek(column.start)
        data = file.read(column.size)
        if len(data) < column.size:
            raise BadData("A column of the Parquet file lies outside the file.")
        values, size = _count(column, memoryview(data))
        if values < rows:
            raise BadData("A row group of the Parquet file has fewer values than rows.")
        total += size
    if total > most:
        raise too_large(total, most, "A row group of the Parquet file")
    return total


def _count(column: Column, data: memoryview) -> tuple[int, int]:
    """The values of a column chunk, and the bytes that they will need. data: its pages."""
    if column.kind not in WIDTHS and column.kind != TEXT:
        raise BadData("The Parquet file has values of a type that flockrl's columns do not have.")
    values = total = longest = largest = at = 0
    while at < len(data):
        page, at = _header(data, at)
        largest = max(largest, page.unpacked)
        if page.kind == DICTIONARY_PAGE and column.kind == TEXT:
            longest = max(longest, _longest(data[at : at + page.packed], page, column))
        elif page.kind == DICTIONARY_PAGE and page.values * WIDTHS[column.kind] > page.unpacked:
            raise BadData("A dictionary of the Parquet file claims more values than it can hold.")
        elif page.kind in (DATA, DATA_V2):
            values += page.values
            total += page.values * LEVELS + _decoded(column, page, longest)
        at += page.packed
    return values, total + largest


class _Page(NamedTuple):
    """A page. unpacked, packed: bytes; encoding: a code."""

    kind: int
    unpacked: int
    packed: int
    values: int
    encoding: int


def _header(data: memoryview, at: int) -> tuple[_Page, int]:
    """The page whose header begins at byte `at`, and where its content begins."""
    reader = Reader(data, at)
    fields = reader.struct({})
    kind, unpacked, packed = (whole(fields.get(i)) for i in (1, 2, 3))
    part = fields.get({DATA: 5, DICTIONARY_PAGE: 7, DATA_V2: 8}.get(kind, 0), {})
    if not isinstance(part, dict):
        raise damaged()
    page = _Page(kind, unpacked, packed, whole(part.get(1, 0)), whole(part.get(4 if kind == DATA_V2 else 2, 0)))
    if unpacked < 0 or packed < 0 or page.values < 0 or reader.at + packed > len(data):
        raise BadData("A page of the Parquet file is cut short.")
    return page, reader.at


def _decoded(column: Column, page: _Page, longest: int) -> int:
    """Bytes of a data page's decoded values. longest: bytes of the longest text in the dictionary."""
    if column.kind != TEXT:
        return page.values * WIDTHS[column.kind]
    if page.encoding in DICTIONARY:
        return page.values * longest
    if page.encoding != PLAIN:
        raise BadData("Text in the Parquet file is encoded in a way that is not taken: use plain text or dictionaries.")
    return page.unpacked


def _longest(data: memoryview, page: _Page, column: Column) -> int:
    """Bytes of the longest text in a dictionary page."""
    if page.unpacked > LARGEST_DICTIONARY:
        raise BadData(f"A dictionary of the Parquet file has {page.unpacked} bytes, above {LARGEST_DICTIONARY}.")
    text: Any = data
    if column.codec:
        if column.codec not in CODECS:
            raise BadData("Text in the Parquet file is compressed in a way that is not taken.")
        text = pa.decompress(data, page.unpacked, codec=CODECS[column.codec])
    at = longest = 0
    for _ in range(page.values):
        if at + 4 > len(text):
            raise BadData("A page of the Parquet file is cut short.")
        size = struct.unpack_from("<I", text, at)[0]
        longest = max(longest, size)
        at += 4 + size
    return longest
