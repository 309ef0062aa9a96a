"""Normal-form games as values: a payoff tensor [A1, ..., An, N], and what strategies are worth in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from flockrl.core.errors import UsageError
from flockrl.envs.games.matrix import MatrixGame
from flockrl.envs.games.payoffs import MOST_OUTCOMES
from flockrl.games.sequence import Gap

Strategies = Sequence[np.ndarray]
"""For each player the probabilities [A] of its actions."""


@dataclass(frozen=True, eq=False)
class NormalForm:
    """Each player chooses one action, all at once. payoff: [A1, ..., An, N] float64; players, actions: their names."""

    payoff: np.ndarray
    name: str = "game"
    players: tuple[str, ...] = ()
    actions: tuple[tuple[str, ...], ...] = field(default=())

    def __post_init__(self) -> None:
        payoff = np.asarray(self.payoff, float)
        shape = payoff.shape
        if payoff.ndim < 2 or shape[-1] != payoff.ndim - 1 or not payoff.size:
            raise UsageError(f"{self.name}: payoffs must have the shape [A1, ..., An, N], not {list(shape)}.")
        if not np.isfinite(payoff).all():
            at = [int(i) for i in np.argwhere(~np.isfinite(payoff))[0]]
            raise UsageError(f"{self.name}: every payoff must be a finite number, but the one at {at} is not.")
        if payoff[..., 0].size > MOST_OUTCOMES:
            raise UsageError(f"{self.name} is too large: it has more than {MOST_OUTCOMES:,} joint actions.")
        players = self.players or tuple(f"player_{i}" for i in range(shape[-1]))
        actions = self.actions or tuple(tuple(map(str, range(count))) for count in shape[:-1])
        if len(players) != shape[-1] or tuple(map(len, actions)) != shape[:-1]:
            raise UsageError(f"{self.name}: names of players and actions must fit the payoffs, {list(shape)}.")
        object.__setattr__(self, "payoff", payoff)
        object.__setattr__(self, "players", tuple(players))
        object.__setattr__(self, "actions", tuple(map(tuple, actions)))

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of actions of each player."""
        return self.payoff.shape[:-1]

    @property
    def scale(self) -> float:
        """The distance between the lowest and the highest payoff, or 1 where all are equal."""
        return float(np.ptp(self.payoff)) or 1.0

    @property
    def zero_sum(self) -> bool:
        """Whether there are two players, and their payoffs always have the same sum."""
        total = self.payoff.sum(-1)
        return len(self.counts) == 2 and bool(np.ptp(total) <= 1e-12 * self.scale)

    @property
    def symmetric(self) -> bool:
        """Whether there are two players who could exchange their places."""
        return (
            len(self.counts) == 2 and self.counts[0] == self.counts[1]
            and bool(np.allclose(self.payoff[..., 0], self.payoff[..., 1].T, atol=1e-12 * self.scale, rtol=0))
        )  # fmt: skip

    def action_values(self, player: int, strategies: Strategies) -> np.ndarray:
        """[A] what each action of the player is worth while the others follow their strategies."""
        values = self.payoff[..., player]
        for other in reversed(range(len(self.counts))):
            if other != player:
                values = np.tensordot(values, strategies[other], (other, 0))
        return values

    def values(self, strategies: Strategies) -> np.ndarray:
        """[N] what each player gets."""
        return np.array([s @ self.action_values(i, strategies) for i, s in enumerate(strategies)])

    def gap(self, strategies: Strategies) -> Gap:
        """The players' payoffs, and what each would gain by its best action."""
        values = [self.action_values(i, strategies) for i in range(len(self.counts))]
        own = np.array([s @ v for s, v in zip(strategies, values, strict=True)])
        return Gap(own, np.maximum(np.array([v.max() for v in values]) - own, 0.0))

    def uniform(self) -> list[np.ndarray]:
        return [np.full(count, 1.0 / count) for count in self.counts]

    def named(self, joint: Sequence[int]) -> str:
        """A joint action by the names of its actions."""
        return ", ".join(names[a] for names, a in zip(self.actions, joint, strict=True))


def pure(counts: Sequence[int], joint: Sequence[int]) -> list[np.ndarray]:
    """A joint action as strategies."""
    return [(np.arange(count) == action).astype(float) for count, action in zip(counts, joint, strict=True)]


def from_matrix_game(env: MatrixGame) -> NormalForm:
    """One round of a matrix game, with its payoffs as they were written: 0.9 and not the float32 next to it."""
    unlike, which = np.unique(env.payoff, return_inverse=True)
    payoff = np.array([float(str(x)) for x in unlike])[which].reshape(env.payoff.shape)
    return NormalForm(payoff, env.spec.name, env.spec.agents)
