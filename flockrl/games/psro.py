"""Policy-space response oracles (Lanctot et al. 2017) with exact best responses, and fictitious play in game trees.

Each player has a pool of policies and mixes them as a meta-solver says; a best response to the others' mixtures joins
the pool, until nobody gains by one. With uniform mixtures this is fictitious play (Brown 1951; in trees, Heinrich et
al. 2015).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from flockrl.core.errors import UsageError
from flockrl.games.linear import zero_sum
from flockrl.games.normal import NormalForm
from flockrl.games.ratings import MOST_PROFILES, alpha_rank
from flockrl.games.sequence import Gap, Seat, SequenceForm

Meta = Literal["nash", "uniform", "alpha-rank"]
GAIN = 1e-9
"""A best response that gains less is none."""


class Pools(NamedTuple):
    """Where the method ended. policies: the mixtures [S]; plans: for each player the pool [K, S]; weights: for each
    player [K]; gap: of the mixtures; closed: whether no best response gains anything."""

    policies: list[np.ndarray]
    plans: list[np.ndarray]
    weights: list[np.ndarray]
    gap: Gap
    closed: bool


def psro(
    form: SequenceForm, rounds: int = 100, meta: Meta = "nash", each: Callable[[int, Gap], None] | None = None
) -> Pools:
    """Begin with everybody's first actions and add a best response of each player in every round.

    each: called in every round with the largest pool's size and the gap of the mixtures.
    """
    if rounds < 1:
        raise UsageError(f"iterations must be at least 1, not {rounds}.")
    if meta == "nash" and not form.zero_sum:
        raise UsageError("The meta-solver nash is for two players of whom one gains what the other loses: use uniform.")
    plans = [seat.plan(_first(seat))[None] for seat in form.seats]
    for _ in range(rounds):
        weights = _mixtures(form, plans, meta)
        mixed = [w @ p for w, p in zip(weights, plans, strict=True)]
        slopes = [form.gradient(i, mixed) for i in range(form.players)]
        values = np.array([m @ s for m, s in zip(mixed, slopes, strict=True)])
        answers = [seat.best(slope) for seat, slope in zip(form.seats, slopes, strict=True)]
        gains = np.array([value for value, _ in answers]) - values
        gap = Gap(values, np.maximum(gains, 0.0))
        if each is not None:
            each(max(map(len, plans)), gap)
        closed = bool((gains <= GAIN * max(1.0, float(np.abs(form.worth).sum()))).all())
        found = Pools(
            [seat.policy(m) for seat, m in zip(form.seats, mixed, strict=True)], list(plans), weights, gap, closed
        )
        if closed:
            break
        joined = zip(form.seats, plans, answers, strict=True)
        plans = [_joined(pool, seat.plan(policy), meta) for seat, pool, (_, policy) in joined]
    return found


def _joined(pool: np.ndarray, plan: np.ndarray, meta: Meta) -> np.ndarray:
    """The pool with one more plan. In uniform mixtures a plan that is there counts once more."""
    known = meta != "uniform" and (np.abs(pool - plan).max(1) < 1e-12).any()
    return pool if known else np.vstack([pool, plan])


def _first(seat: Seat) -> np.ndarray:
    """[S] the policy that always takes the first legal action."""
    policy = np.zeros(len(seat.actions))
    policy[[0, *seat.starts]] = 1.0
    return policy


def _mixtures(form: SequenceForm, plans: list[np.ndarray], meta: Meta) -> list[np.ndarray]:
    if meta == "uniform":
        return [np.full(len(pool), 1.0 / len(pool)) for pool in plans]
    if form.players != 2:
        raise UsageError(f"The meta-solver {meta} is for two players: use uniform.")
    return mix(np.stack([_payoffs(form, plans, player) for player in range(2)], -1), meta)


def mix(payoffs: np.ndarray, meta: Meta) -> list[np.ndarray]:
    """The mixtures of two players' pools, from what their policies get against each other [K0, K1, 2]."""
    if meta == "uniform":
        return [np.full(count, 1.0 / count) for count in payoffs.shape[:2]]
    if meta == "nash":
        return list(zero_sum((payoffs[..., 0] - payoffs[..., 1]) / 2)[1:])
    if payoffs[..., 0].size > MOST_PROFILES:
        raise UsageError(f"alpha-rank mixes up to {MOST_PROFILES:,} pairs of policies: use fewer iterations, or nash.")
    joint = alpha_rank(payoffs)
    return [joint.sum(1), joint.sum(0)]


def _payoffs(form: SequenceForm, plans: list[np.ndarray], player: int) -> np.ndarray:
    """[K0, K1] what a player gets with each pair of policies."""
    rows = [plans[0] @ _slope(form, player, plan) for plan in plans[1]]
    return np.stack(rows, 1)


def _slope(form: SequenceForm, player: int, plan: np.ndarray) -> np.ndarray:
    """[S] of the first player's sequences: how a player's payoff grows with them while the second follows its plan."""
    reached = form.worth[:, player] * plan[form.leaves[:, 1]]
    return np.bincount(form.leaves[:, 0], reached, len(form.seats[0].actions))


def one_move(game: NormalForm) -> SequenceForm:
    """A normal-form game as a tree: each player has one information set."""
    seats = tuple(
        Seat(np.zeros(1, int), np.array([count]), np.ones(1, int), np.arange(-1, count)) for count in game.counts
    )
    leaves = 1 + np.indices(game.counts).reshape(len(game.counts), -1).T
    return SequenceForm(seats, leaves, game.payoff.reshape(len(leaves), -1))
