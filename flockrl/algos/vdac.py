"""VDAC: an actor-critic whose agents' values make up the team's, as a sum or mixed monotonically.

Su, Adams and Beling 2021 (arXiv 2007.12306).

    V_tot(s) = sum_i V_i(o_i),  or a monotonic function of all V_i that depends on s

All agents learn from the advantage of the team, by V_tot; the gradient of its error divides it among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp

from flockrl.algos.family import Family
from flockrl.algos.happo import check_team
from flockrl.algos.on_policy import OnPolicyState
from flockrl.algos.parts import as_team, joint
from flockrl.algos.ppo import _PPO, PPOConfig
from flockrl.core.errors import UsageError
from flockrl.core.settings import check_numbers
from flockrl.core.types import Algorithm, Array, EnvSpec, Metrics, Observation, PyTree, Trajectory
from flockrl.nets.mixers import Joint, Monotonic, Sum


@dataclass(frozen=True)
class VDACConfig(PPOConfig):
    """Settings of VDAC; without further settings it is an advantage actor-critic."""

    critic: Literal["own", "central", "agent"] = "own"
    """What the critic of each agent reads: its own observation, the global state (else all observations), or both."""
    mixer: Literal["sum", "monotonic"] = "sum"
    """How the agents' values make the team's: their sum, or a monotonic function that depends on the global state."""
    mixer_size: int = 32
    """Size of the mixer's hidden layers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, "mixer_size", least=1)
        if self.credit != "none":
            raise UsageError("vdac divides the team's value itself: use --credit none, or mappo.")


def make(spec: EnvSpec, config: VDACConfig, *, envs: int, updates: int) -> Algorithm:
    """Build the learner for `envs` parallel environments and a run of `updates` updates."""
    return VDAC(spec, config, envs, updates).algorithm()


FAMILY = Family(
    make, VDACConfig, on_policy=True, logp=True, factorised=True, bonus="advantage", central=lambda config: True
)


class VDAC(_PPO):
    """PPO's critics and, as the last of them, {"mixer": its parameters, "units": {"scale", "shift"}}."""

    def __init__(self, spec: EnvSpec, config: VDACConfig, envs: int, updates: int):
        check_team(spec, "vdac and vdac_mix", "vdac")
        super().__init__(spec, config, envs, updates)
        self.mixer: Any = Sum() if config.mixer == "sum" else Monotonic(config.mixer_size, config.mixer_size)

    def init(self, key: Array) -> OnPolicyState:
        state, spec = super().init(key), self.spec
        own = jnp.zeros((1, 1, spec.num_agents))
        blank = Joint(own, own, own[..., None], jnp.zeros((1, 1, spec.central_size)))
        mixer = self.mixer.init(jax.random.fold_in(key, 2), blank).get("params", {})
        net = {"mixer": mixer, "units": {"scale": jnp.float32(1), "shift": jnp.float32(0)}}
        params = {**state.params, "critic": (*state.params["critic"], net)}
        optimiser = {**state.optimiser, "critic": (*state.optimiser["critic"], self.optimiser.init(net))}
        return state._replace(params=params, optimiser=optimiser)

    def update(self, state: OnPolicyState, trajectory: Trajectory, key: Array) -> tuple[OnPolicyState, Metrics]:
        return super().update(state, as_team(trajectory), key)

    def _values(self, params: PyTree, seen: Observation, memory: PyTree, first: Array | None) -> tuple[Array, PyTree]:
        """[..., N] the team's value, for everyone."""
        own, memories = super()._values(params[:-1], seen, memory, first)
        whole = Joint(own, own, own[..., None], joint(self.spec, seen.obs, seen.state))
        total = self.mixer.apply({"params": params[-1]["mixer"]}, whole)
        units = jax.lax.stop_gradient(params[-1]["units"])
        value = total * units["scale"] + units["shift"]
        return jnp.broadcast_to(value[..., None], own.shape), memories

    def _popart(self, critic: PyTree, std: Array, mean: Array, new_std: Array, new_mean: Array) -> PyTree:
        """The units that follow the mixer take up the change, so that the team's values do not move."""
        if not self.config.normalize_value:
            return critic
        *own, net = critic
        ratio, units = std[0] / new_std[0], net["units"]
        shift = ratio * units["shift"] + (mean[0] - new_mean[0]) / new_std[0]
        return (*own, {**net, "units": {"scale": ratio * units["scale"], "shift": shift}})
