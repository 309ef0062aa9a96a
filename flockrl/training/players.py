"""Who plays for each side of a run, from what a user says: names of algorithms, runs, functions, "random"."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from flockrl.algos.assembly import Side, Sides, check_sides, make_players
from flockrl.algos.presets import algorithms, make_config
from flockrl.algos.sides import Player, compose, scripted
from flockrl.core.errors import UsageError, nearest
from flockrl.core.rundir import CONFIG, find_runs
from flockrl.core.types import Actor, Algorithm, Array, EnvSpec, EvalResult, Observation, PyTree
from flockrl.envs.api import Knowing
from flockrl.envs.opened import Opened
from flockrl.envs.registry import make
from flockrl.evaluation.playing import make_player, summarize
from flockrl.training.run import Run

RANDOM = "random"


def split_sides(algorithm: str) -> dict[str, str]:
    """`adversary=maddpg,agent=runs/prey` as a dict; {} for the plain name of an algorithm."""
    if "=" not in algorithm:
        return {}
    found: dict[str, str] = {}
    for part in algorithm.split(","):
        side, equals, player = (word.strip() for word in part.partition("="))
        if not equals or not side or not player or side in found:
            raise UsageError(f"Write sides as SIDE=PLAYER, separated by commas, each once, not {algorithm!r}.")
        found[side] = player
    return found


def make_sides(players: Mapping[str, Any], settings: Mapping[str, Any], spec: EnvSpec) -> Sides:
    """The players that a user named, with the settings of each learner under its side's name."""
    check_sides(spec, players)
    order = [name for name in spec.parties if name in players]
    for name in settings:
        if name not in players:
            raise UsageError(f"There is no setting {name!r}: settings of a side stand under its name ({order[0]}.lr).")
    return Sides({name: make_side(name, players[name], settings.get(name, {}), spec) for name in order})


def make_side(name: str, player: Any, settings: Any, spec: EnvSpec) -> Side:
    """One player. player: a `Run`, a function, a word, or already a `Side`; settings: of a learner, by name."""
    if not isinstance(settings, Mapping):
        raise UsageError(f"Settings of the side {name} must be given by name, not as {settings!r}.")
    side = _side(name, player, settings, spec)
    if settings and side.kind != "learner":
        raise UsageError(f"{name} does not learn, so that it has no settings: leave out {', '.join(settings)}.")
    return side


def _side(name: str, player: Any, settings: Mapping[str, Any], spec: EnvSpec) -> Side:
    if isinstance(player, Side):
        return player
    if isinstance(player, Run):
        return _frozen(name, player, "", spec)
    if callable(player):
        if not hasattr(player, "__qualname__"):
            raise UsageError(f"{name}: write the script as a function (def), so that its name can be kept.")
        return Side("script", source=f"{player.__module__}:{player.__qualname__}", given=player)
    if not isinstance(player, str):
        raise UsageError(f"{name} is played by an algorithm, a run, a function or {RANDOM!r}, not by {player!r}.")
    if player == RANDOM:
        return Side("random")
    if player in algorithms():
        return Side("learner", player, make_config(player, settings))
    path, _, of = player.partition(":")
    if (Path(path) / CONFIG).is_file():
        return _frozen(name, Run(path), of, spec)
    if ":" in player and "/" not in path:
        return Side("script", source=player)
    if Path(path).exists():
        Run(path)  # says what is wrong with it
    raise UsageError(
        f"{name}={player}: there is no such algorithm or run, and it is not {RANDOM!r} or a script "
        f"(package.module:function).{nearest(player, [*algorithms(), RANDOM])}"
    )


def _frozen(name: str, run: Run, of: str, spec: EnvSpec) -> Side:
    """The policy of another run for the agents of this side."""
    config = run.config
    if isinstance(config.config, Sides):
        of = of or name
        if of not in config.config.players:
            sides = ", ".join(config.config.players)
            raise UsageError(f"{run.path} has no side {of!r}: name one of {sides} as {run.path}:SIDE.")
        if of != name:
            raise UsageError(f"{run.path}:{of} plays for {of}, and here {name} is asked for.")
    elif of:
        raise UsageError(f"{run.path} has one policy for all agents: leave out :{of}.")
    _check_agents(run, name, spec, bool(of))
    return Side("frozen", config.algorithm, config.config, str(run.path), of, config.options.envs, run)


def _check_agents(run: Run, name: str, spec: EnvSpec, own: bool) -> None:
    """A policy can only play for agents that see and do what those it learned for saw and did."""
    theirs = run.spec
    agents = spec.parties[name] if own else range(spec.num_agents)
    for i in agents:
        agent = spec.agents[i]
        j = theirs.agents.index(agent) if agent in theirs.agents else -1
        sizes = [(s.observations[k].size, s.actions[k]) for s, k in ((theirs, j), (spec, i)) if k >= 0]
        if j < 0 or sizes[0] != sizes[1]:
            there = "is not there" if j < 0 else "sees or does something else there"
            raise UsageError(f"{run.path} cannot play for {name} of {spec.name}: {agent} {there} ({theirs.name}).")
    if own and len(theirs.parties.get(name, ())) != len(spec.parties[name]):
        raise UsageError(f"{run.path} cannot play for {name} of {spec.name}: there are other numbers of agents there.")
    if not own and theirs.num_agents != spec.num_agents:
        raise UsageError(f"{run.path} cannot play for {name} of {spec.name}: it has other agents ({theirs.name}).")


def frozen_params(config: Any) -> dict[str, PyTree]:
    """Parameters of the frozen sides of a run, read from the runs they come from: {} where there are none."""
    if not isinstance(config, Sides):
        return {}
    found = {}
    for name, side in config.players.items():
        if side.kind == "frozen":
            params = (side.given or Run(side.source)).params()
            found[name] = params[side.of] if side.of else params
    return found


def match(
    players: Mapping[str, Any], env: Any = None, *, episodes: int = 100, seed: int = 0, explore: bool = False
) -> EvalResult:
    """Play whole episodes between policies that were trained apart: {"adversary": run, "agent": "random"}.

    players: for each side a `Run` or its directory (or RUN:SIDE), a function, the name of a policy that comes with the
    environment, or "random". env: where they play, by default the environment of the first run.
    """
    if episodes < 1:
        raise UsageError(f"episodes must be at least 1, not {episodes}.")
    first = next((player for player in map(_opened, players.values()) if isinstance(player, Run)), None)
    if env is None and first is None:
        raise UsageError("Say where they play with env=..., or name a run for one of the sides.")
    place = make(env) if env is not None else first.env  # type: ignore[union-attr]
    known = {side: own for side, word in players.items() if (own := _known(place, word)) is not None}
    sides = make_sides({**players, **dict.fromkeys(known, RANDOM)}, {}, place.spec)
    for name, side in sides.learners.items():
        raise UsageError(f"{name}={side.algorithm}: in a match a side is played by a run, {RANDOM!r} or a script.")
    seats = make_players(place.spec, sides, 1, 1, 1)
    if known:
        place, seats = Opened(place), {name: _unaware(seat) for name, seat in seats.items()}
        seats |= {name: seats[name]._replace(algorithm=own, for_all=True) for name, own in known.items()}
    params = dict.fromkeys(seats, ()) | frozen_params(sides)
    workers = first.config.options.workers if first is not None else None
    play = make_player(compose(place.spec, seats), place, episodes, explore, workers)
    return summarize(*play(params, jax.random.key(seed)))


def _known(env: Any, word: Any) -> Algorithm | None:
    """The policy of that name which comes with an environment."""
    policies: dict[str, Knowing] = getattr(env, "policies", {})
    return knowing(env.spec, policies[word]) if isinstance(word, str) and word in policies else None


def knowing(spec: EnvSpec, policy: Knowing) -> Algorithm:
    """A policy of one opened environment as a player of many."""

    def act(_: EnvSpec, seen: Observation, key: Array) -> Array:
        keys = jax.random.split(key, len(seen.obs))
        return jax.vmap(policy)(seen.state, seen._replace(state=None), keys)

    return scripted(spec, act)


def _unaware(player: Player) -> Player:
    """A player in an environment that is opened for another one."""
    actor = player.algorithm

    def act(params: PyTree, seen: Observation, memory: PyTree, key: Any, explore: bool) -> Any:
        return actor.act(params, seen._replace(state=None), memory, key, explore)

    return player._replace(algorithm=Actor(act, actor.memory))


def _opened(player: Any) -> Any:
    """The run that a word names, else the word."""
    path = player.partition(":")[0] if isinstance(player, str) else ""
    return Run(path) if path and (Path(path) / CONFIG).is_file() else player


def opponents(words: str) -> list[dict[str, str]]:
    """`agent=runs/prey` as one dict of players for each seed of each run that is named."""
    found: list[dict[str, str]] = [{}]
    players = split_sides(words)
    if not players:
        raise UsageError(f"Write opponents as SIDE=PLAYER, separated by commas, not {words!r}.")
    for side, player in players.items():
        seeds = [str(path) for path in find_runs(player)] if Path(player).is_dir() else [player]
        found = [{**chosen, side: seed} for chosen in found for seed in seeds]
    return found
