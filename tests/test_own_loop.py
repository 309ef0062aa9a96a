"""Episodes that somebody else's loop plays: what they record, and that learners learn from them."""

import numpy as np
import pytest

import flockrl
from flockrl.core.errors import UsageError
from flockrl.core.spec import Box, Discrete, EnvSpec, MultiDiscrete
from flockrl.data.episode import Episode
from flockrl.data.schema import decode, encode

PAIR = EnvSpec("pair", ("a", "b"), (Box((2,)), Box((3,))), (Discrete(3), Discrete(2)), max_steps=4)
SMALL = {"hidden": (8,), "rollout_steps": 8}
PPO = {**SMALL, "epochs": 1, "minibatches": 1}


def views(t, who=("a", "b")):
    return {name: np.full({"a": 2, "b": 3}[name], t + 1.0) for name in who}


def test_an_episode_records_what_happened():
    trainer = flockrl.Trainer("ippo", PAIR, hyperparams=PPO, envs=2)
    episode = trainer.episode(env="home")
    for t in range(3):
        action = episode.act(views(t), mask={"a": [False, True, False]})
        assert action["a"] == 1
        assert action["b"] in (0, 1)
        episode.reward({"a": 1.0})
        episode.reward(0.5)
    data = episode.end(truncated=True, obs=views(3))
    assert data.env.tolist() == ["home"]
    assert data.version.tolist() == [0]
    assert data.reward.tolist() == [[1.5, 0.5]] * 3
    assert data.obs[:, 1, 2].tolist() == [1, 2, 3]
    assert data.next_obs[:, 0, 0].tolist() == [2, 3, 4]
    assert data.truncated[-1].all()
    assert not data.terminated.any()
    assert np.allclose(data.logp[:, 0], 0)  # there was no other action
    assert (data.logp[:, 1] < 0).all()
    for ended in (lambda: episode.act(views(0)), lambda: episode.reward(1.0), episode.end):
        with pytest.raises(UsageError, match="over"):
            ended()
    decode(encode(data, PAIR), PAIR)  # it is valid


def test_agents_die_and_long_episodes_come_in_pieces():
    trainer = flockrl.Trainer("ippo", PAIR, hyperparams=PPO, envs=2)
    episode = trainer.episode()
    for t in range(6):
        who = ("a", "b") if t < 2 else ("b",)
        assert set(episode.act(views(t, who))) == set(who)
        episode.reward(1.0)
    data = episode.end()
    assert data.length.tolist() == [4, 2]
    assert data.step.tolist() == [0, 1, 2, 3, 4, 5]
    assert len(set(data.id)) == 2
    assert data.alive[:, 0].tolist() == [True, True, False, False, False, False]
    assert data.terminated[:, 0].tolist() == [False, True, False, False, False, False]
    assert data.terminated[:, 1].tolist() == [False] * 5 + [True]
    assert data.reward[:, 0].tolist() == [1, 1, 0, 0, 0, 0]
    assert not data.blind.any()
    decode(encode(data, PAIR), PAIR)
    trainer.receive_trajectory(data)
    assert trainer.stats["steps"] == 6


def _ratio_is_one(trainer, play):
    """The learner finds the probabilities that acting noted: nothing that acting saw was lost on the way."""
    while not trainer.receive_trajectory(play(trainer.episode())):
        pass
    row = trainer.log_epoch()
    trainer.reset_epoch()  # an episode that waits is the old policy's
    assert abs(row["approx_kl"]) < 1e-5
    assert row["clip_fraction"] == 0


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_a_learner_finds_the_probabilities_that_acting_noted(memory):
    hyperparams = {**PPO, "lr": 0.01} | ({} if memory == "none" else {"memory": "gru", "memory_size": 8})
    trainer = flockrl.Trainer("mappo", PAIR, hyperparams=hyperparams, envs=2)
    rng = np.random.default_rng(0)

    def play(episode):
        for t in range(4):
            who = ("a", "b") if t < 2 else ("a",)
            seen = {name: rng.normal(size=x.shape) for name, x in views(t, who).items()}
            episode.act(seen, mask={"a": rng.permutation([True, True, False])})
            episode.reward(rng.normal())
        return episode.end()

    for _ in range(2):  # with fresh parameters, and with learned ones
        _ratio_is_one(trainer, play)


def test_a_team_learns_in_somebody_elses_loop():
    """Each agent is told its bit once and must name it a step later: observations, memory, rewards, all in place."""
    hyperparams = {
        "hidden": (16,), "rollout_steps": 8, "epochs": 8, "minibatches": 2, "lr": 0.02, "gamma": 0.9,
        "memory": "gru", "memory_size": 16, "entropy": 0.003,
    }  # fmt: skip
    trainer = flockrl.Trainer(
        "ippo", obs_dim=1, act_dim=2, agents=["a", "b"], max_steps=2, hyperparams=hyperparams, envs=16
    )
    rng = np.random.default_rng(0)

    def play(episode):
        bits = rng.integers(0, 2, 2)
        for t in range(2):
            action = episode.act((bits * 2.0 - 1)[:, None] * (t == 0))
            episode.reward((action == bits) * (t == 1))
        return episode.end()

    while trainer.version < 8:
        trainer.receive_trajectory(play(trainer.episode()))
    earned = np.mean([play(trainer.episode(explore=False)).reward.sum(0) for _ in range(30)], axis=0)
    assert (earned > 0.9).all(), earned  # by chance 0.5


def test_continuous_actions_come_within_bounds_and_are_recorded_as_drawn():
    trainer = flockrl.Trainer("ippo", obs_dim=1, act_dim=2, continuous=0.1, hyperparams=PPO, envs=2, max_steps=50)
    episode = trainer.episode()
    actions = [episode.act([1.0]) for _ in range(20)]
    data = episode.end(truncated=True, obs=[1.0])
    assert np.abs(actions).max() <= np.float32(0.1)
    assert np.abs(data.action).max() > 0.1
    assert np.array_equal(np.clip(data.action[:, 0], np.float32(-0.1), np.float32(0.1)), actions)


def test_episodes_differ_and_go_on_after_a_load(tmp_path):
    def play(trainer):
        episode = trainer.episode()
        for _ in range(20):
            episode.act([1.0])
        return episode.end().action[:, 0].tolist()

    def make(path=None):
        few = {**SMALL, "steps_per_update": 8, "buffer_size": 100}
        return flockrl.Trainer("dqn", obs_dim=1, act_dim=4, hyperparams=few, envs=1, save_path=path)

    one, other = make(), make(tmp_path)
    first = [play(one), play(one), play(one)]
    assert first[0] != first[1]
    assert [play(other), play(other)] == first[:2]
    other.save()
    assert play(flockrl.Trainer.load(tmp_path)) == first[2]


def test_actions_of_somebody_else_are_recorded():
    spec = EnvSpec(
        "mixed", ("a", "b", "c"), (Box((1,)),) * 3,
        (Discrete(3), Box((2,), -1, 1), MultiDiscrete((2, 3))), max_steps=5, state_size=2,
    )  # fmt: skip
    episode = Episode(spec)
    chosen = {"a": 2, "b": [0.5, -0.5], "c": np.array([1, 2])}
    seen = {name: [1.0] for name in "abc"}
    assert episode.act(seen, state=[1, 2], action=chosen) is chosen
    episode.act(list(seen.values()), state=[3, 4], action=list(chosen.values()))
    data = episode.end()
    assert data.action.tolist() == [[[2, 0], [0.5, -0.5], [1, 2]]] * 2
    assert data.version.tolist() == [-1]
    assert np.isnan(data.logp).all()
    decode(encode(data, spec), spec)


@pytest.mark.parametrize(
    ("action", "sentence"),
    [
        ({"a": 1}, "no action of b"),
        ({"a": 3, "b": 0}, "none of its actions"),
        ({"a": 0.5, "b": 0}, "none of its actions"),
        ({"a": 1, "b": float("nan")}, "not finite"),
        ({"a": 0, "b": 0}, "not legal"),
        ({"a": [1, 1], "b": 0}, "must have 1 numbers"),
        (1, "only one action"),
        (np.array(1), "only one action"),
        ([1, 0, 0], "of 3"),
        ("ab", "vector of numbers"),
        (None, "no policy"),
    ],
)
def test_actions_that_cannot_be_are_refused(action, sentence):
    episode = Episode(PAIR)
    with pytest.raises(UsageError, match=sentence):
        episode.act(views(0), mask={"a": [False, True, True]}, action=action)
    with pytest.raises(UsageError, match="act first"):  # and nothing was recorded
        episode.end()
    with pytest.raises(UsageError, match="follows an action"):
        episode.reward(1.0)


@pytest.mark.parametrize("action", [1, np.int64(1), [1], np.array([1]), {"agent_0": 1}])
def test_a_team_of_one_may_be_spoken_to_plainly(action):
    spec = EnvSpec("one", ("agent_0",), (Box((2,)),), (Discrete(2),), max_steps=5)
    episode = Episode(spec)
    episode.act([1.0, 2.0], action=action)
    assert episode.end().action.tolist() == [[1]]
