"""Action distributions against closed forms, and masks over many draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from flockrl.core.groups import make_groups
from flockrl.core.types import Box, Discrete, EnvSpec
from flockrl.nets.heads import make_head


def spec(*actions):
    n = len(actions)
    return EnvSpec("test", tuple(f"a_{i}" for i in range(n)), (Box((1,)),) * n, actions, max_steps=1)


def head_of(share, *actions):
    world = spec(*actions)
    return make_head(world, make_groups(world, share)[0])


def test_categorical_matches_scipy():
    head = head_of("all", Discrete(4))
    logits = np.array([[0.3, -1.0, 2.0, 0.0]], np.float32)
    p = np.exp(logits[0]) / np.exp(logits[0]).sum()
    logp, entropy = head.evaluate(jnp.asarray(logits), None, jnp.array([2]))
    assert logp[0] == pytest.approx(np.log(p[2]), rel=1e-5)
    assert entropy[0] == pytest.approx(stats.entropy(p), rel=1e-5)


def test_illegal_actions_are_never_drawn_and_have_no_gradient():
    head = head_of("all", Discrete(5))
    rng = np.random.default_rng(0)
    out = jnp.asarray(rng.normal(size=(100_000, 1, 5)) * 5, jnp.float32)
    avail = rng.random((100_000, 1, 5)) < 0.3
    avail[np.arange(100_000), 0, rng.integers(0, 5, 100_000)] = True
    action, logp = head.sample(jax.random.key(0), out, jnp.asarray(avail))
    chosen = np.take_along_axis(avail, np.asarray(action)[..., None], -1)
    assert chosen.all()
    assert np.isfinite(logp).all()
    greedy = np.asarray(head.mode(out, jnp.asarray(avail)))
    assert np.take_along_axis(avail, greedy[..., None], -1).all()
    mask = jnp.array([[True, True, False, False, False]])
    gradient = jax.grad(lambda o: head.evaluate(o, mask, jnp.array([1]))[0].sum())(out[0])
    assert (np.asarray(gradient)[0, 2:] == 0).all()
    assert (np.asarray(gradient)[0, :2] != 0).all()


def test_agents_with_fewer_actions_never_draw_the_padding():
    head = head_of("all", Discrete(2), Discrete(5))
    action, _ = head.sample(jax.random.key(1), jnp.zeros((2000, 2, 5)), None)
    assert set(np.unique(action[:, 0])) == {0, 1}
    assert set(np.unique(action[:, 1])) == {0, 1, 2, 3, 4}
    _, entropy = head.evaluate(jnp.zeros((2, 5)), None, jnp.array([0, 0]))
    np.testing.assert_allclose(entropy, np.log([2, 5]), rtol=1e-5)


def test_gaussian_matches_scipy_in_units_of_the_range():
    head = head_of("all", Box((2,), (-2.0, 0.0), (4.0, 1.0)))
    mean, log_std = np.array([0.5, -0.25]), np.array([-0.3, 0.2])
    out = jnp.asarray(np.concatenate([mean, log_std])[None], jnp.float32)
    action = jnp.array([[2.0, 0.9]])
    u = (np.array([2.0, 0.9]) - [1.0, 0.5]) / [3.0, 0.5]
    logp, entropy = head.evaluate(out, None, action)
    assert logp[0] == pytest.approx(stats.norm.logpdf(u, mean, np.exp(log_std)).sum(), rel=1e-5)
    assert entropy[0] == pytest.approx(stats.norm.entropy(mean, np.exp(log_std)).sum(), rel=1e-5)
    np.testing.assert_allclose(head.mode(out, None)[0], [1 + 3 * 0.5, 0.5 - 0.5 * 0.25], rtol=1e-6)


def test_gaussian_samples_have_the_density_they_report():
    head = head_of("all", Box((1,), -1.0, 1.0))
    out = jnp.broadcast_to(jnp.array([0.2, -1.0]), (50_000, 1, 2))
    action, logp = head.sample(jax.random.key(0), out, None)
    assert action.mean() == pytest.approx(0.2, abs=0.01)
    assert action.std() == pytest.approx(np.exp(-1), rel=0.02)
    assert -logp.mean() == pytest.approx(stats.norm.entropy(0, np.exp(-1)), rel=0.02)


def test_missing_action_dimensions_count_for_nothing():
    head = head_of("all", Box((1,), -1.0, 1.0), Box((2,), -1.0, 1.0))
    out = jnp.zeros((2, 4))
    logp, entropy = head.evaluate(out, None, jnp.array([[0.3, 99.0], [0.3, 0.0]]))
    assert logp[0] == pytest.approx(stats.norm.logpdf(0.3), rel=1e-5)
    assert entropy[0] == pytest.approx(stats.norm.entropy(), rel=1e-5)
    assert entropy[1] == pytest.approx(2 * stats.norm.entropy(), rel=1e-5)
