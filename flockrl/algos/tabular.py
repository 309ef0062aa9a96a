"""Tabular Q-learning (Watkins 1989): each agent keeps a table of values and learns as if it were alone.

    Q[o, a] <- Q[o, a] + lr (r + gamma max_{legal a'} Q[o', a'] - Q[o, a])

without the gamma term where the agent terminated. Observations are divided into cells, and cells are hashed to rows,
so the size of a table is fixed, and every environment with discrete actions works.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.algos.bonus.settings import BonusConfig
from flockrl.algos.defaults import settle
from flockrl.algos.exploration import level
from flockrl.algos.family import Family
from flockrl.algos.parts import Schedule, own_key, require_discrete, require_room, schedule_factor
from flockrl.core.errors import UsageError
from flockrl.core.groups import Share, make_groups
from flockrl.core.lives import learning_weight
from flockrl.core.random import Source, split, uniform
from flockrl.core.settings import check_numbers
from flockrl.core.types import Algorithm, Array, Critic, EnvSpec, Metrics, Observation, PyTree, Trajectory

ROW, PRINT = 1, 2
"""The two hashes: for the row of a cell, and for the fingerprint of the observation that owns a row."""
HAIR = 1e-4
"""Observations are moved up by this part of a cell before they are divided into cells."""
LARGEST = 2**30
"""Rows of the largest table, within the range of 32-bit indices."""


@dataclass(frozen=True)
class TabularConfig(BonusConfig):
    """Settings of tabular Q-learning."""

    share: Share = "none"
    """Which agents share a table: all, those of one kind, or none."""
    bin_width: float = 1.0
    """Width of the cells into which each entry of an observation is divided."""
    table_size: int = 65_536
    """Rows of each table, a power of two."""
    rollout_steps: int = 1
    """Steps of every environment between updates; with more steps, agents act on older values."""
    lr: float = 0.1
    """Learning rate: how far a value moves towards its target, above 0 and at most 1."""
    lr_schedule: Schedule = "linear"
    """How the learning rate falls to zero (exponential: to a hundredth) over the run, if at all."""
    gamma: float | None = None
    """Discount factor; by default 1 - 1 / h for episodes of up to h steps, with h between 20 and 100, and 1 in games
    that are won or lost."""
    optimism: float = 0.0
    """Initial value of all actions; a high one makes even greedy agents try everything."""
    explore_start: float = 1.0
    """Share of random actions at the start."""
    explore_end: float = 0.05
    """Share of random actions at the end."""
    explore_part: float = 0.5
    """Part of the run over which the share of random actions falls."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, "bin_width", above=0)
        check_numbers(self, "rollout_steps", least=1)
        check_numbers(self, "lr", "explore_part", above=0, most=1)
        check_numbers(self, "gamma", "explore_start", "explore_end", least=0, most=1)
        size = self.table_size
        if not 1 <= size <= LARGEST or size & (size - 1):
            raise UsageError(f"table_size must be a power of two between 1 and 2^30, not {size}.")


class TabularState(NamedTuple):
    """values: [G, R, A], one table per group; owner: [G, R] uint32, the fingerprint of the observation that owns the
    row, 0 for a row without owner; used: [G] number of rows with an owner; iterations: updates so far."""

    values: Array
    owner: Array
    used: Array
    iterations: Array


class Visit(NamedTuple):
    """All agents' transitions in the order of learning, [V] except legal: [V, A].

    table, row, next_row: where the values of this and of the next observation are stored. goes_on: whether the
    agent acts after this step. legal: its legal actions then.
    """

    table: Array
    row: Array
    action: Array
    reward: Array
    next_row: Array
    legal: Array
    goes_on: Array
    alive: Array


class Tabular:
    """The learner. It holds only static data (groups, sizes, settings); its methods are pure."""

    def __init__(self, spec: EnvSpec, config: TabularConfig, envs: int, updates: int):
        require_discrete(spec, "Tabular Q-learning")
        config, self.about = settle(config, spec, envs, updates)
        self.spec, self.config, self.updates = spec, config, updates
        groups = make_groups(spec, config.share)
        self.tables = len(groups)
        self.bytes = self.tables * config.table_size * 4 * (spec.action_size + 1)
        require_room(self.bytes, f"{self.tables} tables of {config.table_size:,} rows take", "table_size")
        sizes = np.array([space.size for space in spec.observations])
        self.reads = np.arange(spec.obs_size) < sizes[:, None]
        """[N, O]: the entries of its observation that each agent has; the others are padding."""
        self.own = spec.own_actions
        self.table = np.zeros(spec.num_agents, np.int32)
        """[N]: each agent's table."""
        for g, group in enumerate(groups):
            self.table[list(group.agents)] = g

    def algorithm(self) -> Algorithm:
        plural = "s" * (self.tables > 1)
        about = f"{self.about}, " if self.about else ""
        note = f"{about}{self.tables} table{plural} of {self.config.table_size:,} rows, {self.bytes / 1e6:,.1f} MB"
        return Algorithm(
            self.init, self.policy, self.act, self.update, lambda batch: (), self.config.rollout_steps, note,
            critic=Critic(lambda state: state.values, self.values_along),
        )  # fmt: skip

    def init(self, key: Array) -> TabularState:
        shape = self.tables, self.config.table_size
        values = jnp.full((*shape, self.spec.action_size), self.config.optimism, jnp.float32)
        return TabularState(values, jnp.zeros(shape, jnp.uint32), jnp.zeros(self.tables, jnp.int32), jnp.int32(0))

    def policy(self, state: TabularState) -> PyTree:
        """The tables, and the progress of the run, which sets the exploration."""
        return {"values": state.values, "progress": state.iterations / self.updates}

    def rows(self, obs: Array) -> Array:
        """[..., N] int32: the table rows of observations [..., N, O]."""
        hashed = hash_cells(cells(obs, self.config.bin_width), self.reads, ROW)
        return (hashed & np.uint32(self.config.table_size - 1)).astype(jnp.int32)

    def act(
        self, params: PyTree, observation: Observation, memory: PyTree, key: Source, explore: bool
    ) -> tuple[Array, PyTree, dict[str, Array]]:
        """With exploration, ties are broken at random; without, the first of the best actions is taken."""
        values = params["values"][self.table, self.rows(observation.obs)]
        legal = self._legal(observation.avail, values.shape)
        values = jnp.where(legal, values, -jnp.inf)
        if not explore:
            return values.argmax(-1).astype(jnp.int32), memory, {}
        random_key, key = split(own_key(self.spec, key))
        epsilon, agents = self._epsilon(params["progress"]), range(self.spec.num_agents)
        anything = uniform(random_key, (*values.shape[:-1], 1), agents) < epsilon
        wanted = legal & (anything | (values == values.max(-1, keepdims=True)))
        drawn = jnp.where(wanted, uniform(key, values.shape, agents), -1.0)
        return drawn.argmax(-1).astype(jnp.int32), memory, {}

    def values_along(self, values: Array, trajectory: Trajectory) -> Array:
        """[T, B, N] values of what was done, by tables [G, R, A]."""
        return values[self.table, self.rows(trajectory.obs), trajectory.action]

    def _epsilon(self, progress: Array) -> Array:
        config = self.config
        return level("epsilon", config.explore_start, config.explore_end, config.explore_part, progress)

    def _legal(self, avail: Array | None, shape: tuple[int, ...]) -> Array:
        """[..., N, A]: the actions that each agent has and that are legal now."""
        return jnp.broadcast_to(self.own if avail is None else avail & self.own, shape)

    def update(self, state: TabularState, trajectory: Trajectory, key: Array) -> tuple[TabularState, Metrics]:
        """Learn from every transition, ordered by time, then environment, then agent."""
        config, progress = self.config, state.iterations / self.updates
        gamma = config.gamma or 0.0
        lr = config.lr * schedule_factor(config.lr_schedule, progress)
        visits = self._visits(trajectory)

        def error(values: Array, visit: Visit) -> Array:
            ahead = jnp.where(visit.legal, values[visit.table, visit.next_row], -jnp.inf).max(-1)
            target = visit.reward + jnp.where(visit.goes_on, gamma * ahead, 0.0)
            return jnp.where(visit.alive, target - values[visit.table, visit.row, visit.action], 0.0)

        # The loop changes one number at a time and does nothing else, so the table is changed in place. If anything
        # else read the old values, the compiler would copy the whole table, in the loop once per transition.
        def learn(values: Array, visit: Visit) -> tuple[Array, None]:
            return values.at[visit.table, visit.row, visit.action].add(lr * error(values, visit)), None

        values, _ = jax.lax.scan(learn, state.values, visits)
        owner, used, others = self._claim(state, trajectory.obs, visits)
        count = jnp.maximum(visits.alive.sum(), 1)
        metrics = {
            "td_error": jnp.abs(error(values, visits)).sum() / count,
            "collisions": others / count,
            "table_rows": used[self.table].astype(jnp.float32).mean(),
            "epsilon": self._epsilon(progress),
            "lr": lr,
        }
        return TabularState(values, owner, used, state.iterations + 1), metrics

    def _visits(self, trajectory: Trajectory) -> Visit:
        shape = trajectory.reward.shape
        legal = self._legal(trajectory.next_avail, (*shape, self.spec.action_size))
        visits = Visit(
            jnp.broadcast_to(self.table, shape), self.rows(trajectory.obs), trajectory.action, trajectory.reward,
            self.rows(trajectory.next_obs), legal, ~trajectory.terminated & legal.any(-1),
            jnp.ones(shape, bool) if trajectory.alive is None else learning_weight(self.spec, trajectory.alive) > 0,
        )  # fmt: skip
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[3:]), visits)

    def _claim(self, state: TabularState, obs: Array, visits: Visit) -> tuple[Array, Array, Array]:
        """The owners of rows and their number after these visits, and the number of visits to rows with another owner.

        A row always belongs to the first observation that used it; among several in one update, to the one with the
        largest fingerprint.
        """
        size, place = self.config.table_size, (visits.table, visits.row)
        mark = jnp.maximum(hash_cells(cells(obs, self.config.bin_width), self.reads, PRINT).reshape(-1), 1)
        new = visits.alive & (state.owner[place] == 0)
        table, row, claim = jax.lax.sort((visits.table, jnp.where(new, visits.row, size), mark), num_keys=2)
        owner = state.owner.at[table, row].max(claim, mode="drop")
        again = (jnp.diff(table, prepend=-1) == 0) & (jnp.diff(row, prepend=-1) == 0)
        used = state.used.at[table].add((~again & (row < size)).astype(jnp.int32))
        return owner, used, (visits.alive & (owner[place] != mark)).sum()


def cells(obs: Array, bin_width: float) -> Array:
    """[...] int32: floor(obs / bin_width), the cell of each entry, negative below zero.

    `HAIR` is added first: without it, rounding often puts multiples of the width into the cell below.
    """
    return jnp.clip(jnp.floor(obs / bin_width + HAIR), -(2.0**30), 2.0**30).astype(jnp.int32)


def hash_cells(cell: Array, reads: np.ndarray, which: int) -> Array:
    """[..., N] uint32: a hash of each agent's own cells. cell: [..., N, O]; reads: [N, O], which are the agent's own.

    Every entry is scrambled with a word that depends on its position, the results are added up, and the sum plus the
    number of entries is scrambled again.
    """
    place = np.arange(1, reads.shape[1] + 1, dtype=np.uint32)
    words = scramble(jax.lax.bitcast_convert_type(cell, jnp.uint32) ^ scramble(place + np.uint32(which << 24)))
    total = jnp.where(reads, words, np.uint32(0)).sum(-1, dtype=jnp.uint32)
    return scramble(total + reads.sum(-1).astype(np.uint32))


def scramble(x: Any) -> Any:
    """A one-to-one map of 32-bit words after which every bit depends on all bits of `x`."""
    for shift, factor in ((16, 0x6A09E667), (15, 0xBB67AE85)):  # fractions of the square roots of 2 and 3, both odd
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    return x ^ (x >> np.uint32(16))


def make(spec: EnvSpec, config: TabularConfig, *, envs: int, updates: int) -> Algorithm:
    """Tabular Q-learning for an environment with discrete actions."""
    return Tabular(spec, config, envs, updates).algorithm()


FAMILY = Family(make, TabularConfig, continuous=False)
