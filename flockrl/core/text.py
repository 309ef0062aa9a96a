"""Text from strangers, made fit to be shown."""

from __future__ import annotations


def printable(text: object, most: int = 300) -> str:
    """`text` on one line, at most so many characters: what is not printable (line ends, terminal codes) is escaped."""
    words = str(text)[: most + 1]
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in words[:most])
    return shown + ("..." if len(words) > most else "")
