"""Names of code in files are not imported without trust, and factories must be environments."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import flockrl
from flockrl.commands.main import main
from flockrl.core.code import Untrusted, trusting
from flockrl.core.errors import UsageError
from flockrl.envs import make
from flockrl.evidence.suite import read_suite
from flockrl.training.config import read_settings

MODULE = """
from pathlib import Path
Path("imported").touch()
import flax.linen as nn
from flockrl.envs.probes import ENVIRONMENTS

class Torso(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(x)

def build():
    return ENVIRONMENTS["action"]()

def still(spec, seen, key):
    return seen.obs[..., 0] * 0
"""
SMALL = (
    "--steps",
    "64",
    "--envs",
    "2",
    "--minibatches",
    "1",
    "--rollout-steps",
    "8",
    "--eval-episodes",
    "2",
    "--quiet",
)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working directory with a module that leaves a trace when it is imported. Gives the function that tells."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "stranger.py").write_text(MODULE)

    def imported() -> bool:
        sys.modules.pop("stranger", None)
        found = Path("imported").exists()
        Path("imported").unlink(missing_ok=True)
        return found

    yield imported
    sys.modules.pop("stranger", None)


def change(run: Path, **entries) -> None:
    saved = json.loads((run / "config.json").read_text())
    saved.update({k: v for k, v in entries.items() if k != "kernel"})
    if "kernel" in entries:
        saved["config"]["kernel"] = entries["kernel"]
    (run / "config.json").write_text(json.dumps(saved))


@pytest.fixture
def run(place):
    assert main(["train", "ppo", "probe/action", "--out", "run", "--quiet", *SMALL]) == 0
    return Path("run")


@pytest.mark.parametrize("entries", [
    {"env": "python/stranger:build"}, {"env": "pettingzoo/stranger"}, {"kernel": "stranger:Torso"},
], ids=["factory", "module", "kernel"])  # fmt: skip
def test_a_run_imports_nothing_without_trust(run, place, entries, capsys):
    change(run, **entries)
    (run / "result.json").unlink()  # so that resume has something to do
    for words in (["eval", "run"], ["export", "run", "--out", "model"], ["resume", "run"]):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert "stranger" in said
        assert "--trust" in said
        assert not place()
    with pytest.raises(Untrusted, match="stranger"):
        flockrl.Run(run)
    assert not place()


def test_a_trusted_run_is_opened(run, place, capsys):
    change(run, env="python/stranger:build")
    assert main(["eval", "run", "--episodes", "2"]) == 2
    assert flockrl.Run(run, trust=True).evaluate(2).episodes == 2
    assert place()
    assert flockrl.Run(run, env=make("probe/action")).evaluate(2).episodes == 2
    assert not place()


def test_trust_on_the_command_line_and_what_is_typed_there(place, capsys):
    loud = SMALL[:-1]
    assert main(["train", "ppo", "python/stranger:build", "--kernel", "stranger:Torso", "--out", "own", *loud]) == 0
    assert "flockrl eval own --gif episode.gif --trust" in capsys.readouterr().out
    assert place()
    assert main(["eval", "own"]) == 2
    assert "'python/stranger:build', 'stranger:Torso'" in capsys.readouterr().err
    assert not place()
    with trusting(False):  # --trust holds until its process ends, here until this block does
        assert main(["eval", "own", "--episodes", "2", "--trust"]) == 0
    assert place()


def test_a_side_may_not_name_a_script(run, place, capsys):
    sides = {"adversary": {"kind": "random"}, "agent": {"kind": "script", "source": "stranger:still"}}
    change(run, env="mpe/simple_tag", sides=sides, config={})
    assert main(["eval", "run"]) == 2
    assert "stranger:still" in capsys.readouterr().err
    assert not place()


@pytest.mark.parametrize("setting", ["shaping=stranger:still", "kernel=stranger:Torso"])
def test_a_hierarchy_hides_no_code_in_its_settings(run, place, capsys, setting):
    name, _, code = setting.partition("=")
    config = {"manager_settings": {name: code}}
    change(run, algorithm="feudal", env="hierarchy/goal_assignment", config=config)
    assert main(["eval", "run"]) == 2
    assert f"cannot have {name}" in capsys.readouterr().err
    assert not place()


@pytest.mark.parametrize("entries", [
    {"env": 'gymnasium/CartPole-v1:env_id="stranger\\u003aEnv-v0"'},
    {"env": "gymnasium/CartPole-v1", "curriculum": "env_id=stranger:A-v0,stranger:B-v0"},
    {"env": "gymnasium/CartPole-v1:x=1", "curriculum": 'env_id="stranger\\u003aA-v0",1'},
], ids=["escaped", "curriculum", "both"])  # fmt: skip
def test_a_setting_of_an_environment_hides_no_module(tmp_path, entries):
    (tmp_path / "config.json").write_text(json.dumps({"algorithm": "ppo", "config": {}, **entries}))
    with pytest.raises(Untrusted, match="gymnasium/CartPole-v1"):
        flockrl.Run(tmp_path)


def test_a_file_gives_no_work_to_a_cluster_without_trust(tmp_path, capsys):
    """Whoever has the cluster runs what it likes, and its answers are unpickled."""
    saved = {"algorithm": "ppo", "config": {}, "env": "gymnasium/CartPole-v1", "ray": "ray://far.away:10001"}
    (tmp_path / "config.json").write_text(json.dumps(saved))
    assert main(["resume", str(tmp_path)]) == 2
    assert "the Ray cluster at ray://far.away:10001" in capsys.readouterr().err
    (tmp_path / "own.toml").write_text('ray = "far.away:6379"\n')
    assert main(["train", "ppo", "gymnasium/CartPole-v1", "--config", str(tmp_path / "own.toml")]) == 2
    assert "the Ray cluster at far.away:6379" in capsys.readouterr().err
    suite = 'algorithms = ["ppo"]\nenvironments = ["probe/action"]\nseeds = 1\nsettings = {ray = "far.away:6379"}\n'
    (tmp_path / "suite.toml").write_text(suite)
    with pytest.raises(Untrusted, match=r"the Ray cluster at far\.away:6379"):
        read_suite(str(tmp_path / "suite.toml"))


def test_a_curriculum_of_numbers_needs_no_trust(tmp_path):
    saved = {"algorithm": "ppo", "config": {}, "env": "jaxmarl/MPE_simple_spread_v3", "curriculum": "rate=0.1..0.4:4"}
    (tmp_path / "config.json").write_text(json.dumps(saved))
    assert flockrl.Run(tmp_path).config.code() == []


def test_suites_and_settings_in_files(place, capsys):
    Path("own.toml").write_text('algorithms = ["ppo"]\nenvironments = ["python/stranger:build"]\nseeds = 1\n')
    with pytest.raises(Untrusted, match="names code"):
        read_suite("own.toml")
    Path("kernel.toml").write_text('kernel = "stranger:Torso"\n')
    assert read_settings(Path("kernel.toml"))[1] == {"kernel": "stranger:Torso"}
    assert main(["train", "ppo", "probe/action", "--config", "kernel.toml", "--out", "x", *SMALL]) == 2
    assert "kernel.toml names code" in capsys.readouterr().err
    assert not place()
    assert not Path("x").exists()


def test_a_recording_does_not_import_its_environment(place):
    from flockrl.data.files import Files, Writer

    flockrl.train("ppo", "probe/action", steps=64, envs=2, minibatches=1, rollout_steps=8, record="a.arrow", out="a")
    files = Files(["a.arrow"])
    with Writer("b.arrow", files.spec, {"env": "pettingzoo/stranger"}) as writer:
        for data in files:
            writer.add(data)
    run = flockrl.train("bc", "data/b.arrow", steps=64, envs=2, rollout_steps=8, out="bc")
    assert not place()
    assert "stranger" in run.program.note
    assert "--trust" in run.program.note


def test_a_trainer_on_disk_imports_no_kernel(place):
    from flockrl.training.trainer import Trainer

    trainer = Trainer("ppo", obs_dim=2, act_dim=2, envs=4, kernel="stranger:Torso", save_path="trainer")
    trainer.save()
    assert place()
    with pytest.raises(Untrusted, match="stranger:Torso"):
        Trainer.load("trainer")
    assert not place()
    assert Trainer.load("trainer", trust=True).algorithm == "ppo"


def test_what_a_server_learned_imports_no_environment(place, capsys):
    from flockrl.training.trainer import Trainer

    spec = replace(make("probe/action").spec, name="python/stranger:build")
    Trainer("iql_tabular", spec, envs=1, save_path="home/trainer").save()
    assert main(["eval", "home", "--episodes", "2"]) == 2
    assert "'python/stranger:build'" in capsys.readouterr().err
    assert not place()
    assert main(["eval", "home", "--best", "--env", "probe/action"]) == 2
    assert "leave out --best" in capsys.readouterr().err
    assert main(["eval", "home", "--episodes", "2", "--env", "probe/action"]) == 0


@pytest.mark.parametrize("name", [
    "os:system,command=touch imported", "subprocess:run,args=touch", "builtins:exec", "shutil:rmtree,path=x",
    "stranger:Path,x=1", "stranger:MODULE",
])  # fmt: skip
def test_factories_must_be_environments(place, name):
    with pytest.raises(UsageError):
        make(f"python/{name}")
    assert name.startswith("stranger") or not place()
