"""Solvers of Markov games. What they return carries its gap: what best responses to it would gain, exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from flockrl.core.errors import UsageError
from flockrl.games.correlated import correlated as correlated_stage
from flockrl.games.linear import zero_sum_many
from flockrl.games.markov import MarkovGame
from flockrl.games.nash import equilibria, logit_path
from flockrl.games.normal import NormalForm
from flockrl.games.sequence import Gap


class Solution(NamedTuple):
    """Policies [S, A] for each player, or a joint one [S, J] of a mediator, with what they are worth.

    values: [S, N]; gap: values and gains at the start; worst: the largest gain in any state; rounds: how many it took;
    settled: whether values stopped changing.
    """

    policies: list[np.ndarray]
    values: np.ndarray
    gap: Gap
    worst: float
    rounds: int
    settled: bool


PATIENCE = 500
"""Rounds of value iteration in which values must come nearer to rest by a hundredth."""


def minimax(game: MarkovGame, tolerance: float = 1e-10, rounds: int = 20_000) -> Solution:
    """Shapley's value iteration (1953) for two players of whom one gains what the other loses."""
    _only_zero_sum(game)
    value, change = np.zeros(game.states), np.inf
    stop = tolerance * (1 - game.discount) / max(game.discount, 1e-9) if game.discount < 1 else tolerance
    first = second = np.zeros(0)
    count, before = 0, np.inf
    while count < rounds:
        count += 1
        found, first, second = _stages(game, game.stage(np.stack([value, -value], 1)))
        change, value = float(np.abs(found - value).max()), found
        if change <= stop:
            break
        if count % PATIENCE == 0:  # play that never ends is paid for ever
            if change > 0.99 * before:
                break
            before = change
    return _certified(game, [first, second], count, change <= stop)


def policy_iteration(game: MarkovGame, tolerance: float = 1e-10, rounds: int = 200) -> Solution:
    """Policy iteration (Hoffman and Karp 1966) for two players of whom one gains what the other loses: the second
    player's policy is that of the stage games, and the first player's best answer to it gives the next values."""
    _only_zero_sum(game)
    value, change = np.zeros(game.states), np.inf
    first = second = np.zeros(0)
    count = 0
    while count < rounds:
        count += 1
        _, first, second = _stages(game, game.stage(np.stack([value, -value], 1)))
        answer, _ = game.best_response(0, [first, second])
        change, value = float(np.abs(answer - value).max()), answer
        if change <= tolerance:
            break
    return _certified(game, [first, second], count, change <= tolerance)


def _only_zero_sum(game: MarkovGame) -> None:
    if not game.zero_sum:
        raise UsageError(f"{game.name}: this method is for two players of whom one gains what the other loses.")


def _stages(game: MarkovGame, stage: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values [S] and both players' strategies [S, A] of all stage games [S, A, A, 2]."""
    payoff = stage[..., 0]
    rows, columns = game.legal[:, 0], game.legal[:, 1]
    # An illegal action becomes a copy of the first legal one, which changes no value; its share goes there afterwards.
    place = [np.where(legal, np.arange(game.actions), legal.argmax(1)[:, None]) for legal in (rows, columns)]
    payoff = np.take_along_axis(payoff, place[0][:, :, None], 1)
    payoff = np.take_along_axis(payoff, place[1][:, None, :], 2)
    values, *strategies = zero_sum_many(payoff)
    moved = []
    for to, strategy in zip(place, strategies, strict=True):
        own = np.zeros_like(strategy)
        np.add.at(own, (np.arange(game.states)[:, None], to), strategy)
        moved.append(own)
    return values, moved[0], moved[1]


def _certified(game: MarkovGame, policies: list[np.ndarray], rounds: int, settled: bool) -> Solution:
    gap, worst = game.gap(policies)
    return Solution(policies, game.evaluate(game.together(policies)), gap, worst, rounds, settled)


def nash_iteration(game: MarkovGame, tolerance: float = 1e-9, rounds: int = 500) -> Solution:
    """Value iteration with an equilibrium of each state's stage game, as in Nash-Q (Hu and Wellman 2003): the pure one
    with the highest sum of payoffs where there is one, else the best mixed one. It need not settle."""
    values, change = np.zeros((game.states, game.players)), np.inf
    policies = game.uniform()
    count = 0
    while count < rounds:
        count += 1
        policies, found = _stage_equilibria(game, game.stage(values))
        change, values = float(np.abs(found - values).max()), found
        if change <= tolerance:
            break
    return _certified(game, policies, count, change <= tolerance)


def _stage_equilibria(game: MarkovGame, stage: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """An equilibrium of each stage game [S, A, ..., A, N]: policies [S, A] for each player, and values [S, N]."""
    if game.zero_sum:
        value, first, second = _stages(game, stage)
        return [first, second], np.stack([value, -value], 1)
    size, n = game.states, game.players
    allowed = np.ones((size, *game.shape), bool)
    for i in range(n):
        allowed &= game.legal[:, i].reshape(size, *(game.actions if k == i else 1 for k in range(n)))
    steady = allowed.copy()
    for i in range(n):
        own = np.where(allowed, stage[..., i], -np.inf)
        steady &= own >= own.max(axis=1 + i, keepdims=True) - 1e-12 * (1.0 + np.abs(own.max(axis=1 + i, keepdims=True)))
    welfare = np.where(steady, stage.sum(-1), -np.inf).reshape(size, -1)
    best = welfare.argmax(1)
    actions = np.stack(np.unravel_index(best, game.shape), 1)
    policies = [np.eye(game.actions)[actions[:, i]] for i in range(n)]
    values = stage.reshape(size, -1, n)[np.arange(size), best].copy()
    for s in np.nonzero(~steady.reshape(size, -1).any(1))[0]:
        mine = [np.nonzero(game.legal[s, i])[0] for i in range(n)]
        part = NormalForm(stage[s][np.ix_(*mine, np.arange(n))], game.name)
        found = equilibria(part) or [logit_path(part)]
        chosen = max(found, key=lambda profile: profile.gap.values.sum())
        values[s] = chosen.gap.values
        for i in range(n):
            policies[i][s] = 0.0
            policies[i][s, mine[i]] = chosen.strategies[i]
    return policies, values


def correlated_iteration(game: MarkovGame, tolerance: float = 1e-7, rounds: int = 500) -> Solution:
    """Value iteration with the welfare-best correlated equilibrium of each stage game, as in correlated-Q (Greenwald
    and Hall 2003). The policy is a mediator's; gains are those of players who may disobey what they are told."""
    size, n = game.states, game.players
    values, joint, change = np.zeros((size, n)), np.zeros((size, int(np.prod(game.shape)))), np.inf
    count = 0
    while count < rounds:
        count += 1
        stage, found = game.stage(values), np.zeros((size, n))
        if game.zero_sum:  # the product of minimax strategies is one, and all have the same sum of payoffs
            policies, found = _stage_equilibria(game, stage)
            joint = game.together(policies)
        for s in range(0 if game.zero_sum else size):
            own = [np.nonzero(game.legal[s, i])[0] for i in range(n)]
            part = correlated_stage(NormalForm(stage[s][np.ix_(*own, np.arange(n))], game.name))
            whole = np.zeros(game.shape)
            whole[np.ix_(*own)] = part.joint
            joint[s], found[s] = whole.reshape(-1), part.values
        change, values = float(np.abs(found - values).max()), found
        if change <= tolerance:
            break
    worth = game.evaluate(joint)
    gains = np.stack([_disobeying(game, joint, i) for i in range(n)], 1) - worth
    gains = np.maximum(gains, 0.0)
    return Solution(
        [joint], worth, Gap(game.start @ worth, game.start @ gains), float(gains.max()), count, change <= tolerance
    )


def _disobeying(game: MarkovGame, joint: np.ndarray, player: int, rounds: int = 100_000) -> np.ndarray:
    """[S] what a player can get who is told its part of the joint action [S, J], and may do something else instead."""
    size, actions = game.states, game.actions
    told = np.moveaxis(joint.reshape(size, *game.shape), 1 + player, 1).reshape(size, actions, -1)
    value = np.zeros(size)
    for _ in range(rounds):
        after = np.append(value, 0.0)
        total = game.reward[..., player] + game.discount * (game.odds * after[game.next]).sum(-1)
        total = np.moveaxis(total.reshape(size, *game.shape), 1 + player, 1).reshape(size, actions, -1)
        worth = np.where(game.legal[:, player, None], np.einsum("stm,sdm->sdt", told, total), -np.inf)
        found = worth.max(1).sum(1)
        if np.abs(found - value).max() <= 1e-12 * (1.0 + np.abs(found).max()):
            return found
        value = found
    raise UsageError(f"{game.name}: what a player gains who disobeys did not settle: set a discount below 1.")


def best_response_iteration(game: MarkovGame, rounds: int = 100) -> Solution:
    """Each player in turn answers the others' policies with its best response, until nobody gains. It may cycle."""
    policies = game.uniform()
    count, moved = 0, True
    while moved and count < rounds:
        count += 1
        moved = False
        for i in range(game.players):
            value, answer = game.best_response(i, policies)
            now = game.evaluate(game.together(policies))[:, i]
            if (value > now + 1e-9 * (1.0 + np.abs(now))).any():
                policies[i], moved = answer, True
    return _certified(game, policies, count, not moved)


def fictitious_iteration(game: MarkovGame, rounds: int = 100) -> Solution:
    """Each player answers what the others did on average, state by state, with its best response (fictitious play). The
    averages approach an equilibrium slowly, or not at all."""
    policies = game.uniform()
    for count in range(1, rounds + 1):
        answers = [game.best_response(i, policies)[1] for i in range(game.players)]
        policies = [p + (a - p) / (count + 1) for p, a in zip(policies, answers, strict=True)]
    return _certified(game, policies, rounds, False)


METHODS: dict[str, Callable[[MarkovGame], Solution]] = {
    "minimax": minimax,
    "policy-iteration": policy_iteration,
    "nash": nash_iteration,
    "correlated": correlated_iteration,
    "best-response": best_response_iteration,
    "fictitious": fictitious_iteration,
}
