"""Messages as actions, learned by reinforcement (RIAL, Foerster et al. 2016, arXiv 1605.06676).

Every agent has a second one beside it, its speaker, which sees the same, earns the same and chooses one of M symbols;
others hear it a step later as a part of what they see. So a team of N is one of 2 N to its learner, action and message
have values (or policies) apart, |A| + |M| of them and not |A| |M|, and any learner of choices learns to talk.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.comm.channel import Channel
from flockrl.comm.luck import OWN_STREAM, Cut
from flockrl.comm.settings import channel_of
from flockrl.core.errors import UsageError
from flockrl.core.random import Source, Tape, fold_in, uniform
from flockrl.core.spec import Box, Discrete, EnvSpec
from flockrl.core.types import Algorithm, Array, Critic, Metrics, Observation, PyTree, Trajectory

AHEAD = 2
"""Steps that values look ahead at least. A symbol is heard a step after it was chosen, when its speaker may not see any
more what it was about: a value of that moment cannot say whether the symbol was right, and what followed can."""
SAID = "_said"
"""Ends the names of what acting notes about speakers."""


def rial(spec: EnvSpec, config: Any, make: Callable[[EnvSpec, Any], Algorithm]) -> Algorithm:
    """A team that talks in symbols. make: the learner of a team with speakers that does not talk otherwise."""
    if not spec.discrete or spec.sight.pictures:
        raise UsageError(
            f"rial is for agents that choose and see vectors, unlike those of {spec.name}: use another comm."
        )
    if spec.whole is not None:
        raise UsageError("rial talks within a whole team and not within a side of a game: use another comm.")
    inner, note = dataclasses.replace(config, comm="none", comm_size=None, channel=""), ""
    if getattr(config, "n_step", AHEAD) < AHEAD and not getattr(config, "td_lambda", 0.0):
        inner, note = dataclasses.replace(inner, n_step=AHEAD), f"n_step {AHEAD}, as rial needs"
    made = _Speakers(spec, config, make(with_speakers(spec, config.message_size), inner)).algorithm()
    return made._replace(note=", ".join(filter(None, (made.note, note))))


def with_speakers(spec: EnvSpec, symbols: int) -> EnvSpec:
    """The spec of agents and, after them, their speakers. Observations begin with what was heard, [N M] numbers."""
    sees = tuple(Box((spec.num_agents * symbols + space.size,)) for space in spec.observations)
    kinds = {kind: i for i, kind in enumerate(dict.fromkeys(spec.groups))}
    own = tuple(kinds[kind] for kind in spec.groups)
    return dataclasses.replace(
        spec,
        agents=(*spec.agents, *(f"{name} speaks" for name in spec.agents)),
        observations=sees * 2,
        actions=(*spec.actions, *(Discrete(symbols),) * spec.num_agents),
        groups=(*own, *(len(kinds) + kind for kind in own)),
        sides=spec.sides * 2,
        neighbours=False,
        entities=(),
        graph=(),
        counterfactual=False,
    )


class _Speakers:
    """Memory is a pair: the inner learner's, and [B, N, M] what each agent said last, zeros for nothing."""

    def __init__(self, spec: EnvSpec, config: Any, inner: Algorithm):
        self.spec, self.inner, self.symbols = spec, inner, config.message_size
        self.channel: Channel = channel_of(config)
        self.links = self.channel.links(spec.num_agents) & (self.channel.bits != 0)

    def algorithm(self) -> Algorithm:
        inner = self.inner
        return Algorithm(
            inner.init, inner.params, self.act, self.update, self.memory, inner.rollout_steps, inner.note,
            says=self.says, critic=inner.critic and Critic(inner.critic.params, self.values),
        )  # fmt: skip

    def memory(self, batch: int) -> PyTree:
        return self.inner.memory(batch), jnp.zeros((batch, self.spec.num_agents, self.symbols))

    def _heard(self, said: Array, lost: Array | None = None) -> Array:
        """[..., N, N M] what agents hear of what was said [..., N, M]; what they said themselves they know."""
        there: Any = jnp.asarray(self.links) if lost is None else self.links & ~lost
        there = there | np.eye(self.spec.num_agents, dtype=bool)
        found = there[..., None] * said[..., None, :, :]
        return found.reshape(*found.shape[:-2], -1)

    def _lost(self, seen: Observation, key: Source) -> Array | None:
        n, lost = self.spec.num_agents, None
        if self.channel.loss:
            drawn = uniform(fold_in(key, OWN_STREAM), (len(seen.obs), n, n), range(n))
            lost = drawn < self.channel.loss
        if isinstance(seen.seeds, Cut):
            lost = seen.seeds.links if lost is None else lost | seen.seeds.links
        return lost

    def _seen(self, seen: Observation, heard: Array) -> Observation:
        """What agents and speakers see."""
        obs = jnp.concatenate([heard, seen.obs.astype(jnp.float32)], -1)
        return Observation(_twice(obs, -2), self._avail(seen.avail), seen.state, _twice(seen.alive, -1))

    def _avail(self, avail: Array | None) -> Array | None:
        """[..., 2 N, A'] the legal actions, and all symbols."""
        if avail is None:
            return None
        size = max(avail.shape[-1], self.symbols)
        wide = jnp.pad(avail, [(0, 0)] * (avail.ndim - 1) + [(0, size - avail.shape[-1])])
        symbols = jnp.broadcast_to(jnp.arange(size) < self.symbols, wide.shape)
        return jnp.concatenate([wide, symbols], -2)

    def act(
        self, params: PyTree, seen: Observation, memory: PyTree, key: Source, explore: bool
    ) -> tuple[Array, PyTree, dict[str, Array]]:
        n = self.spec.num_agents
        lost = self._lost(seen, key)
        heard = self._heard(memory[1], lost)
        source: Any = key.seated(tuple(range(n)) * 2) if isinstance(key, Tape) else key
        action, own, extras = self.inner.act(params, self._seen(seen, heard), memory[0], source, explore)
        alive = jnp.ones(seen.obs.shape[:-1], bool) if seen.alive is None else seen.alive
        said = jax.nn.one_hot(action[:, n:], self.symbols) * alive[..., None]
        noted = {"heard": heard, "message": action[:, n:], "messages": self._tally(memory[1], lost, alive)}
        for name, x in extras.items():
            noted |= {name: x[:, :n], name + SAID: x[:, n:]}
        return action[:, :n], (own, said), noted

    def _tally(self, said: Array, lost: Array | None, alive: Array) -> Array:
        """[B, N, 4] messages sent, heard and lost, and bits sent."""
        would = jnp.asarray(self.links) & (said.sum(-1) > 0.5)[..., None, :]
        there = would if lost is None else would & ~lost
        sent = alive * float(self.channel.bits != 0)
        counts = [sent, there.sum(-1), (would & ~there).sum(-1), sent * float(np.log2(self.symbols))]
        return jnp.stack([x.astype(jnp.float32) for x in counts], -1)

    def says(self, params: PyTree, seen: Observation, memory: PyTree) -> Array:
        return self.act(params, seen, memory, jax.random.key(0), False)[1][1]

    def values(self, params: PyTree, trajectory: Trajectory) -> Array:
        """[T, B, N] of agents, without their speakers."""
        assert self.inner.critic is not None
        return self.inner.critic.values(params, self._whole(trajectory))[..., : self.spec.num_agents]

    def update(self, state: PyTree, trajectory: Trajectory, key: Array) -> tuple[PyTree, Metrics]:
        return self.inner.update(state, self._whole(trajectory), key)

    def _whole(self, trajectory: Trajectory) -> Trajectory:
        """A rollout of agents and speakers."""
        extras = dict(trajectory.extras)
        if "heard" not in extras:
            raise UsageError("rial learns from what its own agents said and heard, and this experience does not tell.")
        heard, message = extras.pop("heard"), extras.pop("message")
        extras.pop("messages", None)
        noted = {k: jnp.concatenate([x, extras[k + SAID]], 2) for k, x in extras.items() if not k.endswith(SAID)}
        alive = 1.0 if trajectory.alive is None else trajectory.alive[..., None]
        arrives = self._heard(jax.nn.one_hot(message, self.symbols) * alive)
        # What was heard next is known within an episode; after its end nobody listened, and nothing is taken for lost.
        begins = trajectory.first[1:, :, None, None]
        following = jnp.concatenate([jnp.where(begins, arrives[:-1], heard[1:]), arrives[-1:]])
        now = self._seen(trajectory.observation, heard)
        after = self._seen(trajectory.next_observation, following)
        return Trajectory(
            now.obs, jnp.concatenate([trajectory.action, message], 2), _twice(trajectory.reward, -1),
            _twice(trajectory.terminated, -1), _twice(trajectory.truncated, -1), after.obs, trajectory.first,
            now.avail, now.state, now.alive, after.avail, after.state, next_alive=after.alive,
            memory=trajectory.memory[0], extras=noted,
        )  # fmt: skip


def _twice(x: Any, axis: int) -> Any:
    """What agents have on their `axis`, for their speakers too."""
    return None if x is None else jnp.concatenate([x, x], axis)
