"""The joint replay: what is written comes back, n-step windows respect episode ends, sampling is as promised."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flockrl.core.types import Box, Discrete, EnvSpec, Trajectory
from flockrl.replay.ring import add, draw, gather, make_replay, prioritize, replay_bytes, stretch, typical

N, B, T, L = 2, 3, 4, 12
SPEC = EnvSpec("test", ("a_0", "a_1"), (Box((1,)),) * N, (Discrete(3),) * N, max_steps=5)


def rollout(start, first=(), terminated=(), truncated=()):
    """T steps of B environments whose observation and reward count up: time t shows 10 t + env, earns t."""
    t = np.arange(start, start + T)
    obs = np.broadcast_to((10 * t[:, None] + np.arange(B))[:, :, None, None], (T, B, N, 1)).astype(np.float32)
    flags = {}
    for name, places in (("first", first), ("terminated", terminated), ("truncated", truncated)):
        flag = np.zeros((T, B) if name == "first" else (T, B, N), bool)
        for place in places:
            flag[(place[0] - start, *place[1:])] = True
        flags[name] = jnp.asarray(flag)
    return Trajectory(
        obs=jnp.asarray(obs), next_obs=jnp.asarray(obs + 5), action=jnp.zeros((T, B, N), jnp.int32),
        reward=jnp.broadcast_to(jnp.asarray(t, jnp.float32)[:, None, None], (T, B, N)), **flags,
    )  # fmt: skip


def filled(count, prioritized=False, **events):
    replay = make_replay(SPEC, L, B, prioritized)
    for i in range(count):
        inside = {k: [p for p in v if i * T <= p[0] < (i + 1) * T] for k, v in events.items()}
        replay = jax.jit(add)(replay, rollout(i * T, **inside))
    return replay


def read(replay, t, env, n_step=1, gamma=0.9):
    place = jnp.array([t % L]), jnp.array([env])
    return gather(replay, *place, jnp.ones(1), n_step, gamma)


def test_the_ring_overwrites_the_oldest():
    replay = filled(4)
    assert (int(replay.head), int(replay.filled)) == (T, L)
    seen = np.unique(np.asarray(replay.rows.obs[:, 0, 0, 0]) // 10)
    assert seen.tolist() == list(range(4, 16))


def test_a_sample_is_of_one_moment():
    batch = read(filled(2), 5, 2)
    assert batch.obs[0, :, 0].tolist() == [52, 52]
    assert batch.next_obs[0, :, 0].tolist() == [57, 57]
    assert batch.reward[0].tolist() == [5, 5]
    assert np.asarray(batch.discount) == pytest.approx(0.9)


def test_n_step_sums_rewards_and_bootstraps_from_the_last_step():
    batch = read(filled(2), 2, 0, n_step=3)
    assert float(batch.reward[0, 0]) == pytest.approx(2 + 0.9 * 3 + 0.81 * 4)
    assert float(batch.discount[0, 0]) == pytest.approx(0.9**3)
    assert float(batch.next_obs[0, 0, 0]) == 45


def test_n_step_stops_where_an_episode_was_cut_and_uses_its_final_observation():
    batch = read(filled(2, truncated=[(3, 0, 0), (3, 0, 1)], first=[(4, 0)]), 2, 0, n_step=3)
    assert np.asarray(batch.reward[0]) == pytest.approx(2 + 0.9 * 3)
    assert np.asarray(batch.discount[0]) == pytest.approx(0.9**2)
    assert float(batch.next_obs[0, 0, 0]) == 35  # the real final observation of step 3, not the next episode's


def test_termination_cuts_the_bootstrap_of_its_agent_only():
    batch = read(filled(2, terminated=[(3, 0, 1)]), 2, 0, n_step=3)
    assert np.asarray(batch.reward[0]) == pytest.approx([2 + 0.9 * 3 + 0.81 * 4, 2 + 0.9 * 3])
    assert np.asarray(batch.discount[0]) == pytest.approx([0.9**3, 0])


def test_the_whole_team_terminates_and_the_next_episode_stays_out():
    replay = filled(2, terminated=[(3, 0, 0), (3, 0, 1)], first=[(4, 0)])
    batch = read(replay, 3, 0, n_step=4)
    assert np.asarray(batch.reward[0]) == pytest.approx([3, 3])
    assert np.asarray(batch.discount[0]) == pytest.approx([0, 0])


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("rollouts", [1, 2, 4, 5])
def test_draws_never_cross_the_head_and_reach_everything_else(prioritized, n_step, rollouts):
    replay = filled(rollouts, prioritized)
    row, env, weight = draw(replay, jax.random.key(0), 3000, n_step, 0.4)
    times = np.asarray(replay.rows.reward[row, env, 0])
    newest = rollouts * T
    allowed = np.arange(max(0, newest - L), newest - n_step + 1)
    assert set(times.tolist()) == set(allowed.tolist())
    assert set(np.asarray(env).tolist()) == {0, 1, 2}
    counts = np.bincount((times - allowed[0]).astype(int) * B + np.asarray(env), minlength=len(allowed) * B)
    expected = 3000 / (len(allowed) * B)
    assert np.abs(counts - expected).max() < 6 * expected**0.5
    np.testing.assert_allclose(weight, 1.0, rtol=1e-5)


def test_priorities_shape_the_sampling_and_weights_undo_it():
    replay = filled(3, True)
    error = np.abs(np.random.default_rng(0).normal(size=(L, B))) + 0.1
    places = np.meshgrid(np.arange(L), np.arange(B), indexing="ij")
    batch = gather(replay, *(jnp.asarray(p.ravel()) for p in places), jnp.ones(L * B), 1, 0.9)
    td = typical(jnp.asarray(np.repeat(error.ravel()[:, None], N, 1), jnp.float32), batch.alive)
    replay = replay._replace(priority=prioritize(replay.priority, batch.row, batch.env, td, alpha=0.6))
    np.testing.assert_allclose(replay.priority, error**0.6, rtol=1e-4)
    row, env, weight = draw(replay, jax.random.key(1), 40_000, 1, 1.0)
    chance = error**0.6 / (error**0.6).sum()
    counts = np.zeros((L, B))
    np.add.at(counts, (np.asarray(row), np.asarray(env)), 1)
    np.testing.assert_allclose(counts / 40_000, chance, atol=0.002)
    # With beta = 1, weighted counts are uniform again.
    total = np.zeros((L, B))
    np.add.at(total, (np.asarray(row), np.asarray(env)), np.asarray(weight))
    np.testing.assert_allclose(total / total.mean(), 1.0, atol=0.12)


def test_dead_agents_do_not_count_in_priorities():
    replay = filled(3, True)
    batch = read(replay, 5, 1)._replace(alive=jnp.array([[1.0, 0.0]]))
    error = typical(jnp.array([[2.0, 50.0]]), batch.alive)
    new = prioritize(replay.priority, batch.row, batch.env, error, alpha=1.0)
    assert float(new[5, 1]) == pytest.approx(2.0, rel=1e-4)


def test_the_error_of_a_stretch_mixes_the_largest_and_the_mean_of_its_living_steps():
    error = jnp.array([[[1.0, -3.0]], [[5.0, 7.0]]])  # [2 steps, 1 sample, 2 agents]
    alive = jnp.array([[[1.0, 1.0]], [[1.0, 0.0]]])
    assert np.asarray(typical(error, alive)) == pytest.approx([0.9 * 5.0 + 0.1 * 3.0])
    assert np.asarray(typical(error[:1], alive[:1])) == pytest.approx([2.0])


def test_sequences_begin_with_rollouts_and_with_their_memory():
    """Three rollouts of T steps in a ring of two; each remembers its number."""
    memory = (jnp.zeros((B, N, 2)),)
    replay = make_replay(SPEC, 2 * T, B, True, memory, T)
    for number in range(3):
        held = jax.tree.map(lambda h, number=number: h + number + 1, memory)
        replay = add(replay, rollout(T * number)._replace(memory=held))
    assert replay.stride == T
    for prioritized in (True, False):
        drawn = replay if prioritized else replay._replace(priority=())
        row, env, weight = draw(drawn, jax.random.key(0), 64, T + 1, 1.0)
        assert set(np.asarray(row).tolist()) == {T}  # nothing follows the newest rollout, in row 0
        assert len(set(np.asarray(env).tolist())) == B
        assert np.asarray(weight) == pytest.approx(np.ones(64))
        row, _, _ = draw(drawn, jax.random.key(0), 64, T, 1.0)
        assert set(np.asarray(row).tolist()) == {0, T}
    held = stretch(replay, jnp.array([0, T]), jnp.array([1, 2]), T).memory
    assert np.asarray(held[0])[:, 0, 0].tolist() == [3.0, 2.0]


def test_a_stretch_follows_its_environment_across_the_rings_end():
    replay = filled(4)  # times 4 to 15, of which 12 to 15 stand in rows 0 to 3
    steps = stretch(replay, jnp.array([10, 5]), jnp.array([1, 2]), 4)
    assert steps.obs.shape == (4, 2, N, 1)
    assert steps.obs[:, 0, 0, 0].tolist() == [101, 111, 121, 131]
    assert steps.obs[:, 1, 0, 0].tolist() == [52, 62, 72, 82]


def test_memory_is_counted_to_the_byte():
    replay = make_replay(SPEC, L, B, True)
    assert replay_bytes(lambda: make_replay(SPEC, L, B, True)) == sum(x.nbytes for x in jax.tree.leaves(replay))
