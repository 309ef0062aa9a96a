"""Callbacks of the training loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flockrl.core.types import EvalResult, PyTree


@dataclass
class Moment:
    """The progress of training when a callback is called. With several seeds, it is called for each in turn.

    state: the whole training state of this seed, including parameters; valid until the callback returns.
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
    """Override the methods you need. They run on the host, between compiled parts of training."""

    def on_start(self, moment: Moment) -> None:
        """Before the first step, or before the first step after a resume."""

    def on_iteration(self, moment: Moment) -> None:
        """After each log point, which is in `moment.metrics`."""

    def on_episode_stats(self, moment: Moment, episodes: int, returns: list[float], length: float) -> None:
        """After a log interval in which episodes ended: their number, mean return of each agent, mean length."""

    def on_evaluation(self, moment: Moment, result: EvalResult) -> None:
        """After each evaluation."""

    def on_checkpoint(self, moment: Moment) -> None:
        """After a checkpoint was given to the background writer."""

    def on_end(self, moment: Moment) -> None:
        """After the last step or an interrupt, when everything is on disk."""
