"""Statistics over seeds, through rliable and scipy (extra `report`, imported when used).

Scores are [runs, tasks]: a run is a seed, a task an environment. Intervals are percentile intervals of a
stratified bootstrap: runs are drawn again, with replacement, within each task (Agarwal et al. 2021).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from flockrl.core.errors import UsageError, install

MIN_SEEDS = 5
"""Below this number of seeds intervals are unreliable, and tables say so."""
REPS = 2000
"""Bootstrap replications: enough that the ends of an interval vary by about a hundredth of its width."""
SEED = 0


class Estimate(NamedTuple):
    """A figure with the ends of its 95% interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


class Band(NamedTuple):
    """A curve [K] with the ends of its pointwise 95% intervals."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


def aggregate(scores: np.ndarray, reps: int | None = None) -> dict[str, Estimate]:
    """Mean, median and interquartile mean of scores [runs, tasks], each with its interval.

    Over several tasks mean and median are taken over the tasks' means, as rliable does; the median of a single
    task is taken over its runs, since a median of one mean would be the mean again.
    """
    metrics = _rliable("metrics")
    median = metrics.aggregate_median if scores.shape[1] > 1 else np.median

    def figures(x: np.ndarray) -> np.ndarray:
        return np.array([metrics.aggregate_mean(x), median(x), metrics.aggregate_iqm(x)])

    band = _bootstrap(scores, figures, reps)
    return {name: Estimate(*(float(x[i]) for x in band)) for i, name in enumerate(("mean", "median", "iqm"))}


def improvement(ours: np.ndarray, theirs: np.ndarray, reps: int | None = None) -> Estimate:
    """Probability that a run of ours beats a run of theirs on a task drawn at random; ties count half.

    ours, theirs: [runs, tasks]; their numbers of runs may differ.
    """

    def figure(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The same figure as rliable's, without its loop over tasks and ranks."""
        wins = (x[:, None] > y[None]).mean() + 0.5 * (x[:, None] == y[None]).mean()
        return np.array([wins])

    band = _bootstrap((ours, theirs), figure, reps)
    return Estimate(*(float(x[0]) for x in band))


def profile(scores: np.ndarray, thresholds: Sequence[float] | np.ndarray, reps: int | None = None) -> Band:
    """The share of runs whose score lies above each threshold [K]."""
    library = _rliable("library")
    with _seeded():
        values, ends = library.create_performance_profile({"": scores}, np.asarray(thresholds), reps=reps or REPS)
    return Band(values[""], *ends[""])


def curve(scores: np.ndarray, reps: int | None = None) -> Band:
    """Sample efficiency: the interquartile mean over runs and tasks at each of K points. scores: [runs, tasks, K]."""
    from scipy import stats  # type: ignore[import-untyped]

    def figures(x: np.ndarray) -> np.ndarray:
        return stats.trim_mean(x.reshape(-1, x.shape[-1]), 0.25, axis=0)

    return _bootstrap(scores, figures, reps)


def normalize(scores: np.ndarray, low: float, high: float) -> np.ndarray:
    """Scores with `low` at 0 and `high` at 1, so that tasks can be averaged; all 0 where the two are equal."""
    return (scores - low) / (high - low) if high > low else np.zeros_like(scores)


def caution(seeds: int) -> str:
    """A warning if there are too few seeds, else empty."""
    if seeds >= MIN_SEEDS:
        return ""
    few = f"only {seeds} seed{'s' * (seeds > 1)}"
    return f"Caution: {few}. Intervals need at least {MIN_SEEDS}, better 10; these are only a first look."


def _bootstrap(scores: Any, figures: Callable[..., np.ndarray], reps: int | None) -> Band:
    library = _rliable("library")
    with _seeded():
        values, ends = library.get_interval_estimates({"": scores}, figures, reps=reps or REPS)
    return Band(np.asarray(values[""]), *np.asarray(ends[""]))


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    """Seed NumPy's global generator, and restore it afterwards, so that the same scores get the same intervals: rliable
    1.2 draws from it whatever `random_state` it is given."""
    before = np.random.get_state()
    np.random.seed(SEED)
    try:
        yield
    finally:
        np.random.set_state(before)


def available() -> bool:
    """Whether the extra `report` is installed."""
    from importlib.util import find_spec

    return find_spec("rliable") is not None and find_spec("scipy") is not None


def _rliable(part: str) -> Any:
    import importlib

    try:
        return importlib.import_module(f"rliable.{part}")
    except ImportError as error:
        raise UsageError(
            f"Statistics need the extra `report` ({error.name} is missing): {install('report')}."
        ) from error
