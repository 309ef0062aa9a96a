"""Text from strangers, made fit to be shown."""

from __future__ import annotations


def printable(text: object, most: int = 300) -> str:
    """`text` on one line, at most so many characters: what is not printable (line ends, terminal codes) is escaped."""
    words = str(text)[: most + 1]
    return _escaped(words[:most], "") + ("..." if len(words) > most else "")


def lines(text: object) -> str:
    """`text` on as many lines as it has: terminal codes in it are escaped."""
    return _escaped(str(text), "\n\t")


def _escaped(words: str, kept: str) -> str:
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape", "replace").decode() for c in words)
