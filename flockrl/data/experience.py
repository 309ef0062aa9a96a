"""Recorded experience: whole episodes, or pieces of them, one after the other on one axis of time.

NumPy alone, so that an actor without JAX can record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from flockrl.core.spec import EnvSpec


class Experience(NamedTuple):
    """K trajectories of teams of N agents, S steps in all. A trajectory is an episode, or a piece of one.

    id, env: [K] str, what tells a trajectory apart from every other and where it was made; episode: [K] int64, its
    number there; version: [K] int64 of the policy that acted, -1 when unknown; length: [K] int64 steps, whose sum is S.
    step: [S] int64 within the episode; time: [S] int64 microseconds since 1970, 0 when unknown.
    obs, action, reward, terminated, truncated, next_obs, avail, state, alive, next_avail, next_state: as in
    `flockrl.Trajectory`, with the axis [S] in place of [T, B]. `alive` is always there: an agent that was not there has
    zeros. blind: [S] bool, steps after which nothing was seen though the episode was not over for good; nothing can be
    learned from them.
    logp: [S, N] log-probability of the action when it was chosen, NaN when unknown.
    aux: more values by name, [S, N, k], NaN where a step has none.
    """

    id: np.ndarray
    env: np.ndarray
    episode: np.ndarray
    version: np.ndarray
    length: np.ndarray
    step: np.ndarray
    time: np.ndarray
    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    next_obs: np.ndarray
    alive: np.ndarray
    blind: np.ndarray
    logp: np.ndarray
    avail: np.ndarray | None = None
    state: np.ndarray | None = None
    next_avail: np.ndarray | None = None
    next_state: np.ndarray | None = None
    aux: Mapping[str, np.ndarray] = {}

    @property
    def trajectories(self) -> int:
        """K."""
        return len(self.id)

    @property
    def steps(self) -> int:
        """S."""
        return len(self.reward)

    @property
    def starts(self) -> np.ndarray:
        """[K] where each trajectory begins on the axis of steps."""
        return np.cumsum(self.length) - self.length

    @property
    def first(self) -> np.ndarray:
        """[S] bool: the first step of each trajectory."""
        first = np.zeros(self.steps, bool)
        first[self.starts] = True
        return first

    @property
    def last(self) -> np.ndarray:
        """[S] bool: the last step of each trajectory."""
        last = np.zeros(self.steps, bool)
        last[np.cumsum(self.length) - 1] = True
        return last

    @property
    def over(self) -> np.ndarray:
        """[K] bool: trajectories at whose end the episode ended for everybody."""
        return (self.terminated | self.truncated | ~self.alive).all(1)[self.last]

    @property
    def whole(self) -> np.ndarray:
        """[K] bool: trajectories that are an episode from its beginning to its end."""
        return self.over & (self.step[self.starts] == 0)

    @property
    def returns(self) -> np.ndarray:
        """[K, N] what each agent earned in each trajectory, in all."""
        if not self.trajectories:
            return np.zeros((0, self.reward.shape[1]), self.reward.dtype)
        return np.add.reduceat(self.reward, self.starts, axis=0)

    def pick(self, which: np.ndarray | Sequence[int]) -> Experience:
        """The trajectories [k] at these places, in this order."""
        which = np.asarray(which, np.int64)
        length = self.length[which]
        before = self.starts[which] - (np.cumsum(length) - length)
        return self.take(which, length, np.repeat(before, length) + np.arange(length.sum()))

    def take(self, which: np.ndarray, length: np.ndarray, rows: np.ndarray) -> Experience:
        """Trajectories `which` [k] with these lengths [k], made of these steps."""
        heads = {name: getattr(self, name)[which] for name in HEADS if name != "length"}
        steps = {name: _each(getattr(self, name), lambda x: x[rows]) for name in STEPS}
        return Experience(**heads, length=np.asarray(length, np.int64), **steps)


HEADS = ("id", "env", "episode", "version", "length")
"""Fields with one entry for each trajectory; the others have one for each step."""
STEPS = tuple(name for name in Experience._fields if name not in HEADS)


def _each(value: Any, change: Any) -> Any:
    """`change` on an array, on each array of a dict, or not at all on None."""
    if value is None:
        return None
    return {name: change(x) for name, x in value.items()} if isinstance(value, Mapping) else change(value)


def join(parts: Sequence[Experience]) -> Experience:
    """One after the other. Aux values that some parts lack are NaN there, masks that some lack allow everything."""
    if len(parts) == 1:
        return parts[0]
    fields: dict[str, Any] = {}
    for name in Experience._fields:
        values = [getattr(part, name) for part in parts]
        if name == "aux":
            fields[name] = {key: _aux(parts, key) for key in dict.fromkeys(k for v in values for k in v)}
        elif all(value is None for value in values):
            fields[name] = None
        else:
            like = next(value for value in values if value is not None)
            filled = [
                np.ones((part.steps, *like.shape[1:]), like.dtype) if value is None else value
                for part, value in zip(parts, values, strict=True)
            ]
            fields[name] = np.concatenate(filled)
    return Experience(**fields)


def _aux(parts: Sequence[Experience], key: str) -> np.ndarray:
    width = max(part.aux[key].shape[-1] for part in parts if key in part.aux)
    blank = [np.full((*part.reward.shape, width), np.nan, np.float32) for part in parts]
    for part, whole in zip(parts, blank, strict=True):
        if key in part.aux:
            whole[..., : part.aux[key].shape[-1]] = part.aux[key]
    return np.concatenate(blank)


def blank(spec: EnvSpec, steps: int, trajectories: int, masks: bool, states: bool) -> dict[str, Any]:
    """Zeros for the fields that have one entry per step, and -1, empty names and zeros for those per trajectory."""
    n, size = spec.num_agents, spec.action_size

    def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
        return np.zeros((steps, *shape), dtype)

    obs = spec.observations[0].dtype
    return {
        "id": np.full(trajectories, "", object), "env": np.full(trajectories, "", object),
        "episode": np.zeros(trajectories, np.int64), "version": np.full(trajectories, -1, np.int64),
        "length": np.zeros(trajectories, np.int64),
        "step": zeros(dtype=np.int64), "time": zeros(dtype=np.int64),
        "obs": zeros(n, spec.obs_size, dtype=obs), "next_obs": zeros(n, spec.obs_size, dtype=obs),
        "action": zeros(*spec.action_shape, dtype=spec.action_dtype),
        "reward": zeros(n), "terminated": zeros(n, dtype=bool), "truncated": zeros(n, dtype=bool),
        "alive": zeros(n, dtype=bool), "blind": zeros(dtype=bool), "logp": np.full((steps, n), np.nan, np.float32),
        "avail": zeros(n, size, dtype=bool) if masks else None,
        "next_avail": zeros(n, size, dtype=bool) if masks else None,
        "state": zeros(spec.state_size) if states else None,
        "next_state": zeros(spec.state_size) if states else None,
    }  # fmt: skip
