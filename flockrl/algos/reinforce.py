"""Policy gradients from whole returns: REINFORCE for one agent, for independent agents, with a central baseline.

Williams 1992 (Machine Learning 8), Sutton and Barto 2018, section 13.4.

    grad J = E[grad log pi(a | o) (G - b)] + c grad H[pi]

G is the discounted reward from the step on. One gradient step per rollout. The variants differ in what the
baseline b reads (`baseline`), and whether G - b is taken as it is or smoothed (`advantage`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from flockrl.algos.family import Family
from flockrl.algos.on_policy import OnPolicy, OnPolicyState, require_whole_episodes
from flockrl.algos.on_policy_config import OnPolicyConfig, Reads
from flockrl.algos.parts import descend, mean
from flockrl.algos.returns import gae, monte_carlo
from flockrl.core.errors import UsageError
from flockrl.core.groups import take
from flockrl.core.lives import learning_weight
from flockrl.core.settings import check_numbers
from flockrl.core.types import Algorithm, Array, EnvSpec, Metrics, Observation, PyTree, Trajectory

LAMBDA = 0.9


@dataclass(frozen=True)
class ReinforceConfig(OnPolicyConfig):
    """Settings of the REINFORCE family."""

    rollout_steps: int = 25
    """Steps of every environment between updates; without a baseline at least an episode."""
    lr: float = 5e-3
    """Adam's learning rate."""
    normalize_value: bool = True
    """Let the baseline, where there is one, predict returns scaled by their running mean and deviation (PopArt)."""
    baseline: Reads = "own"
    """What is subtracted from returns: nothing, a value of the own observation, of the global state (else all), or of
    both (agent)."""
    advantage: Literal["return", "gae"] = "return"
    """What an action is credited with: the return less the baseline, or generalised advantage estimation."""
    gae_lambda: float | None = None
    """Lambda of generalised advantage estimation, only with advantage gae; by default 0.9."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, "gae_lambda", least=0, most=1)
        if self.advantage == "gae" and self.baseline == "none":
            raise UsageError("advantage gae needs a baseline: use --baseline own or central, or --advantage return.")
        if self.advantage == "return" and self.gae_lambda is not None:
            raise UsageError("gae_lambda belongs to advantage gae: use --advantage gae, or leave --gae-lambda out.")

    @property
    def smoothing(self) -> float:
        """Lambda. At 1 the sum of gae telescopes to the return less the baseline."""
        if self.advantage == "return":
            return 1.0
        return LAMBDA if self.gae_lambda is None else self.gae_lambda


class Lesson(NamedTuple):
    """A rollout prepared for learning.

    advantage: [T, B, N]; weight: [T, B, N] or None where all steps count alike; known: the same for the baseline;
    target: [T, B, N] what the baseline should say, in its units. params, value_moments: before the gradient step, in
    the units of the target; paid: after it. memories: the baseline's, after each step. Without a baseline target is
    None, and its moments and memories are empty.
    """

    advantage: Array
    weight: Array | None
    known: Array | None
    target: Array | None
    params: PyTree
    value_moments: Any
    paid: Any
    memories: PyTree


def make(spec: EnvSpec, config: ReinforceConfig, *, envs: int, updates: int) -> Algorithm:
    """Build the learner for `envs` parallel environments and a run of `updates` updates."""
    if config.baseline == "none":
        require_whole_episodes(spec, config.rollout_steps, "baseline", "--baseline own or central")
    return Reinforce(spec, config, envs, updates).algorithm()


FAMILY = Family(
    make,
    ReinforceConfig,
    on_policy=True,
    logp=True,
    factorised=True,
    bonus="advantage",
    central=lambda config: config.baseline in ("central", "agent"),
    grows=lambda config: True,
)


class Reinforce(OnPolicy):
    """One gradient step on each rollout."""

    def __init__(self, spec: EnvSpec, config: ReinforceConfig, envs: int, updates: int):
        super().__init__(spec, config, envs, updates, config.baseline)

    def update(self, state: OnPolicyState, trajectory: Trajectory, key: Array) -> tuple[OnPolicyState, Metrics]:
        seen = self._seen(state, trajectory.observation)
        lesson, metrics = self._compare(state, trajectory, seen) if self.critics else self._sum(state, trajectory)
        gradient, bonus = jax.grad(self._loss, has_aux=True), self._entropy(state)
        grads, losses = gradient(lesson.params, state.critic_memory, trajectory, seen, lesson, bonus)
        lr = self._lr(state)
        params, optimiser = {}, {}
        for name, nets in lesson.params.items():
            params[name], optimiser[name] = descend(self.optimiser, nets, state.optimiser[name], grads[name], lr)
        metrics = {**metrics, **losses, "grad_norm": optax.tree.norm(grads["actor"]), "lr": lr}
        if self.config.entropy_schedule != "constant":
            metrics["entropy_weight"] = bonus
        state = self._moved(state, trajectory, lesson.weight, lesson.memories)
        return state._replace(
            params=params, optimiser=optimiser, value_moments=lesson.value_moments, paid=lesson.paid
        ), metrics

    def _compare(
        self, state: OnPolicyState, trajectory: Trajectory, seen: Observation
    ) -> tuple[Lesson, dict[str, Array]]:
        """Returns against the baseline, which also stands for what followed where an episode was cut."""
        weight = None if trajectory.alive is None else trajectory.weight
        estimates = self._estimate(state, trajectory, seen)
        value, ended = estimates.value, trajectory.terminated
        over = ended | trajectory.truncated
        advantage = gae(
            trajectory.reward, value, estimates.next_value, ended, over, self.config.gamma, self.config.smoothing
        )
        returns = advantage + value
        known = learning_weight(self.spec, trajectory.alive)
        critics, stats, (offset, std), _ = self._rescaled(state, estimates, returns, known, ended)
        params = {**state.params, **critics}
        earned, _ = monte_carlo(trajectory.reward, over, self.config.gamma)
        advantage, paid = self._normal_advantage(state.paid, earned, advantage, weight)
        advantage = self._with_bonus(advantage, trajectory)
        target = (returns - offset) / std
        metrics = {"explained_variance": self._explained(returns, value, known)}
        return Lesson(advantage, weight, known, target, params, stats, paid, estimates.memories), metrics

    def _sum(self, state: OnPolicyState, trajectory: Trajectory) -> tuple[Lesson, dict[str, Array]]:
        """Returns alone. Steps whose episode goes on after the rollout have none that is known: they weigh nothing."""
        over = trajectory.terminated | trajectory.truncated
        returns, known = monte_carlo(trajectory.reward, over, self.config.gamma)
        weight = trajectory.weight * known
        metrics = {"known_returns": weight.sum() / jnp.maximum(trajectory.weight.sum(), 1.0)}
        advantage, paid = self._normal_advantage(state.paid, returns, returns, weight)
        advantage = self._with_bonus(advantage, trajectory)
        return Lesson(advantage, weight, None, None, state.params, (), paid, ()), metrics

    def _loss(
        self, params: PyTree, memory: PyTree, trajectory: Trajectory, seen: Observation, lesson: Lesson, bonus: Array
    ) -> tuple[Array, dict[str, Array]]:
        """-log pi times the advantage, the entropy bonus and the baseline's error, each group's mean added up.

        memory: the baseline's before the rollout; bonus: the weight of the entropy bonus.
        """
        first = trajectory.first if self.recurrent else None
        outs, _ = self.actor(params["actor"], seen, trajectory.memory, first)
        error = None
        if lesson.target is not None:
            value, _ = self._values(params["critic"], seen, memory, first)
            error = 0.5 * (value - lesson.target) ** 2
        total = jnp.float32(0)
        rows: list[dict[str, Array]] = []
        for group, head, out in zip(self.groups, self.heads, outs, strict=True):
            logp, entropy = self._chosen(group, head, out, trajectory.action, trajectory.avail)
            advantage = take(lesson.advantage, group, 2).reshape(-1)
            weight = None if lesson.weight is None else take(lesson.weight, group, 2).reshape(-1)
            row = {"policy_loss": -mean(logp * advantage, weight), "entropy": mean(entropy, weight)}
            total = total + row["policy_loss"] - bonus * row["entropy"]
            if error is not None:
                known = None if lesson.known is None else take(lesson.known, group, 2).reshape(-1)
                row["value_loss"] = mean(take(error, group, 2).reshape(-1), known)
                total = total + row["value_loss"]
            rows.append(row)
        return total, {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}  # type: ignore[misc]
