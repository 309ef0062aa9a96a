"""Team metrics: how much a team earns, how evenly, and how fast and how stably it learned.

`utilities` is U [N] everywhere: the mean episode return of each agent. A metric that is not defined for the
given numbers is None: a product of negative utilities, or a Gini index of mixed gains and losses, would be
meaningless.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

LEVEL = 0.95
"""The share of its total rise at which a curve counts as converged."""
WINDOW = 0.2
"""The share of a curve, at its end, that counts as its final part."""


def welfare(utilities: ArrayLike) -> float:
    """Social (utilitarian) welfare: sum_i U_i."""
    return float(_vector(utilities).sum())


def egalitarian_welfare(utilities: ArrayLike) -> float:
    """What the worst-off agent gets: min_i U_i."""
    return float(_vector(utilities).min())


def nash_welfare(utilities: ArrayLike) -> float | None:
    """prod_i U_i for positive utilities; None for others, and if the product is too large for a float."""
    values = _vector(utilities)
    if (values <= 0).any():
        return None
    product = math.prod(values.tolist())
    return product if math.isfinite(product) else None


def proportional_fairness(utilities: ArrayLike) -> float | None:
    """sum_i log U_i, the logarithm of Nash welfare, for positive utilities."""
    values = _vector(utilities)
    return None if (values <= 0).any() else float(np.log(values).sum())


def jain_index(utilities: ArrayLike) -> float | None:
    """(sum U)^2 / (n sum U^2): 1 when all get the same, 1/n when one gets everything.

    Costs (no utility above 0) are compared like gains; mixed gains and costs give None.
    """
    values = _one_sign(utilities)
    if values is None:
        return None
    squares = float((values**2).sum())
    return float(values.sum() ** 2 / (len(values) * squares)) if squares else 1.0


def gini_index(utilities: ArrayLike) -> float | None:
    """sum_ij |U_i - U_j| / (2 n sum_i |U_i|): 0 when all get the same, (n-1)/n when one gets everything.

    Costs (no utility above 0) are compared like gains; mixed gains and costs give None.
    """
    values = _one_sign(utilities)
    if values is None:
        return None
    total = float(np.abs(values).sum())
    differences = float(np.abs(values[:, None] - values[None, :]).sum())
    return differences / (2 * len(values) * total) if total else 0.0


def envy(utilities: ArrayLike, kinds: Sequence[int] | None = None) -> float:
    """The largest envy: how much more an agent would have with another agent's outcome; 0 when no agent envies another.

    utilities: [N], where all agents value an outcome at what its owner got; or [N, N], where entry (i, j) is
    the value of agent j's outcome to agent i. Agents envy only those of their own kind (`kinds` [N]): a predator's
    reward would be of no use to prey.
    """
    values = np.asarray(utilities, float)
    if values.ndim == 1:
        values = np.broadcast_to(values, (len(values), len(values)))
    preferred = values - np.diagonal(values)[:, None]
    if kinds is not None:
        same = np.asarray(kinds)[:, None] == np.asarray(kinds)[None, :]
        preferred = np.where(same, preferred, 0.0)
    return float(max(preferred.max(), 0.0))


def envy_free(utilities: ArrayLike, kinds: Sequence[int] | None = None, tolerance: float = 1e-9) -> bool:
    """Whether no agent prefers another's outcome to its own."""
    return envy(utilities, kinds) <= tolerance


def efficiency(utilities: ArrayLike, best: ArrayLike) -> float | None:
    """sum_i U_i / sum_i U_i^max. best: the maximum of each agent, or one for all. None unless their sum is positive."""
    values = _vector(utilities)
    top = float(np.broadcast_to(np.asarray(best, float), values.shape).sum())
    return float(values.sum()) / top if top > 0 else None


def converged_at(steps: ArrayLike, scores: ArrayLike, level: float = LEVEL, window: float = WINDOW) -> float | None:
    """The first step from which a curve stays at or above `level` of the way from its first point to its final level.

    The final level is the mean over the last `window` of the points. The rise is measured from the first point,
    because returns may be negative: 95% of -10 would be better than -10. None for a curve that did not rise.
    """
    x, y = _vector(steps), _vector(scores)
    end = float(y[-_tail(len(y), window) :].mean())
    if end <= y[0]:
        return None
    low = np.nonzero(y < y[0] + level * (end - y[0]))[0]
    arrived = int(low[-1]) + 1 if len(low) else 0
    return float(x[arrived]) if arrived < len(x) else None


def stability(scores: ArrayLike, window: float = WINDOW) -> float:
    """Standard deviation over the last `window` of a curve: how much the return still varies at the end."""
    y = _vector(scores)
    return float(y[-_tail(len(y), window) :].std())


def categorical_kl(old: ArrayLike, new: ArrayLike) -> float:
    """Policy change of discrete actions: mean over states of KL(old || new). old, new: probabilities [..., A]."""
    p, q = np.asarray(old, float), np.asarray(new, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(p > 0, p * (np.log(p) - np.log(q)), 0.0)
    return float(terms.sum(axis=-1).mean())


def gaussian_kl(old_mean: ArrayLike, old_std: ArrayLike, new_mean: ArrayLike, new_std: ArrayLike) -> float:
    """Policy change of continuous actions: mean over states of KL between diagonal Gaussians, all [..., A]."""
    m, s, n, t = (np.asarray(x, float) for x in (old_mean, old_std, new_mean, new_std))
    terms = np.log(t / s) + (s**2 + (m - n) ** 2) / (2 * t**2) - 0.5
    return float(terms.sum(axis=-1).mean())


def team_metrics(utilities: ArrayLike, kinds: Sequence[int] | None = None, best: Any = None) -> dict[str, float]:
    """The team metrics of an evaluation, by their names in `metrics.jsonl`; undefined metrics are left out.

    For a single agent fairness has no meaning: only efficiency is given, if the environment states its maximum.
    """
    values = _vector(utilities)
    found: dict[str, float | None] = {"eval_efficiency": None if best is None else efficiency(values, best)}
    if len(values) > 1:
        found |= {
            "eval_welfare": welfare(values),
            "eval_welfare_min": egalitarian_welfare(values),
            "eval_welfare_nash": nash_welfare(values),
            "eval_proportional_fairness": proportional_fairness(values),
            "eval_jain": jain_index(values),
            "eval_gini": gini_index(values),
            "eval_envy": envy(values, kinds),
        }
    return {name: value for name, value in found.items() if value is not None}


def _vector(values: ArrayLike) -> np.ndarray:
    array = np.asarray(values, float)
    if array.ndim != 1 or not len(array):
        raise ValueError(f"expected a vector with at least one entry, not shape {array.shape}")
    return array


def _one_sign(utilities: ArrayLike) -> np.ndarray | None:
    values = _vector(utilities)
    return values if (values >= 0).all() or (values <= 0).all() else None


def _tail(length: int, window: float) -> int:
    return max(1, round(length * window))
