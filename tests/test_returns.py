"""Advantages and returns against sums written out by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from flockrl.algos.returns import gae, monte_carlo


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


def test_monte_carlo_by_hand():
    """An end at step 1, a cut at step 3, and a step whose episode goes on after the stretch."""
    over = flags(0, 1, 0, 1, 0)
    returns, known = monte_carlo(column(1, 2, 3, 4, 5), over, 0.5)
    np.testing.assert_allclose(returns[:, 0, 0], [1 + 0.5 * 2, 2, 3 + 0.5 * 4, 4, 5], rtol=1e-6)
    assert known[:, 0, 0].tolist() == [True, True, True, True, False]


def test_monte_carlo_of_each_agent_on_its_own():
    over = jnp.array([[[True, False]], [[False, False]], [[False, True]]])
    returns, known = monte_carlo(jnp.ones((3, 1, 2)), over, 0.5)
    np.testing.assert_allclose(returns[:, 0], [[1, 1.75], [1.5, 1.5], [1, 1]], rtol=1e-6)
    assert known[:, 0].tolist() == [[True, True], [False, True], [False, True]]


def test_lambda_one_is_the_return_less_the_value():
    """Where episodes terminate nothing follows; a truncated one and the last step go on with the next value."""
    rng = np.random.default_rng(1)
    reward, value = rng.normal(size=(2, 6, 5, 1)).astype(np.float32)
    terminated = rng.random((6, 5, 1)) < 0.2
    truncated = (rng.random((6, 5, 1)) < 0.3) & ~terminated
    following = np.concatenate([value[1:], value[:1]])
    following = np.where(truncated, rng.normal(size=following.shape), following).astype(np.float32)
    arrays = [jnp.asarray(x) for x in (reward, value, following, terminated, terminated | truncated)]
    got = gae(*arrays, 0.9, 1.0)
    for t, b, i in np.ndindex(*reward.shape):
        total = 0.0
        for s in range(t, 6):
            total += 0.9 ** (s - t) * reward[s, b, i]
            if terminated[s, b, i]:
                break
            if truncated[s, b, i] or s == 5:
                total += 0.9 ** (s - t + 1) * following[s, b, i]
                break
        assert got[t, b, i] == pytest.approx(total - value[t, b, i], abs=1e-5)
