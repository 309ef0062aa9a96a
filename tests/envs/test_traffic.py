"""Traffic: junctions and vehicles by hand, conservation of vehicles, and the classical controllers in their order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flockrl.core.errors import UsageError
from flockrl.envs import check, make
from flockrl.envs.traffic.grid import LEFT, RIGHT, STRAIGHT
from flockrl.envs.traffic.plan import fixed_plan, phase_table, poisson_table
from flockrl.envs.traffic.platoon import optimal_velocity
from flockrl.training.scripted import Scripted

KEY = jax.random.key(0)
NORTH, EAST, SOUTH, WEST = range(4)


@pytest.fixture(scope="module")
def quiet():
    """Two junctions side by side without arrivals, and their step, compiled."""
    env = make("traffic/grid:rows=1,columns=2,demand=0,cross=0,turn_left=0,turn_right=0,capacity=4,least=2,reward=own")
    return env, jax.jit(env.step)


def with_queue(env, *placed, **more):
    """A state with queues: (column, approach, movement, vehicles)."""
    state, _ = jax.jit(env.reset)(KEY)
    queue = np.array(state.queue)
    for column, approach, movement, count in placed:
        queue[0, column, approach, movement] = count
    return state._replace(queue=jnp.asarray(queue), **more)


def test_near_pays_for_oneself_and_those_beside_one():
    env = make("traffic/grid:rows=1,columns=3,demand=0,cross=0,reward=near")
    state, _ = env.reset(KEY)
    paid = env._reward(state, jnp.array([[6, 0, 3]]))
    np.testing.assert_allclose(paid, -np.array([6 / 2, 9 / 3, 3 / 2]) * 5 / 60, rtol=1e-5)


def test_green_serves_at_saturation_and_vehicles_go_where_they_turn(quiet):
    env, step = quiet
    # From the west of the left junction: straight on leads to the right one, left to the north, right to the south.
    state = with_queue(env, (0, WEST, STRAIGHT, 3), (0, WEST, RIGHT, 1), phase=jnp.full((1, 2), 2))
    after, seen, reward, *_ = step(KEY, state, jnp.array([2, 2]))
    assert after.queue[0, 0, WEST].tolist() == [0, 1, 0]
    assert after.queue[0, 1, WEST].tolist() == [0, 2, 0]
    assert int(after.left) == 1
    np.testing.assert_allclose(reward, [-1 * 5 / 60, -2 * 5 / 60])
    np.testing.assert_allclose(seen.obs[0, 5:17].reshape(4, 3)[WEST], [0, 0.1, 0])
    np.testing.assert_allclose(seen.obs[0, -4:], [0, 0.5, 0, 0])  # the street to the east is half full
    after, *_ = step(KEY, with_queue(env, (0, WEST, LEFT, 2), phase=jnp.full((1, 2), 3)), jnp.array([3, 3]))
    assert (int(after.left), int(after.queue.sum())) == (2, 0)


def test_a_full_street_spills_back(quiet):
    env, step = quiet
    state = with_queue(env, (0, WEST, STRAIGHT, 3), (1, WEST, STRAIGHT, 3), phase=jnp.array([[2, 0]]))
    after, *_ = step(KEY, state, jnp.array([2, 0]))
    assert after.queue[0, :, WEST, STRAIGHT].tolist() == [2, 4]  # room for one alone
    assert int(after.blocked) == 1


def test_switching_costs_time_and_holds(quiet):
    env, step = quiet
    state, _ = jax.jit(env.reset)(KEY)
    state = with_queue(env, (0, WEST, STRAIGHT, 4))
    told, waits = [], []
    for _ in range(4):
        state, seen, *_ = step(KEY, state, jnp.array([2, 0]))
        told.append(seen.avail[0].tolist())
        waits.append(int(state.queue[0, 0].sum()))
    assert waits == [4, 2, 0, 0]  # the first step is lost
    present = [False, False, True, False]
    assert told == [present, present, [True] * 4, [True] * 4]  # one step lost, two of green


def test_tables():
    table = poisson_table(np.array([0.7, 0.0]))
    assert table[0, 2] == pytest.approx(np.exp(-0.7) * (1 + 0.7 + 0.245), rel=1e-5)
    assert (table[1] == 1).all()
    green = phase_table(4)
    assert (green.sum(0) == 1).all()  # every movement has one phase
    plan = fixed_plan(2 * green, np.array([[0.1, 0.3, 0.1], [0.2, 0.6, 0.2]] * 2), 1, 2)
    # Loads .15, .05, .3, .1; L = 4, Y = .6: a cycle of 11 / .4 = 27.5 steps with 23.5 of green.
    assert np.bincount(plan).tolist() == [6 + 1, 2 + 1, 12 + 1, 4 + 1]


@pytest.mark.parametrize("settings", ["", "phases=2,capacity=8,demand=1500,saturation=3,rows=2,columns=4"])
def test_vehicles_are_conserved_and_streets_never_overflow(settings):
    env = make(f"traffic/grid:{settings or 'capacity=9'}")

    @jax.jit
    def play(key):
        def step(carry, key):
            state, seen = carry
            action = jax.random.randint(key, (env.n,), 0, env.phases)
            state, seen, *_ = env.step(key, state, action)
            inside = state.queue.sum() + state.outside.sum()
            return (state, seen), (state.arrived - state.left - inside, state.queue.sum(-1).max(), state.queue.min())

        return jax.lax.scan(step, env.reset(key), jax.random.split(key, 240))

    (state, _), (lost, fullest, least) = play(KEY)
    assert int(state.left) > 100
    assert not np.asarray(lost).any()
    assert int(np.max(fullest)) <= env.capacity
    assert int(np.min(least)) >= 0


@pytest.mark.slow
def test_max_pressure_is_ahead_of_fixed_time_and_greedy():
    delay = {
        p: Scripted(p, "traffic/grid").evaluate(100).measures["delay"] for p in ("fixed_time", "greedy", "max_pressure")
    }
    for other in ("fixed_time", "greedy"):
        saved = delay[other] - delay["max_pressure"]  # in the same episodes
        assert saved.mean() > 2 * saved.std() / np.sqrt(len(saved)), other


def test_a_platoon_follows_by_hand():
    env = make("traffic/platoon:vehicles=2")
    assert optimal_velocity(jnp.array([4.0, 20.0, 40.0])).tolist() == pytest.approx([0, 15, 30])
    state, _ = jax.jit(env.reset)(KEY)
    gap = float(state.gap[0])
    assert 30 <= gap <= 50
    step = jax.jit(env.step)
    after, _, reward, *_ = step(KEY, state, jnp.array([3, 0]))
    want = 30 / 2 * (1 - np.cos(np.pi * min((gap - 5) / 30, 1)))
    push = min(0.5 * (want - 15), 2.5)
    assert after.speed.tolist() == pytest.approx([15 + 0.1 * push, 15])
    assert after.gap.tolist() == pytest.approx([gap - 0.5 * 0.1 * 0.1 * push, 20 + 0.5 * 0.1 * 0.1 * push])
    cost = (after.gap[0] - 20) ** 2 + (0.1 * push) ** 2 + 0.1 * push**2
    assert float(reward[0]) == pytest.approx(-float(cost), rel=1e-4)
    crash = state._replace(gap=jnp.array([0.5, 20.0]))
    after, _, reward, *_ = step(KEY, crash, jnp.array([0, 0]))
    assert reward.tolist() == [-1000, -1000]
    again, _, reward, *_ = step(KEY, after, jnp.array([3, 3]))
    assert (reward.tolist(), again.gap.tolist()) == ([-1000, -1000], after.gap.tolist())


@pytest.mark.slow
def test_a_platoon_by_its_models():
    """Nobody crashes; under IDM a disturbance dies out along the platoon, under OVM with these gains it grows."""
    name = "traffic/platoon:continuous_actions=true"
    ovm, idm = (Scripted(policy, name).evaluate(50) for policy in ("ovm", "idm"))
    assert ovm.measures["success"].all()
    assert idm.measures["success"].all()
    assert ovm.per_agent[-1] < ovm.per_agent[1]
    assert (np.diff(idm.per_agent[1:]) > 0).all()
    discrete = Scripted("ovm", "traffic/platoon").evaluate(50)
    assert discrete.mean == pytest.approx(ovm.mean, rel=1e-4)


@pytest.mark.slow
def test_the_contract_with_other_settings():
    for name in (
        "grid:rows=1,columns=1,phases=2,steps=20",
        "platoon:scenario=slowdown,continuous_actions=true,steps=20",
    ):
        check(make(f"traffic/{name}"))


def test_wrong_settings_are_named():
    for text, words in (
        ("grid:phases=3", "no phases=3"), ("grid:turn_left=0.7,turn_right=0.7", "must not exceed 1"),
        ("grid:capacity=3", "capacity must be a whole number from 4"),
        ("platoon:scenario=catchp", "Did you mean catchup"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=words):
            make(f"traffic/{text}")
