"""Learners for recordings: conservative SAC, TD3+BC and implicit Q-learning against NumPy, and their identities."""

import dataclasses
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import off_policy_reference as ref
import pytest
from test_off_policy import close, learner, moments_of, sample, stepped, team_of, unsettled, world

from flockrl.algos.assembly import make_algorithm
from flockrl.algos.implicit_q import expectile_loss
from flockrl.algos.presets import make_config
from flockrl.algos.td3_bc import distance
from flockrl.algos.views import both_views
from flockrl.core.errors import UsageError
from flockrl.core.types import Trajectory

sys.path.insert(0, str(Path(__file__).parent.parent / "data"))
from made import MIXED

FACTOR = jnp.float32(1)


def step(agent, before, batch, key=0):
    return jax.jit(agent.step)(before, batch, FACTOR, jax.random.key(key))


def same(one, two):
    assert jax.tree.structure(one) == jax.tree.structure(two)
    jax.tree.map(np.testing.assert_array_equal, one, two)


def soft_max(values, axis=0):
    top = values.max(axis, keepdims=True)
    return np.log(np.exp(values - top).sum(axis)) + top.squeeze(axis)


# Conservative SAC


@pytest.mark.parametrize(("discrete", "critic"), [(False, "central"), (True, "own")])
def test_without_caution_it_is_sac(discrete, critic):
    spec = world(discrete)
    plain, other = learner("sac", spec, critic=critic), learner("cql", spec, critic=critic, conservative=0.0)
    batch = sample(spec)
    one, two = (step(agent, unsettled(agent), batch) for agent in (plain, other))
    same(one, two)


@pytest.mark.parametrize(("critic", "share"), [("own", "groups"), ("central", "none")])
def test_the_gap_of_real_actions_matches_numpy(critic, share):
    agent = learner("cql", critic=critic, share=share, conservative_actions=4)
    batch, before = sample(agent.spec), unsettled(agent)
    now, following = both_views(batch)
    team, key = team_of(agent, batch), jax.random.key(4)
    action = jnp.asarray(team.action, jnp.float32)
    got = jax.jit(agent._gaps)(before.params["critic"], before.params["actor"], now, following, action, key)
    actors = [ref.layers(p) for p in before.params["actor"]]
    want = []
    for g, (members, k) in enumerate(zip(team.groups, jax.random.split(key, len(team.groups)), strict=True)):
        here, there = (agent._outputs(before.params["actor"], view)[g] for view in (now, following))
        codes, density = agent._candidates(k, agent.groups[g], here, there, agent._legal(None)[g])
        codes, density = np.asarray(codes, float), np.asarray(density, float)
        assert len(codes) == 12
        gaps = np.zeros((2, 16, len(members)))
        for m, i in enumerate(members):
            own = slice(0, team.action_sizes[i])
            np.testing.assert_allclose(density[:4, :, m], team.action_sizes[i] * np.log(0.5), rtol=1e-5)
            for part, obs in ((slice(4, 8), batch.obs), (slice(8, 12), batch.next_obs)):
                middle, log_std = np.split(ref.forward(actors[g], team.own_obs(obs, i), m)[0], 2, axis=1)
                std, u = np.exp(np.clip(log_std, -5, 2))[:, own], codes[part, :, m, own]
                u = np.clip(u, -0.9999, 0.9999)
                bell = np.exp(-0.5 * ((np.arctanh(u) - middle[:, own]) / std) ** 2) / (std * np.sqrt(2 * np.pi))
                well = (np.abs(u) < 0.999).all(-1)  # beyond, float32 has lost where u came from
                expected = np.log(bell / (1 - u**2)).sum(-1)
                np.testing.assert_allclose(density[part, :, m][well], expected[well], atol=2e-2)
            for t in (0, 1):
                net = ref.layers(before.params["critic"][2 * g + t])
                values = [
                    ref.forward(net, team.critic_input(batch.obs, team.with_own(i, code[:, m]), i), m)[0][:, 0]
                    for code in codes
                ]
                done = ref.forward(net, team.critic_input(batch.obs, team.action, i), m)[0][:, 0]
                gaps[t, :, m] = soft_max(np.array(values) - density[:, :, m]) - np.log(12) - done
        alive = team.alive[:, members]
        want += [(gap * alive).sum() / alive.sum() for gap in gaps]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_the_soft_maximum_is_an_integral_over_actions(monkeypatch):
    """Of Q = 2 (a_1 + a_2), the integral of exp Q over a square with sides from -1 to 1 is sinh(2)^2."""
    agent = learner("cql", critic="own", conservative_actions=4000)
    batch, before = sample(agent.spec, b=1, deaths=False), unsettled(agent)
    now, following = both_views(batch)
    outs = [agent._outputs(before.params["actor"], view)[0] for view in (now, following)]
    found = agent._candidates(jax.random.key(0), agent.groups[0], *outs, agent._legal(None)[0])
    monkeypatch.setattr(agent, "_q", lambda index, params, view, action: 2 * action.sum(-1, keepdims=True))
    most = agent._soft_maximum(0, (), now, agent.code.encode(batch.action), *found)
    np.testing.assert_allclose(most, np.full((1, 2), 2 * np.log(np.sinh(2.0))), atol=0.05)


def test_the_gap_of_choices_is_exact():
    agent = learner("cql", world(discrete=True), critic="own", share="none")
    batch, before = sample(agent.spec), unsettled(agent)
    now, following = both_views(batch)
    action = agent.code.encode(batch.action) * batch.alive[..., None]
    critics = before.params["critic"]
    got = agent._gaps(critics, before.params["actor"], now, following, action, jax.random.key(0))
    for i, gap in enumerate(got):
        k, size = i // 2, agent.spec.actions[i // 2].size
        x = np.asarray(batch.obs, float)[:, k, : agent.spec.observations[k].size]
        q = ref.forward(ref.layers(critics[i]), np.hstack([x, np.zeros((16, size))]), 0)[0]
        most = soft_max(np.where(batch.avail[:, k, :size], q, -np.inf).T)
        alive = np.asarray(batch.alive)[:, k]
        done = q[np.arange(16), batch.action[:, k]]
        assert float(gap) == pytest.approx(((most - done) * alive).sum() / alive.sum(), rel=1e-4)


# TD3 with behaviour cloning


@pytest.mark.parametrize("discrete", [False, True])
def test_without_behaviour_it_is_td3(discrete):
    spec = world(discrete)
    other = {"behaviour": 0.0, "q_scale": None, "normalize_obs": False}
    agents = learner("td3", spec), learner("td3_bc", spec, **other)
    batch = sample(spec)
    one, two = (step(agent, unsettled(agent)._replace(updates=jnp.int32(1)), batch) for agent in agents)
    same(one, two)


@pytest.mark.parametrize(("critic", "share"), [("own", "groups"), ("central", "none")])
def test_a_step_towards_behaviour_matches_numpy(critic, share):
    agent = learner("td3_bc", critic=critic, share=share, behaviour=0.7, normalize_obs=False)
    batch, before = sample(agent.spec), unsettled(agent)._replace(updates=jnp.int32(1))
    after, _, metrics = step(agent, before, batch)
    team = team_of(agent, batch)
    actors = [ref.layers(p) for p in before.params["actor"]]
    critics = [ref.layers(p) for p in after.params["critic"]]  # policies follow the critics of the same step
    total, grads = 0.0, []
    for g, members in enumerate(team.groups):
        grad, parts = None, []
        for k, i in enumerate(members):
            out, inputs = ref.forward(actors[g], team.own_obs(batch.obs, i), k)
            mine = np.arange(out.shape[1]) < team.action_sizes[i]
            x = team.critic_input(batch.obs, team.with_own(i, np.tanh(out) * mine), i)
            parts.append((k, i, out, inputs, mine, *ref.forward(critics[2 * g], x, k)))
        alive = team.alive[:, members]
        size = (np.abs(np.stack([q[:, 0] for *_, q, _ in parts], 1)) * alive).sum() / alive.sum()
        for k, i, out, inputs, mine, q, critic_inputs in parts:
            weight, scale = (team.alive[:, i] / team.count(g))[:, None], 2.5 / size
            apart = (np.tanh(out) - team.action[:, i, : out.shape[1]]) * mine
            cost = 1e-3 * (out**2 * mine).mean(1) - scale * q[:, 0] + 0.7 * (apart**2).sum(1) / mine.sum()
            total += (weight[:, 0] * cost).sum()
            d_own = ref.backward(critics[2 * g], critic_inputs, -scale * weight, k)[1][:, team.action_place(i)]
            d_own = d_own + 0.7 * weight * 2 * apart / mine.sum()
            d_out = d_own * (1 - np.tanh(out) ** 2) * mine + weight * 1e-3 * 2 * out * mine / out.shape[1]
            grad = ref.plus(grad, ref.backward(actors[g], inputs, d_out, k)[0])
        grads.append(grad)
    assert float(metrics["policy_loss"]) / 2 == pytest.approx(total, rel=1e-4)  # a sum over the delay
    moved = stepped(actors, grads, moments_of(before.optimiser["actor"]), 1e-3)
    for got, want in zip(after.params["actor"], moved, strict=True):
        close(got, want)


def test_distances_by_hand():
    real, choice = learner("td3_bc"), learner("td3_bc", world(discrete=True))
    out, done = jnp.arctanh(jnp.array([[[0.5, 0.0]]])), jnp.array([[[0.1, 0.2]]])
    group = real.groups[0]._replace(legal=np.array([[True, True]]))
    assert float(distance(group, out, group.legal, done)[0, 0]) == pytest.approx((0.4**2 + 0.2**2) / 2)
    logits, legal = jnp.log(jnp.array([[[0.2, 0.3, 0.5, 9.0]]])), jnp.array([[[True, True, True, False]]])
    code = jax.nn.one_hot(jnp.array([[1]]), 4)
    assert float(distance(choice.groups[0], logits, legal, code)[0, 0]) == pytest.approx(-np.log(0.3), rel=1e-5)


def rollout(spec, obs, seed=1):
    rng = np.random.default_rng(seed)
    steps, envs, n = obs.shape[:3]
    no = np.zeros((steps, envs, n), bool)
    action = rng.uniform((-1.0, 0.0), (2.0, 0.5), (steps, envs, n, 2)) * spec.own_numbers
    arrays = Trajectory(
        obs=obs[:, :, :, :], action=action.astype(np.float32), reward=rng.normal(size=no.shape).astype(np.float32),
        terminated=no, truncated=no, next_obs=np.roll(obs, -1, 0), first=no[..., 0], alive=~no,
    )  # fmt: skip
    return jax.tree.map(jnp.asarray, arrays)


def test_observations_count_in_units_of_their_deviation():
    """A recording whose observations are moved and stretched teaches the same."""
    agent = learner("td3_bc", share="none", learning_starts=0)
    mask = np.arange(4) < np.array([4, 4, 3])[:, None]
    obs = (np.random.default_rng(0).normal(size=(2, 4, 4, 3, 4)) * mask).astype(np.float32)
    update = jax.jit(agent.update)
    states = [jax.jit(agent.init)(jax.random.key(0)) for _ in range(2)]
    for part in obs:
        for i, x in enumerate((part, (20 * part + 5) * mask)):
            states[i], _ = update(states[i], rollout(agent.spec, x.astype(np.float32)), jax.random.key(1))
    seen = agent.policy(states[1])["moments"][0]
    whole = (20 * obs + 5).reshape(32, 3, 4)
    np.testing.assert_allclose(seen.mean[:2], whole.mean(0)[:2], rtol=1e-4)
    np.testing.assert_allclose(seen.std[:2], whole.std(0)[:2], rtol=1e-3)
    one, two = (jax.tree.leaves(state.learned.params) for state in states)
    for a, b in zip(one, two, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-2)
    begun = jax.tree.leaves(jax.jit(agent.init)(jax.random.key(0)).learned.params)
    assert max(np.abs(a - b).max() for a, b in zip(one, begun, strict=True)) > 1e-2 / 4


# Implicit Q-learning


def test_expectiles_by_hand():
    np.testing.assert_allclose(expectile_loss(jnp.array([2.0, -2.0]), 0.9), [3.6, 0.4], rtol=1e-6)
    # Of the numbers 0 and 1, the expectile t is t itself: there the loss is level.
    for t in (0.3, 0.5, 0.9):
        slope = jax.grad(lambda m, t=t: expectile_loss(jnp.array([0.0, 1.0]) - m, t).mean())(t)
        assert float(slope) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(("critic", "share"), [("own", "groups"), ("central", "none")])
def test_a_step_of_implicit_q_matches_numpy(critic, share):
    spec = dataclasses.replace(world(), reward_after_death=False)
    agent = learner("implicit_q", spec, critic=critic, share=share, expectile=0.8, advantage_limit=3.0)
    batch, before = sample(agent.spec), unsettled(agent)
    after, _, metrics = step(agent, before, batch)
    team = team_of(agent, batch)
    nets = {name: [ref.layers(p) for p in before.params[name]] for name in ("critic", "value")}
    old = [ref.layers(p) for p in before.targets["critic"]]

    def worth(obs, i):
        g, k = team.place(i)
        seen = (
            team.critic_input(obs, team.action, i)[:, : -team.action[0].size] if team.central else team.own_obs(obs, i)
        )
        return ref.forward(nets["value"][g], seen, k)

    target = np.array(batch.reward, float)
    target += np.asarray(batch.discount) * np.stack([worth(batch.next_obs, i)[0][:, 0] for i in range(3)], 1)
    loss, grads = team.critic_losses(nets["critic"], 2, target)
    assert float(metrics["critic_loss"]) == pytest.approx(loss, rel=1e-5)
    for got, want in zip(
        after.params["critic"],
        stepped(nets["critic"], grads, moments_of(before.optimiser["critic"]), 1e-3),
        strict=True,
    ):
        close(got, want)
    value, policy, grads = 0.0, 0.0, []
    for g, members in enumerate(team.groups):
        grad, p = None, before.params["actor"][g]
        for k, i in enumerate(members):
            x = team.critic_input(batch.obs, team.action, i)
            q = np.min([ref.forward(old[2 * g + t], x, k)[0][:, 0] for t in (0, 1)], axis=0)
            v, inputs = worth(batch.obs, i)
            gap, weight = q - v[:, 0], team.alive[:, i] / team.count(g)
            lean = np.where(gap < 0, 0.2, 0.8)
            value += (weight * lean * gap**2).sum()
            grad = ref.plus(grad, ref.backward(nets["value"][g], inputs, (-2 * weight * lean * gap)[:, None], k)[0])
            out, _ = ref.forward(ref.layers(p), team.own_obs(batch.obs, i), k)
            own = slice(0, team.action_sizes[i])
            std = np.exp(np.asarray(p["log_std"], float))[own]
            z = (team.action[:, i, own] - out[:, own]) / std
            logp = np.log(np.exp(-0.5 * z**2) / (std * np.sqrt(2 * np.pi))).sum(1)
            policy -= (weight * np.minimum(np.exp(3 * gap), 3.0) * logp).sum()
        grads.append(grad)
    assert float(metrics["value_loss"]) == pytest.approx(value, rel=1e-4)
    assert float(metrics["policy_loss"]) == pytest.approx(policy, rel=1e-4)
    moved = stepped(nets["value"], grads, moments_of(before.optimiser["value"]), 1e-3)
    for got, want in zip(after.params["value"], moved, strict=True):
        close(got, want)


def test_the_middle_expectile_is_a_mean_regression():
    agent = learner("implicit_q", dataclasses.replace(world(), reward_after_death=False), expectile=0.5)
    batch, before = sample(agent.spec), unsettled(agent)
    view, done = both_views(batch)[0], [jnp.ones((16, 2)), jnp.full((16, 1), -2.0)]

    def half_square(values):
        rows = zip(agent._worth(values, view), done, agent.groups, strict=True)
        alive = [np.asarray(batch.alive)[:, list(group.agents)] for group in agent.groups]
        return sum(0.5 * (w * (v - q) ** 2).sum() / w.sum() for (v, q, _), w in zip(rows, alive, strict=True))

    got = jax.grad(lambda values: agent._value_loss(values, view, done)[0])(before.params["value"])
    want = jax.grad(half_square)(before.params["value"])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), got, want)


@pytest.mark.parametrize("discrete", [False, True])
def test_without_advantages_policies_clone(discrete):
    """Then it is the loss of behaviour cloning, and no advantage overflows."""
    spec = world(discrete)
    cloner = learner("implicit_q", spec, advantage_scale=0.0, share="none")
    batch, before = sample(spec), unsettled(cloner)
    view, action = both_views(batch)[0], cloner.code.encode(batch.action)
    huge = [jnp.full((16, 1), 1e6)] * 3
    cost = cloner._policy_loss(before.params["actor"], view, action, huge)
    total = 0.0
    for i, (head, out) in enumerate(zip(cloner.heads, cloner._outputs(before.params["actor"], view), strict=True)):
        size = spec.actions[i].size
        done = batch.action[:, i : i + 1] if discrete else batch.action[:, i : i + 1, :size]
        avail = batch.avail[:, i : i + 1, :size] if discrete else None
        logp = np.asarray(head.evaluate(out, avail, done)[0])[:, 0]
        total -= (logp * batch.alive[:, i]).sum() / batch.alive[:, i].sum()
    assert float(cost) == pytest.approx(float(total), rel=1e-5)
    keen = learner("implicit_q", spec, share="none")
    ratio = keen._policy_loss(before.params["actor"], view, action, huge) / cost
    assert float(ratio) == pytest.approx(100.0, rel=1e-4)


# All of them


@pytest.mark.parametrize(
    ("name", "critic", "memory", "specs"),
    [
        ("cql_continuous", "own", "none", [world(True)]),
        ("td3_bc", "own", "none", [MIXED]),
        ("implicit_q", "own", "none", [world(True)]),
        pytest.param("cql_continuous", "central", "gru", [world()], marks=pytest.mark.slow),
        pytest.param("td3_bc", "central", "gru", [world(True)], marks=pytest.mark.slow),
        pytest.param("implicit_q", "central", "gru", [MIXED], marks=pytest.mark.slow),
        pytest.param("cql_continuous", "own", "gru", [world(), world(True)], marks=pytest.mark.slow),
        pytest.param("td3_bc", "own", "gru", [world(), MIXED], marks=pytest.mark.slow),
        pytest.param("implicit_q", "own", "gru", [world(), world(True)], marks=pytest.mark.slow),
    ],
)
def test_every_team_is_taken_with_and_without_memory(name, critic, memory, specs):
    """Shapes of an update, for choices, real actions and, where it goes, unlike teams."""
    for spec in specs:
        config = make_config(name, {"critic": critic, "memory": memory, "rollout_steps": 5, "steps_per_update": 10})
        made = make_algorithm(name, spec, config, envs=2, updates=3)
        state = jax.eval_shape(made.init, jax.random.key(0))
        n, grid = spec.num_agents, (5, 2)
        blank = {name: np.zeros((*grid, n), bool) for name in ("terminated", "truncated", "alive")}
        seen = np.zeros((*grid, n, spec.obs_size), np.float32)
        avail = np.ones((*grid, n, spec.action_size), bool) if spec.maskable else None
        made_up = Trajectory(
            obs=seen, next_obs=seen, action=np.zeros((*grid, *spec.action_shape), spec.action_dtype),
            reward=np.zeros((*grid, n), np.float32), first=np.zeros(grid, bool), avail=avail, next_avail=avail,
            memory=made.memory(2), **blank,
        )  # fmt: skip
        after, _ = jax.eval_shape(made.update, state, made_up, jax.random.key(0))
        assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), state)


def test_bad_settings_are_named():
    for name, setting in (
        ("cql_continuous", {"conservative": -1.0}), ("cql_continuous", {"conservative_actions": 0}),
        ("td3_bc", {"behaviour": -0.1}), ("td3_bc", {"q_scale": -1.0}), ("implicit_q", {"expectile": 1.0}),
        ("implicit_q", {"advantage_scale": -1.0}), ("implicit_q", {"advantage_limit": 0.0}),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=f"{next(iter(setting))} must be"):
            make_config(name, setting)
    with pytest.raises(UsageError, match="one choice or real actions"):
        make_algorithm("cql_continuous", MIXED, make_config("cql_continuous", {}), envs=2, updates=1)
