"""Who earned it: optima, closed forms, Shapley's axioms, and estimators against the exact policy gradient."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flockrl.algos.assembly import make_algorithm
from flockrl.algos.counterfactual import counterfactual
from flockrl.algos.credit import coalitions, instead, shapley, with_each_choice, without_each
from flockrl.algos.presets import make_config
from flockrl.core.errors import UsageError
from flockrl.core.spec import spec_from_json, spec_to_json
from flockrl.envs import check, make
from flockrl.envs.credit.bar import best_attendance
from flockrl.training.scripted import Scripted

KEY = jax.random.key(0)

# --- the environments


@pytest.mark.parametrize(
    ("n", "nights", "capacity", "best"),
    [(60, 6, 3, 5.5182), (100, 7, 5, 11.0364), (168, 7, 6, 13.2437), (50, 5, 4, 5.8930)],
)
def test_the_bars_optimum(n, nights, capacity, best):
    found, counts = best_attendance(n, nights, capacity)
    assert found == pytest.approx(best, abs=5e-5)
    assert counts.sum() == n
    assert (counts * np.exp(-counts / capacity)).sum() == pytest.approx(found)


def test_the_bars_optimum_is_that_of_all_attendances():
    every = [c for c in itertools.product(range(8), repeat=3) if sum(c) == 7]
    worth = max(sum(x * math.exp(-x / 2) for x in c) for c in every)
    assert best_attendance(7, 3, 2.0)[0] == pytest.approx(worth)


def test_the_bars_difference_rewards_in_closed_form():
    """D = x e^(-x/c) - (x-1) e^(-(x-1)/c) of the own night."""
    env = make("credit/bar:n=9,nights=3,capacity=2")
    action = jnp.array([0, 0, 0, 0, 1, 1, 2, 2, 2])
    state, _ = env.reset(KEY)
    _, _, reward, _, _ = env.step(KEY, state, action)
    x = np.array([4, 4, 4, 4, 2, 2, 3, 3, 3])
    wanted = x * np.exp(-x / 2) - (x - 1) * np.exp(-(x - 1) / 2)
    np.testing.assert_allclose(reward - env.alternatives(state, action)[:, -1], wanted, atol=1e-6)

    def value(action, present):
        return env.counterfactual_reward(state, action, present)

    np.testing.assert_allclose(reward - without_each(value, action), wanted, atol=1e-6)


@pytest.mark.parametrize("name", ["bar:n=5,nights=3,capacity=2", "gaussian_squeeze:n=4,mu=12,sigma=5"])
def test_alternatives_are_what_the_environment_would_pay(name):
    env = make(f"credit/{name}")
    n, choices = env.spec.num_agents, env.spec.action_size
    state, _ = env.reset(KEY)
    action = jax.random.randint(KEY, (n,), 0, choices)
    found = env.alternatives(state, action)
    for i, c in itertools.product(range(n), range(choices)):
        paid = env.step(KEY, state, action.at[i].set(c))[2][0]
        assert found[i, c] == pytest.approx(float(paid), abs=1e-5)
    everyone = jnp.ones(n, bool)
    np.testing.assert_allclose(env.counterfactual_reward(state, action, everyone), env.step(KEY, state, action)[2][0])
    away = [env.counterfactual_reward(state, action, everyone.at[i].set(False)) for i in range(n)]
    np.testing.assert_allclose(found[:, -1], away, rtol=1e-5)


def test_the_squeezes_optimum():
    env = make("credit/gaussian_squeeze")
    assert env.best_sum == pytest.approx((175 + math.sqrt(175**2 + 2 * 100**2)) / 2, abs=0.5)
    assert env.best == pytest.approx(200 * math.exp(-(0.25**2)))


def test_rovers_are_paid_together_and_once():
    env = make("credit/rover:n=3,points=2,coupling=2,size=6,steps=9")
    state, _ = env.reset(KEY)
    state = state._replace(
        rovers=jnp.array([[0, 0], [0, 2], [5, 5]]), points=jnp.array([[0, 1], [4, 1]]), seen=jnp.zeros(2, bool)
    )
    stay = jnp.zeros(3, jnp.int32)
    alone = [env.counterfactual_reward(state, stay, jnp.arange(3) != i) for i in range(3)]
    assert [float(x) for x in alone] == [0.0, 0.0, 0.5]
    state, _, reward, over, cut = env.step(KEY, state, stay)
    assert reward.tolist() == [0.5] * 3
    assert not over
    assert not cut
    assert env.step(KEY, state, stay)[2].tolist() == [0.0] * 3  # a point pays once
    last = env.step(KEY, state._replace(step=jnp.int32(8)), stay)
    assert last[4]
    far = state._replace(rovers=jnp.array([[3, 1], [4, 2], [5, 5]]))
    assert env.step(KEY, far, stay)[3]


SCORES = [
    ("best", "bar", 1, 5.518205), ("spread", "bar", 1, 6 * 10 * math.exp(-10 / 3)),
    ("best", "gaussian_squeeze", 1, 187.8826),
    ("middle", "gaussian_squeeze", 1, 500 * math.exp(-(3.25**2))), ("best", "rover", 300, 1.0),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "name", "episodes", "score"), SCORES)
def test_policies_earn_what_they_should(policy, name, episodes, score):
    team = Scripted(policy, f"credit/{name}")
    assert team.evaluate(episodes).mean == pytest.approx(score, rel=1e-4)
    episode = team.episode(seed=1)
    pictures = team.env.render(episode.states, 80)
    assert len(pictures) == len(episode.reward) + 1
    assert len({picture.tobytes() for picture in pictures}) > 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bar:n=1", "n must be a whole number from 2 to 1,000"),
        ("bar:capacity=0", "capacity must be from 0.1 to 1,000"),
        ("gaussian_squeeze:sigma=-1", "sigma must be from"),
        ("rover:coupling=7", "coupling .7. must be at most n .6."),
    ],
)
def test_wrong_settings_are_named(name, words):
    with pytest.raises(UsageError, match=words):
        make(f"credit/{name}")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bar:n=4,nights=3", "gaussian_squeeze:n=3,mu=10,sigma=4", "rover:n=3,steps=7"])
def test_they_keep_the_contract(name):
    check(make(f"credit/{name}"))


def test_a_spec_tells_of_counterfactual_rewards_and_a_side_has_none():
    spec = make("credit/bar:n=4").spec
    assert spec_from_json(spec_to_json(spec)).counterfactual
    assert not spec.part([0, 1]).counterfactual


# --- Shapley values


def table_game(seed, n):
    """A game of n agents whose coalitions are worth random numbers."""
    worth = jnp.asarray(np.random.default_rng(seed).normal(size=(2,) * n), jnp.float32)
    return worth, lambda action, present: worth[tuple(present.astype(jnp.int32))]


def by_orders(worth, n):
    """Shapley values as the mean over all orders of agents."""
    total = np.zeros(n)
    orders = list(itertools.permutations(range(n)))
    for order in orders:
        inside = [0] * n
        for agent in order:
            before = float(worth[tuple(inside)])
            inside[agent] = 1
            total[agent] += float(worth[tuple(inside)]) - before
    return total / len(orders)


@pytest.mark.parametrize("n", [2, 3, 5, 6])
def test_shapley_values_are_those_of_all_orders(n):
    worth, value = table_game(n, n)
    found, error = shapley(value, jnp.zeros(n, jnp.int32), KEY, 16)
    np.testing.assert_allclose(found, by_orders(np.asarray(worth), n), atol=1e-5)
    assert not error.any()
    assert found.sum() == pytest.approx(float(worth[(1,) * n] - worth[(0,) * n]), abs=1e-5)  # they share it all out


def test_shapleys_axioms():
    """Agents 0 and 1 are alike, agent 3 adds nothing."""

    def value(action, present):
        there = present.astype(jnp.float32)
        return jnp.maximum(there[0] + there[1] + 0.5 * there[2], 1.2) ** 2

    found, _ = shapley(value, jnp.zeros(4, jnp.int32), KEY, 16)
    assert found[0] == pytest.approx(float(found[1]), abs=1e-5)
    assert found[3] == pytest.approx(0.0, abs=1e-5)
    assert found.sum() == pytest.approx(2.5**2 - 1.2**2, abs=1e-5)


def test_sampled_shapley_values_come_with_their_error():
    """The bar with nine agents, one too many for all coalitions: against the exact weights of all of them."""
    env = make("credit/bar:n=9,nights=3,capacity=2")
    state, _ = env.reset(KEY)
    action = jnp.array([0, 0, 0, 0, 1, 1, 2, 2, 2])

    def value(action, present):
        return env.counterfactual_reward(state, action, present)

    masks, weights = coalitions(9)
    exact = weights @ np.asarray(jax.vmap(lambda present: value(action, present))(jnp.asarray(masks)))
    found, error = shapley(value, action, KEY, 400)
    assert (error > 0).all()
    assert (np.abs(found - exact) < 4 * error).all()
    assert found.sum() == pytest.approx(float(exact.sum()), abs=1e-4)  # every order shares it all out
    again, wide = shapley(value, action, KEY, 25)
    assert 2 < float((wide / error).mean()) < 8  # 4 times the error at a sixteenth of the orders
    assert again.shape == (9,)


def test_a_null_action_stands_for_an_agent_that_is_not_there():
    env = make("credit/gaussian_squeeze:n=4,mu=12,sigma=5")
    state, _ = env.reset(KEY)

    def value(action, present):
        return env.counterfactual_reward(state, action, present)

    action = jnp.array([3, 0, 9, 5])
    np.testing.assert_allclose(without_each(instead(value, 0), action), without_each(value, action))
    table = with_each_choice(value, action, 10)
    np.testing.assert_allclose(without_each(instead(value, 4), action), table[:, 4])


# --- estimators against the exact gradient


def games(n):
    rng = np.random.default_rng(n)
    sizes = (3, 2, 4)[:n]
    payoff = rng.normal(size=sizes)
    logits = [rng.normal(size=size) * 0.7 for size in sizes]
    return payoff, logits


def exact_gradient(payoff, logits):
    def expected(logits):
        value = jnp.asarray(payoff, jnp.float32)
        for x in reversed(logits):
            value = value @ jax.nn.softmax(x)
        return value

    return jax.grad(expected)([jnp.asarray(x, jnp.float32) for x in logits])


def estimators(payoff, logits, rng):
    """Name -> advantages [joint actions, N]: all joint actions, their chances, and what each estimator credits."""
    sizes, n = payoff.shape, payoff.ndim
    actions = jnp.asarray(list(itertools.product(*map(range, sizes))), jnp.int32)
    pis = [np.asarray(jax.nn.softmax(x)) for x in logits]
    chance = np.array([np.prod([pi[a] for pi, a in zip(pis, action, strict=True)]) for action in np.asarray(actions)])
    width = max(sizes)
    table = jnp.asarray(np.pad(payoff, [(0, width - s) for s in sizes]), jnp.float32)
    pi = jnp.asarray(np.stack([np.pad(p, (0, width - len(p))) for p in pis]), jnp.float32)

    def value(action, present):
        return table[tuple(action)]

    choices = jax.vmap(lambda action: with_each_choice(value, action, width))(actions)  # exact Q of every own choice
    paid = jnp.broadcast_to(jnp.asarray(payoff.reshape(-1), jnp.float32)[:, None], (len(actions), n))
    wrong = choices + jnp.asarray(rng.normal(size=(1, n, width)), jnp.float32)  # a critic that has not learned yet
    null = jax.vmap(lambda action: without_each(instead(value, 0), action))(actions)
    mean = (chance[:, None] * paid).sum(0)
    everywhere = jnp.broadcast_to(pi, choices.shape)
    return (
        actions,
        pis,
        chance,
        {
            "reinforce": paid,
            "value": paid - mean,
            "difference": paid - null,
            "aristocrat": paid - (everywhere * choices).sum(-1),
            "coma": counterfactual(choices, everywhere, actions),
            "coma, returns and a wrong critic": counterfactual(wrong, everywhere, actions, paid),
        },
    )


@pytest.mark.parametrize("n", [2, 3])
def test_estimators_mean_is_the_policy_gradient_and_credit_lowers_the_variance(n, capsys):
    """Over all joint actions, so without sampling error. Illegal padding has probability 0."""
    payoff, logits = games(n)
    wanted = exact_gradient(payoff, logits)
    actions, pis, chance, found = estimators(payoff, logits, np.random.default_rng(1))
    variance = {}
    for name, advantage in found.items():
        total = 0.0
        for i, pi in enumerate(pis):
            score = np.eye(len(pi))[np.asarray(actions[:, i])] - pi  # d log pi(a) / d logits
            samples = score * np.asarray(advantage[:, i])[:, None]
            mean = (chance[:, None] * samples).sum(0)
            np.testing.assert_allclose(mean, wanted[i], atol=1e-5, err_msg=name)
            total += (chance[:, None] * (samples - mean) ** 2).sum()
        variance[name] = total
    with capsys.disabled():
        print(f"\n  variance, {n} agents:", {name: round(float(v), 4) for name, v in variance.items()})
    assert variance["aristocrat"] < variance["reinforce"]
    assert variance["coma"] < variance["reinforce"]
    assert variance["coma"] == pytest.approx(variance["aristocrat"], rel=1e-4)  # with exact values they are the same


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 3])
def test_a_million_samples_agree_with_the_exact_gradient(n, capsys):
    """The same with joint actions drawn from the policies: within 1e-2 of the gradient, and variances of samples."""
    payoff, logits = games(n)
    wanted = exact_gradient(payoff, logits)
    actions, pis, chance, found = estimators(payoff, logits, np.random.default_rng(1))
    drawn = np.random.default_rng(2).choice(len(chance), size=1_000_000, p=chance / chance.sum())
    variance = {}
    for name, advantage in found.items():
        total = 0.0
        for i, pi in enumerate(pis):
            score = np.eye(len(pi))[np.asarray(actions[:, i])] - pi
            samples = (score * np.asarray(advantage[:, i])[:, None])[drawn]
            np.testing.assert_allclose(samples.mean(0), wanted[i], atol=1e-2, err_msg=name)
            total += samples.var(0).sum()
        variance[name] = total
    with capsys.disabled():
        print(f"\n  variance of samples, {n} agents:", {name: round(float(v), 4) for name, v in variance.items()})
    assert max(variance["aristocrat"], variance["coma"]) < variance["reinforce"]


def test_a_wrong_critic_biases_comas_own_advantage_but_not_that_of_returns():
    """Errors that depend on the own action are in Q(s, a) of the paper's advantage."""
    payoff, logits = games(2)
    wanted = exact_gradient(payoff, logits)
    actions, pis, chance, found = estimators(payoff, logits, np.random.default_rng(1))
    choices = jnp.asarray(np.random.default_rng(5).normal(size=(len(actions), 2, 3)), jnp.float32)
    pi = jnp.asarray(np.stack([np.pad(p, (0, 3 - len(p))) for p in pis]), jnp.float32)
    paper = counterfactual(choices, jnp.broadcast_to(pi, choices.shape), actions)
    score = np.eye(3)[np.asarray(actions[:, 0])] - pis[0]
    mean = (chance[:, None] * score * np.asarray(paper[:, 0])[:, None]).sum(0)
    assert np.abs(mean - wanted[0]).max() > 0.05
    assert set(found) >= {"coma"}


# --- what is refused


@pytest.mark.parametrize(
    ("name", "env", "settings", "words"),
    [
        ("ippo", "mpe/simple", {"credit": "difference"}, "has one agent"),
        ("coma", "mpe/simple", {}, "has one agent"),
        ("mappo", "mpe/simple_adversary", {"credit": "shapley"}, "adversary=ippo,agent=ippo"),
        ("mappo", "mpe/simple_spread:continuous_actions=true", {"credit": "difference"}, "one of a number of actions"),
        ("coma", "mpe/simple_spread:continuous_actions=true", {}, "one choice per agent"),
        ("mappo", "mpe/simple_spread", {"credit": "difference", "credit_reward": "known"}, "--credit-reward learned"),
        ("iql", "credit/bar:n=4", {"credit": "aristocrat"}, "difference or shapley"),
        ("iql", "mpe/simple_spread", {"credit": "difference"}, "go stale"),
        ("vdn", "credit/bar:n=4", {"credit": "difference"}, "use iql"),
        ("iql", "credit/bar:n=4", {"credit": "counterfactual"}, "use it with coma"),
        ("ireinforce", "credit/bar:n=4", {"credit": "counterfactual"}, "use it with coma"),
        ("ippo", "credit/bar:n=4", {"credit": "difference", "null_action": 6}, "null_action must be from 0 to 5"),
    ],
)
def test_what_makes_no_sense_is_refused(name, env, settings, words):
    with pytest.raises(UsageError, match=words):
        make_algorithm(name, make(env).spec, make_config(name, settings), envs=4, updates=3)
