"""Learning through the environment's own derivatives: APG, and SHAC where a critic stands for what follows a rollout.

Xu et al. 2022 (arXiv 2204.07137); without a critic the analytic policy gradient of Freeman et al. 2021 (2106.13281).

    J = mean of sum_t gamma^t r_t + gamma^h V(s_h),   grad J by the chain rule through policy, environment and value

The rollout is a differentiable function of the policy's parameters, so one of them tells how every action moves every
later reward, where a score-function gradient has to guess that from luck. It needs a compiled environment with real
actions and rewards that change smoothly, and a team whose reward is common: J is the mean over agents.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from flockrl.algos.family import Family
from flockrl.algos.on_policy import OnPolicy, OnPolicyState, ValueEstimates, require_whole_episodes
from flockrl.algos.on_policy_config import PolicyConfig, Reads
from flockrl.algos.parts import as_team, descend, mean
from flockrl.algos.returns import gae, monte_carlo
from flockrl.algos.wrappers.practice import refuse_practice
from flockrl.core.errors import UsageError
from flockrl.core.lives import learning_weight
from flockrl.core.settings import check_numbers
from flockrl.core.types import Algorithm, Array, EnvSpec, Metrics, PyTree, Trajectory
from flockrl.nets.heads import make_head
from flockrl.nets.torsos import Activation

LAMBDA, EPOCHS = 0.95, 8
"""Of critics, where the user says nothing."""


@dataclass(frozen=True)
class ShacConfig(PolicyConfig):
    """Settings of learners that differentiate the environment."""

    activation: Activation = "relu"
    """Activation after each hidden layer."""
    rollout_steps: int = 32
    """Steps of every environment that one gradient goes through; without a critic at least an episode."""
    lr: float = 3e-3
    """Adam's learning rate, of policies and critics."""
    gamma: float | None = None
    """Discount factor; by default 1 - 1 / h for episodes of up to h steps, with h between 20 and 100, and 1 in games
    that are won or lost."""
    critic: Reads = "own"
    """What values at the end of a rollout are estimated from: nothing (there are none then), the own observation, the
    global state (else all), or both (agent)."""
    gae_lambda: float | None = None
    """Lambda of the critic's targets, by default 0.95."""
    critic_epochs: int | None = None
    """Gradient steps of the critic on each rollout, by default 8."""
    normalize_value: bool = True
    """Let the critic, where there is one, predict returns scaled by their running mean and deviation (PopArt)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, "gamma", "gae_lambda", least=0, most=1)
        check_numbers(self, "critic_epochs", least=1)
        for name in ("gae_lambda", "critic_epochs"):
            if self.critic == "none" and getattr(self, name) is not None:
                raise UsageError(f"{name} is of a critic, and there is none: leave it out, or use shac.")


def make(spec: EnvSpec, config: ShacConfig, *, envs: int, updates: int) -> Algorithm:
    """Build the learner for `envs` parallel environments and a run of `updates` updates."""
    who = "A learner through derivatives"
    if not spec.continuous:
        raise UsageError(f"{who} needs real actions, and agents of {spec.name} choose: use ippo or mappo.")
    if len(spec.parties) > 1 or spec.whole is not None:
        raise UsageError(f"{who} maximises what all agents earn, and {spec.name} has sides: use ippo or maddpg.")
    if spec.respawn or not spec.reward_after_death:
        raise UsageError(
            f"{who} needs one return for all, and lives in {spec.name} end or begin on their own: use ippo."
        )
    if config.critic == "none":
        require_whole_episodes(spec, config.rollout_steps, "critic", "shac")
    for name, given in {"bonus": config.bonus != "none", "mean_field": config.mean_field}.items():
        if given:
            raise UsageError(f"{who} differentiates the environment's own rewards and observations: leave out {name}.")
    refuse_practice(config, who, "a learner that is told what happened")
    return Shac(spec, config, envs, updates).algorithm()


FAMILY = Family(
    make,
    ShacConfig,
    on_policy=True,
    discrete=False,
    central=lambda config: config.critic in ("central", "agent"),
)


class Shac(OnPolicy):
    """One gradient step through each rollout; then the critics learn what it was worth."""

    def __init__(self, spec: EnvSpec, config: ShacConfig, envs: int, updates: int):
        super().__init__(spec, config, envs, updates, config.critic)
        self.heads = [make_head(spec, group, squashed=True) for group in self.groups]

    def algorithm(self) -> Algorithm:
        return super().algorithm()._replace(through=self.through)

    def through(
        self, state: OnPolicyState, play: Callable[[PyTree], tuple[Trajectory, Any]]
    ) -> tuple[Trajectory, Any, dict[str, Any]]:
        """The rollout that `play` makes of the policy's parameters, what else it gives, and the gradient of J."""

        def loss(actor: PyTree) -> tuple[Array, tuple[Trajectory, Any]]:
            trajectory, rest = play({**self.policy(state), "actor": actor})
            return -self._worth(state, as_team(trajectory)), (trajectory, rest)

        jax.eval_shape(loss, state.params["actor"])  # what is wrong with the environment itself is told as it is
        try:
            (lost, (trajectory, rest)), grads = jax.value_and_grad(loss, has_aux=True)(state.params["actor"])
        except (TypeError, ValueError, NotImplementedError) as error:
            reason = str(error).partition("\n")[0].partition(". ")[0]
            raise UsageError(
                f"{self.spec.name} cannot be differentiated ({reason}): use a learner that need not, such as ippo."
            ) from error
        return trajectory, rest, {"gradient": grads, "objective": -lost}

    def _worth(self, state: OnPolicyState, trajectory: Trajectory) -> Array:
        """J: discounted rewards from where the rollout or an episode began, the value of what followed included where
        an episode was cut; the mean over all such beginnings, without critics over those whose episode ended."""
        reward, over = trajectory.reward, trajectory.terminated | trajectory.truncated
        if self.critics:
            over = over.at[-1].set(True)
            later = jnp.where(over & ~trajectory.terminated, self._known(state, trajectory).next_value, 0.0)
            reward = reward + self.config.gamma * later
        worth, known = monte_carlo(reward, over, self.config.gamma)
        begins = known & trajectory.first.at[0].set(True)[..., None]
        return jnp.where(begins, worth, 0.0).sum() / jnp.maximum(begins.sum(), 1)

    def _known(self, state: OnPolicyState, trajectory: Trajectory) -> ValueEstimates:
        return self._estimate(state, trajectory, self._seen(state, trajectory.observation))

    def update(self, state: OnPolicyState, trajectory: Trajectory, key: Array) -> tuple[OnPolicyState, Metrics]:
        told: dict[str, Any] = dict(trajectory.extras)
        if "gradient" not in told:
            raise UsageError(
                f"This learner differentiates {self.spec.name}, which must be a compiled environment that it plays "
                "itself: for other experience use ippo, or a learner with a replay."
            )
        grads, lr = told.pop("gradient"), self._lr(state)
        trajectory = as_team(trajectory._replace(extras=told))
        norm = optax.tree.norm(grads)
        # A rollout whose derivatives overflowed teaches the policy nothing.
        sound = jnp.isfinite(norm)
        moved = descend(self.optimiser, state.params["actor"], state.optimiser["actor"], grads, lr)
        kept = state.params["actor"], state.optimiser["actor"]
        actor, optimiser = jax.tree.map(lambda new, old: jnp.where(sound, new, old), moved, kept)
        metrics = {"objective": told["objective"], "lr": lr, "overflowed": 1.0 - sound}
        metrics["grad_norm"] = jnp.where(sound, norm, 0.0)
        params, optimisers = {**state.params, "actor": actor}, {**state.optimiser, "actor": optimiser}
        weight = None if trajectory.alive is None else trajectory.weight
        if not self.critics:
            after = self._moved(state, trajectory, weight, ())
            return after._replace(params=params, optimiser=optimisers), metrics
        learned, stats, memories, more = self._judge(state, trajectory, lr)
        params["critic"], optimisers["critic"] = learned
        after = self._moved(state, trajectory, weight, memories)
        return after._replace(params=params, optimiser=optimisers, value_moments=stats), {**metrics, **more}

    def _judge(
        self, state: OnPolicyState, trajectory: Trajectory, lr: Array
    ) -> tuple[tuple[PyTree, PyTree], Any, PyTree, dict[str, Array]]:
        """Critics and their optimisers after learning a rollout's returns, the moments of those, the critics' memories
        along it, and metrics."""
        config, seen = self.config, self._seen(state, trajectory.observation)
        estimates, ended = self._known(state, trajectory), trajectory.terminated
        over = ended | trajectory.truncated
        paid, value, known = trajectory.reward, estimates.value, learning_weight(self.spec, trajectory.alive)
        smoothing = LAMBDA if config.gae_lambda is None else config.gae_lambda
        returns = value + gae(paid, value, estimates.next_value, ended, over, config.gamma, smoothing)
        critics, stats, (offset, std), _ = self._rescaled(state, estimates, returns, known, ended)
        target = (returns - offset) / std

        def loss(critic: PyTree) -> Array:
            guess, _ = self._values(critic, seen, state.critic_memory, trajectory.first if self.recurrent else None)
            return 0.5 * mean((guess - target) ** 2, known)

        def step(carry: tuple[PyTree, PyTree], _: None) -> tuple[tuple[PyTree, PyTree], Array]:
            lost, grads = jax.value_and_grad(loss)(carry[0])
            return descend(self.optimiser, carry[0], carry[1], grads, lr), lost

        began = critics["critic"], state.optimiser["critic"]
        learned, losses = jax.lax.scan(step, began, None, length=config.critic_epochs or EPOCHS)
        metrics = {"value_loss": losses[0], "explained_variance": self._explained(returns, value, known)}
        return learned, stats, estimates.memories, metrics
