"""JaxMARL environments, compiled: `jaxmarl/NAME[:settings]`.

JaxMARL has one flag for the end of an episode. Here an episode that ends in the step in which its time is up counts as
truncated, and any other end as terminated. An agent that is done before the others is dead from then on. `world_state`
among the observations is the global state, and `get_avail_actions` says which actions are legal. The battles of SMAX
tell whether the allies won (`measures`). Where JaxMARL hands out a shaped reward beside the true one, as Overcooked
does, `shaped=STEPS` adds it in training, with a weight that falls from 1 to 0 over so many steps; evaluations count the
true reward alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.errors import UsageError, nearest, reason
from flockrl.core.spec import stem
from flockrl.core.types import Array, Box, Discrete, EnvSpec, MultiDiscrete, Observation, PyTree, Space
from flockrl.envs.adapters.layouts import kind
from flockrl.envs.adapters.options import load, time_limit
from flockrl.envs.adapters.sides import STEPS, infer_sides, read_sides
from flockrl.envs.api import reset_batch, step_batch
from flockrl.envs.settings import one_of, whole
from flockrl.nets.actions import ActionCode

WORLD = "world_state"
LONGEST = 1_000_000_000
"""Steps of an episode that are counted."""
SHAPED = "shaped_reward"
"""What JaxMARL calls the hints among the infos of a step: a reward for each agent."""


def make(name: str, settings: Mapping[str, Any]) -> JaxMARL:
    """The environment of that name."""
    with contextlib.redirect_stdout(io.StringIO()):  # it greets when imported
        package = load("jaxmarl", "jaxmarl")
        known = package.registered_envs
    if name not in known:
        raise UsageError(f"There is no environment jaxmarl/{name}.{nearest(name, known)}")
    given = dict(settings)
    if "max_steps" in given:
        whole(f"jaxmarl/{name}", 1, LONGEST, max_steps=given["max_steps"])
    sides, shaped = given.pop("sides", None), given.pop("shaped", None)
    limit = given.pop("max_steps", None) if "SMAX" not in name and "MPE" not in name else None
    try:
        env = JaxMARL(package.make(name, **_named(name, given)), f"jaxmarl/{name}", limit, shaped)
    except UsageError:
        raise
    except Exception as error:  # each environment refuses settings in a way of its own, most of them where they fail
        raise UsageError(f"jaxmarl/{name} cannot be made with these settings: {reason(error)}.") from error
    return _sided(env, sides)


def _sided(env: JaxMARL, text: str | None) -> JaxMARL:
    """The environment with the sides that the user says, or else those that names and rewards tell."""
    agents = env.spec.agents
    if text is None:
        if len(set(map(stem, agents))) == 1:
            return env
        text = infer_sides(env.spec.name, agents, _random_rewards(env))
    env.spec = dataclasses.replace(env.spec, sides=read_sides(env.spec.name, text, agents), groups=())
    return env


def _random_rewards(env: JaxMARL) -> np.ndarray:
    """[S, N] what agents earn in random play."""
    code = ActionCode(env.spec)

    def step(carry: Any, key: Array) -> tuple[Any, Array]:
        act_key, env_key = jax.random.split(key)
        action = code.decode(code.random(act_key, 1, carry[1].avail))
        result = step_batch(env, env_key, carry[0], carry[1], action)
        return (result.state, result.observation), result.reward[0]

    keys = jax.random.split(jax.random.key(0), STEPS)
    return np.asarray(jax.jit(lambda: jax.lax.scan(step, reset_batch(env, keys[0], 1), keys)[1])())


def _named(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Maps and layouts are given by name."""
    if "scenario" in settings and "SMAX" in name:
        from jaxmarl.environments.smax.smax_env import MAP_NAME_TO_SCENARIO

        settings["scenario"] = _known(name, "scenario", settings["scenario"], MAP_NAME_TO_SCENARIO)
    if "layout" in settings and name == "overcooked":
        from jaxmarl.environments.overcooked import overcooked_layouts

        settings["layout"] = _known(name, "layout", settings["layout"], overcooked_layouts)
    return settings


def _known(name: str, setting: str, word: Any, choices: Mapping[str, Any]) -> Any:
    """What a setting calls by that name."""
    one_of(f"jaxmarl/{name}", choices, **{setting: word})
    return choices[word]


class State(NamedTuple):
    """inner: JaxMARL's own; t: steps so far; alive: [N]."""

    inner: PyTree
    t: Array
    alive: Array


class JaxMARL:
    """A JaxMARL environment as one of flockrl's compiled ones."""

    def __init__(self, env: Any, name: str, limit: int | None = None, shaped: int | None = None):
        self.env, agents = env, [str(agent) for agent in env.agents]
        self.shaped, self.hints = _fading(env, name, shaped), 0.0
        seen, inner = jax.eval_shape(env.reset, jax.random.PRNGKey(0))
        self.legal = _legal_actions(env, inner)
        state_size = int(np.prod(seen[WORLD].shape)) if WORLD in seen else 0
        limit = limit or time_limit(env) or getattr(env, "num_inner_steps", None)
        self.spec = EnvSpec(
            name, tuple(agents), tuple(Box((int(np.prod(seen[a].shape)),)) for a in env.agents),
            tuple(_action(env.action_space(a), name, a) for a in env.agents),
            max_steps=int(limit or 1000), state_size=state_size,
        )  # fmt: skip
        self.shapes = [tuple(getattr(env.action_space(a), "shape", ())) for a in env.agents]

    def reset(self, key: Array) -> tuple[State, Observation]:
        seen, inner = self.env.reset(jax.random.key_data(key))
        state = State(inner, jnp.int32(0), jnp.ones(self.spec.num_agents, bool))
        return state, self._see(seen, state)

    def step(self, key: Array, state: State, action: Array) -> tuple[State, Observation, Array, Array, Array]:
        acts = {agent: self._own(action, i) for i, agent in enumerate(self.env.agents)}
        seen, inner, rewards, dones, infos = self.env.step_env(jax.random.key_data(key), state.inner, acts)
        late = state.t + 1 >= self.spec.max_steps
        ended = jnp.stack([jnp.asarray(dones[agent], bool) for agent in self.env.agents]) | dones["__all__"]
        after = State(inner, state.t + 1, state.alive & ~ended)
        reward = self._each(rewards)
        if self.shaped is not None:
            reward = reward + self.hints * self._each(infos[SHAPED])
        return after, self._see(seen, after), reward, ended & ~late, jnp.broadcast_to(late, ended.shape)

    def training(self, steps: Array) -> dict[str, Array]:
        """The weight of the shaped reward after so many steps of training, see `envs.api`."""
        return {} if self.shaped is None else {"hints": jnp.clip(1.0 - steps / self.shaped, 0.0, 1.0)}

    def measures(self, state: State) -> dict[str, Array]:
        """Whether the allies won a battle of SMAX: all enemies are dead and not all allies; nothing elsewhere."""
        units = getattr(state.inner, "state", state.inner)
        alive, allies = getattr(units, "unit_alive", None), getattr(self.env, "num_allies", None)
        if alive is None or allies is None:
            return {}
        return {"won": (alive[:allies].any() & ~alive[allies:].any()).astype(jnp.float32)}

    def _each(self, values: Mapping[str, Any]) -> Array:
        """[N] numbers by agent."""
        return jnp.stack([jnp.asarray(values[agent], jnp.float32) for agent in self.env.agents])

    def _own(self, action: Array, i: int) -> Array:
        """Agent i's part of actions [N] or [N, W], as the environment takes it."""
        if self.spec.discrete:
            return action[i]
        space = self.spec.actions[i]
        own = action[i, : space.width].reshape(self.shapes[i])
        return own if isinstance(space, Box) else own.astype(jnp.int32)

    def _see(self, seen: Mapping[str, Array], state: State) -> Observation:
        size = self.spec.obs_size
        rows = [jnp.ravel(seen[agent]).astype(jnp.float32) for agent in self.env.agents]
        obs = jnp.stack([jnp.pad(row, (0, size - row.size)) for row in rows])
        avail = None
        if self.legal is not None:
            masks = self.legal(state.inner)
            parts = [
                jnp.asarray(masks[agent], bool) if isinstance(space, Discrete) else jnp.ones(space.size, bool)
                for agent, space in zip(self.env.agents, self.spec.actions, strict=True)
            ]
            avail = jnp.stack([jnp.pad(part, (0, self.spec.action_size - part.size)) for part in parts])
            avail = avail | (~avail.any(-1, keepdims=True) & (np.arange(self.spec.action_size) == 0))  # the dead
        world = jnp.ravel(seen[WORLD]).astype(jnp.float32) if WORLD in seen else None
        return Observation(obs, avail, world, state.alive)


def _fading(env: Any, name: str, shaped: Any) -> float | None:
    """The steps over which the shaped reward fades; None where there is none in training."""
    if shaped is None:
        return None
    if isinstance(shaped, bool) or not isinstance(shaped, int) or shaped < 1:
        raise UsageError(f"{name}: shaped must be the steps until shaped rewards are gone, at least 1, not {shaped!r}.")
    if not _hints(env):
        raise UsageError(f"{name} hands out no shaped reward beside the true one: leave out shaped.")
    return float(shaped)


def _hints(env: Any) -> bool:
    """Whether the steps of an environment come with a shaped reward."""

    def first(key: Array) -> Any:
        _, inner = env.reset(key)
        acts = {agent: env.action_space(agent).sample(key) for agent in env.agents}
        return env.step_env(key, inner, acts)[4]

    return SHAPED in jax.eval_shape(first, jax.random.PRNGKey(0))


def _legal_actions(env: Any, inner: PyTree) -> Callable[[PyTree], Any] | None:
    """The environment's function from a state to legal actions, where it has one. Discrete actions alone are masked."""
    if not any(kind(env.action_space(agent)) == "Discrete" for agent in env.agents):
        return None
    for word in ("get_avail_actions", "get_legal_moves"):
        function = getattr(env, word, None)
        with contextlib.suppress(NotImplementedError):
            if function is not None:
                jax.eval_shape(function, inner)
                return function
    return None


def _action(space: Any, name: str, agent: str) -> Space:
    word = kind(space)
    if word == "Discrete":
        return Discrete(int(space.n))
    if word == "MultiDiscrete":
        sizes = space.num_categories if hasattr(space, "num_categories") else space.nvec
        return MultiDiscrete(tuple(np.asarray(sizes).ravel().tolist()))
    if word == "Box":
        bounds = [np.broadcast_to(np.asarray(x, np.float32), space.shape).ravel() for x in (space.low, space.high)]
        low, high = (bound.tolist() for bound in bounds)
        return Box((int(np.prod(space.shape)),), tuple(low), tuple(high))
    raise UsageError(
        f"{name}: agent {agent!r} has a {word} action space, and only Discrete, MultiDiscrete and Box work here."
    )
