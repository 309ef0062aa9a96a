"""mean_field/ising: Onsager's curve, rules by hand, the mean field as what agents know of their neighbours."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flockrl
from flockrl.core.errors import UsageError
from flockrl.core.types import Observation
from flockrl.envs import make
from flockrl.envs.api import tuned
from flockrl.envs.mean_field.ising import CRITICAL, Ising, onsager

TEMPERATURES = (0.6, 0.8, 1.0, 1.8, 2.4, 3.0)
"""Three below the critical one and three above."""


def test_onsagers_curve():
    below = [(1 - np.sinh(1 / tau) ** -4) ** 0.125 for tau in (0.5, 1.0, 1.1)]
    np.testing.assert_allclose([onsager(tau) for tau in (0.5, 1.0, 1.1)], below, rtol=1e-5)
    assert onsager(1.0) == pytest.approx(0.91132, abs=1e-4)
    assert onsager(CRITICAL * 1.001) == 0
    assert onsager(CRITICAL * 0.999) > 0.4
    assert pytest.approx(1.134593, abs=1e-6) == CRITICAL


def test_a_step_by_hand():
    env = Ising(side=4, steps=10, temperature=0.5)
    state, seen = env.reset(jax.random.key(0))
    assert not bool((seen.obs[:, 1] == 0).all())
    field = jnp.arange(16.0) - 6.0
    state = state._replace(field=field)
    action = env._heat_bath(state, seen, jax.random.key(0))
    after, seen, reward, ended, cut = env.step(jax.random.key(1), state, action)
    for i in range(16):
        moves = (i // 4 + i % 4) % 2 == 0
        wish = 4 + float(field[i])  # all neighbours are up
        spin = (1.0 if wish > 0 else -1.0) if moves else 1.0
        assert after.spin[i] == spin
        assert reward[i] == pytest.approx(0.5 * spin * wish if moves else 0.0)
        assert seen.avail[i].tolist() == ([spin < 0, spin > 0] if moves else [True, True])
        assert seen.obs[i, 0] == float(not moves)
    assert not bool(ended)
    assert not bool(cut)
    assert env.spec.graph[0] == (4, 12, 1, 3)


def equilibrium(env, policy, temperatures, steps, teams=6):
    """[K] the order parameter, mean over teams, at each temperature, in one program."""

    def play(temperature, key):
        own = tuned(env, {"temperature": temperature})
        state, seen = own.reset(key)

        def step(carry, key):
            state, seen = carry
            act_key, env_key = jax.random.split(key)
            state, seen, *_ = own.step(env_key, state, policy(state, seen, act_key))
            return (state, seen), None

        (state, _), _ = jax.lax.scan(step, (state, seen), jax.random.split(key, steps))
        return own.measures(state)

    keys = jax.random.split(jax.random.key(0), teams)
    play = jax.vmap(jax.vmap(play, (None, 0)), (0, None))
    found = jax.jit(play)(jnp.array(temperatures), keys)
    return found["order"].mean(1), found["onsager"].mean(1)


SIZES = [(20, 1600, 6), pytest.param(100, 600, 1, marks=pytest.mark.slow)]
"""Sides, steps and teams: 10,000 agents need less of both for the same exactness."""


@pytest.mark.parametrize(("side", "steps", "teams"), SIZES)
def test_heat_bath_follows_onsagers_curve(side, steps, teams):
    env = make(f"mean_field/ising:side={side},steps={steps}")
    order, exact = equilibrium(env, env._heat_bath, TEMPERATURES, steps, teams)
    np.testing.assert_allclose(order, exact, atol=0.05)
    deaf, _ = equilibrium(env, env._deaf, (0.6,), 100, teams=2)
    assert deaf[0] < 0.1  # without neighbours there is no order


def test_settings_are_checked():
    for text, word in (("side=5", "even"), ("temperature=0", "positive"), ("start=left", "up or random")):
        with pytest.raises(UsageError, match=word):
            make(f"mean_field/ising:{text}")


def test_pictures_show_the_spins():
    env = Ising(side=4, steps=4)
    state, _ = env.reset(jax.random.key(0))
    (frame,) = env.render([state._replace(spin=jnp.where(jnp.arange(16) < 4, -1.0, 1.0))], size=8)
    assert frame.shape == (8, 8, 3)
    assert (frame[0] == frame[1]).all()
    assert (frame[1] != frame[2]).any()


@pytest.mark.slow
def test_mfq_learns_onsagers_curve(tmp_path):
    """Learned at one temperature with random spins of 400 agents, played at six by as many and by 10,000."""
    run = flockrl.train(
        "mfq", "mean_field/ising:side=20,steps=50,temperature=1.6,start=random", steps=4000, envs=4, gamma=0.0,
        buffer_size=2000, batch_size=8, steps_per_update=4, learning_starts=200, eval_every=4000, eval_episodes=2,
        agent_ids=False, out=tmp_path / "run",
    )  # fmt: skip
    params = run.params()
    for side, steps, teams in ((20, 1600, 2), (100, 600, 1)):
        env = make(f"mean_field/ising:side={side},steps={steps}")
        order, exact = equilibrium(env, policy_of(run._team(env), params), TEMPERATURES, steps, teams)
        np.testing.assert_allclose(order, exact, atol=0.05)


def policy_of(algorithm, params):
    """A trained team as a function of states: the mean field is that of the present spins."""

    def policy(state, seen, key):
        up = state.spin > 0
        last = jnp.stack([~up, up], -1).astype(jnp.float32)[None]
        action, _, _ = algorithm.act(
            params, jax.tree.map(lambda x: x[None], Observation(*seen)), ((), last), key, False
        )
        return action[0]

    return policy
