"""Average consensus: agents that only hear their neighbours find the mean of all their values.

    x_i <- x_i + sum_j w_ij (x_j - x_i)        (Xiao and Boyd 2004, Systems & Control Letters 53)

Agents keep what flowed over each link, x_i = v_i - sum_j f_ij with f_ij = -f_ji (flow updating, Jesus et al. 2009).
Without failures that is the rule above to rounding; and where a link fails nothing flows, where an agent leaves its
neighbours take back what flowed to it, and who joins begins with no flows: so the others always approach the mean of
the values of those who are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from flockrl.coordination.graphs import links_up
from flockrl.core.errors import UsageError

Weights = Literal["metropolis", "constant"]


def metropolis(links: np.ndarray) -> np.ndarray:
    """[n, n] w_ij = 1 / (1 + max(degree_i, degree_j)) on links, 0 elsewhere: known to both ends of a link alone."""
    degree = links.sum(1)
    return links / (1.0 + np.maximum(degree[:, None], degree))


def constant(links: np.ndarray) -> np.ndarray:
    """[n, n] one weight on all links, the best: 2 / (largest + second smallest eigenvalue of the Laplacian)."""
    values = np.linalg.eigvalsh(laplacian(links))
    return links * (2.0 / (values[-1] + values[1]))


WEIGHTS = {"metropolis": metropolis, "constant": constant}


def laplacian(weights: np.ndarray) -> np.ndarray:
    return np.diag(weights.sum(1)) - weights


def error_factor(weights: np.ndarray) -> float:
    """By what each step multiplies the error in the long run: the largest absolute eigenvalue of I - L beside that of
    the mean, exactly."""
    n = len(weights)
    return float(np.abs(np.linalg.eigvalsh(np.eye(n) - laplacian(weights) - 1 / n)).max())


def lossy_factor(weights: np.ndarray, loss: float) -> float:
    """By what each step multiplies the mean squared error in the long run where links fail, exactly: the largest
    eigenvalue of E[W (x) W] beside that of the mean. It needs n^4 numbers: for up to 24 agents."""
    n = len(weights)
    if n > 24:
        raise UsageError(f"The exact factor with losses is for up to 24 agents, not {n}.")
    eye, mean = np.eye(n), np.full((n, n), 1 / n)
    expected = eye - (1 - loss) * laplacian(weights) - mean
    found = np.kron(expected, expected)
    for i, j in np.argwhere(np.triu(weights) > 0):
        own = np.zeros((n, n))
        own[i, i] = own[j, j] = weights[i, j]
        own[i, j] = own[j, i] = -weights[i, j]
        found += loss * (1 - loss) * np.kron(own, own)
    return float(np.abs(np.linalg.eigvalsh(found)).max())


@dataclass
class Consensus:
    """Agents on their way to the mean. Slots are agents that are there or may come.

    values: [n] what each knows. links: [n, n]. there: [n] bool, by default all.
    """

    values: np.ndarray
    links: np.ndarray
    weights: Weights = "metropolis"
    loss: float = 0.0
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    there: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.weights not in WEIGHTS:
            raise UsageError(f"Weights are {' or '.join(WEIGHTS)}, not {self.weights!r}.")
        if not 0 <= self.loss <= 1:
            raise UsageError(f"loss is a chance from 0 to 1, not {self.loss}.")
        self.values = np.array(self.values, float)
        self.there = np.ones(len(self.values), bool) if self.there is None else np.array(self.there, bool)
        self.flows = np.zeros(self.links.shape)
        self._weigh()

    def _weigh(self) -> None:
        assert self.there is not None
        own = np.flatnonzero(self.there)
        self._present = self.links & self.there & self.there[:, None]
        self._weights = np.zeros(self.links.shape)
        self._weights[np.ix_(own, own)] = WEIGHTS[self.weights](self.links[np.ix_(own, own)])

    @property
    def estimates(self) -> np.ndarray:
        """[n] what each agent takes for the mean."""
        return self.values - self.flows.sum(1)

    @property
    def error(self) -> float:
        """Root mean squared distance of those who are there from the mean of their values."""
        own = self.estimates[self.there]
        return float(np.sqrt(((own - self.values[self.there].mean()) ** 2).mean()))

    def step(self) -> None:
        """Every link that works carries its share of the difference."""
        x, up = self.estimates, links_up(self._present, self.loss, self.rng)
        self.flows += self._weights * up * (x[:, None] - x)

    def gossip(self) -> None:
        """One agent wakes up and averages with one of its neighbours, if the link works (Boyd et al. 2006)."""
        one = self.rng.choice(np.flatnonzero(self._present.any(1)))
        other = self.rng.choice(np.flatnonzero(self._present[one]))
        if self.rng.random() < self.loss:
            return
        x = self.estimates
        self.flows[one, other] += (x[one] - x[other]) / 2
        self.flows[other, one] = -self.flows[one, other]

    def leave(self, agent: int) -> None:
        """An agent goes without a word; its neighbours take back what flowed between them."""
        assert self.there is not None
        self.there[agent] = False
        self.flows[agent] = self.flows[:, agent] = 0.0
        self._weigh()

    def join(self, agent: int, value: float) -> None:
        """An agent comes, with a value of its own."""
        assert self.there is not None
        self.there[agent], self.values[agent] = True, value
        self._weigh()


def gossip_factor(links: np.ndarray) -> float:
    """By what a gossip step multiplies the mean squared error at most, and exactly where all are linked."""
    n = len(links)
    chance = links / links.sum(1, keepdims=True) / n
    pairs = chance + chance.T
    return float(np.sort(np.linalg.eigvalsh(np.eye(n) - laplacian(pairs) / 2))[-2])


@dataclass(frozen=True)
class Hierarchy:
    """What consensus in two layers found: [n] estimates, and messages and steps that it took."""

    estimates: np.ndarray
    messages: int
    steps: int


def hierarchical(
    values: np.ndarray, groups: Sequence[Sequence[int]], links: Mapping[int, np.ndarray], upper: np.ndarray,
    steps: tuple[int, int], weights: Weights = "metropolis", loss: float = 0.0,
    rng: np.random.Generator | None = None,
) -> Hierarchy:  # fmt: skip
    """Groups first, then the whole: each group finds its mean, the first agents of groups weigh these by size and find
    theirs, and tell their groups.

    links: group number -> [k, k] within it; upper: [g, g] between groups. steps: of each layer.
    """
    rng = np.random.default_rng(0) if rng is None else rng
    values = np.asarray(values, float)
    lower = [Consensus(values[list(own)], links[g], weights, loss, rng) for g, own in enumerate(groups)]
    messages = 0
    for one in lower:
        for _ in range(steps[0]):
            one.step()
        messages += steps[0] * int(one.links.sum())
    heads = np.array([one.estimates[0] for one in lower])
    sizes = np.array([len(own) for own in groups], float)
    sums, counts = (Consensus(x, upper, weights, loss, np.random.default_rng(7)) for x in (heads * sizes, sizes))
    for _ in range(steps[1]):
        sums.step()
        counts.step()
    messages += steps[1] * int(upper.sum()) + sum(len(own) - 1 for own in groups)
    found = np.empty(len(values))
    for g, own in enumerate(groups):
        found[list(own)] = sums.estimates[g] / counts.estimates[g]
    return Hierarchy(found, messages, steps[0] + steps[1] + 1)
