"""Teams that divide their reward: learners are paid what each agent added to it, instead of the whole."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from flockrl.algos.credit import (
    asked,
    check_credit,
    credit_metrics,
    instead,
    learns_reward,
    shapley,
    with_each_choice,
    without_each,
)  # fmt: skip
from flockrl.algos.reward_model import ModelState, RewardModel
from flockrl.core.errors import UsageError
from flockrl.core.types import Algorithm, Array, EnvSpec, Metrics, PyTree, Trajectory

MYOPIC = "credit aristocrat credits an action with its immediate reward alone"


class Modelled(NamedTuple):
    """A learner and the model of rewards that it learns from."""

    learner: PyTree
    model: ModelState


def credited(algorithm: Algorithm, spec: EnvSpec, config: Any, envs: int, on_policy: bool) -> Algorithm:
    """The same learner, paid by `config.credit`; as it is where that is none or the learner's own estimator.

    Counterfactual rewards are asked of the environment while it is stepped (`Algorithm.asks`), or told by a model.
    """
    if getattr(config, "credit", "none") == "none":
        return algorithm
    if config.credit == "counterfactual":
        if hasattr(config, "counterfactual"):
            return algorithm
        raise UsageError(
            "credit counterfactual is an advantage of actor-critics: use it with coma, ippo, mappo, ia2c or maa2c."
        )
    check_credit(spec, config, on_policy)
    if config.credit == "aristocrat" and spec.max_steps > 1:  # later steps are worth 0 on average, whatever is done now
        algorithm = algorithm._replace(note=", ".join(filter(None, [algorithm.note, MYOPIC])))
    if learns_reward(spec, config):
        return _modelled(algorithm, spec, config, envs)

    def update(state: PyTree, trajectory: Trajectory, key: Array) -> tuple[PyTree, Metrics]:
        found = {name: trajectory.extras[name] for name in KNOWN if name in trajectory.extras}
        if not found:
            raise UsageError(
                "This experience does not tell what the environment would have paid without an agent: use "
                "credit_reward=learned."
            )
        pi = _choices(algorithm, state, trajectory, config)
        pay, metrics = _pay(spec, trajectory, found, pi)
        state, told = algorithm.update(state, trajectory._replace(reward=pay), key)
        return state, {**told, **metrics}

    return algorithm._replace(update=update, asks=asked(spec, config))


KNOWN = ("counterfactual", "credit", "credit_error")


def _modelled(algorithm: Algorithm, spec: EnvSpec, config: Any, envs: int) -> Algorithm:
    """With a model of rewards, which learns from each rollout before it is asked about it."""
    model = RewardModel(spec, config, envs)
    null = config.null_action or 0

    def init(key: Array) -> Modelled:
        return Modelled(algorithm.init(key), model.init(jax.random.fold_in(key, 1)))

    def ask(learned: ModelState, seen: Array, action: Array, key: Array) -> dict[str, Array]:
        """About one step of one environment."""

        def value(action: Array, present: Array) -> Array:
            return model.predict(learned, seen, jnp.where(present, action, null))

        if config.credit == "shapley":
            values, errors = shapley(value, action, key, config.orderings)
            return {"credit": values, "credit_error": errors}
        if config.credit == "difference":
            return {"counterfactual": without_each(instead(value, null), action)}
        return {"counterfactual": with_each_choice(value, action, spec.action_size)}

    def update(state: Modelled, trajectory: Trajectory, key: Array) -> tuple[Modelled, Metrics]:
        model_key, ask_key = jax.random.split(jax.random.fold_in(key, 1))
        learned, told = model.learn(state.model, trajectory, model_key)
        steps, batch = trajectory.reward.shape[:2]
        keys = jax.random.split(ask_key, (steps, batch))
        rows = model.reads(trajectory), trajectory.action, keys
        each = jax.vmap(lambda *row: ask(learned, *row))
        found = jax.lax.map(lambda row: each(*row), rows)  # step by step: all at once takes too much memory
        pi = _choices(algorithm, state.learner, trajectory, config)
        pay, metrics = _pay(spec, trajectory, found, pi)
        inner, more = algorithm.update(state.learner, trajectory._replace(reward=pay), key)
        return Modelled(inner, learned), {**more, **metrics, "reward_explained": told}

    return algorithm._replace(
        init=init, params=lambda state: algorithm.params(state.learner), update=update,
        critic=algorithm.critic and algorithm.critic.within(lambda state: state.learner),
    )  # fmt: skip


def _choices(algorithm: Algorithm, state: PyTree, trajectory: Trajectory, config: Any) -> Array | None:
    """[T, B, N, A] how likely each choice was, where that is needed."""
    if config.credit != "aristocrat":
        return None
    assert algorithm.choices is not None
    return algorithm.choices(state, trajectory)


def _pay(
    spec: EnvSpec, trajectory: Trajectory, found: dict[str, Array], pi: Array | None
) -> tuple[Array, dict[str, Array]]:
    """[T, B, N] what each agent is paid, and metrics."""
    if "credit" in found:
        pay = found["credit"]
    else:
        other = found["counterfactual"] if pi is None else (pi * found["counterfactual"]).sum(-1)
        pay = trajectory.reward.mean(-1, keepdims=True) - other
    if trajectory.alive is not None:
        pay = jnp.where(trajectory.alive, pay, 0.0)
    metrics = credit_metrics(spec, pay.mean((0, 1)))
    if "credit_error" in found:
        metrics["credit_error"] = found["credit_error"].mean()
    return pay, metrics
