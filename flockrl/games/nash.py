"""Nash equilibria of normal-form games. Whatever is returned carries its regret, computed from the payoffs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from flockrl.core.errors import UsageError
from flockrl.games.linear import zero_sum
from flockrl.games.normal import NormalForm, pure
from flockrl.games.sequence import Gap

TOLERANCE = 1e-9
"""The largest regret of what is called an equilibrium, relative to the range of payoffs."""
MOST_SUPPORTS = 200_000
"""The most pairs of supports that are tried; larger games are solved by Lemke and Howson's method alone."""
MOST_PATH = 200_000
"""Mixed equilibria of more than two players are searched up to this number of joint actions times players squared."""
MOST_LOGIT, MOST_SHOWN = 300, 5_000
"""The most actions of all players together for such a search, and for any search."""
MOST_PIVOTS = 1_000
"""Steps after which Lemke and Howson's method is given up."""
MOST_ACTIONS = 100
"""The most actions of a player, for Lemke and Howson's method."""


class Profile(NamedTuple):
    """Strategies with their certificate. how: the method that found them."""

    strategies: list[np.ndarray]
    gap: Gap
    how: str

    @property
    def regret(self) -> float:
        """The most that any player would gain by another action."""
        return float(self.gap.gains.max())


def certify(game: NormalForm, strategies: Iterable[Any], how: str) -> Profile:
    """Strategies with their regret. Rounding below 0 is cut off first."""
    clean = [np.maximum(np.asarray(s, float), 0.0) for s in strategies]
    clean = [s / s.sum() for s in clean]
    return Profile(clean, game.gap(clean), how)


def is_equilibrium(game: NormalForm, profile: Profile) -> bool:
    return profile.regret <= TOLERANCE * game.scale


def pure_equilibria(game: NormalForm) -> list[Profile]:
    """All equilibria in which nobody mixes."""
    best = np.ones(game.counts, bool)
    for player in range(len(game.counts)):
        own = game.payoff[..., player]
        best &= own >= own.max(axis=player, keepdims=True) - TOLERANCE * game.scale
    found = itertools.islice(np.argwhere(best).tolist(), 1000)
    return [certify(game, pure(game.counts, joint), "every joint action") for joint in found]


def equilibria(game: NormalForm) -> list[Profile]:
    """Equilibria: all of a small game of two players that is not degenerate, otherwise all pure ones and some more."""
    if sum(game.counts) > MOST_SHOWN:
        raise UsageError(f"{game.name} is too large: equilibria are searched up to {MOST_SHOWN:,} actions in all.")
    found = pure_equilibria(game)
    if len(game.counts) == 2:
        found += _bimatrix(game)
    elif mixed_searched(game):
        found += [logit_path(game)]
    return _unlike([profile for profile in found if is_equilibrium(game, profile)])


def mixed_searched(game: NormalForm) -> bool:
    """Whether mixed equilibria are searched, too: with more than two players, in games that are not too large."""
    players = len(game.counts)
    small = game.payoff[..., 0].size * players**2 <= MOST_PATH and sum(game.counts) <= MOST_LOGIT
    return players == 2 or small


def _bimatrix(game: NormalForm) -> list[Profile]:
    rows, columns = game.counts
    found = []
    if game.zero_sum:
        half = (game.payoff[..., 0] - game.payoff[..., 1]) / 2
        found.append(certify(game, zero_sum(half)[1:], "linear programme"))
    if max(rows, columns) <= MOST_ACTIONS:
        found += support_enumeration(game) if math.comb(rows + columns, rows) <= MOST_SUPPORTS else []
        found += lemke_howson(game, labels=20)
    elif not found:
        raise UsageError(f"{game.name} is too large: equilibria are searched up to {MOST_ACTIONS} actions of a player.")
    return found


def support_enumeration(game: NormalForm) -> list[Profile]:
    """Equilibria of two players who mix equally many actions, from all pairs of such supports: of a game that is not
    degenerate these are all equilibria."""
    rows, columns = game.counts
    pairs: list[tuple[np.ndarray, np.ndarray]] = []
    for size in range(1, min(rows, columns) + 1):
        mine, theirs = (np.array(list(itertools.combinations(range(n), size))) for n in (rows, columns))
        both = np.stack(np.meshgrid(range(len(mine)), range(len(theirs)), indexing="ij"), -1).reshape(-1, 2)
        for part in np.array_split(both, len(both) // 20_000 + 1):
            pairs += _mixtures(game, mine[part[:, 0]], theirs[part[:, 1]])
    return _certified(game, iter(pairs), "support enumeration")


def _mixtures(game: NormalForm, mine: np.ndarray, theirs: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Strategies on supports [K, k] of rows and of columns that make all of the other's support worth the same."""
    first, second = ((game.payoff[..., i] - game.payoff.min()) / game.scale for i in range(2))
    y, sound = _indifferent(first[mine[:, :, None], theirs[:, None, :]])
    x, also = _indifferent(second[mine[:, :, None], theirs[:, None, :]].transpose(0, 2, 1))
    good = np.nonzero(sound & also & (x > -1e-12).all(1) & (y > -1e-12).all(1))[0]
    found = []
    for k in good:
        one, two = np.zeros(game.counts[0]), np.zeros(game.counts[1])
        one[mine[k]], two[theirs[k]] = x[k], y[k]
        found.append((one, two))
    return found


def _indifferent(payoffs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights [K, k] of the columns that sum to 1 and make all rows of [K, k, k] worth the same, and where there is
    exactly one such solution."""
    count, size = payoffs.shape[:2]
    system = np.zeros((count, size + 1, size + 1))
    system[:, :size, :size], system[:, :size, size], system[:, size, :size] = payoffs, -1.0, 1.0
    sound = np.abs(np.linalg.det(system)) > 1e-12
    right = np.append(np.zeros(size), 1.0)[None, :, None]
    weights = np.zeros((count, size))
    weights[sound] = np.linalg.solve(system[sound], np.broadcast_to(right, (int(sound.sum()), size + 1, 1)))[
        :, :size, 0
    ]
    return weights, sound


def lemke_howson(game: NormalForm, labels: int = 1) -> list[Profile]:
    """Equilibria of two players that Lemke and Howson's method (1964) finds from the first `labels` labels."""
    first, second = (1.0 + (game.payoff[..., i] - game.payoff.min()) / game.scale for i in range(2))
    pairs = (_follow(first, second, label) for label in range(min(labels, sum(game.counts))))
    return _certified(game, pairs, "Lemke-Howson")


def _follow(first: np.ndarray, second: np.ndarray, label: int) -> tuple[np.ndarray, np.ndarray]:
    """The path from one label to an equilibrium, or empty strategies after `MOST_PIVOTS` steps. Payoffs are above 0.

    Labels 0 to m - 1 are the rows, the others the columns. A table holds an inequality for each action of one player,
    with the other's mixed strategy and the slack as variables, both numbered by labels, and 1 on the right.
    """
    m, n = first.shape
    answers = [np.hstack([np.eye(m), first, np.ones((m, 1))]), np.hstack([second.T, np.eye(n), np.ones((n, 1))])]
    slack, basis = [np.arange(m), m + np.arange(n)], [np.arange(m), m + np.arange(n)]
    entering, where = label, int(label < m)
    for _ in range(MOST_PIVOTS):
        table = answers[where]
        column = table[:, entering]
        rows = np.nonzero(column > 1e-11)[0]
        if not len(rows):
            break
        ratios = table[rows][:, [-1, *slack[where]]] / column[rows, None]  # ties are broken by the slack's columns
        row = rows[np.lexsort(ratios.T[::-1])[0]]
        table[row] /= table[row, entering]
        others = np.arange(len(table)) != row
        table[others] -= np.outer(table[others, entering], table[row])
        leaving, basis[where][row] = int(basis[where][row]), entering
        if leaving == label:
            x, y = np.zeros(m), np.zeros(n)
            mine, theirs = basis[1] < m, basis[0] >= m
            x[basis[1][mine]], y[basis[0][theirs] - m] = answers[1][mine, -1], answers[0][theirs, -1]
            return x, y
        entering, where = leaving, 1 - where
    return np.zeros(0), np.zeros(0)


def _certified(game: NormalForm, pairs: Iterable[tuple[np.ndarray, np.ndarray]], how: str) -> list[Profile]:
    """The pairs that are equilibria. Empty strategies stand for none found."""
    found = [certify(game, pair, how) for pair in pairs if len(pair[0]) and all(s.sum() > 0 for s in pair)]
    return _unlike([profile for profile in found if is_equilibrium(game, profile)])


def _unlike(profiles: list[Profile]) -> list[Profile]:
    """Profiles without repetitions."""
    flat = np.array([np.concatenate(profile.strategies) for profile in profiles])
    kept: list[int] = []
    for k, own in enumerate(flat):
        if (np.abs(flat[kept] - own).max(1, initial=0.0) > 1e-6).all():
            kept.append(k)
    return [profiles[k] for k in kept]


def logit_path(game: NormalForm, rounds: int = 120) -> Profile:
    """An equilibrium of any number of players: the players answer each other with softmax(values x sharpness), and the
    solution is followed by Newton's method while the sharpness grows (McKelvey and Palfrey 1995); at its end the
    equations of an exact equilibrium on the remaining support are solved. It may fail: look at the regret."""
    counts, scaled = game.counts, NormalForm((game.payoff - game.payoff.min()) / game.scale, game.name)
    point, best = np.concatenate([np.zeros(count) - np.log(count) for count in counts]), None
    for step in range(rounds):
        point = _newton(scaled, point, 0.05 * 1.12**step)
        if step % 10 == 9:
            for cut in (1e-2, 1e-3, 1e-5):
                candidate = _polished(game, _split(np.exp(point), counts), cut)
                if best is None or candidate.regret < best.regret:
                    best = candidate
            if best is not None and is_equilibrium(game, best):
                return best
    assert best is not None
    return best


def _split(flat: np.ndarray, counts: tuple[int, ...]) -> list[np.ndarray]:
    parts = np.split(flat, np.cumsum(counts)[:-1])
    return [np.maximum(p, 1e-300) / np.maximum(p, 1e-300).sum() for p in parts]


def _newton(game: NormalForm, point: np.ndarray, sharpness: float) -> np.ndarray:
    """Log-probabilities l with  l = log softmax(sharpness x values of exp(l))  near `point`."""
    counts = game.counts
    for _ in range(8):
        strategies = _split(np.exp(point), counts)
        flat = np.concatenate(strategies)
        target, slope = _answers(game, strategies, sharpness)
        error = np.log(flat) - target
        if np.abs(error).max() < 1e-10:
            break
        step = np.linalg.lstsq(np.eye(len(flat)) - slope * flat, -error, rcond=None)[0]
        point = np.log(flat) + np.clip(step, -2.0, 2.0)
    return np.log(np.concatenate(_split(np.exp(point), counts)))


def _answers(game: NormalForm, strategies: list[np.ndarray], sharpness: float) -> tuple[np.ndarray, np.ndarray]:
    """log softmax of all players' action values, and its derivative by all probabilities."""
    starts = np.concatenate([[0], np.cumsum(game.counts)])
    size = starts[-1]
    target, slope = np.zeros(size), np.zeros((size, size))
    for i in range(len(game.counts)):
        rows = slice(starts[i], starts[i + 1])
        values = sharpness * game.action_values(i, strategies)
        values = values - values.max()
        target[rows] = values - np.log(np.exp(values).sum())
        soft = np.exp(target[rows])
        for j in range(len(game.counts)):
            if j != i:
                pair = sharpness * _pair_values(game, i, j, strategies)
                slope[rows, starts[j] : starts[j + 1]] = pair - soft @ pair
    return target, slope


def _pair_values(game: NormalForm, i: int, j: int, strategies: list[np.ndarray]) -> np.ndarray:
    """[Ai, Aj] payoffs of player i for both actions while the others follow their strategies."""
    values = game.payoff[..., i]
    for other in reversed(range(len(game.counts))):
        if other not in (i, j):
            values = np.tensordot(values, strategies[other], (other, 0))
    return values if i < j else values.T


def _polished(game: NormalForm, strategies: list[np.ndarray], cut: float) -> Profile:
    """The strategies cut to what is played at least that often, made exact there where that succeeds."""
    played = [s > min(cut, s.max() / 2) for s in strategies]  # never nothing, however many actions there are
    supports = [np.nonzero(own)[0] for own in played]
    current = [np.where(own, s, 0.0) / s[own].sum() for own, s in zip(played, strategies, strict=True)]
    best = certify(game, current, "logit path")
    sizes = [len(s) for s in supports]
    for _ in range(20):
        errors, jacobian = [], []
        starts = np.concatenate([[0], np.cumsum(sizes)])
        for i, own in enumerate(supports):
            values = game.action_values(i, current)[own]
            errors += [*(values[1:] - values[0]), current[i].sum() - 1.0]
            block = np.zeros((len(own), starts[-1]))
            for j, theirs in enumerate(supports):
                if j != i:
                    pair = _pair_values(game, i, j, current)[np.ix_(own, theirs)]
                    block[:-1, starts[j] : starts[j + 1]] = pair[1:] - pair[0]
            block[-1, starts[i] : starts[i + 1]] = 1.0
            jacobian.append(block)
        step = np.linalg.lstsq(np.concatenate(jacobian), -np.array(errors), rcond=None)[0]
        for i, own in enumerate(supports):
            current[i] = current[i].copy()
            current[i][own] += step[starts[i] : starts[i + 1]]
        if any((s < -1e-9).any() or not np.isfinite(s).all() for s in current):
            return best
        candidate = certify(game, current, "logit path")
        best = candidate if candidate.regret < best.regret else best
        if np.abs(step).max() < 1e-13:
            break
    return best
