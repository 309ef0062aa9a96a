"""The channel between those who speak and those who listen, as a value: `loss=0.2,delay=1,bits=4`."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from flockrl.core.errors import UsageError, nearest
from flockrl.core.settings import check_numbers

TOPOLOGIES = ("all", "ring", "star", "neighbours")
LONGEST_DELAY, MOST_BITS, MOST_AGENTS = 64, 16, 1000
LONGEST_PATH = 1000
"""Characters of the name of a file."""
WHOLE = 32
"""Bits of a number that is not quantised."""


@dataclass(frozen=True)
class Channel:
    """What happens to messages on their way. Chances and sizes are per round of messages."""

    loss: float = 0.0
    """Chance that a message is lost on its way to one listener, for each link on its own."""
    broadcast_loss: float = 0.0
    """Chance that a message is lost for all who listen at once."""
    delay: int = 0
    """Steps between sending and hearing."""
    noise: float = 0.0
    """Deviation of Gaussian noise on every number of a message, the same for all who hear it; in dial, on its logits
    while agents learn, where 0 stands for 2."""
    bits: int | None = None
    """Bits for each number of a message, which is then squashed by tanh; 0 for no message at all."""
    top: int | None = None
    """How many agents may speak in a step, at most: all of them in a team that is no larger."""
    access: Literal["weight", "round_robin"] = "weight"
    """With `top`, who may: those with the largest learned weight, or all in turn."""
    topology: str = "all"
    """Who can hear whom: all, ring (the agents beside one), star (the hub and everyone), neighbours (whom the
    environment says an agent perceives), or rows of 0 and 1 as in 010/101/010, row i naming whom agent i hears."""
    hub: int = 0
    """With topology star, the place of the agent in the middle."""
    range: float | None = None
    """How far messages reach, in the environment's own units of length; None for any distance."""
    nearest: int | None = None
    """How many others an agent hears at most: the nearest ones, by the environment's distances; None for all."""

    def __post_init__(self) -> None:
        check = partial(check_numbers, self, whose=" of a channel")
        check("loss", "broadcast_loss", least=0, most=1)
        check("noise", "range", least=0)
        check("top", "nearest", least=1)
        check("delay", least=0, most=LONGEST_DELAY)
        check("bits", least=0, most=MOST_BITS)
        check("hub", least=0, most=MOST_AGENTS)
        if self.top is None and self.access != "weight":
            raise UsageError("access says which agents speak where not all may: say how many with top.")
        if self.hub and self.topology != "star":
            raise UsageError("hub belongs to topology=star.")

    @property
    def near(self) -> bool:
        """Whether who can hear whom changes from step to step, and has to be told (`Observation.neighbours`)."""
        return self.topology == "neighbours" or self.range is not None or self.nearest is not None

    @property
    def random(self) -> bool:
        """Whether chance decides anything on the way."""
        return bool(self.loss or self.broadcast_loss or self.noise)

    @property
    def turns(self) -> bool:
        """Whether agents speak in turn, so that the number of the step matters."""
        return self.top is not None and self.access == "round_robin"

    @property
    def ranked(self) -> bool:
        """Whether agents learn a weight that decides who speaks."""
        return self.top is not None and self.access == "weight"

    @property
    def width(self) -> int:
        """Bits that each number of a message takes."""
        return WHOLE if self.bits is None else self.bits

    def __str__(self) -> str:
        """What `parse_channel` reads; empty for a channel that does nothing."""
        plain = Channel()
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return ",".join(f"{k}={v}" for k, v in values.items() if v != getattr(plain, k))

    def links(self, agents: int) -> np.ndarray:
        """[N, N] bool: whether the agent of the row can hear that of the column. Nobody needs a link to itself."""
        places = np.arange(agents)
        if self.topology == "ring":
            apart = (places[:, None] - places) % agents
            found = (apart == 1) | (apart == agents - 1)
        elif self.topology == "star":
            if self.hub >= agents:
                raise UsageError(f"The hub of the channel is agent {self.hub}, and the team has {agents} agents.")
            found = (places == self.hub)[:, None] | (places == self.hub)
        elif self.topology in TOPOLOGIES:
            found = np.ones((agents, agents), bool)
        else:
            found = _matrix(self.topology)
            if len(found) != agents:
                raise UsageError(f"The channel's topology is for {len(found)} agents, and the team has {agents}.")
        return found & (places[:, None] != places)


def _matrix(text: str) -> np.ndarray:
    rows = text.split("/")
    if len(rows) > MOST_AGENTS or any(len(row) != len(rows) or set(row) - {"0", "1"} for row in rows):
        raise UsageError("A topology as a matrix is a square of 0 and 1, at most 1000 rows.")
    return np.array([[char == "1" for char in row] for row in rows])


def parse_channel(text: str) -> Channel:
    """A channel from `name=value,...`; a topology that is no known name and no rows of 0 and 1 is a file of such."""
    hints = typing.get_type_hints(Channel)
    values: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, equals, word = (piece.strip() for piece in part.partition("="))
        if not equals or name not in hints:
            known = "" if not equals else nearest(name, hints)
            raise UsageError(
                f"Write a channel as name=value, separated by commas, with {', '.join(hints)}, not {part!r}.{known}"
            )
        if name in values:
            raise UsageError(f"The channel has {name} twice.")
        values[name] = _value(name, hints[name], word)
    return Channel(**values)


def _value(name: str, hint: Any, word: str) -> Any:
    if name == "topology":
        return _topology(word)
    if name == "access":
        if word not in typing.get_args(hint):
            raise UsageError(f"access of a channel is weight or round_robin, not {word!r}.")
        return word
    kind: Any = float if float in (hint, *typing.get_args(hint)) else int
    try:
        return kind(word)
    except ValueError:
        what = "a number" if kind is float else "a whole number"
        raise UsageError(f"{name} of a channel must be {what}, not {word[:40]!r}.") from None


def _topology(word: str) -> str:
    if word in TOPOLOGIES:
        return word
    if set(word) <= set("01/") and word:
        _matrix(word)
        return word
    path = Path(word)
    if len(word) > LONGEST_PATH or not path.is_file():
        raise UsageError(
            f"The channel's topology is {', '.join(TOPOLOGIES)}, or a file of rows of 0 and 1, not {word[:80]!r}."
            + nearest(word, TOPOLOGIES)
        )
    if path.stat().st_size > 4 * MOST_AGENTS**2:
        raise UsageError(f"{path} is too large for a topology of at most {MOST_AGENTS} agents.")
    try:
        lines = path.read_text().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read as rows of 0 and 1: {error}.") from error
    text = "/".join(row for line in lines if (row := line.replace(",", "").replace(" ", "").strip()))
    _matrix(text)
    return text
