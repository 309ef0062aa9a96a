"""Rollouts as whole episodes, and episodes that are played to be written to a file."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from flockrl.core.types import Algorithm, Array, EvalResult, Observation, PyTree, Trajectory
from flockrl.data.experience import Experience, join
from flockrl.data.files import Writer
from flockrl.envs.host.batch import HostBatch, words
from flockrl.envs.host.env import Host
from flockrl.envs.host.executor import open_executor
from flockrl.evaluation.playing import summarize
from flockrl.rollouts.compiled import scan_rollout, start
from flockrl.rollouts.host import HostActor, host_rollout, host_start

INSTANCES, STRETCH = 16, 128
"""Environment instances that play in parallel while episodes are recorded, and the most steps of one rollout."""


class Cutter:
    """Cuts the rollouts [T, B] of B environments where episodes begin, and numbers the pieces.

    env: the environment's name. The ids of trajectories, NAME-ENVIRONMENT-EPISODE, are unique across cutters.
    episode: [B] the number of each environment's episode under way; steps: [B] its steps so far.
    """

    def __init__(self, env: str, envs: int):
        self.env, self.name = env, secrets.token_hex(8)
        self.episode = np.full(envs, -1, np.int64)
        self.steps = np.zeros(envs, np.int64)

    def cut(self, rollout: Trajectory, version: int) -> Experience:
        """The pieces of a rollout of the policy of this version, environment by environment."""
        first = np.array(rollout.first)
        steps, envs = first.shape
        begins = first.copy()
        begins[0] = True
        column, row = np.nonzero(begins.T)
        length = np.diff(np.append(column * steps + row, envs * steps))
        # An episode that continues from the rollout before keeps its number and its count of steps.
        number = np.cumsum(first, axis=0)[row, column] + self.episode[column]
        offset = np.where(first[row, column], 0, self.steps[column])
        self.episode += first.sum(0)
        self.steps[column] = offset + length  # the last piece of each environment stays

        def flat(x: Any) -> np.ndarray | None:
            return None if x is None else np.asarray(x).swapaxes(0, 1).reshape(steps * envs, *x.shape[2:])

        reward: Any = flat(rollout.reward)
        extras: dict[str, Any] = {
            name: flat(x) for name, x in rollout.extras.items() if name not in ("channel", "messages")
        }  # what became of messages belongs to these parameters alone
        logp = extras.pop("logp", np.full(reward.shape, np.nan, np.float32))
        ends = np.cumsum(length)
        step = np.arange(steps * envs) - np.repeat(ends - length - offset, length)
        now = np.full(steps * envs, time.time_ns() // 1000)
        fields: dict[str, Any] = {
            name: flat(getattr(rollout, name))
            for name in (
                "obs", "action", "terminated", "truncated", "next_obs", "avail", "state", "next_avail", "next_state"
            )
        }  # fmt: skip
        alive: Any = np.ones(reward.shape, bool) if rollout.alive is None else flat(rollout.alive)
        if rollout.next_alive is not None:  # rows tell of lives; rollouts tell of returns, which may go on after them
            left: Any = flat(rollout.next_alive)
            fields["truncated"] = fields["truncated"] & alive
            fields["terminated"] = alive & (fields["terminated"] | ~left) & ~fields["truncated"]
        names = [f"{self.name}-{b}-{e}" for b, e in zip(column, number, strict=True)]
        return Experience(
            id=np.array(names, object), env=np.full(len(names), self.env, object), episode=number,
            version=np.full(len(names), version, np.int64), length=length, step=step, time=now, reward=reward,
            alive=alive, blind=np.zeros(steps * envs, bool), logp=logp,
            aux={name: x.reshape(*reward.shape, -1) for name, x in extras.items()}, **fields,
        )  # fmt: skip


class Joiner:
    """Joins the pieces of one cutter to whole episodes, which may span several rollouts."""

    def __init__(self) -> None:
        self._open: dict[int, Experience] = {}
        """By environment, the episode under way."""

    def add(self, pieces: Experience) -> Iterator[Experience]:
        """Take in the pieces of one rollout. Yields the episodes that are complete now."""
        ended: list[Experience] = []
        places: dict[int, list[int]] = {}
        for place, name in enumerate(pieces.id):
            places.setdefault(environment(name), []).append(place)
        for b, mine in places.items():
            before = self._open.pop(b, None)
            if before is not None and before.id[0] == pieces.id[mine[0]]:
                before, mine = _continue(before, pieces.pick(mine[:1])), mine[1:]
                if not mine:
                    self._open[b] = before
                    continue
            if before is not None:
                ended.append(before)
            if len(mine) > 1:
                ended.append(pieces.pick(mine[:-1]))
            self._open[b] = pieces.pick(mine[-1:])
        if ended:
            yield join(ended)

    def close(self) -> Iterator[Experience]:
        """Yield the unfinished episodes as far as they went."""
        rest, self._open = list(self._open.values()), {}
        if rest:
            yield join(rest)


def environment(name: str) -> int:
    """The number of the environment in the id of a trajectory."""
    return int(name.split("-")[1])


def _continue(before: Experience, after: Experience) -> Experience:
    """Join two pieces of one episode. The version is that of the policy that began it."""
    both = join([before, after])
    return both.take(np.array([0]), both.length.sum(keepdims=True), np.arange(both.steps))


def record_episodes(
    path: Path, algorithm: Algorithm, env: Any, params: PyTree, about: Mapping[str, Any], episodes: int, key: Array,
    explore: bool, workers: int | None = None,
) -> EvalResult:  # fmt: skip
    """Play whole episodes, write them to a file, and return their scores. Every environment instance plays the same
    number of episodes, so that short ones are not over-represented; those above `episodes` are left out."""
    instances = min(INSTANCES, episodes)
    each, steps = -(-episodes // instances), min(env.spec.max_steps, STRETCH)

    def act(params: PyTree, seen: Observation, memory: PyTree, key: Array, _: bool) -> Any:
        return algorithm.act(params, seen, memory, key, explore)

    player = algorithm._replace(act=act, rollout_steps=steps)
    cutter, joiner = Cutter(about["env"], instances), Joiner()
    returns: list[np.ndarray] = []
    lengths: list[int] = []
    with Writer(path, env.spec, about) as writer, _rollouts(player, env, params, key, instances, workers) as rollouts:
        while cutter.episode.min() < each:
            for data in joiner.add(cutter.cut(next(rollouts), -1)):
                place = data.episode * instances + [environment(name) for name in data.id]
                chosen = data.pick(np.flatnonzero(place < episodes))
                if chosen.trajectories:
                    writer.add(chosen)
                    returns += list(chosen.returns)
                    lengths += chosen.length.tolist()
    return summarize(np.stack(returns), np.array(lengths))


@contextlib.contextmanager
def _rollouts(
    player: Algorithm, env: Any, params: PyTree, key: Array, instances: int, workers: int | None
) -> Iterator[Iterator[Trajectory]]:
    """An endless iterator of rollouts [T, B] of B environment instances, on the device or on the host."""
    begin, key = jax.random.split(key)
    if not isinstance(env, Host):
        play: Any = jax.jit(lambda params, actors, key: scan_rollout(player, params, env, actors, key))
        yield _endless(play, params, jax.jit(lambda key: start(player, env, key, instances))(begin), key)
        return
    executor, _ = open_executor(env, [instances], workers)
    try:
        batch, actor = HostBatch(executor, 0, instances), HostActor(player)
        seen = batch.reset(np.asarray(words(jax.random.split(begin, instances))))
        actors = host_start(player, env.form, batch.state(), seen)
        yield _endless(lambda params, actors, key: host_rollout(actor, params, batch, actors, key), params, actors, key)
    finally:
        executor.close()


def _endless(play: Any, params: PyTree, actors: Any, key: Array) -> Iterator[Trajectory]:
    for i in itertools.count():
        actors, rollout, _ = play(params, actors, jax.random.fold_in(key, i))
        yield jax.device_get(rollout)
