"""The environment interface and automatic resets.

An environment is an object with a `spec` and two pure functions of one environment instance (no batch
axis; the rollout maps them over B instances):

    reset(key) -> (state, Observation)
    step(key, state, action) -> (state, Observation, reward [N], terminated [N], truncated [N])

`terminated` and `truncated` may also be scalars, which then hold for all agents. A step never resets:
at the end of an episode it returns the last observation of that episode. An episode ends when every agent
is terminated, truncated or dead; where agents respawn (`spec.respawn`), only such a scalar ends it.

An environment may have more, each of it optional: `render(states, size)`, the pictures of an episode;
`best`, the highest mean return; `policies`, a dict of policies that know the state (`Knowing`);
`distances(state)`, how far agents are from each other, [N, N], for channels with a range (`envs.reach`);
`measures(state)`, figures of an episode from its last state, scalars by name, such as {"success": ...};
`symmetries(key)`, a `Renaming` drawn from those that change nothing if all agents use it; and `tunable`, the names of
settings that are attributes of the same name, which `step` and `reset` read at every call and which may be traced
numbers (`tuned`), so that they change without a new compilation; and `training(steps)`, values of such attributes in
the rollouts of learners, after so many steps of training (a traced number): the weight of hints that fade, for
instance. Evaluations play in the environment as it is.
With `spec.counterfactual` it also has `counterfactual_reward(state, action, present)`: what a step from `state` would
pay the team (a scalar) if only the agents in `present` [N] acted. Where there is a faster way, `alternatives(state,
action)` gives [N, A + 1]: the team's reward if an agent had chosen each of its actions, or had not acted (last).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.actions import clip_action
from flockrl.core.errors import UsageError
from flockrl.core.lives import return_ends, survivors
from flockrl.core.types import Array, EnvSpec, Observation, PyTree

Knowing = Callable[[PyTree, Observation, Array], Array]
"""A policy that comes with an environment: (state, observation, key) -> the actions of all agents, [N] or [N, W], in
one environment instance. It may read the whole state, as somebody who knows everything does."""


@runtime_checkable
class Env(Protocol):
    """A compiled environment. See the module's docstring for the contract."""

    @property
    def spec(self) -> EnvSpec: ...

    def reset(self, key: Array) -> tuple[PyTree, Observation]: ...

    def step(self, key: Array, state: PyTree, action: Array) -> tuple[PyTree, Observation, Array, Array, Array]: ...


def tuned(env: Env, settings: Mapping[str, Any]) -> Env:
    """The environment with other values of settings that it calls tunable, maybe traced ones."""
    if not settings:
        return env
    other = copy.copy(env)
    for name, value in settings.items():
        setattr(other, name, value)
    return other


def in_training(env: Env, steps: Array) -> Env:
    """The environment as its learners meet it after so many steps of training. Refuses values that nothing reads."""
    if not hasattr(env, "training"):
        return env
    values = env.training(steps)
    for name in values:
        if not hasattr(env, name):
            raise UsageError(f"{env.spec.name}: training gives {name!r}, and the environment has no such attribute.")
    return tuned(env, values)


def reset_batch(env: Env, key: Array, batch: int) -> tuple[PyTree, Observation]:
    """Reset `batch` environments: states and observations with leading axis B."""
    return jax.vmap(env.reset)(jax.random.split(key, batch))


class StepResult(NamedTuple):
    """One step of B environments. `observation` is the one to act on next, `final` the one after the step.

    They differ only where an episode ended: there `observation` is the first of the next episode and
    `final` the last of the old one. reward, terminated, truncated: [B, N]; done: [B]. terminated and truncated are the
    ends of returns, see `core.lives`; left: [B, N] who lives after the step, None where nobody dies.
    """

    state: PyTree
    observation: Observation
    final: Observation
    reward: Array
    terminated: Array
    truncated: Array
    done: Array
    left: Array | None = None


def advance_batch(env: Env, key: Array, state: PyTree, observation: Observation, action: Array) -> StepResult:
    """Step B environments without resets. `observation` is the one that `action` was chosen for."""
    keys = jax.random.split(key, action.shape[0])
    state, final, reward, terminated, truncated = jax.vmap(env.step)(keys, state, clip_action(env.spec, action))
    judge = jax.vmap(partial(ends, env.spec))
    terminated, truncated, done = judge(observation.alive, terminated, truncated, final.alive)
    left = survivors(final.alive, truncated, done)
    of_returns = return_ends(env.spec, terminated, truncated, left)
    return StepResult(state, final, final, reward, *of_returns, done, left)


def step_batch(env: Env, key: Array, state: PyTree, observation: Observation, action: Array) -> StepResult:
    """Step B environments and reset those whose episode ended. `observation` is the one `action` was chosen for."""
    batch = action.shape[0]
    now = advance_batch(env, key, state, observation, action)
    state, final, done = now.state, now.final, now.done

    # In most environments all episodes of a batch end in the same step, so most steps skip the resets.
    def fresh(_: None) -> tuple[PyTree, Observation]:
        new = reset_batch(env, jax.random.fold_in(key, batch), batch)  # a key that no step uses
        return jax.tree.map(lambda new, old: _where(done, new, old), new, (state, final))

    state, observation = jax.lax.cond(done.any(), fresh, lambda _: (state, final), None)
    return now._replace(state=state, observation=observation)


def ends(
    spec: EnvSpec, alive: Array | None, terminated: Array, truncated: Array, after: Array | None
) -> tuple[Array, Array, Array]:
    """Whose life ended in a step of one environment: terminated and truncated [N] of those who lived, and whether that
    was the end of the episode. alive, after: [N] who lived before the step and after it, or None where nobody dies."""
    for_all = [flag for flag in (terminated, truncated) if not flag.ndim]
    terminated, truncated = (jnp.broadcast_to(flag, spec.num_agents) for flag in (terminated, truncated))
    if alive is not None:
        terminated, truncated = terminated & alive, truncated & alive
    if spec.respawn:
        return terminated, truncated, jnp.stack(for_all).any() if for_all else jnp.bool_(False)
    over = terminated | truncated
    return terminated, truncated, (over if after is None else over | ~after).all()


def _where(condition: Array, new: Array, old: Array) -> Array:
    """Choose along the leading axis of arrays of any rank, typed keys included."""
    return jnp.where(condition.reshape(condition.shape + (1,) * (new.ndim - 1)), new, old)


class Renaming(NamedTuple):
    """Other names for what one agent sees and does, a symmetry of its environment. obs: [O] int32, what it sees at i is
    what others see at obs[i]; action: [A] int32, its action i is what others call action[i]."""

    obs: Array
    action: Array


class Paths(NamedTuple):
    """Where the agents of an episode went. walked: [T + 1, N, 2]; sizes: [N] radii; paint: [N, 4] red, green, blue,
    opacity; marks [L, 2], mark_sizes, mark_paint: the same for the landmarks at the end of the episode."""

    walked: np.ndarray
    sizes: np.ndarray
    paint: np.ndarray
    marks: np.ndarray
    mark_sizes: np.ndarray
    mark_paint: np.ndarray
