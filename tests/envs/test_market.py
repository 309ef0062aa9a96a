"""Market making: fills and wealth by hand, Avellaneda and Stoikov's figures, and the best quotes by brute force."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flockrl.core.errors import UsageError
from flockrl.envs import check, make
from flockrl.envs.market.optimal import MOST_STOCK, Market, chance, solve
from flockrl.training.scripted import Scripted

KEY = jax.random.key(0)


def test_wealth_is_cash_and_stock_and_the_best_quote_alone_is_hit():
    env = make("market/making:makers=3,A=100000,aversion=0.5")  # orders are certain
    state, seen = jax.jit(env.reset)(KEY)
    assert env.spec.sides == ("maker_0", "maker_1", "maker_2")
    np.testing.assert_allclose(seen.obs, [[0, 1, 0, 0, 0, 0]] * 3)
    action = jnp.array([[0.5, 1.0], [0.25, 1.5], [1.0, 1.0]])
    winners, step = set(), jax.jit(env.step)
    for seed in range(12):
        after, seen, reward, terminated, truncated = step(jax.random.key(seed), state, action)
        assert not terminated
        assert not truncated
        assert after.filled[:, 0].tolist() == [0, 1, 0]  # the best bid
        assert float(after.filled[:, 1].sum()) == 1
        winners.add(int(after.filled[:, 1].argmax()))  # makers 0 and 2 ask the same
        wealth = after.cash + after.stock * after.mid
        assert abs(float(after.mid) - 100) == pytest.approx(2 / np.sqrt(200), rel=1e-4)
        penalty = 0.5 / 2 * 4 / 200 * after.stock**2
        np.testing.assert_allclose(reward, wealth - penalty, atol=1e-4)
        np.testing.assert_allclose(seen.obs[:, 2:4], [[0.25, 1.0]] * 3)
    assert winners == {0, 2}


def test_fills_are_as_likely_as_they_should_be():
    env = make("market/making")
    state, _ = jax.jit(env.reset)(KEY)
    action = jnp.array([[0.3, 1.2]])
    step = jax.jit(jax.vmap(lambda key: env.step(key, state, action)[0].filled[0]))
    share = np.asarray(step(jax.random.split(KEY, 20_000))).mean(0)
    expected = 140 / 200 * np.exp(-1.5 * np.array([0.3, 1.2]))
    assert (np.abs(share - expected) < 4 * np.sqrt(expected / 20_000)).all()


def test_no_other_quotes_of_a_step_earn_more_than_the_plan():
    """The plan's quotes against all pairs on a grid, in the last two steps, from several stocks."""
    market = Market(2, 0.7, 1.5, 0.01, -2.0, 4.0)
    plan, grid = solve(market), np.linspace(-0.2, 2.5, 271)
    hit = chance(market, grid)
    value = np.zeros(2 * MOST_STOCK + 1)
    for t in (1, 0):
        new = value.copy()
        for held in range(-5, 6):
            q, risk = held + MOST_STOCK, market.risk
            then = {d: value[q + d] - risk * (held + d) ** 2 for d in (-1, 0, 1)}
            b, a = hit[:, None], hit[None, :]
            mean = b * grid[:, None] + a * grid + b * (1 - a) * then[1] + a * (1 - b) * then[-1]
            mean = mean + (b * a + (1 - b) * (1 - a)) * then[0]
            i, j = np.unravel_index(mean.argmax(), mean.shape)
            np.testing.assert_allclose(plan.quotes[t, q], [grid[i], grid[j]], atol=0.02)
            new[q] = mean.max()
        value = new
    assert plan.value == pytest.approx(value[MOST_STOCK], abs=1e-4)


@pytest.fixture(scope="module")
def alone():
    return {p: Scripted(p, "market/making").evaluate(4000) for p in ("avellaneda_stoikov", "symmetric", "optimal")}


@pytest.mark.slow
def test_the_figures_of_avellaneda_and_stoikov(alone):
    """Means within three standard errors, standard deviations within 5 %, of 20,000 paths by numpy."""
    for policy, mean, deviation in (("avellaneda_stoikov", 64.9, 6.6), ("symmetric", 68.4, 13.5)):
        profit = alone[policy].measures["profit"]
        assert abs(profit.mean() - mean) < 3 * deviation / np.sqrt(4000) + 0.05
        assert profit.std() == pytest.approx(deviation, rel=0.05)


@pytest.mark.slow
def test_nobody_earns_more_than_the_best(alone):
    env, optimal = make("market/making"), alone["optimal"]
    error = optimal.std / np.sqrt(4000)
    assert abs(optimal.mean - env.best) < 3 * error
    assert all(alone[p].mean < env.best for p in ("avellaneda_stoikov", "symmetric"))


def test_the_contract_with_several_makers_and_wrong_settings():
    check(make("market/making:makers=3,steps=20"))
    for text, words in (("makers=0", "from 1 to 100"), ("k=0", "k must be from"), ("sigma=-1", "sigma must be from")):
        with pytest.raises(UsageError, match=words):
            make(f"market/making:{text}")
