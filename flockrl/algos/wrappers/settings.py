"""Settings of how a team practises, which every learner of networks has: against whom, and under which attack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from flockrl.core.errors import UsageError
from flockrl.core.settings import Part, check_number, check_numbers

SelfPlay = Literal["none", "latest", "uniform", "prioritised", "fictitious", "average", "league", "population"]
MEETING = ("latest", "uniform", "prioritised", "fictitious")
"""Kinds in which one learner meets past selves."""
MAIN, EXPLOITER, RAIDER, PARTNER = "main", "main exploiter", "league exploiter", "partner"
"""What the learners of a league or a population are there for, see `league`."""


def roles(config: Any) -> tuple[str, ...]:
    """The role of each learner of a league or a population; () where there is one learner."""
    how = getattr(config, "self_play", "none")
    if how == "population":
        return (MAIN, *(PARTNER,) * config.partners)
    if how != "league":
        return ()
    counts = {MAIN: config.main_agents, EXPLOITER: config.main_exploiters, RAIDER: config.league_exploiters}
    return tuple(role for role, count in counts.items() for _ in range(count))


class Attack(NamedTuple):
    """What an adversary does. size: how far it shifts observations or rewards, or its part of the episodes."""

    kind: str
    size: float

    def __str__(self) -> str:
        return f"{self.kind}:{ATTACKS[self.kind]}={self.size:g}"


ATTACKS = {"observation": "eps", "reward": "eps", "takeover": "share"}
"""Kind of attack -> the name of its size."""


def parse_attack(text: str) -> Attack:
    """`observation:eps=0.1` as a value."""
    kind, _, rest = text.partition(":")
    name, _, number = rest.partition("=")
    known = ", ".join(f"{kind}:{size}=NUMBER" for kind, size in ATTACKS.items())
    if kind not in ATTACKS or name != ATTACKS[kind]:
        raise UsageError(f"adversary must be one of {known}, not {text!r}.")
    try:
        size = float(number)
    except ValueError:
        raise UsageError(f"{name} of the adversary must be a number, not {number!r}.") from None
    check_number(f"{name} of the adversary", size, above=0, most=1 if kind == "takeover" else None)
    return Attack(kind, size)


@dataclass(frozen=True)
class PracticeConfig(Part):
    """Settings of what is different while a team learns."""

    self_play: SelfPlay = "none"
    """Play against past selves: the latest, one drawn uniformly, or rather those that are hard to beat (prioritised).
    fictitious: answer the mixture of all past selves, which is then the policy. average: play the present self alone,
    and let the mixture of past ones be the policy, which stands still where selves go round. league: main agents, and
    exploiters who look for their weaknesses, share the environments and a pool. population: for teams, train with
    partners who learn apart, past and present. Agents of all sides with equal spaces share parameters."""
    main_agents: int = 1
    """Main agents of a league; the first is the policy."""
    main_exploiters: int = 1
    """Learners of a league that play against its main agents."""
    league_exploiters: int = 2
    """Learners of a league that play against its whole pool."""
    partners: int = 3
    """Teams of a population that learn by themselves, and whom the main agent learns to play with."""
    pool_size: int = 8
    """Past selves that self-play keeps."""
    pool_every: int | None = None
    """Updates after which the present self joins the pool; by default the pool is filled once in the run, for average
    in its second half."""
    pool_share: float | None = None
    """Part of the episodes against past selves; in the others the present self plays, and learns, for all sides. By
    default 0.5, or 1 in fictitious self-play."""
    sparring: str = ""
    """A script, package.module:function, that is among the opponents of self-play besides past selves. Code of yours;
    by default there is none."""
    sparring_share: float = 0.5
    """Part of the episodes against past selves that the script plays instead."""
    other_play: bool = False
    """Let agents have names of their own for what is alike (the environment's symmetries) in each episode, so that they
    learn to play with partners whom they never met."""
    adversary: str = ""
    """Train an adversary beside a team: observation:eps=0.1 shifts what agents see by up to eps, reward:eps=0.1 what
    they learn to be paid, takeover:share=0.25 plays for one of them in that part of the episodes. By default there is
    none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, "main_agents", "partners", "pool_size", "pool_every", least=1)
        check_numbers(self, "main_exploiters", "league_exploiters", least=0)
        check_numbers(self, "pool_share", "sparring_share", above=0, most=1)
        if self.sparring and self.self_play not in MEETING:
            raise UsageError(f"sparring needs a self_play that meets others: one of {', '.join(MEETING)}.")
        if self.adversary:
            parse_attack(self.adversary)
