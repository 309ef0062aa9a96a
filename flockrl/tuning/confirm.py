"""Whether the best settings of a search are better than those it began with, on seeds that the search never saw.

The best of many noisy trials looks better than it is: it was chosen for its luck, too. So it is trained again, as the
settings without the search are, and the search's own figure is compared with what comes out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.rundir import read_metrics
from flockrl.evidence.harness import Watch, Work, run_suite
from flockrl.evidence.statistics import Estimate
from flockrl.evidence.suite import Suite, make_suite

CONFIRM = "confirm"
BEFORE, AFTER = "default", "best"


class Confirmation(NamedTuple):
    """Scores of fresh seeds with the settings before and after the search, [K] each; `promised`: what the search said
    about the best."""

    before: np.ndarray
    after: np.ndarray
    promised: float

    @property
    def gain(self) -> Estimate:
        """How much the score rose, with Welch's 95% interval."""
        return welch(self.after, self.before)

    @property
    def optimism(self) -> float:
        """How much more the search promised than fresh seeds gave."""
        return self.promised - float(self.after.mean())


def welch(ours: np.ndarray, theirs: np.ndarray) -> Estimate:
    """The difference of two means with its 95% interval, where variances may differ. At least two scores each."""
    from scipy import stats  # type: ignore[import-untyped]

    a, b = ours.var(ddof=1) / len(ours), theirs.var(ddof=1) / len(theirs)
    gain = float(ours.mean() - theirs.mean())
    if a + b == 0:
        return Estimate(gain, gain, gain)
    freedom = (a + b) ** 2 / (a**2 / (len(ours) - 1) + b**2 / (len(theirs) - 1))
    half = float(stats.t.ppf(0.975, freedom) * np.sqrt(a + b))
    return Estimate(gain, gain - half, gain + half)


def confirming(
    algorithm: str, env: str, fixed: Mapping[str, Any], best: Mapping[str, Any], first_seed: int, seeds: int
) -> Suite:
    """The runs that compare the settings before and after the search."""
    common = {name: value for name, value in fixed.items() if name != "seed" and value is not None}
    nothing = {name: None for name, value in fixed.items() if name != "seed" and value is None}
    part = {"algorithms": [algorithm], "environments": [env], "seeds": seeds, "first_seed": first_seed}
    settings = {BEFORE: {**nothing, **common}, AFTER: {**nothing, **common, **best}}
    parts = [{"name": name, **part, "settings": own} for name, own in settings.items()]
    return make_suite("confirmation", {"question": "Is the best of the search better?", "part": parts}, {})


def confirm(
    suite: Suite, out: Path, promised: Mapping[str, float], watch: Watch | None, **where: Any
) -> dict[str, Confirmation]:
    """Run the suite, or what is left of it, and compare the scores of each objective. promised: what the search said
    about the best, by objective; where: what `run_suite` takes besides."""
    works = run_suite(suite, out / CONFIRM, watch=watch, **where)
    failed = [work for work in works if work.state == "failed"]
    if failed:
        raise UsageError(f"The confirmation failed, {failed[0].cell.folder}: {failed[0].complaint}")

    def scores(objective: str, name: str) -> np.ndarray:
        return np.array([_score(work, objective) for work in works if _label(work) == name])

    return {name: Confirmation(scores(name, BEFORE), scores(name, AFTER), value) for name, value in promised.items()}


def _label(work: Work) -> str:
    return work.cell.label


def _score(work: Work, objective: str) -> float:
    """The figure of a run's last evaluation."""
    values = [row[objective] for row in read_metrics(work.path) if row.get(objective) is not None]
    if not values:
        raise UsageError(f"{work.path} has no {objective} in its metrics.")
    return float(values[-1])
