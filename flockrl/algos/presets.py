"""The names people know: each is a family and the arguments that make it what it is."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from flockrl.algos.family import Family
from flockrl.core.errors import UsageError, nearest
from flockrl.core.settings import build
from flockrl.core.types import Algorithm, Box, EnvSpec


class Preset(NamedTuple):
    """family: module under `flockrl.algos` with a `FAMILY`, or the `Family` itself; settings: what the name fixes.

    instead: for a learner of one agent, what to use with more of them. recorded: whether it learns from recorded
    trajectories only. real: what stands in for it where agents have real actions.
    """

    family: str | Family
    settings: Mapping[str, Any]
    summary: str
    instead: str = ""
    recorded: bool = False
    real: str = ""


OWN, CENTRAL = {"critic": "own"}, {"critic": "central"}
OWN_BASE, CENTRAL_BASE = {"baseline": "own"}, {"baseline": "central"}
MIXED = {"lr": 1e-3, "tau": 0.005}
DQN = {"lr": 1e-3, "n_step": 3}
IC3, TARMAC = {"comm": "ic3net", "memory": "gru"}, {"comm": "tarmac", "comm_rounds": 2}
DGN = {"comm": "gat", "comm_rounds": 2}
MMD = {
    "gamma": 1.0, "gae_lambda": 1.0, "entropy": 0.0, "magnet": 0.2, "magnet_rate": 0.02, "lr": 1e-3, "epochs": 4,
    "minibatches": 1, "rollout_steps": 64, "share": "all", "hidden": (64, 64),
}  # fmt: skip
LEAGUE = {"self_play": "league", "pool_size": 24}
COMA = {**CENTRAL, "credit": "counterfactual"}
A2C = {"epochs": 1, "minibatches": 1, "clip": None, "rollout_steps": 25, "hidden": (64, 64)}
TRUST = {"entropy": 0.0, "hidden": (64, 64)}

PRESETS: dict[str, Preset] = {
    "ppo": Preset("ppo", OWN, "proximal policy optimisation for one agent", "ippo or mappo"),
    "ippo": Preset("ppo", OWN, "independent PPO: every critic sees its agent's observation"),
    "mappo": Preset("ppo", CENTRAL, "multi-agent PPO: critics see the global state"),
    "ia2c": Preset("ppo", {**OWN, **A2C, "rollout_steps": 5}, "independent advantage actor-critic"),
    "maa2c": Preset("ppo", {**CENTRAL, **A2C, "rollout_steps": 5}, "advantage actor-critic with central critics"),
    "happo": Preset("happo", {}, "PPO for agents that share nothing, one after the other"),
    "haa2c": Preset("happo", A2C, "advantage actor-critic for agents that share nothing, one after the other"),
    "hatrpo": Preset("hatrpo", TRUST, "trust regions for agents that share nothing, one after the other"),
    "coma": Preset("ppo", COMA, "MAPPO whose agents compare their action with their other ones"),
    "mmd": Preset("ppo", {**OWN, **MMD}, "magnetic mirror descent: PPO near a policy that follows slowly, for games"),
    "league": Preset("ppo", {**OWN, **LEAGUE}, "PPO in a league: main agents, and exploiters who look for weaknesses"),
    "vdac": Preset("vdac", A2C, "actor-critic whose agents' values add up to the team's"),
    "vdac_mix": Preset("vdac", {**A2C, "mixer": "monotonic"}, "VDAC with values mixed monotonically by the state"),
    "reinforce": Preset("reinforce", OWN_BASE, "REINFORCE for one agent", "ireinforce or mareinforce"),
    "ireinforce": Preset("reinforce", OWN_BASE, "independent REINFORCE, each with its own baseline"),
    "ipg": Preset("reinforce", OWN_BASE, "independent policy gradients: ireinforce by another name"),
    "mareinforce": Preset("reinforce", CENTRAL_BASE, "REINFORCE with baselines of the global state"),
    "shac": Preset("shac", OWN, "gradients through the environment itself, and a critic where rollouts end"),
    "apg": Preset("shac", {"critic": "none"}, "gradients through whole episodes of the environment itself"),
    "ddpg": Preset("ddpg", OWN, "deep deterministic policy gradient for one agent", "iddpg or maddpg"),
    "iddpg": Preset("ddpg", OWN, "independent DDPG"),
    "maddpg": Preset("ddpg", CENTRAL, "DDPG with critics of all observations and actions"),
    "td3": Preset("td3", OWN, "twin delayed DDPG for one agent", "itd3 or matd3"),
    "itd3": Preset("td3", OWN, "independent TD3"),
    "matd3": Preset("td3", CENTRAL, "TD3 with critics of all observations and actions"),
    "sac": Preset("sac", OWN, "soft actor-critic for one agent", "isac or masac"),
    "isac": Preset("sac", OWN, "independent SAC"),
    "masac": Preset("sac", CENTRAL, "SAC with critics of all observations and actions"),
    "hasac": Preset("hasac", {}, "SAC for agents that share nothing, one after the other"),
    "maac": Preset("maac", {}, "SAC whose critics choose by attention which agents to look at"),
    "dqn": Preset("q_learning", DQN, "deep Q-learning for one agent", "iql, vdn or qmix"),
    "iql": Preset("q_learning", {}, "independent Q-learning"),
    "vdn": Preset("q_learning", {"mixer": "sum"}, "value decomposition: the team's value is a sum"),
    "qmix": Preset("q_learning", {"mixer": "monotonic", **MIXED}, "values mixed monotonically by the global state"),
    "qplex": Preset("q_learning", {"mixer": "qplex", **MIXED}, "duplex dueling: joint advantages weigh in"),
    "wqmix": Preset("q_learning", {"mixer": "weighted", **MIXED}, "QMIX that weighs good joint actions more"),
    "qtran": Preset("q_learning", {"mixer": "qtran", **MIXED}, "a free joint value, and a sum that agrees with it"),
    "mfq": Preset("q_learning", {"mean_field": True}, "Q-learning with the mean of the neighbours' last actions"),
    "mfac": Preset("ppo", {**OWN, **A2C, "mean_field": True}, "actor-critic with the mean of the neighbours' actions"),
    "feudal": Preset("feudal", {}, "a manager sets goals, and workers are paid for reaching them"),
    "roles": Preset("feudal", {"goal": "role"}, "a manager chooses each agent's role, a set of actions that do alike"),
    "commnet": Preset("ppo", {**OWN, "comm": "commnet"}, "PPO whose agents hear the mean of what others say"),
    "ic3net": Preset("ppo", {**OWN, **IC3}, "CommNet with memory and gates: agents decide when to speak"),
    "tarmac": Preset("ppo", {**CENTRAL, **TARMAC}, "MAPPO whose agents choose whom to listen to, in two rounds"),
    "dgn": Preset("q_learning", DGN, "Q-learning with attention over neighbours and theirs"),
    "dial": Preset("q_learning", {"comm": "dial", "memory": "gru"}, "Q-learning whose agents send bits, by gradients"),
    "rial": Preset("ppo", {**OWN, "comm": "rial", "memory": "gru"}, "PPO whose agents choose symbols to say"),
    "bc": Preset("bc", {}, "behaviour cloning: do what a recorded team did", recorded=True),
    "cql": Preset(
        "q_learning",
        {"conservative": 1.0, "normalize_reward": False},
        "conservative Q-learning from recorded teams",
        recorded=True,
        real="cql_continuous",
    ),
    "cql_continuous": Preset("cql", OWN, "conservative SAC from recorded teams with real actions", recorded=True),
    "implicit_q": Preset("implicit_q", OWN, "implicit Q-learning from recorded teams (Kostrikov's IQL)", recorded=True),
    "td3_bc": Preset("td3_bc", OWN, "TD3 from recorded teams that stays near what they did", recorded=True),
    "iql_tabular": Preset("tabular", {}, "independent Q-learning with tables, for small games"),
}

_REGISTERED: dict[str, Preset] = {}
"""Algorithms of users, by `register`."""
ENTRY_POINTS = "flockrl.algorithms"
"""Group of entry points through which other distributions add algorithms; each names a `Family`."""


def register(name: str, make: Callable[..., Algorithm], config: type, summary: str = "", **facts: Any) -> None:
    """Add an algorithm of your own: then `flockrl.train(name, ...)` and everything else takes it by name.

    make(spec, config, *, envs, updates) -> Algorithm. config: a frozen dataclass with at least `rollout_steps`.
    facts: fields of `algos.family.Family`, such as on_policy=True.
    """
    if name in PRESETS:
        raise UsageError(f"There is an algorithm {name!r} already: choose another name.")
    if not name.isidentifier():
        raise UsageError(f"An algorithm's name must be letters, digits and underscores, not {name!r}.")
    about = summary or (make.__doc__ or "").strip().partition("\n")[0]
    _REGISTERED[name] = Preset(Family(make, config, **facts), {}, about)


def algorithms() -> Iterator[str]:
    """All names: ours, registered ones, and those that other distributions bring."""
    yield from dict.fromkeys([*PRESETS, *_REGISTERED, *(point.name for point in entry_points(group=ENTRY_POINTS))])


def preset(name: str) -> Preset:
    found = PRESETS.get(name) or _REGISTERED.get(name) or _from_entry_point(name)
    if found is None:
        raise UsageError(f"There is no algorithm {name!r}.{nearest(name, algorithms())}")
    return found


def _from_entry_point(name: str) -> Preset | None:
    for point in entry_points(group=ENTRY_POINTS, name=name):
        try:
            found = point.load()
        except Exception as error:
            raise UsageError(f"The algorithm {name} of another distribution cannot be loaded: {error}.") from error
        if not isinstance(found, Family):
            raise UsageError(f"The entry point {name} of {ENTRY_POINTS} must name a flockrl Family, not {found!r}.")
        return Preset(found, {}, (found.make.__doc__ or "").strip().partition("\n")[0])
    return None


def family(name: str) -> Family:
    """What the named algorithm is."""
    chosen = preset(name).family
    return chosen if isinstance(chosen, Family) else importlib.import_module(f"flockrl.algos.{chosen}").FAMILY


def fitting(name: str, spec: EnvSpec) -> str:
    """The name, or that of the learner which stands in for it where agents have real actions."""
    real = any(isinstance(space, Box) for space in spec.actions)
    return (real and preset(name).real) or name


def make_config(name: str, settings: Mapping[str, Any]) -> Any:
    """The algorithm's config with the preset's values, changed by `settings`."""
    return build(family(name).config, {**preset(name).settings, **settings}, name)
