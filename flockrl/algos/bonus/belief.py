"""What a team can tell of the global state: agents earn by what they know, and so by what they tell each other.

    b = 1 - mean over k of (z_k(o_i) - s_k)^2 / d_k^2, mean over those agents i that decide next

A reward of beliefs (Araya-Lopez et al. 2010): z is a model that learns to predict the state after a step from what one
agent observes then, and b the part of the state's variance that it explains, at most 1. All agents earn it. A message
that is an action and shows in what its reader observes (a switch, a mark, a word) is so paid by what the reader learns
from it, before anybody acts on it; `predict_state` is the same for messages that pass gradients. The error is squared,
so that the best prediction is the expected state: an agent cannot earn by claiming more than it knows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.algos.bonus.models import BATCH, HIDDEN
from flockrl.algos.bonus.novelty import Look, Measure
from flockrl.algos.parts import adam, descend, mean
from flockrl.core.actions import has_choice
from flockrl.core.errors import UsageError
from flockrl.core.types import Array, EnvSpec, Metrics, PyTree, Trajectory
from flockrl.nets.network import Network
from flockrl.nets.normalisation import Moments, moments, observe

LR, PASSES = 3e-3, 2
NEWEST = 0.02
"""The least weight of a new rollout in the units of the state."""


class BeliefState(NamedTuple):
    """params, optimiser: of the model; units: moments [1, S] of the state."""

    params: PyTree
    optimiser: PyTree
    units: Moments


class Belief(Measure):
    """One model for all agents, which are told apart by a one-hot beside what they observe."""

    def __init__(self, spec: EnvSpec, entries: str = ""):
        if not spec.state_size:
            raise UsageError(f"bonus belief is about the global state, and {spec.name} has none: use another bonus.")
        self.spec, self.look, self.sees = spec, Look(spec, "state", entries), Look(spec, "own")
        ids = spec.num_agents if spec.num_agents > 1 else 0
        self.net = Network(HIDDEN, self.look.size, "relu", ids=ids, sight=spec.sight)
        self.optimiser = adam(0.5, eps=1e-8)

    def init(self, key: Array) -> BeliefState:
        params = self.net.init(key, jnp.zeros((1, self.spec.num_agents, self.spec.obs_size)))["params"]
        return BeliefState(params, self.optimiser.init(params), moments((1, self.look.size)))

    def learn(self, state: BeliefState, rollout: Trajectory, key: Array) -> tuple[BeliefState, Metrics]:
        target, decides = self.look.then(rollout), self._deciding(rollout)
        units = observe(state.units, target, decides.max(-1, keepdims=True), np.zeros(1, np.int32), slowest=NEWEST)
        rows = [x.reshape(-1, *x.shape[2:]) for x in (self.sees.then(rollout), self._scaled(units, target), decides)]
        count = len(rows[0])
        parts = max(1, count // BATCH)

        def step(carry: tuple[PyTree, PyTree], part: Any) -> tuple[tuple[PyTree, PyTree], Array]:
            seen, target, decides = part
            loss, grads = jax.value_and_grad(lambda p: mean(self._miss(p, seen, target), decides))(carry[0])
            nets, states = descend(self.optimiser, (carry[0],), (carry[1],), (grads,), jnp.float32(LR))
            return (nets[0], states[0]), loss

        def epoch(carry: tuple[PyTree, PyTree], key: Array) -> tuple[tuple[PyTree, PyTree], Array]:
            order = jax.random.permutation(key, count)[: count // parts * parts]
            return jax.lax.scan(step, carry, [x[order].reshape(parts, -1, *x.shape[1:]) for x in rows])

        (params, optimiser), losses = jax.lax.scan(
            epoch, (state.params, state.optimiser), jax.random.split(key, PASSES)
        )
        return BeliefState(params, optimiser, units), {"bonus_model_loss": losses.mean()}

    def own(self, state: BeliefState, rows: Trajectory) -> Array:
        """[..., N] the same for all agents: what those who decide next can tell; where nobody does, as after the end of
        an episode, what those could who decided last, so that ending one neither earns nor costs."""
        next_told, next_any = self._told(state, self.sees.then(rows), self.look.then(rows), self._deciding(rows))
        before = self._choosing(rows.alive, rows.avail, rows.reward.shape)
        told, some = self._told(state, self.sees.now(rows), self.look.now(rows), before)
        paid = jnp.where(next_any, next_told, jnp.where(some, told, 0.0))
        return jnp.broadcast_to(paid, rows.reward.shape)

    def _told(self, state: BeliefState, seen: Array, whole: Array, decides: Array) -> tuple[Array, Array]:
        """[..., 1] the part that is explained, mean over those who decide [..., N], and whether anybody does."""
        miss, count = self._miss(state.params, seen, self._scaled(state.units, whole)), decides.sum(-1, keepdims=True)
        return ((1 - miss) * decides).sum(-1, keepdims=True) / jnp.maximum(count, 1), count > 0

    def _miss(self, params: PyTree, seen: Array, target: Array) -> Array:
        """[..., N] squared errors of what agents that see [..., N, O] predict of [..., 1, S], mean over S."""
        return ((self._predict(params, seen) - target) ** 2).mean(-1)

    def _predict(self, params: PyTree, seen: Array) -> Array:
        """[..., N, S] the state, in its units, by what agents see [..., N, O]."""
        out: Any = self.net.apply({"params": params}, seen)
        return out[0]

    def _scaled(self, units: Moments, state: Array) -> Array:
        """The state [..., 1, S] in units of its deviation: of that of a number, or the typical one where that is
        larger, so that what is rare does not weigh more than what is common."""
        spread = jnp.maximum(units.std, jnp.sqrt((units.std**2).mean(-1, keepdims=True)))
        return (state - units.mean) / spread

    def _deciding(self, rows: Trajectory) -> Array:
        """[..., N] 1 for agents that have a choice after the step."""
        return self._choosing(rows.next_alive, rows.next_avail, rows.reward.shape) * ~rows.terminated

    def _choosing(self, alive: Array | None, avail: Array | None, shape: tuple[int, ...]) -> Array:
        """[..., N] 1 for agents that live and have a choice."""
        able = jnp.ones(shape, bool) if alive is None else alive
        if avail is not None:
            able = able & has_choice(self.spec, avail)
        return able.astype(jnp.float32)
