"""Settings of learners of stochastic policies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flockrl.algos.credit import CreditConfig
from flockrl.algos.learner_config import LearnerConfig
from flockrl.algos.parts import Schedule
from flockrl.core.errors import UsageError
from flockrl.core.settings import check_numbers
from flockrl.nets.torsos import Activation

Reads = Literal["none", "own", "central", "agent"]


@dataclass(frozen=True)
class PolicyConfig(LearnerConfig):
    """Settings of every learner of a stochastic policy."""

    activation: Activation = "tanh"
    """Activation after each hidden layer."""
    rollout_steps: int = 100
    """Steps of every environment between updates."""
    lr: float = 2e-3
    """Adam's learning rate."""
    log_std: float | None = None
    """Log of the standard deviation of real actions at first, in units of half their range, by default -0.5; it is
    learned from then on."""
    normalize_obs: bool = False
    """Scale observations by their running mean and deviation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, "log_std", least=-10, most=10)
        if self.normalize_obs and self.net != "flat":
            raise UsageError("normalize_obs scales every place of a row, and a set has no places: use --net flat.")


@dataclass(frozen=True)
class OnPolicyConfig(PolicyConfig, CreditConfig):
    """Settings that the on-policy families share."""

    gamma: float | None = None
    """Discount factor; by default 1 - 1 / h for episodes of up to h steps, with h between 20 and 100, and 1 in games
    that are won or lost."""
    entropy: float = 0.01
    """Weight of the entropy bonus."""
    entropy_schedule: Schedule = "constant"
    """How that weight falls over the run, if at all: to zero, or, where exponential, to a hundredth. A large weight
    that falls (1, exponential) keeps a team from settling before its members know what to expect of each other."""
    normalize_advantage: bool = True
    """Scale advantages to mean 0 and deviation 1 within each group of agents."""
    advantage_floor: float = 0.05
    """Advantages are divided by at least this part of the deviation of returns, so that noise does not become policy
    where rewards are rare."""
    normalize_value: bool = True
    """Let the critic predict returns scaled by their running mean and deviation (PopArt)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, "gamma", least=0, most=1)
        check_numbers(self, "entropy", "advantage_floor", least=0)
        if self.entropy == 0 and self.entropy_schedule != "constant":
            raise UsageError("entropy_schedule lets the weight of the entropy bonus fall, and it is 0: set --entropy.")
