"""GAE against sums written out by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from flockrl.returns import gae


def column(*values):
    return jnp.array(values, jnp.float32)[:, None, None]


def flags(*values):
    return jnp.array(values, bool)[:, None, None]


def test_gae_by_hand_inside_an_episode():
    gamma, lam = 0.9, 0.8
    reward, value, following = column(1, 2, 3), column(10, 20, 30), column(20, 30, 40)
    none = flags(0, 0, 0)
    d0, d1, d2 = 1 + 0.9 * 20 - 10, 2 + 0.9 * 30 - 20, 3 + 0.9 * 40 - 30
    expected = [d0 + 0.72 * d1 + 0.72**2 * d2, d1 + 0.72 * d2, d2]
    got = gae(reward, value, following, none, none, gamma, lam)
    np.testing.assert_allclose(got[:, 0, 0], expected, rtol=1e-6)


def test_termination_cuts_bootstrap_and_recursion():
    reward, value, following = column(1, 1), column(5, 7), column(100, 0)
    over = flags(1, 0)
    got = gae(reward, value, following, over, over, 0.9, 0.95)
    assert got[0, 0, 0] == pytest.approx(1 - 5)


def test_truncation_bootstraps_but_cuts_recursion():
    reward, value, following = column(1, 1), column(5, 7), column(100, 0)
    got = gae(reward, value, following, flags(0, 0), flags(1, 0), 0.9, 0.95)
    assert got[0, 0, 0] == pytest.approx(1 + 0.9 * 100 - 5)


def test_lambda_one_is_the_discounted_return():
    rng = np.random.default_rng(0)
    reward, value = rng.normal(size=(2, 6, 3, 2)).astype(np.float32)
    following = np.concatenate([value[1:], rng.normal(size=(1, 3, 2))]).astype(np.float32)
    none = jnp.zeros((6, 3, 2), bool)
    got = gae(jnp.asarray(reward), jnp.asarray(value), jnp.asarray(following), none, none, 0.9, 1.0)
    expected = sum(0.9**t * reward[t] for t in range(6)) + 0.9**6 * following[-1] - value[0]
    np.testing.assert_allclose(got[0], expected, rtol=1e-5, atol=1e-5)
