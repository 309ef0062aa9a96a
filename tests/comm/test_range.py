"""Messages that reach only so far: who is near by the environment's own distances."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TINY

import flockrl
from flockrl.algos.assembly import Side, Sides
from flockrl.algos.presets import make_config
from flockrl.comm.channel import parse_channel
from flockrl.core.errors import UsageError
from flockrl.core.types import Observation
from flockrl.envs import make
from flockrl.envs.api import tuned
from flockrl.envs.reach import Reach, _within, reaching
from flockrl.training.channels import around

PLACED = {
    "mpe/simple_spread": lambda state: state.pos[:3],
    "fleet/coverage": lambda state: state.air.pos / 1000,
    "fleet/delivery": lambda state: state.air.pos / 1000,
    "swarm/foraging": lambda state: state.pos,
    "comm/predator_prey": lambda state: state.predators,
}


@pytest.mark.parametrize("name", PLACED)
def test_neighbours_are_those_within_the_range(name):
    env = make(name)
    state, _ = env.reset(jax.random.key(1))
    n = env.spec.num_agents
    action = jnp.arange(n) % env.spec.action_size if env.spec.discrete else jnp.ones((n, 2))
    for _ in range(3):  # ants begin in one place
        state, *_ = env.step(jax.random.key(0), state, action)
    places = np.asarray(PLACED[name](state), float)
    apart = np.sqrt(((places[:, None] - places) ** 2).sum(-1))
    limit = float(np.median(apart[apart > 0])) + 1e-3
    _, seen, *_ = reaching(env, limit).step(jax.random.key(2), state, action)
    state, *_ = env.step(jax.random.key(2), state, action)
    places = np.asarray(PLACED[name](state), float)
    apart, near = np.sqrt(((places[:, None] - places) ** 2).sum(-1)), np.asarray(seen.neighbours)
    np.testing.assert_array_equal(near, (apart <= limit) & ~np.eye(len(apart), dtype=bool))
    assert 0 < near.sum() < near.size - len(near)


@pytest.mark.parametrize("name", ["swarm/flocking", "swarm/search"])
def test_on_a_torus_the_shortest_way_counts(name):
    env = make(name)
    state, _ = env.reset(jax.random.key(0))
    side = getattr(env, "side", 1.0)
    pos = jnp.zeros_like(state.pos).at[1, 0].set(0.95 * side)
    assert env.distances(state._replace(pos=pos))[0, 1] == pytest.approx(0.05 * side, rel=1e-4)


def test_with_topology_neighbours_both_must_hold():
    env = make("swarm/flocking:n=20")
    _, seen = env.reset(jax.random.key(0))
    _, far = reaching(env, 1e6, seen=True).reset(jax.random.key(0))
    np.testing.assert_array_equal(far.neighbours, seen.neighbours)
    _, near = reaching(env, 0.5, seen=True).reset(jax.random.key(0))
    assert near.neighbours.sum() < seen.neighbours.sum()
    assert not (near.neighbours & ~seen.neighbours).any()


@pytest.mark.parametrize("name", ["mpe/simple_spread:N=6", "comm/traffic_junction"])
def test_neighbours_are_the_nearest_that_live(name):
    env = make(name)
    near = reaching(env, None, nearest=2)
    state, _ = env.reset(jax.random.key(1))
    for t in range(12):
        state, seen, *_ = env.step(jax.random.key(t), state, jnp.zeros(env.spec.num_agents, jnp.int32))
    _, told, *_ = near.step(jax.random.key(11), state, jnp.zeros(env.spec.num_agents, jnp.int32))
    state, seen, *_ = env.step(jax.random.key(11), state, jnp.zeros(env.spec.num_agents, jnp.int32))
    alive = np.ones(env.spec.num_agents, bool) if seen.alive is None else np.asarray(seen.alive)
    apart = np.array(env.distances(state), float)
    assert alive.sum() > 3
    for i, row in enumerate(np.asarray(told.neighbours)):
        others = [j for j in np.argsort(apart[i], kind="stable") if j != i and alive[j]]
        assert np.flatnonzero(row).tolist() == sorted(others[:2])


def test_the_nearest_are_among_those_in_range_and_perceived():
    env = make("swarm/flocking:n=20")
    _, seen = reaching(env, 0.8, seen=True).reset(jax.random.key(0))
    _, few = reaching(env, 0.8, seen=True, nearest=3).reset(jax.random.key(0))
    assert not (few.neighbours & ~seen.neighbours).any()
    np.testing.assert_array_equal(few.neighbours.sum(1), np.minimum(seen.neighbours.sum(1), 3))


def test_settings_of_the_environment_can_still_be_tuned():
    env = reaching(make("comm/traffic_junction:rate=0.2"), 2.0)
    other = tuned(env, {"rate": 0.7})
    assert (env.rate, other.rate, other.inner.rate) == (0.2, 0.7, 0.7)
    assert isinstance(other, Reach)
    assert reaching(other, None) is other.inner


def test_a_range_is_a_distance():
    assert str(parse_channel("range=0.5,loss=0.1")) == "loss=0.1,range=0.5"
    for text in ("range=-1", "range=nan", "range=inf", "range=x", "nearest=0", "nearest=x"):
        with pytest.raises(UsageError, match=text.partition("=")[0]):
            parse_channel(text)


def test_a_tier_that_talks_has_its_range_too():
    talks = {"comm": "commnet", "channel": "range=0.8"}
    env = make("mpe/simple_spread")
    for tiers in ({"worker": talks}, {"manager": talks}, {"manager": talks, "worker": talks}):
        settings = {f"{name}_settings": own for name, own in tiers.items()}
        assert around(make_config("feudal", settings), env).limit == 0.8
    assert around(make_config("feudal", {}), env) is env
    below = {"manager_settings": talks, "worker_settings": {**talks, "channel": "range=0.5"}}
    with pytest.raises(UsageError, match="share it"):
        around(make_config("feudal", below), env)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "near"
    return flockrl.train("ippo", "mpe/simple_spread", out=out, comm="commnet", comm_size=4, channel="range=0.8", **TINY)


def test_a_run_is_played_on_its_own_range_on_others_and_in_silence(run):
    """No range but 0 is silence, and a range beyond all distances is none: to the bit."""
    everyone, far, own, nobody, silent = (
        run.evaluate(32, channel=channel, explore=True).returns
        for channel in ("", "range=1000,nearest=2", "range=0.8", "range=0", "bits=0")
    )
    np.testing.assert_array_equal(everyone, far)
    np.testing.assert_array_equal(nobody, silent)
    np.testing.assert_array_equal(run.evaluate(32, explore=True).returns, own)
    assert np.abs(own - far).max() > 0
    assert np.abs(own - nobody).max() > 0


def test_a_run_tells_how_many_messages_arrived(run):
    last = run.metrics()[-1]
    assert 0 < last["messages_received"] < 2  # of two that each agent could hear
    assert flockrl.Run(run.path).spec.neighbours


def test_environments_without_distances_are_refused_in_a_sentence(tmp_path, run):
    with pytest.raises(UsageError, match="range needs an environment that tells how far") as error:
        flockrl.train("ippo", "comm/signalling", comm="commnet", channel="range=1", out=tmp_path / "x", **TINY)
    assert "\n" not in str(error.value)
    with pytest.raises(UsageError, match="Symbols of rial"):
        flockrl.train("ippo", "mpe/simple_spread", comm="rial", channel="range=1", out=tmp_path / "y", **TINY)


def test_sides_share_a_range(tmp_path):
    learns = {name: TINY[name] for name in ("rollout_steps", "epochs", "minibatches", "hidden")}
    talks, options = {"comm": "commnet", "comm_size": 4, **learns}, {k: v for k, v in TINY.items() if k not in learns}

    def train(near, far):
        players = {"adversary": "ippo", "agent": "ippo"}
        settings = {"adversary": {**talks, "channel": near}, "agent": {**talks, "channel": far}}
        return flockrl.train(players, "mpe/simple_tag", out=tmp_path / "run", **options, **settings)

    with pytest.raises(UsageError, match="share it"):
        train("range=0.5", "range=0.7")
    run = train("range=0.5", "")
    assert run.spec.neighbours
    assert run.evaluate(4).returns.shape == (4, 4)


def test_the_dead_take_nobodys_place_among_the_nearest():
    limits = types.SimpleNamespace(limit=None, seen=False, nearest=1, links=None)
    apart = np.abs(np.arange(4.0)[:, None] - np.arange(4.0))
    seen = Observation(np.zeros((4, 1)), alive=np.array([True, False, True, True]))
    found = _within(seen, apart, limits).neighbours
    assert [np.flatnonzero(row).tolist() for row in found[[0, 2, 3]]] == [[2], [3], [2]]


def test_the_nearest_are_of_those_who_can_be_heard():
    """The prey is often the nearest of all, and hunters of a side of their own still hear a hunter."""
    side = {"comm": "commnet", "channel": "nearest=1"}
    players = {name: Side("learner", "ippo", make_config("ippo", side)) for name in ("adversary", "agent")}
    env = around(Sides(players), make("mpe/simple_tag"))
    _, seen = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 50))
    heard = np.asarray(seen.neighbours)
    assert (heard[:, :3, :3].sum(-1) == 1).all()
    assert not heard[:, :3, 3].any()
    config = make_config("ippo", {"comm": "commnet", "channel": "nearest=1,topology=ring"})
    ring = around(config, make("mpe/simple_spread:N=6"))
    _, seen = jax.vmap(ring.reset)(jax.random.split(jax.random.key(0), 50))
    beside = np.abs(np.arange(6)[:, None] - np.arange(6)) % 4 == 1
    assert (np.asarray(seen.neighbours).sum(-1) == 1).all()
    assert not (np.asarray(seen.neighbours) & ~beside).any()
