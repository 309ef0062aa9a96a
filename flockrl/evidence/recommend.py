"""Which algorithms fit an environment, and why: from its spaces, teams and size, and from a short random game."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from flockrl.algos.presets import Preset, algorithms, make_algorithm, make_config
from flockrl.algos.presets import preset as preset_of
from flockrl.core.errors import UsageError
from flockrl.core.types import EnvSpec
from flockrl.envs.api import Env
from flockrl.evaluation.episodes import record
from flockrl.evaluation.matches import random_actor

EPISODES, STEPS = 8, 100
"""The random game: so many episodes, and no more steps of each."""
MANY = 16
"""From here on a critic of everything is wide and a team of independent learners is worth a look."""
TABLE = 64
"""Up to so many different observations a table is the simplest thing that works."""
FITS, POSSIBLE, NO = "fits", "possible", "no"


@dataclass(frozen=True)
class Facts:
    """What there is to know about an environment. What only playing tells is None where it cannot be played here."""

    spec: EnvSpec
    common: bool | None = None
    """Whether the agents of each team always earn the same."""
    zero_sum: bool | None = None
    """Whether the teams' rewards add up to nothing."""
    same_view: bool | None = None
    """Whether all agents see the same."""
    paid: float | None = None
    """Part of the steps that paid anything but 0 to anyone."""
    views: int | None = None
    """Different observations that were met, counted up to a little above `TABLE`."""

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
    """Play a few random episodes and note what happens.

    What cannot be played so is only described: an environment on the host, or one with actions without bounds.
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
        f"team{'s' * (facts.sides > 1)}, episodes of at most {spec.max_steps:,} steps",
        f"{'discrete actions' if spec.discrete else 'continuous actions, dimensions'}: {sizes}; observations: {seen} "
        f"numbers each; a central critic reads {spec.central_size:,}",
    ]
    if facts.common is None:
        return [*lines, "rewards and what agents see were not looked at: no random game can be played here"]
    return [*lines, _rewards(facts), _views(facts)]


def _rewards(facts: Facts) -> str:
    if facts.agents == 1:
        kind = "rewards of a single agent"
    elif facts.sides > 1:
        kind = "teams against each other" + (", zero-sum" if facts.zero_sum else "")
    else:
        kind = "one team with " + ("a common reward" if facts.common else "individual rewards")
    return f"{kind}; {facts.paid:.0%} of random steps paid anything"


def _views(facts: Facts) -> str:
    if facts.agents == 1:
        return "whether what the agent sees tells everything cannot be known from here"
    if facts.same_view:
        return "all agents see the same"
    return "each agent sees something of its own: none of them sees everything"


def advise(facts: Facts) -> list[Advice]:
    """Every algorithm there is, the fitting ones first."""
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
        return Advice(name, POSSIBLE, "learns from recorded trajectories alone: when there are some, or as a start")
    rule = {
        "ppo": _ppo, "reinforce": _reinforce, "ddpg": _off_policy, "td3": _off_policy, "sac": _off_policy,
        "q_learning": _q, "tabular": _table,
    }.get(str(preset.family), _other)  # fmt: skip
    single = bool(preset.instead)
    if facts.agents == 1 and not single and preset.family != "tabular":
        alone = next((n for n, p in _all().items() if p.family == preset.family and p.instead), "")
        if alone:
            return Advice(name, POSSIBLE, f"meant for teams: with one agent, {alone} is the plain form")
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
        return FITS, "takes any action space and any reward: a sound first try"
    if not _central(preset):
        if facts.sides > 1 or facts.common is False:
            return FITS, "each agent learns from its own reward with a critic of its own"
        if facts.agents >= MANY:
            return FITS, f"critics stay small with {facts.agents} agents"
        return FITS, "a strong baseline: what a central critic adds has to show against it"
    if facts.agents >= MANY:
        return (
            POSSIBLE,
            f"its critic reads {facts.spec.central_size:,} numbers at {facts.agents} agents: compare with ippo",
        )
    if facts.sides > 1:
        return POSSIBLE, "central critics steady learning against opponents that change; execution stays local"
    if facts.same_view:
        return FITS, "all agents see the same, so its critic has little more to go by than ippo's"
    return FITS, "its critic sees what single agents do not, at no cost when acting"


def _reinforce(name: str, preset: Preset, facts: Facts) -> tuple[str, str]:
    if facts.spec.max_steps <= 25:
        return POSSIBLE, "whole-episode returns are bearable with such short episodes; PPO uses its data better"
    return POSSIBLE, f"noisy returns over up to {facts.spec.max_steps:,} steps: for study, or as a baseline"


def _off_policy(name: str, preset: Preset, facts: Facts) -> tuple[str, str]:
    if facts.spec.discrete:
        if preset.family == "sac":
            return POSSIBLE, "made for continuous actions; discrete ones work too, with values of every action"
        return POSSIBLE, "made for continuous actions; discrete ones go through a relaxation"
    if _central(preset) and facts.agents >= MANY:
        return POSSIBLE, f"critics of {facts.agents} agents' observations and actions are wide: try the independent one"
    good = {
        "ddpg": "learns from replay, deterministic actions: sample-efficient, sensitive to its noise",
        "td3": "twin critics and delayed updates: steadier than DDPG",
        "sac": "replay and entropy: sample-efficient and explores by itself",
    }[str(preset.family)]
    if _central(preset):
        return FITS, f"{good}; critics see all observations and actions"
    return FITS, f"{good}" + ("; others look like noise to it" if facts.agents > 1 else "")


def _q(name: str, preset: Preset, facts: Facts) -> tuple[str, str]:
    mixer = preset.settings.get("mixer", "none")
    if mixer == "none":
        if name == "dqn":
            return FITS, "discrete actions and one agent: replay makes it sample-efficient"
        return FITS, "each agent learns the value of its own actions from its own reward"
    if facts.sides > 1:
        return POSSIBLE, f"one mixer for each of {facts.sides} teams, whose opponents change while it learns"
    if facts.common is False:
        return POSSIBLE, "mixes one team value: individual rewards are averaged and their differences lost"
    return {
        "sum": (FITS, "one team reward split into a sum of values: simple, and hard to beat"),
        "monotonic": (FITS, "one team reward, mixed by the state: more expressive than a sum"),
        "qplex": (POSSIBLE, "represents what vdn and qmix cannot, such as high reward beside high penalty; slower"),
        "weighted": (POSSIBLE, "for joint actions that pay only together, where qmix gives up too early"),
        "qtran": (POSSIBLE, "represents any team value, at the price of a harder optimisation"),
    }[str(mixer)]


def _table(name: str, preset: Preset, facts: Facts) -> tuple[str, str]:
    if facts.views is None:
        return POSSIBLE, "only if there are few different observations"
    if facts.views <= TABLE:
        return FITS, f"no more than {facts.views} different observations were met: a table holds them"
    return NO, f"more than {TABLE} different observations were met within a few episodes: too many for a table"


def hints(facts: Facts) -> list[str]:
    """What to set besides the algorithm."""
    found = []
    if facts.agents > 1 and facts.same_view is False:
        found.append(
            "Should what matters be out of sight by the time it is needed, --memory gru remembers it "
            "(ppo, reinforce and q_learning families)."
        )
    if facts.paid is not None and facts.paid < 0.05:
        found.append("Rewards are rare: explore longer (--entropy, --explore-part) and give it more steps.")
    if len(set(facts.spec.groups)) > 1:
        found.append("Agents of unlike kinds share no parameters by default (--share groups).")
    return found
