"""Fleets: flight by hand, batteries, centroids, parcels, and the classical controllers in their order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flockrl.core.errors import UsageError
from flockrl.envs import check, make
from flockrl.envs.fleet.coverage import LINE, POINTS
from flockrl.envs.fleet.delivery import CARRIED, FREE, WAITS, potential
from flockrl.envs.fleet.flight import neighbours
from flockrl.training.scripted import Scripted

KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def cover():
    env = make("fleet/coverage:drones=3,hotspots=1,zones=1,radio=300,sensing=200,battery=100")
    return env, jax.jit(env.step), jax.jit(env.reset)(KEY)[0]


@pytest.fixture(scope="module")
def deliver():
    env = make("fleet/delivery:drones=2,orders=2,rate=0")
    return env, jax.jit(env.step), jax.jit(env.reset)(KEY)[0]


def placed(state, pos, **more):
    return state._replace(air=state.air._replace(pos=jnp.array(pos, jnp.float32), **more))


def test_thrust_drag_and_battery(cover):
    _, step, start = cover
    state = placed(start, [[100, 100], [500, 510], [900, 900]])
    after, _, _, terminated, _ = step(KEY, state, jnp.array([[3.0, 4.0], [0, 0], [0, 0]]))
    # Thrust is cut to length 1: 4 m/s² for 2 s from rest; drag begins with speed.
    np.testing.assert_allclose(after.air.vel[0], [4.8, 6.4], rtol=1e-5)
    np.testing.assert_allclose(after.air.pos[0], [109.6, 112.8], rtol=1e-5)
    # Full thrust takes 2 s per second and hovering 1; the second drone is on the pad, full already.
    np.testing.assert_allclose(after.air.charge, [96, 100, 98])
    assert not terminated.any()
    fast = state._replace(air=state.air._replace(vel=jnp.full((3, 2), 10.0), mean=jnp.array([5.0, 0.0])))
    after, *_ = step(KEY, fast, jnp.zeros((3, 2)))
    np.testing.assert_allclose(after.air.vel[0], [10 - 2 * 0.2 * 5, 10 - 2 * 0.2 * 10], rtol=1e-5)


def test_a_drone_without_battery_is_down_and_counts_no_more(cover):
    env, step, start = cover
    state = placed(start, [[100, 100], [900, 100], [500, 900]], charge=jnp.array([2.0, 50.0, 50.0]))
    after, seen, reward, terminated, _ = step(KEY, state, jnp.zeros((3, 2)))
    assert terminated.tolist() == [True, False, False]
    assert seen.alive.tolist() == [False, True, True]
    assert not seen.obs[0].any()
    assert int(env.measures(after)["down"]) == 1
    alone = ((POINTS[:, None] - np.asarray(after.air.pos)[1:]) ** 2).sum(-1).min(1) @ np.asarray(after.density) / 1e6
    np.testing.assert_allclose(reward[1], -10 * alone, rtol=1e-4)
    later, *_ = step(KEY, after, jnp.ones((3, 2)))
    np.testing.assert_array_equal(later.air.pos[0], after.air.pos[0])


def test_near_misses_zones_radio_and_sensing(cover):
    env, step, start = cover
    middle = np.asarray(start.air.zones[0])
    state = placed(start, middle + np.array([[0, 0], [10, 0], [250, 0]]))
    after, _, reward, *_ = step(KEY, state, jnp.zeros((3, 2)))
    assert int(after.air.near) == 1
    assert int(after.air.inside) == 2
    np.testing.assert_allclose(reward - reward.max(), [-0.2, -0.2, 0], atol=1e-5)
    heard = neighbours(env.flight, after.air)
    assert heard.tolist() == [[False, True, True], [True, False, True], [True, True, False]]
    far = placed(after, np.asarray([[0, 0], [0, 299], [0, 700]]), charge=jnp.array([50.0, 50.0, 50.0]))
    assert neighbours(env.flight, far.air).tolist() == [[False, True, False], [True, False, False], [False] * 3]
    # The last four numbers are the hotspot: seen within 200 m alone.
    close = placed(state, [start.spots[0] + 10, start.spots[0] + 199, start.spots[0] - 300])
    spot = env._observe(close).obs[:, -4:]
    np.testing.assert_allclose(spot[0], [-0.01, -0.01, 1, 1], atol=1e-5)
    assert not spot[1:].any()  # 199 m in both directions is too far


def test_an_observation_is_a_set_of_drones_zones_and_hotspots(cover):
    env, _, start = cover
    state = placed(start, [[200, 300], [400, 300], [800, 900]])
    obs, entities = np.asarray(env._observe(state).obs), env.spec.entities[0]
    drone, zone, spot = entities.kinds
    # Each sees the next one first: 0 hears 1 (200 m away), and 1 hears 0 last.
    np.testing.assert_allclose(obs[0, drone.fields[0][0] :][:4], [0.2, 0, 0, 0], atol=1e-6)
    np.testing.assert_allclose(obs[1, drone.fields[0][0] :][:4], [0, 0, -0.2, 0], atol=1e-6)
    assert obs[:, drone.there : drone.there + 2].tolist() == [[1, 0], [0, 1], [0, 0]]
    way = (np.asarray(state.air.zones[0]) - [800, 900]) / 1000
    np.testing.assert_allclose(obs[2, zone.fields[0][0] :][:2], way, atol=1e-5)
    assert entities.end == spot.there + 1 == env.spec.obs_size
    np.testing.assert_allclose(env.distances(state)[0], [0, 0.2, np.hypot(0.6, 0.6)], rtol=1e-5)


def test_a_share_of_the_drones_fails_within_an_episode():
    env = make("fleet/coverage:drones=100,failures=0.3,steps=20")
    step, state = jax.jit(env.step), env.reset(KEY)[0]
    for t in range(20):
        state, *_ = step(jax.random.fold_in(KEY, t), state, jnp.zeros((100, 2)))
    assert 15 <= int((~state.air.alive).sum()) <= 45  # 30 are expected, with a deviation of 4.6


def cell_by_hand(points, pos, i, rivals, density):
    """Way (km) to the centre of mass of what is nearer to drone i than to its rivals, and its mass."""
    far = ((points[:, None] - pos) ** 2).sum(-1)
    mine = (far[:, [i]] <= far[:, rivals]).all(1)
    mass = density[mine].sum()
    return [*((points[mine] * density[mine, None]).sum(0) / mass - pos[i]) / 1000, mass]


def test_cells_are_those_of_voronoi_among_drones_that_are_heard_under_a_density_that_is_seen(cover):
    env, _, start = cover
    state = placed(start, [[200, 310], [450, 300], [800, 900]])
    state = state._replace(spots=jnp.array([[250.0, 400.0]]), weight=jnp.ones(1))  # 0 alone is within 200 m of it
    pos = np.asarray(state.air.pos)

    def densities(points):
        spot = np.exp(-((points - [250, 400]) ** 2).sum(-1) / (2 * 120**2))
        even = np.full(len(points), 0.1 / len(points))
        return even, even + 0.9 * spot / spot.sum()

    rough = np.stack(np.meshgrid(*[np.arange(8) * 125 + 62.5] * 2, indexing="ij"), -1).reshape(-1, 2)
    even, full = densities(rough)
    first = env.spec.entities[0].own[1][0]
    cell = np.asarray(jax.jit(env._observe)(state).obs)[:, first : first + 3]
    for i, (rivals, density) in enumerate([([1], full), ([0], even), ([], even)]):  # 0 and 1 hear each other
        np.testing.assert_allclose(cell[i], cell_by_hand(rough, pos, i, rivals, density), rtol=1e-3, atol=1e-5)
    full = densities(POINTS)[1]
    cells = jax.jit(lambda state: env._cells(state.air, None, state.density, LINE))  # what Lloyd's rule reads
    mass, centre = cells(state._replace(density=jnp.asarray(full, jnp.float32)))
    for i, rivals in enumerate([[1, 2], [0, 2], [0, 1]]):
        found = [*(np.asarray(centre[i]) - pos[i]) / 1000, float(mass[i, 0])]
        np.testing.assert_allclose(found, cell_by_hand(POINTS, pos, i, rivals, full), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(mass.sum(), 1, rtol=1e-5)


def test_parcels_are_taken_handed_over_and_withdrawn(deliver):
    _, step, start = deliver
    order = start._replace(
        status=jnp.array([WAITS, WAITS]), left=jnp.array([100.0, 3.0]),
        pick=jnp.array([[100.0, 100.0], [900.0, 900.0]]), drop=jnp.array([[300.0, 100.0], [100.0, 900.0]]),
    )  # fmt: skip
    still = jnp.zeros((2, 2))
    after, _, reward, *_ = step(KEY, placed(order, [[110, 100], [125, 100]]), still)
    assert after.status.tolist() == [CARRIED, WAITS]
    assert reward.tolist() == pytest.approx([0.3 - 0.1, -0.1])  # both are near; the nearer one takes it
    assert int(after.carrier[0]) == 0
    late, _, reward, *_ = step(KEY, placed(after, [[500, 100], [880, 900]]), still)
    assert late.status.tolist() == [CARRIED, FREE]  # withdrawn before it could be taken
    assert int(late.missed) == 1
    done, _, reward, *_ = step(KEY, placed(late, [[290, 100], [880, 900]]), still)
    assert (done.status.tolist(), reward.tolist()) == ([FREE, FREE], pytest.approx([0.7, 0]))
    assert (int(done.delivered), int(done.missed)) == (1, 1)


def test_a_free_drone_sees_the_nearest_parcel_and_the_nearest_that_is_its_own(deliver):
    env, _, start = deliver
    state = start._replace(
        status=jnp.array([WAITS, WAITS]), left=jnp.array([100.0, 100.0]),
        pick=jnp.array([[300.0, 100.0], [100.0, 900.0]]), drop=jnp.array([[300.0, 100.0], [100.0, 900.0]]),
    )  # fmt: skip
    first = env.spec.entities[0].own[1][0] + 4
    state = placed(state, [[100, 100], [350, 100]])  # both are nearest to the first parcel, drone 1 nearer
    ways = np.asarray(env._observe(state).obs)[:, first : first + 4]
    np.testing.assert_allclose(ways, [[0.2, 0, 0, 0.8], [-0.05, 0, -0.05, 0]], atol=1e-6)
    busy = state._replace(status=jnp.array([WAITS, CARRIED]), carrier=jnp.array([0, 1]))
    ways = np.asarray(env._observe(busy).obs)[:, first : first + 4]
    np.testing.assert_allclose(ways, [[0.2, 0, 0.2, 0], [0, 0, 0, 0]], atol=1e-6)  # who carries is no rival
    # Hints: the way to the parcel of one's own, or to the goal of the one that is carried, at (100, 900).
    np.testing.assert_allclose(potential(env.spec, env._observe(state)), [-0.8, -0.05], atol=1e-6)
    np.testing.assert_allclose(potential(env.spec, env._observe(busy)), [-0.2, 0.5 - np.hypot(0.25, 0.8)], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["coverage:wind=4,zones=2,battery=60", "delivery:wind=4,zones=2,battery=60"])
def test_batteries_lose_what_is_used_and_gain_on_the_pad_alone(name):
    env = make(f"fleet/{name},continuous_actions=false")

    @jax.jit
    def play(key):
        def one(carry, key):
            state, seen = carry
            act_key, step_key = jax.random.split(key)
            action = jax.random.randint(act_key, (env.flight.drones,), 0, 5)
            after, seen, *_ = env.step(step_key, state, action)
            used = jnp.where(action == 0, 2.0, 4.0)
            pad = jnp.sqrt(((after.air.pos - 500) ** 2).sum(-1)) < 50
            right = jnp.clip(state.air.charge - used + 20.0 * pad, 0.0, 60.0)
            return (after, seen), jnp.where(state.air.alive, after.air.charge - right, after.air.charge)

        return jax.lax.scan(one, env.reset(key), jax.random.split(key, env.spec.max_steps))[1]

    np.testing.assert_allclose(play(KEY), 0, atol=1e-4)


@pytest.mark.slow
def test_lloyd_is_ahead_and_radio_matters():
    far = {
        p: Scripted(p, "fleet/coverage").evaluate(40).mean for p in ("lloyd", "lloyd_radio", "sweep", "stay", "random")
    }
    assert far["lloyd"] == far["lloyd_radio"]  # everybody hears everybody
    assert far["lloyd"] == pytest.approx(-22.5, abs=1)
    assert far["lloyd"] > 0.5 * max(far["sweep"], far["stay"], far["random"])
    near = Scripted("lloyd_radio", "fleet/coverage:radio=150").evaluate(40).mean
    assert near < 1.1 * far["lloyd"]  # returns are negative


@pytest.mark.slow
def test_assignment_delivers_more_than_the_nearest_rule():
    found = {p: Scripted(p, "fleet/delivery").evaluate(200).measures["delivered"] for p in ("nearest", "assigned")}
    gain = found["assigned"] - found["nearest"]  # the same episodes
    assert gain.mean() > 2 * gain.std() / np.sqrt(200)


@pytest.mark.slow
def test_classical_drones_charge_in_time():
    for name, policy in (("coverage", "lloyd"), ("delivery", "assigned")):
        result = Scripted(policy, f"fleet/{name}:battery=150,steps=300").evaluate(20)
        assert result.measures["down"].mean() < 0.1


@pytest.mark.slow
def test_the_contract_with_other_settings():
    for name in (
        "coverage:hotspots=0,drones=1,steps=10",
        "delivery:continuous_actions=false,zones=1,battery=30,steps=30",
    ):
        check(make(f"fleet/{name}"))


def test_wrong_settings_are_named():
    for text, words in (("coverage:drones=0", "drones must be a whole number"), ("coverage:wind=30", "wind must be"),
                        ("delivery:rate=2", "rate must be from 0 to 1"),
                        ("coverage:failures=2", "failures must be from")):  # fmt: skip
        with pytest.raises(UsageError, match=words):
            make(f"fleet/{text}")
