"""Agents that learn one after the other: identities that a wrong factor, order or critic breaks."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import AS_USERS_DO
from jax.flatten_util import ravel_pytree

from flockrl.algos.happo import HAPPO, HAPPOConfig
from flockrl.algos.hasac import HASAC, HASACConfig
from flockrl.algos.hatrpo import HATRPO, HATRPOConfig, conjugate_gradient, trust_step
from flockrl.algos.ppo import _PPO, PPOConfig
from flockrl.algos.sac import SAC, SACConfig
from flockrl.algos.views import View
from flockrl.core.errors import UsageError
from flockrl.core.types import Box, Discrete, EnvSpec, Observation
from flockrl.envs import make
from flockrl.envs.games import MatrixGame
from flockrl.rollouts.compiled import scan_rollout, start

B, T = 4, 6
jit = partial(jax.jit, compiler_options=AS_USERS_DO)
SMALL = {"hidden": (8,), "rollout_steps": T, "epochs": 2, "lr": 0.01}


def rolled(learner, env, key=0):
    """A state and a rollout of it."""
    algorithm = learner.algorithm()
    state = algorithm.init(jax.random.key(key))
    actors = start(algorithm, env, jax.random.key(1), B)
    _, trajectory, _ = scan_rollout(algorithm, algorithm.params(state), env, actors, jax.random.key(2))
    return state, trajectory


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("memory", ["none", pytest.param("gru", marks=pytest.mark.slow)])
def test_one_agent_learns_as_ppo_does_bit_for_bit(memory):
    env = make("mpe/simple")
    one = HAPPO(env.spec, HAPPOConfig(memory=memory, **SMALL), B, 9)
    ppo = _PPO(env.spec, PPOConfig(critic="central", share="none", memory=memory, **SMALL), B, 9)
    state, trajectory = rolled(one, env)
    same(state, ppo.init(jax.random.key(0)))
    key = jax.random.key(3)
    for _ in range(2):
        after, _ = jit(one.update)(state, trajectory, key)
        wanted, _ = jit(ppo.update)(state, trajectory, key)
        same(after, wanted)
        state = after


# --- one after the other


def matrix_team(payoff):
    """A one-step game of two agents with a common payoff, as an environment."""
    return MatrixGame(payoff, rounds=1, name="games/own", common=True)


def exact(logits, payoff):
    """The expected payoff of softmax policies."""
    one, two = (jax.nn.softmax(x) for x in logits)
    return one @ jnp.asarray(payoff) @ two


def test_the_factor_is_the_others_change_and_the_surrogate_that_of_the_joint_policy():
    """E over pi_old of M r_2 A equals E over (new_1, new_2) of A, exactly (ANCHORS 3.1 b)."""
    payoff = np.array([[1.0, -2.0, 0.5], [0.0, 3.0, -1.0]])
    old, new = [np.array([0.3, -0.2]), np.array([0.1, 0.4, -0.5])], [np.array([0.9, -0.1]), np.array([-0.6, 0.2, 0.3])]
    p, q = ([np.asarray(jax.nn.softmax(x)) for x in logits] for logits in (old, new))
    advantage = payoff - p[0] @ payoff @ p[1]
    factor = (q[0] / p[0])[:, None]
    ratio = (q[1] / p[1])[None, :]
    surrogate = (p[0][:, None] * p[1][None, :] * factor * ratio * advantage).sum()
    np.testing.assert_allclose(surrogate, q[0] @ payoff @ q[1] - p[0] @ payoff @ p[1], atol=1e-7)


@pytest.mark.slow
def test_the_second_agent_is_weighed_by_what_the_first_became():
    env = make("mpe/simple_spread")
    learner = HAPPO(env.spec, HAPPOConfig(order="fixed", normalize_advantage=False, **SMALL), B, 9)
    state, trajectory = rolled(learner, env)
    after, metrics = jax.jit(learner.update)(state, trajectory, jax.random.key(3))
    memory = learner.algorithm().memory(B)

    def logp(params):
        outs, _ = learner.actor(params, trajectory.observation, memory, trajectory.first)
        found = [
            learner._chosen(group, head, out, trajectory.action, None)[0].reshape(T, B)
            for group, head, out in zip(learner.groups, learner.heads, outs, strict=True)
        ]
        return np.stack(found, -1)

    change = logp(after.params["actor"]) - logp(state.params["actor"])
    factor = np.exp(change.sum(-1))  # all three have had their turn
    np.testing.assert_allclose(metrics["factor"], factor.mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["factor_std"], factor.std(), rtol=1e-4)
    assert metrics["factor_std"] > 1e-3


def test_in_turn_raises_the_return_where_at_once_lowers_it():
    """Two agents are paid 1 for unlike choices, and 0 else. Each would rather move to the side that the other one
    leaves: at once, they meet there; in turn, the second sees that the first has moved (ANCHORS 3.1 c)."""
    payoff = jnp.array([[0.0, 1.0], [1.0, 0.0]])
    logits = [jnp.array([0.5, -0.5]), jnp.array([0.5, -0.5])]
    lr = 30.0

    def surrogate(own, other_new, other_old):
        """What agent 2 maximises in its turn, by the factor of agent 1: E_old[M r A]."""
        p_other, p_own = jax.nn.softmax(other_old), jax.nn.softmax(logits[1])
        advantage = payoff - exact(logits, payoff)
        factor, ratio = jax.nn.softmax(other_new) / p_other, jax.nn.softmax(own) / p_own
        return (p_other[:, None] * p_own * factor[:, None] * ratio * advantage).sum()

    first = logits[0] + lr * jax.grad(lambda x: exact([x, logits[1]], payoff))(logits[0])
    at_once = logits[1] + lr * jax.grad(surrogate)(logits[1], logits[0], logits[0])
    in_turn = logits[1] + lr * jax.grad(surrogate)(logits[1], first, logits[0])
    before = exact(logits, payoff)
    assert exact([first, at_once], payoff) < before < exact([first, in_turn], payoff)


@pytest.mark.slow
def test_the_learner_in_turn_beats_the_learners_at_once_on_it():
    """Whole learners in the game of unlike choices: one update in turn gains more than one at once."""
    env = matrix_team([[0.0, 1.0], [1.0, 0.0]])
    common = {"hidden": (8,), "rollout_steps": 64, "epochs": 1, "minibatches": 1, "clip": None, "entropy": 0.0,
              "normalize_advantage": False, "max_grad_norm": None, "lr_schedule": "constant", "lr": 0.3}  # fmt: skip
    happo = HAPPO(env.spec, HAPPOConfig(**common), B, 9)
    ppo = _PPO(env.spec, PPOConfig(critic="central", share="none", **common), B, 9)
    state, _ = rolled(happo, env)
    tilt = jax.tree.map(lambda x: x, state.params["actor"])
    for net in tilt:  # both lean to the first choice
        net["head"]["bias"] = jnp.array([0.5, -0.5])
    results = {}
    for name, learner in {"in turn": happo, "at once": ppo}.items():
        fresh = learner.init(jax.random.key(0))
        fresh = fresh._replace(params={**fresh.params, "actor": tilt})
        algorithm = learner.algorithm()
        actors = start(algorithm, env, jax.random.key(1), B)
        _, rollout, _ = scan_rollout(algorithm, algorithm.params(fresh), env, actors, jax.random.key(2))
        after, _ = jax.jit(learner.update)(fresh, rollout, jax.random.key(3))
        pi = learner.choices(after, rollout)[0, 0]
        results[name] = float(pi[0] @ jnp.array([[0.0, 1.0], [1.0, 0.0]]) @ pi[1])
        before = learner.choices(fresh, rollout)[0, 0]
        start_value = float(before[0] @ jnp.array([[0.0, 1.0], [1.0, 0.0]]) @ before[1])
    assert results["in turn"] > max(results["at once"], start_value) + 0.1, (results, start_value)


# --- trust regions


def test_conjugate_gradients_solve_a_linear_system():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(6, 6))
    matrix, target = jnp.asarray(root @ root.T + np.eye(6), jnp.float32), jnp.asarray(rng.normal(size=6), jnp.float32)
    found = conjugate_gradient(lambda v: matrix @ v, target, 12)
    np.testing.assert_allclose(found, np.linalg.solve(matrix, target), rtol=1e-3, atol=1e-4)


def test_a_trust_step_is_trpos():
    """Against dense linear algebra for a softmax policy over three choices, whose Fisher matrix is known."""
    advantage, config = jnp.array([1.0, -0.5, 0.2]), HATRPOConfig(entropy=0.0, damping=0.1, max_kl=0.01)
    start_logits = jnp.array([0.2, -0.1, 0.4])
    p = jax.nn.softmax(start_logits)

    def gain(x):
        return (p * jax.nn.softmax(x) / p * advantage).sum(), 0.0

    def kl(x):
        return (p * (jax.nn.log_softmax(start_logits) - jax.nn.log_softmax(x))).sum()

    found, moved, taken = trust_step(gain, kl, start_logits, config)
    fisher = np.diag(p) - np.outer(p, p) + 0.1 * np.eye(3)
    gradient = np.asarray(p * (advantage - p @ advantage))
    direction = np.linalg.solve(fisher, gradient)
    full = np.sqrt(2 * 0.01 / (direction @ fisher @ direction)) * direction
    steps = [start_logits + 0.8**k * full for k in range(10)]
    fine = [
        x
        for k, x in enumerate(steps)
        if kl(x) < 0.01 and gain(x)[0] - gain(start_logits)[0] > 0.5 * 0.8**k * gradient @ full
    ]
    assert taken
    np.testing.assert_allclose(found, fine[0], atol=1e-3)
    np.testing.assert_allclose(moved, kl(fine[0]), atol=1e-4)
    assert 0 < moved < 0.01


@pytest.mark.slow
def test_one_agent_learns_as_trpo_does():
    """A whole update against TRPO written out: advantages by recursion, the dense Hessian of the divergence, a direct
    solution in place of conjugate gradients."""
    env = make("mpe/simple")
    config = HATRPOConfig(hidden=(3,), rollout_steps=T, entropy=0.0, cg_steps=80, max_kl=0.01, lr_schedule="constant")
    learner = HATRPO(env.spec, config, B, 9)
    state, data = rolled(learner, env)
    after, metrics = jax.jit(learner.update)(state, data, jax.random.key(3))
    (net,), config = state.params["actor"], learner.config

    def value(seen):
        return np.asarray(learner._values(state.params["critic"], seen, ((),), None)[0])[..., 0]

    now, then = value(data.observation), value(data.next_observation)
    reward, end, cut = (np.asarray(x)[..., 0] for x in (data.reward, data.terminated, data.truncated))
    advantage, later = np.zeros((T, B)), np.zeros(B)
    for t in reversed(range(T)):
        error = reward[t] + config.gamma * then[t] * ~end[t] - now[t]
        later = advantage[t] = error + config.gamma * config.gae_lambda * ~(end[t] | cut[t]) * later
    advantage = ((advantage - advantage.mean()) / (advantage.std() + 1e-8)).reshape(-1)
    flat, unravel = ravel_pytree(net)
    rows, action = jnp.asarray(data.obs).reshape(-1, env.spec.obs_size), np.asarray(data.action).reshape(-1)

    def logits(p):
        seen = Observation(rows[:, None])
        return learner.actor((unravel(p),), seen, learner.algorithm().memory(1), None)[0][0][:, 0]

    def gain(p):
        logp = jax.nn.log_softmax(logits(p))[jnp.arange(len(action)), action]
        return (jnp.exp(logp - logp_old) * advantage).mean()

    def kl(p):
        new = jax.nn.log_softmax(logits(p))
        return (jnp.exp(old) * (old - new)).sum(-1).mean()

    old = jax.lax.stop_gradient(jax.nn.log_softmax(logits(flat)))
    logp_old = old[jnp.arange(len(action)), action]
    g, hessian = np.asarray(jax.grad(gain)(flat)), np.asarray(jax.hessian(kl)(flat)) + 0.1 * np.eye(len(flat))
    direction = np.linalg.solve(hessian, g)
    full = np.sqrt(2 * 0.01 / (direction @ hessian @ direction)) * direction
    lengths = [0.8**k for k in range(10)]
    fine = [
        flat + k * full
        for k in lengths
        if kl(flat + k * full) < 0.01 and gain(flat + k * full) - gain(flat) > 0.5 * k * g @ full
    ]
    assert metrics["accepted"] == 1
    assert np.abs(np.asarray(fine[0] - flat)).max() > 0.01
    np.testing.assert_allclose(ravel_pytree(after.params["actor"][0])[0], fine[0], atol=2e-4)


@pytest.mark.slow
def test_hatrpo_keeps_its_bound_and_gains():
    env = make("mpe/simple_spread")
    learner = HATRPO(env.spec, HATRPOConfig(entropy=0.0, order="fixed", **SMALL), B, 9)
    state, trajectory = rolled(learner, env)
    after, metrics = jax.jit(learner.update)(state, trajectory, jax.random.key(3))
    memory = learner.algorithm().memory(B)
    for t in range(T):
        seen = jax.tree.map(lambda x, t=t: x[t], trajectory.observation)
        apart = learner.kl(learner.policy(state), learner.policy(after), seen, memory)
        assert apart.mean() < 3 * 0.005
    assert metrics["accepted"] > 0.5
    assert metrics["approx_kl"] < 0.005


# --- what is refused


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"critic": "own"}, "--critic central"),
        ({"comm": "commnet"}, "--comm none"),
        ({"credit": "difference"}, "--credit none"),
    ],
)
def test_what_cannot_be_in_turn_is_refused(settings, words):
    with pytest.raises(UsageError, match=words):
        HAPPOConfig(**settings)


def test_sides_and_mortals_are_refused():
    with pytest.raises(UsageError, match="adversary=happo,agent=happo"):
        HAPPO(make("mpe/simple_adversary").spec, HAPPOConfig(), B, 9)
    mortal = EnvSpec("own", ("a", "b"), (Box((2,)),) * 2, (Discrete(2),) * 2, 5, reward_after_death=False)
    with pytest.raises(UsageError, match="use mappo"):
        HAPPO(mortal, HAPPOConfig(), B, 9)
    assert HAPPO(dataclasses.replace(mortal, reward_after_death=True), HAPPOConfig(), B, 9)


# --- HASAC


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mpe/simple", "mpe/simple:continuous_actions=true"])
def test_one_agent_learns_as_sac_does_bit_for_bit(name):
    env = make(name)
    settings = {"hidden": (8,), "rollout_steps": 4, "steps_per_update": 4, "batch_size": 8, "buffer_size": 64,
                "learning_starts": 0}  # fmt: skip
    one = HASAC(env.spec, HASACConfig(**settings), B, 9)
    sac = SAC(env.spec, SACConfig(critic="central", share="none", **settings), B, 9)
    state, trajectory = rolled(one, env)
    wanted, _ = jit(sac.update)(sac.init(jax.random.key(0)), trajectory, jax.random.key(3))
    after, _ = jit(one.update)(state, trajectory, jax.random.key(3))
    same(after.learned, wanted.learned)


@pytest.mark.slow
def test_hasacs_second_agent_meets_the_fresh_action_of_the_first():
    """Codes of the team in each turn: the first group's are drawn anew after its turn, the second's are not yet."""
    env = make("mpe/simple_speaker_listener")
    settings = {"hidden": (8,), "rollout_steps": 4, "batch_size": 8, "buffer_size": 64, "order": "fixed", "lr": 0.5}
    learner = HASAC(env.spec, HASACConfig(**settings), B, 9)
    learned = learner.init(jax.random.key(0)).learned
    obs = jax.random.normal(jax.random.key(1), (64, 2, env.spec.obs_size))
    view = View(Observation(obs, alive=jnp.ones((64, 2))))
    met = []
    plain = learner._policy_loss

    def spy(actors, learned, view, action, key):
        jax.debug.callback(lambda x: met.append(np.asarray(x)), action)
        return plain(actors, learned, view, action, key)

    learner._policy_loss = spy
    after, _, _ = learner._improve_actors(learned, view, jnp.zeros((64, 2, 5)), jax.random.key(2), jnp.float32(0.5))
    jax.effects_barrier()
    same(met[0], met[1])  # before anyone learned: for the metrics, and in the first turn
    assert (met[2][:, 0] != met[1][:, 0]).any()
    same(met[2][:, 1], met[1][:, 1])
    assert (after.params["actor"][1]["head"]["bias"] != learned.params["actor"][1]["head"]["bias"]).any()
