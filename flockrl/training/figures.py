"""The figures of a log point: from what the device counted, and by side where agents oppose each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flockrl.algos.assembly import Sides
from flockrl.core.errors import notice, reason
from flockrl.core.types import EnvSpec, EvalResult
from flockrl.evaluation.metrics import team_metrics
from flockrl.rollouts.compiled import Episodes
from flockrl.view.plots import draw_curve


def parties(spec: EnvSpec, config: Any) -> dict[str, tuple[int, ...]]:
    """The sides whose returns are told apart -> their agents: {} where all agents play together."""
    return spec.parties if isinstance(config, Sides) or len(set(spec.sides)) > 1 else {}


def row_of(episodes: Episodes, metrics: dict[str, Any]) -> dict[str, Any]:
    """A log point from what the device counted. Without ended episodes there is no return to report."""
    count = int(episodes.number)
    per_agent = (episodes.returns / count).tolist() if count else None
    return {
        "return": float(np.mean(per_agent)) if per_agent else None,
        "return_per_agent": per_agent,
        "episode_length": float(episodes.lengths / count) if count else None,
        "episodes": count,
        **{name: float(value) for name, value in metrics.items()},
    }


def side_names(sides: Mapping[str, tuple[int, ...]], what: str) -> dict[str, tuple[int, ...]]:
    """Name of a figure for each side -> the agents it is about; {} where all play together."""
    return {f"{what}_{side}": agents for side, agents in sides.items()}


def per_side(sides: Mapping[str, tuple[int, ...]], what: str, per_agent: Any) -> dict[str, float]:
    """A figure of all agents [N] as the mean of each side."""
    names = side_names(sides, what)
    return {name: float(np.mean(np.asarray(per_agent)[list(agents)])) for name, agents in names.items()}


def evaluated(result: EvalResult, sides: Mapping[str, tuple[int, ...]], env: Any) -> dict[str, Any]:
    """The figures of an evaluation in this environment."""
    return {
        **{f"eval_{name}": float(values.mean()) for name, values in result.measures.items()},
        "eval_return": result.mean,
        **per_side(sides, "eval_return", result.per_agent),
        "eval_return_std": result.std,
        "eval_return_per_agent": result.per_agent.tolist(),
        "eval_episodes": result.episodes,
        **team_metrics(result.per_agent, env.spec.groups, getattr(env, "best", None)),
    }


def draw(runs: Sequence[Path], file: Path) -> None:
    """Draw the curve. A run does not depend on it: one that cannot be drawn gets a warning."""
    try:
        draw_curve(runs, file)
    except Exception as error:
        notice(f"Cannot draw {file}: {reason(error)}.")
