"""Credit combined with learners: whole updates that stay finite, identities, and learning that needs it."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import flockrl
from flockrl.algos.assembly import code_of, make_algorithm
from flockrl.algos.counterfactual import ChoiceCritic
from flockrl.algos.maac import AttentionCritic
from flockrl.algos.presets import make_config
from flockrl.algos.returns import monte_carlo
from flockrl.algos.vdac import VDAC, VDACConfig
from flockrl.algos.wrappers.shaped import hint
from flockrl.core.errors import UsageError
from flockrl.core.groups import make_groups
from flockrl.core.types import Observation, Trajectory
from flockrl.envs import make
from flockrl.rollouts.compiled import scan_rollout, start

B, T = 4, 5
SMALL = {"hidden": (8,), "rollout_steps": T}


def updated(name, env, updates=2, **settings):
    """Rollouts and updates: the last rollout and metrics, the state before and after."""
    place = make(env)
    algorithm = make_algorithm(name, place.spec, make_config(name, {**SMALL, **settings}), envs=B, updates=9)

    def once(state, actors, key):
        actors, rollout, _ = scan_rollout(algorithm, algorithm.params(state), place, actors, key)
        after, metrics = algorithm.update(state, rollout, key)
        return after, actors, rollout, metrics

    step = jax.jit(once)
    state = before = algorithm.init(jax.random.key(0))
    actors = start(algorithm, place, jax.random.key(1), B)
    for i in range(updates):
        state, actors, rollout, metrics = step(state, actors, jax.random.key(2 + i))
    return algorithm, before, state, rollout, metrics


def finite(*trees):
    leaves = [x for x in jax.tree.leaves(trees) if jnp.issubdtype(x.dtype, jnp.floating)]
    return all(bool(jnp.isfinite(x).all()) for x in leaves)


REPLAY = {"steps_per_update": 4, "learning_starts": 0, "batch_size": 8, "buffer_size": 100}
TABLE = [
    ("ippo", "credit/rover:n=3,coupling=2,steps=9", {"credit": "difference"}),
    ("coma", "mpe/simple_spread", {"memory": "gru"}),
    ("vdac_mix", "mpe/simple_speaker_listener", {}),
    ("maac", "mpe/simple_speaker_listener", REPLAY),
    ("mappo", "credit/rover:n=3,coupling=2,steps=9", {"credit": "aristocrat", "memory": "gru"}),
    ("ippo", "credit/rover:n=3,coupling=2,steps=9", {"credit": "shapley", "comm": "commnet"}),
    ("ireinforce", "credit/bar:n=10,nights=3", {"credit": "shapley"}),
    ("ireinforce", "mpe/simple_spread", {"credit": "difference"}),
    ("mappo", "mpe/simple_speaker_listener", {"credit": "aristocrat"}),
    ("mappo", "mpe/simple_spread", {"credit": "shapley", "normalize_obs": True}),
    ("mappo", "mpe/simple_spread", {"credit": "counterfactual", "comm": "tarmac"}),
    ("iql", "credit/bar:n=4,nights=3", {"credit": "difference", **REPLAY}),
    ("isac", "credit/rover:n=3,coupling=2,steps=9", {"credit": "shapley", **REPLAY}),
    ("vdac", "mpe/simple_spread", {"memory": "gru"}),
    ("haa2c", "mpe/simple_speaker_listener", {"memory": "gru"}),
    ("happo", "mpe/simple_spread:continuous_actions=true", {"share": "groups"}),
    ("hatrpo", "mpe/simple_reference", {}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "env", "settings"), TABLE)
def test_combinations_learn_and_stay_finite(name, env, settings):
    algorithm, before, after, _, metrics = updated(name, env, **settings)
    assert finite(after, metrics)
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), algorithm.params(before), algorithm.params(after))
    assert any(jax.tree.leaves(moved))
    assert ("credit" in metrics) == (make_config(name, settings).credit != "none")


def test_a_learner_is_paid_the_difference_that_each_agent_made():
    """Every agent's credit, in the metrics of a rollout, against the rollout's own actions and counting by hand."""
    _, _, _, rollout, metrics = updated("ireinforce", "credit/bar:n=4,nights=3,capacity=2", 1, credit="difference")
    action = np.asarray(rollout.action)
    came = (action[..., None] == np.arange(3)).sum(2)
    x = np.take_along_axis(came, action, -1)
    pay = x * np.exp(-x / 2) - (x - 1) * np.exp(-(x - 1) / 2)
    for i in range(4):
        assert metrics[f"credit_agent_{i}"] == pytest.approx(pay[..., i].mean(), abs=1e-5)


@pytest.mark.slow
def test_a_learned_reward_finds_what_the_environment_would_have_told():
    env, common = "credit/bar:n=3,nights=3,capacity=1", {"credit": "difference", "null_action": 0, "entropy": 0.2}
    *_, known = updated("ippo", env, 150, **common)
    *_, metrics = updated("ippo", env, 150, credit_reward="learned", reward_lr=0.01, **common)
    assert metrics["reward_explained"] > 0.9
    assert metrics["credit"] == pytest.approx(float(known["credit"]), abs=0.1)


# --- COMA, VDAC, MAAC


def test_comas_critic_does_not_read_the_own_action_and_reads_the_others():
    spec = make("mpe/simple_spread").spec
    critic = ChoiceCritic(spec, make_config("coma", SMALL), make_groups(spec, "groups"))
    seen = Observation(jax.random.normal(jax.random.key(0), (6, 3, spec.obs_size)))
    action = jnp.tile(jnp.array([0, 1, 2]), (6, 1))
    (params,) = critic.init([jax.random.key(1)], seen)
    values = critic.values((params,), seen, action)
    again = critic.values((params,), seen, action.at[:, 0].set(4))
    assert values.shape == (6, 3, 5)
    np.testing.assert_array_equal(again[:, 0], values[:, 0])
    assert (again[:, 1:] != values[:, 1:]).any((0, 2)).all()
    np.testing.assert_array_equal(critic.chosen((params,), seen, action)[:, 1], values[:, 1, 1])


def critic_of_choices(env, lead, share="groups"):
    """A critic of choices whose outputs are of size 1, with parameters, and what a team sees and does."""
    spec = make(env).spec
    critic = ChoiceCritic(spec, make_config("coma", {**SMALL, "hidden": (8, 6)}), make_groups(spec, share))
    keys = jax.random.split(jax.random.key(0), 5)
    state = jax.random.normal(keys[0], (*lead, spec.state_size)) if spec.state_size else None
    alive = jax.random.bernoulli(keys[1], 0.7, (*lead, spec.num_agents))
    seen = Observation(jax.random.normal(keys[2], (*lead, spec.num_agents, spec.obs_size)), state=state, alive=alive)
    action = jax.random.randint(keys[3], (*lead, spec.num_agents), 0, min(a.size for a in spec.actions))
    params = jax.jit(critic.init)(list(jax.random.split(keys[4], len(critic.groups))), seen)
    for p in params:
        p["head"]["kernel"] = p["head"]["kernel"] * 100
    return spec, critic, params, seen, action


@pytest.mark.parametrize(("env", "share"), [("mpe/simple_spread", "groups"), ("explore/pass", "none")])
def test_comas_critic_equals_one_product_of_everything_side_by_side(env, share):
    """The first layer multiplies the state once for all agents: values and gradients are those of the plain form."""
    spec, critic, params, seen, action = critic_of_choices(env, (7,), share)
    n = spec.num_agents

    def plain(params):
        outs = []
        for i in range(n):
            place = next(k for k, group in enumerate(critic.groups) if i in group.agents)
            p, bias = params[place], params[place]["torso"]["dense_0"]["bias"]
            others = seen.alive * (jnp.arange(n) != i)
            does = jax.nn.one_hot(action, spec.action_size) * others[..., None]
            whole = seen.obs.reshape(7, -1) if seen.state is None else seen.state
            x = jnp.concatenate([whole, seen.obs[:, i], does.reshape(7, -1)], -1)
            bias = bias[critic.groups[place].agents.index(i)] if bias.ndim == 2 else bias
            x = jnp.tanh(x @ p["torso"]["dense_0"]["kernel"] + bias)
            x = jnp.tanh(x @ p["torso"]["dense_1"]["kernel"] + p["torso"]["dense_1"]["bias"])
            outs.append(x @ p["head"]["kernel"] + p["head"]["bias"])
        return jnp.stack(outs, 1)

    def slopes(form):
        return jax.jit(jax.grad(lambda p: (jnp.sin(form(p)).sum(), form(p)), has_aux=True))(params)

    got, wanted = slopes(lambda p: critic.values(p, seen, action)), slopes(plain)
    assert float(jnp.abs(wanted[1]).max()) > 0.5
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), got, wanted)


@pytest.mark.parametrize("part", [1, 2])
def test_comas_critic_learns_from_steps_of_a_rollout_once(part):
    """With small plain steps, what parts of a rollout move adds up to what they do at once, where part 2 leaves every
    other one out; who is not there moves nothing."""
    _, critic, params, seen, action = critic_of_choices("mpe/simple_spread", (6, 4))
    critic.part = part
    left = jax.random.normal(jax.random.key(9), action.shape)
    plain, lr = optax.identity(), jnp.float32(1e-2)

    def moved(steps, weight):
        rollout, states = (seen, action, left, weight), (plain.init(params[0]),)
        (after,), _ = critic.fit(plain, (params, states), rollout, steps, lr, jax.random.key(3))
        return jnp.concatenate([x.reshape(-1) for x in jax.tree.leaves(jax.tree.map(jnp.subtract, after, params[0]))])

    parts, whole, nobody = jax.jit(lambda: (moved(4, None) / 4, moved(1, None), moved(4, jnp.zeros(action.shape))))()
    np.testing.assert_allclose(parts, whole, atol=0.05 * float(jnp.abs(whole).max()))
    assert not nobody.any()


@pytest.mark.slow
def test_coma_with_a_silent_critic_is_mappo():
    """Where no choice is worth more than the state's value, the advantage is the one that mappo has."""
    place = make("mpe/simple_spread")
    coma, mappo = (
        make_algorithm(name, place.spec, make_config(name, SMALL), envs=B, updates=9) for name in ("coma", "mappo")
    )
    state = coma.init(jax.random.key(0))
    silent = jax.tree.map(jnp.zeros_like, state.params["choice"])
    state = state._replace(params={**state.params, "choice": silent})
    actors = start(coma, place, jax.random.key(1), B)
    _, rollout, _ = scan_rollout(coma, coma.params(state), place, actors, jax.random.key(2))
    after, _ = jax.jit(coma.update)(state, rollout, jax.random.key(3))
    wanted, _ = jax.jit(mappo.update)(mappo.init(jax.random.key(0)), rollout, jax.random.key(3))
    for name in ("actor", "critic"):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), after.params[name], wanted.params[name])
    assert (after.params["choice"][0]["head"]["bias"] != 0).any()


@pytest.mark.parametrize("mixer", ["sum", "monotonic"])
def test_vdac_mixes_own_values_and_popart_leaves_them_where_they_were(mixer):
    env = make("mpe/simple_spread")
    learner = VDAC(env.spec, VDACConfig(mixer=mixer, **SMALL), B, 9)
    state = learner.init(jax.random.key(0))
    obs = jax.random.normal(jax.random.key(1), (2, B, 3, env.spec.obs_size))
    seen, critic = Observation(obs), state.params["critic"]
    value, _ = learner._values(critic, seen, ((),), None)
    own, _ = super(VDAC, learner)._values(critic[:-1], seen, ((),), None)
    assert value.shape == own.shape
    np.testing.assert_array_equal(value[..., :1] + jnp.zeros(3), value)
    if mixer == "sum":
        np.testing.assert_allclose(value[..., 0], own.sum(-1), rtol=1e-6)
    mean, std, new_mean, new_std = (jnp.full(3, x) for x in (0.5, 2.0, -1.0, 5.0))
    moved = learner._popart(critic, std, mean, new_std, new_mean)
    np.testing.assert_allclose(
        learner._values(moved, seen, ((),), None)[0] * 5.0 - 1.0, value * 2.0 + 0.5, rtol=1e-4, atol=1e-5
    )
    if mixer == "monotonic":  # a larger own value never lowers the team's

        def total(own):
            from flockrl.nets.mixers import Joint

            joint = Joint(own, own, own[..., None], obs.reshape(2, B, -1))
            return learner.mixer.apply({"params": critic[-1]["mixer"]}, joint).sum()

        assert (jax.grad(total)(own) >= 0).all()


def test_maacs_critic_does_not_read_the_own_action_and_reads_the_others():
    net = AttentionCritic((0, 2), 8, 2, 4, "relu")
    obs, does = jax.random.normal(jax.random.key(0), (5, 3, 6)), jax.nn.one_hot(jnp.array([[0, 1, 2]] * 5), 4)
    params = net.init(jax.random.key(1), obs, beside=does)
    value, _ = net.apply(params, obs, beside=does)
    assert value.shape == (5, 2, 4)
    other = does.at[:, 0].set(jax.nn.one_hot(3, 4))
    again, _ = net.apply(params, obs, beside=other)
    np.testing.assert_array_equal(again[:, 0], value[:, 0])
    assert (again[:, 1] != value[:, 1]).any()


# --- shaping


def trajectory_of(obs, following, terminated):
    zeros = jnp.zeros((*obs.shape[:2], 1))
    return Trajectory(
        obs=obs, action=zeros.astype(jnp.int32), reward=zeros, terminated=terminated, truncated=zeros.astype(bool),
        next_obs=following, first=jnp.zeros(obs.shape[:2], bool),
    )  # fmt: skip


def test_hints_of_an_episode_add_up_to_minus_its_first_potential():
    spec = make("mpe/simple").spec
    states = jax.random.normal(jax.random.key(0), (7, 2, 1, spec.obs_size))
    ended = jnp.zeros((6, 2, 1), bool).at[-1].set(True)
    trajectory = trajectory_of(states[:-1], states[1:], ended)

    def potential(_, seen):
        return jnp.sin(seen.obs).sum((-1, -2)) * 3

    hints = hint(potential, spec, trajectory, 0.9)
    total, _ = monte_carlo(hints, ended, 0.9)
    np.testing.assert_allclose(total[..., 0], -potential(spec, trajectory.observation), rtol=1e-4, atol=1e-5)


def test_shaping_leaves_the_best_policy_of_a_small_game_as_it_is():
    """Values of all policies of a game with 4 states and 2 choices, with and without hints that mislead."""
    rng = np.random.default_rng(3)
    follows, paid, gamma = rng.integers(0, 5, (4, 2)), rng.normal(size=(4, 2)), 0.9  # state 4 ends the game
    spec = make("mpe/simple").spec
    phi = np.append(rng.normal(size=4) * 10, 7.0)
    pairs = list(itertools.product(range(4), range(2)))

    def picture(states):
        return jnp.asarray(np.eye(5, spec.obs_size)[states][None, :, None, :], jnp.float32)

    def potential(_, seen):
        return (seen.obs[..., 0, :4] * phi[:4]).sum(-1)

    now, after = [s for s, _ in pairs], [follows[s, a] for s, a in pairs]
    ended = jnp.asarray(np.array(after) == 4)[None, :, None]
    hints = np.asarray(hint(potential, spec, trajectory_of(picture(now), picture(after), ended), gamma)).reshape(4, 2)

    def best(rewards):
        values = []
        for policy in itertools.product(range(2), repeat=4):
            move = np.zeros((5, 5))
            move[range(4), [follows[s, policy[s]] for s in range(4)]] = 1
            gain = np.append([rewards[s, policy[s]] for s in range(4)], 0.0)
            move[4] = 0
            values.append(np.linalg.solve(np.eye(5) - gamma * move, gain)[:4])
        return np.stack(values)

    plain, shaped = best(paid), best(paid + hints)
    np.testing.assert_allclose(shaped, plain - phi[:4], atol=1e-4)  # every policy's value moves alike
    assert (plain.argmax(0) == shaped.argmax(0)).all()


def lowest_landmark(spec, seen):
    return -jnp.abs(seen.obs).mean((-1, -2))


def test_a_potential_is_code_that_files_may_not_name_without_trust():
    name = f"{__name__}:lowest_landmark"
    config = make_config("ippo", {"shaping": name})
    assert code_of(config) == [name]
    with pytest.raises(UsageError, match="no potential 'nowhere:nothing'"):
        updated("ippo", "mpe/simple_spread", 1, shaping="nowhere:nothing")


@pytest.mark.slow
def test_learners_get_hints():
    *_, after, _, metrics = updated("iql", "mpe/simple_spread", 1, shaping=f"{__name__}:lowest_landmark", **REPLAY)
    assert finite(after)
    assert metrics["shaping"] != 0


# --- learning


@pytest.mark.slow
def test_credit_solves_the_bar_that_the_team_reward_does_not(tmp_path):
    env, common = "credit/bar:n=60,nights=6,capacity=3", {"steps": 24_000, "envs": 16, "rollout_steps": 10}
    scores = {
        credit: flockrl.train("ippo", env, credit=credit, out=tmp_path / credit, **common).evaluate(4).mean
        for credit in ("difference", "none")
    }
    assert scores["difference"] >= 0.95 * 5.5182, scores
    assert scores["none"] < 0.8 * 5.5182, scores


@pytest.mark.slow
def test_a_run_with_a_learned_reward_resumes_exactly(tmp_path):
    common = {"credit": "difference", "steps": 600, "envs": 4, "rollout_steps": 5, "hidden": (8,), "eval_episodes": 4}
    whole = flockrl.train("ippo", "mpe/simple_spread", out=tmp_path / "whole", lr_schedule="constant", **common)
    flockrl.train(
        "ippo", "mpe/simple_spread", out=tmp_path / "part", lr_schedule="constant", **{**common, "steps": 300}
    )
    part = flockrl.resume(tmp_path / "part", steps=600)
    jax.tree.map(np.testing.assert_array_equal, whole.params(), part.params())
