"""Action distributions against closed forms, and masks over many draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from flockrl.core.groups import make_groups
from flockrl.core.types import Box, Discrete, EnvSpec, MultiDiscrete
from flockrl.nets.actions import ActionCode
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


# --- several choices at once

# Two choices, of 2 and of 3 options, with the probabilities (1/4, 3/4) and (1/2, 1/4, 1/4).
SEVERAL = np.log(np.float32([[0.25, 0.75, 0.5, 0.25, 0.25]]))


def test_several_choices_are_worth_their_product():
    head = head_of("all", MultiDiscrete((2, 3)))
    assert head.width == 5
    logp, entropy = head.evaluate(jnp.asarray(SEVERAL), None, jnp.array([[1, 0]]))
    assert logp[0] == pytest.approx(-0.980829, abs=1e-5)  # ln(3/4 * 1/2)
    # -(1/4 ln 1/4 + 3/4 ln 3/4) = 0.562335 and -(1/2 ln 1/2 + 2 * 1/4 ln 1/4) = 1.039721
    assert entropy[0] == pytest.approx(0.562335 + 1.039721, abs=1e-5)
    assert head.mode(jnp.asarray(SEVERAL), None).tolist() == [[1, 0]]
    even = jnp.log(jnp.array([[0.5, 0.5, 0.25, 0.5, 0.25]]))
    # 1/4 ln(1/2) + 3/4 ln(3/2) = 0.130812 and 1/2 ln 2 + 1/4 ln(1/2) + 1/4 ln 1 = 0.173287
    assert head.kl(jnp.asarray(SEVERAL), even, None)[0] == pytest.approx(0.130812 + 0.173287, abs=1e-5)
    assert head.kl(even, even, None)[0] == pytest.approx(0.0, abs=1e-6)


def test_masks_of_several_choices_renormalise_each_of_them():
    head = head_of("all", MultiDiscrete((2, 3)))
    mask = jnp.array([[True, True, False, True, True]])
    logp, entropy = head.evaluate(jnp.asarray(SEVERAL), mask, jnp.array([[0, 2]]))
    assert logp[0] == pytest.approx(-2.079442, abs=1e-5)  # ln(1/4 * 1/2): the second is even between two options now
    assert entropy[0] == pytest.approx(0.562335 + 0.693147, abs=1e-5)
    assert head.mode(jnp.asarray(SEVERAL), mask).tolist() == [[1, 1]]


def test_no_choice_ever_falls_on_an_illegal_option():
    head = head_of("all", MultiDiscrete((4, 2, 3)))
    rng = np.random.default_rng(0)
    out = jnp.asarray(rng.normal(size=(50_000, 1, 9)) * 5, jnp.float32)
    avail = rng.random((50_000, 1, 9)) < 0.3
    for first, size in ((0, 4), (4, 2), (6, 3)):
        avail[np.arange(50_000), 0, first + rng.integers(0, size, 50_000)] = True
    action, logp = head.sample(jax.random.key(0), out, jnp.asarray(avail))
    for drawn in (action, head.mode(out, jnp.asarray(avail))):
        assert drawn.shape == (50_000, 1, 3)
        options = np.asarray(drawn) + np.array([0, 4, 6])
        assert np.take_along_axis(avail, options, -1).all()
    again, _ = head.evaluate(out, jnp.asarray(avail), action)
    np.testing.assert_allclose(logp, again, atol=1e-4)
    assert np.isfinite(logp).all()


def test_choices_are_drawn_apart_and_as_often_as_they_should():
    head = head_of("all", MultiDiscrete((2, 3)))
    out = jnp.broadcast_to(jnp.asarray(SEVERAL), (40_000, 1, 5))
    action = np.asarray(head.sample(jax.random.key(1), out, None)[0])[:, 0]
    joint = np.zeros((2, 3))
    np.add.at(joint, tuple(action.T), 1 / 40_000)
    np.testing.assert_allclose(joint, np.outer([0.25, 0.75], [0.5, 0.25, 0.25]), atol=0.01)


@pytest.mark.parametrize("choices", [(2, 3, 2, 3), (3, 3, 2), (2, 2, 2), (4, 1, 40)])
def test_choices_of_like_sizes_keep_their_places(choices):
    head, rng = head_of("all", MultiDiscrete(choices)), np.random.default_rng(0)
    old, new = (jnp.asarray(rng.normal(size=(5, 1, sum(choices))), jnp.float32) for _ in range(2))
    action, logp = head.sample(jax.random.key(0), old, None)
    starts = np.cumsum(choices) - choices
    p, q = ([jax.nn.softmax(x[:, 0, a : a + n]) for a, n in zip(starts, choices, strict=True)] for x in (old, new))
    wanted = sum(np.log(part[np.arange(5), action[:, 0, i]]) for i, part in enumerate(p))
    np.testing.assert_allclose(logp[:, 0], wanted, atol=1e-5)
    found, entropy = head.evaluate(old, None, action)
    np.testing.assert_allclose(found[:, 0], wanted, atol=1e-5)
    np.testing.assert_allclose(entropy[:, 0], -sum((part * np.log(part)).sum(-1) for part in p), atol=1e-5)
    apart = sum((a * np.log(a / b)).sum(-1) for a, b in zip(p, q, strict=True))
    np.testing.assert_allclose(head.kl(old, new, None)[:, 0], apart, atol=1e-5)
    np.testing.assert_array_equal(head.mode(old, None)[:, 0], np.stack([part.argmax(-1) for part in p], -1))


def test_a_program_does_not_grow_with_the_number_of_choices():
    def size(count):
        head, out = head_of("all", MultiDiscrete((10,) * count)), jnp.zeros((4, 1, 10 * count))
        program = jax.make_jaxpr(lambda key, out: head.evaluate(out, None, head.sample(key, out, None)[0]))
        return str(program(jax.random.key(0), out)).count(" = ")

    assert size(300) == size(3)


# --- codes of actions

MIXED = spec(Discrete(3), Box((2,), (-1.0, 0.0), (2.0, 4.0)), MultiDiscrete((2, 4)))


def test_codes_of_unlike_actions():
    code = ActionCode(MIXED)
    action = jnp.array([[2.0, 0.0], [0.5, 3.0], [1.0, 3.0]])
    wanted = [[0, 0, 1, 0, 0, 0], [0, 0.5, 0, 0, 0, 0], [0, 1, 0, 0, 0, 1]]
    np.testing.assert_allclose(code.encode(action), wanted, atol=1e-6)


def test_codes_are_undone():
    code = ActionCode(MIXED)
    rng = np.random.default_rng(0)
    action = np.zeros((100, 3, 2), np.float32)
    action[:, 0, 0] = rng.integers(0, 3, 100)
    action[:, 1] = rng.uniform([-1, 0], [2, 4], (100, 2))
    action[:, 2] = np.stack([rng.integers(0, 2, 100), rng.integers(0, 4, 100)], -1)
    back = code.decode(code.encode(jnp.asarray(action)))
    assert back.dtype == jnp.float32
    np.testing.assert_allclose(back, action, atol=1e-5)
    np.testing.assert_array_equal(back[:, [0, 2]], action[:, [0, 2]])


def test_random_codes_of_unlike_actions_are_legal():
    code = ActionCode(MIXED)
    avail = np.array([[0, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0], [1, 0, 0, 1, 0, 1]], bool)
    action = np.asarray(code.decode(code.random(jax.random.key(0), 500, jnp.asarray(avail))))
    assert set(action[:, 0, 0]) == {1, 2}
    assert set(action[:, 2, 0]) == {0}
    assert set(action[:, 2, 1]) == {1, 3}
    assert (action[:, 0, 1] == 0).all()
    assert action[:, 1, 0].min() >= -1
    assert action[:, 1, 1].max() > 3.5


def test_a_thousand_actions_make_no_larger_program():
    def size(count):
        head = head_of("all", Discrete(count))
        out, action = jnp.zeros((6, 1, count)), jnp.zeros((6, 1), jnp.int32)

        def act_and_learn(key, out, avail):
            value = lambda out: sum(x.sum() for x in head.evaluate(out, avail, action))  # noqa: E731
            return head.sample(key, out, avail), jax.grad(value)(out)

        return len(str(jax.make_jaxpr(act_and_learn)(jax.random.key(0), out, out == 0)).splitlines())

    assert size(1000) == size(100) < 2 * size(5)


def test_many_actions_are_drawn_and_judged_like_few(monkeypatch):
    rng = np.random.default_rng(0)
    out = jnp.asarray(rng.normal(size=(40, 1, 20)) * 3, jnp.float32)
    avail = rng.random(out.shape) < 0.5
    avail[..., 7] = True
    action = jnp.full((40, 1), 7)

    def judged():
        head = head_of("all", Discrete(20))
        value = lambda out: sum((x * w).sum() for x, w in zip(head.evaluate(out, avail, action), (1.0, 0.3)))  # noqa: E731, B905
        return *head.evaluate(out, avail, action), jax.grad(value)(out)

    few = judged()
    monkeypatch.setattr("flockrl.nets.heads.WRITTEN_OUT", 10)
    for a, b in zip(few, judged(), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)
    head = head_of("all", Discrete(20))
    many = jnp.broadcast_to(out[:1], (50_000, 1, 20))
    drawn, logp = head.sample(jax.random.key(1), many, avail[:1])
    p = np.where(avail[0, 0], np.exp(out[0, 0]), 0)
    p /= p.sum()
    shares = np.bincount(np.asarray(drawn[:, 0]), minlength=20) / 50_000
    assert (shares[p == 0] == 0).all()
    np.testing.assert_allclose(shares, p, atol=0.01)
    np.testing.assert_allclose(logp[:, 0], np.log(p[np.asarray(drawn[:, 0])]), atol=1e-4)
