"""Learners whose agents talk: every family, the same luck in learning as in acting, gradients, replays, resuming."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flockrl.algos.assembly import Sides, make_algorithm
from flockrl.algos.ppo import _PPO
from flockrl.algos.presets import make_config
from flockrl.algos.q_learning import QLearner
from flockrl.core.errors import UsageError
from flockrl.core.groups import merge
from flockrl.core.spec import Box, Discrete, EnvSpec
from flockrl.core.types import Observation
from flockrl.replay.ring import add, gather, make_replay, stretch
from flockrl.rollouts.compiled import scan_rollout, start
from flockrl.training.players import make_sides

B, T = 4, 6
SPEC = EnvSpec(
    "field", ("wolf_0", "hare_0", "wolf_1"), (Box((3,)), Box((2,)), Box((3,))),
    (Discrete(3), Discrete(2), Discrete(3)), 4, neighbours=True,
)  # fmt: skip
PUSH = Box((2,), -1.0, 1.0)
REAL = EnvSpec("real", SPEC.agents, SPEC.observations, (PUSH, Box((1,), -1.0, 1.0), PUSH), 4)
ON = {"rollout_steps": T, "hidden": (5,)}
OFF = {
    "rollout_steps": T, "hidden": (5,), "steps_per_update": B * T, "batch_size": 16, "buffer_size": 4 * B * T,
    "learning_starts": 0, "sequence": 1,
}  # fmt: skip


class Field:
    """Observations are noise; whoever is 1 in the draw lives; four steps are an episode."""

    def __init__(self, spec=SPEC):
        self.spec = spec

    def look(self, key):
        n, sizes = self.spec.num_agents, np.array([space.size for space in self.spec.observations])
        obs = jax.random.normal(key, (n, self.spec.obs_size)) * (np.arange(self.spec.obs_size) < sizes[:, None])
        alive = jax.random.uniform(jax.random.fold_in(key, 1), (n,)) < 0.8
        near = jax.random.uniform(jax.random.fold_in(key, 2), (n, n)) < 0.7 if self.spec.neighbours else None
        return Observation(obs, alive=alive.at[0].set(True), neighbours=near)

    def reset(self, key):
        seen = self.look(key)
        return (jnp.int32(0), seen.obs), seen

    def step(self, key, state, action):
        time, before = state
        seen = self.look(key)
        reward = (action if action.ndim == 1 else action.sum(-1)) * before[:, 0]
        return (time + 1, seen.obs), seen, reward, jnp.bool_(False), time + 1 == self.spec.max_steps


def learner(name, env, **settings):
    if "sequence" in settings and ("delay" in settings.get("channel", "") or settings.get("memory") == "gru"):
        settings |= {"sequence": T}
    return make_algorithm(name, env.spec, make_config(name, settings), envs=B, updates=4)


def experience(algorithm, env, seed=0):
    """(state, rollout, actors after it), compiled."""
    state = algorithm.init(jax.random.key(seed))
    actors = start(algorithm, env, jax.random.key(1), B)
    roll = jax.jit(lambda state, actors, key: scan_rollout(algorithm, algorithm.params(state), env, actors, key))
    actors, *_ = roll(state, actors, jax.random.key(2))  # the next begins in the middle of episodes
    actors, trajectory, _ = roll(state, actors, jax.random.key(3))
    return state, trajectory, actors


FULL = "loss=0.3,broadcast_loss=0.1,noise=0.1,delay=1,bits=3"
TURNS = "top=1,access=round_robin,topology=neighbours"
CASES = [
    ("mappo", SPEC, "none", "share_obs", TURNS, "none"),
    ("iql", SPEC, "all", "share_intent", FULL, "gru"),
    ("maddpg", SPEC, "all", "gat", TURNS, "none"),
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in (
            ("mareinforce", REAL, "all", "gat", "top=2", "gru"),
            ("qmix", SPEC, "none", "tarmac", TURNS, "none"),
            ("masac", REAL, "none", "tarmac", FULL, "none"),
            ("masac", SPEC, "all", "share_intent", TURNS, "none"),
            ("maddpg", REAL, "none", "ic3net", FULL, "gru"),
            ("matd3", REAL, "all", "commnet", FULL, "none"),
            ("iql", SPEC, "none", "dial", "loss=0.2,topology=neighbours", "gru"),
            ("maddpg", SPEC, "all", "dial", "top=1,access=round_robin,delay=2", "none"),
        )
    ),
]


@pytest.mark.parametrize(("name", "spec", "share", "comm", "channel", "memory"), CASES)
def test_every_family_talks_with_and_without_memory_and_sharing(name, spec, share, comm, channel, memory):
    """Programs are traced, not compiled: states and rollouts keep their forms through acting and learning."""
    env, settings = Field(spec), ON if name in ("mappo", "mareinforce") else OFF
    algorithm = learner(name, env, share=share, comm=comm, channel=channel, memory=memory, **settings)

    def whole(key):
        state, actors = algorithm.init(key), start(algorithm, env, key, B)
        after, trajectory, _ = scan_rollout(algorithm, algorithm.params(state), env, actors, key)
        learned, metrics = algorithm.update(state, trajectory, key)
        return (state, actors), (learned, after), metrics

    before, after, metrics = jax.eval_shape(whole, jax.random.key(0))
    form = lambda tree: jax.tree.map(lambda x: (x.shape, str(x.dtype)), tree)  # noqa: E731
    assert form(before) == form(after)
    assert {"comm_bits", "messages_sent", "messages_received", "messages_lost"} <= set(metrics)


@pytest.mark.parametrize(
    ("comm", "channel", "memory"),
    [
        ("tarmac", FULL, "none"), ("ic3net", TURNS, "none"), ("dial", "loss=0.2", "gru"),
        pytest.param("commnet", "loss=0.5", "none", marks=pytest.mark.slow),
        pytest.param("gat", FULL, "gru", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_learning_meets_the_luck_that_acting_had(comm, channel, memory):
    """Log-probabilities of a rollout are those that acting recorded; with other seeds they are not."""
    env = Field()
    config = make_config("ippo", {**ON, "comm": comm, "channel": channel, "memory": memory, "lr": 1e-3})
    ppo = _PPO(env.spec, config, B, 4)
    state, rollout, _ = experience(ppo.algorithm(), env)

    @jax.jit
    def chances(scale, extras):
        """[T, B, N] log-probabilities of the actions, if outputs were `scale` times as large."""
        seen = rollout._replace(extras=extras).observation
        outs, _ = ppo.actor(state.params["actor"], seen, rollout.memory, rollout.first)
        found = [
            ppo._chosen(group, head, scale * out, rollout.action, None)[0].reshape(T, B, -1)
            for group, head, out in zip(ppo.groups, ppo.heads, outs, strict=True)
        ]
        return merge(found, ppo.groups, 2)

    np.testing.assert_allclose(chances(1.0, rollout.extras), rollout.extras["logp"], atol=1e-6)
    others = {**rollout.extras, "channel": rollout.extras["channel"][::-1]}
    assert float(jnp.abs(chances(30.0, rollout.extras) - chances(30.0, others)).max()) > 1e-3


def directional(f, params, seed=0, eps=2e-3):
    """The slope of f along a random direction, by automatic differentiation and by differences."""
    leaves, tree = jax.tree.flatten(params)
    rng = np.random.default_rng(seed)
    way = jax.tree.unflatten(tree, [jnp.asarray(rng.normal(size=x.shape), jnp.float32) for x in leaves])
    f = jax.jit(f)
    slope = sum((g * w).sum() for g, w in zip(*map(jax.tree.leaves, (jax.grad(f)(params), way)), strict=True))
    ahead, behind = (f(jax.tree.map(lambda p, w, s=s: p + s * eps * w, params, way)) for s in (1, -1))
    return float(slope), float(ahead - behind) / (2 * eps)


def after_the_quantiser(params):
    """What a message passes after it was rounded: losses are smooth in these, and not in what comes before."""
    kept = ("own", "heard", "into")
    return [
        {name: talk[name] for name in kept} for p in params for key, talk in p.items() if key.startswith("exchange")
    ]


def put_back(params, parts):
    parts = iter(parts)
    return tuple(
        {key: {**x, **next(parts)} if key.startswith("exchange") else x for key, x in p.items()} for p in params
    )


@pytest.mark.parametrize(
    ("comm", "channel"), [("tarmac", "loss=0.3,noise=0.1,delay=1"), ("tarmac", "loss=0.3,bits=2"), ("dial", "loss=0.3")]
)
def test_slopes_of_an_on_policy_loss_are_those_of_its_differences(comm, channel):
    env = Field()
    config = make_config("ippo", {**ON, "comm": comm, "channel": channel, "entropy": 0.1})
    ppo = _PPO(env.spec, config, B, 4)
    state, rollout, _ = experience(ppo.algorithm(), env)
    rng = np.random.default_rng(0)
    advantage = jnp.asarray(rng.normal(size=rollout.reward.shape), jnp.float32)
    first = rollout.first if ppo.recurrent else None

    def loss(actors):
        outs, _ = ppo.actor(actors, rollout.observation, rollout.memory, first)
        pairs = zip(ppo.groups, ppo.heads, outs, strict=True)
        return sum(
            (ppo._chosen(g, h, 20 * o, rollout.action, None)[0] * advantage[..., list(g.agents)].reshape(-1)).mean()
            for g, h, o in pairs
        )

    compare(loss, state.params["actor"], "bits" in channel)


@pytest.mark.parametrize("channel", ["loss=0.3,noise=0.1,delay=1", "loss=0.3,bits=2"])
def test_slopes_of_a_replay_learners_loss_are_those_of_its_differences(channel):
    env = Field()
    settings = {**OFF, "sequence": T, "comm": "tarmac", "channel": channel, "mixer": "monotonic", "double_q": False}
    q = QLearner(env.spec, make_config("iql", settings), B, 4)
    state, rollout, _ = experience(q.algorithm(), env)
    seen = stretch(add(state.replay, rollout), jnp.array([0, 1]), jnp.array([0, 2]), q.window)

    def loss(nets):
        return q._loss({**state.learned.params, "q": nets}, state.learned.targets, seen, jnp.ones(2))[0]

    compare(loss, state.learned.params["q"], "bits" in channel)


def compare(loss, params, rounded):
    if rounded:
        whole, params = params, after_the_quantiser(params)
        slope, difference = directional(lambda parts: loss(put_back(whole, parts)), params)
    else:
        slope, difference = directional(loss, params)
    assert abs(slope) > 1e-3
    assert slope == pytest.approx(difference, rel=0.02, abs=2e-4)


def test_what_is_said_before_it_is_rounded_learns_too():
    """Straight through: the way into the quantiser has a slope although its value does not move."""
    env = Field()
    ppo = _PPO(env.spec, make_config("ippo", {**ON, "comm": "commnet", "channel": "bits=1"}), B, 4)
    state, rollout, _ = experience(ppo.algorithm(), env)
    slopes = jax.jit(jax.grad(lambda p: sum((o**2).sum() for o in ppo.actor(p, rollout.observation, (), None)[0])))(
        state.params["actor"]
    )
    assert float(jnp.abs(slopes[0]["exchange_0"]["encode"]["kernel"]).max()) > 1e-6


def test_the_replay_keeps_seeds_and_gives_the_next_step_others():
    env = Field()
    q = QLearner(env.spec, make_config("iql", {**OFF, "comm": "commnet", "channel": "loss=0.5"}), B, 4)
    state, rollout, _ = experience(q.algorithm(), env)
    replay = add(state.replay, rollout)
    batch = gather(replay, jnp.array([2, 4]), jnp.array([1, 3]), jnp.ones(2), 1, 0.9)
    np.testing.assert_array_equal(batch.seeds, rollout.extras["channel"][jnp.array([2, 4]), jnp.array([1, 3])])
    assert (batch.next_seeds[..., 0] != batch.seeds[..., 0]).all()
    assert (batch.next_seeds[..., 1] == batch.seeds[..., 1] + 1).all()
    assert make_replay(env.spec, 4, 2, False).rows.extras == {}


def test_a_team_that_hears_nothing_learns_as_the_team_without_messages():
    env, trained = Field(), []
    for settings in ({}, {"comm": "tarmac", "channel": "loss=1"}):
        algorithm = learner("ippo", env, **ON, **settings)
        state, rollout, _ = experience(algorithm, env)
        state, metrics = jax.jit(algorithm.update)(state, rollout, jax.random.key(5))
        trained.append((state.params, {k: v for k, v in metrics.items() if "mess" not in k and k != "comm_bits"}))
    (plain, told), (mute, also) = trained
    for one, other in zip(
        jax.tree.leaves({"critic": plain["critic"]}), jax.tree.leaves({"critic": mute["critic"]}), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-6)
    for one, other in zip(plain["actor"], mute["actor"], strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), one, {k: other[k] for k in one})
    for name, value in told.items():
        np.testing.assert_allclose(value, also[name], atol=1e-5, err_msg=name)


def test_experience_without_seeds_is_refused_on_policy_and_gets_some_elsewhere():
    env = Field()
    talk = {"comm": "commnet", "channel": "loss=0.5"}
    for name, settings in (("ippo", ON), ("iql", OFF)):
        algorithm = learner(name, env, **settings, **talk)
        state, rollout, _ = experience(algorithm, env)
        bare = rollout._replace(extras={k: v for k, v in rollout.extras.items() if k == "logp"})
        if name == "iql":
            learned, metrics = jax.jit(algorithm.update)(state, bare, jax.random.key(0))
            assert len(np.unique(learned.replay.rows.extras["channel"][:T, ..., 0])) == T * B * 3
            assert "comm_bits" not in metrics
        else:
            with pytest.raises(UsageError, match="draws lots"):
                algorithm.update(state, bare, jax.random.key(0))


def test_one_side_talks_and_the_other_does_not():
    spec = EnvSpec(
        "chase", SPEC.agents, SPEC.observations, SPEC.actions, 4, sides=("wolf", "hare", "wolf"), neighbours=True
    )  # fmt: skip
    env = Field(spec)
    players = {"wolf": "ippo", "hare": "iql"}
    settings = {"wolf": {**ON, "comm": "commnet", "channel": "loss=0.5,delay=1"}, "hare": OFF}
    sides = make_sides(players, settings, spec)
    assert isinstance(sides, Sides)
    algorithm = make_algorithm("sides", spec, sides, envs=B, updates=4)
    state, rollout, _ = experience(algorithm, env)
    assert rollout.extras["channel"].dtype == jnp.uint32
    assert not rollout.extras["channel"][..., 1, :].any()  # the hare drew none
    assert rollout.extras["channel"][..., [0, 2], 0].all()
    _, metrics = jax.eval_shape(algorithm.update, state, rollout, jax.random.key(0))
    assert "wolf/messages_lost" in metrics
    assert "hare/messages_lost" not in metrics
