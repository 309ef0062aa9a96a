"""The log points of a run as columns of numbers, read on as its file grows."""

from __future__ import annotations

import json
import os
import re
import zlib
from array import array
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from flockrl.dash.files import Stamp, number, open_file, parse_object, read_part, stamp

BLOCK, BUDGET = 1 << 20, 48 << 20
"""Bytes read at once, and at most in one call: a larger file is read on with the next."""
LINE = 1 << 19
"""Bytes that a line may have."""
COLUMNS, NAME = 400, 80
"""Columns of a run, and characters of a column's name."""
POINTS = 65_536
"""Points that a column keeps; with more, every second one is left out."""
HELD = 24 << 20
"""Bytes that the columns of a run may take together."""
AGENTS = 64
"""Entries of a list that become columns."""
EVERYWHERE = ("step", "seconds")
"""What every log point tells."""
PROOF = 64
"""Bytes before a place in a file by which the place is known again."""


class Column:
    """One figure: the numbers of the rows that have it, and its values there."""

    def __init__(self) -> None:
        self.rows, self.values, self.stride = array("I"), array("d"), 1

    def add(self, row: int, value: float) -> None:
        if row % self.stride:
            return
        self.rows.append(row)
        self.values.append(value)
        if len(self.rows) > POINTS:
            self.thin()

    def thin(self) -> None:
        """Keep every second row."""
        self.stride *= 2
        kept = [i for i, r in enumerate(self.rows) if r % self.stride == 0]
        self.rows, self.values = array("I", [self.rows[i] for i in kept]), array("d", [self.values[i] for i in kept])

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Row numbers and values, copied."""
        return np.array(self.rows), np.array(self.values)


class Tail:
    """The columns of a metrics file, as far as it has been read.

    offset: bytes of whole lines read so far. A file that was cut, as a resumed run cuts it, or replaced is read again.
    names: the columns that are wanted, all in the same rows; other rows are passed over. () for all columns.
    """

    def __init__(self, path: Path, names: tuple[str, ...] = ()):
        self.path, self.names = path, names
        lists = dict.fromkeys(re.sub(r"\[\d+\]$", "", name) for name in names)
        self._lists = sorted(lists, key=lambda name: name in EVERYWHERE)
        self._marks = [json.dumps(name).encode() for name in self._lists]  # lines are found by the first
        self._numbers = {name: _pattern(name) for name in {*names, "step"}} if names and {*names} == {*lists} else {}
        self._forget()

    def _forget(self) -> None:
        self.offset, self.rows, self.skipped, self.proof = 0, 0, 0, 0
        self.columns: dict[str, Column] = {}

    @property
    def place(self) -> str:
        """Where reading stands: the offset, and a sum of the bytes before it."""
        return f"{self.offset}.{self.proof:x}"

    @property
    def weight(self) -> int:
        """Bytes that the columns' points take."""
        return 12 * sum(len(column.rows) for column in self.columns.values())

    def update(self) -> None:
        """Read what was added."""
        if self.offset and proof(self.path, self.offset) != self.proof:
            self._forget()
        descriptor = open_file(self.path)
        if descriptor is None:
            return
        try:
            self._read(descriptor)
        finally:
            os.close(descriptor)
        self.proof = proof(self.path, self.offset)

    def _read(self, descriptor: int) -> None:
        end, inside = self.offset + BUDGET, False  # inside: of a line that is too long
        while self.offset < end:
            block = os.pread(descriptor, BLOCK, self.offset)
            cut = block.rfind(b"\n") + 1
            if not cut:
                if len(block) < LINE:
                    return  # the last line is being written
                self.offset, inside = self.offset + len(block), True
                continue
            begin = block.find(b"\n") + 1 if inside else 0  # what is left of the long line
            self.skipped, inside = self.skipped + inside, False
            for line in self._wanted(block, begin, cut):
                self._line(line)
            self.offset += cut
            while self.weight > HELD:
                longest = max(len(column.rows) for column in self.columns.values())
                for column in self.columns.values():
                    if 2 * len(column.rows) > longest:
                        column.thin()

    def _wanted(self, block: bytes, begin: int, end: int) -> Iterator[bytes]:
        """The lines of a part of a block; with names, those alone in which all of them occur."""
        if not self.names:
            yield from (line for line in block[begin:end].split(b"\n") if line.strip())
            return
        while (at := block.find(self._marks[0], begin, end)) >= 0:
            cut = block.find(b"\n", at)
            line = block[block.rfind(b"\n", begin, at) + 1 or begin : cut]
            if all(mark in line for mark in self._marks):
                yield line
            begin = cut + 1

    def _line(self, line: bytes) -> None:
        if self._numbers and self._quickly(line):
            return
        row = parse_object(line) if len(line) <= LINE else {}
        if number(row.get("step")) is None:
            self.skipped += 1
            return
        for name in self._lists or row:
            value = row.get(name)
            if isinstance(value, list):
                for i, x in enumerate(value[:AGENTS]):
                    self._add(f"{name}[{i}]", x)
            else:
                self._add(name, value)
        self.rows += 1

    def _quickly(self, line: bytes) -> bool:
        """Take the wanted numbers from a line that is one flat object, without reading the rest of it."""
        if len(line) > LINE or line.count(b"{") != 1 or not line.endswith(b"}"):
            return False
        try:
            found = {name: float(pattern.search(line)[1]) for name, pattern in self._numbers.items()}  # type: ignore[index]
        except (TypeError, ValueError):  # one is not there, or no number
            return False
        if number(found["step"]) is None:
            return False
        for name in self.names:
            self._add(name, found[name])
        self.rows += 1
        return True

    def _add(self, name: str, value: Any) -> None:
        found = number(value)
        if found is None or (self.names and name not in self.names):
            return
        column = self.columns.get(name)
        if column is None:
            if len(self.columns) >= COLUMNS or len(name) > NAME:
                return
            column = self.columns[name] = Column()
        column.add(self.rows, found)

    def newest(self) -> dict[str, float]:
        """The last value of each column."""
        return {name: column.values[-1] for name, column in self.columns.items()}

    def pairs(self, x: str, y: str) -> tuple[np.ndarray, np.ndarray]:
        """[K], [K] two columns where both have values, by rising x."""
        if x not in self.columns or y not in self.columns:
            return np.zeros(0), np.zeros(0)
        (a, left), (b, right) = self.columns[x].arrays(), self.columns[y].arrays()
        _, i, j = np.intersect1d(a, b, assume_unique=True, return_indices=True)
        order = np.argsort(left[i], kind="stable")
        return left[i][order], right[j][order]


def _pattern(name: str) -> re.Pattern[bytes]:
    """Finds the number of this name in a log point."""
    return re.compile(re.escape(json.dumps(name).encode()) + rb":\s*(-?\d[\d.eE+-]{0,40})\s*[,}]")


def proof(path: Path, offset: int) -> int:
    """A sum of the bytes before a place."""
    begin = max(offset - PROOF, 0)
    return zlib.crc32(read_part(path, begin, offset - begin)) if offset else 0


Key = tuple[Path, tuple[str, ...]]


class Tails:
    """Those read lately. What they hold together is bounded."""

    def __init__(self, limit: int = 64 << 20):
        self.limit = limit
        self._held: OrderedDict[Key, Tail] = OrderedDict()
        self._places: dict[Path, tuple[Stamp | None, str]] = {}

    def place(self, path: Path) -> str | None:
        """Where reading a file stands, if it did not change since and there is nothing to read; else None."""
        known = self._places.get(path)
        return known[1] if known is not None and known[0] == stamp(path) else None

    def get(self, path: Path, names: tuple[str, ...] = ()) -> Tail:
        """The columns of a metrics file, up to date: all, or the `names`."""
        tail, now = self._held.pop((path, names), None) or Tail(path, names), stamp(path)
        tail.update()
        self._held[path, names] = tail
        if now is None or tail.offset + LINE > now[1]:  # else there is more to read
            self._places[path] = now, tail.place
        while len(self._held) > 1 and sum(t.weight for t in self._held.values()) > self.limit:
            self._held.popitem(last=False)
        return tail
