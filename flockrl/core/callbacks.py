"""What users hang onto the training loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flockrl.core.types import EvalResult, PyTree


@dataclass
class Moment:
    """Where training stands when a callback is called. With several seeds, callbacks hear of each in turn.

    state: the training state of this seed (parameters and all), valid until the callback returns.
    metrics: the newest log point.
    """

    path: Path
    seed: int
    step: int
    steps: int
    state: PyTree = None
    metrics: dict[str, Any] = field(default_factory=dict)
    stop_reason: str | None = None

    def stop(self, reason: str) -> None:
        """Ask the loop to end after this point, as if all steps had been done."""
        self.stop_reason = reason


class Callback:
    """Override what you need. Methods run on the host between compiled stretches of training."""

    def on_start(self, moment: Moment) -> None:
        """Before the first step, or before the first step after a resume."""

    def on_iteration(self, moment: Moment) -> None:
        """After each log point: `moment.metrics` holds it."""

    def on_episode_stats(self, moment: Moment, episodes: int, returns: list[float], length: float) -> None:
        """After a stretch in which episodes ended: how many, mean return of each agent, mean length."""

    def on_evaluation(self, moment: Moment, result: EvalResult) -> None:
        """After each evaluation."""

    def on_checkpoint(self, moment: Moment) -> None:
        """After a checkpoint was handed to the writer."""

    def on_end(self, moment: Moment) -> None:
        """After the last step, with everything on disk, or after an interrupt."""
