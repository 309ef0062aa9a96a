"""From names and settings to one `Algorithm`: a learner for all agents, or one player for each side."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from flockrl.algos.family import Family
from flockrl.algos.opponents import models_opponents
from flockrl.algos.presets import family, fitting, make_config, preset
from flockrl.algos.sides import Player, common_steps, frozen, per_side, random_side, scripted, side_spec
from flockrl.algos.wrappers.averaged import averaged
from flockrl.algos.wrappers.bonus import exploring
from flockrl.algos.wrappers.credited import credited
from flockrl.algos.wrappers.fingerprint import fingerprinted
from flockrl.algos.wrappers.mean_field import mean_field, with_mean_actions
from flockrl.algos.wrappers.measured import measured
from flockrl.algos.wrappers.practice import practising, refuse_practice
from flockrl.algos.wrappers.rial import rial
from flockrl.algos.wrappers.self_play import mixed
from flockrl.algos.wrappers.settings import roles
from flockrl.algos.wrappers.shaped import shaped
from flockrl.algos.wrappers.talking import talking
from flockrl.core.code import SETTINGS, load_function
from flockrl.core.errors import UsageError, nearest
from flockrl.core.types import Algorithm, Array, Box, Discrete, EnvSpec, Mixture, MultiDiscrete, PyTree

ACTS = (
    "A bonus, a fingerprint or importance is for teams that act while they learn, and recordings do not go anywhere: "
    "leave out --bonus, --fingerprint and --importance."
)
MOST = 1_000_000
"""The largest count that a saved side may name."""
DEEPEST = 8
"""Frozen policies inside of frozen policies that a run may be made of."""


@dataclass(frozen=True)
class Side:
    """Who plays for one side of a game, as values that can be saved."""

    kind: Literal["learner", "frozen", "script", "random"]
    algorithm: str = ""
    """Name of the learner, or of the one that a frozen policy comes from."""
    config: Any = None
    """Its settings; a `Sides` where a frozen policy comes from a run with several learners."""
    source: str = ""
    """Where a frozen policy comes from, or package.module:function of a script."""
    of: str = ""
    """The side of its run that a frozen policy played; empty where it played for all agents."""
    envs: int = 0
    """Environments of the run that a frozen policy comes from."""
    given: Any = field(default=None, compare=False, repr=False)
    """What the user gave in Python instead of a name: a script's function, or the `Run` of a frozen policy."""
    members: int = 0
    """Policies of which a frozen side draws one as an episode begins; 0 where it has one."""

    def to_json(self) -> dict[str, Any]:
        plain = {
            "kind": self.kind,
            "algorithm": self.algorithm,
            "source": self.source,
            "of": self.of,
            "envs": self.envs,
            "members": self.members,
        }
        saved = {name: value for name, value in plain.items() if value}
        return saved | ({"config": config_to_json(self.config)} if self.kind == "frozen" else {})


@dataclass(frozen=True)
class Sides:
    """The players of all sides, by name, in the place of one algorithm's config."""

    players: Mapping[str, Side]

    @property
    def learners(self) -> dict[str, Side]:
        return {name: side for name, side in self.players.items() if side.kind == "learner"}

    @property
    def rollout_steps(self) -> int:
        if not self.learners:
            raise UsageError("No side learns: play these policies against each other with `flockrl eval`.")
        return common_steps({name: side.config.rollout_steps for name, side in self.learners.items()})


def config_to_json(config: Any) -> dict[str, Any]:
    """An algorithm's settings, or those of all sides, as plain values."""
    if not isinstance(config, Sides):
        return dataclasses.asdict(config)
    return {
        "sides": {name: side.to_json() for name, side in config.players.items()},
        "config": {name: dataclasses.asdict(side.config) for name, side in config.learners.items()},
    }


def code_of(config: Any) -> list[str]:
    """The names of users' code that a config needs: kernels, potentials, and scripts of sides."""
    if not isinstance(config, Sides):
        named = (getattr(config, name, None) for name in SETTINGS)
        return [name for name in named if name]
    found: list[str] = []
    for side in config.players.values():
        found += [side.source] if side.kind == "script" else code_of(side.config)
    return found


def config_from_json(algorithm: str, saved: Any, depth: int = 0) -> Any:
    """What `config_to_json` wrote. depth: how many frozen policies it stands inside of."""
    if not isinstance(saved, Mapping):
        raise UsageError(f"The settings of {algorithm} must be given by name.")
    if depth > DEEPEST:
        raise UsageError("A run's frozen sides come from runs with frozen sides, and so on: too many to follow.")
    if "sides" not in saved:
        return make_config(algorithm, saved)
    if not isinstance(saved["sides"], Mapping) or not isinstance(saved.get("config"), Mapping):
        raise UsageError('"sides" and "config" of a run must hold an entry for each side.')
    settings = saved["config"]
    return Sides({name: _side_from_json(side, settings.get(name, {}), depth) for name, side in saved["sides"].items()})


def _side_from_json(saved: Any, settings: Any, depth: int) -> Side:
    words = ("kind", "algorithm", "source", "of")
    if not isinstance(saved, Mapping) or not all(isinstance(saved.get(word, ""), str) for word in words):
        raise UsageError(f"A side of a run must be an object with its kind, not {saved!r}.")
    kind, algorithm = saved.get("kind"), saved.get("algorithm", "")
    if kind == "learner":
        if not isinstance(settings, Mapping):
            raise UsageError(f"The settings of {algorithm} must be given by name.")
        return Side(kind, algorithm, make_config(algorithm, settings))
    if kind == "frozen":
        config = config_from_json(algorithm, saved.get("config", {}), depth + 1)
        envs, members = saved.get("envs", 0), saved.get("members", 0)
        for name, number in (("envs", envs), ("members", members)):
            if not isinstance(number, int) or not 0 <= number <= MOST:
                raise UsageError(f"{name} of a frozen side must be a whole number up to {MOST:,}, not {number!r}.")
        source, of = saved.get("source", ""), saved.get("of", "")
        return Side(kind, algorithm, config, source, of, envs, members=members)
    if kind in ("script", "random"):
        return Side(kind, source=saved.get("source", ""))
    raise UsageError(f"A side of a run is a learner, frozen, script or random, not {kind!r}.")


def check_sides(spec: EnvSpec, names: Mapping[str, Any]) -> None:
    """Refuse names that are not those of the environment's sides, or that leave one out."""
    parties = spec.parties
    for name in names:
        if name not in parties:
            raise UsageError(f"{spec.name} has no side {name!r}: its sides are {', '.join(parties)}.")
    missing = [name for name in parties if name not in names]
    if missing:
        raise UsageError(
            f"Say who plays for {' and '.join(missing)} of {spec.name} too: an algorithm, a run, random, or a script "
            "(package.module:function)."
        )


def make_algorithm(name: str, spec: EnvSpec, config: Any, *, envs: int, updates: int, env: Any = None) -> Algorithm:
    """The named algorithm for an environment, as pure functions, with the wrappers that every learner has.

    env: the environment itself, where there is one to learn in; some wrappers ask it for more than its spec.

    With `Sides` as config, one algorithm that is made of the players of all sides.
    """
    if not isinstance(config, Sides):
        own = max(1, envs // max(1, len(roles(config))))  # several learners share the environments
        learner = measured(_learner(name, spec, config, own, updates), spec)
        return practising(learner, spec, config, env, envs=envs, updates=updates, about=family(name))
    return per_side(spec, make_players(spec, config, config.rollout_steps, envs, updates))


def make_players(spec: EnvSpec, config: Sides, steps: int, envs: int, updates: int) -> dict[str, Player]:
    """Who plays for each side, ready to act and, where it learns, to learn from rollouts of `steps` steps."""
    check_sides(spec, config.players)
    return {side: _player(spec, side, who, steps, envs, updates) for side, who in config.players.items()}


def _learner(name: str, spec: EnvSpec, config: Any, envs: int, updates: int) -> Algorithm:
    chosen = preset(name)
    if chosen.instead and spec.num_agents != 1:
        raise UsageError(
            f"{name} trains one agent, and {spec.name} has {spec.num_agents}: use {chosen.instead} instead."
        )
    if (other := fitting(name, spec)) != name:
        raise UsageError(f"{name} needs agents that choose, and {spec.name} has real actions: use {other} instead.")
    if chosen.recorded and _acts(config):
        raise UsageError(ACTS)
    about, mean = family(name), getattr(config, "mean_field", False)
    if getattr(config, "comm", "none") == "rial":
        made = rial(spec, config, lambda whole, own: _learner(name, whole, own, envs, updates))
        return talking(made, config, about.on_policy)
    sees = with_mean_actions(spec) if mean else spec

    def build(spec: EnvSpec) -> Algorithm:
        return averaged(about.make(spec, config, envs=envs, updates=updates), spec, config)

    made = fingerprinted(build, sees, config, updates)  # a family's own refusal says more
    _require_actions(name, about, spec)
    made = shaped(made, sees, config, envs, updates)  # each agent's own pay is shaped
    made = credited(made, sees, config, envs, about.on_policy)
    made = talking(made, config, about.on_policy)
    made = exploring(made, sees, config, about, envs, updates)
    return mean_field(made, spec) if mean else made


def _require_actions(name: str, chosen: Family, spec: EnvSpec) -> None:
    """The family says that it takes the actions of this environment."""
    takes: dict[type, bool] = {Discrete: chosen.discrete, Box: chosen.continuous, MultiDiscrete: chosen.factorised}
    words: dict[type, str] = {Discrete: "discrete", Box: "continuous", MultiDiscrete: "several discrete"}
    for space in spec.actions:
        if not takes[type(space)]:
            raise UsageError(f"{name} does not take the {words[type(space)]} actions of {spec.name}.")


def _player(whole: EnvSpec, name: str, side: Side, steps: int, envs: int, updates: int) -> Player:
    agents = whole.parties[name]
    if side.kind == "learner":
        return _learning_player(whole, name, side, steps, envs, updates)
    part = whole.part(agents)
    if side.kind == "random":
        return Player(part, random_side(part), learns=False)
    if side.kind == "script":
        return Player(part, scripted(part, side.given or load_function(side.source, "script")), learns=False)
    return frozen_player(whole, part, side, side.envs or envs)


def _learning_player(whole: EnvSpec, name: str, side: Side, steps: int, envs: int, updates: int) -> Player:
    about, agents = family(side.algorithm), whole.parties[name]
    central, actions = about.central(side.config), about.joint_actions(side.config)
    part = side_spec(whole, agents, central, actions)
    pieces = steps // side.config.rollout_steps
    if pieces > 1 and about.memory(side.config):  # what it remembered is known where rollouts begin, and not within
        how = "on-policy" if about.on_policy else "from a replay"
        raise UsageError(
            f"{name} learns {how} with memory and needs rollouts of its own length: set --{name}.rollout-steps to "
            f"{steps}."
        )
    refuse_practice(side.config, f"{name}={side.algorithm}", "one algorithm for all sides")
    learner = measured(_learner(side.algorithm, part, side.config, envs, updates * pieces), part)
    return Player(part, learner, central, actions, models=models_opponents(side.config))


def frozen_player(whole: EnvSpec, part: EnvSpec, side: Side, envs: int) -> Player:
    """A policy of another run, which stays as it is."""
    if isinstance(side.config, Sides):
        if side.of not in side.config.players:
            raise UsageError(f"{side.source} has no side {side.of!r}.{nearest(side.of, side.config.players)}")
        own = side.config.players[side.of]
        if own.kind != "learner":  # it did not learn there either
            return _player(whole, side.of, own, 1, envs, 1)
        policy = _origin(whole, side, envs).algorithm
        if side.members:
            return Player(part, frozen(mixed(policy), _mixture_of(policy, side.members), _samples(own)), learns=False)
        return Player(part, frozen(policy, _params_of(policy), _samples(own)), learns=False)
    policy = make_algorithm(side.algorithm, whole, side.config, envs=envs, updates=1)
    return Player(part, frozen(policy, _params_of(policy), _samples(side)), learns=False, for_all=True)


def _samples(side: Side) -> bool:
    """Whether a policy is stochastic, so that it draws its actions while others explore."""
    return family(side.algorithm).logp


def _origin(whole: EnvSpec, side: Side, envs: int) -> Player:
    own = side.config.players[side.of]
    return _learning_player(whole, side.of, own, own.config.rollout_steps, envs, 1)


def _params_of(policy: Algorithm) -> Callable[[Array], PyTree]:
    return lambda key: policy.params(policy.init(key))


def _mixture_of(policy: Algorithm, members: int) -> Callable[[Array], PyTree]:
    def init(key: Array) -> Mixture:
        params = jax.tree.map(lambda x: jnp.repeat(x[None], members, 0), policy.params(policy.init(key)))
        return Mixture(params, jnp.full(members, 1.0 / members))

    return init


def _acts(config: Any) -> bool:
    """Whether these settings need a team that acts while it learns."""
    return getattr(config, "bonus", "none") != "none" or any(
        getattr(config, name, False) for name in ("fingerprint", "importance")
    )


class Facts(NamedTuple):
    """What holds for an algorithm, or for any of the learners of a run with sides."""

    on_policy: bool
    logp: bool
    memory: bool
    recorded: bool
    grows: bool
    acts: bool


def facts(name: str, config: Any) -> Facts:
    """What there is to know about an algorithm with these settings, as its family describes it."""
    if not isinstance(config, Sides):
        about = family(name)
        usual = {"comm": "none", "mean_field": False, "net": "flat"}
        plain = all(getattr(config, name, value) == value for name, value in usual.items())
        acts = _acts(config)
        grows = about.grows(config) and plain and not (preset(name).instead or acts)
        return Facts(about.on_policy, about.logp, about.memory(config), preset(name).recorded, grows, acts)
    each = [facts(side.algorithm, side.config) for side in config.learners.values()]
    return Facts(*(any(column) for column in zip(*each, strict=True)))._replace(grows=False)
