"""Joint replay: a ring buffer of transitions of all agents together, so that all agents learn from the same steps.

The ring has separate axes for time and environments, [L, B, ...], and is written one rollout at a time. Consecutive
steps of an environment are consecutive in the ring, which n-step returns rely on.
docs/dependencies.md explains why it is not a library's buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array, EnvSpec, PyTree, Trajectory, next_seeds

SMALLEST = 1e-6
"""Added to errors, so that no priority is 0 and every transition can be drawn."""


class Replay(NamedTuple):
    """rows: a Trajectory with axes [L, B]; priority: [L, B], or () for uniform sampling.

    head: the row that is written next; filled: how many rows hold data. memory: what agents remembered before the first
    step of each rollout of T steps, leaves [L / T, B, ...]; () for agents without memory. Where there is one, sequences
    begin with rollouts, so that they begin with what was remembered then (R2D2, Kapturowski et al. 2019).
    """

    rows: Trajectory
    priority: Array | tuple[()]
    head: Array
    filled: Array
    memory: PyTree = ()
    bonus: Any = ()
    """While learning, a function (rows) -> [..., N] that is added to the rewards of what is sampled; () for none."""

    @property
    def stride(self) -> int:
        """Rows from one place where a sample may begin to the next."""
        held = jax.tree.leaves(self.memory)
        return len(self.rows.reward) // len(held[0]) if held else 1


class Batch(NamedTuple):
    """Transitions over n steps with a leading axis b. All agents of a sample are from the same step.

    obs, avail, state, action, alive: at the first step. reward: [b, N] discounted sum over the steps;
    discount: [b, N] factor of the value that follows, 0 after a termination. next_*: after the last step, the real
    final observation where an episode was truncated. weight: [b] importance weights. row, env: [b] places.
    """

    obs: Array
    avail: Array | None
    state: Array | None
    action: Array
    alive: Array
    reward: Array
    discount: Array
    next_obs: Array
    next_avail: Array | None
    next_state: Array | None
    next_alive: Array
    weight: Array
    row: Array
    env: Array
    neighbours: Array | None = None
    next_neighbours: Array | None = None
    seeds: Array | None = None
    next_seeds: Array | None = None
    stretch: Trajectory | None = None
    """For learners with memory: the sequence [W, b] that contains the steps. Other fields then have axes [T, b]."""


def make_replay(
    spec: EnvSpec,
    rows: int,
    envs: int,
    prioritized: bool,
    memory: PyTree = (),
    steps: int = 1,
    seeds: bool = False,
    chances: bool = False,
) -> Replay:
    """An empty ring of `rows` x `envs` transitions. memory: that of `envs` environments, where agents learn from
    sequences; steps: of each rollout. seeds: whether it keeps what decided the fate of messages; chances: whether it
    keeps how likely each agent's action was."""
    n = spec.num_agents

    def zeros(*shape: int, dtype: Any = jnp.float32) -> Array:
        return jnp.zeros((rows, envs, *shape), dtype)

    seen = zeros(n, spec.obs_size, dtype=spec.observations[0].dtype)  # pictures stay bytes
    avail = zeros(n, spec.action_size, dtype=bool) if spec.maskable else None
    near = zeros(n, n, dtype=bool) if spec.neighbours else None
    state = zeros(spec.state_size) if spec.state_size else None
    extras = {"channel": zeros(n, 2, dtype=jnp.uint32)} if seeds else {}
    if chances:
        extras["chance"] = zeros(n)
    blank = Trajectory(
        obs=seen, next_obs=seen,
        action=zeros(*spec.action_shape, dtype=spec.action_dtype),
        reward=zeros(n), terminated=zeros(n, dtype=bool), truncated=zeros(n, dtype=bool),
        first=zeros(dtype=bool), alive=zeros(n, dtype=bool),
        next_alive=zeros(n, dtype=bool), avail=avail, next_avail=avail, state=state, next_state=state, neighbours=near,
        next_neighbours=near,
        extras=extras,
    )  # fmt: skip
    held = jax.tree.map(lambda h: jnp.zeros((rows // steps, *h.shape), h.dtype), memory)
    return Replay(blank, zeros() if prioritized else (), jnp.int32(0), jnp.int32(0), held)


def replay_bytes(make: Callable[[], Replay]) -> int:
    """The memory that the ring takes, in bytes."""
    shapes = jax.eval_shape(make)
    return sum(int(np.prod(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(shapes))


def add(replay: Replay, trajectory: Trajectory) -> Replay:
    """Write a rollout [T, B] over the oldest rows. T must divide L, so a rollout never wraps around."""
    full = jnp.ones(trajectory.reward.shape, bool)
    alive = full if trajectory.alive is None else trajectory.alive

    def flags(mask: Array | None, like: Array | None) -> Array | None:
        """The mask, or one that allows everything; None where the ring stores no mask."""
        if like is None:
            return None
        return jnp.ones((*full.shape, like.shape[-1]), bool) if mask is None else mask

    rows = trajectory._replace(
        alive=alive,
        next_alive=alive & ~trajectory.terminated if trajectory.next_alive is None else trajectory.next_alive,
        avail=flags(trajectory.avail, replay.rows.avail),
        next_avail=flags(trajectory.next_avail, replay.rows.next_avail),
        state=trajectory.state if replay.rows.state is not None else None,
        next_state=trajectory.next_state if replay.rows.state is not None else None,
        memory=(), extras={name: trajectory.extras[name] for name in replay.rows.extras},
    )  # fmt: skip

    def write(old: Array, new: Array) -> Array:
        return jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), replay.head, 0)

    steps, length = len(trajectory.reward), len(replay.rows.reward)
    priority = replay.priority
    if isinstance(priority, Array):
        newest = jnp.where(replay.filled == 0, 1.0, priority.max())
        priority = write(priority, jnp.broadcast_to(newest, full.shape[:2]))
    memory = jax.tree.map(lambda old, new: old.at[replay.head // steps].set(new), replay.memory, trajectory.memory)
    return Replay(
        jax.tree.map(write, replay.rows, rows),
        priority,
        (replay.head + steps) % length,
        jnp.minimum(replay.filled + steps, length),
        memory,
    )


def draw(replay: Replay, key: Array, batch: int, n_step: int, beta: Array | float) -> tuple[Array, Array, Array]:
    """Places of `batch` samples that have `n_step` - 1 successors: (row, env, importance weight), each [b]."""
    (length, envs), stride = replay.rows.reward.shape[:2], replay.stride
    if not isinstance(replay.priority, Array):
        age_key, env_key = jax.random.split(key)
        age = stride * jax.random.randint(age_key, (batch,), 0, (replay.filled - n_step) // stride + 1)
        row = (replay.head - replay.filled + age) % length
        return row, jax.random.randint(env_key, (batch,), 0, envs), jnp.ones(batch)
    # Proportional sampling (Schaul et al. 2016): one stratified number per sample selects a row by the rows' sums,
    # then an entry of the row. The newest n - 1 rows are left out: their successors are not there yet.
    newest = (replay.head - 1 - jnp.arange(n_step - 1)) % length
    sums = jnp.where(np.arange(length) % stride == 0, replay.priority.sum(1), 0.0).at[newest].set(0.0)
    upto = jnp.cumsum(sums)
    number = (jnp.arange(batch) + jax.random.uniform(key, (batch,))) / batch * upto[-1]
    row = jnp.searchsorted(upto, number, side="right").clip(0, length - 1)
    inside = jnp.cumsum(replay.priority[row], axis=1)
    rest = number - (upto[row] - sums[row])
    env = (inside <= rest[:, None]).sum(1).clip(0, envs - 1)
    chance = replay.priority[row, env] / upto[-1]
    weight = (jnp.maximum(chance, 1e-12) * (replay.filled // stride) * envs) ** -beta
    return row, env, weight / weight.max()


def gather(replay: Replay, row: Array, env: Array, weight: Array, n_step: int, gamma: float) -> Batch:
    """Read n-step transitions. They are shorter where an episode ends or an agent is truncated."""
    rows, length = replay.rows, len(replay.rows.reward)
    assert rows.alive is not None  # `add` always writes both
    assert rows.next_alive is not None
    paid = stretch(replay, row, env, n_step).reward
    reward, terminated = paid[0], rows.terminated[row, env]
    last, factor = row, jnp.full(row.shape, gamma)
    ended = rows.truncated[row, env].any(-1)
    for k in range(1, n_step):
        now = (row + k) % length
        ended = ended | rows.first[now, env]
        on = ~ended[:, None]
        reward = reward + jnp.where(on & ~terminated, gamma**k * paid[k], 0.0)
        terminated = terminated | (on & rows.terminated[now, env])
        last = jnp.where(ended, last, now)
        factor = jnp.where(ended, factor, gamma ** (k + 1))
        ended = ended | rows.truncated[now, env].any(-1)

    def at(x: Array | None, where: Array) -> Array | None:
        return None if x is None else x[where, env]

    return Batch(
        obs=rows.obs[row, env], avail=at(rows.avail, row), state=at(rows.state, row), action=rows.action[row, env],
        alive=rows.alive[row, env].astype(jnp.float32), reward=reward, discount=factor[:, None] * ~terminated,
        next_obs=rows.next_obs[last, env], next_avail=at(rows.next_avail, last), next_state=at(rows.next_state, last),
        next_alive=rows.next_alive[last, env].astype(jnp.float32), weight=weight, row=row, env=env,
        neighbours=at(rows.neighbours, row), next_neighbours=at(rows.next_neighbours, last),
        seeds=at(rows.extras.get("channel"), row), next_seeds=next_seeds(at(rows.extras.get("channel"), last)),
    )  # fmt: skip


def stretch(replay: Replay, row: Array, env: Array, length: int) -> Trajectory:
    """`length` consecutive steps from each place on, as a Trajectory with axes [length, b], and the memory before."""
    rows = (row + jnp.arange(length)[:, None]) % len(replay.rows.reward)
    memory = jax.tree.map(lambda h: h[row // replay.stride, env], replay.memory)
    found: Trajectory = jax.tree.map(lambda x: x[rows, env], replay.rows)._replace(memory=memory)
    return found if replay.bonus == () else found._replace(reward=found.reward + replay.bonus(found))


def along(seen: Trajectory, row: Array, env: Array, weight: Array, burn_in: int, steps: int) -> Batch:
    """The `steps` steps to learn from, after the burn-in of a sequence [W, b]. next_* also cover the rest of it.

    reward, discount: of single steps, for n-step returns along the sequence.
    """
    live: Trajectory = jax.tree.map(lambda x: x[burn_in:], seen._replace(memory=()))
    now: Trajectory = jax.tree.map(lambda x: x[:steps], live)
    assert live.next_alive is not None  # `add` always writes it
    return Batch(
        obs=now.obs, avail=now.avail, state=now.state, action=now.action, alive=now.weight, reward=now.reward,
        discount=(~now.terminated).astype(jnp.float32), next_obs=live.next_obs, next_avail=live.next_avail,
        next_state=live.next_state, next_alive=live.next_alive.astype(jnp.float32), weight=weight,
        row=row, env=env, neighbours=now.neighbours, next_neighbours=live.next_neighbours, stretch=seen,
        seeds=now.observation.seeds, next_seeds=live.next_observation.seeds,
    )  # fmt: skip


MOST = 0.9
"""How much the largest error of a sequence counts in its priority; its mean counts for the rest (R2D2)."""


def typical(error: Array, weight: Array) -> Array:
    """[b] absolute error of each sample: the mean over agents (error, weight: [b, N]) and, for sequences [T, b, N],
    that of the step with the largest and the mean over steps, mixed."""
    sums, count = (jnp.abs(error) * weight).sum(-1), weight.sum(-1)
    if error.ndim == 2:
        return sums / jnp.maximum(count, 1.0)
    mean = sums.sum(0) / jnp.maximum(count.sum(0), 1.0)
    return mean if len(error) == 1 else MOST * (sums / jnp.maximum(count, 1.0)).max(0) + (1 - MOST) * mean


def prioritize(priority: Array, row: Array, env: Array, error: Array, alpha: float) -> Array:
    """New priorities error^alpha of the sampled places, each [b]."""
    return priority.at[row, env].set((error + SMALLEST) ** alpha)
