"""Proximal policy optimisation for teams: PPO, IPPO, MAPPO, and their one-epoch relatives A2C.

Schulman et al. 2017 (arXiv 1707.06347), de Witt et al. 2020 (IPPO), Yu et al. 2022 (MAPPO).

    L = -E[min(rho A, clip(rho, 1 - eps, 1 + eps) A)] - c H[pi],   rho = pi(a | o) / pi_old(a | o)

IPPO and MAPPO differ in one argument: what the critic reads (`critic`). Magnetic mirror descent (Sokota et al. 2023,
arXiv 2206.05825) adds m KL(pi || magnet); with the policy before the update as magnet, m is 1 / its step size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from flockrl.algos.counterfactual import ChoiceCritic, counterfactual
from flockrl.algos.credit import credit_metrics
from flockrl.algos.family import Family
from flockrl.algos.on_policy import OnPolicy, OnPolicyState, ValueEstimates
from flockrl.algos.on_policy_config import OnPolicyConfig
from flockrl.algos.opponents import foreseen_loss, foreseen_size, models_opponents, others_moves, predicts_state
from flockrl.algos.parts import descend, mean
from flockrl.algos.returns import gae, monte_carlo
from flockrl.core.devices import spread
from flockrl.core.errors import UsageError
from flockrl.core.groups import take
from flockrl.core.lives import learning_weight
from flockrl.core.settings import check_numbers
from flockrl.core.types import Algorithm, Array, EnvSpec, Metrics, Observation, PyTree, Trajectory
from flockrl.policies.stochastic import legal


@dataclass(frozen=True)
class PPOConfig(OnPolicyConfig):
    """Settings of the PPO family. Try first: --lr, --entropy, --rollout-steps, --gamma, --hidden, --memory, --share."""

    hidden: tuple[int, ...] = (128, 128)
    """Sizes of the hidden layers of each network."""
    critic: Literal["own", "central", "agent"] = "central"
    """What the critic reads: the agent's own observation, the global state (else all observations), or both."""
    counterfactual: Literal["return", "critic"] = "return"
    """What is compared with the average over an agent's own actions, with credit counterfactual: the return, or the
    critic's value of the joint action as in COMA's paper."""
    death_mask: bool = False
    """Let critics read zeros for dead agents, told apart by their ids; with critic own or agent."""
    epochs: int = 5
    """Passes over each rollout."""
    minibatches: int | None = None
    """Parts that the environments are split into for each gradient step; by default the largest number up to 4 that
    divides the number of environments, as any must."""
    gae_lambda: float = 0.9
    """Lambda of generalised advantage estimation."""
    clip: float | None = 0.2
    """How far the probability ratio may leave 1; None for no clipping."""
    value_clip: float | None = None
    """How far a value may move per update, in units of the returns' deviation; None for no clipping."""
    target_kl: float | None = None
    """Stop an update's epochs once the policy has moved by this much; None for never."""
    magnet: float = 0.0
    """Weight of a penalty on the divergence KL(policy || magnet) from a policy that follows this one."""
    magnet_rate: float = 1.0
    """How far the magnet moves towards the policy before each update: 1 makes it that policy, as in mirror descent; a
    small number makes it follow slowly."""
    model_opponents: float | None = None
    """Weight of a loss by which each agent learns to predict the other agents' actions from its own features (with no
    number after it, 0.5); by default nothing is predicted."""
    predict_return: float = 0.0
    """Weight of a loss by which the policy's network learns to predict its agent's return from what it saw, remembers
    and heard: what others say then has to tell what returns depend on. 0 for none."""
    predict_state: float = 0.0
    """Weight of a loss by which the policy's network learns to predict the global state, in units of its deviations:
    what others say then has to tell what one does not see. For environments that have a global state; 0 for none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.death_mask and self.critic == "central":
            raise UsageError("death_mask needs a critic per agent: use it with --critic agent or --critic own.")
        check_numbers(self, "epochs", "minibatches", least=1)
        check_numbers(self, "clip", "value_clip", "target_kl", above=0)
        check_numbers(self, "gae_lambda", "magnet_rate", least=0, most=1)
        check_numbers(self, "magnet", "model_opponents", "predict_return", "predict_state", least=0)


class Batch(NamedTuple):
    """A rollout prepared for learning. Leaves have axes [B, T, ...], memories [B, ...].

    weight: 1 where an agent acted; known: 1 where its return was running, which critics learn. None for everywhere.
    magnet: what the magnet's networks say, one entry per group, or () where there is no magnet.
    factor: [B, T] what a step weighs in a policy's loss, None for 1.
    moves: what all agents did and whether they had a choice, [B, T, N] each, where it is to be predicted, else ().
    """

    seen: Observation
    weight: Array | None
    known: Array | None
    first: Array
    action: Array
    logp: Array
    advantage: Array
    target: Array
    value: Array
    magnet: tuple[Array, ...]
    factor: Array | None
    moves: tuple[Array, ...]
    actor_memory: PyTree
    critic_memory: PyTree


class Pace(NamedTuple):
    """How large an update's steps are: the learning rate, and the weight of the entropy bonus."""

    lr: Array
    entropy: Array


def make(spec: EnvSpec, config: PPOConfig, *, envs: int, updates: int) -> Algorithm:
    """Build the learner for `envs` parallel environments and a run of `updates` updates."""
    return _PPO(spec, config, envs, updates).algorithm()


def _slow_magnet(config: PPOConfig) -> bool:
    """Whether the magnet has parameters of its own."""
    return config.magnet > 0 and config.magnet_rate < 1


FAMILY = Family(
    make,
    PPOConfig,
    on_policy=True,
    logp=True,
    factorised=True,
    bonus="advantage",
    central=lambda config: config.critic != "own",
    grows=lambda config: not (_slow_magnet(config) or models_opponents(config) or predicts_state(config)),
    live=("lr", "entropy", "clip"),
)


class _PPO(OnPolicy):
    """Several epochs of minibatches on each rollout, with a critic."""

    def __init__(self, spec: EnvSpec, config: PPOConfig, envs: int, updates: int):
        if envs % (config.minibatches or 1):
            raise UsageError(
                f"minibatches ({config.minibatches}) must divide the number of environments ({envs}): "
                "change --minibatches or --envs."
            )
        super().__init__(spec, config, envs, updates, config.critic)
        self.death_mask = config.death_mask
        if config.credit == "counterfactual":
            self.choice_critic = ChoiceCritic(spec, self.config, self.groups)

    def init(self, key: Array) -> OnPolicyState:
        state = super().init(key)
        return state._replace(magnet=state.params["actor"]) if _slow_magnet(self.config) else state

    def update(self, state: OnPolicyState, trajectory: Trajectory, key: Array) -> tuple[OnPolicyState, Metrics]:
        seen = self._seen(state, trajectory.observation)
        weight = None if trajectory.alive is None else trajectory.weight
        estimates = self._estimate(state, trajectory, seen)
        value, ended = estimates.value, trajectory.terminated
        over = ended | trajectory.truncated
        advantage = gae(
            trajectory.reward, value, estimates.next_value, ended, over, self.config.gamma, self.config.gae_lambda
        )
        returns, shares = advantage + value, {}
        if self.choice_critic is not None:
            advantage = self._compared(state, trajectory, seen, estimates, returns)
            shares = credit_metrics(self.spec, jnp.abs(advantage * trajectory.weight).mean((0, 1)))
        known = learning_weight(self.spec, trajectory.alive)
        critics, stats, (offset, std), lacking = self._rescaled(state, estimates, returns, known, ended)
        earned, _ = monte_carlo(trajectory.reward, over, self.config.gamma)
        normal, paid = self._normal_advantage(state.paid, earned, advantage, weight)
        normal = self._with_bonus(normal, trajectory)
        magnet, pulls = self._magnet(state, trajectory, seen)
        moves = others_moves(self.spec, trajectory) if models_opponents(self.config) else ()
        batch = Batch(
            seen, weight, known, trajectory.first, trajectory.action,
            trajectory.extras["logp"], normal, (returns - offset) / std,
            (value + lacking - offset) / std, pulls, None, moves, trajectory.memory, state.critic_memory,
        )  # fmt: skip
        pace = Pace(self._lr(state), self._entropy(state))
        params, optimiser, metrics = self._fitted({**state.params, **critics}, state.optimiser, batch, pace, key)
        metrics["explained_variance"] = self._explained(returns, value, known)
        metrics |= {"lr": pace.lr, **shares}
        if self.config.entropy_schedule != "constant":
            metrics["entropy_weight"] = pace.entropy
        state = self._moved(state, trajectory, weight, estimates.memories)
        state = state._replace(params=params, optimiser=optimiser, value_moments=stats, paid=paid, magnet=magnet)
        return state, metrics

    def _magnet(self, state: OnPolicyState, trajectory: Trajectory, seen: Observation) -> tuple[PyTree, Any]:
        """The magnet's own parameters, if it has any, and what its networks say [T, B, n, width] for each group."""
        if not self.config.magnet:
            return state.magnet, ()
        own, now = state.magnet, state.params["actor"]
        if _slow_magnet(self.config):
            now = own = jax.tree.map(lambda m, p: m + self.config.magnet_rate * (p - m), own, now)
        return own, tuple(self.actor(now, seen, trajectory.memory, trajectory.first)[0])

    def _compared(
        self, state: OnPolicyState, trajectory: Trajectory, seen: Observation, estimates: ValueEstimates, returns: Array
    ) -> Array:
        """[T, B, N] advantages over what each agent does on average."""
        assert self.choice_critic is not None
        action, std = trajectory.action, estimates.scale[1]
        beyond = self.choice_critic.values(state.params["choice"], seen, action) * std[:, None]
        values = estimates.value[..., None] + beyond
        pi = self._choices(state.params["actor"], seen, trajectory)
        return counterfactual(values, pi, action, returns if self.config.counterfactual == "return" else None)

    def _fitted(
        self, params: PyTree, optimiser: PyTree, batch: Batch, pace: Pace, key: Array
    ) -> tuple[PyTree, PyTree, dict[str, Array]]:
        """All networks after a rollout: policies and critics in epochs, critics of choices beside them."""
        if self.choice_critic is None:
            return self._epochs(params, optimiser, batch, pace, key)
        fitted = self.choice_critic.fit(
            self.optimiser, (params["choice"], optimiser["choice"]),
            (batch.seen, batch.action, batch.target - batch.value, batch.weight),
            self.config.epochs * self.config.minibatches, pace.lr, jax.random.fold_in(key, 1),
        )  # fmt: skip
        rest = [{name: tree[name] for name in tree if name != "choice"} for tree in (params, optimiser)]
        params, optimiser, metrics = self._epochs(rest[0], rest[1], batch, pace, key)
        return {**params, "choice": fitted[0]}, {**optimiser, "choice": fitted[1]}, metrics

    def _epochs(
        self, params: PyTree, optimiser: PyTree, batch: Batch, pace: Pace, key: Array, loss: Any = None
    ) -> tuple[PyTree, PyTree, dict[str, Array]]:
        """Several passes over the batch, environments shuffled into minibatches anew for each.

        loss: (params, minibatch, weight of the entropy bonus) -> (loss, metrics), by default that of all networks.
        """
        parts, envs = self.config.minibatches, self.envs
        arrays, memories = batch[:-2], batch[-2:]
        arrays = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), arrays)
        gradient = jax.value_and_grad(loss or self._loss, has_aux=True)

        def minibatch(carry: tuple[PyTree, PyTree], part: Batch) -> tuple[tuple[PyTree, PyTree], dict[str, Array]]:
            params, optimiser = carry
            (_, metrics), grads = gradient(params, part, pace.entropy)
            if "actor" in grads:
                metrics["grad_norm"] = optax.tree.norm(grads["actor"])
            both = {
                name: descend(self.optimiser, params[name], optimiser[name], grads[name], pace.lr) for name in params
            }
            after = tuple({name: pair[i] for name, pair in both.items()} for i in (0, 1))
            return (after[0], after[1]), metrics

        def epoch(carry: tuple[PyTree, PyTree], key: Array) -> tuple[tuple[PyTree, PyTree], dict[str, Array]]:
            order = jax.random.permutation(key, envs) if parts > 1 else None
            pick = (lambda x: x[order]) if parts > 1 else (lambda x: x)
            split = jax.tree.map(lambda x: pick(x).reshape(parts, envs // parts, *x.shape[1:]), (arrays, memories))
            split = spread(split, axis=1)
            carry, metrics = jax.lax.scan(minibatch, carry, Batch._make((*split[0], *split[1])))
            return carry, jax.tree.map(jnp.mean, metrics)

        def guarded(carry: tuple[Any, Array], key: Array) -> tuple[tuple[Any, Array], tuple[dict[str, Array], Array]]:
            state, going = carry
            zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(epoch, state, key)[1])
            state, metrics = jax.lax.cond(going, epoch, lambda s, _: (s, zeros), state, key)
            return (state, going & (metrics["approx_kl"] <= self.config.target_kl)), (metrics, going)

        keys = jax.random.split(key, self.config.epochs)
        carry = (params, optimiser)
        if self.config.target_kl is None:
            carry, metrics = jax.lax.scan(epoch, carry, keys)
            return *carry, jax.tree.map(jnp.mean, metrics)
        (carry, _), (metrics, ran) = jax.lax.scan(guarded, (carry, jnp.bool_(True)), keys)
        metrics = jax.tree.map(lambda m: (m * ran).sum() / ran.sum(), metrics)
        return *carry, {**metrics, "epochs": ran.sum().astype(jnp.float32)}

    def _loss(self, params: PyTree, batch: Batch, bonus_weight: Array) -> tuple[Array, dict[str, Array]]:
        """The clipped surrogate and the value error of one minibatch, each group's mean added up."""
        batch, first = self._in_time(batch)
        outs, foreseen = self._outputs(params["actor"], batch, first)
        values, _ = self._values(params["critic"], batch.seen, batch.critic_memory, first)
        total = jnp.float32(0)
        rows: list[dict[str, Array]] = []
        for g, (group, head, out) in enumerate(zip(self.groups, self.heads, outs, strict=True)):
            loss, told = self._policy_loss(g, out, batch, bonus_weight)
            value, target, old = (take(x, group, 2).reshape(-1) for x in (values, batch.target, batch.value))
            known = None if batch.known is None else take(batch.known, group, 2).reshape(-1)
            told["value_loss"] = mean(self._value_error(value, target, old), known)
            total = total + loss + told["value_loss"]
            weight = None if batch.weight is None else take(batch.weight, group, 2)
            if batch.magnet:
                apart = head.kl(out, batch.magnet[g], legal(group, batch.seen.avail))
                total = total + self.config.magnet * mean(apart, weight)
            if foreseen:
                more, said = foreseen_loss(
                    self.spec, self.config, group, foreseen[g], batch.moves, target, known, weight, batch.seen
                )
                total, told = total + more, told | said
            rows.append(told)
        return total, {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}  # type: ignore[misc]

    def _policy_loss(self, g: int, out: Array, batch: Batch, bonus_weight: Array) -> tuple[Array, dict[str, Array]]:
        """The clipped surrogate of one group, each step times its factor, and the entropy bonus; metrics of both."""
        group = self.groups[g]
        logp, entropy = self._chosen(group, self.heads[g], out, batch.action, batch.seen.avail)
        old, advantage = (take(x, group, 2).reshape(-1) for x in (batch.logp, batch.advantage))
        weight = None if batch.weight is None else take(batch.weight, group, 2).reshape(-1)
        surrogate, log_ratio, clipped = self._surrogate(logp, old, advantage)
        if batch.factor is not None:
            surrogate = jnp.repeat(batch.factor.reshape(-1), group.size) * surrogate
        policy_loss, bonus = -mean(surrogate, weight), mean(entropy, weight)
        metrics = {
            "policy_loss": policy_loss,
            "entropy": bonus,
            "approx_kl": mean(jnp.exp(log_ratio) - 1 - log_ratio, weight),
            "clip_fraction": mean(clipped, weight),
        }
        return policy_loss - bonus_weight * bonus, metrics

    def _outputs(self, actor: PyTree, batch: Batch, first: Array | None) -> tuple[list[Array], list[Array]]:
        """What each group's policy says of a minibatch and, where that is learned, what it predicts of others."""
        given = actor, batch.seen, batch.actor_memory, first
        return self.actor.foresee(*given) if foreseen_size(self.spec, self.config) else (self.actor(*given)[0], [])

    def _in_time(self, batch: Batch) -> tuple[Batch, Array | None]:
        """A minibatch with axes [T, B] again and its `first`, where networks follow the steps in order."""
        if not self.recurrent:
            return batch, None
        batch = Batch._make((*jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), batch[:-2]), *batch[-2:]))
        return batch, batch.first

    def _surrogate(self, logp: Array, old: Array, advantage: Array) -> tuple[Array, Array, Array]:
        log_ratio = logp - old
        ratio = jnp.exp(log_ratio)
        if self.config.clip is None:
            return ratio * advantage, log_ratio, jnp.zeros_like(ratio)
        eps = self.config.clip
        clipped = jnp.clip(ratio, 1 - eps, 1 + eps)
        return jnp.minimum(ratio * advantage, clipped * advantage), log_ratio, (jnp.abs(ratio - 1) > eps) * 1.0

    def _value_error(self, value: Array, target: Array, old: Array) -> Array:
        error = 0.5 * (value - target) ** 2
        if self.config.value_clip is None:
            return error
        clipped = old + jnp.clip(value - old, -self.config.value_clip, self.config.value_clip)
        return jnp.maximum(error, 0.5 * (clipped - target) ** 2)
