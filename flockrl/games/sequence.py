"""The sequence form of a game with information sets (von Stengel 1996), and what follows from it exactly.

A player's sequence is what it did so far: an information set and an action there; sequence 0 is having done nothing.
A policy is a flat array [S] per player: the probability of each sequence's action in its information set, and 1 for
sequence 0. A plan is the product of these along a player's own path. Payoffs are linear in each player's plan, so that
values, best responses and equilibria need no walk through the tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from flockrl.core.errors import UsageError


@dataclass(frozen=True, eq=False)
class Seat:
    """One player's information sets and sequences.

    parents: [I] the sequence that leads to each information set; counts: [I] its number of legal actions; starts: [I]
    its first sequence, the others follow; actions: [S] the action of each sequence, -1 for sequence 0. Every
    information set comes after those that lead to it.
    """

    parents: np.ndarray
    counts: np.ndarray
    starts: np.ndarray
    actions: np.ndarray

    @cached_property
    def owner(self) -> np.ndarray:
        """[S] the information set of each sequence, -1 for sequence 0."""
        return np.concatenate([[-1], np.repeat(np.arange(len(self.counts)), self.counts)])

    @cached_property
    def depths(self) -> np.ndarray:
        """[I] how many own moves came before each information set."""
        depths = np.zeros(len(self.parents), int)
        owners = self.owner[self.parents]
        for i, owner in enumerate(owners):
            depths[i] = 0 if owner < 0 else depths[owner] + 1
        return depths

    @cached_property
    def levels(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """For each depth: its information sets, their sequences, and where each set begins among these."""
        found = []
        for depth in range(self.depths.max(initial=-1) + 1):
            sets = np.nonzero(self.depths == depth)[0]
            counts = self.counts[sets]
            begins = np.concatenate([[0], np.cumsum(counts)[:-1]])
            inside = np.arange(counts.sum()) - np.repeat(begins, counts)
            found.append((sets, np.repeat(self.starts[sets], counts) + inside, begins))
        return found

    def uniform(self) -> np.ndarray:
        """[S] the policy that takes every legal action equally often."""
        return np.concatenate([[1.0], 1.0 / np.repeat(self.counts, self.counts)])

    def plan(self, policy: np.ndarray) -> np.ndarray:
        """[S] the product of the policy's probabilities along the way to and through each sequence."""
        plan = np.ones(len(self.actions))
        for sets, sequences, _ in self.levels:
            plan[sequences] = np.repeat(plan[self.parents[sets]], self.counts[sets]) * policy[sequences]
        return plan

    def policy(self, weights: np.ndarray) -> np.ndarray:
        """[S] the policy in proportion to weights [S] of at least 0, such as a plan; uniform where all are 0."""
        weights = np.maximum(weights, 0.0)
        totals = np.zeros(len(self.counts))
        np.add.at(totals, self.owner[1:], weights[1:])
        shared = totals[self.owner[1:]]
        fair = self.uniform()[1:]
        return np.concatenate([[1.0], np.where(shared > 0, weights[1:] / np.where(shared > 0, shared, 1.0), fair)])

    def best(self, gradient: np.ndarray) -> tuple[float, np.ndarray]:
        """The most that this player can get, and a policy [S] that gets it. gradient: [S], see `SequenceForm`."""
        worth, policy = gradient.astype(float).copy(), np.zeros(len(self.actions))
        policy[0] = 1.0
        for sets, sequences, begins in reversed(self.levels):
            values = worth[sequences]
            top = np.maximum.reduceat(values, begins)
            np.add.at(worth, self.parents[sets], top)
            first = np.where(values == np.repeat(top, self.counts[sets]), np.arange(len(values)), len(values))
            policy[sequences[np.minimum.reduceat(first, begins)]] = 1.0
        return float(worth[0]), policy

    def check(self, policy: np.ndarray) -> np.ndarray:
        """The policy as numbers, or an error where it is none of this player."""
        policy = np.asarray(policy, float)
        if policy.shape != self.actions.shape:
            raise UsageError(f"A policy of this player has {len(self.actions)} numbers, not {list(policy.shape)}.")
        totals = np.zeros(len(self.counts))
        np.add.at(totals, self.owner[1:], policy[1:])
        if not (np.isfinite(policy).all() and (policy >= 0).all() and np.allclose(totals, 1.0, atol=1e-5)):
            raise UsageError("A policy's probabilities must be at least 0 and add up to 1 in every information set.")
        return policy


class Gap(NamedTuple):
    """How far policies are from an equilibrium.

    values: [N] what each player gets. gains: [N] how much more it would get with a best response to the others.
    """

    values: np.ndarray
    gains: np.ndarray

    @property
    def nash_conv(self) -> float:
        """The sum of all gains; 0 in an equilibrium and nowhere else."""
        return max(float(self.gains.sum()), 0.0)

    @property
    def exploitability(self) -> float:
        """NashConv per player: half of it for two."""
        return self.nash_conv / len(self.gains)


@dataclass(frozen=True, eq=False)
class SequenceForm:
    """A game. leaves: [L, N] the players' sequences at each end; worth: [L, N] payoffs times the probability of what
    chance did on the way, ends with the same sequences added up."""

    seats: tuple[Seat, ...]
    leaves: np.ndarray
    worth: np.ndarray

    @property
    def players(self) -> int:
        return len(self.seats)

    @property
    def infosets(self) -> int:
        """Information sets of all players."""
        return sum(len(seat.parents) for seat in self.seats)

    @property
    def zero_sum(self) -> bool:
        """Whether there are two players, of which one gains what the other loses."""
        scale = max(1.0, float(np.abs(self.worth).max(initial=0.0)))
        return self.players == 2 and bool((np.abs(self.worth.sum(1)) < 1e-9 * scale).all())

    def uniform(self) -> list[np.ndarray]:
        return [seat.uniform() for seat in self.seats]

    def gradient(self, player: int, plans: Sequence[np.ndarray]) -> np.ndarray:
        """[S]: by how much the player's payoff grows with its plan at each sequence, while others follow `plans`."""
        reached = self.worth[:, player].copy()
        for other, plan in enumerate(plans):
            if other != player:
                reached *= plan[self.leaves[:, other]]
        return np.bincount(self.leaves[:, player], reached, len(self.seats[player].actions))

    def values(self, policies: Sequence[np.ndarray]) -> np.ndarray:
        """[N] what each player gets."""
        plans = [seat.plan(policy) for seat, policy in zip(self.seats, policies, strict=True)]
        return np.array([plans[i] @ self.gradient(i, plans) for i in range(self.players)])

    def gap(self, policies: Sequence[np.ndarray]) -> Gap:
        """The players' values and what each would gain by a best response: exact up to rounding."""
        policies = [seat.check(policy) for seat, policy in zip(self.seats, policies, strict=True)]
        plans = [seat.plan(policy) for seat, policy in zip(self.seats, policies, strict=True)]
        slopes = [self.gradient(i, plans) for i in range(self.players)]
        values = np.array([plan @ slope for plan, slope in zip(plans, slopes, strict=True)])
        best = np.array([seat.best(slope)[0] for seat, slope in zip(self.seats, slopes, strict=True)])
        return Gap(values, best - values)
