"""Structs in Thrift's compact form, the form of a Parquet file's footer and of its pages' headers.

Arrow has a reader of its own, which knows what it expects and passes over what it does not. So that both readers see
the same, whatever could be understood in two ways is refused: a field twice, numbers too large for their kind, lists of
other things than expected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flockrl.data.columns import BadData

TRUE, FALSE, BYTE, SHORT, INT, LONG, DOUBLE, BYTES, LIST, STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 9, 12
BITS = {SHORT: 16, INT: 32, LONG: 64}
DEEPEST = 8
Lists = Mapping[int, Any]
"""For the fields of a struct that are lists: (kind of the elements, their `Lists`); for those that are structs, which
have lists: their `Lists`."""


class Long(int):
    """A whole number that was written as one of 64 bits."""


def damaged() -> BadData:
    return BadData("The Parquet file has a damaged footer or header.")


def whole(value: Any, kind: type = int) -> int:
    """A whole number of 32 bits, or with `kind` Long of 64."""
    if not isinstance(value, int) or type(value) is not kind:
        raise damaged()
    return int(value)


class Reader:
    """Reads structs from bytes, beginning at byte `at`."""

    def __init__(self, data: memoryview, at: int = 0):
        self.data, self.at = data, at

    def struct(self, lists: Lists, depth: int = 0) -> dict[int, Any]:
        """The fields of a struct by number. Bytes are passed over, and are None."""
        fields: dict[int, Any] = {}
        number = 0
        try:
            while byte := self.data[self.at]:
                self.at += 1
                number = number + (byte >> 4) if byte >> 4 else self._number(SHORT)
                if number in fields or number > 32767:
                    raise damaged()
                fields[number] = self._value(byte & 15, lists.get(number), depth)
        except IndexError:
            raise damaged() from None
        self.at += 1
        return fields

    def _byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def _varint(self) -> int:
        value = self.data[self.at]
        self.at += 1
        if value < 128:
            return value
        value, shift = value & 127, 7
        while shift < 70:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise damaged()

    def _number(self, kind: int) -> int:
        value = self._varint()
        value = (value >> 1) ^ -(value & 1)
        if not -(1 << (BITS[kind] - 1)) <= value < 1 << (BITS[kind] - 1):
            raise damaged()
        return value

    def _value(self, kind: int, lists: Any, depth: int) -> Any:
        """A value. lists: what the field's struct or list may hold, see `Lists`."""
        if kind == INT:
            return self._number(kind)
        if kind == LONG:
            return Long(self._number(kind))
        if kind == BYTES:
            size = self._varint()
            self.at += size
            return None
        if kind == STRUCT and depth < DEEPEST:
            return self.struct(lists if isinstance(lists, Mapping) else {}, depth + 1)
        if kind == LIST and isinstance(lists, tuple) and depth < DEEPEST:
            return self._list(lists[0], lists[1], depth)
        if kind in (TRUE, FALSE):
            return kind == TRUE
        if kind == SHORT:
            self._number(kind)
            return None
        if kind in (BYTE, DOUBLE):
            self.at += 1 if kind == BYTE else 8
            return None
        raise damaged()

    def _list(self, kind: int, lists: Lists, depth: int) -> list[Any]:
        byte = self._byte()
        count = self._varint() if byte >> 4 == 15 else byte >> 4
        if byte & 15 != kind or count > len(self.data) - self.at:
            raise damaged()
        return [self._value(kind, lists, depth + 1) for _ in range(count)]
