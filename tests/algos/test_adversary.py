"""Robustness training: what an adversary does, who learns what from it, and refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flockrl
from flockrl.algos.wrappers.adversary import ATTACK, LOGP, TAKEN, attacked
from flockrl.algos.wrappers.settings import Attack, parse_attack
from flockrl.core.errors import UsageError
from flockrl.core.types import Algorithm, Box, Discrete, EnvSpec, Observation, Trajectory

T, B, N = 3, 400, 2
SPEC = EnvSpec("team", ("a_0", "a_1"), (Box((3,)), Box((3,))), (Discrete(4), Discrete(4)), max_steps=9)
TEAM = Algorithm(
    init=lambda key: (), params=lambda state: state,
    act=lambda params, seen, memory, key, explore: (jnp.full(seen.obs.shape[:-1], 3), memory, {"saw": seen.obs}),
    update=lambda state, trajectory, key: (trajectory, {}), memory=lambda batch: (), rollout_steps=T,
)  # fmt: skip


def played(kind, size):
    """A wrapped team, its state, and a rollout of B environments without ends."""
    algorithm = attacked(TEAM, SPEC, Attack(kind, size), envs=B, updates=10, on_policy=True)
    state, actor = algorithm.init(jax.random.key(0)), algorithm.in_training
    seen, memory, rows = Observation(jnp.ones((B, N, 3))), actor.memory(B), []
    for t in range(T):
        action, memory, extras = actor.act(actor.params(state), seen, memory, jax.random.key(t), True)
        rows.append((action, extras))
    action, extras = jax.tree.map(lambda *x: jnp.stack(x), *rows)
    obs, flags = jnp.ones((T, B, N, 3)), jnp.zeros((T, B, N), bool)
    trajectory = Trajectory(
        obs, action, flags * 1.0, flags, flags, 2 * obs, flags[..., 0], memory=actor.memory(B), extras=extras
    )
    return algorithm, state, trajectory


def test_observations_are_shifted_by_at_most_eps_and_the_team_learns_from_what_it_saw():
    algorithm, state, trajectory = played("observation", 0.25)
    saw, shift = trajectory.extras["saw"], 0.25 * np.clip(trajectory.extras[ATTACK], -1, 1)
    assert np.abs(np.asarray(saw) - 1).max() == pytest.approx(0.25)
    assert np.asarray(saw) == pytest.approx(1 + shift, abs=1e-6)
    assert (trajectory.action == 3).all(), "the team acts itself"
    after, metrics = algorithm.update(state, trajectory, jax.random.key(0))
    assert np.asarray(after.learner.obs) == pytest.approx(np.asarray(saw), abs=1e-6)
    assert np.asarray(after.learner.next_obs[:-1]) == pytest.approx(2 + shift[1:], abs=1e-6), "what it will see"
    assert np.asarray(after.learner.next_obs[-1]) == pytest.approx(np.full((B, N, 3), 2.0)), "not known yet"
    assert not {ATTACK, LOGP, TAKEN} & set(after.learner.extras)
    assert "adversary/policy_loss" in metrics
    plain, _, _ = algorithm.act((), Observation(jnp.ones((B, N, 3))), (), jax.random.key(0), False)
    assert (plain == 3).all(), "what leaves is the team alone"


def test_rewards_that_the_team_learns_from_are_shifted_and_the_adversary_is_paid_by_the_true_ones():
    algorithm, state, trajectory = played("reward", 0.5)
    assert (np.asarray(trajectory.extras["saw"]) == 1).all(), "the team sees and acts as it would"
    assert (trajectory.action == 3).all()
    paid = trajectory._replace(reward=trajectory.reward + 7.0)
    after, _ = algorithm.update(state, paid, jax.random.key(0))
    shift = 0.5 * np.clip(np.asarray(trajectory.extras[ATTACK])[..., 0], -1, 1)
    assert np.asarray(after.learner.reward) == pytest.approx(7 + shift, abs=1e-6)
    assert np.abs(shift).max() == pytest.approx(0.5)
    returns = np.asarray(after.adversary.paid.mean)  # of what was earned after each of three steps, discounted
    assert (returns < -7).all()


def test_one_agent_is_taken_over_in_a_part_of_the_episodes():
    algorithm, state, trajectory = played("takeover", 0.5)
    taken = np.asarray(trajectory.extras[TAKEN])
    assert (taken == taken[:1]).all(), "until the episode ends"
    assert taken.sum(-1).max() == 1
    assert taken[0].any(-1).mean() == pytest.approx(0.5, abs=0.1)
    assert taken[0].mean(0) == pytest.approx([0.25, 0.25], abs=0.08)
    action = np.asarray(trajectory.action)
    assert (action[~taken] == 3).all()
    assert set(action[taken]) == {0, 1, 2, 3}
    after, _ = algorithm.update(state, trajectory, jax.random.key(0))
    assert (np.asarray(after.learner.alive) == ~taken).all(), "the team learns from its own agents"
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), after.adversary.params, state.adversary.params)
    assert max(jax.tree.leaves(moved)) > 0, "and the adversary learns from its own"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fog:eps=1", "must be one of observation:eps=NUMBER, reward:eps=NUMBER, takeover:share=NUMBER"),
        ("observation:share=1", "must be one of"),
        ("observation:eps=much", "must be a number"),
        ("observation:eps=-1", "must be above 0"),
        ("takeover:share=2", "at most 1"),
        ("observation:eps=nan", "must be a finite number above 0"),
    ],
)
def test_attacks_that_are_none_are_refused(text, words):
    with pytest.raises(UsageError, match=words):
        parse_attack(text)


@pytest.mark.parametrize(
    ("algorithm", "env", "words"),
    [("ippo", "games/kuhn", "has opponents already"), ("iql", "mpe/simple_spread", "use an on-policy learner")],
)
def test_what_does_not_go_together_is_refused(algorithm, env, words, tmp_path):
    with pytest.raises(UsageError, match=words):
        flockrl.train(algorithm, env, adversary="observation:eps=0.1", out=tmp_path / "run")


@pytest.mark.slow
def test_an_attacked_team_is_evaluated_with_and_without_the_attack(tmp_path, cli):
    """An attack that hides where everything is costs the team its return."""
    settings = {"steps": 30_000, "envs": 16, "rollout_steps": 25, "hidden": (16,), "eval_episodes": 20}
    run = flockrl.train(
        "ippo", "mpe/simple_spread:N=2", adversary="observation:eps=3", out=tmp_path / "run", **settings
    )
    nominal, under = run.evaluate(200), run.evaluate(200, attacked=True)
    error = np.sqrt((nominal.std**2 + under.std**2) / 200)
    assert under.mean < nominal.mean - 2 * error
    status, out, _ = cli("eval", run.path, "--episodes", 5)
    assert status == 0
    assert "greedy, attacked (observation:eps=3) episodes" in out
    with pytest.raises(UsageError, match="leave out best"):
        run.evaluate(attacked=True, best=True)
