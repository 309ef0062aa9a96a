"""Tabular Q-learning against a dict in plain Python, its hash, and what it may choose."""

import os
import signal
from collections import defaultdict

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flockrl
from flockrl.algos.assembly import make_algorithm
from flockrl.algos.presets import make_config
from flockrl.algos.tabular import HAIR, PRINT, ROW, Tabular, TabularConfig, cells, hash_cells, scramble
from flockrl.core.errors import UsageError
from flockrl.core.rundir import read_metrics
from flockrl.core.types import Box, Discrete, EnvSpec, Observation, Trajectory
from flockrl.training.checkpoint import Checkpoints
from flockrl.training.interrupt import Interrupted

SIZES, ACTIONS = (2, 2, 1), (3, 3, 2)
TABLES = {"all": (0, 0, 0), "groups": (0, 0, 1), "none": (0, 1, 2)}


def world(sizes=SIZES, actions=ACTIONS):
    """Two agents of one kind and a third with smaller spaces."""
    boxes, spaces = tuple(Box((s,)) for s in sizes), tuple(map(Discrete, actions))
    return EnvSpec("test", ("a_0", "a_1", "b")[: len(sizes)], boxes, spaces, 9, reward_after_death=False)


def experience(spec, seed=0, t=12, b=5, masks=True, deaths=True):
    """Few distinct observations, so that rows are visited often; what follows is not the next row's observation."""
    rng = np.random.default_rng(seed)
    n, shape = spec.num_agents, (t, b, spec.num_agents)
    own = np.arange(spec.obs_size) < np.array([s.size for s in spec.observations])[:, None]
    obs, following = (rng.uniform(-1.5, 1.5, (2, *shape, spec.obs_size)) * own).astype(np.float32)
    count = np.array([s.size for s in spec.actions])
    legal = rng.random((*shape, spec.action_size)) < 0.5
    legal[..., 0] = True
    return Trajectory(
        obs=obs, next_obs=following, action=(rng.random(shape) * count).astype(np.int32),
        reward=rng.uniform(-1, 1, shape).astype(np.float32), terminated=rng.random(shape) < 0.2,
        truncated=rng.random(shape) < 0.2, first=np.zeros((t, b), bool),
        avail=np.ones_like(legal) if masks else None, next_avail=legal if masks else None,
        alive=rng.random(shape) < 0.7 if deaths else None, extras={"agents": np.arange(n)},
    )  # fmt: skip


def cell(row, size, width):
    return tuple(int(x) for x in np.floor(row[:size].astype(float) / width + HAIR))


def by_hand(spec, trajectory, share, lr, gamma, width, optimism):
    """{(table, cell): [A]} after every transition in order."""
    q = defaultdict(lambda: np.full(spec.action_size, optimism, np.float32))
    steps, envs, agents = trajectory.reward.shape
    for t in range(steps):
        for b in range(envs):
            for i in range(agents):
                at = t, b, i
                if trajectory.alive is not None and not trajectory.alive[at]:
                    continue
                size, count = spec.observations[i].size, spec.actions[i].size
                table = TABLES[share][i], size
                now, after = (q[table, cell(x[at], size, width)] for x in (trajectory.obs, trajectory.next_obs))
                may = range(count)
                if trajectory.next_avail is not None:
                    may = [a for a in may if trajectory.next_avail[at][a]]
                ahead = 0 if trajectory.terminated[at] else max(after[a] for a in may)
                action = trajectory.action[at]
                now[action] += np.float32(lr) * (trajectory.reward[at] + np.float32(gamma) * ahead - now[action])
    return q


@pytest.mark.parametrize(
    ("share", "masks", "deaths"), [("none", True, True), ("all", True, True), ("groups", False, True),
                                   ("none", False, False)]
)  # fmt: skip
def test_learning_matches_a_dict(share, masks, deaths):
    spec = world()
    config = TabularConfig(share=share, bin_width=0.5, lr=0.3, gamma=0.9, optimism=0.25, lr_schedule="constant")
    learner = Tabular(spec, config, envs=1, updates=10)
    update = jax.jit(learner.update)
    state = learner.init(jax.random.key(0))
    pieces = [experience(spec, seed, masks=masks, deaths=deaths) for seed in (0, 1)]
    for piece in pieces:
        state, metrics = update(state, jax.tree.map(jnp.asarray, piece), jax.random.key(0))
        assert metrics["collisions"] == 0
    whole = jax.tree.map(lambda *x: np.concatenate(x), *pieces)
    want = by_hand(spec, whole, share, 0.3, 0.9, 0.5, 0.25)
    seen = [np.zeros(spec.obs_size, np.float32) for _ in range(3)]
    visited = 0
    for i, size in enumerate(SIZES):
        for (table, key), row in want.items():
            if table == (TABLES[share][i], size):
                seen[i][:size] = (np.array(key) + 0.5) * 0.5
                at = int(learner.rows(jnp.asarray(np.stack(seen)))[i])
                np.testing.assert_allclose(state.values[TABLES[share][i], at], row, atol=1e-6)
                visited += 1
    assert visited > 60
    # Nothing else was touched: all rows that moved are rows of the dict.
    moved = (np.asarray(state.values) != 0.25).any(-1).sum()
    assert moved == sum((row != 0.25).any() for row in want.values())


def test_rows_and_collisions_are_counted():
    """With few rows, the rows in use and the visits to rows of others are what the definition says."""
    spec = world()
    learner = Tabular(spec, TabularConfig(bin_width=0.5, table_size=16), envs=1, updates=10)
    state, owner, used = learner.init(jax.random.key(0)), [{}, {}, {}], None
    for seed in (0, 1):
        trajectory = jax.tree.map(jnp.asarray, experience(spec, seed))
        state, metrics = jax.jit(learner.update)(state, trajectory, jax.random.key(0))
        rows = np.asarray(learner.rows(trajectory.obs))
        marks = np.asarray(hash_cells(cells(trajectory.obs, 0.5), learner.reads, PRINT))
        places = [(i, rows[t, b, i], marks[t, b, i]) for t, b, i in np.argwhere(np.asarray(trajectory.alive))]
        claims = [{}, {}, {}]
        for i, row, mark in places:
            claims[i][row] = max(mark, claims[i].get(row, 0))
        owner = [{**claim, **old} for claim, old in zip(claims, owner, strict=True)]
        others = np.mean([owner[i][row] != mark for i, row, mark in places])
        used = [len(rows) for rows in owner]
        assert float(metrics["collisions"]) == pytest.approx(others)
        assert float(metrics["table_rows"]) == pytest.approx(np.mean(used))
    assert others > 0.1
    assert state.used.tolist() == used == (state.owner != 0).sum(-1).tolist()


def test_many_environments_in_one_state_make_one_average():
    """100 equal transitions with lr 0.5 go to the target and not 50 times beyond it."""
    spec = world((1,), (2,))
    learner = Tabular(spec, TabularConfig(lr=0.5), envs=1, updates=10)
    one = experience(spec, t=1, b=100, masks=False, deaths=False)
    same = one._replace(
        obs=0 * one.obs, action=0 * one.action, reward=0 * one.reward + 3, terminated=one.terminated | True
    )
    state, _ = learner.update(learner.init(jax.random.key(0)), jax.tree.map(jnp.asarray, same), jax.random.key(0))
    assert float(state.values.max()) == pytest.approx(3)


def test_equal_cells_have_equal_rows_and_negative_values_their_own():
    learner = Tabular(world((1,), (2,)), TabularConfig(bin_width=0.5), envs=1, updates=1)
    obs = jnp.array([0.0, 0.1, 0.49, -0.0, -0.1, -0.49, 0.5, -0.51, 1e30, jnp.inf])
    assert cells(obs, 0.5).tolist() == [0, 0, 0, 0, -1, -1, 1, -2, 2**30, 2**30]
    rows = learner.rows(obs[:, None, None])[:, 0].tolist()
    assert len({*rows[:4]}) == len({*rows[4:6]}) == 1
    assert len({*rows[:8]}) == 4


@pytest.mark.parametrize("width", [0.1, 0.7, 1.0, 49.0])
def test_multiples_of_the_width_have_cells_of_their_own(width):
    number = np.arange(-500, 500)
    found = jax.jit(lambda x: cells(x, width))((number * width).astype(np.float32))
    np.testing.assert_array_equal(found, number)


def test_cells_collide_about_as_often_as_chance():
    """n cells thrown into R rows fill R (1 - (1 - 1/R)^n); the hash comes within 1 percent, on grids as well."""
    axis = np.arange(-16, 16)
    grid = np.stack(np.meshgrid(axis, axis, axis), -1).reshape(-1, 1, 3)
    rng = np.random.default_rng(0)
    scattered = np.unique(rng.integers(-1000, 1000, (32_768, 1, 5)), axis=0)
    bits = (np.arange(32_768)[:, None] >> np.arange(15)) & 1
    size = 65_536
    for sample in (grid, scattered, bits[:, None]):
        own = np.ones(sample.shape[1:], bool)
        row, mark = (np.asarray(hash_cells(jnp.asarray(sample, jnp.int32), own, w))[:, 0] for w in (ROW, PRINT))
        expected = size * (1 - (1 - 1 / size) ** len(sample))
        assert len(np.unique(row % size)) == pytest.approx(expected, rel=0.01)
        assert len(np.unique(row.astype(np.uint64) << 32 | mark)) == len(sample)
        same = row % 64 == mark % 64  # the two hashes know nothing of each other
        assert same.mean() == pytest.approx(1 / 64, rel=0.2)


def test_scrambling_changes_half_of_the_bits():
    """Whichever input bit flips, each output bit flips in about half of the cases."""
    x = np.random.default_rng(0).integers(0, 2**32, 4000, dtype=np.uint32)
    for bit in range(32):
        change = scramble(x) ^ scramble(x ^ np.uint32(1 << bit))
        share = ((change[:, None] >> np.arange(32, dtype=np.uint32)) & 1).mean(0)
        assert share.min() > 0.3
        assert share.max() < 0.7


def test_padding_is_not_read():
    learner = Tabular(world(), TabularConfig(), envs=1, updates=1)
    obs = jnp.asarray(experience(learner.spec).obs)
    np.testing.assert_array_equal(learner.rows(obs), learner.rows(obs.at[:, :, 2, 1].set(7.0)))
    assert (learner.rows(obs) != learner.rows(obs.at[:, :, 0, 1].set(7.0)))[..., 0].all()


def test_illegal_actions_are_never_taken():
    learner = Tabular(world(), TabularConfig(bin_width=0.5), envs=1, updates=1)
    rng = np.random.default_rng(0)
    legal = rng.random((100_000, 3, 3)) < 0.4
    legal[..., 2, 2] = False
    legal[..., 0] |= ~legal[..., :2].any(-1)
    obs = jnp.asarray(rng.uniform(-2, 2, (100_000, 3, 2)), jnp.float32)
    values = jnp.asarray(rng.integers(-1, 2, learner.init(jax.random.key(0)).values.shape), jnp.float32)
    held = np.where(legal, values[learner.table, learner.rows(obs)], -np.inf)
    for progress in (0.0, 0.5):
        params = {"values": values, "progress": jnp.float32(progress)}
        for explore in (True, False):
            seen = Observation(obs, jnp.asarray(legal))
            action, _, _ = learner.act(params, seen, (), jax.random.key(1), explore)
            action = np.asarray(action)
            assert np.take_along_axis(legal, action[..., None], -1).all()
            unmasked = np.asarray(learner.act(params, Observation(obs), (), jax.random.key(1), explore)[0])
            assert (unmasked.max(0) == np.array(ACTIONS) - 1).all()
    np.testing.assert_array_equal(action, held.argmax(-1))  # greedy: the lowest of the best


def test_exploring_breaks_ties_at_random_and_follows_its_schedule():
    spec = world((1,), (4,))
    learner = Tabular(spec, TabularConfig(explore_start=0.6, explore_end=0.2), envs=1, updates=1)
    values = learner.init(jax.random.key(0)).values.at[..., 1:3].set(1.0)
    seen = Observation(jnp.zeros((50_000, 1, 1)))
    for progress, epsilon in ((0.0, 0.6), (0.25, 0.4), (0.5, 0.2), (1.0, 0.2)):
        params = {"values": values, "progress": jnp.float32(progress)}
        action, _, _ = learner.act(params, seen, (), jax.random.key(1), True)
        share = np.bincount(np.asarray(action).ravel(), minlength=4) / 50_000
        worse, tied = epsilon / 4, epsilon / 4 + (1 - epsilon) / 2
        np.testing.assert_allclose(share, [worse, tied, tied, worse], atol=0.01)


def test_impossible_settings_are_refused():
    for size in (0, 1000, 2**31):
        with pytest.raises(UsageError, match=f"power of two between 1 and 2\\^30, not {size}\\."):
            make_config("iql_tabular", {"table_size": size})
    with pytest.raises(UsageError, match="lr must be above 0 and at most 1"):
        make_config("iql_tabular", {"lr": 1.5})
    many = EnvSpec("test", tuple(map(str, range(99))), (Box((1,)),) * 99, (Discrete(99),) * 99, max_steps=3)
    config = make_config("iql_tabular", {"table_size": 2**30})
    with pytest.raises(UsageError, match="choose a smaller table_size"):
        make_algorithm("iql_tabular", many, config, envs=4, updates=10)
    with pytest.raises(UsageError, match="use ippo"):
        flockrl.train("iql_tabular", "classic/pendulum", steps=10)


def test_the_note_says_the_memory():
    algorithm = make_algorithm("iql_tabular", world(), make_config("iql_tabular", {}), envs=4, updates=10)
    assert algorithm.note == "gamma 0.95, 3 tables of 65,536 rows, 3.1 MB"


class StopAt(flockrl.Callback):
    """Presses Ctrl-C at a step."""

    def __init__(self, step):
        self.step = step

    def on_iteration(self, moment):
        if moment.step == self.step and moment.seed == 0:
            os.kill(os.getpid(), signal.SIGINT)


def test_resuming_is_exact(tmp_path):
    settings = {
        "steps": 640, "envs": 8, "rollout_steps": 4, "bin_width": 0.5, "table_size": 256, "seeds": 2, "eval_every": 160,
        "eval_episodes": 4, "checkpoint_every": 160,
    }  # fmt: skip

    def outcome(path):
        run = flockrl.Run(path)
        rows = [{k: v for k, v in r.items() if k not in ("seconds", "steps_per_second")} for r in read_metrics(path)]
        checkpoints = Checkpoints(path / "checkpoints")
        state, _ = checkpoints.restore(run.program.shape(), checkpoints.steps()[-1])
        checkpoints.close()
        return rows, state

    flockrl.train("iql_tabular", "mpe/simple_spread", out=tmp_path / "whole", **settings)
    with pytest.raises(Interrupted, match="flockrl resume"):
        flockrl.train("iql_tabular", "mpe/simple_spread", out=tmp_path / "cut", callbacks=[StopAt(288)], **settings)
    flockrl.resume(tmp_path / "cut")
    for seed in ("seed_0", "seed_1"):
        (rows, state), (want_rows, want) = outcome(tmp_path / "cut" / seed), outcome(tmp_path / "whole" / seed)
        assert rows == want_rows
        assert 0 < rows[-1]["collisions"] < 1
        jax.tree.map(np.testing.assert_array_equal, state, want)
