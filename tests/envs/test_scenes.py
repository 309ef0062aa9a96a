"""Pictures beside numbers, inside of Dict and Tuple spaces: where they lie, and that learners look at all of it."""

import jax
import numpy as np
import optax
import pytest
from gymnasium import spaces
from test_images import Lamps

import flockrl
from flockrl.algos.assembly import make_algorithm
from flockrl.algos.presets import make_config
from flockrl.core.errors import Notice, UsageError
from flockrl.core.spaces import Sight
from flockrl.core.spec import Box, Discrete, EnvSpec, spec_from_json, spec_to_json
from flockrl.envs import check, make
from flockrl.envs.adapters.layouts import observation_parts
from flockrl.envs.adapters.options import Options
from flockrl.nets.network import Network
from flockrl.portable.model import Model
from flockrl.replay.ring import make_replay

SIGHT = Sight(((8, 8, 1), (9, 10, 3)), 2, False)


def picture(*shape):
    return spaces.Box(0, 255, shape, np.uint8)


class Cockpit(Lamps):
    """Two pictures, of which one has a bright left or right half, and a sign: two switches are paid for agreeing."""

    possible_agents = ("a_0",)

    def observation_space(self, agent):
        views = spaces.Tuple((picture(8, 8), picture(9, 10, 3)))
        return spaces.Dict({"sign": spaces.Box(-1, 1, (1,)), "views": views, "tick": spaces.Box(0, 9, ())})

    def action_space(self, agent):
        return spaces.MultiDiscrete([2, 2])

    def look(self):
        self.bits = {a: self.rng.integers(0, 2, 2) for a in self.possible_agents}
        return {a: self.view(a) for a in self.possible_agents}

    def view(self, agent):
        half, sign = self.bits[agent]
        views = np.zeros((8, 8), np.uint8), np.zeros((9, 10, 3), np.uint8)
        views[0][:] = 40 * self.t
        views[1][:, 5 * half : 5 * half + 5] = 255
        return {"sign": np.array([2.0 * sign - 1]), "views": views, "tick": np.float32(self.t)}

    def step(self, actions):
        earned = {a: float(np.mean(actions[a] == self.bits[a])) for a in self.agents}
        self.right = dict.fromkeys(self.possible_agents, 0)
        seen, _, *rest = super().step(dict.fromkeys(self.agents, 0))
        return seen, earned, *rest


class Pair(Cockpit):
    possible_agents = ("a_0", "a_1")


def test_pictures_lie_before_the_numbers():
    host = make(Cockpit)
    check(host)
    assert host.spec.sight == SIGHT
    assert host.spec.observations[0] == Box((64 + 270 + 2,), -1.0, 9.0, "float32", SIGHT.pictures)
    seen = host.first.reset(0).obs[0]
    raw = host.first.env.view("a_0")
    np.testing.assert_allclose(seen[:64].reshape(8, 8), raw["views"][0] / 127.5 - 1, atol=1e-6)
    np.testing.assert_allclose(seen[64:-2].reshape(9, 10, 3), raw["views"][1] / 127.5 - 1, atol=1e-6)
    assert seen[-2:].tolist() == [raw["sign"][0], 0]
    assert spec_from_json(spec_to_json(host.spec)) == host.spec


def test_pictures_alone_stay_bytes_and_options_shrink_them():
    space = spaces.Dict({"a": picture(80, 20, 3), "b": picture(8, 8)})
    (part,), (box,), dtype = observation_parts("it", {"x": space}, Options(grey=True))
    assert (dtype, box.pictures, part.size) == ("uint8", ((42, 42, 1), (8, 8, 1)), 42 * 42 + 64)
    row = np.zeros(part.size, np.uint8)
    part.write({"a": np.full((80, 20, 3), 7, np.uint8), "b": np.full((8, 8), 9, np.uint8)}, row)
    assert row.tolist() == [7] * 42 * 42 + [9] * 64
    with pytest.raises(UsageError, match="stack is for observations that are a picture"):
        observation_parts("it", {"x": space}, Options(stack=2))
    with pytest.warns(Notice, match="no CNN looks at"):
        _, boxes, dtype = observation_parts("it", {"x": space, "y": spaces.Box(0, 1, (2,))}, Options(resize=8))
    assert dtype == boxes[0].dtype == boxes[1].dtype == "float32"


def test_what_the_network_sees_of_each_part():
    net = Network((8,), 2, sight=SIGHT)
    x = np.random.default_rng(0).uniform(-1, 1, (5, 1, SIGHT.size)).astype(np.float32)
    params = jax.jit(net.init)(jax.random.key(0), x)["params"]
    assert params["torso"]["dense_0"]["kernel"].shape[0] == 2 * 64 + 2
    apply = jax.jit(lambda x: net.apply({"params": params}, x)[0])
    out = apply(x)
    for place in (0, 63, 64, 64 + 269, -2, -1):  # every part counts
        other = x.copy()
        other[..., place] += 1
        assert not np.allclose(apply(other), out)
    both = jax.eval_shape(net.init, jax.random.key(0), x[:4].reshape(2, 1, -1))["params"]  # what a central critic reads
    assert both["torso"]["dense_0"]["kernel"].shape[0] == 2 * (2 * 64 + 2)


def test_learners_with_a_replay_see_it_too():
    spec = make(Pair).spec
    algorithm = make_algorithm("qmix", spec, make_config("qmix", {"buffer_size": 800}), envs=8, updates=2)
    params = jax.eval_shape(algorithm.init, jax.random.key(0)).learned.params
    for part in (params["q"][0], params["mixer"][0]):
        assert {"cnn", "cnn_1"} <= set(part)
    assert make_replay(spec, 4, 2, False).rows.next_obs.dtype == np.float32


def test_a_spec_whose_pictures_do_not_fit_is_refused():
    with pytest.raises(UsageError, match="must fit into its 10 numbers"):
        Box((10,), pictures=((2, 3, 2),))
    with pytest.raises(UsageError, match="three axes"):
        Box((10,), pictures=((2, 3),))
    spec = EnvSpec("x", ("a",), (Box((20,), pictures=((2, 3, 2),)),), (Discrete(2),), 5)
    saved = spec_to_json(spec)
    for wrong in ("x", [[1]], [[1, -1, 1]], [[9, 9, 9]], [[1, 1, 1]] * 100):
        saved["observations"][0]["pictures"] = wrong
        with pytest.raises(UsageError):
            spec_from_json(saved)


def test_a_network_learns_from_every_picture_and_number():
    """Eight classes: the bright half of the one picture, that of the other, and a sign."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2, (256, 3))
    near, far = np.zeros((256, 8, 8, 1)), np.zeros((256, 9, 10, 3))
    for row, (a, b, _) in enumerate(bits):
        near[row, :, 4 * a : 4 * a + 4] = far[row, :, 5 * b : 5 * b + 5] = 1
    x = np.concatenate([near.reshape(256, -1), far.reshape(256, -1), bits[:, 2:], np.ones((256, 1))], axis=1)
    x, labels = np.float32(2 * x - 1)[:, None], bits @ [4, 2, 1]
    net, optimiser = Network((16,), 8, sight=SIGHT), optax.adam(3e-3)
    params = jax.jit(net.init)(jax.random.key(0), x)["params"]

    def loss(params):
        out = net.apply({"params": params}, x)[0][:, 0]
        return optax.softmax_cross_entropy_with_integer_labels(out, labels).mean(), out

    @jax.jit
    def learn(params, state):
        def once(_, carry):
            grads = jax.grad(loss, has_aux=True)(carry[0])[0]
            updates, state = optimiser.update(grads, carry[1])
            return optax.apply_updates(carry[0], updates), state

        return loss(jax.lax.fori_loop(0, 60, once, (params, state))[0])[1]

    assert (learn(params, optimiser.init(params)).argmax(1) == labels).mean() > 0.95


def test_a_policy_that_sees_both_leaves(tmp_path):
    spec = make(Cockpit).spec
    trainer = flockrl.Trainer("ppo", spec, hyperparams={"hidden": (8,)}, envs=4)
    policy = trainer.acquire_model()
    flockrl.export(policy, tmp_path / "model")
    model = Model(tmp_path / "model")
    assert model.spec.sight == SIGHT
    seen = np.random.default_rng(0).uniform(-1, 1, (20, 1, SIGHT.size)).astype(np.float32)
    assert model.act(seen, explore=False).action.tolist() == policy.act(seen).tolist()


@pytest.mark.slow
def test_an_agent_learns_from_pictures_and_numbers(tmp_path):
    settings = {"steps": 12_000, "envs": 8, "rollout_steps": 25, "workers": 0, "eval_episodes": 20, "hidden": (32,)}
    run = flockrl.train("ppo", Cockpit, out=tmp_path / "run", lr=1e-3, **settings)
    assert run.evaluate(20).mean > 4.5  # of 5; 3.75 for one who sees the picture or the sign alone
    raw, _ = Cockpit().reset(seed=3)
    assert run.policy().act(raw)["a_0"].shape == (2,)
