"""A model of the team's reward: a network of what the team saw and did, learned from rollouts by regression.

Castellini et al. 2021 (Dr.ReinforceR, arXiv 2012.11258): easier to learn than a value, since nothing is bootstrapped.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.algos.parts import adam, descend, joint
from flockrl.core.types import Array, EnvSpec, PyTree, Trajectory
from flockrl.nets.network import Network
from flockrl.nets.normalisation import Moments, moments, observe


class ModelState(NamedTuple):
    """params, optimiser: of the network; paid: moments [1] of rewards, in whose units it predicts; seen: moments of
    what it reads."""

    params: PyTree
    optimiser: PyTree
    paid: Moments
    seen: Moments


class RewardModel:
    """Holds what is static. Its methods are pure."""

    def __init__(self, spec: EnvSpec, config: Any, envs: int):
        self.spec, self.config, self.envs = spec, config, envs
        self.net = Network(config.hidden, 1, "relu")
        self.optimiser = adam(None, eps=1e-8)
        self.parts = next(n for n in (4, 3, 2, 1) if envs % n == 0)

    def init(self, key: Array) -> ModelState:
        spec = self.spec
        size = spec.central_size
        x = jnp.zeros((1, size + spec.num_agents * spec.action_size))
        params = self.net.init(key, x)["params"]
        return ModelState(params, self.optimiser.init(params), moments((1,)), moments((1, size)))

    def reads(self, trajectory: Trajectory) -> Array:
        """[T, B, S] the global state, or all observations."""
        return joint(self.spec, trajectory.obs, trajectory.state)

    def predict(self, model: ModelState, seen: Array, action: Array) -> Array:
        """[...] the team's reward of actions [..., N] in what was seen [..., S]."""
        return self._raw(model, model.params, seen, action) * model.paid.std[0] + model.paid.mean[0]

    def _raw(self, model: ModelState, params: PyTree, seen: Array, action: Array) -> Array:
        does = jax.nn.one_hot(action, self.spec.action_size).reshape(*action.shape[:-1], -1)
        seen = jnp.clip((seen - model.seen.mean[0]) / model.seen.std[0], -10.0, 10.0)
        out: Any = self.net.apply({"params": params}, jnp.concatenate([seen, does], -1)[..., None, :])
        return out[0][..., 0, 0]

    def learn(self, model: ModelState, trajectory: Trajectory, key: Array) -> tuple[ModelState, Array]:
        """The model after a few passes over a rollout, and the part of the rewards' variance that it had explained
        before."""
        seen, paid = self.reads(trajectory), trajectory.reward.mean(-1)
        guess = self.predict(model, seen, trajectory.action)
        told = 1 - ((paid - guess) ** 2).mean() / (paid.var() + 1e-8)
        one = np.zeros(1, np.int32)
        model = model._replace(
            paid=observe(model.paid, paid[..., None], None, one, slowest=0.01),
            seen=observe(model.seen, seen[:, :, None], None, one, slowest=0.01),
        )
        target = (paid - model.paid.mean[0]) / model.paid.std[0]
        rows = tuple(jnp.swapaxes(x, 0, 1) for x in (seen, trajectory.action, target))

        def loss(params: PyTree, part: tuple[Array, Array, Array]) -> Array:
            return 0.5 * ((self._raw(model, params, *part[:2]) - part[2]) ** 2).mean()

        def minibatch(carry: tuple[PyTree, PyTree], part: Any) -> tuple[tuple[PyTree, PyTree], None]:
            grads = jax.grad(loss)(carry[0], part)
            nets, states = descend(self.optimiser, carry[:1], carry[1:], [grads], jnp.float32(self.config.reward_lr))
            return (nets[0], states[0]), None

        def epoch(carry: tuple[PyTree, PyTree], key: Array) -> tuple[tuple[PyTree, PyTree], None]:
            order = jax.random.permutation(key, self.envs)
            split = jax.tree.map(lambda x: x[order].reshape(self.parts, -1, *x.shape[1:]), rows)
            return jax.lax.scan(minibatch, carry, split)[0], None

        keys = jax.random.split(key, self.config.reward_epochs)
        (params, optimiser), _ = jax.lax.scan(epoch, (model.params, model.optimiser), keys)
        return model._replace(params=params, optimiser=optimiser), told
