"""Q-learning and its mixers: losses against plain NumPy, gradients against finite differences, and identities."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import q_reference as ref

import flockrl
from flockrl.algos.assembly import make_algorithm
from flockrl.algos.exploration import random_action
from flockrl.algos.presets import make_config
from flockrl.algos.q_learning import QConfig, QLearner
from flockrl.core.errors import UsageError
from flockrl.core.types import Box, Discrete, EnvSpec, Observation, Trajectory
from flockrl.replay.ring import add
from flockrl.training.checkpoint import Checkpoints

SMALL = {"hidden": (5,), "rollout_steps": 6, "steps_per_update": 4, "batch_size": 12, "buffer_size": 24, "gamma": 0.9}
B = 4


ALLIES, RIVALS = ("us",) * 3, ("us", "us", "them")


def world(n=3, sides=ALLIES, state=0):
    """Two agents of one kind and a third with smaller spaces."""
    sizes, counts = (3, 3, 2), (4, 4, 2)
    return EnvSpec(
        "test", ("a_0", "a_1", "b")[:n], tuple(Box((s,)) for s in sizes[:n]), tuple(map(Discrete, counts[:n])),
        max_steps=9, sides=sides[:n], state_size=state, reward_after_death=False,
    )  # fmt: skip


def learner(spec=None, **settings):
    return QLearner(spec or world(), QConfig(**{**SMALL, **settings}), B, 10)


def rollout(spec, seed=0, steps=6, deaths=True):
    """Random steps with deaths, terminations, truncations and illegal actions, as an environment would write them."""
    rng = np.random.default_rng(seed)
    n, a = spec.num_agents, spec.action_size
    mask = np.arange(spec.obs_size) < np.array([s.size for s in spec.observations])[:, None]
    obs, following = (rng.normal(size=(2, steps, B, n, spec.obs_size)) * mask).astype(np.float32)
    alive = np.ones((steps, B, n), bool)
    terminated, truncated = np.zeros((2, steps, B, n), bool)
    first = np.zeros((steps, B), bool)
    for b in range(B):
        living = np.ones(n, bool)
        for t in range(steps):
            alive[t, b] = living
            terminated[t, b] = living & (rng.random(n) < (0.15 if deaths else 0))
            living = living & ~terminated[t, b]
            if t % 3 == 2 and rng.random() < 0.6:
                truncated[t, b], living = living, np.zeros(n, bool)
            if not living.any():
                living = np.ones(n, bool)
                if t + 1 < steps:
                    first[t + 1, b] = True
    avail, after = rng.random((2, steps, B, n, a)) < 0.6
    avail[..., 0] = after[..., 0] = True
    counts = np.array([s.size for s in spec.actions])
    action = (rng.random((steps, B, n)) * counts).astype(np.int32)
    np.put_along_axis(avail, action[..., None], True, -1)
    central = rng.normal(size=(2, steps, B, spec.state_size)).astype(np.float32) if spec.state_size else (None, None)
    arrays = Trajectory(
        obs=obs, next_obs=following, action=action, reward=(rng.normal(size=(steps, B, n)) * alive).astype(np.float32),
        terminated=terminated, truncated=truncated, first=first, alive=alive, avail=avail, next_avail=after,
        state=central[0], next_state=central[1], next_alive=alive & ~terminated,
    )  # fmt: skip
    return jax.tree.map(jnp.asarray, arrays)


def unsettled(agent, seed=3, scale=0.4):
    """Parameters and targets that have moved apart."""
    learned = jax.jit(agent.init)(jax.random.key(seed)).learned
    rng = np.random.default_rng(seed)
    shake = lambda x: x + scale * rng.normal(size=x.shape).astype(np.float32)  # noqa: E731
    return jax.tree.map(shake, learned.params), jax.tree.map(shake, learned.targets)


VARIANTS = {
    "iql": {},
    "iql-plain": {"double_q": False, "share": "none"},
    "iql-dueling": {"dueling": True, "share": "all"},
    "iql-3-step": {"n_step": 3},
    "iql-team": {"team_reward": "mean"},
    "vdn": {"mixer": "sum"},
    "vdn-sum-3-step": {"mixer": "sum", "team_reward": "sum", "n_step": 3},
    "vdn-lambda": {"mixer": "sum", "td_lambda": 0.7, "sequence": 4},
    "qmix": {"mixer": "monotonic", "mixer_size": 3, "hyper_size": 4},
    "qplex": {"mixer": "qplex", "hyper_size": 4},
    "wqmix": {"mixer": "weighted", "mixer_size": 3, "hyper_size": 4},
    "wqmix-central": {"mixer": "weighted", "mixer_size": 3, "hyper_size": 4, "weighting": "central", "low_weight": 0.3},
    "qtran": {"mixer": "qtran", "nopt_weight": 0.5, "opt_weight": 2.0},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_the_loss_and_its_gradient_are_those_of_the_equations(name):
    """The loss of a few stretches in float64 by loops over samples and agents, and its slopes by differences."""
    spec = world(state=2 if name == "qmix" else 0, sides=RIVALS if name in ("vdn", "qplex", "iql-team") else ALLIES)
    agent = learner(spec, **VARIANTS[name])
    params, targets = unsettled(agent)
    seen = jax.tree.map(lambda x: x[: agent.window], rollout(spec, seed=len(name)))
    weight = jnp.asarray(np.random.default_rng(1).uniform(0.5, 1.0, B), jnp.float32)
    (loss, (error, _)), grads = jax.jit(jax.value_and_grad(agent._loss, has_aux=True))(params, targets, seen, weight)
    problem = ref.Problem(agent, seen, np.asarray(weight, float))
    double = jax.tree.map(lambda x: np.asarray(x, float), (params, targets))
    expected, errors = problem.loss(*double)
    assert float(loss) == pytest.approx(expected, rel=1e-4)
    np.testing.assert_allclose(error, errors, rtol=1e-4, atol=1e-5)
    ref.compare_slopes(problem, *double, grads)


def test_memory_is_carried_and_final_observations_are_valued_with_it():
    """Values along a stretch, and of what followed each step, as acting step by step would have given them."""
    spec = world()
    agent = learner(spec, memory="gru", memory_size=6, sequence=4, burn_in=2, rollout_steps=4)
    params = unsettled(agent)[0]["q"]
    memory = jax.tree.map(lambda h: jnp.asarray(np.random.default_rng(1).normal(size=h.shape)), agent.memory(B))
    seen = rollout(spec, seed=5)._replace(memory=memory)
    values, memories = jax.jit(agent._unroll)(params, seen)
    following = jax.jit(agent._next_q)(params, jax.tree.map(lambda x: x[2:], seen._replace(memory=())), memories)
    step = jax.jit(lambda obs, memory: agent._q(params, Observation(obs[None]), memory, jnp.zeros((1, B), bool)))
    for t in range(6):
        keep = ~seen.first[t]
        memory = jax.tree.map(lambda h, keep=keep: h * keep[:, None, None], memory)
        now, after = step(seen.obs[t], memory)
        memory = jax.tree.map(lambda h: h[0], after)
        if t >= 2:
            np.testing.assert_allclose(values[t - 2], now[0], atol=1e-5)
            one, _ = step(seen.next_obs[t], memory)
            np.testing.assert_allclose(following[t - 2], one[0], atol=1e-5)


def test_gradients_stop_at_the_burn_in():
    """Nothing before the stretch learns, though it fills the memory."""
    spec = world()
    agent = learner(spec, memory="gru", memory_size=6, sequence=3, burn_in=3, rollout_steps=3, steps_per_update=3)
    params, targets = unsettled(agent)
    seen = rollout(spec, seed=2)._replace(memory=agent.memory(B))

    def loss(obs):
        return agent._loss(params, targets, seen._replace(obs=obs), jnp.ones(B))[0]

    slope = np.asarray(jax.jit(jax.grad(loss))(seen.obs))
    assert (slope[:3] == 0).all()
    assert np.abs(slope[3:]).max() > 0
    other = seen._replace(obs=seen.obs.at[0].add(1.0))
    unroll = jax.jit(agent._unroll)
    values = [unroll(params["q"], s)[0] for s in (seen, other)]
    assert np.abs(np.asarray(values[0] - values[1])).max() > 1e-4


RUN = {
    "steps": 2048, "envs": 8, "rollout_steps": 8, "steps_per_update": 8, "batch_size": 32, "hidden": (8,),
    "buffer_size": 512, "learning_starts": 128, "eval_every": 512, "eval_episodes": 8,
}  # fmt: skip


def state_of(run):
    checkpoints = Checkpoints(run.path / "checkpoints")
    state = checkpoints.restore(run.program.shape(), checkpoints.steps()[-1])[0]
    checkpoints.close()
    return state


def test_vdn_with_one_agent_is_iql(tmp_path):
    runs = [flockrl.train(a, "classic/cartpole", out=tmp_path / a, **RUN) for a in ("iql", "vdn")]
    states = [state_of(run) for run in runs]
    alike = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)  # two programs, which may round differently
    jax.tree.map(alike, *(s.learner.learned.params["q"] for s in states))
    jax.tree.map(alike, *(s.actors for s in states))
    assert int(states[0].learner.learned.updates) > 100


def test_qmix_with_one_agent_and_unit_weights_is_iql():
    spec = world(n=1)
    iql, qmix = learner(spec), learner(spec, mixer="monotonic", mixer_size=1)
    params, targets = unsettled(iql)
    mixer = jax.tree.map(jnp.zeros_like, qmix.networks(jax.random.key(0))["mixer"][0])
    mixer["bias"]["bias"], mixer["value"]["weights"]["bias"] = jnp.array([16.0]), jnp.array([-16.0])
    mixed = tuple({"q": nets["q"], "mixer": (mixer,)} for nets in (params, targets))
    seen = jax.tree.map(lambda x: x[:1], rollout(spec))
    slope = lambda agent, targets: jax.jit(  # noqa: E731
        jax.value_and_grad(lambda p: agent._loss(p, targets, seen, jnp.ones(B))[0])
    )
    own, own_grads = slope(iql, targets)(params)
    team, team_grads = slope(qmix, mixed[1])(mixed[0])
    assert float(team) == pytest.approx(float(own), rel=1e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), own_grads["q"], team_grads["q"])


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_illegal_actions_are_never_chosen(epsilon):
    """1e5 random draws each, with masks from one legal action to all."""
    spec = world()
    agent = learner(spec)
    batch = 34_000
    rng = np.random.default_rng(0)
    avail = rng.random((batch, 3, 4)) < rng.random((batch, 1, 1))
    forced = (rng.random((batch, 3)) * np.array([4, 4, 2])).astype(int)
    np.put_along_axis(avail, forced[..., None], True, -1)
    seen = Observation(jnp.asarray(rng.normal(size=(batch, 3, 3)), jnp.float32), jnp.asarray(avail))
    params = {"q": unsettled(agent)[0]["q"], "epsilon": jnp.float32(epsilon)}
    action, _, _ = jax.jit(lambda key: agent.act(params, seen, (), key, True))(jax.random.key(1))
    legal = avail & (np.arange(4) < np.array([4, 4, 2])[:, None])
    assert np.take_along_axis(legal, np.asarray(action)[..., None], -1).all()


def test_random_actions_are_uniform_over_the_legal_ones():
    legal = jnp.array([[True, False, True, True]])
    chosen = random_action(jax.random.uniform(jax.random.key(0), (30_000, 1)), legal)
    np.testing.assert_allclose(np.bincount(chosen[:, 0], minlength=4) / 30_000, [1 / 3, 0, 1 / 3, 1 / 3], atol=0.02)
    assert int(random_action(jnp.float32(0.999999), jnp.zeros(4, bool))) == 0  # the dead have no legal action


def test_exploration_falls_and_targets_move_when_it_is_their_turn():
    spec = world()
    agent = learner(spec, tau=1.0, target_every=3, learning_starts=48, explore_part=0.5)
    state = agent.init(jax.random.key(0))
    assert float(agent.policy(state)["epsilon"]) == 1.0
    later = state._replace(iterations=jnp.int32(4))
    assert float(agent.policy(later)["epsilon"]) == pytest.approx(1 - 0.95 * 0.8)
    assert float(agent.policy(state._replace(iterations=jnp.int32(9)))["epsilon"]) == pytest.approx(0.05)
    replay = add(state.replay, rollout(spec))
    learned = state.learned
    learn = jax.jit(agent.learn)
    for count in range(1, 7):
        place = jnp.zeros(12, jnp.int32), jnp.arange(12) % B, jnp.ones(12)
        learned, _, _ = learn(learned, replay, place, jnp.float32(1), jax.random.key(count))
        same = all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), learned.targets, learned.params)))
        assert same == (count % 3 == 0)


def test_hidden_sides_do_not_mix():
    """A change of the opponents' rewards does not move a side's own loss."""
    spec = world(sides=RIVALS)
    agent = learner(spec, mixer="sum")
    params, targets = unsettled(agent)
    seen = jax.tree.map(lambda x: x[:1], rollout(spec))
    slope = jax.jit(jax.grad(lambda p, s: agent._loss(p, targets, s, jnp.ones(B))[0]))
    before, after = (slope(params, seen._replace(reward=seen.reward.at[..., 2].add(x))) for x in (0.0, 5.0))
    jax.tree.map(np.testing.assert_array_equal, before["q"][0], after["q"][0])
    assert np.abs(before["q"][1]["head"]["bias"] - after["q"][1]["head"]["bias"]).max() > 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mixer": "sum", "weighting": "central"}, "weighting has no meaning with mixer=sum: it belongs to weighted"),
        ({"hyper_size": 8}, "hyper_size has no meaning with mixer=none"),
        ({"burn_in": 3}, "memory=gru"),
        ({"td_lambda": 0.5, "n_step": 2}, "set --n-step 1"),
        ({"sequence": 300, "batch_size": 256}, "batch_size"),
        ({"td_lambda": 1.5}, "td_lambda must be from 0 to 1, not 1.5"),
        ({"target_every": 0}, "target_every must be at least 1, not 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, words):
    with pytest.raises(UsageError, match=words):
        QConfig(**settings)


def test_sequences_that_would_skip_part_of_the_rollouts_are_refused():
    with pytest.raises(UsageError, match=r"Sequences begin with rollouts.*set --rollout-steps 5 or --sequence 6"):
        learner(memory="gru", sequence=5)


def test_continuous_actions_are_refused_with_names_of_learners_that_take_them():
    spec = EnvSpec("test", ("a",), (Box((2,)),), (Box((1,), -1.0, 1.0),), max_steps=3)
    with pytest.raises(UsageError, match=r"discrete actions.*mappo.*maddpg"):
        make_algorithm("qmix", spec, make_config("qmix", {}), envs=16, updates=5)
