"""Novelty by what networks do not foresee: random network distillation and intrinsic curiosity.

RND (Burda et al. 2019, arXiv 1810.12894): a network learns to say what a fixed random one says; where it cannot yet, it
has not been. ICM (Pathak et al. 2017, arXiv 1705.05363): features that tell which action was taken, and how badly a
model foresees the next ones. Errors are divided by their running root mean square, so that they are about 1.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.algos.bonus.counts import visits
from flockrl.algos.bonus.novelty import Look, Novelty
from flockrl.algos.parts import adam, descend, mean
from flockrl.core.types import Array, EnvSpec, Metrics, PyTree, Trajectory
from flockrl.nets.actions import ActionCode
from flockrl.nets.network import Network
from flockrl.nets.normalisation import Moments, moments, observe

HIDDEN, FEATURES = (64, 64), 32
LR, FAR = 1e-3, 5.0
"""Learning rate; how many deviations from its mean an input may be."""
PART = 4
"""Models learn from every PART-th step of a rollout, so that they are not done with it too soon."""
BATCH = 512
"""Rows of a gradient step, about."""
INVERSE = 0.8
"""Weight of telling the action in the loss of ICM; the rest is that of the forward model."""


class ModelState(NamedTuple):
    """params, optimiser: leaves [K, ...], a model for each row of the look; fixed: what does not learn. inputs: moments
    [K, F] of what is looked at; errors: [K] of the squared errors."""

    params: PyTree
    optimiser: PyTree
    fixed: PyTree
    inputs: Moments
    errors: Moments


class Foreseeing(Novelty):
    """K models of one form. Subclasses say what they foresee, of columns that `_columns` takes from a rollout."""

    def __init__(self, spec: EnvSpec, look: Look):
        self.spec, self.look = spec, look
        self.sight = spec.sight if look.whole else type(spec.sight)()
        self.optimiser = adam(None, eps=1e-8)

    @abstractmethod
    def _fresh(self, key: Array) -> tuple[PyTree, PyTree]:
        """Parameters of one model, and what does not learn."""

    @abstractmethod
    def _columns(self, state: ModelState, rows: Trajectory) -> Sequence[Array]:
        """[..., K, F] of each column that errors depend on."""

    @abstractmethod
    def _errors(self, params: PyTree, fixed: PyTree, columns: Sequence[Array]) -> tuple[Array, Array]:
        """[R] what one model did not foresee in rows [R, F], and what it should have less of."""

    def init(self, key: Array) -> ModelState:
        rows = self.look.rows
        fresh = [self._fresh(k) for k in jax.random.split(key, rows)]
        params = jax.tree.map(lambda *x: jnp.stack(x), *(pair[0] for pair in fresh))
        optimiser = jax.vmap(self.optimiser.init)(params)
        return ModelState(params, optimiser, fresh[0][1], moments((rows, self.look.size)), moments((rows,)))

    def _normal(self, state: ModelState, x: Array) -> Array:
        """What is looked at in units of its deviation, within bounds; pictures as they are."""
        if self.sight.pictures:
            return x
        return jnp.clip((x - state.inputs.mean) / state.inputs.std, -FAR, FAR) * self.look.reads

    def _flat(self, columns: Sequence[Array]) -> list[Array]:
        """Columns as [K, R, F]."""
        return [jnp.moveaxis(c.reshape(-1, *c.shape[-2:]), 1, 0) for c in columns]

    def learn(self, state: ModelState, rollout: Trajectory, key: Array) -> tuple[ModelState, Metrics]:
        there, each = visits(self.look, rollout), np.arange(self.look.rows)
        inputs = observe(state.inputs, self.look.then(rollout), there, each, slowest=0.0)
        state = state._replace(inputs=inputs)
        steps, envs = rollout.reward.shape[:2]
        chosen = jnp.arange(max(steps // PART, 1)) * PART + jax.random.randint(key, (), 0, min(PART, steps))
        some: Trajectory = jax.tree.map(lambda x: x[chosen % steps], rollout._replace(memory=(), extras={}))
        columns = self._flat(self._columns(state, some))
        weight = self._flat([there[chosen % steps][..., None]])[0][..., 0]
        rows = len(chosen) * envs
        parts = max(1, min(rows // BATCH, rows))
        columns, weight = jax.tree.map(lambda x: self._split(x, parts), (columns, weight))

        def step(carry: tuple[PyTree, PyTree], part: Any) -> tuple[tuple[PyTree, PyTree], tuple[Array, Array]]:
            params, optimiser = carry
            (_, told), grads = jax.value_and_grad(self._loss, has_aux=True)(params, state.fixed, *part)
            nets, states = jax.vmap(self._descend)(params, optimiser, grads)
            return (nets, states), told

        (params, optimiser), (loss, square) = jax.lax.scan(step, (state.params, state.optimiser), (columns, weight))
        seen = square.mean(0)[None, None]  # squared errors before the steps, [1, 1, K]
        errors = observe(state.errors, seen, None, each, slowest=0.01)
        after = state._replace(params=params, optimiser=optimiser, errors=errors)
        return after, {"bonus_model_loss": loss.mean()}

    def _split(self, x: Array, parts: int) -> Array:
        """[parts, K, R / parts, ...] of [K, R, ...]; a rest that does not fill a part is left out."""
        size = x.shape[1] // parts
        return jnp.moveaxis(x[:, : size * parts].reshape(len(x), parts, size, *x.shape[2:]), 1, 0)

    def _descend(self, params: PyTree, optimiser: PyTree, grads: PyTree) -> tuple[PyTree, PyTree]:
        nets, states = descend(self.optimiser, (params,), (optimiser,), (grads,), jnp.float32(LR))
        return nets[0], states[0]

    def _loss(
        self, params: PyTree, fixed: PyTree, columns: Sequence[Array], weight: Array
    ) -> tuple[Array, tuple[Array, Array]]:
        """The models' losses added up; their mean, and the squared errors of each [K]."""
        error, loss = jax.vmap(self._errors, (0, None, 0))(params, fixed, columns)
        each, square = jax.vmap(mean)(loss, weight), jax.vmap(mean)(error**2, weight)
        return each.sum(), (each.mean(), square)

    def own(self, state: ModelState, rows: Trajectory) -> Array:
        columns = self._columns(state, rows)
        error = jax.vmap(self._errors, (0, None, 0))(state.params, state.fixed, self._flat(columns))[0]
        return self._scaled(state, jnp.moveaxis(error, 0, -1)).reshape(columns[0].shape[:-1])

    def cross(self, state: ModelState, rows: Trajectory) -> Array:
        columns = self._columns(state, rows)
        flat = [c.reshape(-1, c.shape[-1]) for c in columns]
        error = jax.vmap(self._errors, (0, None, None))(state.params, state.fixed, flat)[0]  # [K, R K]
        each = jnp.moveaxis(error.reshape(len(error), *columns[0].shape[:-1]), 0, -1)  # [..., i, j]
        return jnp.swapaxes(self._scaled(state, each), -1, -2)

    def _scaled(self, state: ModelState, error: Array) -> Array:
        """Errors [..., K] of each model in units of its own."""
        return error / jnp.sqrt(state.errors.mean + 1e-8)


class RND(Foreseeing):
    """Random network distillation on what followed each step."""

    def __init__(self, spec: EnvSpec, look: Look):
        super().__init__(spec, look)
        self.net = Network(HIDDEN, FEATURES, "relu", sight=self.sight)

    def _fresh(self, key: Array) -> tuple[PyTree, PyTree]:
        blank, other = jnp.zeros((1, self.look.size)), jax.random.fold_in(key, 1)
        return self.net.init(key, blank)["params"], self.net.init(other, blank)["params"]

    def _columns(self, state: ModelState, rows: Trajectory) -> Sequence[Array]:
        return [self._normal(state, self.look.then(rows))]

    def _errors(self, params: PyTree, fixed: PyTree, columns: Sequence[Array]) -> tuple[Array, Array]:
        says: Any = self.net.apply({"params": params}, columns[0])
        should: Any = self.net.apply({"params": fixed}, columns[0])
        error = ((says[0] - jax.lax.stop_gradient(should[0])) ** 2).mean(-1)
        return error, error


class ICM(Foreseeing):
    """The intrinsic curiosity module: what followed a step and was not foreseen from what was there and done.

    Actions are read as codes (one-hot, or real numbers from -1 to 1), and told by the squared error of those.
    """

    def __init__(self, spec: EnvSpec, look: Look):
        super().__init__(spec, look)
        self.code = ActionCode(spec)
        self.actions = spec.action_size * (1 if look.on == "own" else spec.num_agents)
        self.eye = Network(HIDDEN[:1], FEATURES, "relu", sight=self.sight)
        self.ahead = Network(HIDDEN[:1], FEATURES, "relu")
        self.back = Network(HIDDEN[:1], self.actions, "relu")

    def _fresh(self, key: Array) -> tuple[PyTree, PyTree]:
        keys, seen, does = jax.random.split(key, 3), jnp.zeros((1, FEATURES)), jnp.zeros((1, self.actions))
        return {
            "eye": self.eye.init(keys[0], jnp.zeros((1, self.look.size)))["params"],
            "ahead": self.ahead.init(keys[1], jnp.concatenate([seen, does], -1))["params"],
            "back": self.back.init(keys[2], jnp.concatenate([seen, seen], -1))["params"],
        }, ()

    def _columns(self, state: ModelState, rows: Trajectory) -> Sequence[Array]:
        code = self.code.encode(rows.action)
        if self.look.on != "own":
            code = code.reshape(*code.shape[:-2], 1, -1)
        return [self._normal(state, self.look.now(rows)), self._normal(state, self.look.then(rows)), code]

    def _errors(self, params: PyTree, fixed: PyTree, columns: Sequence[Array]) -> tuple[Array, Array]:
        now, then, code = columns
        before, after = (self._apply(self.eye, params["eye"], x) for x in (now, then))
        told = self._apply(self.back, params["back"], jnp.concatenate([before, after], -1))
        hold = jax.lax.stop_gradient
        foreseen = self._apply(self.ahead, params["ahead"], jnp.concatenate([hold(before), code], -1))
        error = 0.5 * ((foreseen - hold(after)) ** 2).sum(-1)
        return error, (1 - INVERSE) * error + INVERSE * ((told - code) ** 2).sum(-1)

    def _apply(self, net: Network, params: PyTree, x: Array) -> Array:
        out: Any = net.apply({"params": params}, x)
        return out[0]
