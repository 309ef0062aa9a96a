"""PPO's update against NumPy, and identities between its variants."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flockrl.algos.parts import schedule_factor
from flockrl.algos.ppo import _PPO, PPOConfig, make
from flockrl.core.errors import UsageError
from flockrl.core.types import Box, Discrete, EnvSpec, Observation, Trajectory

T, B = 5, 4
PLAIN = {
    "hidden": (6,), "epochs": 1, "minibatches": 1, "normalize_advantage": False, "normalize_value": False,
    "max_grad_norm": None, "lr_schedule": "constant", "rollout_steps": T, "entropy": 0.01,
}  # fmt: skip


def spec(n=3, sizes=(4, 4, 4), actions=(3, 3, 3), state=0):
    return EnvSpec(
        "test", tuple(f"a_{i}" for i in range(n)), tuple(Box((s,)) for s in sizes[:n]),
        tuple(Discrete(a) for a in actions[:n]), max_steps=9, state_size=state, reward_after_death=False,
    )  # fmt: skip


def trajectory(world, learner, state, seed=0, deaths=False):
    """Random experience that the learner's own policy acted in."""
    rng = np.random.default_rng(seed)
    n = world.num_agents
    width = np.array([s.size for s in world.observations])
    mask = (np.arange(world.obs_size) < width[:, None]).astype(np.float32)
    obs, following = (rng.normal(size=(2, T, B, n, world.obs_size)) * mask).astype(np.float32)
    alive = jnp.asarray(rng.random((T, B, n)) < 0.7) if deaths else None
    actions, logps = [], []
    memory = learner.memory(B)
    first = jnp.asarray(rng.random((T, B)) < 0.3)
    act = jax.jit(learner.act, static_argnums=4)
    for t in range(T):
        clear = ~first[t]
        h = jax.tree.map(lambda x, clear=clear: x * clear[:, None, None], memory)
        action, memory, extras = act(
            learner.policy(state), Observation(jnp.asarray(obs[t])), h, jax.random.key(t), True
        )
        actions.append(action)
        logps.append(extras["logp"])
    terminated = rng.random((T, B, n)) < 0.2
    truncated = (rng.random((T, B, 1)) < 0.3) & ~terminated
    central = jnp.asarray(rng.normal(size=(T, B, world.state_size)), jnp.float32) if world.state_size else None
    return Trajectory(
        obs=jnp.asarray(obs), action=jnp.stack(actions), reward=jnp.asarray(rng.normal(size=(T, B, n)), jnp.float32),
        terminated=jnp.asarray(terminated), truncated=jnp.asarray(truncated), next_obs=jnp.asarray(following),
        first=first, alive=alive, state=central, next_state=central, memory=learner.memory(B),
        extras={"logp": jnp.stack(logps)},
    )  # fmt: skip


def mlp(p, x, k=0):
    """A network with one hidden layer, for the k-th agent of its group."""
    first = p["torso"]["dense_0"]
    bias = np.asarray(first["bias"], float)
    hidden = x @ np.asarray(first["kernel"], float) + (bias[k] if bias.ndim == 2 else bias)
    return np.tanh(hidden) @ np.asarray(p["head"]["kernel"], float) + np.asarray(p["head"]["bias"], float)


def numpy_values(learner, params, obs):
    """[..., N, O] -> [..., N], agent by agent."""
    out = np.zeros(obs.shape[:-1])
    for g, group in enumerate(learner.groups):
        for k, i in enumerate(group.agents):
            if learner.critic == "own":
                out[..., i] = mlp(params["critic"][g], obs[..., i, : group.obs_size], k)[..., 0]
            else:
                sizes = [s.size for s in learner.spec.observations]
                joint = np.concatenate([obs[..., j, :s] for j, s in enumerate(sizes)], -1)
                out[..., i] = mlp(params["critic"][g], joint)[..., k]
    return out


def numpy_loss(learner, params, old_params, data):
    """The whole objective from the paper's equations, in float64 loops."""
    c = learner.config
    obs, following = np.asarray(data.obs, float), np.asarray(data.next_obs, float)
    terminated, truncated = np.asarray(data.terminated), np.asarray(data.truncated)
    value = numpy_values(learner, old_params, obs)
    final = numpy_values(learner, old_params, following)
    advantage = np.zeros_like(value)
    for b in range(B):
        for i in range(value.shape[2]):
            running = 0.0
            for t in reversed(range(T)):
                cut = truncated[t, b].any() or t == T - 1
                after = final[t, b, i] if cut else value[t + 1, b, i]
                delta = data.reward[t, b, i] + c.gamma * after * (not terminated[t, b, i]) - value[t, b, i]
                running = delta + c.gamma * c.gae_lambda * running * (not (terminated | truncated)[t, b, i])
                advantage[t, b, i] = running
    target = advantage + value
    new_value = numpy_values(learner, params, obs)
    alive = np.ones_like(value) if data.alive is None else np.asarray(data.alive, float)
    total = 0.0
    for g, group in enumerate(learner.groups):
        terms, weight = 0.0, 0.0
        for k, i in enumerate(group.agents):
            logits = mlp(params["actor"][g], obs[..., i, : group.obs_size], k)
            logits = np.where(group.legal[k], logits, -1e9)
            logp = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
            logp = logp - logits.max(-1, keepdims=True)
            chosen = np.take_along_axis(logp, np.asarray(data.action)[..., i, None], -1)[..., 0]
            ratio = np.exp(chosen - np.asarray(data.extras["logp"], float)[..., i])
            a = advantage[..., i]
            surrogate = np.minimum(ratio * a, np.clip(ratio, 1 - c.clip, 1 + c.clip) * a)
            entropy = -(np.exp(logp) * np.where(group.legal[k], logp, 0)).sum(-1)
            error = 0.5 * (new_value[..., i] - target[..., i]) ** 2
            terms += ((-surrogate - c.entropy * entropy + error) * alive[..., i]).sum()
            weight += alive[..., i].sum()
        total += terms / weight
    return total


def batch_of(learner, state, data):
    """The batch that `update` learns from, caught on its way."""
    caught = {}

    def catch(params, optimiser, batch, lr, key):
        caught["batch"] = batch
        return params, optimiser, {}

    def prepare(state, data):
        learner.update(state, data, jax.random.key(0))
        return caught["batch"]

    original, learner._epochs = learner._epochs, catch
    batch = jax.jit(prepare)(state, data)
    learner._epochs = original
    return batch


def updated(learner, state, data, seed=1):
    """One compiled update."""
    return jax.jit(learner.update)(state, data, jax.random.key(seed))


VARIANTS = [
    ("own", "all", False), ("own", "none", True), ("central", "all", True), ("central", "none", False),
    ("own", "groups", True),
]  # fmt: skip


@pytest.mark.parametrize(("critic", "share", "deaths"), VARIANTS)
def test_loss_and_gradient_match_numpy(critic, share, deaths):
    world = spec(sizes=(4, 2, 4), actions=(3, 2, 3)) if share == "groups" else spec()
    learner = _PPO(world, PPOConfig(critic=critic, share=share, **PLAIN), B, 10)
    state = jax.jit(learner.init)(jax.random.key(1))
    data = trajectory(world, learner, state, deaths=deaths)
    batch = batch_of(learner, state, data)
    rng = np.random.default_rng(5)
    moved = jax.tree.map(lambda p: p + 0.3 * rng.normal(size=p.shape).astype(np.float32), state.params)
    swap = lambda tree: jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), tree)  # noqa: E731
    part = type(batch)(*swap(batch[:-2]), *batch[-2:])
    (loss, _), grads = jax.jit(jax.value_and_grad(learner._loss, has_aux=True))(moved, part, jnp.float32(0.01))
    assert float(loss) == pytest.approx(numpy_loss(learner, moved, state.params, data), rel=1e-5)
    direction = jax.tree.map(lambda p: rng.normal(size=p.shape), moved)

    def along(eps):
        nudged = jax.tree.map(lambda p, d: np.asarray(p, float) + eps * d, moved, direction)
        return numpy_loss(learner, nudged, state.params, data)

    numeric = (along(1e-5) - along(-1e-5)) / 2e-5
    exact = sum(jax.tree.leaves(jax.tree.map(lambda g, d: float((np.asarray(g, float) * d).sum()), grads, direction)))
    assert exact == pytest.approx(numeric, rel=2e-4, abs=1e-5)


@pytest.mark.parametrize("deaths", [False, True])
def test_the_magnet_adds_the_divergence_from_it(deaths):
    """m KL(pi || magnet), by a sum over actions, and nothing else."""
    world = spec()
    plain, pulled = (_PPO(world, PPOConfig(magnet=m, magnet_rate=0.25, **PLAIN), B, 10) for m in (0.0, 0.7))
    state = jax.jit(pulled.init)(jax.random.key(1))
    rng = np.random.default_rng(5)
    away = lambda tree: jax.tree.map(lambda p: p + 0.3 * rng.normal(size=p.shape).astype(np.float32), tree)  # noqa: E731
    state = state._replace(magnet=away(state.magnet))
    data = trajectory(world, plain, state, deaths=deaths)
    moved, losses = away(state.params), []
    for learner in (plain, pulled):
        batch = batch_of(learner, state, data)
        part = type(batch)(*jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), batch[:-2]), *batch[-2:])
        losses.append(float(jax.jit(learner._loss)(moved, part, jnp.float32(0.01))[0]))
    follower = jax.tree.map(lambda m, p: 0.75 * m + 0.25 * p, state.magnet, state.params["actor"])
    logits = [plain.actor(p, data.observation, data.memory, data.first)[0][0] for p in (moved["actor"], follower)]
    ours, theirs = (np.asarray(jax.nn.log_softmax(x), float) for x in logits)
    apart, weight = (np.exp(ours) * (ours - theirs)).sum(-1), np.asarray(data.weight)
    expected = (apart * weight).sum() / weight.sum()
    assert losses[1] - losses[0] == pytest.approx(0.7 * expected, rel=1e-4)


def test_a_magnet_that_is_the_policy_itself_does_not_pull_at_first():
    """KL(pi || pi) is at its least: one gradient step is that of plain PPO, a second one is not."""
    world = spec()
    moved = {}
    for magnet in (0.0, 5.0):
        for epochs in (1, 2):
            learner = _PPO(world, PPOConfig(magnet=magnet, **{**PLAIN, "epochs": epochs}), B, 10)
            state = jax.jit(learner.init)(jax.random.key(1))
            assert state.magnet == ()
            after = updated(learner, state, trajectory(world, learner, state))[0]
            moved[magnet, epochs] = np.asarray(after.params["actor"][0]["head"]["kernel"])
    assert moved[0.0, 1] == pytest.approx(moved[5.0, 1], abs=1e-7)
    assert np.abs(moved[0.0, 2] - moved[5.0, 2]).max() > 1e-5


def test_one_step_of_adam_moves_each_parameter_by_the_learning_rate():
    """Adam's first step is lr * sign(gradient) up to epsilon, whatever the gradient's size."""
    world = spec()
    learner = _PPO(world, PPOConfig(lr=0.01, **PLAIN), B, 10)
    state = jax.jit(learner.init)(jax.random.key(1))
    data = trajectory(world, learner, state)
    after, _ = updated(learner, state, data)
    steps = jax.tree.map(lambda a, b: np.abs(np.asarray(a - b)), after.params, state.params)
    biggest = max(s.max() for s in jax.tree.leaves(steps))
    assert biggest == pytest.approx(0.01, rel=1e-2)
    assert after.updates == 1


@pytest.mark.parametrize("memory", ["none", "gru"])
@pytest.mark.parametrize("critic", ["own", "central"])
def test_with_one_agent_sharing_makes_no_difference(memory, critic):
    world = spec(1)
    results = []
    for share in ("all", "groups", "none"):
        algorithm = make(
            world, PPOConfig(share=share, critic=critic, memory=memory, rollout_steps=T), envs=B, updates=9
        )
        learner = _PPO(world, PPOConfig(share=share, critic=critic, memory=memory, rollout_steps=T), B, 9)
        state = jax.jit(algorithm.init)(jax.random.key(3))
        data = trajectory(world, learner, state)
        results.append(updated(algorithm, state, data)[0])
    for other in results[1:]:
        jax.tree.map(np.testing.assert_array_equal, results[0].params, other.params)


def test_groups_do_not_touch_each_other():
    """Unshared agents: changing one agent's rewards changes nobody else's policy."""
    world = spec()
    learner = _PPO(world, PPOConfig(share="none", critic="own", rollout_steps=T), B, 10)
    state = jax.jit(learner.init)(jax.random.key(0))
    data = trajectory(world, learner, state)
    other = data._replace(reward=data.reward.at[..., 0].multiply(-3.0))
    one, two = (updated(learner, state, d)[0].params["actor"] for d in (data, other))
    jax.tree.map(np.testing.assert_array_equal, one[1:], two[1:])
    assert not np.array_equal(one[0]["head"]["kernel"], two[0]["head"]["kernel"])


def test_what_dead_agents_see_and_earn_does_not_matter():
    world = spec()
    learner = _PPO(world, PPOConfig(critic="own", normalize_obs=True, rollout_steps=T), B, 10)
    state = jax.jit(learner.init)(jax.random.key(0))
    data = trajectory(world, learner, state, deaths=True)
    # Lives are whole: once dead, dead until the episode ends, and death is a termination.
    alive = jnp.asarray(np.minimum.accumulate(np.asarray(data.alive), axis=0))
    dying = alive & ~jnp.concatenate([alive[1:], alive[-1:]])
    data = data._replace(alive=alive, terminated=dying, truncated=jnp.zeros_like(alive))
    noise = jnp.where(alive[..., None], data.obs, 77.0)
    other = data._replace(
        obs=noise, reward=jnp.where(alive, data.reward, -55.0), action=jnp.where(alive, data.action, 1)
    )
    one, two = (updated(learner, state, d)[0] for d in (data, other))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), one, two)


def test_popart_keeps_the_values_it_rescales():
    world = spec()
    learner = _PPO(world, PPOConfig(critic="central"), 32, 10)
    state = jax.jit(learner.init)(jax.random.key(0))
    obs = jax.random.normal(jax.random.key(1), (2, B, 3, 4))
    old_mean, old_std = jnp.full(3, 1.5), jnp.full(3, 2.0)
    new_mean, new_std = jnp.full(3, -20.0), jnp.full(3, 7.0)
    scaled = learner._popart(state.params["critic"], old_std, old_mean, new_std, new_mean)
    before = (
        learner._values(state.params["critic"], Observation(obs), state.critic_memory, None)[0] * old_std + old_mean
    )
    after = learner._values(scaled, Observation(obs), state.critic_memory, None)[0] * new_std + new_mean
    np.testing.assert_allclose(before, after, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("critic", ["own", "central"])
def test_while_nothing_terminated_critics_are_right_on_average_and_differ_between_states_as_before(critic):
    world = spec()
    learner = _PPO(world, PPOConfig(critic=critic, hidden=(6,), rollout_steps=T, share="none"), B, 10)
    state = jax.jit(learner.init)(jax.random.key(0))
    data = trajectory(world, learner, state, deaths=True)
    estimates = learner._estimate(state, data, learner._seen(state, data.observation))
    returns = estimates.value + 7.0 + jax.random.normal(jax.random.key(1), estimates.value.shape)
    never = jnp.zeros_like(data.terminated)
    critics, _, (mean, std), lacking = learner._rescaled(state, estimates, returns, data.weight, never)
    value = learner._values(critics["critic"], data.observation, state.critic_memory, None)[0] * std + mean
    for i in range(3):
        alive = np.asarray(data.alive[..., i])
        np.testing.assert_allclose(value[..., i][alive].mean(), returns[..., i][alive].mean(), rtol=1e-4)
    np.testing.assert_allclose(value, estimates.value + lacking, rtol=1e-4, atol=1e-4)
    _, stats, _, lacking = learner._rescaled(state, estimates, returns, data.weight, data.terminated)
    assert not lacking.any()
    later = learner._rescaled(state._replace(value_moments=stats), estimates, returns, data.weight, never)
    assert not later[3].any()  # once an episode terminated, rollouts without ends are no other


def test_values_of_a_constant_reward_are_level():
    """A reward of 1 in every step, in episodes that are cut: each state is worth 100. Critics whose features follow the
    mean, which moves from 0 towards 100, differ by 0.7."""
    world = spec(n=1)
    learner = _PPO(world, PPOConfig(critic="own", hidden=(32, 32), rollout_steps=T, gamma=0.99), B, 60)
    state = jax.jit(learner.init)(jax.random.key(0))
    update, one = jax.jit(learner.update), jnp.ones((T, B, 1))
    cut = jnp.zeros((T, B, 1), bool).at[2].set(True)
    data = trajectory(world, learner, state)._replace(reward=one, terminated=~cut & False, truncated=cut)
    for i in range(60):
        obs, following = jax.random.normal(jax.random.key(i), (2, T, B, 1, 4))
        state, _ = update(state, data._replace(obs=obs, next_obs=following), jax.random.key(i))
    value = learner.values_along(state, data)
    assert value.mean() > 50
    assert value.std() < 0.2


def test_target_kl_stops_the_epochs():
    world = spec()
    settings = {**PLAIN, "epochs": 30, "lr": 0.05}
    learner = _PPO(world, PPOConfig(target_kl=0.01, **settings), B, 10)
    state = jax.jit(learner.init)(jax.random.key(0))
    data = trajectory(world, learner, state)
    _, metrics = updated(learner, state, data)
    assert 1 < metrics["epochs"] < 30
    free = _PPO(world, PPOConfig(**settings), B, 10)
    _, unlimited = updated(free, state, data)
    assert unlimited["approx_kl"] > metrics["approx_kl"]


def test_value_clip_limits_how_far_values_are_credited():
    learner = _PPO(spec(), PPOConfig(value_clip=0.2), 32, 10)
    value, target, old = jnp.array([1.0, 0.1]), jnp.array([2.0, 2.0]), jnp.array([0.0, 0.0])
    np.testing.assert_allclose(learner._value_error(value, target, old), [0.5 * 1.8**2, 0.5 * 1.9**2], rtol=1e-6)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "exponential"])
def test_learning_rate_schedules(schedule):
    start, middle, end = (float(schedule_factor(schedule, jnp.float32(x))) for x in (0, 0.5, 1))
    assert start == pytest.approx(1.0)
    later = {"constant": (1.0, 1.0), "exponential": (0.1, 0.01)}.get(schedule, (0.5, 0.0))
    assert (middle, end) == pytest.approx(later, abs=1e-6)


def test_the_weight_of_the_entropy_bonus_follows_its_schedule():
    """In the middle of a run, an update is that of a learner with a tenth of the weight."""
    world, data, after = spec(), None, []
    for config in (
        PPOConfig(**{**PLAIN, "entropy": 0.5, "entropy_schedule": "exponential"}),
        PPOConfig(**{**PLAIN, "entropy": 0.05}),
        PPOConfig(**{**PLAIN, "entropy": 0.5}),
    ):
        learner = _PPO(world, config, B, 10)
        state = jax.jit(learner.init)(jax.random.key(0))._replace(updates=jnp.int32(5))
        data = data or trajectory(world, learner, state)
        after.append(updated(learner, state, data))
    (falls, told), (low, _), (high, plain) = after
    assert float(told["entropy_weight"]) == pytest.approx(0.05)
    assert "entropy_weight" not in plain

    def actors(state):
        return jnp.concatenate([x.ravel() for x in jax.tree.leaves(state.params["actor"])])

    np.testing.assert_allclose(actors(falls), actors(low), atol=1e-5)
    assert jnp.abs(actors(falls) - actors(high)).max() > 1e-4
    with pytest.raises(UsageError, match="entropy_schedule"):
        PPOConfig(entropy=0.0, entropy_schedule="linear")


def test_recurrent_update_sees_what_acting_saw():
    """With unchanged parameters the first epoch's ratios are all 1: no policy change is measured."""
    world = spec()
    config = PPOConfig(memory="gru", memory_size=5, **{**PLAIN, "lr": 1e-12})
    learner = _PPO(world, config, B, 10)
    state = jax.jit(learner.init)(jax.random.key(0))
    state = state._replace(params=jax.tree.map(lambda p: 3 * p, state.params))
    head = state.params["actor"][0]["head"]
    head["kernel"] = 100 * head["kernel"]
    data = trajectory(world, learner, state)
    _, metrics = updated(learner, state, data)
    assert abs(float(metrics["approx_kl"])) < 1e-6
    forgetful = data._replace(first=jnp.zeros_like(data.first))
    _, metrics = updated(learner, state, forgetful)
    assert float(metrics["approx_kl"]) > 1e-3


@pytest.mark.parametrize(
    ("setting", "value"),
    [("lr", -1.0), ("gamma", 1.5), ("epochs", 0), ("clip", 0.0), ("hidden", ()), ("target_kl", -0.1)],
)
def test_impossible_settings_are_refused(setting, value):
    with pytest.raises(UsageError, match=setting):
        PPOConfig(**{setting: value})


def test_minibatches_must_divide_the_environments():
    with pytest.raises(UsageError, match=r"minibatches \(3\) must divide the number of environments \(4\)"):
        make(spec(), PPOConfig(minibatches=3), envs=4, updates=1)
