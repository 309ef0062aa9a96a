"""Self-play: while a team learns, some sides are played by past selves out of a pool, which is part of its state.

Which side the learner has and whom it meets is drawn as an episode begins, in each environment, and remembered until it
ends. In fictitious self-play (Heinrich et al. 2015) the learner answers the mixture of all past selves, and the policy
that leaves is this mixture; with `average` it plays itself alone, and the policy is the mixture all the same. The
learner learns from its own seats alone: the others count as dead (`Trajectory.alive`), which every learner understands.
Win rates follow from who got the larger return; ratings are Elo's, and the first self has 0. A script may be among the
opponents (`sparring`); it has no rating.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.algos.opponents import models_opponents, note_moves
from flockrl.algos.sides import scripted
from flockrl.core.code import load_function
from flockrl.core.errors import UsageError
from flockrl.core.random import Source, fold_in, uniform
from flockrl.core.types import Actor, Algorithm, Array, EnvSpec, Metrics, Mixture, Observation, PyTree, Trajectory

OWN, RIVAL = "own", "rival"
"""Extras of a rollout, [T, B, N]: whether the learner played, and the place of its opponent in the pool or SELF."""
SELF, OPEN = -1, -2
FADING = 0.95
"""What a game counts for the win rates, one update later."""
ELO = 32.0
"""How much a rating moves in an update whose games were all won against expectation."""


class Pool(NamedTuple):
    """K past selves. params: leaves [K, ...]; joined: how many ever joined; wins, games: [K] of the learner against
    each, faded; ratings: [K]; rating: of the learner."""

    params: PyTree
    joined: Array
    wins: Array
    games: Array
    ratings: Array
    rating: Array


class Running(NamedTuple):
    """Episodes under way. ahead: [B] by how much the learner's return is above the others'; rival: [B]; begun: [B]."""

    ahead: Array
    rival: Array
    begun: Array


class SelfPlayState(NamedTuple):
    """learner: the state of the learner inside; updates: so far."""

    learner: PyTree
    pool: Pool
    running: Running
    updates: Array


def self_play(inner: Algorithm, spec: EnvSpec, config: Any, *, envs: int, updates: int, draws: bool) -> Algorithm:
    """The same learner, which plays against its past selves in training. draws: whether its policy is stochastic."""
    return _SelfPlay(inner, spec, config, envs, updates, draws).algorithm()


def check_self_play(spec: EnvSpec, config: Any) -> None:
    """Refuse what does not go together with self-play."""
    one = len(set(spec.sides)) < 2
    if one and config.self_play != "population":
        raise UsageError(
            f"self_play {config.self_play} is for games between sides, and all agents of {spec.name} are on one: leave "
            "it out, or use population."
        )
    if not one and config.self_play == "population":
        raise UsageError(f"A population of partners is for teams, and {spec.name} has several sides: use league.")
    if spec.num_agents == 1:
        raise UsageError(f"{spec.name} has one agent, and a population is for partners: leave self_play out.")
    if config.self_play == "average" and config.pool_share is not None:
        raise UsageError("With self_play average nobody meets past selves: leave out --pool-share.")
    if getattr(config, "comm", "none") != "none":
        raise UsageError("Selves of different times do not understand each other: use self_play without comm.")
    if getattr(config, "death_mask", False):
        raise UsageError("self_play does not go together with death_mask: leave one of them out.")


def symmetric(spec: EnvSpec) -> bool:
    """Whether all seats have equal spaces, so that one network can play for any of them."""
    return len(set(spec.observations)) == 1 and len(set(spec.actions)) == 1


class _SelfPlay:
    """Holds what is static. Its methods are pure."""

    def __init__(self, inner: Algorithm, spec: EnvSpec, config: Any, envs: int, updates: int, draws: bool):
        check_self_play(spec, config)
        self.inner, self.envs, self.draws = inner, envs, draws
        self.spec, self.config = spec, config
        self.how, self.size = config.self_play, config.pool_size
        times = 2 if self.how == "average" else 1  # the first half of a run is not worth remembering
        self.every = config.pool_every or -(-updates // (times * config.pool_size))
        self.share = config.pool_share or (1.0 if self.how == "fictitious" else 0.5)
        self.side = seat_numbers(spec)
        self.script = scripted(spec, load_function(config.sparring, "script")) if config.sparring else None

    def algorithm(self) -> Algorithm:
        note = f"past selves: up to {self.size}, one more every {self.every} updates"
        present = lambda state: self.inner.params(state.learner)  # noqa: E731
        alone = self.how == "average"
        practice = Algorithm(
            self.init, present if alone else self.practice_params, self.inner.act if alone else self.act, self.update,
            self.inner.memory if alone else self.memory, self.inner.rollout_steps,
        )  # fmt: skip
        learner = self.inner._replace(
            init=self.init, params=present, update=self.update,
            note="; ".join(filter(None, (self.inner.note, note))), practice=practice,
            critic=self.inner.critic and self.inner.critic.within(lambda state: state.learner),
        )  # fmt: skip
        if self.how not in ("fictitious", "average"):
            return learner
        average = lambda state: Mixture(state.pool.params, self.odds(state.pool))  # noqa: E731
        act, memory = mixed(self.inner)
        return learner._replace(
            params=average,
            act=act,
            memory=memory,
            kl=None,
            says=None,
            attends=None,
            critic=None,
            member=Actor(self.inner.act, self.inner.memory),
        )

    def init(self, key: Array) -> SelfPlayState:
        """The pool begins with the first self."""
        learner = self.inner.init(key)
        zeros, count = jnp.zeros(self.size), jnp.int32(1)
        past = jax.tree.map(lambda x: jnp.repeat(x[None], self.size, 0), self.inner.params(learner))
        pool = Pool(past, count, zeros, zeros, zeros, jnp.float32(0))
        nobody = Running(jnp.zeros(self.envs), jnp.full(self.envs, SELF, jnp.int32), jnp.zeros(self.envs, bool))
        return SelfPlayState(learner, pool, nobody, jnp.int32(0))

    # Acting in training

    def practice_params(self, state: SelfPlayState) -> PyTree:
        odds = self.odds(state.pool)
        if self.script is not None:  # it comes after the pool
            odds = jnp.append((1 - self.config.sparring_share) * odds, self.config.sparring_share)
        return {"own": self.inner.params(state.learner), "pool": state.pool.params, "odds": odds}

    def odds(self, pool: Pool) -> Array:
        """[K] with which probability each past self is the opponent."""
        there = jnp.arange(self.size) < pool.joined
        if self.how == "latest":
            return (jnp.arange(self.size) == (pool.joined - 1) % self.size).astype(jnp.float32)
        weight = there.astype(jnp.float32)
        if self.how == "prioritised":  # as in AlphaStar (Vinyals et al. 2019): (1 - chance to win)^2
            weight = weight * (1 - win_rates(pool)) ** 2
        return weight / weight.sum()

    def memory(self, batch: int) -> PyTree:
        return practice_memory(self.inner, batch)

    def act(
        self, params: PyTree, seen: Observation, memory: PyTree, key: Array, explore: bool
    ) -> tuple[Array, PyTree, dict[str, Array]]:
        who, seat = opponents(params["odds"], self.share, self.side, memory, jax.random.fold_in(key, 1))
        action, own, extras = self.inner.act(params["own"], seen, memory["own"], key, explore)
        theirs, past, noted = self._past(params["pool"], seen, memory["past"], who, jax.random.fold_in(key, 2), explore)
        played, told = together(self.side, who, seat, (action, extras), (theirs, noted))
        return played, {"own": own, "past": past, "who": who, "seat": seat}, told

    def _past(
        self, pool: PyTree, seen: Observation, memory: PyTree, who: Array, key: Array, explore: bool
    ) -> tuple[Array, PyTree, dict[str, Array]]:
        """What the chosen past self, or the script, of each environment does."""
        past = jnp.clip(who, 0, self.size - 1)
        action, after, noted = one_of(self.inner, pool, seen, memory, past, key, explore and self.draws)
        if self.script is not None:
            own = self.script.act((), seen, (), jax.random.fold_in(key, 1), explore)[0]
            action = jnp.where((who == self.size).reshape(-1, *(1,) * (action.ndim - 1)), own, action)
        return action, after, noted

    # Learning

    def update(self, state: SelfPlayState, trajectory: Trajectory, key: Array) -> tuple[SelfPlayState, Metrics]:
        pool, running, told = state.pool, state.running, {}
        if self.how == "average":
            learner, metrics = self.inner.update(state.learner, trajectory, key)
        else:
            learns, own, rival = lesson(self.spec, self.config, trajectory)
            learner, metrics = self.inner.update(state.learner, learns, key)
            lead = ahead(trajectory.reward, own)
            running, wins, games = results(running, trajectory.first, lead, rival, self.size + 1)
            pool = _rated(pool, wins[:-1], games[:-1])
            told = {"win_rate": pool.wins.sum() / jnp.maximum(pool.games.sum(), 1e-6), "rating": pool.rating}
            if self.script is not None:  # in this rollout alone; 1/2 where no such game ended
                told["sparring_win_rate"] = jnp.where(games[-1] > 0, wins[-1] / jnp.maximum(games[-1], 1), 0.5)
        updates = state.updates + 1
        joins = updates % self.every == 0
        pool = jax.lax.cond(joins, lambda: _joined(pool, self.inner.params(learner)), lambda: pool)
        told["pool"] = jnp.minimum(pool.joined, self.size).astype(jnp.float32)
        return SelfPlayState(learner, pool, running, updates), {**metrics, **told}


# What the wrappers of this kind share


def seat_numbers(spec: EnvSpec) -> np.ndarray:
    """[N] the number of each agent's side; where all are on one, each has a seat of its own."""
    if len(set(spec.sides)) < 2:
        return np.arange(spec.num_agents)
    return np.array(
        [next(k for k, own in enumerate(spec.parties.values()) if i in own) for i in range(spec.num_agents)]
    )


def practice_memory(inner: Algorithm, batch: int) -> dict[str, PyTree]:
    """own, past: the memories of the learner and of its opponent; who: [B] the opponent's number among the players, or
    SELF, or OPEN before an episode; seat: [B] the side that the learner has."""
    return {
        "own": inner.memory(batch), "past": inner.memory(batch),
        "who": jnp.full(batch, OPEN, jnp.int32), "seat": jnp.zeros(batch, jnp.int32),
    }  # fmt: skip


def opponents(odds: Array, share: Any, side: np.ndarray, memory: PyTree, key: Array) -> tuple[Array, Array]:
    """Who plays [B], and for which side the learner does [B]: what was drawn as the episode began, or is now.

    odds: [K] or [B, K] how likely each player is, in the part `share`, a number or [B], of the episodes; side: see
    `seat_numbers`.
    """
    who, seat = memory["who"], memory["seat"]
    other, member, place = jax.random.split(key, 3)
    drawn = jax.random.categorical(member, jnp.log(odds), shape=who.shape).astype(jnp.int32)
    drawn = jnp.where(jax.random.uniform(other, who.shape) < share, drawn, SELF)
    seats = jax.random.randint(place, seat.shape, 0, int(side.max()) + 1, jnp.int32)
    return jnp.where(who == OPEN, drawn, who), jnp.where(who == OPEN, seats, seat)


Played = tuple[Array, Mapping[str, Array]]
"""Actions [B, N] and extras."""


def together(side: np.ndarray, who: Array, seat: Array, own: Played, theirs: Played) -> tuple[Array, dict[str, Array]]:
    """What is played where the learner has the side `seat` [B] and player `who` [B] the others, unless it has all."""
    mine = (who < 0)[:, None] | (side == seat[:, None])

    def merge(a: Array, b: Array) -> Array:
        return jnp.where(mine.reshape(*mine.shape, *(1,) * (a.ndim - 2)), a, b)

    merged = {name: merge(x, theirs[1][name]) if name in theirs[1] else x for name, x in own[1].items()}
    merged |= {OWN: mine, RIVAL: jnp.broadcast_to(who[:, None], mine.shape)}
    return merge(own[0], theirs[0]), merged


def lesson(spec: EnvSpec, config: Any, trajectory: Trajectory) -> tuple[Trajectory, Array, Array]:
    """A rollout as the learner takes it, which seats were its own [T, B, N], and who had the others [T, B]."""
    extras = dict(trajectory.extras)
    own, rival = extras.pop(OWN), extras.pop(RIVAL)[..., 0]
    if models_opponents(config):
        extras |= note_moves(spec, trajectory)  # those of past selves too, who count as dead
    alive = own if trajectory.alive is None else own & trajectory.alive
    left = None if trajectory.next_alive is None else own & trajectory.next_alive
    learns = trajectory._replace(alive=alive, next_alive=left, extras=extras, memory=trajectory.memory["own"])
    return learns, own, rival


def ahead(reward: Array, own: Array) -> Array:
    """[T, B] by how much the learner's reward is above the others', mean over agents."""
    share = own / jnp.maximum(own.sum(-1, keepdims=True), 1)
    rest = ~own / jnp.maximum((~own).sum(-1, keepdims=True), 1)
    return (reward * (share - rest)).sum(-1)


def results(running: Running, first: Array, gained: Array, rival: Array, size: int) -> tuple[Running, Array, Array]:
    """Wins and games [K] of the episodes that were found to have ended: a draw is half a win. Arrays [T, B]."""

    def step(carry: tuple[Running, Array, Array], now: tuple[Array, ...]) -> tuple[Any, None]:
        (before, wins, games), (first, gain, who) = carry, now
        ended = (first & before.begun & (before.rival >= 0))[:, None] & (before.rival[:, None] == np.arange(size))
        won = 0.5 * (1 + jnp.sign(jnp.round(before.ahead, 5)))
        after = Running(jnp.where(first, 0.0, before.ahead) + gain, who, jnp.ones_like(before.begun))
        return (after, wins + (ended * won[:, None]).sum(0), games + ended.sum(0)), None

    none = jnp.zeros(size)
    (running, wins, games), _ = jax.lax.scan(step, (running, none, none), (first, gained, rival))
    return running, wins, games


def expected(rating: Array, ratings: Array) -> Array:
    """How often a player of this Elo rating wins against others."""
    return 1 / (1 + 10 ** ((ratings - rating) / 400))


def one_of(
    actor: Algorithm | Actor, params: PyTree, seen: Observation, memory: PyTree, who: Array, key: Any, explore: bool
) -> tuple[Array, PyTree, dict[str, Array]]:
    """What the policy number `who` [B] of K does in each environment. params: leaves [K, ...].

    All K are asked, which is cheap beside an update.
    """
    answers = jax.vmap(lambda p: actor.act(p, seen, memory, key, explore))(params)
    return jax.tree.map(lambda x: x[who, jnp.arange(len(who))], answers)


def mixed(actor: Algorithm | Actor) -> Actor:
    """A policy whose params are a `Mixture`."""

    def act(
        params: Mixture, seen: Observation, memory: PyTree, key: Source, explore: bool
    ) -> tuple[Array, PyTree, dict[str, Array]]:
        number = uniform(fold_in(key, 3), (len(seen.obs), 1), (0,))
        drawn = jnp.minimum((jnp.cumsum(params.odds) <= number).sum(-1), len(params.odds) - 1).astype(jnp.int32)
        who = jnp.where(memory["who"] == OPEN, drawn, memory["who"])
        action, after, extras = one_of(actor, params.params, seen, memory["past"], who, key, explore)
        return action, {"past": after, "who": who}, extras

    return Actor(act, lambda batch: {"past": actor.memory(batch), "who": jnp.full(batch, OPEN, jnp.int32)})


def win_rates(pool: Pool) -> Array:
    """[K] how often the learner won against each lately: 1/2 before any game."""
    return (pool.wins + 1) / (pool.games + 2)


def _rated(pool: Pool, wins: Array, games: Array) -> Pool:
    """The pool after some games [K]."""
    surprise = (wins - games * expected(pool.rating, pool.ratings)).sum() / jnp.maximum(games.sum(), 1)
    return pool._replace(
        wins=FADING * pool.wins + wins, games=FADING * pool.games + games, rating=pool.rating + ELO * surprise
    )


def _joined(pool: Pool, params: PyTree) -> Pool:
    """The pool with one more past self, in the place of the oldest where it is full."""
    place = pool.joined % len(pool.games)
    return Pool(
        jax.tree.map(lambda old, new: old.at[place].set(new), pool.params, params), pool.joined + 1,
        pool.wins.at[place].set(0.0), pool.games.at[place].set(0.0), pool.ratings.at[place].set(pool.rating),
        pool.rating,
    )  # fmt: skip
