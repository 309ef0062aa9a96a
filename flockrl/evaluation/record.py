"""Recording: cuts rollouts into episodes and writes them to files."""

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

from flockrl.core.types import Algorithm, Array, EnvSpec, EvalResult, Observation, PyTree, Trajectory
from flockrl.data.experience import Experience, join
from flockrl.data.files import Writer
from flockrl.envs.host.batch import HostBatch, words
from flockrl.envs.host.env import Host
from flockrl.envs.host.workers import open_executor
from flockrl.evaluation.playing import summarize
from flockrl.rollouts.compiled import scan_rollout, start
from flockrl.rollouts.host import HostActor, host_rollout, host_start

INSTANCES, STRETCH = 16, 128
"""Environment instances that play in parallel while episodes are recorded, and the most steps of one rollout."""


class Recorder:
    """Cuts the rollouts [T, B] of B environments into whole episodes, which may span several rollouts.

    env: the environment's name. The names of trajectories are unique across recorders.
    """

    def __init__(self, spec: EnvSpec, env: str, envs: int):
        self.spec, self.env = spec, env
        self._name = secrets.token_hex(8)
        self._episode = np.full(envs, -1, np.int64)
        self._open: list[Experience | None] = [None] * envs

    @property
    def finished(self) -> np.ndarray:
        """[B] the number of each environment's episodes that have ended and been yielded."""
        return self._episode

    def add(self, rollout: Trajectory, version: int) -> Iterator[Experience]:
        """Add a rollout of the policy of this version. Yields the episodes that are complete now."""
        pieces = self._pieces(rollout, version)
        opens = np.asarray(rollout.first)[0]
        ended: list[Experience] = []
        at = 0
        for b, count in enumerate(self._counts):
            mine = list(range(at, at + count))
            at += count
            before = self._open[b]
            if before is not None and opens[b]:
                ended.append(before)
            elif before is not None:
                joined = _continue(before, pieces.pick(mine[:1]))
                mine = mine[1:]
                if mine:
                    ended.append(joined)
                else:
                    self._open[b] = joined
                    continue
            if len(mine) > 1:
                ended.append(pieces.pick(mine[:-1]))
            self._open[b] = pieces.pick(mine[-1:])
        if ended:
            yield join(ended)

    def close(self) -> Iterator[Experience]:
        """Yield the unfinished episodes as far as they went."""
        rest = [piece for piece in self._open if piece is not None]
        self._open = [None] * len(self._open)
        if rest:
            yield join(rest)

    def _pieces(self, rollout: Trajectory, version: int) -> Experience:
        """The rollout, cut where episodes begin, environment by environment."""
        first = np.array(rollout.first)
        steps, envs = first.shape
        begins = first.copy()
        begins[0] = True
        self._counts = begins.sum(0)
        column, row = np.nonzero(begins.T)
        length = np.diff(np.append(column * steps + row, envs * steps))
        # An episode that continues from the rollout before keeps its number and its count of steps.
        number = np.cumsum(first, axis=0)[row, column] + self._episode[column]
        offset = np.zeros(len(column), np.int64)
        for i in np.flatnonzero((row == 0) & ~first[row, column]):
            before = self._open[column[i]]
            offset[i] = 0 if before is None else before.step[-1] + 1
        self._episode += first.sum(0)

        def flat(x: Any) -> np.ndarray | None:
            return None if x is None else np.asarray(x).swapaxes(0, 1).reshape(steps * envs, *x.shape[2:])

        reward: Any = flat(rollout.reward)
        extras: dict[str, Any] = {name: flat(x) for name, x in rollout.extras.items()}
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
        names = [f"{self._name}-{b}-{e}" for b, e in zip(column, number, strict=True)]
        return Experience(
            id=np.array(names, object), env=np.full(len(names), self.env, object), episode=number,
            version=np.full(len(names), version, np.int64), length=length, step=step, time=now, reward=reward,
            alive=alive, blind=np.zeros(steps * envs, bool), logp=logp,
            aux={name: x.reshape(*reward.shape, -1) for name, x in extras.items()}, **fields,
        )  # fmt: skip


class Recording:
    """A file to which the episodes of a run are written."""

    def __init__(self, path: Path, spec: EnvSpec, env: str, envs: int, about: Mapping[str, Any]):
        self.writer = Writer(path, spec, {"env": env, **about})
        self.recorder = Recorder(spec, env, envs)

    def add(self, rollout: Trajectory, version: int) -> None:
        for episodes in self.recorder.add(rollout, version):
            self.writer.add(episodes)

    def close(self) -> None:
        """Write the unfinished episodes, and move the file to its final place."""
        for rest in self.recorder.close():
            self.writer.add(rest)
        self.writer.close()


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
    recorder = Recorder(env.spec, about["env"], instances)
    returns: list[np.ndarray] = []
    lengths: list[int] = []
    with Writer(path, env.spec, about) as writer, _rollouts(player, env, params, key, instances, workers) as rollouts:
        while recorder.finished.min() < each:
            for data in recorder.add(next(rollouts), -1):
                place = data.episode * instances + [int(name.split("-")[1]) for name in data.id]
                chosen = data.pick(np.flatnonzero(place < episodes))
                if chosen.trajectories:
                    writer.add(chosen)
                    returns += list(chosen.returns)
                    lengths += chosen.length.tolist()
    return summarize(np.stack(returns), np.array(lengths))  # type: ignore[arg-type]


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


def _continue(before: Experience, after: Experience) -> Experience:
    """Join two pieces of one episode. The version is that of the policy that began it."""
    both = join([before, after])
    return both.take(np.array([0]), both.length.sum(keepdims=True), np.arange(both.steps))
