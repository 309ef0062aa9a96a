"""What the pages of a Parquet file will need in memory, from their headers.

The footer's sizes are claims that Arrow does not rely on, and repeated values are kept once: a few kilobytes can become
gigabytes. So the header of every page is read by hand, in Thrift's compact form, before Arrow decodes any of them.
"""

from __future__ import annotations

import re
import struct
from typing import Any, BinaryIO

import pyarrow as pa

from flockrl.data.columns import BadData

LARGEST_DICTIONARY = 4 << 20
"""Bytes of a dictionary page; writers stop at 1 MB."""
WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8}
"""Bytes of a value. Others are of no use here."""
LEVELS = 8
"""Bytes of a value's levels and of its share in the offsets of lists."""
PLAIN, DICTIONARY = 0, (2, 8)
"""Codes of the encodings that text may have. Others make long texts out of little, by repeating their beginnings."""
DATA, DICTIONARY_PAGE, DATA_V2 = 0, 2, 3
OLD = re.compile(r"parquet-mr(?! version (1\.([3-9]|\d\d)|[2-9]))", re.IGNORECASE)
"""Writers whose columns Arrow takes to be longer than they say."""


def needed(group: Any, file: BinaryIO, most: int) -> int:
    """Bytes that a row group will need. group: pyarrow's `RowGroupMetaData`; most: bytes that are read at once."""
    total = 0
    for i in range(group.num_columns):
        column = group.column(i)
        start, size = column.data_page_offset, column.total_compressed_size
        if column.has_dictionary_page and column.dictionary_page_offset:
            start = min(start, column.dictionary_page_offset)
        if start < 4 or size < 0:
            raise BadData("A column of the Parquet file lies outside the file.")
        if size > most:
            return size
        file.seek(start)
        data = file.read(size)
        if len(data) < size:
            raise BadData("A column of the Parquet file lies outside the file.")
        values, size = _column(column, memoryview(data))
        if values < group.num_rows:
            raise BadData("A row group of the Parquet file has fewer values than rows.")
        total += size
    return total


def _column(column: Any, data: memoryview) -> tuple[int, int]:
    """The values of a column chunk, and the bytes that they will need. data: its pages."""
    kind = column.physical_type
    if kind not in WIDTHS and kind != "BYTE_ARRAY":
        raise BadData(f"The Parquet file has values of type {kind}, and flockrl's columns have none.")
    values = total = longest = largest = 0
    at = 0
    while at < len(data):
        page, at = _Thrift(data, at).header()
        if page.unpacked < 0 or page.packed < 0 or page.count < 0 or at + page.packed > len(data):
            raise BadData("A page of the Parquet file is cut short.")
        largest = max(largest, page.unpacked)
        if page.kind == DICTIONARY_PAGE:
            longest = max(longest, _longest(data[at : at + page.packed], page, column) if kind == "BYTE_ARRAY" else 0)
        elif page.kind in (DATA, DATA_V2):
            values += page.count
            total += page.count * LEVELS + _width(kind, page, longest)
        at += page.packed
    return values, total + largest


def _width(kind: str, page: _Page, longest: int) -> int:
    """Bytes of a data page's decoded values. longest: bytes of the longest text in the dictionary."""
    if kind != "BYTE_ARRAY":
        return page.count * WIDTHS[kind]
    if page.encoding in DICTIONARY:
        return page.count * longest
    if page.encoding != PLAIN:
        raise BadData("Text in the Parquet file is encoded in a way that is not taken: use plain text or dictionaries.")
    return page.unpacked


def _longest(data: memoryview, page: _Page, column: Any) -> int:
    """Bytes of the longest text in a dictionary page."""
    if page.unpacked > LARGEST_DICTIONARY:
        raise BadData(
            f"A dictionary in the Parquet file has {page.unpacked} bytes, at most {LARGEST_DICTIONARY} are taken."
        )
    text: Any = data
    if column.compression != "UNCOMPRESSED":
        text = pa.decompress(data, page.unpacked, codec=column.compression.lower())
    at = longest = 0
    for _ in range(page.count):
        if at + 4 > len(text):
            raise BadData("A page of the Parquet file is cut short.")
        size = struct.unpack_from("<I", text, at)[0]
        longest = max(longest, size)
        at += 4 + size
    return longest


class _Page:
    """A page's header. kind: data or dictionary; unpacked, packed: bytes; count: values; encoding: a code."""

    def __init__(self, fields: dict[int, Any]):
        self.kind, self.unpacked, self.packed = (_int(fields.get(i)) for i in (1, 2, 3))
        part = fields.get({DATA: 5, DICTIONARY_PAGE: 7, DATA_V2: 8}.get(self.kind, -1))
        part = part if isinstance(part, dict) else {}
        self.count, self.encoding = _int(part.get(1, 0)), _int(part.get(4 if self.kind == DATA_V2 else 2, 0))


def _int(value: Any) -> int:
    if not isinstance(value, int):
        raise BadData("A page of the Parquet file has a damaged header.")
    return value


class _Thrift:
    """A reader of structs in Thrift's compact form, which begin at byte `at`."""

    def __init__(self, data: memoryview, at: int):
        self.data, self.at = data, at

    def header(self) -> tuple[_Page, int]:
        """A page's header, and where it ends."""
        try:
            return _Page(self._struct(0)), self.at
        except IndexError:
            raise BadData("A page of the Parquet file has a damaged header.") from None

    def _byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise BadData("A page of the Parquet file has a damaged header.")

    def _struct(self, depth: int) -> dict[int, Any]:
        """The fields of a struct by number."""
        fields: dict[int, Any] = {}
        number = 0
        while (byte := self._byte()) != 0:
            number = number + (byte >> 4) if byte >> 4 else self._zigzag()
            fields[number] = self._value(byte & 15, depth)
        return fields

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _value(self, kind: int, depth: int, alone: bool = True) -> Any:
        """A value of a kind: 1, 2 bool; 3 byte; 4, 5, 6 whole numbers; 7 double; 8 bytes; 9, 10 list; 12 struct.
        alone: a field, whose kind is its value if it is a bool, not an element of a list."""
        if kind in (1, 2):
            return kind == 1 if alone else self._byte() == 1
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            return self._zigzag()
        if kind == 7 or kind == 8:
            size = 8 if kind == 7 else self._varint()
            self.at += size
            return None
        if kind == 12 and depth < 8:
            return self._struct(depth + 1)
        if kind in (9, 10) and depth < 8:
            byte = self._byte()
            count = self._varint() if byte >> 4 == 15 else byte >> 4
            for _ in range(min(count, len(self.data) + 1)):
                self._value(byte & 15, depth + 1, alone=False)
            return None
        raise BadData("A page of the Parquet file has a damaged header.")
