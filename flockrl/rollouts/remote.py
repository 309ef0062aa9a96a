"""Rollouts in host environments that Ray actors play alone: acting happens on the actor, and only trajectories travel.

An actor acts with the learner's own program (`jax.export`), so that it need not know the algorithm. The program acts
for all B environments, of which an actor has some: the places of the others are filled with copies of its own, and what
comes of them is thrown away. So the numbers of an environment are, to the bit, those of acting for all of them in one
place, however many actors there are.

A rollout is a function of the parameters, the keys and where its environments stand, so one whose actor died is
played again by another actor, which first plays the running episodes up to there (`HostBatch.restore`).
"""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import export

from flockrl.core.errors import UsageError
from flockrl.core.types import Array, Observation, PyTree, Trajectory, choose
from flockrl.envs.host.batch import ATTEMPTS, RUNNING, HostBatch, words
from flockrl.envs.host.env import Form
from flockrl.envs.host.remote import STARTUP, Asked, Gone, Remote, Stepper
from flockrl.rollouts.compiled import Actors, Episodes
from flockrl.rollouts.host import Draws, HostActor, Played, concluded, host_draws, host_rollout, play

ANEW = 2**32 - 1
"""What tells the key of episodes that begin because others cannot be continued from those of a rollout's steps."""


class Recipe(NamedTuple):
    """How an actor acts. program: see `make_recipe`; batch: B; steps: T; flags: XLA's, which the numbers may depend on;
    timeout: seconds without a step after which an actor is taken for hung."""

    program: bytes
    batch: int
    steps: int
    flags: str
    timeout: float


class Start(NamedTuple):
    """Where a rollout of some rows of a batch begins. rows: [G] their places in the batch; memory: a list of arrays
    [G, ...]; first, returns, lengths: as in `Actors`; episode: [G, 2] the running episodes; draws: of these rows."""

    rows: np.ndarray
    memory: list[np.ndarray]
    first: np.ndarray
    returns: np.ndarray
    lengths: np.ndarray
    episode: np.ndarray
    draws: Draws


class Past(NamedTuple):
    """How to get to a start. state: of `HostBatch`; seen: what is seen there; seeds: [G, 2] episodes to begin
    instead."""

    state: PyTree
    seen: Observation
    seeds: np.ndarray


class Part(NamedTuple):
    """What an actor played. fresh: [G] whose episode could not be continued; cuts, restarts: how many there were."""

    played: Played
    fresh: np.ndarray
    cuts: int
    restarts: int


def make_recipe(actor: HostActor, params: PyTree, actors: Actors, timeout: float) -> Recipe:
    """What actors need for acting with arguments of these shapes. Params and memory are lists of arrays to the program,
    and what is seen is a dict, so that nothing but arrays and words travels."""
    seen, batch = actors.observation, len(actors.first)
    (leaves, tree), (memory, structure) = jax.tree.flatten(params), jax.tree.flatten(actors.memory)

    def flat(params: list, seen: dict[str, Array], memory: list, *rest: Array) -> tuple[Array, list, dict]:
        held, remembered = jax.tree.unflatten(tree, params), jax.tree.unflatten(structure, memory)
        action, after, extras = actor.act(held, Observation(**seen), remembered, *rest)
        return action, jax.tree.leaves(after), dict(extras)

    flags = np.zeros(batch, bool)
    given = leaves, _fields(seen), memory, flags, flags, jax.random.key_data(jax.random.key(0))
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), given)
    try:
        program = export.export(jax.jit(flat), platforms=["cpu"])(*shapes).serialize()
    except (ValueError, NotImplementedError) as error:
        raise UsageError(f"This learner cannot act on Ray actors ({error}): use acting=learner.") from error
    return Recipe(bytes(program), batch, actor.rollout_steps, os.environ.get("XLA_FLAGS", ""), timeout)


class Player(Stepper):
    """An actor that can play whole rollouts of its teams."""

    def __init__(self, packed: bytes, form: Form, count: int, recipe: Recipe):
        os.environ["XLA_FLAGS"] = recipe.flags  # before JAX computes anything in this process
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_cpu_enable_async_dispatch", False)  # see `Host`
        super().__init__(packed, form, count)
        self.recipe, self.batches = recipe, dict[int, HostBatch]()
        program = export.deserialize(bytearray(recipe.program))
        self.act: Any = jax.jit(program.call)
        args, _ = jax.tree.unflatten(program.in_tree, [np.zeros(x.shape, x.dtype) for x in program.in_avals])
        self.act(*args)  # so that no step waits for the compiler

    def rollout(self, params: list[np.ndarray], at: int, start: Start, past: Past | None = None) -> Part | None:
        """Play a rollout of the teams from row `at` on. None when they stand elsewhere: then `past` must be told."""
        if at not in self.batches:
            self.batches[at] = HostBatch(self.local, at, len(start.rows))
        env, watch = self.batches[at], Watch(self.recipe.timeout)
        env.numbers, cuts, restarts = start.rows, env.cuts, self.local.restarts
        fresh = np.zeros(env.count, bool)
        try:
            watch.beat(STARTUP)
            if past is not None:
                fresh = env.restore(past.state, start.lengths, past.seen, past.seeds)
                env.cuts += int(fresh.sum())
            elif not env.stands_at({"episode": start.episode}, start.lengths):
                return None
            else:
                env.seen = jax.tree.map(np.copy, env.slots.observation(slice(None)))
            returns, lengths = np.where(fresh[:, None], 0, start.returns), np.where(fresh, 0, start.lengths)
            actors = Actors((), env.seen, start.memory, start.first | fresh, returns, lengths)  # type: ignore[arg-type]
            played = PartActor(self, start.rows, watch).play(params, env, actors, start.draws)
        finally:
            watch.stop()
        return Part(played, fresh, env.cuts - cuts, self.local.restarts - restarts)


class PartActor:
    """Acts for some rows of a batch as acting for all of them does; called like a `HostActor`."""

    def __init__(self, player: Player, rows: np.ndarray, watch: Watch):
        self.act, self.rollout_steps, self.rows, self.watch = player.act, player.recipe.steps, rows, watch
        self.fill = np.zeros(player.recipe.batch, int)
        """[B] which of the rows stands in each place of the batch."""
        self.fill[rows] = np.arange(len(rows))
        self.everybody = np.ones(len(self.fill), bool)

    def play(self, params: list[np.ndarray], env: HostBatch, actors: Actors, draws: Draws) -> Played:
        """A rollout of these rows."""
        wide = actors._replace(memory=self._widen(actors.memory))
        played = play(self, jax.device_put(params), env, wide, draws)
        return played._replace(memory=[x[self.rows] for x in played.memory])

    def __call__(
        self, params: list[Array], seen: Observation, memory: list, first: np.ndarray, mine: np.ndarray, key: np.ndarray
    ) -> tuple[np.ndarray, list, dict[str, np.ndarray]]:
        self.watch.beat()
        wide = self._widen((_fields(seen), first))
        action, memory, extras = self.act(params, wide[0], memory, wide[1], self.everybody, key)
        return np.asarray(action)[self.rows], memory, {name: np.asarray(x)[self.rows] for name, x in extras.items()}

    def _widen(self, arrays: PyTree) -> PyTree:
        """Arrays of these rows [G, ...] in the places of a batch [B, ...]."""
        return jax.tree.map(lambda x: x[self.fill], arrays)


class Watch:
    """Ends this process when there is no beat for `timeout` seconds, even where a step holds Python's lock. Then the
    trainer knows at once that the actor is gone."""

    def __init__(self, timeout: float):
        self.timeout, self._last = timeout, -np.inf

    def beat(self, more: float = 0.0) -> None:
        """All is well. more: seconds that the next beat may take besides."""
        now = time.monotonic()
        if now - self._last > 0.1 * self.timeout:
            faulthandler.dump_traceback_later(self.timeout + more, exit=True, file=sys.__stderr__ or sys.stderr)
            self._last = now if more == 0 else -np.inf

    def stop(self) -> None:
        faulthandler.cancel_dump_traceback_later()


def remote_rollout(
    actor: HostActor, params: PyTree, env: HostBatch, actors: Actors, key: Array
) -> tuple[Actors, Trajectory, Episodes]:
    """Do what `host_rollout` does, on the actors of a `Remote` whose life is that of a `Player`.

    A rollout whose actor is lost again and again is played by acting here, where the step that is to blame is found.
    """
    remote: Any = env.executor
    owner = remote.owner[env.rows]
    shares = {int(worker): np.flatnonzero(owner == worker) for worker in np.unique(owner)}
    draws = host_draws(key, actor.rollout_steps, env.count)
    work = _RemoteRollout(remote, env, actors, draws, key, jax.device_get(jax.tree.leaves(params)))
    asked = {worker: work.ask(worker, rows) for worker, rows in shares.items()}
    found = [(rows, work.answer(asked[worker], rows)) for worker, rows in shares.items()]
    parts = [(rows, part) for rows, part in found if part is not None]
    if len(parts) < len(found):
        remote.lost |= set(env.rows.tolist())
        return host_rollout(actor, params, env, actors, key)
    return _joined(actor, env, actors, draws, work, parts)


class _RemoteRollout:
    """A rollout that is under way on actors. params: a list of arrays, which are put once."""

    def __init__(
        self, remote: Remote, env: HostBatch, actors: Actors, draws: Draws, key: Array, params: list[np.ndarray]
    ):
        self.remote, self.env, self.actors, self.draws, self.key = remote, env, actors, draws, key
        self.params, self.memory = remote.put(params), jax.tree.leaves(jax.tree.map(np.asarray, actors.memory))

    def ask(self, worker: int, rows: np.ndarray, *past: Past) -> Asked:
        """Have an actor play these rows of the batch, which are all that it has of it."""
        now, draws = self.actors, self.draws
        first, returns, lengths = (np.asarray(x)[rows] for x in (now.first, now.returns, now.lengths))
        start = Start(
            rows, [x[rows] for x in self.memory], first, returns, lengths, np.asarray(now.env["episode"])[rows],
            Draws(draws.act, draws.step[:, rows], draws.reset[:, rows]),
        )  # fmt: skip
        at = int(self.remote.place(self.env.rows[rows[:1]])[0])
        return self.remote.ask(worker, "rollout", self.params, at, start, *past)

    def answer(self, asked: Asked, rows: np.ndarray) -> Part | None:
        """What an actor played; None where it and others in its place were lost while they did."""
        worker = asked.worker
        for attempt in range(ATTEMPTS):
            try:
                part = self.remote.answer(self.ask(worker, rows) if attempt else asked, self.remote.startup(worker))
                return part or self.remote.answer(self.ask(worker, rows, self.past(rows)))
            except Gone:
                continue
        return None

    def past(self, rows: np.ndarray) -> Past:
        state = {name: np.asarray(self.actors.env[name])[rows] for name in RUNNING}
        return Past(state, jax.tree.map(lambda x: np.asarray(x)[rows], self.actors.observation), self.seeds()[rows])

    def seeds(self) -> np.ndarray:
        """[B, 2] episodes that begin where one cannot be continued."""
        return np.asarray(words(jax.random.split(jax.random.fold_in(self.key, ANEW), self.env.count)))


def _joined(
    actor: HostActor, env: HostBatch, actors: Actors, draws: Draws, work: _RemoteRollout, parts: list[tuple[Any, Part]]
) -> tuple[Actors, Trajectory, Episodes]:
    """The rollout of a whole batch from those of its parts."""
    order = np.argsort(np.concatenate([rows for rows, _ in parts]))
    memory = jax.tree.map(np.asarray, actors.memory)

    def join(axis: int, *pieces: np.ndarray) -> np.ndarray:
        return np.concatenate(pieces, axis).take(order, axis)

    columns, extras, *after = (
        jax.tree.map(lambda *x, axis=int(i < 2): join(axis, *x), *pieces)
        for i, pieces in enumerate(zip(*(part.played for _, part in parts), strict=True))
    )
    played = Played(columns, extras, *after)
    played = played._replace(memory=jax.tree.unflatten(jax.tree.structure(memory), played.memory))
    fresh = join(0, *(part.fresh for _, part in parts))
    if fresh.any():
        env.slots.episode[fresh], env.slots.length[fresh] = work.seeds()[fresh], 0
        memory = choose(fresh, jax.tree.map(np.asarray, actor.memory(env.count)), memory, np)
    done = np.concatenate([columns["first"][1:], played.first[None]])
    env.follow(columns["action"], draws.step, draws.reset, done)
    env.seen = jax.tree.map(np.copy, played.seen)
    env.cuts += sum(part.cuts for _, part in parts)
    env.executor.restarts += sum(part.restarts for _, part in parts)
    env.executor.lost -= set(env.rows.tolist())
    return concluded(actor, env, memory, played)


def _fields(seen: Observation) -> dict[str, Any]:
    return {name: x for name, x in seen._asdict().items() if x is not None}
