"""A league in small (Vinyals et al. 2019), and populations for partners who never met (Strouse et al. 2021).

M learners of one kind practise at once, each in its own part of the environments, and share a pool of past players,
which with its results and ratings is part of their state. Who meets whom follows from a learner's role:

    main              itself, or a past player that is hard to beat; in a population, any partner, past or present
    main exploiter    the main agents as they are; past ones where these are too strong for it
    league exploiter  past players that are hard to beat
    partner           itself alone

All join the pool at the same updates. Main exploiters begin anew then, league exploiters once in four times. What
leaves is the first main agent.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.algos.wrappers.self_play import (
    ELO,
    FADING,
    SELF,
    Running,
    ahead,
    check_self_play,
    expected,
    lesson,
    one_of,
    opponents,
    practice_memory,
    results,
    seat_numbers,
    together,
)  # fmt: skip
from flockrl.algos.wrappers.settings import EXPLOITER, MAIN, PARTNER, RAIDER, roles
from flockrl.core.errors import UsageError
from flockrl.core.types import Algorithm, Array, EnvSpec, Metrics, Observation, PyTree, Trajectory

WEAK = 0.2
"""A main exploiter that wins less often than this against the main agents meets past ones."""
AGAIN = {EXPLOITER: 1.0, RAIDER: 0.25}
"""Role -> the chance to begin anew after joining the pool."""


class Roster(NamedTuple):
    """K past players, then the M present ones. params: leaves [K, ...]; origin: [K] the learner that each came from;
    joined: how many ever joined; wins, games: [M, K + M] of the learners against each, faded; ratings: [K + M]."""

    params: PyTree
    origin: Array
    joined: Array
    wins: Array
    games: Array
    ratings: Array


class LeagueState(NamedTuple):
    """learners: states of the learners inside, leaves [M, ...]; running: of all environments; updates: so far."""

    learners: PyTree
    roster: Roster
    running: Running
    updates: Array


def league(
    inner: Algorithm, spec: EnvSpec, config: Any, *, envs: int, updates: int, draws: bool, learns: bool
) -> Algorithm:
    """Several of the same learner, which practise with each other. inner: for its part of the `envs` environments;
    learns: whether anything is to be learned, or only the policy matters."""
    crew = roles(config)
    if learns and envs % len(crew):
        raise UsageError(
            f"{len(crew)} learners share the environments of a {config.self_play}: --envs ({envs}) must be a multiple."
        )
    if config.pool_size < len(crew):
        raise UsageError(f"The pool must have room for all {len(crew)} learners: set --pool-size to that at least.")
    return _League(inner, spec, config, envs, updates, draws).algorithm()


class _League:
    """Holds what is static. Its methods are pure."""

    def __init__(self, inner: Algorithm, spec: EnvSpec, config: Any, envs: int, updates: int, draws: bool):
        check_self_play(spec, config)
        self.inner, self.spec, self.config, self.envs, self.draws = inner, spec, config, envs, draws
        self.roles, self.size = roles(config), config.pool_size
        self.crew = len(self.roles)
        self.every = config.pool_every or -(-updates * self.crew // self.size)
        self.population = config.self_play == "population"
        self.side = seat_numbers(spec)
        self.mains = np.array([role == MAIN for role in self.roles])
        usual = config.pool_share or (1.0 if self.population else 0.5)
        self.share = np.array([{MAIN: usual, PARTNER: 0.0}.get(role, 1.0) for role in self.roles], np.float32)

    def algorithm(self) -> Algorithm:
        count = ", ".join(f"{self.roles.count(role)} {role}" for role in dict.fromkeys(self.roles))
        note = f"{count}; past players: up to {self.size}, {self.crew} more every {self.every} updates"
        practice = Algorithm(
            self.init, self.practice_params, self.act, self.update, self.memory, self.inner.rollout_steps
        )
        return self.inner._replace(
            init=self.init, params=lambda state: self.inner.params(first(state.learners)), update=self.update,
            note="; ".join(filter(None, (self.inner.note, note))), practice=practice,
            critic=self.inner.critic and self.inner.critic.within(lambda state: first(state.learners)),
        )  # fmt: skip

    def init(self, key: Array) -> LeagueState:
        """The pool begins with the first selves of all."""
        learners = self._fresh(key)
        everyone = np.arange(self.size) % self.crew
        past = jax.tree.map(lambda x: x[everyone], jax.vmap(self.inner.params)(learners))
        table = jnp.zeros((self.crew, self.size + self.crew))
        roster = Roster(
            past, jnp.asarray(everyone, jnp.int32), jnp.int32(self.crew), table, table, jnp.zeros(table.shape[1])
        )
        nobody = Running(jnp.zeros(self.envs), jnp.full(self.envs, SELF, jnp.int32), jnp.zeros(self.envs, bool))
        return LeagueState(learners, roster, nobody, jnp.int32(0))

    def _fresh(self, key: Array) -> PyTree:
        """All learners as they begin: the first as it would alone, the others unlike it."""
        states = [self.inner.init(key if m == 0 else jax.random.fold_in(key, m)) for m in range(self.crew)]
        return jax.tree.map(lambda *x: jnp.stack(x), *states)

    # Acting in training

    def practice_params(self, state: LeagueState) -> PyTree:
        own = jax.vmap(self.inner.params)(state.learners)
        return {"own": own, "pool": state.roster.params, "odds": self.odds(state.roster)}

    def odds(self, roster: Roster) -> Array:
        """[M, K + M] with which probability each learner's opponent is each player, where it is not itself."""
        there, rate = jnp.arange(self.size) < roster.joined, (roster.wins + 1) / (roster.games + 2)
        hard = there * (1 - rate[:, : self.size]) ** 2
        mains, nobody = jnp.asarray(self.mains, jnp.float32), jnp.zeros(self.crew)
        past_mains = there & jnp.asarray(self.mains)[roster.origin]
        rows = []
        for m, role in enumerate(self.roles):
            row = jnp.concatenate([hard[m], nobody])
            if self.population:
                row = jnp.concatenate([(there & ~past_mains) * 1.0, 1 - mains])
            elif role == EXPLOITER:
                now, beats = jnp.concatenate([jnp.zeros(self.size), mains]), rate[m, : self.size]
                weak = (rate[m, self.size :] * mains).sum() / mains.sum() < WEAK
                even = jnp.concatenate([past_mains * beats * (1 - beats), nobody])
                row = jnp.where(weak & (even.sum() > 0), even, now)
            rows.append(row / row.sum())
        return jnp.stack(rows)

    def memory(self, batch: int) -> PyTree:
        return practice_memory(self.inner, batch)

    def act(
        self, params: PyTree, seen: Observation, memory: PyTree, key: Array, explore: bool
    ) -> tuple[Array, PyTree, dict[str, Array]]:
        member = np.repeat(np.arange(self.crew), len(seen.obs) // self.crew)
        odds, share = params["odds"][member], self.share[member]
        who, seat = opponents(odds, share, self.side, memory, jax.random.fold_in(key, self.crew))
        # Key m of a split is what `fold_in` makes of m: the numbers from M on are nobody's.
        mine, keys = self._parts((seen, memory["own"]), 0), jax.random.split(key, self.crew)
        each = jax.vmap(lambda p, s, k: self.inner.act(p, s[0], s[1], k, explore))(params["own"], mine, keys)
        action, own, extras = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), each)
        players = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), params["pool"], params["own"])
        theirs, past, noted = one_of(
            self.inner, players, seen, memory["past"], jnp.maximum(who, 0), jax.random.fold_in(key, self.crew + 1),
            explore and self.draws,
        )  # fmt: skip
        played, told = together(self.side, who, seat, (action, extras), (theirs, noted))
        return played, {"own": own, "past": past, "who": who, "seat": seat}, told

    def _parts(self, tree: PyTree, axis: int) -> PyTree:
        """Arrays with an axis of environments as those of each learner, [M, ...]."""

        def part(x: Array) -> Array:
            return jnp.moveaxis(x.reshape(*x.shape[:axis], self.crew, -1, *x.shape[axis + 1 :]), axis, 0)

        return jax.tree.map(part, tree)

    # Learning

    def update(self, state: LeagueState, trajectory: Trajectory, key: Array) -> tuple[LeagueState, Metrics]:
        learns, own, rival = lesson(self.spec, self.config, trajectory)
        lessons = self._parts(learns._replace(memory=()), 1)._replace(memory=self._parts(learns.memory, 0))
        keys = jax.random.split(key, self.crew)
        learners, metrics = jax.lax.map(lambda now: self.inner.update(*now), (state.learners, lessons, keys))
        gained = ahead(trajectory.reward, own)
        told = self._parts((trajectory.first, gained, rival), 1)
        count = jax.vmap(lambda before, now: results(before, now[0], now[1], now[2], self.size + self.crew))
        running, wins, games = count(self._parts(state.running, 0), told)
        running = jax.tree.map(lambda x: x.reshape(-1), running)
        roster, updates = self._rated(state.roster, wins, games), state.updates + 1
        joins = updates % self.every == 0
        after = lambda: self._joined(roster, learners, jax.random.fold_in(key, self.crew))  # noqa: E731
        roster, learners = jax.lax.cond(joins, after, lambda: (roster, learners))
        return LeagueState(learners, roster, running, updates), {**first(metrics), **self._told(roster)}

    def _told(self, roster: Roster) -> dict[str, Array]:
        pool = {"pool": jnp.minimum(roster.joined, self.size).astype(jnp.float32)}
        if self.population:
            return pool
        wins, games, size = roster.wins, roster.games, self.size
        past = {"win_rate": wins[0, :size].sum() / jnp.maximum(games[0, :size].sum(), 1e-6)}
        chasing = np.array([role == EXPLOITER for role in self.roles])
        if chasing.any():
            won, played = (x[chasing][:, size:][:, self.mains].sum() for x in (wins, games))
            past["exploiter_win_rate"] = won / jnp.maximum(played, 1e-6)
        return {**past, "rating": roster.ratings[size], **pool}

    def _rated(self, roster: Roster, wins: Array, games: Array) -> Roster:
        """After some games [M, K + M]; only the learners' own ratings move."""
        own = roster.ratings[self.size :]
        surprise = (wins - games * expected(own[:, None], roster.ratings)).sum(1) / jnp.maximum(games.sum(1), 1)
        return roster._replace(
            wins=FADING * roster.wins + wins, games=FADING * roster.games + games,
            ratings=roster.ratings.at[self.size :].add(ELO * surprise),
        )  # fmt: skip

    def _joined(self, roster: Roster, learners: PyTree, key: Array) -> tuple[Roster, PyTree]:
        """All learners join the pool in the places of the oldest, and some begin anew."""
        everyone, size = jnp.arange(self.crew), self.size
        places, now = (roster.joined + everyone) % size, jax.vmap(self.inner.params)(learners)
        chance = np.array([AGAIN.get(role, 0.0) for role in self.roles])
        anew = jax.random.uniform(key, (self.crew,)) < chance
        fresh = self._fresh(jax.random.fold_in(key, 1)) if chance.any() else learners
        learners = jax.tree.map(lambda new, old: jnp.where(_wide(anew, old), new, old), fresh, learners)
        gone = jnp.concatenate([jnp.zeros(size, bool).at[places].set(True), anew])
        keep = ~gone & ~anew[:, None]
        ratings = roster.ratings.at[places].set(roster.ratings[size:])
        return Roster(
            jax.tree.map(lambda old, new: old.at[places].set(new), roster.params, now),
            roster.origin.at[places].set(everyone), roster.joined + self.crew,
            jnp.where(keep, roster.wins, 0.0), jnp.where(keep, roster.games, 0.0),
            ratings.at[size:].set(jnp.where(anew, 0.0, ratings[size:])),
        ), learners  # fmt: skip


def _wide(flags: Array, like: Array) -> Array:
    """Flags [M] with as many axes as `like`."""
    return flags.reshape(-1, *(1,) * (like.ndim - 1))


def first(tree: PyTree) -> PyTree:
    """That of the first learner, of leaves [M, ...]."""
    return jax.tree.map(lambda x: x[0], tree)
