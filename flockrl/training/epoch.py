"""What a trainer counts between two calls of `log_epoch`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from flockrl.core.rundir import METRICS


@dataclass
class Epoch:
    """returns: [N] of each whole episode; lengths: of these episodes; metrics: of each update."""

    returns: list[np.ndarray] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    metrics: list[dict[str, float]] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """Means over episodes and updates; None where there was no episode."""
        any_episode = bool(self.returns)
        row: dict[str, Any] = {
            "return": float(np.mean(self.returns)) if any_episode else None,
            "return_per_agent": np.mean(self.returns, axis=0).tolist() if any_episode else None,
            "episode_length": float(np.mean(self.lengths)) if any_episode else None,
            "episodes": len(self.returns),
        }
        names = self.metrics[0] if self.metrics else {}
        return row | {name: float(np.mean([m[name] for m in self.metrics])) for name in names}

    def to_json(self) -> dict[str, Any]:
        return {"returns": [x.tolist() for x in self.returns], "lengths": self.lengths, "metrics": self.metrics}

    @staticmethod
    def from_json(saved: Mapping[str, Any]) -> Epoch:
        returns = [np.array(x, np.float32) for x in saved["returns"]]
        return Epoch(returns, list(saved["lengths"]), list(saved["metrics"]))


def log_line(folder: Path, row: Mapping[str, Any]) -> None:
    """Add a line to the folder's metrics."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / METRICS).open("a") as file:
        file.write(json.dumps(row) + "\n")
