"""Gradients through an environment: J and its derivative against NumPy and differences, and what must not matter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flockrl.algos.assembly import make_algorithm
from flockrl.algos.presets import make_config
from flockrl.core.errors import UsageError
from flockrl.core.groups import make_groups
from flockrl.core.types import Box, EnvSpec, Observation
from flockrl.envs.registry import make
from flockrl.nets.heads import make_head
from flockrl.rollouts.compiled import scan_rollout
from flockrl.training.config import RunConfig, TrainOptions
from flockrl.training.programs import make_program

B, GAMMA = 4, 0.9
SMALL = {"hidden": (8,), "gamma": GAMMA, "log_std": -3.0}


class Carts:
    """Two agents push their carts to the middle, and away from each other's product: reward -x^2 - x_0 x_1 / 2."""

    def __init__(self, steps=4, ends="terminated", loops=False):
        self.steps, self.ends, self.loops = steps, ends, loops
        self.spec = EnvSpec("test/carts", ("cart_0", "cart_1"), (Box((3,)),) * 2, (Box((1,), -2.0, 4.0),) * 2, steps)

    def reset(self, key):
        state = jnp.int32(0), jax.random.uniform(key, (2,), minval=-1, maxval=1)
        return state, self._seen(state)

    def step(self, key, state, action):
        t, x = state[0] + 1, state[1] + 0.5 * action[:, 0]
        if self.loops:
            x = jax.lax.while_loop(lambda x: x.max() > 9.0, lambda x: x / 2, x)
        over = t >= self.steps
        ended = [over, jnp.bool_(False)]
        reward = -(x**2) - 0.5 * x.prod()
        return (t, x), self._seen((t, x)), reward, *(ended if self.ends == "terminated" else ended[::-1])

    def _seen(self, state):
        t, x = state
        return Observation(jnp.stack([x, x[::-1], jnp.full(2, t / self.steps)], -1))


def program_of(name, env, steps, updates=50, **settings):
    config = make_config(name, {**SMALL, "rollout_steps": steps, **settings})
    return make_program(RunConfig(name, "test/carts", TrainOptions(steps=B * steps * updates, envs=B), config), env)


def differentiated(program, key=1):
    """The first state, a function of the policy's parameters that plays, and what `through` tells of them."""
    state = jax.jit(program.init)(jax.random.key(0))

    def play(params):
        actors, trajectory, episodes = scan_rollout(
            program.actor, params, program.env, state.actors, jax.random.key(key)
        )
        return trajectory, (actors, episodes)

    trajectory, _, told = jax.jit(lambda: program.algorithm.through(state.learner, play))()
    return state, play, {"trajectory": trajectory, **told}


def by_hand(program, state, trajectory):
    """J in NumPy: walk forward from each beginning."""
    values = None
    if program.algorithm.critic is not None:
        final = trajectory._replace(obs=trajectory.next_obs)
        values = np.asarray(program.algorithm.critic.values(state.learner, final), float).mean(-1)
    reward = np.asarray(trajectory.reward, float).mean(-1)
    ended, cut, first = (
        np.asarray(x).any(-1) for x in (trajectory.terminated, trajectory.truncated, trajectory.first[..., None])
    )
    worth = []
    for b in range(reward.shape[1]):
        for start in (t for t in range(len(reward)) if t == 0 or first[t, b]):
            total = 0.0
            for t in range(start, len(reward)):
                total += GAMMA ** (t - start) * reward[t, b]
                last = cut[t, b] or t == len(reward) - 1
                if values is not None and last and not ended[t, b]:
                    total += GAMMA ** (t - start + 1) * values[t, b]
                if last or ended[t, b]:
                    break
            if values is not None or ended[t, b] or cut[t, b]:
                worth.append(total)
    return np.mean(worth)


CASES = [("apg", "terminated", 4), ("shac", "terminated", 6), ("shac", "truncated", 6), ("apg", "truncated", 6)]


@pytest.mark.parametrize(("name", "ends", "steps"), CASES)
def test_the_objective_and_its_derivative(name, ends, steps):
    program = program_of(name, Carts(ends=ends), steps)
    state, play, told = differentiated(program)
    assert float(told["objective"]) == pytest.approx(by_hand(program, state, told["trajectory"]), rel=1e-4)
    actor, rng = state.learner.params["actor"], np.random.default_rng(0)
    way = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), actor)
    rise = -sum(
        float((g * w).sum()) for g, w in zip(jax.tree.leaves(told["gradient"]), jax.tree.leaves(way), strict=True)
    )

    @jax.jit
    def moved(by):
        params = jax.tree.map(lambda p, w: p + by * w, actor, way)
        return play({**program.algorithm.params(state.learner), "actor": params})[0]

    up, down = (by_hand(program, state, moved(by)) for by in (1e-3, -1e-3))
    assert rise == pytest.approx((up - down) / 2e-3, rel=0.02, abs=1e-3)
    assert abs(rise) > 0.05


def test_a_critic_changes_nothing_where_every_episode_ends_within_the_rollout():
    params = []
    for name in ("apg", "shac"):
        program = program_of(name, Carts(), 4)
        state, *_ = jax.jit(program.advance)(program.init(jax.random.key(0)), jax.random.key(1), jnp.int32(5))
        params.append(jax.tree.leaves(state.learner.params["actor"]))
    for one, other in zip(*params, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_run_cut_in_two_is_the_same_run():
    program = program_of("shac", Carts(ends="truncated"), 3, memory="gru", memory_size=4, comm="commnet")
    advance, key = jax.jit(program.advance), jax.random.key(1)
    whole, *_ = advance(program.init(jax.random.key(0)), key, jnp.int32(4))
    half, *_ = advance(program.init(jax.random.key(0)), key, jnp.int32(2))
    half, _, metrics = advance(half, key, jnp.int32(2))
    for one, other in zip(jax.tree.leaves(whole.learner), jax.tree.leaves(half.learner), strict=True):
        np.testing.assert_array_equal(one, other)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(metrics))
    assert {"messages_sent", "policy_change", "policy_kl", "value_loss"} <= set(metrics)


@pytest.mark.parametrize(("name", "steps"), [("apg", 4), ("shac", 3)])
def test_it_learns_what_takes_several_steps(name, steps):
    program = program_of(name, Carts(ends="truncated"), steps, updates=150, lr=0.02)
    state = program.init(jax.random.key(0))
    play, key = jax.jit(program.play), jax.random.key(5)
    before = float(play(program.algorithm.params(state.learner), key, {})[0].mean())
    state, *_ = jax.jit(program.advance)(state, jax.random.key(1), jnp.int32(150))
    after = float(play(program.algorithm.params(state.learner), key, {})[0].mean())
    assert before < -1.2  # actions of 1, the middle of their range, push carts away
    assert after > -0.05


def test_a_rollout_whose_derivatives_overflow_leaves_the_policy_as_it_is():
    program = program_of("apg", Carts(), 4)
    state, _, told = differentiated(program)
    gone = jax.tree.map(lambda g: g * jnp.nan, told["gradient"])
    extras = {**told["trajectory"].extras, "gradient": gone, "objective": told["objective"]}
    after, metrics = jax.jit(program.algorithm.update)(
        state.learner, told["trajectory"]._replace(extras=extras), jax.random.key(0)
    )
    assert float(metrics["overflowed"]) == 1
    for one, other in zip(jax.tree.leaves(after.params), jax.tree.leaves(state.learner.params), strict=True):
        np.testing.assert_array_equal(one, other)


def test_squashed_actions_stay_within_their_bounds_and_have_the_density_of_tanh():
    spec = Carts().spec
    group = make_groups(spec, "groups")[0]
    head, out = make_head(spec, group, squashed=True), jnp.array([[0.5, -1.0], [3.0, 0.5]])[None]
    action, logp = head.sample(jax.random.key(0), jnp.repeat(out, 4000, 0), None)
    assert -2 <= float(action.min()) < float(action.max()) <= 4
    np.testing.assert_allclose(head.mode(out, None)[0, :, 0], 1 + 3 * np.tanh([0.5, 3.0]), rtol=1e-5)
    np.testing.assert_allclose(head.evaluate(jnp.repeat(out, 4000, 0), None, action)[0][:, 0], logp[:, 0], atol=0.02)
    u = np.linspace(-0.99999, 0.99999, 200_001)  # densities are of tanh(u), from -1 to 1
    density = np.exp(head.evaluate(jnp.repeat(out, len(u), 0), None, jnp.asarray(1 + 3 * u)[:, None, None])[0][:, 0])
    assert np.trapezoid(density, u) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "env", "settings", "words"),
    [
        ("apg", Carts(), {"rollout_steps": 3}, "whole episodes"),
        ("shac", Carts(), {"bonus": "rnd"}, "leave out bonus"),
        ("shac", Carts(), {"mean_field": True}, "leave out mean_field"),
        ("shac", Carts(), {"self_play": "latest"}, "self_play needs"),
        ("apg", Carts(), {"gae_lambda": 0.9}, "gae_lambda is of a critic"),
        ("shac", "mpe/simple_spread", {}, "needs real actions"),
        ("shac", "mpe/simple_tag:continuous_actions=true", {}, "has sides"),
    ],
)
def test_what_cannot_be_is_said(name, env, settings, words):
    spec = make(env).spec if isinstance(env, str) else env.spec
    with pytest.raises(UsageError, match=words):
        make_algorithm(name, spec, make_config(name, {"rollout_steps": 4, **settings}), envs=B, updates=5)


def test_an_environment_without_derivatives_is_said():
    program = program_of("apg", Carts(loops=True), 4)
    with pytest.raises(UsageError, match=r"test/carts cannot be differentiated .*while_loop.*ippo"):
        jax.eval_shape(program.iterate, program.shape(), jax.random.key(0))


def test_experience_that_it_did_not_play_is_refused():
    program = program_of("apg", Carts(), 4)
    _, _, told = differentiated(program)
    state = program.init(jax.random.key(0)).learner
    with pytest.raises(UsageError, match="compiled environment that it plays itself"):
        program.algorithm.update(state, told["trajectory"], jax.random.key(0))
