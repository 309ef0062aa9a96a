"""Teams whose agents have unlike kinds of actions, and agents that make several choices at once: whole runs."""

import sys
from pathlib import Path

import numpy as np
import pytest

import flockrl
from flockrl.core.types import MultiDiscrete
from flockrl.data.experience import join
from flockrl.data.files import Files, Writer
from flockrl.envs.sketch import Sketch
from flockrl.evaluation.episodes import Episode
from flockrl.view import trace

sys.path.insert(0, str(Path(__file__).parents[1] / "envs"))
from zoo import Pair, Panel

ON_POLICY = {"rollout_steps": 8, "minibatches": 2, "epochs": 2}
REPLAY = {"rollout_steps": 8, "learning_starts": 32, "batch_size": 16, "buffer_size": 256, "steps_per_update": 16}
RUN = {"envs": 4, "steps": 256, "eval_episodes": 2, "hidden": (8,), "workers": 0}
LEARNERS = {
    "ippo": ON_POLICY, "mappo": ON_POLICY, "iddpg": REPLAY, "maddpg": REPLAY, "masac": REPLAY, "matd3": REPLAY,
    "ireinforce": {"rollout_steps": 8},
}  # fmt: skip


def check_pair(actions):
    """Whether actions are what `Pair` asks for: a number and two real ones within their own bounds."""
    assert set(actions) == {"picker", "mover"}
    assert type(actions["picker"]) is int
    assert 0 <= actions["picker"] < 3
    mover = actions["mover"]
    assert (mover.dtype, mover.shape) == (np.float32, (2,))
    assert (mover >= [-1, 0]).all()
    assert (mover <= [2, 5]).all()


RARE = ("iddpg", "masac", "matd3")


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in RARE else n for n in LEARNERS])
def test_one_discrete_and_one_continuous_agent_train(name, tmp_path):
    Pair.log.clear()
    run = flockrl.train(name, Pair, out=tmp_path / "run", **RUN, **LEARNERS[name])
    log = list(Pair.log)
    assert len(log) >= RUN["steps"]
    for actions, legal in log:
        check_pair(actions)
        assert legal[actions["picker"]]
    numbers, moves = np.array([a["picker"] for a, _ in log]), np.array([a["mover"] for a, _ in log])
    assert set(numbers) == {0, 1, 2}
    assert (moves[:, 1] > 2).any()  # beyond the bounds of the other dimension and of the choice
    assert (moves != np.round(moves)).any()
    losses = [row["policy_loss"] for row in run.metrics() if "policy_loss" in row]
    assert np.isfinite(losses).all()
    assert any(losses)
    policy, env = run.policy(), Pair()
    seen, infos = env.reset(0)
    while env.agents:
        actions = policy.act(seen, infos)
        check_pair(actions)
        assert infos["picker"]["action_mask"][actions["picker"]]
        seen, _, _, _, infos = env.step(actions)


@pytest.mark.parametrize(("name", "more"), [("ppo", ON_POLICY), ("ddpg", REPLAY), ("reinforce", {"rollout_steps": 8})])
@pytest.mark.parametrize("how", ["parts", "row"])
def test_several_choices_at_once_train(name, more, how, tmp_path):
    Panel.log.clear()
    run = flockrl.train(name, lambda: Panel(how), out=tmp_path / "run", **RUN, **more)
    assert run.spec.actions == (MultiDiscrete((5, 5, 5, 5)),)
    assert len(Panel.log) >= RUN["steps"]
    for action, legal in Panel.log:
        assert Panel.action_space.contains(action)
        assert all(options[number] for options, number in zip(legal, action, strict=True))
    assert {int(x) for action, _ in Panel.log for x in action} == {0, 1, 2, 3, 4}


def test_who_cannot_make_several_choices_says_what_can(tmp_path):
    for name, words in (("sac", "ippo, mappo, maddpg or matd3"), ("dqn", "use ippo, mappo")):
        with pytest.raises(flockrl.UsageError, match=words):
            flockrl.train(name, Panel, out=tmp_path / name, **RUN, **REPLAY)
    with pytest.raises(flockrl.UsageError, match=r"picker, mover have unlike kinds of actions.*use --share groups"):
        flockrl.train("ippo", Pair, out=tmp_path / "shared", share="all", **RUN, **ON_POLICY)


def test_a_team_learns_from_the_recording_of_unlike_agents(tmp_path):
    file, steady = tmp_path / "pair.arrow", tmp_path / "steady.arrow"
    flockrl.train("ippo", Pair, out=tmp_path / "run", record=file, **RUN, **ON_POLICY)
    spec = flockrl.make_env(Pair).spec
    data = join(list(Files([file])))
    assert data.steps >= RUN["steps"]
    assert data.avail[:, 0].sum(-1).tolist() == [2] * data.steps  # never the action before
    trainer = flockrl.Trainer("maddpg", spec, hyperparams={**REPLAY, "hidden": (8,)}, envs=4, steps=400)
    assert trainer.receive_trajectory(data)
    obs = np.zeros((2, 3), np.float32)
    assert trainer.acquire_model().act(obs).shape == (2, 2)
    does = np.array([[1, 0], [1.5, 4.0]], np.float32)
    with Writer(steady, spec) as writer:
        writer.add(data._replace(action=np.tile(does, (data.steps, 1, 1)), avail=None, next_avail=None))
    longer = {**RUN, "steps": 3200}
    cloned = flockrl.train("bc", f"data/{steady}", out=tmp_path / "bc", rollout_steps=8, lr=3e-2, **longer)
    np.testing.assert_allclose(cloned.policy().act(obs), does, atol=0.3)


def test_unlike_actions_are_drawn():
    """Episodes without a renderer of their own: one number of each choice, and real ones."""
    spec = flockrl.make_env(Pair).spec
    rng = np.random.default_rng(0)
    action = np.stack([np.array([[2, 0], [0.5, 3.25]], np.float32), np.array([[1, 0], [0.1, 4]], np.float32)])
    episode = Episode([], rng.normal(size=(2, 2, 3)), action, np.ones((2, 2)))
    said: list[str] = []

    class Pen(Sketch):
        def text(self, x, y, text, *rest, **more):
            said.append(text)
            super().text(x, y, text, *rest, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace, "Sketch", Pen)
        pictures = trace.draw(spec, episode, 200)
    assert [picture.shape for picture in pictures] == [(200, 200, 3)] * 2
    assert said.count("2") == 2  # in the first picture, and as what was done before in the second
    assert "0.5  3.25" in said
    assert "0.1  4" in said
