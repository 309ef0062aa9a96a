"""Roles: sets of actions that do similar things, found by clustering what actions do, one for each agent at a time.

After Wang et al. 2021 (RODE, arXiv 2010.01523). A network learns what an action does: from an agent's observation o and
its action a it foresees how the observation changes and what is paid. An action is then the vector of what is foreseen
of it for many observations, in units of how much each number varies, and k-means finds groups of such vectors: no
number of an action and no name of an environment enters. A manager chooses roles, and workers the actions that their
role allows. Until groups are known, every role allows everything.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from flockrl.algos.goals import sees_more, spread
from flockrl.algos.parts import adam
from flockrl.core.errors import UsageError
from flockrl.core.types import Array, EnvSpec, Metrics, Observation, PyTree, Trajectory
from flockrl.nets.torsos import MLP, Dense

SAMPLES, STEPS, LR, PLACES = 512, 16, 3e-3, 128
"""Transitions of a gradient step, gradient steps of an update, their learning rate, and the observations at which
actions are compared."""
ROUNDS = 20
"""Rounds of k-means."""


class Effects(NamedTuple):
    """What is known of actions. net: parameters, with their optimiser; scale: [O + 1] how much each number varies, 0
    where it never did; allows: [K, A] which actions belong to each role; updates: so far."""

    net: PyTree
    optimiser: PyTree
    scale: Array
    allows: Array
    updates: Array


class RoleGoals:
    """Goals are roles. Workers see theirs as one of K flags, may do what it allows, and are paid by the environment."""

    learned = True
    chosen = ""

    def __init__(self, spec: EnvSpec, count: int, after: float, updates: int):
        sizes = {(box.size, space) for box, space in zip(spec.observations, spec.actions, strict=True)}
        if not spec.discrete or len(sizes) > 1 or spec.sight.pictures:
            raise UsageError(
                f"Roles are sets of actions that agents of one kind choose from, who see numbers: those of {spec.name} "
                "are not."
            )
        if count > spec.action_size:
            raise UsageError(f"There are {spec.action_size} actions in {spec.name}, too few for {count} roles.")
        self.count, self.actions, self.size = count, spec.action_size, spec.obs_size
        self.work = sees_more(spec, count)
        self.due = max(1, round(after * updates))
        """The update after which actions are put into groups."""
        self.body, self.head = MLP((64, 64)), Dense(self.size + 1, 1.0)
        self.optimiser = adam(1.0, eps=1e-8)

    # What workers see

    def show(self, params: PyTree, seen: Observation, goal: Array) -> Observation:
        """What workers see who have these roles [..., N], and what they may do; all that is legal where a role allows
        nothing of it."""
        may = params[goal]
        if seen.avail is not None:
            may = jnp.where((may & seen.avail).any(-1, keepdims=True), may & seen.avail, seen.avail)
        flags = jax.nn.one_hot(goal, self.count)
        return seen._replace(obs=jnp.concatenate([seen.obs, flags], -1), avail=may)

    def pay(self, trajectory: Trajectory, goal: Array) -> Array:
        return trajectory.reward

    def measures(self, trajectory: Trajectory, goal: Array, decides: Array) -> Metrics:
        """Beside what `spread` tells, the mutual information of roles and actions in nats."""
        code = (
            jax.nn.one_hot(goal, self.count)[..., None] * jax.nn.one_hot(trajectory.action, self.actions)[..., None, :]
        )
        both = code.mean((0, 1, 2))
        alone = both.sum(1, keepdims=True) * both.sum(0, keepdims=True)
        shared = jnp.where(both > 0, both * jnp.log(jnp.maximum(both, 1e-9) / jnp.maximum(alone, 1e-9)), 0.0).sum()
        found = {f"role_{name}": x for name, x in spread(trajectory, goal, self.count).items()}
        return {**found, "role_information": shared}

    # What actions do

    def init(self, key: Array) -> Effects:
        keys = jax.random.split(key)
        body = self.body.init(keys[0], jnp.zeros((1, self.size + self.actions)))
        net = {"body": body, "head": self.head.init(keys[1], jnp.zeros((1, 64)))}
        every = jnp.ones((self.count, self.actions), bool)
        return Effects(net, self.optimiser.init(net), jnp.zeros(self.size + 1), every, jnp.int32(0))

    def params(self, state: Effects) -> Array:
        return state.allows

    def foresee(self, net: PyTree, obs: Array, action: Array) -> Array:
        """[..., O + 1] how observations [..., O] change by actions [...], and what is paid, in units of `scale`."""
        read = jnp.concatenate([obs, jax.nn.one_hot(action, self.actions)], -1)
        return self.head.apply(net["head"], self.body.apply(net["body"], read))  # type: ignore[return-value]

    def learn(self, state: Effects, trajectory: Trajectory, key: Array) -> tuple[Effects, Metrics]:
        """Learn what actions do until it is time to put them into groups."""
        obs = trajectory.obs.reshape(-1, self.size)
        action = trajectory.action.reshape(-1)
        change = (trajectory.next_obs - trajectory.obs).reshape(-1, self.size)
        effect = jnp.concatenate([change, trajectory.reward.reshape(-1, 1)], -1)
        weight = trajectory.weight.reshape(-1)

        def study() -> tuple[Effects, Array]:
            scale = jnp.maximum(state.scale, effect.std(0))
            target = jnp.where(scale > 1e-6, effect / jnp.maximum(scale, 1e-6), 0.0)

            def loss(net: PyTree, at: Array) -> Array:
                error = ((self.foresee(net, obs[at], action[at]) - target[at]) ** 2).mean(-1)
                return (error * weight[at]).mean()

            def step(carry: tuple[PyTree, PyTree], key: Array) -> tuple[tuple[PyTree, PyTree], Array]:
                net, optimiser = carry
                at = jax.random.randint(key, (SAMPLES,), 0, len(obs))
                value, grads = jax.value_and_grad(loss)(net, at)
                moves, optimiser = self.optimiser.update(grads, optimiser)
                return (optax.apply_updates(net, jax.tree.map(lambda x: -LR * x, moves)), optimiser), value

            carry, losses = jax.lax.scan(step, (state.net, state.optimiser), jax.random.split(key, STEPS))
            return state._replace(net=carry[0], optimiser=carry[1], scale=scale), losses.mean()

        state, error = jax.lax.cond(state.updates < self.due, study, lambda: (state, jnp.float32(0.0)))
        updates = state.updates + 1
        at = jax.random.randint(jax.random.fold_in(key, STEPS), (PLACES,), 0, len(obs))  # not a key of a step above
        found = jax.lax.cond(updates == self.due, lambda: self.groups(state, obs[at]), lambda: state.allows)
        return state._replace(allows=found, updates=updates), {"effect_error": error}

    def groups(self, state: Effects, obs: Array) -> Array:
        """[K, A] which actions belong to each role, by what they do at observations [M, O]."""
        each = jnp.arange(self.actions)
        seen = jnp.broadcast_to(obs[:, None], (len(obs), self.actions, self.size))
        does = self.foresee(state.net, seen, jnp.broadcast_to(each, (len(obs), self.actions)))
        does = does * (state.scale > 1e-6)
        return clusters(does.transpose(1, 0, 2).reshape(self.actions, -1), self.count)


def clusters(x: Array, count: int) -> Array:
    """[K, A] whether vectors [A, D] belong to each of K groups, by k-means from centres that are far from each other. A
    group to which nothing belongs, where there are fewer different vectors, has all of them."""
    away = jnp.sqrt(((x[:, None] - x[None]) ** 2).sum(-1))
    chosen = [away.sum(1).argmax()]
    for _ in range(count - 1):
        chosen.append(jnp.stack([away[i] for i in chosen]).min(0).argmax())
    centres = x[jnp.stack(chosen)]

    def near(centres: Array) -> Array:
        return jax.nn.one_hot(((x[:, None] - centres[None]) ** 2).sum(-1).argmin(1), count).T  # [K, A]

    def step(_: Any, centres: Array) -> Array:
        member = near(centres)
        size = member.sum(1, keepdims=True)
        return jnp.where(size > 0, member @ x / jnp.maximum(size, 1.0), centres)

    member = near(jax.lax.fori_loop(0, ROUNDS, step, centres)) > 0
    return member | ~member.any(1, keepdims=True)
