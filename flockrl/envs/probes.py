"""Probes: tiny environments with known answers. Each isolates one thing that a learner must do.

A learner that fails a probe has a bug, and the probe shows where. Start with `constant_reward` and go
down `ENVIRONMENTS`: each probe needs little more than the ones before it. Every probe has `best`, the
highest mean episode return. Unless the probe says otherwise, a right action pays +1 and a wrong one
-1, so guessing between two actions has the mean return 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.types import Array, Box, Discrete, EnvSpec, Observation, Space


class Moment(NamedTuple):
    """t: steps since the reset; cue: what was drawn at random; each probe has its own form of it."""

    t: Array
    cue: Array


def _no_cue(_: Array) -> Array:
    return jnp.zeros(0)


@dataclass(frozen=True, eq=False)
class Probe:
    """A probe, put together from its parts.

    observe(moment) -> Observation. reward(moment, action) -> [N], or one number for all agents; `moment` is
    the one before the step. draw(key) makes the cue, once per episode or, with `redraw`, for every step.
    `lives` gives the step after which each agent terminates; without it all agents terminate after
    `spec.max_steps` or, with `truncates`, are truncated there.
    """

    spec: EnvSpec
    best: float
    observe: Callable[[Moment], Observation]
    reward: Callable[[Moment, Array], Array]
    draw: Callable[[Array], Array] = _no_cue
    redraw: bool = False
    truncates: bool = False
    lives: tuple[int, ...] = ()

    def reset(self, key: Array) -> tuple[Moment, Observation]:
        moment = Moment(jnp.int32(0), self.draw(key))
        return moment, self.observe(moment)

    def step(self, key: Array, state: Moment, action: Array) -> tuple[Moment, Observation, Array, Array, Array]:
        reward = jnp.broadcast_to(self.reward(state, action), self.spec.num_agents).astype(jnp.float32)
        moment = Moment(state.t + 1, self.draw(key) if self.redraw else state.cue)
        over = moment.t == np.array(self.lives, np.int32) if self.lives else moment.t >= self.spec.max_steps
        never = jnp.zeros_like(over)
        terminated, truncated = (never, over) if self.truncates else (over, never)
        return moment, self.observe(moment), reward, terminated, truncated


def _spec(
    name: str,
    steps: int = 1,
    agents: tuple[str, ...] = ("agent_0",),
    sizes: tuple[int, ...] = (1,),
    actions: tuple[Space, ...] = (Discrete(2),),
    state_size: int = 0,
    reward_after_death: bool = True,
) -> EnvSpec:
    """A spec. Where `sizes` or `actions` have only one entry, it holds for all agents."""
    n = len(agents)
    boxes = tuple(Box((size,), -1.0, 1.0) for size in sizes)
    boxes = boxes * n if len(boxes) == 1 else boxes
    actions = actions * n if len(actions) == 1 else actions
    return EnvSpec(
        f"probe/{name}", agents, boxes, actions, steps, state_size=state_size, reward_after_death=reward_after_death
    )


PAIR = ("agent_0", "agent_1")


def _blank(agents: int = 1) -> Observation:
    """An observation without information: the constant 1 for all agents."""
    return Observation(jnp.ones((agents, 1)))


def _one(row: Array) -> Observation:
    """The observation of a single agent. row: [O]."""
    return Observation(row[None].astype(jnp.float32))


def _paid(right: Array) -> Array:
    """+1 where right, -1 where wrong."""
    return jnp.where(right, 1.0, -1.0)


def _sign(bit: Array) -> Array:
    """Bits as -1 and +1."""
    return 2.0 * bit - 1.0


def _bits(n: int) -> Callable[[Array], Array]:
    """Draws n fair bits: [n] int32."""
    return lambda key: jax.random.bernoulli(key, 0.5, (n,)).astype(jnp.int32)


def _length(name: str, length: int, least: int = 1) -> int:
    if length < least:
        raise UsageError(f"probe/{name}: length must be at least {least}, not {length}.")
    return length


def constant_reward() -> Probe:
    """Isolates the value of a state: one step, constant observation, reward 1 for any action.

    Known answer: the value is 1.
    """
    return Probe(_spec("constant_reward"), 1.0, lambda m: _blank(), lambda m, action: jnp.float32(1))


def discount() -> Probe:
    """Isolates discounting and bootstrapping: two steps told apart by a one-hot, reward 1 after the second.

    Known answer: the value of the second step is 1, of the first gamma.
    """
    return Probe(
        _spec("discount", steps=2, sizes=(2,)),
        best=1.0,
        observe=lambda m: _one(m.t == np.arange(2)),
        reward=lambda m, action: m.t == 1,
    )


def observation_value() -> Probe:
    """Isolates reading the observation: a random -1 or +1 is observed and is also the reward. Actions have no effect.

    Known answer: the value is the observation; the mean return is 0.
    """
    return Probe(
        _spec("observation_value"),
        best=0.0,
        observe=lambda m: _one(_sign(m.cue)),
        reward=lambda m, action: _sign(m.cue),
        draw=_bits(1),
    )


def action(continuous: bool = False) -> Probe:
    """Isolates improving the policy: one step, constant observation.

    Action 1 pays +1 and action 0 pays -1. With `continuous`, an action a from [-2, 3] pays
    1 - (a - 0.5)^2. Known answer: action 1, or a = 0.5; return 1. The target is the middle of the bounds,
    so a policy that starts there passes without learning: check that its standard deviation shrinks.
    """
    if continuous:
        spec = _spec("action", actions=(Box((1,), -2.0, 3.0),))
        return Probe(spec, 1.0, lambda m: _blank(), lambda m, a: 1.0 - (a[:, 0] - 0.5) ** 2)
    return Probe(_spec("action"), 1.0, lambda m: _blank(), lambda m, a: _paid(a == 1))


def observation_action() -> Probe:
    """Isolates choosing by observation: the right action is the bit observed as -1 (0) or +1 (1).

    Known answer: return 1 by following the observation; any constant choice gets 0.
    """
    return Probe(
        _spec("observation_action"),
        best=1.0,
        observe=lambda m: _one(_sign(m.cue)),
        reward=lambda m, action: _paid(action == m.cue),
        draw=_bits(1),
    )


def credit() -> Probe:
    """Isolates individual rewards: two agents; each observes a bit of its own and is paid for matching it.

    Known answer: both agents get 1. A learner that gives each agent the other's reward stays at 0. One that
    averages the rewards learns, but its values are wrong: a wrong action costs only the agent that takes it.
    """
    return Probe(
        _spec("credit", agents=PAIR),
        best=1.0,
        observe=lambda m: Observation(_sign(m.cue)[:, None]),
        reward=lambda m, action: _paid(action == m.cue),
        draw=_bits(2),
    )


def team_credit() -> Probe:
    """Isolates credit within a side: two agents; each observes a bit of its own, and both are paid 1 when
    both match theirs, otherwise 0.

    Known answer: return 1; guessing gets 0.25.
    """
    return Probe(
        _spec("team_credit", agents=PAIR),
        best=1.0,
        observe=lambda m: Observation(_sign(m.cue)[:, None]),
        reward=lambda m, action: (action == m.cue).all(),
        draw=_bits(2),
    )


def memory(length: int = 4) -> Probe:
    """Isolates memory: a cue of -1 or +1 is shown in the first of `length` steps, and the action in the
    last step must match it. The observation is [cue or 0, whether this is the last step].

    Known answer: return 1; 0 on average for a policy without memory.
    """
    last = _length("memory", length, least=2) - 1
    return Probe(
        _spec("memory", steps=length, sizes=(2,)),
        best=1.0,
        observe=lambda m: _one(jnp.concatenate([_sign(m.cue) * (m.t == 0), (m.t == last)[None]])),
        reward=lambda m, action: _paid(action == m.cue) * (m.t == last),
        draw=_bits(1),
    )


def clock(length: int = 40, moment: int = 5) -> Probe:
    """Isolates memory that is older than a replayed sequence: the observation is constant, and action 1 pays 1 in step
    `moment` and -1 in any other of `length` steps. Only memory tells the time.

    Known answer: return 1; 0 for a policy without memory.
    """
    spec = _spec("clock", steps=_length("clock", length, least=moment + 1))
    return Probe(spec, 1.0, lambda m: _blank(), lambda m, action: _paid(m.t == moment) * action)


def masks(length: int = 4) -> Probe:
    """Isolates action masks: in each of `length` steps one of 8 actions is legal, drawn at random, and only
    the mask shows which. The legal action pays +1; an illegal one pays -1 and has no other effect.

    Known answer: return `length`; without the mask the best is -0.75 per step.
    """
    _length("masks", length)
    return Probe(
        _spec("masks", steps=length, actions=(Discrete(8),)),
        best=float(length),
        observe=lambda m: Observation(jnp.ones((1, 1)), avail=m.cue[:, None] == np.arange(8)),
        reward=lambda m, action: _paid(action == m.cue),
        draw=lambda key: jax.random.randint(key, (1,), 0, 8),
        redraw=True,
    )


def truncation(length: int = 5) -> Probe:
    """Isolates bootstrapping at a truncation: reward 1 in every step, constant observation, truncated after
    `length` steps.

    Known answer: the value is 1 / (1 - gamma), as if the episode never ended.
    """
    spec = _spec("truncation", steps=_length("truncation", length))
    return Probe(spec, float(length), lambda m: _blank(), lambda m, action: jnp.float32(1), truncates=True)


def termination(length: int = 5) -> Probe:
    """Isolates the end of an episode: reward 1 in every step, terminated after `length` steps. The observation
    is the one-hot of the step.

    Known answer: the value with k steps left is (1 - gamma^k) / (1 - gamma).
    """
    return Probe(
        _spec("termination", steps=_length("termination", length), sizes=(length,)),
        best=float(length),
        observe=lambda m: _one(m.t == np.arange(length)),
        reward=lambda m, action: jnp.float32(1),
    )


def unlike() -> Probe:
    """Isolates unlike agents, and thereby padding: observation sizes 1, 3 and 5, action counts 2, 3 and 4. The
    first agent observes its right action as -1 or +1, the second as a one-hot, the third as a one-hot of 4
    followed by the constant 1. Each is paid for its own action.

    Known answer: return 1 for every agent.
    """
    counts = np.array([2, 3, 4], np.int32)

    def observe(m: Moment) -> Observation:
        rows = (m.cue[:, None] == np.arange(5)).astype(jnp.float32)
        rows = rows.at[2, 4].set(1.0).at[0].set(jnp.zeros(5).at[0].set(_sign(m.cue[0])))
        return Observation(rows)

    return Probe(
        _spec("unlike", agents=("small", "medium", "large"), sizes=(1, 3, 5), actions=tuple(map(Discrete, (2, 3, 4)))),
        best=1.0,
        observe=observe,
        reward=lambda m, action: _paid(action == m.cue),
        draw=lambda key: jax.random.randint(key, (3,), 0, counts),
    )


def death() -> Probe:
    """Isolates agents that die before others: agent i lives i + 1 steps, earns 1 in each and observes the
    one-hot of the steps it has left. Dead agents earn nothing and observe noise. The episode ends when the
    last agent dies, before `max_steps`.

    Known answer: an agent with k steps left has the value (1 - gamma^k) / (1 - gamma); the noise has no effect.
    """
    lives = np.array([1, 2, 3], np.int32)

    def observe(m: Moment) -> Observation:
        alive = m.t < lives
        left = (lives - m.t - 1)[:, None] == np.arange(3)
        return Observation(jnp.where(alive[:, None], left.astype(jnp.float32), m.cue), alive=alive)

    return Probe(
        _spec("death", steps=4, agents=("agent_0", "agent_1", "agent_2"), sizes=(3,), reward_after_death=False),
        best=2.0,
        observe=observe,
        reward=lambda m, action: m.t < lives,
        draw=lambda key: jax.random.uniform(key, (3, 3), minval=-1.0),
        redraw=True,
        lives=(1, 2, 3),
    )


def state() -> Probe:
    """Isolates the global state: the state is a random -1 or +1, which is also the reward of both agents. They
    observe only a constant. Actions have no effect.

    Known answer: the value is the state, which only a central critic reads; without it, the value is 0.
    """
    return Probe(
        _spec("state", agents=PAIR, state_size=1),
        best=0.0,
        observe=lambda m: Observation(jnp.ones((2, 1)), state=_sign(m.cue)),
        reward=lambda m, action: _sign(m.cue),
        draw=_bits(1),
    )


ENVIRONMENTS = {
    builder.__name__: builder
    for builder in (
        constant_reward, discount, observation_value, action, observation_action, credit, team_credit,
        memory, clock, masks, truncation, termination, unlike, death, state,
    )
}  # fmt: skip
