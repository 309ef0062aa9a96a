"""Homes and jobs: energy is conserved, the linear program is never beaten, assignments are the best there are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flockrl.core.errors import UsageError
from flockrl.envs import check, make
from flockrl.envs.grid.bound import plan
from flockrl.envs.tasks.assignment import auction, best
from flockrl.training.scripted import Scripted

KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def homes():
    env = make("grid/homes:homes=2,days=1")
    return env, jax.jit(env.step), jax.jit(env.reset)(KEY)[0]


@pytest.fixture(scope="module")
def shop():
    env = make("tasks/allocation:workers=2,jobs=2,skills=2,rate=0")
    return env, jax.jit(env.step), jax.jit(env.reset)(KEY)[0]


def test_an_hour_by_hand(homes):
    _, step, start = homes
    profiles = start.profiles._replace(
        load=jnp.ones((24, 2)), solar=jnp.zeros((24, 2)).at[0, 1].set(8.0), price=jnp.full(24, 0.2)
    )
    state = start._replace(profiles=profiles, energy=jnp.array([1.0, 8.0]), owed=jnp.array([5.0, 1.0]))
    after, _, reward, *_ = step(KEY, state, jnp.array([[-1.0, 1.0], [1.0, 1.0]]))
    # Home 0 can take 0.95 kW out, needs 1 + 2; home 1 stores 2 / 0.95 kW, needs 1 + 1, has 8.
    net = [3 - 0.95, 2 + 2 / 0.95 - 8]
    np.testing.assert_allclose(after.net, net, rtol=1e-5)
    np.testing.assert_allclose(after.energy, [0, 10], atol=1e-5)
    np.testing.assert_allclose(after.owed, [3, 0], atol=1e-5)
    np.testing.assert_allclose(reward, [-0.2 * net[0], -0.08 * net[1]], rtol=1e-4)  # together they draw nothing
    late = state._replace(t=jnp.int32(22), owed=jnp.array([3.5, 1.0]))
    after, *_ = step(KEY, late, jnp.array([[0.0, -1.0], [0.0, -1.0]]))
    np.testing.assert_allclose(after.owed, [2, 1], atol=1e-5)  # the first must run, the second can wait
    assert float(after.peak) == pytest.approx(1 + 1.5 + 1)


def test_a_set_point_is_met_as_far_as_the_battery_can(homes):
    plain, _, start = homes
    env = make("grid/homes:homes=2,days=1,control=net,reward=whole")
    step = jax.jit(env.step)
    profiles = start.profiles._replace(
        load=jnp.ones((24, 2)), solar=jnp.zeros((24, 2)).at[0, 1].set(8.0), price=jnp.full(24, 0.2)
    )
    state = start._replace(profiles=profiles, energy=jnp.array([5.0, 8.0]), owed=jnp.array([5.0, 1.0]))
    after, _, reward, *_ = step(KEY, state, jnp.array([[0.1, -1.0], [0.0, 1.0]]))
    # Home 0 needs 1 and wants 0.5: half a kW comes out. Home 1 has 6 too much and can store 2 / 0.95 of it.
    net = [0.5, -6 + 2 / 0.95]
    np.testing.assert_allclose(after.net, net, rtol=1e-5)
    np.testing.assert_allclose(after.energy, [5 - 0.5 / 0.95, 10], atol=1e-5)
    np.testing.assert_allclose(reward, [-0.2 * net[0], -0.08 * net[1]], rtol=1e-4)
    high = state._replace(profiles=profiles._replace(solar=jnp.zeros((24, 2))))
    after, _, reward, *_ = step(KEY, high, jnp.array([[0.4, -1.0], [0.2, -1.0]]))
    np.testing.assert_allclose(reward, [-0.2 * 2 - 3, -0.2 * 1 - 3], rtol=1e-5)  # both pay for the peak of 3
    _, _, shared, *_ = jax.jit(plain.step)(KEY, high, jnp.array([[0.2, -1.0], [0.0, -1.0]]))  # the same by battery
    np.testing.assert_allclose(shared - reward, [1.5, 1.5], rtol=1e-5)
    for name in ("rules", "idle"):  # whatever the actions mean, a policy does the same
        one, other = (Scripted(name, f"grid/homes:{x}").evaluate(3).mean for x in ("control=net", "control=battery"))
        assert one == pytest.approx(other, rel=1e-4)


def test_draws_store_what_they_could_sell(homes):
    _, _, start = homes
    env = make("grid/homes:homes=2,days=1,control=draw,setpoint=2")
    profiles = start.profiles._replace(
        load=jnp.ones((24, 2)), solar=jnp.zeros((24, 2)).at[0, 1].set(8.0), price=jnp.full(24, 0.2)
    )
    state = start._replace(profiles=profiles, energy=jnp.array([5.0, 2.0]), owed=jnp.array([5.0, 1.0]))
    after, *_ = jax.jit(env.step)(KEY, state, jnp.array([[0.5, -1.0], [-1.0, -1.0]]))
    # Home 0 needs 1 and draws 1.5. Home 1 has 7 too much and stores the 5 that the battery takes, whatever it asks for.
    np.testing.assert_allclose(after.net, [1.5, -2.0], rtol=1e-5)
    np.testing.assert_allclose(after.energy, [5 + 0.5 * 0.95, 2 + 5 * 0.95], atol=1e-5)
    with pytest.raises(UsageError, match="setpoint is for"):
        make("grid/homes:setpoint=2")


def test_forecasts_tell_of_the_rest_of_the_day_and_of_the_next_one():
    env = make("grid/homes:homes=2")
    state, _ = jax.jit(env.reset)(KEY)
    load, solar = np.asarray(state.profiles.load), np.asarray(state.profiles.solar)
    for t in (0, 10, 23, 24, 40, 48):
        rest, then = slice(t + 1, 24 * (t // 24 + 1)), slice(24 * (t // 24 + 1), 24 * (t // 24 + 2))
        right = [x[part].sum(0) / 30 for x in (load, solar) for part in (rest, then)]
        seen = env._observe(state._replace(t=jnp.int32(t))).obs[:, -4:]
        np.testing.assert_allclose(seen, np.stack(right, -1), atol=1e-5)


def test_energy_is_conserved_and_no_random_play_beats_the_program(homes):
    env, step, _ = homes
    for seed in range(3):
        state, _ = env.reset(jax.random.key(seed))
        bound, paid = plan(env, state)[0], 0.0
        flexible = np.asarray(state.profiles.flexible[0])
        bought = stored = 0.0
        first = np.asarray(state.energy)
        rng = np.random.default_rng(seed)
        lost = np.zeros(2)
        for t in range(24):
            before = state
            action = jnp.asarray(rng.uniform(-1, 1, (2, 2)), jnp.float32)
            state, _, reward, *_ = step(KEY, state, action)
            paid -= float(reward.sum())
            change = np.asarray(state.energy - before.energy)
            lost += np.where(change > 0, change * (1 / 0.95 - 1), -change * 0.05)
            bought = bought + np.asarray(state.net)
            stored = stored + np.asarray(state.profiles.load[t] - state.profiles.solar[t])
        # What came from the grid went into load, flexible load, the battery and its losses.
        np.testing.assert_allclose(bought, stored + flexible + np.asarray(state.energy) - first + lost, atol=1e-3)
        assert paid >= bound - 1e-3


@pytest.mark.slow
def test_foresight_pays_the_bound_and_rules_pay_more():
    env = make("grid/homes")
    found = {p: Scripted(p, "grid/homes").evaluate(4) for p in ("foresight", "rules", "idle")}
    reset_key, _ = jax.random.split(jax.random.key(0))
    states, _ = jax.vmap(env.reset)(jax.random.split(reset_key, 4))
    bounds = [plan(env, jax.tree.map(lambda x, i=i: np.asarray(x[i]), states))[0] for i in range(4)]
    np.testing.assert_allclose(-found["foresight"].returns.sum(1), bounds, atol=2e-3)
    assert (found["rules"].returns.sum(1) < -np.array(bounds)).all()
    assert found["idle"].mean < found["rules"].mean
    np.testing.assert_allclose(found["idle"].measures["relative"], 1, rtol=1e-4)


def test_a_job_is_taken_by_the_fastest_and_in_time(shop):
    env, step, start = shop
    state = start._replace(
        speed=jnp.array([[2, 1], [1, 0]]), waits=jnp.array([True, True]), skill=jnp.array([0, 1]),
        work=jnp.array([5, 4]), due=jnp.array([5, 3]),
    )  # fmt: skip
    legal = env._observe(state).avail.tolist()
    assert legal == [[True, True, False], [True, True, False]]  # the second job takes worker 0 four steps, too many
    after, seen, reward, *_ = step(KEY, state, jnp.array([1, 1]))
    assert reward.tolist() == [1, 0]
    assert after.busy.tolist() == [2, 0]  # 5 units at speed 2 take 3 steps, one of which is over
    assert after.waits.tolist() == [False, True]
    assert seen.avail.tolist() == [[True, False, False]] * 2
    after, *_ = step(KEY, after, jnp.array([0, 0]))
    assert (int(after.done), int(after.missed)) == (1, 1)  # even at speed 2 the second job needs 2 steps of 1


def test_assignments_are_the_best_there_are():
    from scipy.optimize import linear_sum_assignment

    rng, run = np.random.default_rng(0), {name: jax.jit(f) for name, f in (("best", best), ("auction", auction))}
    for _ in range(20):
        benefit = np.maximum(rng.integers(-4, 10, (4, 6)), 0).astype(np.float32)
        rows, columns = linear_sum_assignment(-benefit)
        for name, function in run.items():
            jobs = np.asarray(function(jnp.asarray(benefit)))
            real = jobs[jobs >= 0]
            assert len(set(real)) == len(real)
            gained = benefit[np.flatnonzero(jobs >= 0), real].sum()
            assert gained == pytest.approx(benefit[rows, columns].sum()), name


@pytest.mark.slow
def test_assignment_is_ahead():
    done = {
        p: Scripted(p, "tasks/allocation").evaluate(100).mean
        for p in ("assigned", "auction", "quickest", "first", "random")
    }
    assert min(done["assigned"], done["auction"]) > done["quickest"] > done["first"] > done["random"]


@pytest.mark.slow
def test_the_contract_with_other_settings():
    for name in ("grid/homes:homes=1,days=1", "tasks/allocation:workers=1,jobs=1,skills=1,steps=10"):
        check(make(name))


def test_wrong_settings_are_named():
    for text, words in (("grid/homes:days=0", "days must be a whole number from 1"),
                        ("grid/homes:efficiency=0", "efficiency must be from 0.1"),
                        ("tasks/allocation:rate=-1", "rate must be from 0 to 1")):  # fmt: skip
        with pytest.raises(UsageError, match=words):
            make(text)
