"""Observations as sets of entities: which numbers tell of the agent itself, and which of each thing that it perceives.

Networks of entities (`nets.entities`) have one set of weights per kind, so that they do not depend on how many there
are of it. Needs numpy alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flockrl.core.errors import UsageError

OWN = "own"
"""The name of the part of an observation that tells of the agent itself."""
MOST_FIELDS, LONGEST_NAME, MOST_NUMBERS = 1000, 200, 1 << 24
"""Limits of a description that comes from a file."""

Span = tuple[int, int]
"""(first number, how many)."""


@dataclass(frozen=True)
class Kind:
    """Entities of one kind in an observation.

    fields: what is known of each of them, as (first number, width): there stand `count` times `width` numbers, those
    of the first entity, then those of the second, and so on. there: the first of `count` numbers that tell which
    entities are there now (above 0.5); None where all are.
    """

    name: str
    count: int
    fields: tuple[Span, ...]
    there: int | None = None

    @property
    def width(self) -> int:
        """Numbers that are known of one entity."""
        return sum(width for _, width in self.fields)

    @property
    def end(self) -> int:
        ends = [start + self.count * width for start, width in self.fields]
        return max([*ends, *([] if self.there is None else [self.there + self.count])])


@dataclass(frozen=True)
class Entities:
    """How an agent's observation falls into itself and the entities that it perceives.

    own: the numbers about the agent itself. A number that nothing names is not read by networks of entities.
    chosen: the kind that the agent chooses from: its last actions are the entities of this kind, in their order. ""
    where actions are nothing that it sees.
    """

    own: tuple[Span, ...]
    kinds: tuple[Kind, ...]
    chosen: str = ""

    def __post_init__(self) -> None:
        names = [kind.name for kind in self.kinds]
        if not names or len(set(names)) < len(names) or OWN in names or not all(kind.fields for kind in self.kinds):
            raise UsageError(f"Entities need kinds with names of their own and at least one field each, not {names}.")
        spans = [*self.own, *(span for kind in self.kinds for span in kind.fields)]
        if min((min(start, width) for start, width in spans), default=0) < 0 or min(k.count for k in self.kinds) < 0:
            raise UsageError("Entities stand at places of an observation from 0 on, and there are 0 or more of them.")
        if self.chosen and self.chosen not in names:
            raise UsageError(f"Agents cannot choose from entities {self.chosen!r}: they see {', '.join(names)}.")

    @property
    def choices(self) -> int:
        """How many actions are entities."""
        return sum(kind.count for kind in self.kinds if kind.name == self.chosen)

    @property
    def end(self) -> int:
        """How many numbers an observation must have at least."""
        return max([start + width for start, width in self.own] + [kind.end for kind in self.kinds])

    def check(self, who: str, numbers: int, actions: int) -> None:
        """Refuse to describe an agent that observes so many numbers and has so many discrete actions, if it cannot."""
        if self.end > numbers:
            raise UsageError(f"{who} observes {numbers} numbers, and its entities reach to {self.end}.")
        if self.choices > actions:
            raise UsageError(
                f"{who} chooses from {self.choices} entities {self.chosen!r}, and has {actions} discrete actions."
            )

    def more(self, start: int, width: int) -> Entities:
        """The same with further numbers about the agent itself."""
        return Entities((*self.own, (start, width)), self.kinds, self.chosen)


def layout(*parts: tuple[Any, ...], chosen: str = "") -> Entities:
    """Describe an observation by what follows what: ("own", width) or (kind, count, width), a kind maybe several times.
    chosen: the kind that actions are, see `Entities`.

    layout(("own", 4), ("landmark", 3, 2), ("agent", 2, 2), ("agent", 2, 2)) has 4 + 3 x 2 + 2 x 2 + 2 x 2 numbers.
    """
    at, own, counts, fields = 0, [], {}, {}  # type: ignore[var-annotated]
    for name, *sizes in parts:
        if name == OWN:
            own.append((at, sizes[0]))
            at += sizes[0]
            continue
        count, width = sizes
        if counts.setdefault(name, count) != count:
            raise UsageError(f"There are {counts[name]} entities of kind {name}, and {count} in another part.")
        fields.setdefault(name, []).append((at, width))
        at += count * width
    return Entities(tuple(own), tuple(Kind(name, counts[name], tuple(spans)) for name, spans in fields.items()), chosen)


def entities_to_json(entities: Entities) -> dict[str, Any]:
    kinds = [
        {"name": kind.name, "count": kind.count, "fields": [list(span) for span in kind.fields], "there": kind.there}
        for kind in entities.kinds
    ]
    chosen = {"chosen": entities.chosen} if entities.chosen else {}
    return {"own": [list(span) for span in entities.own], "kinds": kinds, **chosen}


def entities_from_json(saved: Any) -> Entities:
    """What `entities_to_json` wrote. Anything else is an error that names what is wrong."""
    if not isinstance(saved, Mapping) or not isinstance(kinds := saved.get("kinds"), list) or len(kinds) > MOST_FIELDS:
        raise UsageError("'entities' of the environment's spec must hold 'own' and a list of 'kinds'.")
    if not isinstance(chosen := saved.get("chosen", ""), str) or len(chosen) > LONGEST_NAME:
        raise UsageError("'chosen' of 'entities' of the environment's spec must be the name of a kind.")
    return Entities(_spans(saved.get("own")), tuple(_kind(kind) for kind in kinds), chosen)


def _kind(saved: Any) -> Kind:
    if not isinstance(saved, Mapping) or not isinstance(name := saved.get("name"), str) or len(name) > LONGEST_NAME:
        raise UsageError("A kind of 'entities' of the environment's spec must be an object with a name.")
    there = saved.get("there")
    return Kind(
        name, _number(saved.get("count")), _spans(saved.get("fields")), None if there is None else _number(there)
    )


def _spans(saved: Any) -> tuple[Span, ...]:
    if not isinstance(saved, list) or len(saved) > MOST_FIELDS:
        raise UsageError("'entities' of the environment's spec must list pairs of numbers.")
    if not all(isinstance(span, list) and len(span) == 2 for span in saved):
        raise UsageError("'entities' of the environment's spec must list pairs of numbers.")
    return tuple((_number(start), _number(width)) for start, width in saved)


def _number(x: Any) -> int:
    if type(x) is not int or not 0 <= x <= MOST_NUMBERS:
        raise UsageError(f"'entities' of the environment's spec must hold whole numbers from 0 to {MOST_NUMBERS}.")
    return x
