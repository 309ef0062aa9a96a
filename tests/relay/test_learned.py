"""What a server or a trainer learned is evaluated and exported like a run."""

import json

import numpy as np
import pytest

import flockrl
from flockrl.commands.main import main
from flockrl.core.errors import UsageError
from flockrl.envs import make
from flockrl.portable.model import Model
from flockrl.training.learned import LearnedRun, open_run

PPO = {"hidden": (8,), "rollout_steps": 10, "minibatches": 2, "epochs": 1}


def saved(path, spec):
    """A trainer at the place where a server keeps its own."""
    trainer = flockrl.Trainer("ippo", spec, hyperparams=PPO, envs=2, save_path=path / "trainer")
    rng = np.random.default_rng(0)
    while not trainer.version:
        episode = trainer.episode()
        for _ in range(5):
            episode.act(rng.normal(size=(spec.num_agents, spec.obs_size)))
            episode.reward(1.0)
        trainer.receive_trajectory(episode.end())
    trainer.log_epoch()
    trainer.save()
    return trainer


def test_a_server_is_evaluated_and_exported(tmp_path, capsys):
    spec = make("games/climbing").spec
    trainer = saved(tmp_path, spec)
    before = sorted(p for p in tmp_path.rglob("*"))
    assert main(["eval", str(tmp_path), "--episodes", "4"]) == 0
    assert "return" in capsys.readouterr().out
    assert main(["export", str(tmp_path), "--out", str(tmp_path / "m")]) == 0
    model, policy = Model(tmp_path / "m"), trainer.acquire_model()
    assert model.version == trainer.version == 1
    obs = np.random.default_rng(1).normal(size=(9, spec.num_agents, spec.obs_size)).astype(np.float32)
    assert model.act(obs, explore=False).action.tolist() == policy.act(obs).tolist()
    run = open_run(tmp_path)
    assert isinstance(run, LearnedRun)
    assert [row["return"] for row in run.metrics()] == [5.0]
    assert run.evaluate(4).episodes == 4
    assert sorted(p for p in tmp_path.rglob("*") if "m" not in p.relative_to(tmp_path).parts) == before
    assert main(["resume", str(tmp_path)]) == 2
    assert "flockrl serve --data" in capsys.readouterr().err


def test_a_server_is_reported(tmp_path, capsys):
    page, home = tmp_path / "report.html", tmp_path / "home"
    spec = flockrl.EnvSpec("meadow", ("ann", "bob"), (flockrl.Box((1,)),) * 2, (flockrl.Discrete(3),) * 2, 25)
    trainer = saved(home, spec)
    for earned in (2.0, 3.0):
        for _ in range(4):
            episode = trainer.episode()
            for step in range(5):
                episode.act(np.full((2, 1), step))
                episode.reward([earned, earned + 1])
            trainer.receive_trajectory(episode.end())
        trainer.log_epoch()
    assert main(["report", str(home), "--out", str(page), "--no-animations"]) == 0
    text = page.read_text()
    assert "ippo (home)" in text
    assert "17.50" in text  # the newest log point: five steps of 3 for ann and of 4 for bob
    assert "exploring" in text  # what the figures are
    assert "greedy episodes after" not in text
    assert "nan" not in text
    assert text.count("<polyline") + text.count("<path") > 0  # a curve of three points
    assert main(["report", str(home), "--out", str(page)]) == 0
    assert "No animation of ippo (home)" in capsys.readouterr().out  # there is no meadow to play in
    (home / "trainer" / "metrics.jsonl").unlink()
    assert main(["report", str(home), "--out", str(page)]) == 2
    assert "no whole episode yet" in capsys.readouterr().err


def test_a_spec_of_ones_own_needs_an_environment_to_play(tmp_path, capsys):
    spec = flockrl.EnvSpec("meadow", ("agent_0", "agent_1"), (flockrl.Box((1,)),) * 2, (flockrl.Discrete(3),) * 2, 25)
    saved(tmp_path, spec)
    assert main(["eval", str(tmp_path), "--episodes", "2"]) == 2
    assert "name one with --env" in capsys.readouterr().err
    assert main(["eval", str(tmp_path), "--episodes", "2", "--env", "games/climbing"]) == 0
    assert main(["eval", str(tmp_path), "--episodes", "2", "--env", "mpe/simple_spread"]) == 2
    assert "cannot play mpe/simple_spread" in capsys.readouterr().err
    assert flockrl.export(tmp_path / "trainer", tmp_path / "m").is_dir()  # needs no environment


def test_a_damaged_trainer_is_named(tmp_path):
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "trainer.json").write_text(json.dumps({"algorithm": "ippo"}))
    with pytest.raises(UsageError):
        open_run(tmp_path)


@pytest.mark.slow
def test_a_server_begins_with_what_a_run_learned(tmp_path):
    from flockrl.core.errors import Notice
    from flockrl.relay.learner import open_trainer

    run = flockrl.train("ippo", "games/climbing", steps=100, envs=2, out=tmp_path / "run", quiet=True, **PPO)
    settings = {"hyperparams": PPO, "envs": 2}
    trainer = open_trainer(tmp_path / "t", "ippo", run.spec, str(run.path), **settings)
    obs = np.random.default_rng(1).normal(size=(9, run.spec.num_agents, run.spec.obs_size)).astype(np.float32)
    plain = flockrl.Trainer("ippo", run.spec, **settings)

    def likely(policy):
        return policy.algorithm.kl(policy.params, run.policy().params, flockrl.Observation(obs), ())

    assert np.abs(likely(trainer.acquire_model())).max() < 1e-6
    assert np.abs(likely(plain.acquire_model())).max() > 1e-6  # it began elsewhere
    assert trainer.version == 0
    with pytest.warns(Notice, match="goes on with what it has learned"):
        open_trainer(tmp_path / "t", "ippo", run.spec, str(run.path), **settings)
    with pytest.raises(UsageError, match="does not fit"):
        open_trainer(tmp_path / "u", "ippo", run.spec, str(run.path), hyperparams={**PPO, "hidden": (9,)}, envs=2)
