"""Exploration bonuses for any learner: what is new pays, beside what the environment pays."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from flockrl.algos.bonus.belief import Belief
from flockrl.algos.bonus.counts import Counts, Coverage
from flockrl.algos.bonus.critic import BonusCritic
from flockrl.algos.bonus.influence import Influence
from flockrl.algos.bonus.models import ICM, RND
from flockrl.algos.bonus.novelty import Look, Measure, Novelty, share, shares
from flockrl.algos.family import Family
from flockrl.algos.parts import mean, schedule_factor
from flockrl.core.errors import UsageError
from flockrl.core.types import Algorithm, Array, EnvSpec, Metrics, PyTree, Trajectory

SCALES = {"advantage": 1.0, "replay": 0.1, "reward": 0.1}
"""Scale where the user says nothing, by the way in which the bonus is paid."""


class ExploringState(NamedTuple):
    """learner: the state of the learner within. novelty: of each measure; critic: of the bonus, or (); seen: marks of
    the joint cells that were seen; updates: so far."""

    learner: PyTree
    novelty: tuple[PyTree, ...]
    critic: PyTree
    seen: Array
    updates: Array


class Bonus:
    """What agents earn for exploring. Holds what is static; its methods are pure."""

    def __init__(self, spec: EnvSpec, config: Any):
        self.kind = shares(spec, config)
        self.measures = _measures(spec, config)

    def init(self, key: Array) -> tuple[PyTree, ...]:
        return tuple(m.init(jax.random.fold_in(key, i)) for i, m in enumerate(self.measures))

    def learn(self, states: tuple[PyTree, ...], rollout: Trajectory, key: Array) -> tuple[tuple[PyTree, ...], Metrics]:
        found: list[PyTree] = []
        metrics: dict[str, Array] = {}
        for i, (measure, state) in enumerate(zip(self.measures, states, strict=True)):
            after, told = measure.learn(state, rollout, jax.random.fold_in(key, i))
            found.append(after)
            metrics.update(told)
        return tuple(found), metrics

    def __call__(self, states: tuple[PyTree, ...], rows: Trajectory) -> Array:
        """[..., N] the bonus of each agent for each step, the mean of the measures; nothing for the dead."""
        total = jnp.zeros(rows.reward.shape)
        for measure, state in zip(self.measures, states, strict=True):
            if self.kind != "independent" and isinstance(measure, Novelty) and measure.look.on == "own":
                total = total + share(self.kind, measure.cross(state, rows))
            else:
                total = total + measure.own(state, rows)
        return jax.lax.stop_gradient(total / len(self.measures) * rows.weight)


def _measures(spec: EnvSpec, config: Any) -> list[Measure]:
    """One for each thing that is looked at."""
    if config.bonus == "influence":
        return [Influence(spec)]
    if config.bonus == "belief":
        return [Belief(spec, config.bonus_entries)]
    on, entries, acts = config.of_bonus("bonus_on"), config.bonus_entries, config.bonus_actions
    looks = [] if on == "state" else [Look(spec, "own", entries, acts)]
    if on != "own":
        looks.append(Look(spec, "state", "" if on == "both" else entries, acts))
    if config.bonus == "count":
        return [Counts(look, config) for look in looks]
    return [{"rnd": RND, "icm": ICM}[config.bonus](spec, look) for look in looks]


def exploring(algorithm: Algorithm, spec: EnvSpec, config: Any, family: Family, envs: int, updates: int) -> Algorithm:
    """The same learner, which also earns a bonus; as it is where the config asks for none.

    How the bonus is paid (`Family.bonus`): as an `advantage` of its own, in extras["bonus_advantage"]; `replay`, as a
    function in extras["bonus"] that the replay adds to the rewards of what is sampled, so that it is never stale; else
    as part of the reward.
    """
    if getattr(config, "bonus", "none") == "none":
        return algorithm
    bonus, coverage = Bonus(spec, config), Coverage(spec, config.of_bonus("bonus_cell"))
    critic = BonusCritic(spec, config, envs) if family.bonus == "advantage" else None
    if critic is None and config.bonus_gamma is not None:
        raise UsageError("bonus_gamma is for learners with advantages, and others discount all alike: leave it out.")
    full = SCALES[family.bonus] if config.bonus_scale is None else config.bonus_scale
    schedule = config.of_bonus("bonus_schedule")

    def pay(states: tuple[PyTree, ...], scale: Array, rows: Trajectory) -> Array:
        return scale * bonus(states, rows)

    def init(key: Array) -> ExploringState:
        own = jax.random.split(jax.random.fold_in(key, 0xB0), 2)
        first = () if critic is None else critic.init(own[1])
        return ExploringState(algorithm.init(key), bonus.init(own[0]), first, coverage.init(), jnp.int32(0))

    def update(state: ExploringState, trajectory: Trajectory, key: Array) -> tuple[ExploringState, Metrics]:
        own = jax.random.split(jax.random.fold_in(key, 0xB0), 2)
        novelty, told = bonus.learn(state.novelty, trajectory, own[0])
        paid, scale = bonus(novelty, trajectory), full * schedule_factor(schedule, state.updates / updates)
        after, extras, value = trajectory, dict(trajectory.extras), state.critic
        if critic is not None:
            advantage, value, more = critic.advantage(state.critic, trajectory, paid, own[1])
            told, extras["bonus_advantage"] = {**told, **more}, scale * advantage
        elif family.bonus == "replay":
            extras["bonus"] = Partial(pay, novelty, scale)  # type: ignore[assignment]
        else:
            after = trajectory._replace(reward=trajectory.reward + scale * paid)
        learner, metrics = algorithm.update(state.learner, after._replace(extras=extras), key)
        seen = coverage.learn(state.seen, trajectory)
        weight = None if trajectory.alive is None else trajectory.weight
        told = {**told, "bonus": mean(paid, weight), "coverage": coverage.number(seen)}
        return ExploringState(learner, novelty, value, seen, state.updates + 1), {**metrics, **told}

    return algorithm._replace(
        init=init, params=lambda state: algorithm.params(state.learner), update=update,
        critic=algorithm.critic and algorithm.critic.within(lambda state: state.learner),
    )  # fmt: skip
