"""Which algorithms fit an environment, and why, judged by the facts about it."""

from __future__ import annotations

from typing import NamedTuple

from flockrl.algos.assembly import make_algorithm
from flockrl.algos.presets import Preset, algorithms, make_config
from flockrl.algos.presets import preset as preset_of
from flockrl.core.errors import UsageError
from flockrl.evidence.facts import TABLE, Facts

MANY = 16
"""From this number of agents on, the input of a central critic is wide, and independent learners are worth trying."""
FITS, POSSIBLE, NO = "fits", "possible", "no"


class Advice(NamedTuple):
    """fit: fits, possible or no. reason: why, in a sentence."""

    name: str
    fit: str
    reason: str


def advise(facts: Facts) -> list[Advice]:
    """Advice on every algorithm, the fitting ones first."""
    found = [_judge(name, preset, facts) for name, preset in _all().items()]
    order = (FITS, POSSIBLE, NO)
    first = "mappo" if not facts.opponents and facts.same_view is False else ""
    return sorted(found, key=lambda advice: (order.index(advice.fit), advice.name != first))


def _all() -> dict[str, Preset]:
    return {name: preset_of(name) for name in algorithms()}


def _judge(name: str, preset: Preset, facts: Facts) -> Advice:
    try:
        whole = {"rollout_steps": facts.spec.max_steps} if preset.settings.get("critic") == "none" else {}
        make_algorithm(name, facts.spec, make_config(name, whole), envs=16, updates=1)
    except UsageError as error:
        return Advice(name, NO, str(error))
    if preset.recorded:
        return Advice(name, POSSIBLE, "learns only from recorded trajectories: useful if you have some")
    rule = {
        "ppo": _ppo, "reinforce": _reinforce, "ddpg": _off_policy, "td3": _off_policy, "sac": _off_policy,
        "q_learning": _q, "tabular": _table, "shac": _through,
    }.get(str(preset.family), _other)  # fmt: skip
    single = bool(preset.instead)
    if facts.agents == 1 and not single and preset.family != "tabular":
        alone = next((n for n, p in _all().items() if p.family == preset.family and p.instead), "")
        if alone:
            return Advice(name, POSSIBLE, f"meant for several agents: with one agent, {alone} is the plain form")
    if "comm" in preset.settings:
        return Advice(name, POSSIBLE, _talk(facts))
    if "self_play" in preset.settings:
        return Advice(name, POSSIBLE, "learners that look for each other's weaknesses share the steps: for long runs")
    if "mean_field" in preset.settings:
        crowd = facts.agents >= MANY
        why = f"sees the mean of what the other {facts.agents - 1} did" if crowd else "made for very many agents"
        return Advice(name, FITS if crowd else POSSIBLE, why)
    fit, reason = rule(name, preset, facts)
    return Advice(name, fit, reason)


def _talk(facts: Facts) -> str:
    if facts.same_view:
        return "agents talk, and here they all see the same: there is little to tell"
    return "agents talk before they act: worth it where one knows what others need, and messages can be sent"


def _other(name: str, preset: Preset, facts: Facts) -> tuple[str, str]:
    return POSSIBLE, preset.summary


def _central(preset: Preset) -> bool:
    return "central" in preset.settings.values()


def _ppo(name: str, preset: Preset, facts: Facts) -> tuple[str, str]:
    if name in ("ia2c", "maa2c"):
        return POSSIBLE, "one pass over each rollout: a simpler baseline that needs more steps than PPO"
    if "credit" in preset.settings:
        return POSSIBLE, "compares each agent's action with its other ones: for teams that cannot tell who earned what"
    if name == "mmd":
        if facts.zero_sum:
            return FITS, "comes to rest where players have to mix; plain learners cycle there"
        return POSSIBLE, "made for opponents of whom one gains what the other loses"
    if name == "ppo":
        return FITS, "takes any action space and any reward: a good first choice"
    if not _central(preset):
        if facts.opponents or facts.common is False:
            return FITS, "each agent learns from its own reward with a critic of its own"
        if facts.agents >= MANY:
            return FITS, f"critics stay small with {facts.agents} agents"
        return FITS, "a strong baseline, against which to measure what a central critic adds"
    if facts.agents >= MANY:
        return (
            POSSIBLE,
            f"its critic reads {facts.spec.central_size:,} numbers at {facts.agents} agents: compare with ippo",
        )
    if facts.opponents:
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


def _through(name: str, preset: Preset, facts: Facts) -> tuple[str, str]:
    return POSSIBLE, "only if the environment is compiled and its rewards change smoothly with actions; then very fast"


def _q(name: str, preset: Preset, facts: Facts) -> tuple[str, str]:
    mixer = preset.settings.get("mixer", "none")
    if mixer == "none":
        if name == "dqn":
            return FITS, "discrete actions and one agent: replay makes it sample-efficient"
        return FITS, "each agent learns the value of its own actions from its own reward"
    if facts.sides > 1:
        return POSSIBLE, f"one mixer for each of {facts.sides} sides, whose opponents change while it learns"
    if facts.opposed:
        return NO, f"would mix the values of {_pair(facts)}, who look like opponents, into those of one team"
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
        found.append("Rewards are rare: pay for what is new (--bonus count), explore longer (--explore-part).")
    if facts.opposed:
        found.append(_apart(facts))
    if facts.sides > 1:
        sides = ",".join(f"{name}=ALGORITHM" for name in facts.spec.parties)
        found.append(f"Each side can have a learner, a frozen policy or a script: flockrl train {sides} ENV.")
    if facts.spec.entities:
        found.append("Observations are described as sets: --net entities learns what fits any number of agents.")
    if facts.spec.neighbours and facts.agents > 1:
        found.append("It tells who perceives whom: let these talk (--comm gat --channel topology=neighbours).")
    if len(set(facts.spec.groups)) > 1:
        found.append("Agents of different kinds share no parameters by default (--share groups).")
    return found


def _pair(facts: Facts) -> str:
    assert facts.opposed
    return " and ".join(facts.opposed[0])


def _apart(facts: Facts) -> str:
    """What to do with opponents that the environment puts on one side."""
    parties, place = facts.spec.parties, {name: i for i, name in enumerate(facts.spec.agents)}
    owner = {i: name for name, own in parties.items() for i in own}
    text = f"The environment names one side, but {_pair(facts)} earn against each other. "
    if all(owner[place[a]] != owner[place[b]] for a, b in facts.opposed or ()):
        sides = ",".join(f"{name}=ALGORITHM" for name in parties)
        return f"{text}Give each kind a learner of its own: flockrl train {sides} ENV."
    return (
        f"{text}Use learners that take each agent's own reward (ippo, iql), not mixers or team_reward; agents of one "
        "kind that share a network play against themselves (--share none gives each its own)."
    )
