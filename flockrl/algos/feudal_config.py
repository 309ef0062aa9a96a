"""Settings of a hierarchy: who manages, who works, and the settings of both, level by level.

A user names the learners as `manager=qmix,worker=ippo`; a level below as `worker.manager=qmix,worker.worker=ippo`. All
of it is one config with a name and the settings of each tier.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from flockrl.algos.presets import family, make_config
from flockrl.algos.wrappers.practice import refuse_practice
from flockrl.core.code import SETTINGS
from flockrl.core.errors import UsageError
from flockrl.core.settings import check_numbers

TIERS = ("manager", "worker")
FEUDAL = "feudal"
IDENTITY, ROLE, LANDMARK = "identity", "role", "landmark"
ROLES = {"roles": 3, "roles_after": 0.1}
"""Settings of roles where the user says nothing."""
DEEPEST = 4
"""Levels that a hierarchy may have."""
Allocate = Literal["scores", "auction", "hungarian"]


@dataclass(frozen=True)
class FeudalConfig:
    """Settings of a manager and its workers."""

    manager: str = "mappo"
    """The algorithm of the manager."""
    worker: str = "ippo"
    """The algorithm of the workers, or identity: agents do what the manager says, whose goals are then actions."""
    manager_every: int = 5
    """Steps between two decisions of the manager; must divide rollout_steps."""
    goal: str = LANDMARK
    """The kind of entities that goals are, or role: goals are then sets of actions that do similar things."""
    roles: int | None = None
    """With --goal role: how many roles there are, by default 3."""
    roles_after: float | None = None
    """With --goal role: the part of the run after which actions are put into roles, by default 0.1."""
    allocate: Allocate = "scores"
    """How the manager's scores become goals: scores gives each agent its own best, auction and hungarian the best
    goals of which no two agents have the same."""
    environment_share: float | None = None
    """w: the share of the environment's reward in what workers are paid, by default 0; roles are paid by it alone."""
    rollout_steps: int = 100
    """Steps of every environment between updates."""
    manager_settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the manager's algorithm, by name."""
    worker_settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the workers' algorithm, by name."""

    def __post_init__(self) -> None:
        check_numbers(self, "manager_every", "rollout_steps", least=1)
        check_numbers(self, "environment_share", least=0, most=1)
        check_numbers(self, "roles", least=2)
        check_numbers(self, "roles_after", least=0, below=1)
        wrong = ["environment_share"] if self.goal == ROLE else list(ROLES)
        for name in wrong:
            if getattr(self, name) is not None:
                only = "goals that are entities" if self.goal == ROLE else "--goal role"
                raise UsageError(f"{name} is for {only}: leave it out.")
        if self.rollout_steps % self.manager_every:
            raise UsageError(
                f"manager_every ({self.manager_every}) must divide rollout_steps ({self.rollout_steps}): change one."
            )
        told = self.worker_settings or self.environment_share or self.manager_every > 1
        if self.worker == IDENTITY and (told or self.allocate != "scores" or self.goal != LANDMARK):
            raise UsageError(
                "Workers that do what the manager says do not learn, and need to be told at every step: use "
                "--manager-every 1, and leave out their settings, --goal and --allocate."
            )
        too_deep = any(depth(getattr(self, f"{name}_settings")) > DEEPEST for name in TIERS)
        if too_deep or self.levels > DEEPEST:
            raise UsageError(f"A hierarchy has at most {DEEPEST} levels: leave out the lowest.")
        if self.allocate != "scores":
            self._require_scores()

    @property
    def tiers(self) -> tuple[str, ...]:
        """Those that learn."""
        return TIERS[:1] if self.worker == IDENTITY else TIERS

    @property
    def levels(self) -> int:
        """Tiers above each other."""
        tiers = [self.tier(name) for name in self.tiers]
        return 1 + max(tier.levels if isinstance(tier, FeudalConfig) else 1 for tier in tiers)

    def of_roles(self, name: str) -> Any:
        """A setting of roles, or its default."""
        given = getattr(self, name)
        return ROLES[name] if given is None else given

    def tier(self, name: str) -> Any:
        """The config of the manager or the workers."""
        algorithm, given = getattr(self, name), getattr(self, f"{name}_settings")
        if wrong := given.keys() & {*SETTINGS, "rollout_steps"}:
            raise UsageError(f"{name}: its settings cannot have {' and '.join(sorted(wrong))}: leave it out.")
        steps = self.rollout_steps // (self.manager_every if name == "manager" else 1)
        try:
            config = make_config(algorithm, {**given, "rollout_steps": steps})
        except UsageError as error:
            raise UsageError(f"{name}={algorithm}: {error}") from error
        refuse_practice(config, f"{name}={algorithm}", "an algorithm of its own")
        return config

    def _require_scores(self) -> None:
        """Refuse settings with which the manager's scores are not those of what it sees, or its choices not its own."""
        config, who = self.tier("manager"), f"manager={self.manager}"
        usual = {"comm": "none", "mean_field": False, "fingerprint": False, "importance": False}
        for name, value in usual.items():
            if getattr(config, name, value) != value:
                raise UsageError(f"{who}: {name} does not go with --allocate {self.allocate}: leave it out.")


def depth(settings: Mapping[str, Any]) -> int:
    """How many hierarchies stand inside of each other in the settings of a tier."""
    below, found = [settings], 0
    while below := [x for part in below for x in part.values() if isinstance(x, Mapping)]:
        found += 1
    return found


def leads(algorithm: str) -> bool:
    """Whether the algorithm of this name is a hierarchy."""
    return family(algorithm).config is FeudalConfig


def is_hierarchy(players: Mapping[str, Any]) -> bool:
    """Whether names of players are those of tiers, and not of sides. A name that is neither is refused."""
    roots = {name.partition(".")[0] for name in players}
    if not roots & set(TIERS):
        return False
    if wrong := [name for name in players if set(name.split(".")) - set(TIERS)]:
        raise UsageError(
            f"A hierarchy has a manager and a worker, and not {wrong[0]!r}: write manager=NAME,worker=NAME, and what "
            "stands below a worker as worker.manager=NAME,worker.worker=NAME."
        )
    return True


def hierarchy(players: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `feudal` for tiers of these names: {"manager": "qmix", "worker": "ippo"}.

    settings: of the hierarchy, and of each tier by its name, {"manager_every": 5, "manager": {"lr": 1e-3}}.
    """
    found = gathered(settings)
    for name, player in sorted(players.items(), key=lambda item: item[0].count(".")):
        *above, tier = name.split(".")
        if not isinstance(player, str):
            raise UsageError(f"{name} of a hierarchy is the name of an algorithm, not {player!r}.")
        place = found
        for step in above:
            if place.setdefault(step, FEUDAL) != FEUDAL:
                raise UsageError(f"{step}={place[step]} has no {tier} below it: write {step}=feudal, or leave it out.")
            place[f"{step}_settings"] = place = dict(place.get(f"{step}_settings", {}))
        place[tier] = player
    return found


def gathered(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a hierarchy with those that stand under a tier's name moved to where its config has them."""
    found = dict(settings)
    for name in TIERS:
        if isinstance(own := found.get(name), Mapping):
            del found[name]
            below = gathered({**found.get(f"{name}_settings", {}), **own})
            found[f"{name}_settings"] = below
    return found
