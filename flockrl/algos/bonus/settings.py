"""Settings of the exploration bonus, which every learner has."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from flockrl.algos.parts import Schedule
from flockrl.core.errors import UsageError
from flockrl.core.settings import Part, check_numbers

Bonus = Literal["none", "count", "rnd", "icm", "influence", "belief"]
On = Literal["own", "state", "both"]
Kind = Literal["independent", "minimum", "covering", "burrowing", "leader"]

NOVELTY = ("count", "rnd", "icm")
ALL = (*NOVELTY, "influence", "belief")
DEFAULTS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "bonus_scale": (None, ALL),
    "bonus_schedule": ("constant", ALL),
    "bonus_gamma": (0.99, ALL),
    "bonus_on": ("own", NOVELTY),
    "bonus_kind": ("independent", NOVELTY),
    "bonus_entries": ("", (*NOVELTY, "belief")),
    "bonus_actions": (False, ("count", "rnd")),
    "bonus_cell": (0.25, ("count",)),
    "bonus_bits": (0, ("count",)),
    "bonus_decay": (0.5, ("count",)),
}
"""Setting -> its default and the bonuses that have it."""
OWN: dict[tuple[str, str], Any] = {("belief", "bonus_gamma"): 0.0}
"""(Bonus, setting) -> its default there, where that is another one. If beliefs of later steps counted, a team would
rather end an episode, because little is unknown at the start of the next."""
ENTRIES = re.compile(r"(\d+)(?::(\d+))?")
MOST_BITS = 128


@dataclass(frozen=True)
class BonusConfig(Part):
    """Settings of what agents earn for exploring."""

    bonus: Bonus = "none"
    """What agents earn for exploring: count (rare cells), rnd (random network distillation), icm (what a model of the
    environment does not foresee), influence (on what others do next), belief (what those who decide can tell of the
    global state); none for nothing."""
    bonus_scale: float | None = None
    """How much the bonus counts beside the reward; by default 1 for policy gradients, whose advantages of both are
    normalised, and 0.1 for learners of action values."""
    bonus_schedule: Schedule | None = None
    """How the scale falls to zero over the run, if at all: constant (default), linear, cosine, or exponential (to a
    hundredth)."""
    bonus_gamma: float | None = None
    """Discount factor of the bonus for learners with advantages of it; by default 0.99. Others have one for both."""
    bonus_on: On | None = None
    """Where novelty is looked for: in each agent's own observation (default), in the global state, or both."""
    bonus_kind: Kind | None = None
    """How agents share the search by what is new to the others: independent (default), minimum (new to all), covering
    (newer to oneself than to others), burrowing (the opposite), leader (the first agent burrows, the others cover)."""
    bonus_entries: str = ""
    """The entries of the observation (with bonus_on state, and in belief: of the state) that are looked at, such as
    0:4,7; by default all."""
    bonus_actions: bool = False
    """Look for novelty in what is done, together with where it is done, instead of in what follows: of each agent, or
    with bonus_on state of all of them."""
    bonus_cell: float | None = None
    """Width of the cells into which counting divides each number; by default 0.25, which tells one-hots apart."""
    bonus_bits: int | None = None
    """Count by the signs of this many random projections (SimHash) instead of by cells, for large observations."""
    bonus_decay: float | None = None
    """A cell that was seen n times pays n to the power of minus this; by default 0.5."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, (_, owners) in DEFAULTS.items():
            given = getattr(self, name)
            said = given is not None and given is not False and given != ""  # 0 is said, and equals False
            if said and self.bonus not in owners:
                raise UsageError(f"{name} has no meaning with bonus={self.bonus}: it belongs to {', '.join(owners)}.")
        check_numbers(self, "bonus_scale", least=0)
        check_numbers(self, "bonus_gamma", least=0, below=1)
        check_numbers(self, "bonus_cell", "bonus_decay", above=0)
        check_numbers(self, "bonus_bits", least=1, most=MOST_BITS)
        if self.bonus_bits and self.bonus_cell:
            raise UsageError("bonus_bits and bonus_cell are two ways to count: set only one of them.")
        if self.bonus_on == "state" and self.bonus_kind not in (None, "independent"):
            raise UsageError("bonus_kind compares what is new to each agent: use it with --bonus-on own or both.")
        parse_entries(self.bonus_entries)

    def of_bonus(self, name: str) -> Any:
        """A setting of the bonus, or its default."""
        value = getattr(self, name)
        return OWN.get((self.bonus, name), DEFAULTS[name][0]) if value is None else value


def parse_entries(text: str) -> list[tuple[int, int]]:
    """`0:4,7` -> [(0, 4), (7, 8)]: from and to, the latter not included."""
    found = []
    for part in filter(None, text.replace(" ", "").split(",")):
        match = ENTRIES.fullmatch(part)
        if match is None or len(part) > 20:
            raise UsageError(f"Write bonus_entries as numbers and ranges, such as 0:4,7, not {text[:40]!r}.")
        first = int(match[1])
        last = first + 1 if match[2] is None else int(match[2])
        if last <= first:
            raise UsageError(f"bonus_entries: {part} holds no entries.")
        found.append((first, last))
    return found
