"""PettingZoo environments: `pettingzoo/MODULE[:settings]`, parallel ones and turn-based ones (AEC).

In a parallel environment all living agents act at once. In a turn-based one a step is one agent's move. Those who
wait see the game as it stands, have the single legal action 0, which nobody looks at, and get their rewards when they
arise: waiting is a step without a choice. So learners need to know nothing about turns. Real actions cannot be
masked; those of agents that wait are ignored too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import pkgutil
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from flockrl.core.errors import UsageError, install, notice
from flockrl.core.synonyms import closest
from flockrl.core.types import EnvSpec, Observation
from flockrl.envs.adapters.images import is_picture
from flockrl.envs.adapters.options import Options, draw_quietly, load, time_limit
from flockrl.envs.adapters.sides import read_sides
from flockrl.envs.adapters.spaces import Codec
from flockrl.envs.host.env import HostEnv, TeamStep, short_seed

FAMILIES = ("atari", "butterfly", "classic", "sisl")
VERSION = re.compile(r"_v[0-9]+$")
LARGEST_STATE = 4096
"""Global states of more numbers (pictures, mostly) are not used."""


def raw(module: str, settings: Mapping[str, Any], draw: bool) -> Any:
    """The environment of a module: its parallel form where it has one."""
    draw_quietly()
    if module.partition(".")[0] not in ("pettingzoo", "mpe2") and _missing(module):
        meant = find(module)
        hint = (
            f"Did you mean 'pettingzoo/{meant}'?" if meant else "Write it with its package: pettingzoo/PACKAGE.MODULE."
        )
        if _missing("pettingzoo"):
            hint = f"PettingZoo's own are not installed: {install('pettingzoo')}."
        raise UsageError(f"There is no module {module!r}. {hint}")
    found = load(module, "pettingzoo", {"mpe2": "pettingzoo"})
    make = getattr(found, "parallel_env", None) or getattr(found, "env", None)
    if make is None:
        raise UsageError(f"{module} is not a PettingZoo environment: it has neither parallel_env nor env.")
    try:
        env = make(**({"render_mode": "rgb_array", **settings} if draw else settings))
        if not draw and "render_mode" not in settings and _shows_what_it_draws(env):
            env = make(**{"render_mode": "rgb_array", **settings})
        return env
    except TypeError as error:
        raise UsageError(f"pettingzoo/{module} does not take these settings: {error}.") from error


def find(name: str) -> str | None:
    """The whole name of the module in PettingZoo or mpe2 that is called `name`, or almost so; None where there is none,
    or they are not installed."""
    homes = {f"pettingzoo.{family}": None for family in FAMILIES} | {"mpe2": None}
    modules: dict[str, str] = {}
    for home in homes:
        with contextlib.suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(home)
            paths = list(spec.submodule_search_locations or ()) if spec is not None else []
            modules |= {m.name: f"{home}.{m.name}" for m in pkgutil.iter_modules(paths) if VERSION.search(m.name)}
    meant = closest(name.rpartition(".")[2], modules)
    return None if meant is None else modules[meant]


def _missing(module: str) -> bool:
    try:
        return importlib.util.find_spec(module.partition(".")[0]) is None
    except ValueError:  # something was imported that has no file
        return False


def _shows_what_it_draws(env: Any) -> bool:
    """Whether agents see pictures. Some environments (pistonball) draw nothing unless a render mode is asked for, and
    their agents look at a picture that never changes."""
    spaces = [env.observation_space(agent) for agent in getattr(env, "possible_agents", ())]
    modes = (getattr(env, "metadata", None) or {}).get("render_modes", ())
    return bool(spaces) and all(map(is_picture, spaces)) and "rgb_array" in modes


class _Named(HostEnv):
    """What both kinds share: the codec, and the spec that follows from it."""

    mortal = True
    default_steps = 1000

    def __init__(self, env: Any, name: str, options: Options):
        agents = getattr(env, "possible_agents", None)
        if not agents:
            raise UsageError(
                f"{name}: the environment needs possible_agents, the names of all agents there may ever be."
            )
        self.env, self.name, self.options = env, name, options
        seen, acts = ({a: space(a) for a in agents} for space in (env.observation_space, env.action_space))
        self.codec = Codec(name, [str(a) for a in agents], _text(seen), _text(acts), options)
        self.stack = self.codec.stack()
        self.agents = {str(agent): agent for agent in agents}
        self.has_state = False
        if callable(tells := getattr(getattr(env, "unwrapped", env), "distances", None)):
            self.distances = tells
        self.spec = EnvSpec(
            name, self.codec.agents, self.codec.observations, self.codec.actions,
            max_steps=options.max_steps or time_limit(env) or self.default_steps,
            sides=read_sides(name, options.sides, self.codec.agents) if options.sides else (),
            reward_after_death=options.reward_after_death,
        )  # fmt: skip
        self.masked = self.codec.masked and self.spec.maskable

    def _with_state(self, seen: Observation) -> None:
        """Use env.state() as the global state, unless it says what the observations say anyway."""
        try:
            state = np.asarray(self.env.state(), np.float32).ravel()
        except (NotImplementedError, AttributeError):
            return
        except Exception as error:
            notice(f"{self.name} is used without its global state: its state() fails with {error!r}.")
            return
        sizes = [space.size for space in self.spec.observations]
        joint = np.concatenate([seen.obs[i, :size] for i, size in enumerate(sizes)])
        if state.size <= LARGEST_STATE and not np.array_equal(state, joint):
            self.has_state = True
            self.spec = _replace(self.spec, state_size=state.size)

    def _obs(self, observations: Mapping[str, Any]) -> Any:
        obs = self.codec.obs(observations)
        return obs if self.stack is None else self.stack.add(obs)

    def _alive(self) -> Any:
        """[N] bool: who is in the game now."""
        alive = np.zeros(len(self.codec.agents), bool)
        alive[[self.codec.index[str(agent)] for agent in self.env.agents]] = True
        return alive

    def _state(self) -> Any:
        return np.asarray(self.env.state(), np.float32).ravel() if self.has_state else None

    def render(self) -> np.ndarray | None:
        return self.env.render()

    def close(self) -> None:
        self.env.close()


class ParallelTeam(_Named):
    """A ParallelEnv."""

    def __init__(self, env: Any, name: str, options: Options):
        super().__init__(env, name, options)
        self._step = _converted(env) or env.step
        observations, infos = self._reset(0)
        told = any("action_mask" in info for info in infos.values() if isinstance(info, Mapping))
        self.masked |= told and self.spec.maskable
        self._with_state(self._see(observations, infos))

    def _reset(self, seed: int) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        if self.stack is not None:
            self.stack.restart()
        result = self.env.reset(seed=seed)
        if not isinstance(result, tuple) or len(result) != 2:
            raise UsageError(f"{self.name}: reset must return (observations, infos), two dicts by agent.")
        return _text(result[0]), _text(result[1] or {})

    def reset(self, seed: int) -> Observation:
        return self._see(*self._reset(short_seed(seed)))

    def step(self, action: np.ndarray, seed: int) -> TeamStep:
        living, acted = [str(agent) for agent in self.env.agents], self._alive()
        acts = self.codec.act(action, living)
        result = self._step({self.agents[agent]: act for agent, act in acts.items()})
        if not isinstance(result, tuple) or len(result) != 5:
            raise UsageError(
                f"{self.name}: step must return five dicts: observations, rewards, terminations, truncations, infos."
            )
        observations, rewards, terminations, truncations, infos = (_text(part) for part in result)
        terminated = self.codec.numbers(terminations, bool, "termination")
        truncated = self.codec.numbers(truncations, bool, "truncation")
        seen = self._see(observations, infos, ~(terminated | truncated))
        reward = self.codec.numbers(rewards, np.float32, "reward")
        return seen, self.options.reward(reward, acted, self.spec.sides), terminated, truncated

    def _see(self, observations: Mapping[str, Any], infos: Mapping[str, Any], going: Any = True) -> Observation:
        alive = self._alive()
        for agent in self.env.agents:
            if str(agent) not in observations:
                raise UsageError(f"{self.name}: agent {str(agent)!r} is alive, but its observation is missing.")
        avail = self.codec.avail(observations, infos) if self.masked else None
        return Observation(self._obs(observations), avail, self._state(), alive & going)


class TurnTeam(_Named):
    """An AECEnv. One step is one move, of the agent whose turn it is."""

    def __init__(self, env: Any, name: str, options: Options):
        super().__init__(env, name, options)
        self.masked = self.spec.maskable
        self._with_state(self.reset(0))

    def reset(self, seed: int) -> Observation:
        if self.stack is not None:
            self.stack.restart()
        self.env.reset(seed=short_seed(seed))
        _bury(self.env)
        return self._see(list(self.env.agents))

    def step(self, action: np.ndarray, seed: int) -> TeamStep:
        mover, present, acted = self.env.agent_selection, list(self.env.agents), self._alive()
        self.env.step(self.codec.act(action, [str(mover)])[str(mover)])
        rewards, ended, cut = (
            {str(a): part.get(a, 0) for a in present}
            for part in (self.env.rewards, self.env.terminations, self.env.truncations)
        )
        terminated, truncated = (self.codec.numbers(x, bool, "end") for x in (ended, cut))
        joined = [agent for agent in self.env.agents if agent not in present]
        seen = self._see([*present, *joined])  # before the dead are buried: their last observation closes the episode
        _bury(self.env)
        alive = self._alive() & ~(terminated | truncated)
        seen = seen._replace(alive=alive, avail=self._turn(seen.avail))
        reward = self.codec.numbers(rewards, np.float32, "reward")
        return seen, self.options.reward(reward, acted, self.spec.sides), terminated, truncated

    def _see(self, agents: list[Any]) -> Observation:
        observations = {str(agent): self.env.observe(agent) for agent in agents}
        avail = self._turn(self.codec.avail(observations, _text(self.env.infos))) if self.masked else None
        return Observation(self._obs(observations), avail, self._state(), self._alive())

    def _turn(self, avail: Any) -> Any:
        """The mask of the agent whose turn it is, and that of waiting for the others. avail: [N, A] or None."""
        if avail is None:
            return None
        waiting = np.ones(len(avail), bool)
        if self.env.agents:
            waiting[self.codec.index[str(self.env.agent_selection)]] = False
        return np.where(waiting[:, None], self.codec.waiting, avail)


def _converted(env: Any) -> Any:
    """A quicker step for a turn-based environment behind PettingZoo's conversion to a parallel one, or None.

    The conversion looks at every agent twice per step and once in vain, through layers that check the order of calls
    and the actions. Here everybody is looked at once, behind those layers: the order is kept, the actions are legal.
    """
    if type(env).__name__ != "aec_to_parallel_wrapper":
        return None
    inner = env.aec_env
    while type(inner).__name__ in ("OrderEnforcingWrapper", "AssertOutOfBoundsWrapper"):
        inner = inner.env

    def step(actions: dict[Any, Any]) -> tuple[dict[Any, Any], ...]:
        movers = list(inner.agents)
        rewards = dict.fromkeys(movers, 0.0)
        for mover in movers:
            if mover != inner.agent_selection:
                raise UsageError(f"{env}: agent {inner.agent_selection!r} is to move where {mover!r} should.")
            inner.step(actions[mover])
            for agent in inner.agents:
                rewards[agent] = rewards.get(agent, 0.0) + inner.rewards[agent]
        ends = dict(inner.terminations), dict(inner.truncations), dict(inner.infos)
        seen = {agent: inner.observe(agent) for agent in inner.agents}
        _bury(inner)
        env.agents = inner.agents
        return seen, rewards, *ends

    return step


def _bury(env: Any) -> None:
    """PettingZoo asks the dead of a turn-based environment for a last, empty move each."""
    while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
        env.step(None)


def _text(values: Any) -> dict[str, Any]:
    """Agents may be named by anything; here they are strings."""
    return values if all(type(key) is str for key in values) else {str(key): value for key, value in values.items()}


def _replace(spec: EnvSpec, **changes: Any) -> EnvSpec:
    return dataclasses.replace(spec, **changes)
