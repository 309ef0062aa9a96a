"""REINFORCE's update against gradients worked out by hand in NumPy, and what must not matter to it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_ppo import PLAIN as PPO_PLAIN
from test_ppo import B, T, mlp, numpy_values, spec, trajectory, updated

from flockrl.algos.assembly import make_algorithm
from flockrl.algos.ppo import _PPO, PPOConfig
from flockrl.algos.presets import make_config
from flockrl.algos.reinforce import Reinforce, ReinforceConfig, make
from flockrl.core.errors import UsageError

PLAIN = {key: value for key, value in PPO_PLAIN.items() if key not in ("epochs", "minibatches")}


def learner_and_data(world, seed=0, deaths=False, masks=False, **settings):
    """A learner, its first state, and a rollout of its own policy."""
    learner = Reinforce(world, ReinforceConfig(**{**PLAIN, **settings}), B, 10)
    state = jax.jit(learner.init)(jax.random.key(1))
    # The first policy is nearly uniform: make it choosier, so that gradients differ between actions.
    for p in state.params["actor"]:
        p["head"]["kernel"] = 50 * p["head"]["kernel"]
    data = trajectory(world, learner, state, seed, deaths)
    if masks:
        rng = np.random.default_rng(7)
        own = np.arange(world.action_size) < np.array([s.size for s in world.actions])[:, None]
        chosen = np.asarray(data.action)[..., None] == np.arange(world.action_size)
        data = data._replace(avail=jnp.asarray(((rng.random(chosen.shape) < 0.5) & own) | chosen))
    return learner, state, data


def numpy_returns(learner, params, data):
    """[T, B, N] returns, walking forward from each step, and whether they are known."""
    gamma, baseline = learner.config.gamma, learner.config.baseline != "none"
    terminated, truncated = np.asarray(data.terminated), np.asarray(data.truncated)
    reward = np.asarray(data.reward, float)
    final = numpy_values(learner, params, np.asarray(data.next_obs, float)) if baseline else np.zeros(reward.shape)
    returns, known = np.zeros(reward.shape), np.ones(reward.shape, bool)
    for t, b, i in np.ndindex(*reward.shape):
        for s in range(t, T):
            returns[t, b, i] += gamma ** (s - t) * reward[s, b, i]
            if terminated[s, b, i]:
                break
            if truncated[s, b, i] or s == T - 1:
                returns[t, b, i] += gamma ** (s - t + 1) * final[s, b, i]
                known[t, b, i] = truncated[s, b, i] or baseline
                break
    return returns, known


def backward(p, x, k, d_out):
    """Gradients of a network with one hidden layer for the k-th agent of its group: x [R, F], d_out [R, outputs]."""
    first = p["torso"]["dense_0"]
    kernel, bias = np.asarray(first["kernel"], float), np.asarray(first["bias"], float)
    hidden = np.tanh(x @ kernel + (bias[k] if bias.ndim == 2 else bias))
    d_hidden = (d_out @ np.asarray(p["head"]["kernel"], float).T) * (1 - hidden**2)
    d_bias = np.zeros_like(bias)
    d_bias[k if bias.ndim == 2 else slice(None)] = d_hidden.sum(0)
    return {
        "head": {"kernel": hidden.T @ d_out, "bias": d_out.sum(0)},
        "torso": {"dense_0": {"kernel": x.T @ d_hidden, "bias": d_bias}},
    }


def numpy_gradient(learner, params, data):
    """The gradient of -E[log pi(a | o) (G - b)] - c H + E[(b - G)^2] / 2, by hand in float64."""
    config, obs = learner.config, np.asarray(data.obs, float)
    returns, known = numpy_returns(learner, params, data)
    baseline = config.baseline != "none"
    value = numpy_values(learner, params, obs) if baseline else np.zeros_like(returns)
    weight = known * (1.0 if data.alive is None else np.asarray(data.alive, float))
    grads = {name: [jax.tree.map(np.zeros_like, p) for p in nets] for name, nets in params.items()}
    joint = np.concatenate([obs[..., j, : s.size] for j, s in enumerate(learner.spec.observations)], -1)
    for g, group in enumerate(learner.groups):
        agents = list(group.agents)
        w = weight[..., agents] / weight[..., agents].sum()
        advantage = (returns - value)[..., agents]
        if config.normalize_advantage:
            centred = advantage - (advantage * w).sum()
            advantage = centred / np.sqrt((centred**2 * w).sum())
        for k, i in enumerate(agents):
            x = obs[..., i, : group.obs_size].reshape(T * B, -1)
            legal = np.broadcast_to(group.legal[k], (T, B, group.action_size))
            if data.avail is not None:
                legal = legal & np.asarray(data.avail)[..., i, : group.action_size]
            logits = np.where(legal.reshape(T * B, -1), mlp(params["actor"][g], x, k), -np.inf)
            p = np.exp(logits - logits.max(-1, keepdims=True))
            p = p / p.sum(-1, keepdims=True)
            log_p = np.log(np.where(p > 0, p, 1.0))
            entropy = -(p * log_p).sum(-1, keepdims=True)
            taken = np.asarray(data.action)[..., i].reshape(-1, 1) == np.arange(group.action_size)
            credit, share = (a[..., k].reshape(-1, 1) for a in (advantage, w))
            d_logits = share * (-credit * (taken - p) + config.entropy * p * (log_p + entropy))
            parts = [("actor", x, k, d_logits)]
            if baseline:
                d_value = share * (value - returns)[..., i].reshape(-1, 1)
                if config.baseline == "central":
                    wide = np.eye(group.size)[k] * d_value
                    parts.append(("critic", joint.reshape(T * B, -1), k, wide))
                else:
                    parts.append(("critic", x, k, d_value))
            for name, inputs, number, d_out in parts:
                new = backward(params[name][g], inputs, number, d_out)
                grads[name][g] = jax.tree.map(np.add, grads[name][g], new)
    return grads


VARIANTS = [
    ("none", "all", {}),
    ("none", "groups", {"deaths": True, "normalize_advantage": True}),
    ("own", "none", {"deaths": True}),
    ("central", "groups", {"masks": True}),
    ("own", "all", {"masks": True, "deaths": True, "normalize_advantage": True}),
]


@pytest.mark.parametrize(("baseline", "share", "settings"), VARIANTS)
def test_one_step_matches_a_gradient_by_hand(baseline, share, settings):
    world = spec(sizes=(4, 2, 4), actions=(3, 2, 3)) if share == "groups" else spec()
    learner, state, data = learner_and_data(world, baseline=baseline, share=share, lr=0.01, **settings)
    after, _ = updated(learner, state, data)
    expected = numpy_gradient(learner, state.params, data)
    assert set(after.params) == set(expected)
    for name, nets in expected.items():
        for g, grads in enumerate(nets):
            # Adam's first moment after one step is a tenth of the gradient.
            found = jax.tree.map(lambda m: 10 * np.asarray(m, float), after.optimiser[name][g][1].mu)
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5), found, dict(grads))
            stepped = jax.tree.map(
                lambda p, d: np.asarray(p, float) - 0.01 * d / (np.abs(d) + 1e-5), state.params[name][g], found
            )
            moved = after.params[name][g]
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), moved, stepped)


def test_without_a_baseline_cut_episodes_teach_nothing():
    """The last end of each environment is at step 1 or 2: whatever happens after it moves nothing."""
    world = spec()
    settings = {"normalize_advantage": True, "normalize_obs": True}
    learner, state, data = learner_and_data(world, baseline="none", **settings)
    last = jnp.array([1, 2, 1, 2])
    ends = (jnp.arange(T)[:, None] == last)[..., None] & jnp.ones(3, bool)
    truncates = jnp.array([True, False, False, True])[:, None]
    data = data._replace(terminated=ends & ~truncates, truncated=ends & truncates)
    later = (jnp.arange(T)[:, None] > last)[..., None]
    other = data._replace(
        reward=jnp.where(later, 99.0, data.reward),
        action=jnp.where(later, 0, data.action),
        obs=jnp.where(later[..., None], 5.0, data.obs),
    )
    update = jax.jit(learner.update)
    one, two = (update(state, d, jax.random.key(0)) for d in (data, other))
    jax.tree.map(np.testing.assert_array_equal, one, two)
    assert float(one[1]["known_returns"]) == pytest.approx((2 + 3 + 2 + 3) / (T * B))
    third = update(state, data._replace(reward=data.reward.at[0].add(1.0)), jax.random.key(0))
    assert float(third[1]["policy_loss"]) != float(one[1]["policy_loss"])


def test_without_a_baseline_there_is_no_critic():
    learner = Reinforce(spec(), ReinforceConfig(baseline="none", memory="gru", normalize_obs=True), B, 10)
    state = jax.eval_shape(learner.init, jax.random.key(0))
    assert set(state.params) == set(state.optimiser) == {"actor"}
    assert state.value_moments == state.critic_memory == state.state_moments == ()


@pytest.mark.parametrize(("critic", "memory"), [("own", "none"), ("central", "gru")])
def test_with_gae_it_is_advantage_actor_critic(critic, memory):
    """One epoch of PPO without clipping or minibatches has the same gradient: the ratio is 1."""
    world = spec(state=5)
    common = {"memory": memory, "memory_size": 5, "hidden": (6,), "rollout_steps": T, "gae_lambda": 0.8, "lr": 1e-3}
    one = Reinforce(world, ReinforceConfig(baseline=critic, advantage="gae", **common), B, 10)
    two = _PPO(world, PPOConfig(critic=critic, epochs=1, minibatches=1, clip=None, **common), B, 10)
    state = jax.jit(one.init)(jax.random.key(2))
    jax.tree.map(np.testing.assert_array_equal, state, jax.jit(two.init)(jax.random.key(2)))
    data = trajectory(world, one, state, deaths=True)
    (mine, metrics), (theirs, others) = (updated(learner, state, data) for learner in (one, two))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), mine, theirs)
    for name in ("entropy", "value_loss", "explained_variance", "grad_norm", "lr"):
        assert float(metrics[name]) == pytest.approx(float(others[name]), rel=1e-4)


def test_lambda_is_1_for_returns_and_chosen_for_gae():
    assert ReinforceConfig().smoothing == 1.0
    assert ReinforceConfig(advantage="gae").smoothing == 0.9
    assert ReinforceConfig(advantage="gae", gae_lambda=0.0).smoothing == 0.0


def test_names():
    assert {make_config(name, {}).baseline for name in ("reinforce", "ireinforce", "ipg")} == {"own"}
    assert make_config("mareinforce", {}).baseline == "central"
    with pytest.raises(UsageError, match="use ireinforce or mareinforce instead"):
        make_algorithm("reinforce", spec(), make_config("reinforce", {}), envs=B, updates=1)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"advantage": "gae", "baseline": "none"}, "use --baseline own or central, or --advantage return"),
        ({"gae_lambda": 0.5}, "use --advantage gae"),
        ({"advantage": "gae", "gae_lambda": 1.5}, "gae_lambda must be from 0 to 1, not 1.5"),
        ({"lr": 0.0}, "lr must be above 0, not 0.0"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, sentence):
    with pytest.raises(UsageError, match=sentence):
        ReinforceConfig(**settings)


def test_without_a_baseline_rollouts_hold_whole_episodes():
    with pytest.raises(UsageError, match="use --rollout-steps 9 or more, or --baseline own or central"):
        make(spec(), ReinforceConfig(baseline="none", rollout_steps=8), envs=B, updates=1)
    assert make(spec(), ReinforceConfig(baseline="none", rollout_steps=9), envs=B, updates=1).rollout_steps == 9
    assert make(spec(), ReinforceConfig(baseline="own", rollout_steps=8), envs=B, updates=1).rollout_steps == 8
