"""One agent of an exported team, which hears the others through its inputs: numpy and onnxruntime, nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from flockrl.core.errors import UsageError
from flockrl.portable.model import METADATA, Act, Memory, Model

MOST_AGENTS, MOST_ROUNDS, LONGEST = 1000, 4096, 64
"""The most agents of a team, rounds of messages in a step, and steps between saying and hearing."""
LARGEST = (1 << 16) - 1
"""The most numbers in a message, as a frame can count them."""


class MemberModel(Model):
    """One agent of a team from its directory in an export with one model per agent.

    index: its place in `team`, the names of all agents. rounds: R rounds of messages in a step, 0 where agents do not
    talk; size: C numbers in a message; delay: steps between saying and hearing. hears, heard_by: places of agents;
    nearest: whether it has to be told which of these are the nearest.
    """

    apart = True

    def __init__(self, path: str | Path):
        super().__init__(path)
        about = self.metadata.get("member")
        if not isinstance(about, dict):
            raise UsageError(f"{path} is a whole team: export it with per_agent (--per-agent) to run its agents apart.")
        try:
            self._read(about)
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{self.path / METADATA} has no usable 'member': {error}.") from error

    def _read(self, about: dict[str, Any]) -> None:
        self.team = tuple(map(str, about["team"]))
        self.index = _whole(about, "index", len(self.team) - 1)
        if not 1 <= len(self.team) <= MOST_AGENTS or self.spec.agents != (self.team[self.index],):
            raise ValueError("its agent is not the one in its spec")
        talks = "rounds" in about
        self.rounds = _whole(about, "rounds", MOST_ROUNDS) if talks else 0
        self.size = _whole(about, "size", LARGEST) if talks else 0
        self.delay = _whole(about, "delay", LONGEST) if talks else 0
        self.nearest = talks and bool(about.get("nearest", False))
        self.hears, self.heard_by = (
            tuple(sorted({_place(x, len(self.team)) for x in about[name]} - {self.index})) if talks else ()
            for name in ("hears", "heard_by")
        )
        forms = {entry["name"]: entry["shape"][1:] for entry in (*self.metadata["inputs"], *self.metadata["outputs"])}
        message = [self.rounds, self.size + 1]
        wanted = {"inbox": [self.rounds, len(self.team), self.size + 1], "peers": [len(self.team)], "outbox": message}
        if talks and any(forms.get(name) != shape for name, shape in wanted.items()):
            raise ValueError("its messages have another form than its model's")

    def speak(
        self, obs: np.ndarray, memory: Memory | None, inbox: np.ndarray, peers: np.ndarray, number: int
    ) -> np.ndarray:
        """[C + 1] what this agent says in a round, whose last number tells whether it does. See `decide`."""
        seen, _ = self._seen(obs)
        feed = self._feed(seen, None, memory, None, False) | {"inbox": inbox[None], "peers": peers[None]}
        return self._session.run(["outbox"], feed)[0][0, number]

    def decide(
        self, obs: np.ndarray, mask: np.ndarray | None, memory: Memory | None, rng: np.random.Generator, explore: bool,
        inbox: np.ndarray, peers: np.ndarray,
    ) -> tuple[Act, np.ndarray]:  # fmt: skip
        """What this agent does, and [R, C + 1] what it says in each round.

        obs: [1, O]. inbox: [R, N, C + 1] float32 what came from each agent in each round, whose last number is 1 where
        something did. peers: [N] bool, whom it could hear.
        """
        seen, single = self._seen(obs)
        feed = self._feed(seen, mask, memory, rng, explore)
        feed.update(self._tell({"alive": None}, len(seen)))  # the memory of the dead is not given
        names = self._explore if explore else self._greedy
        if not self.rounds:
            return self._answer(self._session.run(names, feed), single, explore), np.zeros((0, 1), np.float32)
        feed |= {"inbox": inbox[None], "peers": peers[None]}
        *outs, said = self._session.run([*names, "outbox"], feed)
        return self._answer(outs, single, explore), said[0]


def _whole(about: dict[str, Any], name: str, most: int) -> int:
    if type(about[name]) is not int or not 0 <= about[name] <= most:
        raise ValueError(f"{name} must be a whole number up to {most}, not {str(about[name])[:40]!r}")
    return about[name]


def _place(x: Any, agents: int) -> int:
    if type(x) is not int or not 0 <= x < agents:
        raise ValueError(f"{str(x)[:40]!r} is not the place of an agent")
    return x
