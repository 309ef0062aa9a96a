"""Who earned a reward: what each agent adds to the team's, from what it would have been without that agent.

A team's reward at one step is a game in the sense of Shapley 1953: `Value(action, present)` is what the team would be
paid if the agents in `present` [N] did their part of `action` [N] and the others did nothing.

    difference  D_i = G(a) - G(a without i)                                  Wolpert and Tumer 2001
    aristocrat  U_i = G(a) - sum_c pi_i(c) G(a with c for a_i)               the same; Castellini et al. 2021
    shapley     phi_i = mean over orders of agents of G(those before i, and i) - G(those before i)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.settings import Part, check_numbers
from flockrl.core.types import Array, EnvSpec, PyTree

Value = Callable[[Array, Array], Array]
"""(action [N], present [N] bool) -> the team's reward, a scalar."""
SHOWN = 16
"""Teams up to this size have the credit of each agent in their metrics; of larger ones the spread is told."""
EXACT = 8
"""Up to this number of agents all coalitions are looked at for Shapley values."""


@dataclass(frozen=True)
class CreditConfig(Part):
    """Settings of what each agent is paid of a team's reward."""

    credit: Literal["none", "difference", "aristocrat", "shapley", "counterfactual"] = "none"
    """What each agent learns from instead of the team's reward: the difference that it made, the difference to what it
    does on average (aristocrat), its Shapley value; or advantages that compare its action with its other ones
    (counterfactual)."""
    credit_reward: Literal["known", "learned"] | None = None
    """Where counterfactual rewards come from: the environment, or a model that learns them; by default the environment
    if it tells them."""
    null_action: int | None = None
    """The choice that stands for doing nothing; by default the agent is taken out where rewards are known, and its
    first choice stands for that where they are learned."""
    orderings: int = 16
    """Orders of agents that Shapley values are averaged over, in teams of more than eight."""
    reward_lr: float = 3e-3
    """Learning rate of the model of rewards."""
    reward_epochs: int = 2
    """Passes over each rollout of the model of rewards."""

    shaping: str = ""
    """A potential that rewards are shaped by, as package.module:function of the spec and what agents see; the best
    policy stays what it is."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, "orderings", least=2)
        check_numbers(self, "reward_epochs", least=1)
        check_numbers(self, "reward_lr", above=0)


def credit_metrics(spec: EnvSpec, each: Array) -> dict[str, Array]:
    """Metrics of what the agents were credited with on average, [N]."""
    metrics = {"credit": each.mean(), "credit_spread": each.std()}
    if spec.num_agents <= SHOWN:
        metrics |= {f"credit_{name}": each[i] for i, name in enumerate(spec.agents)}
    return metrics


def learns_reward(spec: EnvSpec, config: Any) -> bool:
    """Whether counterfactual rewards come from a model that is learned."""
    return config.credit_reward == "learned" or (config.credit_reward is None and not spec.counterfactual)


def check_credit(spec: EnvSpec, config: Any, on_policy: bool) -> None:
    """Refuse credit where it has no meaning, in a sentence that names the way out."""
    kind = f"credit {config.credit}"
    if spec.num_agents == 1:
        raise UsageError(f"{kind} divides a team's reward, and {spec.name} has one agent: use --credit none.")
    if len(set(spec.sides)) > 1:
        raise UsageError(
            f"{kind} divides the reward of one team, and {spec.name} has several sides: give each a learner of its own "
            f"({','.join(f'{side}=ippo' for side in spec.parties)})."
        )
    if not spec.discrete:
        raise UsageError(f"{kind} needs agents that choose one of a number of actions: use --credit none.")
    if config.credit_reward == "known" and not spec.counterfactual:
        raise UsageError(f"{spec.name} does not tell what it would pay without an agent: use --credit-reward learned.")
    if not on_policy and config.credit == "aristocrat":
        raise UsageError(
            f"{kind} follows the policy, and a replay's is an old one: use --credit difference or shapley."
        )
    if not on_policy and learns_reward(spec, config):
        raise UsageError(
            f"{kind} of a learned reward would be stored in the replay and go stale: use ippo or mappo, or an "
            "environment that tells counterfactual rewards."
        )
    if not on_policy and getattr(config, "mixer", "none") != "none":
        raise UsageError(f"{kind} pays agents apart, and a mixer divides the team's reward itself: use iql.")
    least = min(space.size for space in spec.actions)
    if config.null_action is not None and not 0 <= config.null_action < least:
        raise UsageError(f"null_action must be from 0 to {least - 1} in {spec.name}, not {config.null_action}.")


def instead(value: Value, null: int | None) -> Value:
    """The same game where agents that are not present choose `null`, unless that is None."""
    if null is None:
        return value
    return lambda action, present: value(jnp.where(present, action, null), jnp.ones_like(present))


def without_each(value: Value, action: Array) -> Array:
    """[N] the team's reward without each of the agents."""
    agents = action.shape[-1]
    return jax.vmap(lambda present: value(action, present))(~jnp.eye(agents, dtype=bool))


def with_each_choice(value: Value, action: Array, choices: int) -> Array:
    """[N, A] the team's reward if an agent had chosen each action and the others what they chose."""
    agents, everyone = action.shape[-1], jnp.ones(action.shape[-1], bool)

    def one(agent: Array, choice: Array) -> Array:
        return value(jnp.where(jnp.arange(agents) == agent, choice, action), everyone)

    every = jax.vmap(lambda agent: jax.vmap(lambda choice: one(agent, choice))(jnp.arange(choices)))
    return every(jnp.arange(agents))


def shapley(value: Value, action: Array, key: Array, orderings: int) -> tuple[Array, Array]:
    """[N] Shapley values and their standard errors: exact, with error 0, up to `EXACT` agents; else from `orderings`
    random orders."""
    agents = action.shape[-1]
    if agents <= EXACT:
        masks, weights = coalitions(agents)
        return jnp.asarray(weights) @ jax.vmap(lambda present: value(action, present))(masks), jnp.zeros(agents)

    def one(key: Array) -> Array:
        order = jax.random.permutation(key, agents)
        place = jnp.zeros(agents, jnp.int32).at[order].set(jnp.arange(agents))
        worth = jax.vmap(lambda first: value(action, place < first))(jnp.arange(agents + 1))
        return (worth[1:] - worth[:-1])[place]

    found = jax.vmap(one)(jax.random.split(key, orderings))
    return found.mean(0), found.std(0, ddof=1) / math.sqrt(orderings)


def coalitions(agents: int) -> tuple[np.ndarray, np.ndarray]:
    """All coalitions [2^N, N], and the weights [N, 2^N] that turn their worth into Shapley values.

    phi_i = sum over S without i of |S|! (N - |S| - 1)! / N! (v(S and i) - v(S)).
    """
    masks = (np.arange(2**agents)[:, None] >> np.arange(agents)) % 2 == 1
    size = masks.sum(1)
    chance = [math.factorial(s) * math.factorial(agents - s - 1) / math.factorial(agents) for s in range(agents)]
    inside = np.array([0.0, *chance])[size]  # a coalition with i in it has |S| = size - 1
    outside = np.array([*chance, 0.0])[size]
    return masks, np.where(masks.T, inside, -outside).astype(np.float32)


def asked(spec: EnvSpec, config: Any) -> Callable[[Any, PyTree, Array, Array], dict[str, Array]]:
    """What is asked of the environment at each step of a rollout: (env, state, action [N], key) -> what is recorded."""

    def ask(env: Any, state: PyTree, action: Array, key: Array) -> dict[str, Array]:
        def value(action: Array, present: Array) -> Array:
            return jnp.mean(env.counterfactual_reward(state, action, present))

        null, fast = config.null_action, getattr(env, "alternatives", None)
        if config.credit == "shapley":
            values, errors = shapley(instead(value, null), action, key, config.orderings)
            return {"credit": values, "credit_error": errors}
        if config.credit == "difference":
            column = -1 if null is None else null
            found = without_each(instead(value, null), action) if fast is None else fast(state, action)[:, column]
            return {"counterfactual": found}
        size = spec.action_size
        return {
            "counterfactual": with_each_choice(value, action, size) if fast is None else fast(state, action)[:, :-1]
        }

    return ask
