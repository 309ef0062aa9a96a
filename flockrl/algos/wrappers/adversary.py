"""Robustness training: an adversary learns beside a team, by PPO, and is paid what the team loses.

It shifts what agents see by up to eps (`observation:eps=0.1`; Zhang et al. 2021, arXiv 2101.08452), or the reward that
each of them learns from (`reward:eps=0.1`), or plays for one agent, drawn as an episode begins, in a part of the
episodes (`takeover:share=0.25`). It is part of the learner's state. The policy that leaves is the team's alone.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.algos.ppo import PPOConfig
from flockrl.algos.ppo import make as make_ppo
from flockrl.algos.wrappers.settings import Attack
from flockrl.core.errors import UsageError
from flockrl.core.types import Algorithm, Array, Box, EnvSpec, Metrics, Observation, PyTree, Trajectory

ATTACK, LOGP, TAKEN = "attack", "attack_logp", "taken"
"""Extras of a rollout: what the adversary did [T, B, N, ...], its log-probability [T, B, N], and whether it played for
the agent [T, B, N]."""


class AttackState(NamedTuple):
    """learner: the team's state; adversary: that of its adversary."""

    learner: PyTree
    adversary: PyTree


class Attacked(NamedTuple):
    """Memory in practice. seat: [B] the agent that the adversary plays, N for none, -1 before that is drawn."""

    team: PyTree
    adversary: PyTree
    seat: Array


def attacked(inner: Algorithm, spec: EnvSpec, attack: Attack, *, envs: int, updates: int, on_policy: bool) -> Algorithm:
    """The same team, which learns under attack."""
    if len(set(spec.sides)) > 1:
        raise UsageError(f"adversary attacks a team, and {spec.name} has opponents already: leave it out.")
    if not on_policy:
        raise UsageError(
            "adversary learns from the team's fresh rollouts: use an on-policy learner, such as ippo or mappo."
        )
    return _Attacked(inner, spec, attack, envs, updates).algorithm()


class _Attacked:
    """Holds what is static. Its methods are pure."""

    def __init__(self, inner: Algorithm, spec: EnvSpec, attack: Attack, envs: int, updates: int):
        self.inner, self.team, self.attack, self.agents = inner, inner.in_training, attack, spec.num_agents
        if attack.kind != "takeover":
            widths = [space.size if attack.kind == "observation" else 1 for space in spec.observations]
            spec = dataclasses.replace(spec, actions=tuple(Box((width,), -1.0, 1.0) for width in widths))
        config = PPOConfig(critic="own", rollout_steps=inner.rollout_steps)
        self.adversary = make_ppo(spec, config, envs=envs, updates=updates)

    def algorithm(self) -> Algorithm:
        practice = Algorithm(self.init, self.params, self.act, self.update, self.memory, self.inner.rollout_steps)
        return self.inner._replace(
            init=self.init, params=lambda state: self.inner.params(state.learner), update=self.update,
            note="; ".join(filter(None, (self.inner.note, f"attacked by {self.attack}"))), practice=practice,
            critic=self.inner.critic and self.inner.critic.within(lambda state: state.learner),
        )  # fmt: skip

    def init(self, key: Array) -> AttackState:
        return AttackState(self.team.init(key), self.adversary.init(jax.random.fold_in(key, 5)))

    def params(self, state: AttackState) -> PyTree:
        return {"team": self.team.params(state.learner), "adversary": self.adversary.params(state.adversary)}

    def memory(self, batch: int) -> Attacked:
        return Attacked(self.team.memory(batch), self.adversary.memory(batch), jnp.full(batch, -1, jnp.int32))

    def act(
        self, params: PyTree, seen: Observation, memory: Attacked, key: Array, explore: bool
    ) -> tuple[Array, Attacked, dict[str, Array]]:
        own = seen if self.attack.kind == "takeover" else seen._replace(avail=None)
        doing, after, noted = self.adversary.act(
            params["adversary"], own, memory.adversary, jax.random.fold_in(key, 5), explore
        )
        seat = self._seat(memory.seat, jax.random.fold_in(key, 6))
        taken = seat[:, None] == np.arange(self.agents)
        if self.attack.kind == "observation":
            seen = seen._replace(obs=seen.obs + self._shift(doing))
        action, team, extras = self.team.act(params["team"], seen, memory.team, key, explore)
        if self.attack.kind == "takeover":
            action = jnp.where(taken.reshape(*taken.shape, *(1,) * (action.ndim - 2)), doing, action)
        told = {ATTACK: doing, TAKEN: taken, **({LOGP: noted["logp"]} if explore else {})}
        return action, Attacked(team, after, seat), {**extras, **told}

    def _seat(self, seat: Array, key: Array) -> Array:
        """[B] the agent that is taken over in this episode, N for none."""
        if self.attack.kind != "takeover":
            return jnp.full_like(seat, self.agents)
        which, whether = jax.random.split(key)
        drawn = jax.random.randint(which, seat.shape, 0, self.agents, jnp.int32)
        drawn = jnp.where(jax.random.uniform(whether, seat.shape) < self.attack.size, drawn, self.agents)
        return jnp.where(seat < 0, drawn, seat)

    def _shift(self, doing: Array) -> Array:
        return self.attack.size * jnp.clip(doing, -1.0, 1.0)

    def update(self, state: AttackState, trajectory: Trajectory, key: Array) -> tuple[AttackState, Metrics]:
        extras = dict(trajectory.extras)
        doing, logp, taken = (extras.pop(name) for name in (ATTACK, LOGP, TAKEN))
        lesson = trajectory._replace(extras=extras, memory=trajectory.memory.team)
        other = trajectory._replace(
            reward=-trajectory.reward, action=doing, extras={"logp": logp}, memory=trajectory.memory.adversary
        )
        if self.attack.kind == "observation":
            shift = self._shift(doing)
            goes_on = ~jnp.concatenate([trajectory.first[1:], jnp.ones_like(trajectory.first[:1])])[..., None, None]
            later = jnp.where(goes_on, jnp.concatenate([shift[1:], shift[:1]]), 0.0)
            lesson = lesson._replace(obs=lesson.obs + shift, next_obs=lesson.next_obs + later)
        elif self.attack.kind == "reward":
            lesson = lesson._replace(reward=lesson.reward + self._shift(doing)[..., 0])
        if self.attack.kind != "takeover":
            other = other._replace(avail=None, next_avail=None)
        else:
            lesson, other = _of(lesson, ~taken), _of(other._replace(action=trajectory.action), taken)
        learner, metrics = self.team.update(state.learner, lesson, key)
        adversary, found = self.adversary.update(state.adversary, other, jax.random.fold_in(key, 5))
        return AttackState(learner, adversary), {**metrics, **{f"adversary/{k}": v for k, v in found.items()}}


def _of(trajectory: Trajectory, mine: Array) -> Trajectory:
    """What is learned from one's own seats [T, B, N] alone."""
    alive = mine if trajectory.alive is None else mine & trajectory.alive
    left = None if trajectory.next_alive is None else mine & trajectory.next_alive
    return trajectory._replace(alive=alive, next_alive=left)
