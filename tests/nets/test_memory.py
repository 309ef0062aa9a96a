"""The GRU against a plain loop, and its resets."""

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.nets.memory import GRU


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def plain_gru(params, x, h, first):
    """The textbook equations, one step and one row at a time, in float64."""
    wi, bi = np.asarray(params["input"]["kernel"], float), np.asarray(params["input"]["bias"], float)
    wh, bh = np.asarray(params["kernel"], float), np.asarray(params["bias"], float)
    size, out = wh.shape[0], []
    for t in range(len(x)):
        h = np.where(first[t][:, None, None], 0.0, h)
        a, b = x[t] @ wi + bi, h @ wh
        r = sigmoid(a[..., :size] + b[..., :size])
        z = sigmoid(a[..., size : 2 * size] + b[..., size : 2 * size])
        n = np.tanh(a[..., 2 * size :] + r * (b[..., 2 * size :] + bh))
        h = (1 - z) * n + z * h
        out.append(h)
    return np.stack(out)


def setup(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(7, 3, 2, 4)).astype(np.float32)
    h = rng.normal(size=(3, 2, 5)).astype(np.float32)
    first = rng.random((7, 3)) < 0.3
    net = GRU(5)
    params = net.init(jax.random.key(seed), x, h, first)["params"]
    bias = jax.random.normal(jax.random.key(9), params["bias"].shape)
    return net, {**params, "bias": bias}, x, h, first


def test_forward_matches_the_textbook():
    net, params, x, h, first = setup()
    got = net.apply({"params": params}, x, h, first)
    np.testing.assert_allclose(got, plain_gru(params, x, h, first), rtol=1e-4, atol=1e-5)


def test_gradients_match_finite_differences():
    net, params, x, h, first = setup(1)
    target = np.random.default_rng(2).normal(size=(7, 3, 2, 5))

    def loss(params, x, h):
        return jnp.sum(net.apply({"params": params}, x, h, first) * target)

    grads = jax.grad(loss, argnums=(0, 1, 2))(params, jnp.asarray(x), jnp.asarray(h))
    inputs = ({k: params[k] for k in params}, x, h)
    rng = np.random.default_rng(3)
    direction = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), inputs)

    def value(eps):
        moved = jax.tree.map(lambda leaf, d: np.asarray(leaf, float) + eps * d, inputs, direction)
        return (plain_gru(moved[0], moved[1], moved[2], first) * target).sum()

    numeric = (value(1e-5) - value(-1e-5)) / 2e-5
    products = jax.tree.map(lambda g, d: float((np.asarray(g, float) * d).sum()), grads, direction)
    np.testing.assert_allclose(sum(jax.tree.leaves(products)), numeric, rtol=1e-3)


def test_one_long_call_equals_two_short_ones():
    net, params, x, h, first = setup()
    whole = net.apply({"params": params}, x, h, first)
    head = net.apply({"params": params}, x[:3], h, first[:3])
    tail = net.apply({"params": params}, x[3:], head[-1], first[3:])
    np.testing.assert_allclose(whole, jnp.concatenate([head, tail]), rtol=1e-5, atol=1e-6)
