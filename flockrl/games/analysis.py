"""What else can be said about a normal-form game: dominance, Pareto front, security, stability, symmetry."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from flockrl.core.errors import UsageError
from flockrl.envs.games.matrix import interchangeable
from flockrl.games.linear import maximin, programme
from flockrl.games.normal import NormalForm, pure

TOLERANCE = 1e-9
MOST_OUTCOMES = 20_000
"""The most joint actions for dominance, and the most unlike outcomes for the Pareto front."""
MOST_SURE = 200_000
"""The most joint actions for maximin: each player's is a linear programme of as many numbers."""


class Removed(NamedTuple):
    """An action that a mixture of others beats, whatever the others do, in the given round of elimination."""

    player: int
    action: int
    round: int


def dominated(game: NormalForm) -> tuple[list[Removed], list[np.ndarray]]:
    """Iterated elimination of strictly dominated actions: those removed, and the actions that each player keeps."""
    if game.payoff[..., 0].size > MOST_OUTCOMES:
        raise UsageError(f"{game.name} is too large: dominance is computed up to {MOST_OUTCOMES:,} joint actions.")
    kept = [np.arange(count) for count in game.counts]
    removed: list[Removed] = []
    for number in itertools.count(1):
        now = []
        part = game.payoff[np.ix_(*kept, np.arange(len(kept)))]
        for player, own in enumerate(kept):
            rows = np.moveaxis(part[..., player], player, 0).reshape(len(own), -1)
            now += [Removed(player, int(own[i]), number) for i in range(len(own)) if _beaten(rows, i, game.scale)]
        if not now:
            return removed, kept
        removed += now
        gone = {(r.player, r.action) for r in now}
        kept = [np.array([a for a in own if (player, a) not in gone]) for player, own in enumerate(kept)]
    raise AssertionError


def _beaten(rows: np.ndarray, which: int, scale: float) -> bool:
    """Whether a mixture of the other rows [A, M] is higher than this one everywhere."""
    others = np.delete(rows, which, 0)
    if not len(others):
        return False
    if (others > rows[which] + TOLERANCE * scale).all(1).any():
        return True
    if (rows[which] >= others.max(0)).any():
        return False  # a best answer to something
    found = programme(
        c=np.append(np.zeros(len(others)), -1.0),
        A_ub=np.hstack([-others.T / scale, np.ones((rows.shape[1], 1))]),
        b_ub=-rows[which] / scale,
        A_eq=np.append(np.ones(len(others)), 0.0)[None],
        b_eq=[1.0],
        bounds=[(0, None)] * len(others) + [(None, None)],
    )
    return float(-found.fun) > TOLERANCE


def pareto_front(game: NormalForm) -> list[tuple[int, ...]]:
    """Joint actions that no other joint action improves on for one player without a loss for another."""
    unlike = np.unique(game.payoff.reshape(-1, game.payoff.shape[-1]), axis=0)
    if len(unlike) > MOST_OUTCOMES:
        raise UsageError(f"{game.name} is too large: its Pareto front is computed up to {MOST_OUTCOMES:,} outcomes.")
    front = {tuple(row) for row in unlike.tolist() if not ((unlike >= row).all(1) & (unlike > row).any(1)).any()}
    return [joint for joint in np.ndindex(*game.counts) if tuple(game.payoff[joint].tolist()) in front]


class Security(NamedTuple):
    """The most that a player can be sure of, whatever the others do together, and the strategy that ensures it."""

    value: float
    strategy: np.ndarray


def security(game: NormalForm) -> list[Security]:
    """Each player's maximin."""
    if game.payoff[..., 0].size > MOST_SURE:
        raise UsageError(f"{game.name} is too large: maximin is computed up to {MOST_SURE:,} joint actions.")
    found = []
    for player, count in enumerate(game.counts):
        rows = np.moveaxis(game.payoff[..., player], player, 0).reshape(count, -1)
        found.append(Security(*maximin(rows)))
    return found


def social_optimum(game: NormalForm) -> tuple[int, ...]:
    """The joint action with the highest sum of payoffs, the first where there are several."""
    return tuple(int(i) for i in np.unravel_index(game.payoff.sum(-1).argmax(), game.counts))


def evolutionarily_stable(game: NormalForm, strategy: np.ndarray) -> bool:
    """Whether a strategy [A] of a symmetric game of two is evolutionarily stable (Maynard Smith and Price 1973).

    That is: it is a best answer to itself, and every other best answer y earns less against y than it does
    (Haigh 1975, Abakuks 1980: a matrix has to be strictly copositive).
    """
    if not game.symmetric:
        raise UsageError(f"{game.name}: evolutionary stability is about symmetric games of two players.")
    payoff, slack = game.payoff[..., 0], TOLERANCE * game.scale
    values = payoff @ strategy
    if strategy @ values < values.max() - slack:
        return False
    support = np.nonzero(strategy > TOLERANCE)[0]
    answers = [i for i in np.nonzero(values >= values.max() - slack)[0] if i not in support]
    # z = y - x is 0 in sum, free on the support and >= 0 on other best answers; -z' A z must be above 0.
    base, free = support[0], list(support[1:])
    directions = np.zeros((len(free) + len(answers), len(strategy)))
    for row, i in enumerate(free + answers):
        directions[row, i], directions[row, base] = 1.0, -1.0
    form = -directions @ payoff @ directions.T
    form = (form + form.T) / 2
    k = len(free)
    if k and np.linalg.eigvalsh(form[:k, :k]).min() <= slack:
        return False
    rest = form[k:, k:] - (form[k:, :k] @ np.linalg.solve(form[:k, :k], form[:k, k:]) if k else 0.0)
    return _copositive(rest, slack)


def _copositive(form: np.ndarray, slack: float) -> bool:
    """Whether z' form z > 0 for all z >= 0 but 0: no principal submatrix has a positive eigenvector to a value <= 0."""
    size = len(form)
    if size > 14:
        raise UsageError("Evolutionary stability is checked up to 14 best answers outside of the support.")
    for count in range(1, size + 1):
        for chosen in itertools.combinations(range(size), count):
            values, vectors = np.linalg.eigh(form[np.ix_(chosen, chosen)])
            for value, vector in zip(values, vectors.T, strict=True):
                if value <= slack and ((vector > -1e-12).all() or (vector < 1e-12).all()):
                    return False
    return True


# Strangers


def symmetry_classes(game: NormalForm) -> np.ndarray:
    """[A] the class of each action: two actions are of one class if all players can exchange them and nothing changes.

    Who learned a game alone cannot agree with strangers on one of a class.
    """
    return interchangeable(game.payoff)


def among_strangers(game: NormalForm, strategies: list[np.ndarray]) -> np.ndarray:
    """[N] what players get on average whose strategies were learned apart: each has names of its own for the actions of
    a class, so that its strategy is spread evenly over the class."""
    classes = symmetry_classes(game)
    if len(set(game.counts)) != 1:
        return game.values(strategies)
    same = (classes[:, None] == classes).astype(float)
    spread = same / same.sum(1, keepdims=True)
    return game.values([s @ spread for s in strategies])


def other_play(game: NormalForm) -> tuple[tuple[int, ...], np.ndarray]:
    """The joint action that is best among strangers (other-play, Hu et al. 2020), and what it pays [N]."""
    scored = {joint: among_strangers(game, pure(game.counts, joint)) for joint in _representatives(game)}
    best = max(scored, key=lambda joint: scored[joint].sum())
    return best, scored[best]


def _representatives(game: NormalForm) -> list[tuple[int, ...]]:
    """Joint actions, one of each combination of classes."""
    firsts = [sorted(set(symmetry_classes(game).tolist()))] * len(game.counts)
    if len(set(game.counts)) != 1:
        firsts = [list(range(count)) for count in game.counts]
    return list(itertools.product(*firsts))
