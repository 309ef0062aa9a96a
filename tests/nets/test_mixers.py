"""Mixers keep their promises whatever their weights and states are."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flockrl.nets.mixers import Central, Constraint, Dueling, Joint, Monotonic, Sum, Weighted, total

AGENTS, ACTIONS, STATE = 3, 4, 5


def blank(agents=AGENTS):
    zeros = jnp.zeros((1, agents))
    return Joint(zeros, zeros, jnp.zeros((1, agents, ACTIONS)), jnp.zeros((1, STATE)))


def wild(net, seed, scale=3.0):
    """Parameters of the right shapes with nothing tame about them."""
    shapes = net.init(jax.random.key(0), blank())
    leaves, tree = jax.tree.flatten(shapes)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    return jax.tree.unflatten(tree, [scale * jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)])


def moments(seed, count=200):
    keys = jax.random.split(jax.random.key(seed), 4)
    q, best = 10 * jax.random.normal(keys[0], (2, count, AGENTS))
    action = jax.nn.one_hot(jax.random.randint(keys[1], (count, AGENTS), 0, ACTIONS), ACTIONS)
    return Joint(q, jnp.maximum(q, best), action, 3 * jax.random.normal(keys[2], (count, STATE)))


@pytest.mark.parametrize("net", [Sum(), Monotonic(8, 16), Weighted(8, 16, (16,))], ids=["sum", "qmix", "wqmix"])
def test_no_agents_value_lowers_the_teams(net):
    slopes = jax.jit(jax.grad(lambda q, p, m: jnp.sum(jnp.stack(jax.tree.leaves(net.apply(p, m._replace(q=q)))[:1]))))
    seen = 0.0
    for seed in range(20):
        m = moments(seed)
        found = np.asarray(slopes(m.q, wild(net, seed) if seed else net.init(jax.random.key(0), blank()), m))
        assert found.min() >= 0
        seen = max(seen, found.max())
    assert seen > 0


def all_actions(net, params, q, state):
    """Q_tot of every joint action for own values q [n, A]."""
    joint = np.array(list(itertools.product(range(ACTIONS), repeat=AGENTS)))
    chosen = jnp.asarray(q)[np.arange(AGENTS), joint]
    best = jnp.broadcast_to(jnp.asarray(q).max(-1), chosen.shape)
    states = jnp.broadcast_to(state, (len(joint), STATE))
    return joint, np.asarray(net.apply(params, Joint(chosen, best, jax.nn.one_hot(joint, ACTIONS), states)))


@pytest.mark.parametrize("net", [Sum(), Monotonic(8, 16), Dueling(16)], ids=["sum", "qmix", "qplex"])
def test_the_best_joint_action_is_everyones_best_action(net):
    """Individual-global-max: what each agent chooses alone is best for the team."""
    rng = np.random.default_rng(0)
    for seed in range(10):
        params = wild(net, seed, 1.0)
        q = rng.normal(size=(AGENTS, ACTIONS)).astype(np.float32)
        joint, values = all_actions(net, params, q, jnp.asarray(rng.normal(size=STATE), jnp.float32))
        greedy = (joint == q.argmax(-1)).all(-1)
        assert values[greedy][0] >= values.max() - 1e-4 * np.abs(values).max()


def test_qplex_is_the_sum_of_scaled_values_at_the_best_action_and_adds_weighted_advantages_elsewhere():
    """V_tot is what stands at the greedy action; each joint action has weights of its own there."""
    net = Dueling(16)
    params = wild(net, 1, 0.5)
    m = moments(3, count=50)
    at_best = net.apply(params, m._replace(q=m.best))
    other = net.apply(params, m._replace(q=m.best, action=jnp.roll(m.action, 1, -1)))
    np.testing.assert_allclose(at_best, other, rtol=1e-5)  # no advantage, so the joint action cannot matter
    first = net.apply(params, m)
    assert (np.asarray(first) <= np.asarray(at_best) + 1e-4).all()
    lift = np.asarray(net.apply(params, m._replace(action=jnp.roll(m.action, 1, -1))) - first)
    assert np.abs(lift).max() > 0.1  # the weights read the joint action


def test_the_mixer_of_one_agent_with_unit_weights_is_the_identity():
    """elu is the identity above zero, so the bias lifts the value there and v takes the lift off again."""
    net = Monotonic(1, 4)
    params = jax.tree.map(jnp.zeros_like, net.init(jax.random.key(0), blank(1)))["params"]
    params["bias"]["bias"] = jnp.array([16.0])
    params["value"]["weights"]["bias"] = jnp.array([-16.0])
    q = jnp.linspace(-9.0, 9.0, 7)[:, None]
    m = Joint(q, q, jnp.zeros((7, 1, ACTIONS)), jnp.ones((7, STATE)))
    np.testing.assert_allclose(net.apply({"params": params}, m), q[:, 0], atol=1e-5)


def test_a_sum_and_free_joint_values():
    m = moments(0, 6)
    np.testing.assert_allclose(Sum().apply({}, m), np.asarray(m.q).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(total(m.q), np.asarray(m.q).sum(-1), rtol=1e-5)
    changed = m._replace(q=m.q + 1, best=m.best + 1)
    for net in (Central((8,)), Constraint((8,))):
        params = wild(net, 0)
        before, after = net.apply(params, m), net.apply(params, changed)
        if isinstance(net, Constraint):  # its joint value contains the three agents' own, its state value does not
            before = before[0] + 3, before[1]
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), before, after)
        moved = net.apply(params, m._replace(action=jnp.roll(m.action, 1, -1)))
        value, same = (moved, net.apply(params, m)) if isinstance(net, Central) else (moved[0], net.apply(params, m)[0])
        assert np.abs(np.asarray(value - same)).max() > 0.01


def test_without_its_correction_qtrans_joint_value_is_the_sum():
    net, m = Constraint((16,)), moments(1)
    params = wild(net, 1)
    alone = Central((16,)).apply({"params": params["params"]["central"]}, m)
    np.testing.assert_allclose(net.apply(params, m)[0] - alone, total(m.q), rtol=1e-4, atol=1e-3)
    slopes = jax.grad(lambda q: net.apply(params, m._replace(q=q))[0].sum())(m.q)
    np.testing.assert_allclose(slopes, 1.0, rtol=1e-6)  # agents learn from its temporal differences
