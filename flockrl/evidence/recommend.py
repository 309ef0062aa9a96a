"""Which algorithms fit an environment, and why: judged by its spaces, sides and size, and by a short random game."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from flockrl.algos.assembly import make_algorithm
from flockrl.algos.presets import Preset, algorithms, make_config
from flockrl.algos.presets import preset as preset_of
from flockrl.core.errors import UsageError
from flockrl.core.types import EnvSpec
from flockrl.envs.api import Env
from flockrl.evaluation.episodes import record
from flockrl.evaluation.matches import random_actor

EPISODES, STEPS = 8, 100
"""The random game: the number of episodes, and the most steps of each."""
MANY = 16
"""From this number of agents on, the input of a central critic is wide, and independent learners are worth trying."""
TABLE = 64
"""Up to this number of different observations, a table is the simplest thing that works."""
FITS, POSSIBLE, NO = "fits", "possible", "no"


@dataclass(frozen=True)
class Facts:
    """Facts about an environment. Those that only playing shows are None where it cannot be played here."""

    spec: EnvSpec
    common: bool | None = None
    """Whether the agents of each side always earn the same."""
    zero_sum: bool | None = None
    """Whether the rewards of the sides add up to 0."""
    same_view: bool | None = None
    """Whether all agents see the same."""
    paid: float | None = None
    """Share of the steps in which any agent's reward was not 0."""
    views: int | None = None
    """Number of different observations seen, counted up to `TABLE` + 1."""

    @property
    def agents(self) -> int:
        return self.spec.num_agents

    @property
    def sides(self) -> int:
        return len(set(self.spec.sides))


class Advice(NamedTuple):
    """fit: fits, possible or no. reason: why, in a sentence."""

    name: str
    fit: str
    reason: str


def look(env: Any) -> Facts:
    """Play a few random episodes and collect the facts.

    For an environment on the host, or one with unbounded actions, nothing is played and only the spec is known.
    """
    spec = env.spec
    try:
        actor = random_actor(spec)
    except UsageError:
        return Facts(spec)
    if not isinstance(env, Env):
        return Facts(spec)
    episodes = record(actor, env, (), jax.random.key(0), EPISODES, True, STEPS)
    reward = np.concatenate([episode.reward for episode in episodes])
    obs = np.concatenate([episode.obs for episode in episodes])
    sides = np.array(spec.sides)
    sums = np.stack([reward[:, sides == side].sum(axis=1) for side in dict.fromkeys(spec.sides)], axis=1)
    return Facts(
        spec,
        common=all(bool(np.ptp(reward[:, sides == side], axis=1).max() < 1e-6) for side in set(spec.sides)),
        zero_sum=sums.shape[1] > 1 and bool(np.abs(sums).max() > 0 and np.abs(sums.sum(axis=1)).max() < 1e-5),
        same_view=len(set(spec.observations)) == 1 and bool((obs == obs[:, :1]).all()),
        paid=float((np.abs(reward).max(axis=1) > 0).mean()),
        views=min(len(np.unique(obs.reshape(-1, spec.obs_size), axis=0)), TABLE + 1),
    )


def describe(facts: Facts) -> list[str]:
    """The facts as lines of text."""
    spec = facts.spec
    kinds = len(set(spec.groups))
    actions = sorted({space.size for space in spec.actions})
    sizes = " to ".join(str(size) for size in dict.fromkeys((actions[0], actions[-1])))
    views = sorted({space.size for space in spec.observations})
    seen = " to ".join(str(size) for size in dict.fromkeys((views[0], views[-1])))
    lines = [
        f"{facts.agents} agent{'s' * (facts.agents > 1)} of {kinds} kind{'s' * (kinds > 1)} in {facts.sides} "
        f"side{'s' * (facts.sides > 1)}{_named(facts)}, episodes of at most {spec.max_steps:,} steps",
        f"{'discrete actions' if spec.discrete else 'continuous actions, dimensions'}: {sizes}; observations: {seen} "
        f"numbers each; a central critic reads {spec.central_size:,}",
    ]
    if facts.common is None:
        return [*lines, "rewards and observations were not examined: no random game can be played here"]
    return [*lines, _rewards(facts), _views(facts)]


def _named(facts: Facts) -> str:
    """The names of the sides, where agents oppose each other."""
    return f" ({', '.join(facts.spec.parties)})" if facts.sides > 1 else ""


def _rewards(facts: Facts) -> str:
    if facts.agents == 1:
        kind = "rewards of a single agent"
    elif facts.sides > 1:
        kind = "sides against each other" + (", zero-sum" if facts.zero_sum else "")
    else:
        kind = "one side with " + ("a common reward" if facts.common else "individual rewards")
    return f"{kind}; {facts.paid:.0%} of random steps had a reward other than 0"


def _views(facts: Facts) -> str:
    if facts.agents == 1:
        return "whether the agent observes everything cannot be found out by playing"
    if facts.same_view:
        return "all agents see the same"
    return "agents have different observations: none of them sees everything"


def advise(facts: Facts) -> list[Advice]:
    """Advice on every algorithm, the fitting ones first."""
    found = [_judge(name, preset, facts) for name, preset in _all().items()]
    order = (FITS, POSSIBLE, NO)
    first = "mappo" if facts.sides == 1 and facts.same_view is False else ""
    return sorted(found, key=lambda advice: (order.index(advice.fit), advice.name != first))


def _all() -> dict[str, Preset]:
    return {name: preset_of(name) for name in algorithms()}


def _judge(name: str, preset: Preset, facts: Facts) -> Advice:
    try:
        make_algorithm(name, facts.spec, make_config(name, {}), envs=16, updates=1)
    except UsageError as error:
        return Advice(name, NO, str(error))
    if preset.recorded:
        return Advice(name, POSSIBLE, "learns only from recorded trajectories: useful if you have some")
    rule = {
        "ppo": _ppo, "reinforce": _reinforce, "ddpg": _off_policy, "td3": _off_policy, "sac": _off_policy,
        "q_learning": _q, "tabular": _table,
    }.get(str(preset.family), _other)  # fmt: skip
    single = bool(preset.instead)
    if facts.agents == 1 and not single and preset.family != "tabular":
        alone = next((n for n, p in _all().items() if p.family == preset.family and p.instead), "")
        if alone:
            return Advice(name, POSSIBLE, f"meant for several agents: with one agent, {alone} is the plain form")
    fit, reason = rule(name, preset, facts)
    return Advice(name, fit, reason)


def _other(name: str, preset: Preset, facts: Facts) -> tuple[str, str]:
    return POSSIBLE, preset.summary


def _central(preset: Preset) -> bool:
    return "central" in preset.settings.values()


def _ppo(name: str, preset: Preset, facts: Facts) -> tuple[str, str]:
    if name in ("ia2c", "maa2c"):
        return POSSIBLE, "one pass over each rollout: a simpler baseline that needs more steps than PPO"
    if name == "ppo":
        return FITS, "takes any action space and any reward: a good first choice"
    if not _central(preset):
        if facts.sides > 1 or facts.common is False:
            return FITS, "each agent learns from its own reward with a critic of its own"
        if facts.agents >= MANY:
            return FITS, f"critics stay small with {facts.agents} agents"
        return FITS, "a strong baseline, against which to measure what a central critic adds"
    if facts.agents >= MANY:
        return (
            POSSIBLE,
            f"its critic reads {facts.spec.central_size:,} numbers at {facts.agents} agents: compare with ippo",
        )
    if facts.sides > 1:
        return POSSIBLE, "central critics stabilise learning against opponents that change; execution stays local"
    if facts.same_view:
        return FITS, "all agents see the same, so its critic knows little more than ippo's"
    return FITS, "its critic sees what single agents do not, at no cost when acting"


def _reinforce(name: str, preset: Preset, facts: Facts) -> tuple[str, str]:
    if facts.spec.max_steps <= 25:
        return POSSIBLE, "whole-episode returns work with such short episodes; PPO uses its data better"
    return POSSIBLE, f"noisy returns over up to {facts.spec.max_steps:,} steps: for study, or as a baseline"


def _off_policy(name: str, preset: Preset, facts: Facts) -> tuple[str, str]:
    if facts.spec.discrete:
        if preset.family == "sac":
            return POSSIBLE, "made for continuous actions; with discrete ones it learns a value for every action"
        return POSSIBLE, "made for continuous actions; discrete ones go through a relaxation"
    if _central(preset) and facts.agents >= MANY:
        return POSSIBLE, f"critics of {facts.agents} agents' observations and actions are wide: try independent ones"
    good = {
        "ddpg": "learns from replay, deterministic actions: sample-efficient, sensitive to exploration noise",
        "td3": "twin critics and delayed updates: steadier than DDPG",
        "sac": "learns from replay with an entropy bonus: sample-efficient, explores without added noise",
    }[str(preset.family)]
    if _central(preset):
        return FITS, f"{good}; critics see all observations and actions"
    return FITS, f"{good}" + ("; other agents appear as noise to each agent" if facts.agents > 1 else "")


def _q(name: str, preset: Preset, facts: Facts) -> tuple[str, str]:
    mixer = preset.settings.get("mixer", "none")
    if mixer == "none":
        if name == "dqn":
            return FITS, "discrete actions and one agent: replay makes it sample-efficient"
        return FITS, "each agent learns the value of its own actions from its own reward"
    if facts.sides > 1:
        return POSSIBLE, f"one mixer for each of {facts.sides} sides, whose opponents change while it learns"
    if facts.common is False:
        return POSSIBLE, "learns one joint value: individual rewards are averaged and their differences lost"
    return {
        "sum": (FITS, "splits the common reward's joint value into a sum of values: simple, and hard to beat"),
        "monotonic": (FITS, "mixes the agents' values by the state into the joint value: more expressive than a sum"),
        "qplex": (POSSIBLE, "represents what vdn and qmix cannot, such as high reward beside high penalty; slower"),
        "weighted": (POSSIBLE, "for joint actions that pay only if all take part, which qmix undervalues"),
        "qtran": (POSSIBLE, "represents any joint value, but is harder to optimise"),
    }[str(mixer)]


def _table(name: str, preset: Preset, facts: Facts) -> tuple[str, str]:
    if facts.views is None:
        return POSSIBLE, "only if there are few different observations"
    if facts.views <= TABLE:
        return FITS, f"only {facts.views} different observations were seen: a table holds them"
    return NO, f"more than {TABLE} different observations were seen within a few episodes: too many for a table"


def hints(facts: Facts) -> list[str]:
    """Advice on settings other than the algorithm."""
    found = []
    if facts.agents > 1 and facts.same_view is False:
        found.append(
            "If agents need to remember what they no longer see, use --memory gru "
            "(ppo, reinforce and q_learning families)."
        )
    if facts.paid is not None and facts.paid < 0.05:
        found.append("Rewards are rare: explore longer (--entropy, --explore-part) and train for more steps.")
    if facts.sides > 1:
        sides = ",".join(f"{name}=ALGORITHM" for name in facts.spec.parties)
        found.append(f"Each side can have a learner, a frozen policy or a script: flockrl train {sides} ENV.")
    if len(set(facts.spec.groups)) > 1:
        found.append("Agents of different kinds share no parameters by default (--share groups).")
    return found
