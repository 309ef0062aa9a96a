"""Recorded trajectories become rollouts [T, B], the form in which every learner takes experience."""

from __future__ import annotations

from typing import Any

import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.lives import return_ends
from flockrl.core.types import EnvSpec, PyTree, Trajectory
from flockrl.data.experience import Experience, join


def make_packer(spec: EnvSpec, steps: int, columns: int, whole: bool) -> Packer:
    """A packer of rollouts [steps, columns]; with `whole` trajectories for learners with memory."""
    if whole and spec.max_steps > steps:
        raise UsageError(
            f"Agents with memory learn from whole trajectories: set rollout_steps ({steps}) to at least the longest of "
            f"them (max_steps, {spec.max_steps})."
        )
    return Packer(spec, steps, columns, whole)


class Packer:
    """Trajectories that wait until they fill a rollout of `steps` x `columns`.

    Columns are filled one after the other. A trajectory that does not fit goes on in the next column, cut there: the
    value of what followed stands in for the rest, as at the end of a live rollout. With `whole`, for learners with
    memory, it is put into the next column entirely, and what stays empty counts as steps in which nobody lived.
    """

    def __init__(self, spec: EnvSpec, steps: int, columns: int, whole: bool):
        self.spec, self.shape, self.whole = spec, (columns, steps), whole
        self.parts: list[Experience] = []

    def add(self, data: Experience) -> None:
        data = _usable(_paid(self.spec, _plain(data)))
        if data.steps:
            self.parts.append(data)

    def share(self, lengths: np.ndarray) -> int:
        """How many trajectories of these lengths [k] to add until a rollout may be full."""
        if self.whole:
            return 1
        room = self.shape[0] * self.shape[1] - sum(part.steps for part in self.parts)
        return int(np.searchsorted(np.cumsum(lengths), room)) + 1

    def clear(self) -> None:
        self.parts = []

    @property
    def waiting(self) -> Experience | None:
        """What has not been taken yet."""
        if not self.parts:
            return None
        self.parts = [join(self.parts)]
        return self.parts[0]

    @property
    def ready(self) -> bool:
        """Whether a rollout is full."""
        if not self.whole:
            return sum(part.steps for part in self.parts) >= self.shape[0] * self.shape[1]
        data = self.waiting
        return data is not None and self._place(data)[1] < data.steps

    def take(self, memory: PyTree, extras: tuple[str, ...] = ()) -> Trajectory:
        """The next rollout, padded where there is not enough. extras: names among logp and aux that are wanted."""
        data = self.waiting
        assert data is not None
        index, used = self._place(data)
        self.parts = [_after(data, used)] if used < data.steps else []
        return _rollout(self.spec, data, index, memory, extras)

    def _place(self, data: Experience) -> tuple[np.ndarray, int]:
        """Which step goes where [B, T], -1 for none; and how many steps that are."""
        columns, steps = self.shape
        index = np.full((columns, steps), -1)
        if not self.whole:
            used = min(columns * steps, data.steps)
            index.reshape(-1)[:used] = np.arange(used)
            return index, used
        column = row = used = 0
        for length in data.length.tolist():
            for begin in range(0, length, steps):
                piece = min(steps, length - begin)
                if row + piece > steps:
                    column, row = column + 1, 0
                if column == columns:
                    return index, used
                index[column, row : row + piece] = np.arange(used, used + piece)
                used, row = used + piece, row + piece
        return index, used


def _plain(data: Experience) -> Experience:
    """With zeros for agents that were not there, wherever the data came from."""
    if data.alive.all():
        return data

    def there(x: Any) -> Any:
        return (
            None
            if x is None
            else np.where(data.alive.reshape(*data.alive.shape, *(1,) * (x.ndim - 2)), x, x.dtype.type(0))
        )

    names = ("obs", "next_obs", "action", "reward", "terminated", "truncated", "logp", "avail", "next_avail")
    return data._replace(**{name: there(getattr(data, name)) for name in names})


def _paid(spec: EnvSpec, data: Experience) -> Experience:
    """With what dead agents earned, which recordings do not tell: what their side earned, where all of its living
    agents earned the same throughout a trajectory."""
    if not spec.reward_after_death or data.alive.all():
        return data
    reward, which = data.reward.copy(), np.repeat(np.arange(data.trajectories), data.length)
    for side in dict.fromkeys(spec.sides):
        own = np.flatnonzero(np.array(spec.sides) == side)
        alive = data.alive[:, own]
        most = np.where(alive, data.reward[:, own], -np.inf).max(1)
        least = np.where(alive, data.reward[:, own], np.inf).min(1)
        unlike = np.zeros(data.trajectories, bool)
        np.logical_or.at(unlike, which, alive.any(1) & (most != least))
        shared = (alive.any(1) & ~unlike[which])[:, None] & ~alive
        reward[:, own] = np.where(shared, most[:, None], reward[:, own])
    return data._replace(reward=reward)


def _usable(data: Experience) -> Experience:
    """Without steps in which nobody lived, and without those whose successor nobody saw: they teach nothing. The
    trajectory is cut before them."""
    good = data.alive.any(1) & ~data.blind
    if good.all():
        return data
    start = data.first
    blind = np.flatnonzero(data.blind)
    before = blind[~start[blind]] - 1
    truncated = data.truncated.copy()
    truncated[before] |= data.alive[before] & ~data.terminated[before]
    lengths = np.add.reduceat(good.astype(np.int64), np.flatnonzero(start))
    which = np.flatnonzero(lengths)
    return data._replace(truncated=truncated).take(which, lengths[which], np.flatnonzero(good))


def _after(data: Experience, used: int) -> Experience:
    """What is left behind the first `used` steps; the trajectory that was cut there begins anew."""
    ends = np.cumsum(data.length)
    which = np.flatnonzero(ends > used)
    lengths = np.minimum(data.length[which], ends[which] - used)
    return data.take(which, lengths, np.arange(used, data.steps))


def _rollout(spec: EnvSpec, data: Experience, index: np.ndarray, memory: PyTree, extras: tuple[str, ...]) -> Trajectory:
    there = index >= 0
    full = bool(there.all())
    last, start = data.last, data.first
    # A step whose successor does not stand below it ends a piece.
    ends = np.ones(index.shape, bool)
    ends[:, :-1] = (index[:, 1:] != index[:, :-1] + 1) | last[index[:, :-1]]
    first = start[index]
    first[:, 1:] |= ends[:, :-1]
    first[:, 0] = True

    def grid(values: Any, empty: Any = 0) -> Any:
        if values is None:
            return None
        rows = values[index]
        if not full:
            rows[~there] = empty
        return rows.swapaxes(0, 1)

    alive, terminated = grid(data.alive, False), grid(data.terminated, True)
    truncated = grid(data.truncated, False) | (ends.T[..., None] & alive & ~terminated)
    left = alive & ~terminated
    terminated, truncated = return_ends(spec, terminated, truncated, left, np)
    own = np.broadcast_to(spec.own_actions, (data.steps, *spec.own_actions.shape)) if spec.maskable else None
    named = {name: grid(np.nan_to_num(data.logp if name == "logp" else data.aux[name])) for name in extras}
    return Trajectory(
        obs=grid(data.obs), action=grid(data.action), reward=grid(data.reward), terminated=terminated,
        truncated=truncated, next_obs=grid(data.next_obs), first=first.T, alive=alive,
        avail=grid(own if data.avail is None else data.avail, spec.own_actions),
        next_avail=grid(own if data.next_avail is None else data.next_avail, spec.own_actions),
        state=grid(data.state), next_state=grid(data.next_state), next_alive=left, memory=memory, extras=named,
    )  # fmt: skip
