"""Gymnasium environments: one agent (`gymnasium/ID`), and packages for several (`lbf/ID`, `rware/ID`).

Several agents are told by Tuple spaces of equal length for observations and actions; observations, actions and
rewards are then lists. They never die on their own: terminated and truncated hold for all.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from flockrl.core.errors import UsageError, nearest
from flockrl.core.types import EnvSpec, Observation
from flockrl.envs.adapters.layouts import kind
from flockrl.envs.adapters.options import Options, draw_quietly, load, time_limit
from flockrl.envs.adapters.sides import read_sides
from flockrl.envs.adapters.spaces import Codec
from flockrl.envs.host.env import HostEnv, TeamStep, short_seed

PACKAGES = {"lbf": "lbforaging", "rware": "rware", "gymnasium": "gymnasium"}
"""Suite -> the package that registers its environments."""


def raw(suite: str, name: str, settings: Mapping[str, Any], draw: bool) -> Any:
    """The environment registered under a name."""
    draw_quietly()
    load(PACKAGES[suite], suite)
    import gymnasium

    given = {"render_mode": "rgb_array", **settings} if draw else dict(settings)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return gymnasium.make(name, disable_env_checker=True, **given)
    except gymnasium.error.NameNotFound as error:
        known = [id_ for id_ in gymnasium.registry if suite == "gymnasium" or PACKAGES[suite] in str(_entry(id_))]
        raise UsageError(f"There is no environment {suite}/{name}.{nearest(name, known)}") from error
    except gymnasium.error.Error as error:
        raise UsageError(f"{suite}/{name} cannot be made: {str(error).splitlines()[0]}") from error
    except TypeError as error:
        raise UsageError(f"{suite}/{name} does not take these settings: {error}.") from error
    except ImportError as error:
        raise UsageError(f"{suite}/{name} needs a package that is missing: {error}.") from error


def _entry(name: str) -> Any:
    import gymnasium

    return gymnasium.registry[name].entry_point


class GymTeam(HostEnv):
    """A gymnasium.Env, of one agent or of a list of them."""

    def __init__(self, env: Any, name: str, options: Options):
        self.env, self.name, self.options = env, name, options
        if options.reward_after_death:
            raise UsageError(f"{name}: its agents live until the end of an episode: leave out reward_after_death.")
        seen, acts = env.observation_space, env.action_space
        self.several = kind(acts) == "Tuple" and kind(seen) == "Tuple"
        if self.several and len(acts.spaces) != len(seen.spaces):
            raise UsageError(
                f"{name}: its spaces tell of {len(seen.spaces)} observations and {len(acts.spaces)} actions, "
                "but expected one of each for every agent."
            )
        count = len(acts.spaces) if self.several else 1
        self.names = [f"agent_{i}" for i in range(count)] if self.several else ["agent"]
        spaces = [tuple(space.spaces) if self.several else (space,) for space in (seen, acts)]
        named = [dict(zip(self.names, part, strict=True)) for part in spaces]
        self.codec = Codec(name, self.names, named[0], named[1], options)
        self.stack = self.codec.stack()
        _, info = self._reset(0)
        self.spec = EnvSpec(
            name, self.codec.agents, self.codec.observations, self.codec.actions,
            max_steps=options.max_steps or time_limit(env) or 1000,
            sides=read_sides(name, options.sides, self.codec.agents) if options.sides else (),
        )  # fmt: skip
        self.masked = (self.codec.masked or "action_mask" in info) and self.spec.maskable

    def reset(self, seed: int) -> Observation:
        if self.stack is not None:
            self.stack.restart()
        return self._see(*self._reset(short_seed(seed)))

    def _reset(self, seed: int) -> tuple[Any, Mapping[str, Any]]:
        try:
            result = self.env.reset(seed=seed)
        except TypeError as error:
            if "unexpected keyword argument 'seed'" not in str(error):
                raise
            raise UsageError(
                f"{self.name}: reset must take a seed: reset(self, *, seed=None, options=None)."
            ) from error
        if not isinstance(result, tuple) or len(result) != 2 or isinstance(result[1], np.ndarray):
            raise UsageError(f"{self.name}: reset must return (observation, info); info is a dict.")
        return result

    def step(self, action: np.ndarray, seed: int) -> TeamStep:
        acts = list(self.codec.act(action, self.names).values())
        result = self.env.step(tuple(acts) if self.several else acts[0])
        if not isinstance(result, tuple | list) or len(result) != 5:
            raise UsageError(f"{self.name}: step must return (observation, reward, terminated, truncated, info).")
        observation, reward, terminated, truncated, info = result
        rewards = np.broadcast_to(np.asarray(reward, np.float32), (len(self.names),))
        ends = (np.broadcast_to(np.asarray(flag, bool), (len(self.names),)) for flag in (terminated, truncated))
        return self._see(observation, info), self.options.reward(rewards), *(flag.all() for flag in ends)  # type: ignore[return-value]

    def _see(self, observation: Any, info: Mapping[str, Any]) -> Observation:
        if self.several and len(observation) != len(self.names):
            raise UsageError(
                f"{self.name}: {len(observation)} observations came, but there are {len(self.names)} agents."
            )
        parts = dict(zip(self.names, observation if self.several else (observation,), strict=True))
        avail = None
        if self.masked:
            masks = info.get("action_mask")
            masks = (masks if self.several else (masks,)) if masks is not None else (None,) * len(self.names)
            infos = {name: {"action_mask": mask} for name, mask in zip(self.names, masks, strict=True)}
            avail = self.codec.avail(parts, infos)
        obs: Any = self.codec.obs(parts)
        return Observation(obs if self.stack is None else self.stack.add(obs), avail)

    def render(self) -> np.ndarray | None:
        return self.env.render()

    def close(self) -> None:
        self.env.close()
