"""MAAC: soft actor-critic whose critics choose by attention which other agents to look at.

Iqbal and Sha 2019 (arXiv 1810.02912).

    Q_i(o, a) = f(o_i, sum_{j != i} w_ij v(o_j, a_j))[a_i],   w_ij = softmax_j(query(o_i) . key(o_j, a_j) / sqrt(d))

A critic has an output for each own action, so that the policy's gradient compares an action with all others exactly, as
COMA's baseline does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from flockrl.algos.family import Family
from flockrl.algos.off_policy_config import JOINT
from flockrl.algos.parts import require_discrete
from flockrl.algos.sac import SAC, SACConfig
from flockrl.core.errors import UsageError
from flockrl.core.groups import Group
from flockrl.core.settings import check_numbers
from flockrl.core.types import Algorithm, Array, EnvSpec
from flockrl.nets.torsos import ACTIVATIONS, Dense


@dataclass(frozen=True)
class MAACConfig(SACConfig):
    """Settings of MAAC: those of SAC for agents that choose, with critics that attend to other agents."""

    critic: Literal["own", "central"] = "central"
    """What a critic reads: all agents' observations and actions (central)."""
    attention_heads: int = 4
    """Heads of the critics' attention, which must divide their last hidden layer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, "attention_heads", least=1)
        if self.hidden[-1] % self.attention_heads:
            raise UsageError(
                f"attention_heads ({self.attention_heads}) must divide the last hidden layer ({self.hidden[-1]}): "
                "change one."
            )
        if self.critic != "central":
            raise UsageError("The critics of maac look at all agents: use --critic central, or isac.")
        if self.memory != "none" or self.kernel is not None:
            raise UsageError("The critics of maac have neither memory nor hidden layers of your own: use masac.")


def make(spec: EnvSpec, config: MAACConfig, *, envs: int, updates: int) -> Algorithm:
    """Build the learner for `envs` parallel environments and a run of `updates` iterations."""
    require_discrete(spec, "maac")
    if spec.num_agents == 1:
        raise UsageError(f"The critics of maac look at other agents, and {spec.name} has one: use sac.")
    return MAAC(spec, config, envs, updates).algorithm()


FAMILY = Family(make, MAACConfig, continuous=False, **JOINT)


class AttentionCritic(nn.Module):
    """Values [..., n, A] of all choices of the agents at `agents`, from observations [..., N, O] and actions as codes
    [..., N, A], of which the own ones are not read."""

    agents: tuple[int, ...]
    size: int
    heads: int
    outputs: int
    activation: Any

    @nn.compact
    def __call__(
        self, obs: Array, memory: Any = (), first: Any = None, beside: Array | None = None
    ) -> tuple[Array, Any]:
        assert beside is not None
        act, count = ACTIVATIONS[self.activation], obs.shape[-2]
        who = jnp.broadcast_to(jnp.eye(count), (*obs.shape[:-1], count))
        own = act(Dense(self.size, 2.0**0.5, name="own")(jnp.concatenate([obs, who], -1)))
        does = act(Dense(self.size, 2.0**0.5, name="other")(jnp.concatenate([obs, who, beside], -1)))
        query, key = Dense(self.size, 1.0, name="query")(own), Dense(self.size, 1.0, name="key")(does)
        value = act(Dense(self.size, 2.0**0.5, name="value")(does))
        query, key, value = (x.reshape(*x.shape[:-1], self.heads, -1) for x in (query, key, value))
        scores = jnp.einsum("...ihd,...jhd->...hij", query, key) / np.sqrt(self.size / self.heads)
        weight = jax.nn.softmax(jnp.where(np.eye(count, dtype=bool), -1e9, scores))  # nobody looks at itself
        heard = jnp.einsum("...hij,...jhd->...ihd", weight, value).reshape(own.shape)
        x = jnp.concatenate([own, heard], -1)[..., np.array(self.agents), :]
        x = act(Dense(self.size, 2.0**0.5, name="joined")(x))
        return Dense(self.outputs, 1.0, name="head")(x), ()


class MAAC(SAC):
    """SAC whose critics read observations and codes of all agents as they are."""

    def __init__(self, spec: EnvSpec, config: MAACConfig, envs: int, updates: int):
        super().__init__(spec, config, envs, updates)
        size, heads = config.hidden[-1], config.attention_heads
        self.critics: list[Any] = [
            AttentionCritic(group.agents, size, heads, group.action_size, config.activation)
            for group in self.groups
            for _ in range(self.twins)
        ]

    def _observed(self, group: Group, obs: Array, state: Array | None) -> Array:
        return obs

    def _actions(self, group: Group, action: Array) -> Array:
        return action

    def _reads(self, group: Group, action: Array) -> Array:
        return action
