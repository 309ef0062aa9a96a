"""Running moments against NumPy on all the data at once."""

import jax.numpy as jnp
import numpy as np

from flockrl.nets.normalisation import moments, observe


def test_equal_batches_give_the_moments_of_all_data():
    rng = np.random.default_rng(0)
    data = rng.normal(3.0, 2.0, size=(4, 10, 5, 2, 3)).astype(np.float32)
    stats = moments((2, 3))
    for batch in data:
        stats = observe(stats, jnp.asarray(batch), None, np.arange(2), slowest=0.0)
    np.testing.assert_allclose(stats.mean, data.mean((0, 1, 2)), rtol=1e-4)
    np.testing.assert_allclose(stats.var, data.var((0, 1, 2)), rtol=1e-3)


def test_dead_agents_do_not_count():
    x = jnp.array([[[1.0, 5.0]], [[3.0, 1e6]]])
    weight = jnp.array([[[1.0, 1.0]], [[1.0, 0.0]]])
    stats = observe(moments((2,)), x, weight, np.arange(2), slowest=0.0)
    np.testing.assert_allclose(stats.mean, [2.0, 5.0])


def test_pooled_agents_weigh_by_their_living_steps():
    x = jnp.array([[[1.0, 5.0]], [[3.0, 1e6]]])
    weight = jnp.array([[[1.0, 1.0]], [[1.0, 0.0]]])
    pool = np.zeros(2, np.int32)
    stats = observe(moments((2,)), x, weight, pool, slowest=0.0)
    np.testing.assert_allclose(stats.mean, [3.0, 3.0], rtol=1e-6)


def test_a_batch_without_living_agents_changes_nothing():
    stats = observe(moments((1,)), jnp.full((2, 1, 1), 9.0), jnp.zeros((2, 1, 1)), np.arange(1), 0.0)
    assert stats.mean[0] == 0.0
    assert stats.var[0] == 1.0
