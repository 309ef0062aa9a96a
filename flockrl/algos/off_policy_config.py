"""Settings that the off-policy actor-critics share, and what their families say about themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from flockrl.algos.replay_learner import ReplayConfig
from flockrl.core.errors import UsageError
from flockrl.core.settings import check_numbers

BURN_IN = 8
"""Steps that fill the memory of critics where the user says nothing."""


@dataclass(frozen=True)
class OffPolicyConfig(ReplayConfig):
    """Settings that the off-policy actor-critics share."""

    critic: Literal["own", "central"] = "central"
    """What a critic reads: its agent's observation and action, or everyone's."""
    critic_lr: float = 1e-3
    """Adam's learning rate for critics; `lr` is the actors'."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, "critic_lr", above=0)
        if not self.recurrent and self.steps > 1:
            raise UsageError("sequence is for agents that remember: use it with memory=gru.")

    @property
    def filling(self) -> int:
        """Critics have no memory of how a sequence began: only those who act remember."""
        return self.burn_in if self.burn_in is not None else BURN_IN if self.memory == "gru" else 0


JOINT: dict[str, Any] = {
    "bonus": "replay",
    "central": lambda config: config.critic == "central",
    "joint_actions": lambda config: config.critic == "central",
    "grows": lambda config: True,
}
"""What the families of this kind say about themselves, see `algos.family`."""
