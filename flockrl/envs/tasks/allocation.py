"""Jobs that need a skill and have a deadline, and workers who differ in what they are good at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.entities import Entities, Kind
from flockrl.core.types import Array, Box, Discrete, EnvSpec, Observation
from flockrl.envs.emergence import division_of_labour
from flockrl.envs.others import from_next
from flockrl.envs.settings import share, whole
from flockrl.envs.tasks.assignment import NOBODY, auction, best

LEAST, MOST = 3, 8
"""Least and greatest amount of work in a job."""
FASTEST = 2
"""Work per step of a worker in its own skill."""
NEVER = 1 << 20
"""More than any rank among those who want a job."""
NAME = "tasks/allocation"


class Shop(NamedTuple):
    """t: steps so far; speed: [N, S] work per step of each worker by skill, 0 for a skill that it lacks; busy: [N]
    steps until it is free. Of each place for a job, [J]: waits: whether one waits there; skill; work; due: steps until
    its deadline. done, missed: jobs in time and not, so far; worked: [N, S] jobs done by worker and skill."""

    t: Array
    speed: Array
    busy: Array
    waits: Array
    skill: Array
    work: Array
    due: Array
    done: Array
    missed: Array
    worked: Array


class Allocation:
    """`workers` choose among jobs that wait; each job needs one of `skills` and must be done before its deadline.

    Each worker does 2 units of work per step in one skill, its own, and 1 in each other skill that it has (with
    probability 1/2). In each step a job appears with probability `rate` if one of the `jobs` places is free: a random
    skill, 3 to 8 units of work, a deadline of `slack` more steps than one unit per step would take. A worker that is
    free waits (action 0) or takes job j (action j + 1); if several want the same one, the fastest gets it and the
    others wait. It is then busy for work / speed steps, rounded up, and gets 1 at once if that ends in time; taking a
    job that cannot be done in time is not legal. A job whose deadline nobody can meet any more is missed. Truncated
    after `steps`.

    Observed: its speeds / 2, steps until it is free / 8, the share of time left; for each place [skill of the job there
    (one-hot), work / 8, steps until the deadline / 16, steps that it would take itself / 8 (0 if it cannot)], and
    whether a job waits at each; of each other worker, the next one first, steps until it is free / 8.
    """

    def __init__(
        self,
        workers: int = 4,
        jobs: int = 8,
        skills: int = 4,
        rate: float = 0.9,
        slack: int = 4,
        steps: int = 100,
    ):
        whole(NAME, 1, 100, workers=workers, jobs=jobs)
        whole(NAME, 1, 20, skills=skills)
        share(NAME, rate=rate)
        whole(NAME, 0, 100, slack=slack)
        whole(NAME, 1, 100_000, steps=steps)
        self.n, self.jobs, self.skills, self.rate, self.slack, self.steps = workers, jobs, skills, rate, slack, steps
        size = skills + 2 + jobs * (4 + skills) + workers - 1
        self.spec = EnvSpec(
            name=NAME,
            agents=tuple(f"worker_{i}" for i in range(workers)),
            observations=(Box((size,)),) * workers,
            actions=(Discrete(jobs + 1),) * workers,
            max_steps=steps,
            entities=(self._entities(size),) * workers,
        )
        self.best = rate * steps / workers
        """Every job that may come: a bound, since some find no place and some nobody who is free."""
        self.policies = {
            "first": self._first, "quickest": self._quickest, "auction": self._auction, "assigned": self._assigned,
        }  # fmt: skip

    def _entities(self, size: int) -> Entities:
        """An observation of so many numbers as a set."""
        own, width = self.skills + 2, self.skills + 3
        jobs, others = Kind("job", self.jobs, ((own, width),), own + self.jobs * width), self.n - 1
        return Entities(((0, own),), (jobs, Kind("worker", others, ((size - others, 1),))))

    def reset(self, key: Array) -> tuple[Shop, Observation]:
        own_key, other_key = jax.random.split(key)
        own = jax.random.randint(own_key, (self.n, 1), 0, self.skills) == np.arange(self.skills)
        others = jax.random.uniform(other_key, (self.n, self.skills)) < 0.5
        none, free = jnp.zeros(self.jobs, jnp.int32), jnp.zeros(self.n, jnp.int32)
        state = Shop(
            t=jnp.int32(0), speed=jnp.where(own, FASTEST, others.astype(jnp.int32)), busy=free, waits=none > 0,
            skill=none, work=none, due=none, done=jnp.int32(0), missed=jnp.int32(0),
            worked=jnp.zeros((self.n, self.skills)),
        )  # fmt: skip
        return state, self._observe(state)

    def step(self, key: Array, state: Shop, action: Array) -> tuple[Shop, Observation, Array, Array, Array]:
        takes, needs = self._taken(state, action)
        gets = takes.any(1)
        busy = jnp.where(gets, (takes * needs).sum(1), state.busy)
        of_skill = (takes[..., None] & (state.skill[:, None] == np.arange(self.skills))).sum(1)
        waits, due = state.waits & ~takes.any(0), state.due - 1
        hopeless = waits & (_halved(state.work) > due)  # even the fastest would be late
        state = state._replace(
            t=state.t + 1, busy=jnp.maximum(busy - 1, 0), waits=waits & ~hopeless, due=due,
            done=state.done + gets.sum(), missed=state.missed + hopeless.sum(), worked=state.worked + of_skill,
        )  # fmt: skip
        state = self._appear(key, state)
        return state, self._observe(state), gets.astype(jnp.float32), jnp.bool_(False), state.t >= self.steps

    def _needs(self, state: Shop) -> tuple[Array, Array]:
        """[N, J] steps that each worker needs for each job, and whether it may take it now."""
        speed = self._speed(state)
        needs = jnp.where(speed == FASTEST, _halved(state.work), state.work)
        return needs, (speed > 0) & state.waits & (needs <= state.due) & (state.busy == 0)[:, None]

    def _speed(self, state: Shop) -> Array:
        """[N, J] work per step of each worker at each job."""
        return (state.speed[:, None] * (state.skill[:, None] == np.arange(self.skills))).sum(-1)

    def _taken(self, state: Shop, action: Array) -> tuple[Array, Array]:
        """[N, J] who gets which job, and the steps that it takes."""
        needs, may = self._needs(state)
        wants = (action[:, None] == np.arange(1, self.jobs + 1)) & may
        rank = jnp.where(wants, needs * self.n + np.arange(self.n)[:, None], NEVER)
        return wants & (rank == rank.min(0)), needs

    def _appear(self, key: Array, state: Shop) -> Shop:
        draw = jax.random.uniform(key, (3,))
        taken = (state.waits | ~np.tri(self.jobs, k=-1, dtype=bool)).all(1)  # all places before this one
        new = ~state.waits & taken & (draw[0] < self.rate)
        skill = jnp.minimum((draw[1] * self.skills).astype(jnp.int32), self.skills - 1)
        work = jnp.minimum(LEAST + (draw[2] * (MOST - LEAST + 1)).astype(jnp.int32), MOST)
        return state._replace(
            waits=state.waits | new, skill=jnp.where(new, skill, state.skill),
            work=jnp.where(new, work, state.work), due=jnp.where(new, work + self.slack, state.due),
        )  # fmt: skip

    def measures(self, state: Shop) -> dict[str, Array]:
        """done: jobs done in time; missed: jobs that nobody did; specialised: how far workers keep to skills of their
        own, from 0 to 1."""
        return {"done": state.done, "missed": state.missed, "specialised": division_of_labour(state.worked)}

    def render(self, states: Sequence[Shop], size: int = 400) -> list[np.ndarray]:
        """Frames [size, size, 3] uint8 of one episode."""
        from flockrl.envs.tasks.render import frames

        return frames(states, size)

    def _observe(self, state: Shop) -> Observation:
        n, (needs, may) = self.n, self._needs(state)
        left = jnp.broadcast_to(1 - state.t / self.steps, (n, 1))
        skill = (state.skill[:, None] == np.arange(self.skills)).astype(jnp.float32)
        job = jnp.concatenate([skill, state.work[:, None] / 8, state.due[:, None] / 16], -1)
        job = jnp.broadcast_to(jnp.where(state.waits[:, None], job, 0.0), (n, *job.shape))
        can = (self._speed(state) > 0) & state.waits
        jobs = jnp.concatenate([job, jnp.where(can, needs / 8, 0.0)[..., None]], -1).reshape(n, -1)
        others = from_next(jnp.broadcast_to(state.busy, (n, n)))
        waits = jnp.broadcast_to(state.waits, (n, self.jobs))
        parts = (state.speed / 2, state.busy[:, None] / 8, left, jobs, waits, others / 8)
        obs = jnp.concatenate([part.astype(jnp.float32) for part in parts], -1)
        return Observation(obs, avail=jnp.concatenate([jnp.ones((n, 1), bool), may], -1))

    def _benefit(self, state: Shop) -> Array:
        """[N, J] more for jobs that take less time; 0 for those that a worker may not take."""
        needs, may = self._needs(state)
        return jnp.where(may, 10.0 - needs, 0.0)

    def _first(self, state: Shop, seen: Observation, key: Array) -> Array:
        """Everybody takes the first job that it may."""
        may = self._needs(state)[1]
        return jnp.where(may.any(1), may.argmax(1) + 1, 0)

    def _quickest(self, state: Shop, seen: Observation, key: Array) -> Array:
        """Everybody takes the job that it does in the least time, whoever else does."""
        benefit = self._benefit(state)
        return jnp.where(benefit.max(1) > 0, benefit.argmax(1) + 1, 0)

    def _auction(self, state: Shop, seen: Observation, key: Array) -> Array:
        """Jobs are auctioned off (Bertsekas 1988)."""
        return auction(self._benefit(state)) - NOBODY

    def _assigned(self, state: Shop, seen: Observation, key: Array) -> Array:
        """The assignment with the largest sum of benefits, by the Hungarian method."""
        return best(self._benefit(state)) - NOBODY


def _halved(work: Array) -> Array:
    """Steps that the fastest take for so much work, rounded up."""
    return (work + 1) >> 1
