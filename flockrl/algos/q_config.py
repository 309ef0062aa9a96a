"""Settings of the Q-learning family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from flockrl.algos.defaults import STRETCH
from flockrl.algos.replay_learner import ReplayConfig
from flockrl.core.errors import UsageError
from flockrl.core.settings import check_numbers

Mixer = Literal["none", "sum", "monotonic", "qplex", "weighted", "qtran"]


MIXER_SETTINGS: dict[str, tuple[Any, tuple[Mixer, ...]]] = {
    "team_reward": ("mean", ("none", "sum", "monotonic", "qplex", "weighted", "qtran")),
    "mixer_size": (32, ("monotonic", "weighted")),
    "hyper_size": (64, ("monotonic", "weighted", "qplex")),
    "weighting": ("optimistic", ("weighted",)),
    "low_weight": (0.1, ("weighted",)),
    "opt_weight": (0.1, ("qtran",)),
    "nopt_weight": (0.1, ("qtran",)),
}
"""Setting -> its default and the mixers that have it."""


@dataclass(frozen=True)
class QConfig(ReplayConfig):
    """Settings of the Q-learning family. Try first: --lr, --gamma, --steps-per-update, --explore-part, --memory."""

    lr: float = 2e-3
    """Adam's learning rate."""
    mixer: Mixer = "none"
    """How the team's value is made of the agents': none (IQL), sum (VDN), monotonic (QMIX), qplex, weighted, qtran."""
    team_reward: Literal["mean", "sum"] | None = None
    """How the team's reward is made of its agents'; by default their mean. Without a mixer each agent learns from its
    own, unless this is set."""
    double_q: bool = True
    """Let the online network choose the action that the target network values."""
    dueling: bool = False
    """Give every network a value and advantages as outputs."""
    sequence: int | None = None
    """Steps in a row that a sample learns from; by default 1, or 25 with memory or td_lambda, and with memory
    as many as a rollout has where that is more."""
    td_lambda: float = 0.0
    """Lambda of the returns along the sequence; 0 for n-step returns."""
    target_every: int = 1
    """Gradient steps between moves of the target networks; a hard copy is tau 1 every few hundred."""
    explore_start: float = 1.0
    """Probability of a random action at first."""
    explore_end: float = 0.05
    """Probability of a random action at the end of the schedule."""
    explore_part: float = 0.2
    """Part of the run over which it falls."""
    explore_together: bool = False
    """Let all agents explore in the same steps, each with an action of its own, instead of one by one."""
    importance: bool = False
    """Let agents that learn alone weigh replayed steps by how much likelier, or less likely, the others would do now
    what they did then."""
    conservative: float = 0.0
    """How hard values of actions that the data does not show are pushed down (CQL), in the unit of rewards; 0 where
    agents act themselves."""
    mixer_size: int | None = None
    """Width of the monotonic mixer; by default 32."""
    hyper_size: int | None = None
    """Width of the networks that make the mixer's weights; by default 64."""
    weighting: Literal["optimistic", "central"] | None = None
    """Which samples weigh fully in weighted QMIX: those underestimated (default), or those of best joint actions."""
    low_weight: float | None = None
    """Weight of the other samples in weighted QMIX; by default 0.1."""
    opt_weight: float | None = None
    """Weight of QTRAN's condition at the best joint action; by default 0.1."""
    nopt_weight: float | None = None
    """Weight of QTRAN's condition elsewhere; by default 0.1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, "td_lambda", "explore_start", "explore_end", "low_weight", least=0, most=1)
        check_numbers(self, "target_every", "mixer_size", "hyper_size", least=1)
        check_numbers(self, "explore_part", above=0)
        check_numbers(self, "conservative", "opt_weight", "nopt_weight", least=0)
        for name, (_, owners) in MIXER_SETTINGS.items():
            if getattr(self, name) is not None and self.mixer not in owners:
                raise UsageError(f"{name} has no meaning with mixer={self.mixer}: it belongs to {', '.join(owners)}.")
        if self.importance:
            self._check_importance()
        if self.td_lambda and self.n_step > 1:
            raise UsageError(f"td_lambda and n_step ({self.n_step}) are two ways to look ahead: set --n-step 1.")

    def _check_importance(self) -> None:
        if self.mixer != "none":
            raise UsageError("importance weighs what others did, and a mixer knows it already: use iql.")
        if self.n_step > 1 or self.td_lambda:
            raise UsageError("importance weighs single steps: use it without n_step and td_lambda.")
        if self.explore_together:
            raise UsageError("importance takes agents to explore one by one: leave out explore_together.")
        if self.conservative:
            raise UsageError("importance is for teams that act while they learn: leave it out.")

    @property
    def steps(self) -> int:
        """Steps in a row that a sample learns from."""
        return self.sequence or (STRETCH if self.recurrent or self.td_lambda else 1)

    def of_mixer(self, name: str) -> Any:
        """A setting of the mixer, or its default."""
        value = getattr(self, name)
        return MIXER_SETTINGS[name][0] if value is None else value
