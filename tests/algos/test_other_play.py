"""Other-play: symmetries of matrix games, names that stay for an episode, and what is learned from."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flockrl
from flockrl.algos.wrappers.other_play import NAMES, other_play
from flockrl.core.errors import UsageError
from flockrl.core.types import Algorithm, Observation, Trajectory
from flockrl.envs import make
from flockrl.evidence.crossplay import cross_play
from flockrl.games.analysis import among_strangers
from flockrl.games.normal import from_matrix_game, pure

LEVER = make("games/lever:rounds=3,history=true")


def test_the_levers_that_pay_alike_are_renamed_and_the_other_is_not():
    names = np.asarray(jax.vmap(LEVER.symmetries)(jax.random.split(jax.random.key(0), 2000)).action)
    assert (np.sort(names, 1) == np.arange(10)).all(), "each renaming is a permutation"
    assert (names[:, 9] == 9).all()
    counts = (names[:, :9, None] == np.arange(9)).mean(0)
    assert counts == pytest.approx(np.full((9, 9), 1 / 9), abs=0.03)


def test_a_game_renamed_for_all_is_the_same_game():
    """What both do and see by one renaming pays and shows the same, history included."""
    renaming = LEVER.symmetries(jax.random.key(3))
    state, _ = LEVER.reset(jax.random.key(0))
    for action in ([2, 2], [9, 9], [0, 5]):
        named = jnp.array(action)
        other_state, other_seen, reward, *_ = LEVER.step(jax.random.key(0), state, renaming.action[named])
        state, plain_seen, paid, *_ = LEVER.step(jax.random.key(0), state, named)
        assert (reward == paid).all()
        assert (other_seen.obs[:, renaming.obs] == plain_seen.obs).all()
        state = other_state


def follower(envs):
    """A learner that always says lever 0 and keeps its lesson."""
    return Algorithm(
        init=lambda key: (), params=lambda state: state,
        act=lambda params, seen, memory, key, explore: (jnp.zeros(seen.obs.shape[:-1], jnp.int32), memory, {}),
        update=lambda state, trajectory, key: (trajectory, {}), memory=lambda batch: (), rollout_steps=2,
    )  # fmt: skip


def test_agents_act_and_learn_by_their_own_names():
    batch = 500
    algorithm = other_play(follower(batch), LEVER.spec, LEVER)
    actor, seen = algorithm.in_training, Observation(jnp.arange(batch * 2 * 21.0).reshape(batch, 2, 21))
    first, memory, extras = actor.act((), seen, actor.memory(batch), jax.random.key(0), True)
    second, _, _ = actor.act((), seen, memory, jax.random.key(1), True)
    assert (first == second).all(), "names stay until the episode ends"
    assert float((first[:, 0] == first[:, 1]).mean()) == pytest.approx(1 / 9, abs=0.05), "each agent has its own"
    rows = jax.tree.map(lambda x: x[None], (seen, extras))
    flags = jnp.zeros((1, batch, 2), bool)
    trajectory = Trajectory(
        rows[0].obs, first[None], flags * 1.0, flags, flags, rows[0].obs, flags[..., 0], memory=memory, extras=rows[1]
    )
    lesson, _ = algorithm.update((), trajectory, jax.random.key(0))
    assert (lesson.action == 0).all(), "as the agents called it"
    assert not set(NAMES) & set(lesson.extras)
    where = np.asarray(extras[NAMES[0]])
    assert (np.asarray(lesson.obs[0]) == np.take_along_axis(np.asarray(seen.obs), where, -1)).all()
    assert lesson.memory == ()
    greedy, _, _ = algorithm.act((), seen, algorithm.memory(batch), jax.random.key(0), False)
    assert (greedy == 0).all(), "what leaves has the names of the environment"


def test_strangers_meet_at_one_ninth_or_at_nine_tenths():
    """In expectation over partners who learned apart: exact."""
    game = from_matrix_game(make("games/lever"))
    assert among_strangers(game, pure(game.counts, (4, 4)))[0] == pytest.approx(1 / 9, abs=1e-12)
    assert among_strangers(game, pure(game.counts, (9, 9)))[0] == pytest.approx(0.9, abs=1e-6)


def test_environments_without_symmetries_are_refused(tmp_path):
    with pytest.raises(UsageError, match="tells its symmetries, and mpe/simple_spread does not"):
        flockrl.train("ippo", "mpe/simple_spread", other_play=True, out=tmp_path / "run")
    with pytest.raises(UsageError, match="equal spaces that choose"):
        other_play(follower(1), make("mpe/simple_spread:continuous_actions=true").spec, SimpleNamespace(symmetries=0))


@pytest.mark.slow
def test_partners_who_never_met_agree_on_the_lever_that_is_unlike(tmp_path):
    """From uniform play, levers that are alike pay a little more (0.1) than the other (0.09), so that policy gradients
    stay with them; a joint value that is learned off policy, from agents who pull at random, does not. Every pair."""
    settings = {"eval_episodes": 5, "seeds": 3}
    gradients = {"steps": 40_000, "rollout_steps": 25, "hidden": (16,), "entropy": 0.01, **settings}
    alone = flockrl.train("ippo", "games/lever", out=tmp_path / "alone", **gradients)
    means = cross_play(alone, 2).means
    assert np.diag(means) == pytest.approx(1.0)
    assert means[~np.eye(3, dtype=bool)].mean() < 0.6
    learner = {"steps": 8_000, "hidden": (32,), "lr": 3e-3, "explore_end": 1.0, **settings}
    other = flockrl.train("qplex", "games/lever", out=tmp_path / "other", other_play=True, **learner)
    assert cross_play(other, 2).means == pytest.approx(np.full((3, 3), 0.9), abs=1e-6)
