"""The environment interface, automatic resets, and environments by name.

An environment is an object with a `spec` and two pure functions over one team (no batch axis; the
rollout maps them over B environments):

    reset(key) -> (state, Observation)
    step(key, state, action) -> (state, Observation, reward [N], terminated [N], truncated [N])

`terminated` and `truncated` may also be scalars when they hold for the whole team. A step never
resets: the observation it returns is the one the episode ended on.
"""

from __future__ import annotations

import importlib
import inspect
import json
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.errors import UsageError, nearest
from flockrl.types import Array, Box, EnvSpec, Observation, PyTree

SUITES = {
    "mpe": "flockrl.envs.mpe",
    "games": "flockrl.envs.games",
    "classic": "flockrl.envs.classic",
    "probe": "flockrl.envs.probes",
}
"""Suite name -> module with `ENVIRONMENTS`, a dict from name to a callable that builds the environment."""


@runtime_checkable
class Env(Protocol):
    """A compiled environment of one team. See the module's docstring for the contract."""

    @property
    def spec(self) -> EnvSpec: ...

    def reset(self, key: Array) -> tuple[PyTree, Observation]: ...

    def step(self, key: Array, state: PyTree, action: Array) -> tuple[PyTree, Observation, Array, Array, Array]: ...


def make(name: Any, **settings: Any) -> Any:
    """Build an environment, compiled (`Env`) or on the host (`host.Host`).

    name: `SUITE/NAME[:setting=value,...]`, or an object: an environment of flockrl, PettingZoo or Gymnasium, its
    class, or a function that builds one.
    """
    from flockrl.envs import adapt

    if not isinstance(name, str):
        if settings:
            raise UsageError(f"Settings ({', '.join(settings)}) go with an environment's name, not with a built one.")
        return adapt.make_object(name)
    path, _, text = name.partition(":")
    suite, slash, short = path.partition("/")
    if suite == "data" and slash:
        return _recorded(name.partition("/")[2])
    if slash and suite in adapt.SUITES:
        return adapt.make_outside(suite, name.partition("/")[2], settings)
    if not slash or suite not in SUITES:
        known = [f"{s}/{n}" for s in SUITES for n in environments(s)]
        known += [f"{suite}/{form}" for suite, form in adapt.SUITES.items()]
        raise UsageError(f"There is no environment {path!r}.{nearest(path, known)}")
    builders = environments(suite)
    if short not in builders:
        raise UsageError(f"There is no environment {path!r}.{nearest(short, builders)}")
    given = {**parse_settings(text), **settings}
    return _build(path, builders[short], given)


def _recorded(names: str) -> Any:
    try:
        from flockrl.data.program import Recorded
    except ImportError as error:
        raise UsageError("Trajectory files need pyarrow: pip install 'flockrl[relay]'.") from error
    return Recorded(names)


def environments(suite: str) -> dict[str, Any]:
    """Name -> builder for one suite."""
    return importlib.import_module(SUITES[suite]).ENVIRONMENTS


def _build(path: str, builder: Any, settings: dict[str, Any]) -> Env:
    parameters = inspect.signature(builder).parameters
    for key in settings:
        if key not in parameters:
            raise UsageError(f"{path} has no setting {key!r}.{nearest(key, parameters)}")
    for key, value in settings.items():
        default = parameters[key].default
        if isinstance(default, bool) != isinstance(value, bool) and default is not None:
            wanted = "true or false" if isinstance(default, bool) else "not true or false"
            raise UsageError(f"{path}: setting {key} must be {wanted}, not {value!r}.")
        if isinstance(default, int | float) and not isinstance(value, int | float):
            raise UsageError(f"{path}: setting {key} must be a number, not {value!r}.")
        if isinstance(default, int) and isinstance(value, float):
            raise UsageError(f"{path}: setting {key} must be a whole number, not {value!r}.")
    return builder(**settings)


def parse_settings(text: str) -> dict[str, Any]:
    """`N=5,continuous_actions=true` -> {"N": 5, "continuous_actions": True}; what is not JSON stays a string."""
    settings: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"Write environment settings as name=value, separated by commas, not {part!r}.")
        word = value.strip()
        try:
            settings[key.strip()] = json.loads({"True": "true", "False": "false", "None": "null"}.get(word, word))
        except json.JSONDecodeError:
            settings[key.strip()] = word
    return settings


def action_bounds(spec: EnvSpec) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of continuous actions, (low, high), each [N, A]; padding is bounded by 0 and 0."""
    low, high = np.zeros((2, spec.num_agents, spec.action_size), np.float32)
    for i, space in enumerate(spec.actions):
        assert isinstance(space, Box)
        low[i, : space.size] = space.low
        high[i, : space.size] = space.high
    return low, high


def clip_action(spec: EnvSpec, action: Array) -> Array:
    """Bring continuous actions [..., N, A] inside their bounds; discrete ones pass through."""
    if spec.discrete:
        return action
    low, high = action_bounds(spec)
    return jnp.clip(action, low, high)


def reset_batch(env: Env, key: Array, batch: int) -> tuple[PyTree, Observation]:
    """Reset `batch` environments: states and observations with leading axis B."""
    return jax.vmap(env.reset)(jax.random.split(key, batch))


class StepResult(NamedTuple):
    """One step of B environments. `observation` is what to act on next, `final` what the step led to.

    They differ only where an episode ended: there `observation` opens the next episode and `final`
    closes the old one. reward, terminated, truncated: [B, N]; done: [B].
    """

    state: PyTree
    observation: Observation
    final: Observation
    reward: Array
    terminated: Array
    truncated: Array
    done: Array


def advance_batch(env: Env, key: Array, state: PyTree, observation: Observation, action: Array) -> StepResult:
    """Step B environments without resets. `observation` is what `action` answered."""
    keys = jax.random.split(key, action.shape[0])
    state, final, reward, terminated, truncated = jax.vmap(env.step)(keys, state, clip_action(env.spec, action))
    terminated, truncated = _per_agent(terminated, reward), _per_agent(truncated, reward)
    if observation.alive is not None:
        terminated, truncated = terminated & observation.alive, truncated & observation.alive
    over = terminated | truncated
    done = (over if final.alive is None else over | ~final.alive).all(axis=-1)
    return StepResult(state, final, final, reward, terminated, truncated, done)


def step_batch(env: Env, key: Array, state: PyTree, observation: Observation, action: Array) -> StepResult:
    """Step B environments and reset those whose episode ended. `observation` is what `action` answered."""
    batch = action.shape[0]
    now = advance_batch(env, key, state, observation, action)
    state, final, done = now.state, now.final, now.done

    # Most environments end together or not at all, so drawing fresh states is worth a branch.
    def fresh(_: None) -> tuple[PyTree, Observation]:
        new = reset_batch(env, jax.random.fold_in(key, batch), batch)  # no key that a step was given
        return jax.tree.map(lambda new, old: _where(done, new, old), new, (state, final))

    state, observation = jax.lax.cond(done.any(), fresh, lambda _: (state, final), None)
    return now._replace(state=state, observation=observation)


def _per_agent(flag: Array, reward: Array) -> Array:
    """Flags of whole teams [B] as flags of agents [B, N]."""
    return jnp.broadcast_to(flag[:, None] if flag.ndim == 1 else flag, reward.shape)


def _where(condition: Array, new: Array, old: Array) -> Array:
    """Choose along the leading axis, whatever axes follow; typed keys included."""
    return jnp.where(condition.reshape(condition.shape + (1,) * (new.ndim - 1)), new, old)
