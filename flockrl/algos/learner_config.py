"""Settings that every learner of networks has: who shares what, how networks are built, how fast they learn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flockrl.algos.bonus.settings import BonusConfig
from flockrl.algos.parts import Schedule
from flockrl.algos.wrappers.settings import PracticeConfig
from flockrl.comm.settings import CommConfig
from flockrl.core.errors import UsageError
from flockrl.core.groups import Share
from flockrl.core.settings import check_number, check_numbers
from flockrl.nets.torsos import Activation


@dataclass(frozen=True)
class LearnerConfig(PracticeConfig, CommConfig, BonusConfig):
    """Settings of every learner of networks; families choose defaults of their own."""

    share: Share = "groups"
    """Who shares parameters: all agents, agents of one kind (groups), or none; or average:every=K, where agents of one
    kind begin alike, learn alone and average their policies every K updates (with topology=ring|star, neighbours
    do)."""
    agent_ids: bool = True
    """Tell agents that share parameters apart by a learned bias of their own; policies do not, where the environment
    says that agents are anonymous."""
    hidden: tuple[int, ...] = (64, 64)
    """Sizes of the hidden layers of each network."""
    activation: Activation = "relu"
    """Activation after each hidden layer."""
    kernel: str | None = None
    """A flax module of your own in place of the hidden layers, as package.module:Class."""
    memory: Literal["none", "gru"] = "none"
    """Whether agents remember past observations."""
    memory_size: int = 64
    """Size of the GRU's memory."""
    rollout_steps: int = 25
    """Steps of every environment between updates."""
    lr: float = 1e-3
    """Adam's learning rate."""
    lr_schedule: Schedule = "linear"
    """How the learning rate falls to zero (exponential: to a hundredth) over the run, if at all."""
    max_grad_norm: float | None = 0.5
    """Gradients of each network are scaled down to this norm; None for never."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.hidden:
            raise UsageError("hidden must have at least one layer, as in --hidden 64.")
        for size in self.hidden:
            check_number("Each layer of hidden", size, least=1)
        check_numbers(self, "memory_size", "rollout_steps", least=1)
        check_numbers(self, "lr", "max_grad_norm", above=0)
