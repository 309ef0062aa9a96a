"""One agent of a team as a team of its own: what others see is nothing to it, and what they say comes from outside."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.comm.luck import Inbox
from flockrl.core.errors import UsageError
from flockrl.core.groups import Group, interleave
from flockrl.core.random import Tape
from flockrl.core.types import Actor, Algorithm, Array, EnvSpec, Observation, PyTree

TRIES = 64
"""Moments in which it is tried out whether others matter."""


class Hearing(NamedTuple):
    """How the agents of a team hear each other. rounds: R; size: C numbers of a message; delay: steps between saying
    and hearing; links: [N, N] bool, whether the agent of the row can hear that of the column; nearest: whether only the
    nearest of them."""

    rounds: int
    size: int
    delay: int
    links: np.ndarray
    nearest: bool

    @property
    def inbox(self) -> tuple[int, int, int]:
        return self.rounds, len(self.links), self.size + 1


def hearing(policy: Algorithm | Actor) -> Hearing | None:
    """How a team's agents hear each other, None where they do not talk; refuses talk that needs everyone at once."""
    talk = getattr(policy, "talk", None)
    if talk is None:
        return None
    if talk.channel.ranked:
        raise UsageError(
            "Who speaks is decided by comparing all agents (top): such a team cannot run apart. Train it with "
            "access=round_robin, or without top."
        )
    return Hearing(talk.rounds, talk.size, talk.delay, talk.links, talk.channel.nearest is not None)


class _Own(Tape):
    """A tape of one agent's numbers, for a policy that asks for those of all agents: the others get zeros."""

    def __init__(self, tape: Tape, agent: int):
        super().__init__(tape.batch, tape.given)
        self.tape, self.agent = tape, agent

    def read(self, agents: Sequence[int], count: int) -> Array:
        if self.agent not in agents:
            return jnp.zeros((self.batch, len(agents), count))
        return _among(self.tape.read([0], count), list(agents).index(self.agent), len(agents))


def _among(own: Array, row: int, rows: int, others: Any = 0) -> Array:
    """[B, rows, ...] one agent's row [B, 1, ...] among those of others, which hold one number everywhere."""
    if rows == 1:
        return own
    rest = jnp.broadcast_to(jnp.asarray(others, own.dtype), (len(own), rows - 1, *own.shape[2:]))
    return interleave([own, rest], [(row,), [i for i in range(rows) if i != row]], 1)


class Alone:
    """One agent of a team, as a team of one: an `Actor`. What it sees, does and remembers are its own rows of the
    team's.

    others: the number that fills what the others see and remember, which must not matter.
    """

    def __init__(self, policy: Algorithm | Actor, spec: EnvSpec, groups: Sequence[Group], agent: int, others: Any = 0):
        self.policy, self.team, self.agent, self.others = policy, spec, agent, others
        self.spec = dataclasses.replace(spec.part((agent,)), whole=None)
        own = next(group.agents for group in groups if agent in group.agents)
        self.rows = {len(own): own.index(agent), spec.num_agents: agent}
        """The agent's row in arrays with this many rows: of its group, and of the team."""
        heard = hearing(policy)
        self.inbox = None if heard is None else heard.inbox

    def memory(self, batch: int) -> PyTree:
        return jax.tree.map(self._row, self.policy.memory(batch))

    def _row(self, x: Array) -> Array:
        """The agent's row of a memory [B, ...], or all of a memory that has no rows."""
        row = self.rows.get(x.shape[1]) if x.ndim > 1 else None
        return x if row is None else x[:, row : row + 1]

    def _rows(self, own: Array, whole: Array) -> Array:
        """Undo `_row`, for a memory that looks like `whole`."""
        size = whole.shape[1] if whole.ndim > 1 else 0
        return _among(own, self.rows[size], size, self.others) if size in self.rows else own

    def act(
        self, params: PyTree, seen: Observation, memory: PyTree, key: Any, explore: bool
    ) -> tuple[Array, PyTree, dict[str, Array]]:
        spec, agent, n = self.team, self.agent, self.team.num_agents
        wide = [(0, 0), (0, 0), (0, spec.obs_size - seen.obs.shape[-1])]
        obs, avail = _among(jnp.pad(seen.obs, wide), agent, n, self.others), seen.avail
        if avail is not None or spec.maskable:
            if avail is None:
                avail = jnp.ones((len(obs), 1, self.spec.action_size), bool)
            avail = jnp.pad(avail, [(0, 0), (0, 0), (0, spec.action_size - avail.shape[-1])])
            avail = _among(avail, agent, n, True)
        whole = jax.tree.map(self._rows, memory, jax.eval_shape(lambda: self.policy.memory(len(obs))))
        source: Any = _Own(key, agent) if isinstance(key, Tape) else key
        alive = None if seen.alive is None else _among(seen.alive, agent, n, True)
        seen = seen._replace(obs=obs, avail=avail, alive=alive)
        action, after, extras = self.policy.act(params, seen, whole, source, explore)
        told = {name: x[:, :, agent] if name == "outbox" else x[:, agent : agent + 1] for name, x in extras.items()}
        return self._action(action), jax.tree.map(self._row, after), told

    def _action(self, action: Array) -> Array:
        """The agent's row of the team's actions [B, N(, W)]: [B, 1] int32 or [B, 1, w] float32."""
        row = action[:, self.agent : self.agent + 1]
        if self.team.discrete:
            return row
        return row[..., 0].astype(jnp.int32) if self.spec.discrete else row[..., : self.spec.action_width]


def require_apart(
    policy: Algorithm | Actor, params: PyTree, spec: EnvSpec, groups: Sequence[Group], heard: Hearing | None
) -> None:
    """Refuse a team whose agents act by what others see or remember: one agent of each group is tried out."""
    rng = np.random.default_rng(0)
    inbox = None
    if heard is not None:
        said, peers = rng.normal(size=(TRIES, *heard.inbox)), jnp.ones((TRIES, heard.inbox[1]), bool)
        inbox = Inbox(jnp.asarray(said, jnp.float32), peers)
    for group in groups:
        part = spec.part(group.agents[:1])
        obs = jnp.asarray(np.abs(rng.normal(size=(TRIES, 1, part.obs_size))), part.observations[0].dtype)
        seen = Observation(obs, seeds=inbox)  # type: ignore[arg-type]

        @jax.jit
        def does(others: Array, seen: Observation = seen, agent: int = group.agents[0]) -> list[Any]:
            one = Alone(policy, spec, groups, agent, others)
            memory, told = one.memory(TRIES), []
            for explore in (True, False):
                action, memory, extras = one.act(params, seen, memory, jax.random.key(1), explore)
                told += [action, extras]
            return told

        found = [jax.tree.leaves(does(jnp.float32(number))) for number in (0, 1, 3)]
        if not all(np.array_equal(a, b, equal_nan=True) for a, *more in zip(*found, strict=True) for b in more):
            raise UsageError(
                f"What {part.agents[0]} does depends on what others see or remember: export the whole team, not each "
                "agent."
            )
