"""Messages as actions: what agents hear, what the learner sees, and that it learns to talk."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from signalling_env import Signalling

import flockrl
from flockrl.algos.presets import make_config
from flockrl.algos.wrappers.rial import _Speakers, rial, with_speakers
from flockrl.comm.settings import CommConfig
from flockrl.core.errors import UsageError
from flockrl.core.spec import Box, Discrete, EnvSpec
from flockrl.core.types import Algorithm, Observation, Trajectory

SPEC = EnvSpec("x", ("a", "b", "c"), (Box((2,)), Box((1,)), Box((2,))), (Discrete(4),) * 3, 9, groups=(0, 1, 0))


class Echo:
    """A learner that says and does what it is told, and keeps what it learns from."""

    def __init__(self, spec):
        self.spec, self.seen, self.learned = spec, [], []

    def algorithm(self):
        def act(params, seen, memory, key, explore):
            self.seen.append(np.asarray(seen.obs))
            return jnp.asarray(params), memory + 1, {"logp": jnp.asarray(params, jnp.float32)}

        def update(state, trajectory, key):
            self.learned.append(trajectory)
            return state, {}

        return Algorithm(lambda key: (), lambda state: (), act, update, lambda batch: jnp.zeros(batch), 2)


def speakers(channel="", alive=None):
    echo = Echo(with_speakers(SPEC, 2))
    return echo, _Speakers(SPEC, CommConfig(comm="rial", channel=channel), echo.algorithm())


def test_the_team_with_speakers():
    spec = with_speakers(SPEC, 2)
    assert spec.agents == ("a", "b", "c", "a speaks", "b speaks", "c speaks")
    assert [space.size for space in spec.observations] == [8, 7, 8] * 2
    assert [space.size for space in spec.actions] == [4, 4, 4, 2, 2, 2]
    assert spec.groups == (0, 1, 0, 2, 3, 2)


def test_what_is_said_is_heard_a_step_later_and_what_was_said_alone_is_cut():
    told = np.array([[3, 2, 1, 0, 1, 1]])  # actions of three agents, then symbols
    obs = Observation(jnp.arange(6.0).reshape(1, 3, 2))
    says = np.array([1, 0, 0, 1, 0, 1])  # one-hot of the symbols of a, b, c
    for channel, heard in (
        ("", [says, says, says]),
        ("topology=star", [says, [1, 0, 0, 1, 0, 0], [1, 0, 0, 0, 0, 1]]),
        ("bits=0", [[1, 0, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 1]]),
        ("loss=1", [[1, 0, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 1]]),
    ):
        echo, team = speakers(channel)
        action, memory, noted = team.act(told, obs, team.memory(1), jax.random.key(0), True)
        np.testing.assert_array_equal(action, [[3, 2, 1]])
        np.testing.assert_array_equal(noted["message"], [[0, 1, 1]])
        np.testing.assert_array_equal(noted["logp_said"], [[0, 1, 1]])
        team.act(told, obs, memory, jax.random.key(1), True)
        np.testing.assert_array_equal(echo.seen[0][0, :, :6], 0)
        np.testing.assert_array_equal(echo.seen[1][0, :3, :6], heard)
        np.testing.assert_array_equal(echo.seen[1][0, 3:], echo.seen[1][0, :3])
        np.testing.assert_array_equal(echo.seen[1][0, :3, 6:], obs.obs[0])


def test_the_dead_say_nothing():
    _, team = speakers()
    seen = Observation(jnp.zeros((1, 3, 2)), alive=jnp.array([[True, False, True]]))
    said = team.act(np.zeros((1, 6), int), seen, team.memory(1), jax.random.key(0), True)[1][1]
    np.testing.assert_array_equal(said[0], [[1, 0], [0, 0], [1, 0]])


def test_what_is_learned_from_is_what_was_seen_and_heard():
    echo, team = speakers()
    steps, rng = 3, np.random.default_rng(0)
    message = jnp.asarray(rng.integers(0, 2, (steps, 1, 3)), jnp.int32)
    heard = jnp.asarray(rng.normal(size=(steps, 1, 3, 6)), jnp.float32)
    zeros, obs = jnp.zeros((steps, 1, 3)), jnp.ones((steps, 1, 3, 2))
    first = jnp.array([[True], [False], [True]])
    extras = {"heard": heard, "message": message, "logp": zeros, "logp_said": zeros + 1}
    given = Trajectory(
        obs, message + 1, zeros + 2, zeros > 1, zeros > 1, obs, first, memory=team.memory(1), extras=extras
    )
    team.update((), given, jax.random.key(0))
    (learned,) = echo.learned
    np.testing.assert_array_equal(learned.action, np.concatenate([message + 1, message], 2))
    np.testing.assert_array_equal(learned.obs[..., :3, :6], heard)
    np.testing.assert_array_equal(learned.extras["logp"][0, 0], [0, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(learned.next_obs[0, :, :3, :6], heard[1])  # within an episode
    for t in (1, 2):  # after the end of one, and of the rollout: what was said, without loss
        said = np.eye(2)[np.asarray(message[t, 0])].reshape(-1)
        np.testing.assert_array_equal(learned.next_obs[t, 0, :, :6], np.broadcast_to(said, (6, 6)))


def test_what_does_not_go_together_is_refused():
    for wrong in ({"channel": "delay=2"}, {"channel": "bits=3"}, {"comm_size": 1}, {"comm_rounds": 2}):
        with pytest.raises(UsageError):
            CommConfig(comm="rial", **wrong)
    _, team = speakers()
    zeros = jnp.zeros((2, 1, 3))
    bare = Trajectory(jnp.zeros((2, 1, 3, 2)), zeros, zeros, zeros > 1, zeros > 1, zeros, jnp.zeros((2, 1), bool))
    with pytest.raises(UsageError, match="does not tell"):
        team.update((), bare, jax.random.key(0))


@pytest.mark.parametrize(("settings", "ahead"), [({}, 2), ({"n_step": 3}, 3), ({"td_lambda": 0.5}, 1)])
def test_values_look_ahead_to_where_a_symbol_is_heard(settings, ahead):
    made = []
    config = make_config("iql", {"comm": "rial", **settings})
    rial(SPEC, config, lambda spec, own: made.append(own) or Echo(spec).algorithm())
    assert made[0].n_step == ahead
    assert made[0].td_lambda == config.td_lambda


ON = {"steps": 150_000, "rollout_steps": 20}
OFF = {
    "steps": 60_000, "rollout_steps": 8, "steps_per_update": 64, "learning_starts": 1_000, "lr": 2e-3,
    "buffer_size": 8_192, "hidden": (32,), "explore_part": 0.5,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("name", "settings"), [("ippo", ON), ("iql", OFF)])
def test_teams_learn_to_say_the_bit(tmp_path, name, settings):
    """The bit is seen a step before it is needed: with symbols all know it, without them half of the time."""
    run = flockrl.train(
        name, Signalling(steps=2), comm="rial", envs=64, seed=1, agent_ids=True, out=tmp_path / "run", quiet=True,
        **settings,
    )  # fmt: skip
    assert run.evaluate(episodes=200).mean > 0.95
    assert run.evaluate(episodes=400, channel="bits=0").mean < 0.7
