"""HATRPO: agents that share nothing take steps of a bounded divergence, one after the other. With one agent, TRPO.

Kuba et al. 2022 (arXiv 2109.11251), Schulman et al. 2015 (arXiv 1502.05477).

    maximise L(p) = E[M r A]  subject to  E[KL(pi_old || pi_p)] <= delta

The step is s = H^-1 g scaled to sqrt(2 delta / s' H s), with g the gradient of L and H the Hessian of the divergence;
it is shortened until L grows by at least a part of what g promised and the divergence stays below delta, or not taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from flockrl.algos.family import Family
from flockrl.algos.happo import HAPPO, HAPPOConfig
from flockrl.algos.parts import mean
from flockrl.algos.ppo import Batch, Pace
from flockrl.core.errors import UsageError
from flockrl.core.groups import take
from flockrl.core.settings import check_numbers
from flockrl.core.types import Algorithm, Array, EnvSpec, PyTree
from flockrl.policies.stochastic import legal

SHORTER, ENOUGH = 0.8, 0.5
"""What the line search multiplies steps by, and the part of the promised gain that it takes."""


@dataclass(frozen=True)
class HATRPOConfig(HAPPOConfig):
    """Settings of trust regions, one agent after the other; `lr`, epochs and minibatches are the critic's."""

    max_kl: float = 0.005
    """How far each agent's policy may move in an update, as the mean divergence."""
    cg_steps: int = 10
    """Steps of the conjugate gradient method."""
    line_steps: int = 10
    """Lengths that are tried for a step before it is left out."""
    damping: float = 0.1
    """What is added to the Hessian's diagonal."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, "max_kl", above=0)
        check_numbers(self, "cg_steps", "line_steps", least=1)
        check_numbers(self, "damping", least=0)
        if self.entropy != 0:
            raise UsageError(f"entropy must be 0, not {self.entropy}: hatrpo's steps know no bonus. Use happo for one.")
        if self.target_kl is not None:
            raise UsageError("hatrpo bounds how far policies move by max_kl: leave target_kl out.")


def make(spec: EnvSpec, config: HATRPOConfig, *, envs: int, updates: int) -> Algorithm:
    """Build the learner for `envs` parallel environments and a run of `updates` updates."""
    if config.freeze:
        raise UsageError("hatrpo moves all parameters of a policy at once, and cannot freeze some: use happo.")
    return HATRPO(spec, config, envs, updates).algorithm()


FAMILY = Family(
    make, HATRPOConfig, on_policy=True, logp=True, factorised=True, bonus="advantage", central=lambda config: True
)


class HATRPO(HAPPO):
    """HAPPO whose agents take one trust-region step on the whole rollout when it is their turn."""

    def _learn(
        self, g: int, params: PyTree, state: PyTree, batch: Batch, factor: Array, pace: Pace, key: Array
    ) -> tuple[PyTree, PyTree, dict[str, Array]]:
        flat, unravel = ravel_pytree(params)
        group, head, avail = self.groups[g], self.heads[g], batch.seen.avail
        old, advantage = (take(x, group, 2).reshape(-1) for x in (batch.logp, batch.advantage))
        weight = None if batch.weight is None else take(batch.weight, group, 2)
        rows = None if weight is None else weight.reshape(-1)
        worth = jnp.repeat(factor.reshape(-1), group.size) * advantage

        def out(p: Array) -> Array:
            return self.actor.alone(g, unravel(p), batch.seen, batch.actor_memory, batch.first)

        def gain(p: Array) -> tuple[Array, Array]:
            logp, entropy = self._chosen(group, head, out(p), batch.action, avail)
            return mean(jnp.exp(logp - old) * worth, rows), mean(entropy, rows)

        before = jax.lax.stop_gradient(out(flat))

        def kl(p: Array) -> Array:
            return mean(head.kl(before, out(p), legal(group, avail)), weight)

        found, moved, taken = trust_step(gain, kl, flat, self.config)
        metrics = {
            "policy_loss": -gain(found)[0],
            "entropy": gain(found)[1],
            "approx_kl": moved,
            "accepted": taken.astype(jnp.float32),
        }
        return unravel(found), state, metrics


def trust_step(
    gain: Callable[[Array], tuple[Array, Any]], kl: Callable[[Array], Array], start: Array, config: Any
) -> Any:
    """(parameters, their divergence, whether a step was taken) from flat parameters `start`."""
    (value, _), gradient = jax.value_and_grad(gain, has_aux=True)(start)

    def curved(v: Array) -> Array:
        return jax.jvp(jax.grad(kl), (start,), (v,))[1] + config.damping * v

    direction = conjugate_gradient(curved, gradient, config.cg_steps)
    length = jnp.sqrt(2 * config.max_kl / (direction @ curved(direction) + 1e-8))
    full = length * direction

    def shorten(i: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        best, moved, taken = carry
        part = SHORTER**i
        candidate = start + part * full
        grown, apart = gain(candidate)[0] - value, kl(candidate)
        good = (apart < config.max_kl) & (grown > 0) & (grown > ENOUGH * part * (gradient @ full)) & ~taken
        return jnp.where(good, candidate, best), jnp.where(good, apart, moved), taken | good

    nothing = start, jnp.float32(0), jnp.bool_(False)
    return jax.lax.fori_loop(0, config.line_steps, shorten, nothing)


def conjugate_gradient(product: Callable[[Array], Array], target: Array, steps: int) -> Array:
    """x with product(x) = target, after `steps` steps from 0 or once the residual is nothing (Shewchuk 1994, B2)."""

    def step(carry: tuple[Array, Array, Array, Array], _: None) -> tuple[tuple[Array, Array, Array, Array], None]:
        x, residual, direction, size = carry
        curved = product(direction)
        going = size > 1e-10
        length = jnp.where(going, size / jnp.maximum(direction @ curved, 1e-30), 0.0)
        residual = residual - length * curved
        new = residual @ residual
        turn = jnp.where(going, new / jnp.maximum(size, 1e-30), 0.0)
        return (x + length * direction, residual, residual + turn * direction, new), None

    begin = jnp.zeros_like(target), target, target, target @ target
    return jax.lax.scan(step, begin, None, length=steps)[0][0]
