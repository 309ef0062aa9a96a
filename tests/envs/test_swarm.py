"""Swarms: measures of emergence by hand, Vicsek's order, Olfati-Saber's forces, ants and searchers step by step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flockrl.core.errors import UsageError
from flockrl.envs import check, make
from flockrl.envs.emergence import clustering, clusters, division_of_labour, mutual_information, order
from flockrl.envs.swarm.olfati_saber import force, sigma_norm
from flockrl.training.scripted import Scripted

KEY = jax.random.key(0)


def test_order_clusters_labour_and_information():
    assert float(order(jnp.array([[1.0, 0], [3.0, 0], [0, 2.0], [0, -5.0]]))) == pytest.approx(0.5)
    line = jnp.array([[0.0, 0], [0.9, 0], [1.8, 0], [4.5, 0], [2.7, 0]])  # a chain of four, and one apart
    assert clusters(line, 1.0).tolist() == [0, 0, 0, 3, 0]
    assert float(clustering(line, 1.0)) == pytest.approx(0.8)
    assert clusters(line, 1.0, side=5.0).tolist() == [0, 0, 0, 0, 0]  # 4.5 and 0 are neighbours on the torus
    assert float(division_of_labour(jnp.array([[2.0, 0], [0, 5.0]]))) == pytest.approx(1)
    assert float(division_of_labour(jnp.array([[2.0, 4], [1, 2]]))) == pytest.approx(0, abs=1e-6)
    assert float(division_of_labour(jnp.zeros((2, 2)))) == 0
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 2, (2, 4000))
    assert float(mutual_information(jnp.stack([a, a], 1), 2)) == pytest.approx(1, abs=0.01)
    assert float(mutual_information(jnp.stack([a, b], 1), 2)) == pytest.approx(0, abs=0.005)


def test_a_bird_turns_by_its_action_and_by_noise():
    env = make("swarm/flocking:n=3,eta=0,density=0.1")
    state, _ = jax.jit(env.reset)(KEY)
    state = state._replace(vel=0.03 * jnp.array([[1.0, 0], [0, 1], [-1, 0]]))
    after, _, reward, *_ = jax.jit(env.step)(KEY, state, jnp.array([[0.5], [0.0], [-0.5]]))
    np.testing.assert_allclose(after.vel, 0.03 * np.array([[0, 1], [0, 1], [0, 1]]), atol=1e-6)
    np.testing.assert_allclose(reward, 1, rtol=1e-5)
    way = np.asarray(after.pos - state.pos)
    np.testing.assert_allclose(way - env.side * np.round(way / env.side), after.vel, atol=1e-5)


def test_what_a_bird_sees_turns_with_it():
    env = make("swarm/flocking:n=2,eta=0,density=0.1")
    state, _ = jax.jit(env.reset)(KEY)
    seen = []
    for angle in (0.0, 1.0):
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]], np.float32)
        pos = np.array([[0, 0], [0.5, 0.2]], np.float32) @ turn.T + 2
        vel = 0.03 * np.array([[1, 0], [0, 1]], np.float32) @ turn.T
        seen.append(env._observe(state._replace(pos=jnp.asarray(pos), vel=jnp.asarray(vel))).obs)
    np.testing.assert_allclose(seen[0], seen[1], atol=1e-5)
    half = np.sqrt(0.5)
    np.testing.assert_allclose(seen[0][0], [half, half, half, 0.5, 0.2, 0.1], atol=1e-5)


def test_who_follows_a_blurred_sight_turns_by_the_noise_of_vicsek():
    env = make("swarm/flocking:n=12,eta=2,noise=sight")
    state, seen = jax.jit(env.reset)(KEY)
    assert float(jnp.abs(state.blur).max()) <= 1
    assert len(np.unique(state.blur)) == 12
    after, *_ = jax.jit(env.step)(KEY, state, env.policies["vicsek"](state, seen, KEY))
    way = np.asarray(state.pos) - np.asarray(state.pos)[:, None]
    near = ((way - env.side * np.round(way / env.side)) ** 2).sum(-1) <= 1
    mean = near @ np.asarray(state.vel)
    turned = np.angle((np.asarray(after.vel) @ [1, 1j]) / (mean @ [1, 1j]))
    np.testing.assert_allclose(turned, state.blur, atol=1e-4)
    assert float(jnp.abs(after.blur - state.blur).min()) > 0
    # Whoever knows a direction meets no noise.
    north, *_ = jax.jit(env.step)(KEY, state, env.policies["compass"](state, seen, KEY))
    np.testing.assert_allclose(north.vel, np.tile([0.03, 0], (12, 1)), atol=1e-6)
    assert env.best == 200


@pytest.mark.slow
@pytest.mark.parametrize(("eta", "value"), [(1, 0.952), (2, 0.818), (3, 0.613), (4, 0.349), (5, 0.123)])
def test_vicsek_has_the_order_that_is_known(eta, value):
    for noise in ("turn", "sight"):
        result = Scripted("vicsek", f"swarm/flocking:eta={eta},noise={noise},steps=600").evaluate(32)
        assert result.measures["order"].mean() == pytest.approx(value, abs=0.03)


@pytest.mark.slow
def test_no_rule_has_more_order_than_noise_leaves():
    env = make("swarm/flocking:steps=100")
    north, rule = (Scripted(p, "swarm/flocking:steps=100").evaluate(32) for p in ("compass", "vicsek"))
    assert rule.mean < north.mean
    assert abs(north.mean - env.best) < 3 * north.std / np.sqrt(32) + 0.1


def test_olfati_saber_pushes_below_the_spacing_and_pulls_above_it():
    z = sigma_norm(jnp.array([0.3, 0.7, 0.9, 1.2]) ** 2)
    found = np.asarray(force(z, 0.7, 1.0))
    assert found[0] < -0.1
    assert found[1] == pytest.approx(0, abs=1e-5)
    assert found[2] > 0
    assert found[3] == 0


@pytest.mark.slow
def test_olfati_saber_flocks():
    name = "swarm/flocking:model=inertia,n=30,density=1.5,eta=0.2"
    rule, none = (Scripted(p, name).evaluate(8) for p in ("olfati_saber", "straight"))
    assert rule.measures["order"].mean() > 0.99
    assert rule.mean > none.mean + 50


def test_ants_take_food_leave_scent_and_bring_it_home():
    env = make("swarm/foraging:n=3,size=9,depots=1,food=2")
    state, seen = jax.jit(env.reset)(KEY)
    np.testing.assert_array_equal(seen.obs[:, 0], 0)
    depot = state.depots[0]
    assert int(jnp.abs(depot - 4).max()) >= 3
    step = jax.jit(env.step)
    there = state._replace(pos=jnp.broadcast_to(depot, (3, 2)))
    after, seen, reward, *_ = step(KEY, there, jnp.zeros(3, jnp.int32))
    assert reward.tolist() == [0.5, 0.5, 0]  # two units for three ants
    assert after.loaded.tolist() == [True, True, False]
    assert float(after.scent[depot[0], depot[1]]) == 1
    home = after._replace(pos=jnp.full((3, 2), 4))
    done, _, reward, *_ = step(KEY, home, jnp.zeros(3, jnp.int32))
    assert reward.tolist() == [0.5, 0.5, 0]
    assert {k: round(float(v), 3) for k, v in env.measures(done).items()}["brought"] == 2
    assert float(done.scent[depot[0], depot[1]]) == pytest.approx(0.98)
    edge, *_ = step(KEY, state._replace(pos=jnp.zeros((3, 2), jnp.int32)), jnp.array([1, 4, 2]))
    assert edge.pos.tolist() == [[0, 0], [0, 0], [0, 1]]


def test_searchers_see_in_a_cone_and_share_the_first_sight():
    env = make("swarm/search:n=2,targets=4,drift=0,sight=0.2,angle=0.5")
    state, _ = jax.jit(env.reset)(KEY)
    targets = jnp.array([[0.62, 0.5], [0.5, 0.62], [0.44, 0.5], [0.9, 0.9]])
    state = state._replace(pos=jnp.array([[0.5, 0.5], [0.5, 0.5]]), angle=jnp.array([0.0, np.pi]), targets=targets)
    state = state._replace(speed=jnp.array([0.02, 0.02]))
    step = jax.jit(env.step)
    after, _, reward, *_ = step(KEY, state, jnp.zeros((2, 2)))
    assert after.found.tolist() == [True, False, True, False]
    assert reward.tolist() == [1, 1]
    _, _, reward, *_ = step(KEY, after, jnp.zeros((2, 2)))
    assert not reward.any()  # the first sight alone pays
    _, _, reward, *_ = step(KEY, state._replace(angle=jnp.zeros(2)), jnp.zeros((2, 2)))
    assert reward.tolist() == [0.5, 0.5]


@pytest.mark.slow
def test_policies_stand_in_their_order():
    ants = {p: Scripted(p, "swarm/foraging").evaluate(40).mean for p in ("known", "trail", "random")}
    assert ants["known"] > ants["trail"] > 4 * ants["random"]
    assert ants["known"] <= make("swarm/foraging").best + 1e-4
    names = ("informed", "sweep", "wander", "random")
    found = {p: Scripted(p, "swarm/search").evaluate(60).measures["found"].mean() for p in names}
    assert found["informed"] > max(found["sweep"], found["wander"])
    assert min(found["sweep"], found["wander"]) > found["random"] + 0.05


@pytest.mark.slow
def test_the_contract_with_other_settings():
    for name in ("flocking:model=inertia,n=5,compass=true,steps=10", "search:n=1,steps=10", "foraging:n=1,steps=10"):
        check(make(f"swarm/{name}"))


def test_wrong_settings_are_named():
    for text, words in (("flocking:model=vicsec", "Did you mean vicsek"),
                        ("flocking:model=inertia,noise=sight", "noise=sight is for model=vicsek"),
                        ("search:sight=0", "sight must be from"),
                        ("foraging:size=3", "size must be a whole number from 5")):  # fmt: skip
        with pytest.raises(UsageError, match=words):
            make(f"swarm/{text}")
