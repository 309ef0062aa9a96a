"""Pictures: bytes until the network, shrunk, grey, stacked; and a team that has to look."""

import sys
import types
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from gymnasium import spaces

import flockrl
from flockrl.algos.assembly import make_algorithm
from flockrl.algos.presets import make_config
from flockrl.core.spaces import Sight
from flockrl.core.types import Box, Discrete, EnvSpec
from flockrl.envs import check, make
from flockrl.envs.adapters.images import Pictures, Stack
from flockrl.envs.adapters.options import Options
from flockrl.nets.network import Network
from flockrl.nets.torsos import CNN, _blocks, _patches
from flockrl.replay.ring import make_replay, replay_bytes


class Lamps:
    """Two agents see a dark picture with a bright left or right half, each its own, and are paid for saying which."""

    possible_agents = ("a_0", "a_1")
    max_cycles = 5

    def __init__(self, height=8, width=8, channels=3):
        self.shape = (height, width, channels)

    def observation_space(self, agent):
        return spaces.Box(0, 255, self.shape, np.uint8)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.rng, self.agents, self.t = np.random.default_rng(seed), list(self.possible_agents), 0
        return self.look(), {a: {} for a in self.agents}

    def look(self):
        self.right = {a: int(self.rng.integers(2)) for a in self.possible_agents}
        seen = {}
        for agent, right in self.right.items():
            seen[agent] = np.zeros(self.shape, np.uint8)
            half = self.shape[1] // 2
            seen[agent][:, half * right : half * (right + 1)] = 200
        return seen

    def step(self, actions):
        rewards = {a: float(actions[a] == self.right[a]) for a in self.agents}
        self.t += 1
        over = dict.fromkeys(self.agents, self.t == self.max_cycles)
        seen = self.look()
        self.agents = [] if self.t == self.max_cycles else self.agents
        return seen, rewards, dict.fromkeys(over, False), over, {a: {} for a in over}

    def close(self):
        pass


def test_pictures_stay_bytes():
    host = make(Lamps)
    check(host)
    assert host.spec.observations[0].shape == (8, 8, 3)
    assert host.spec.sight == Sight(((8, 8, 3),))
    seen = host.first.reset(0)
    assert seen.obs.dtype == np.uint8
    raw = Lamps().reset(seed=0)[0]
    np.testing.assert_array_equal(seen.obs[1].reshape(8, 8, 3), raw["a_1"])


def test_large_pictures_are_shrunk_and_options_decide(tmp_path, monkeypatch):
    def shape(**options):
        space = spaces.Box(0, 255, (120, 30, 3), np.uint8)
        return Pictures(space, Options(**options), "it").shape

    assert shape() == (42, 42, 3)
    assert shape(resize=0) == (120, 30, 3)
    assert shape(resize=20, grey=True) == (20, 20, 1)
    row = np.zeros(4 * 4, np.uint8)
    picture = np.zeros((8, 8, 3), np.uint8)
    picture[:4, :4] = 255
    Pictures(spaces.Box(0, 255, (8, 8, 3), np.uint8), Options(resize=4, grey=True), "it").write(picture, row)
    assert row.reshape(4, 4).tolist() == [[255, 255, 0, 0]] * 2 + [[0] * 4] * 2


def test_frames_are_stacked_with_the_newest_last():
    stack = Stack(1, (2, 1, 1), 3)
    frames = [np.full((1, 2), t, np.uint8) for t in range(5)]
    assert stack.add(frames[1]).tolist() == [[1, 1, 1, 1, 1, 1]]
    stack.add(frames[2])
    assert stack.add(frames[3]).tolist() == [[1, 2, 3, 1, 2, 3]]  # pixel by pixel
    stack.restart()
    assert stack.add(frames[4]).tolist() == [[4] * 6]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("stack=0", "stack must be a whole number of at least 1"),
        ("grey=1", "grey must be true or false"),
        ("resize=-1", "resize must be a whole number of at least 0"),
        ("grey=true", "grey and resize are for pictures"),
        ("stack=2", "stack is for observations that are a picture"),
    ],
)
def test_what_is_wrong_is_said(text, words):
    with pytest.raises(flockrl.UsageError, match=words):
        make(f"gymnasium/CartPole-v1:{text}")


def test_the_network_scales_bytes_and_takes_several_pictures():
    net = Network((8,), 2, sight=Sight(((8, 8, 1),)))
    x = np.random.default_rng(0).integers(0, 256, (5, 2, 64), np.uint8)
    params = net.init(jax.random.key(0), x)["params"]
    out, _ = net.apply({"params": params}, x)
    same, _ = net.apply({"params": params}, x.astype(np.float32))
    assert out.shape == (5, 2, 2)
    np.testing.assert_allclose(out, same, rtol=1e-6)
    both = Network((8,), 2, sight=Sight(((8, 8, 1),))).init(jax.random.key(0), x.reshape(5, 1, 128))["params"]
    assert both["torso"]["dense_0"]["kernel"].shape[0] == 2 * params["torso"]["dense_0"]["kernel"].shape[0]
    plain = Network((8,), 2, sight=Sight(((8, 8, 1),))).init(jax.random.key(0), jnp.zeros((5, 1, 10)))["params"]
    assert "cnn" not in plain  # a global state beside the pictures


def test_patches_are_what_convolutions_see():
    rng = np.random.default_rng(0)
    picture, kernel = (jnp.asarray(rng.normal(size=size), jnp.float32) for size in ((2, 7, 6, 3), (3, 3, 3, 4)))
    for see, stride, padding in (
        (lambda y: _patches(y, 3, 2), 2, ((1, 1), (1, 1))),
        (lambda y: _blocks(y, 3), 3, ((0, 2), (0, 0))),
    ):
        axes = ("NHWC", "HWIO", "NHWC")
        wanted = jax.lax.conv_general_dilated(picture, kernel, (stride, stride), padding, dimension_numbers=axes)
        np.testing.assert_allclose(see(picture) @ kernel.reshape(27, 4), wanted, rtol=1e-4, atol=1e-4)


def test_units_survive_bright_pictures_and_noise():
    """With rectified units every feature is dead after this."""
    rng = np.random.default_rng(0)
    x = np.full((256, 12, 12, 1), 250, np.uint8)
    x[:, 4:8, 4:8] = rng.integers(0, 256, (256, 4, 4, 1))
    x, target = x.reshape(256, -1), rng.normal(size=(100, 256)).astype(np.float32)
    net = CNN((12, 12, 1))
    params = net.init(jax.random.key(0), x)["params"]
    rate = optax.adam(2e-3)

    @jax.jit
    def learn(params, noise):
        def step(carry, wanted):
            params, state = carry
            grads = jax.grad(lambda p: jnp.mean((net.apply({"params": p}, x).mean(-1) - wanted) ** 2))(params)
            change, state = rate.update(grads, state)
            return (optax.apply_updates(params, change), state), None

        return jax.lax.scan(step, (params, rate.init(params)), noise)[0][0]

    features = np.asarray(net.apply({"params": learn(params, target)}, x))
    assert (features.std(0) > 1e-3).mean() > 0.95


class Blind(Lamps):
    """Draws, and so shows, nothing new unless it is asked for pictures: pistonball does that."""

    metadata: ClassVar = {"render_modes": ["human", "rgb_array"]}

    def __init__(self, render_mode=None):
        super().__init__()
        self.render_mode = render_mode

    def look(self):
        return {a: x if self.render_mode else np.zeros_like(x) for a, x in super().look().items()}


def test_environments_that_show_what_they_draw_are_asked_to_draw(monkeypatch):
    monkeypatch.setitem(sys.modules, "blind", types.SimpleNamespace(parallel_env=Blind))
    assert make("pettingzoo/blind").first.reset(0).obs.any()
    blind = make("pettingzoo/blind:render_mode=null")
    assert not blind.first.reset(0).obs.any()
    with pytest.raises(flockrl.UsageError, match=r"never changed in \d+ steps: .* render_mode='rgb_array'"):
        check(blind)


@pytest.mark.slow
def test_a_team_learns_by_looking(tmp_path):
    settings = {"steps": 2_000, "envs": 8, "rollout_steps": 25, "workers": 0, "eval_episodes": 20, "hidden": (16,)}
    run = flockrl.train("mappo", Lamps, out=tmp_path / "run", **settings)
    assert run.metrics()[1]["return"] < 3.5
    assert run.evaluate(20).mean == 5
    env, policy = Lamps(), run.policy()
    seen, _ = env.reset(seed=3)
    assert policy.act(seen) == env.right


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        slow("maddpg", 1_500), slow("qmix", 1_500), slow("iql", 3_000), slow("vdn", 3_000), slow("qplex", 3_000),
        slow("wqmix", 3_000), slow("qtran", 8_000), slow("isac", 3_000), slow("itd3", 3_000),
    ],
)  # fmt: skip
def test_learners_with_a_replay_look_too(tmp_path, name, steps):
    settings = {"steps": steps, "envs": 8, "workers": 0, "eval_episodes": 20, "hidden": (16,), "batch_size": 64}
    settings |= {"learning_starts": 200, "steps_per_update": 10, "buffer_size": 2_000, "lr": 2e-3, "eval_every": steps}
    run = flockrl.train(name, Lamps, out=tmp_path / "run", **settings)
    assert run.evaluate(20).mean == 5


def test_values_and_mixers_look():
    algorithm = make_algorithm("qmix", make(Lamps).spec, make_config("qmix", {"buffer_size": 800}), envs=8, updates=2)
    params = jax.eval_shape(algorithm.init, jax.random.key(0)).learned.params
    assert "cnn" in params["q"][0]
    features = params["mixer"][0]["cnn"]["dense"]["bias"].shape[0]
    assert params["mixer"][0]["mixer"]["bias"]["kernel"].shape[0] == 2 * features  # one picture of each agent


def test_a_replay_keeps_pictures_as_bytes():
    spec = make(Lamps).spec
    assert make_replay(spec, 4, 2, False).rows.next_obs.dtype == np.uint8
    small = 4 * 2 * 2 * 2 * 8 * 8 * 3
    assert small < replay_bytes(lambda: make_replay(spec, 4, 2, False)) < 1.2 * small
    large = EnvSpec("seen", ("a",), (Box((512, 512, 3), 0.0, 255.0, "uint8"),), (Discrete(2),), max_steps=9)
    with pytest.raises(flockrl.UsageError, match=r"A replay of 200,000 transitions takes 314\.6 GB"):
        make_algorithm("dqn", large, make_config("dqn", {"buffer_size": 200_000}), envs=16, updates=10)
