"""Algorithms of users: registered in Python, or brought along by another distribution."""

import dataclasses
import inspect
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flockrl
from flockrl.algos import presets
from flockrl.algos.assembly import make_algorithm
from flockrl.algos.family import Family
from flockrl.commands.main import main
from flockrl.core.rundir import read_json
from flockrl.core.types import Algorithm

RUN = {"steps": 64, "envs": 4, "eval_every": 64, "eval_episodes": 2, "checkpoint_every": 32}
SPREAD = "mpe/simple_spread:N=2"


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of the blind learner."""

    rollout_steps: int = 8
    """Steps of every environment between updates."""
    lr: float = 0.5
    """How far an action's value moves towards what it paid."""


def make(spec, config, *, envs, updates):
    """Learns what each action pays, blind to what agents see."""

    def init(key):
        return {"value": jnp.zeros((spec.num_agents, spec.action_size)), "updates": jnp.int32(0)}

    def act(params, seen, memory, key, explore):
        value = jnp.where(spec.own_actions, params, -jnp.inf)
        noise = jax.random.gumbel(key, (len(seen.obs), *value.shape)) if explore else 0.0
        best = (value + noise).argmax(-1)
        return jnp.broadcast_to(best, (len(seen.obs), spec.num_agents)).astype(jnp.int32), memory, {}

    def update(state, trajectory, key):
        chosen = jax.nn.one_hot(trajectory.action, spec.action_size)
        paid = (chosen * trajectory.reward[..., None]).sum((0, 1)) / jnp.maximum(chosen.sum((0, 1)), 1.0)
        value = state["value"] + config.lr * (paid - state["value"])
        return {"value": value, "updates": state["updates"] + 1}, {"value": value.mean()}

    return Algorithm(init, lambda state: state["value"], act, update, lambda batch: (), config.rollout_steps)


@pytest.fixture
def blind():
    flockrl.register("blind", make, Config)
    yield "blind"
    del presets._REGISTERED["blind"]


def test_a_registered_algorithm_trains_and_is_found_again(blind, tmp_path):
    run = flockrl.train(blind, SPREAD, out=tmp_path / "run", lr=0.25, **RUN)
    assert read_json(run.path / "config.json")["config"] == {"rollout_steps": 8, "lr": 0.25}
    state = flockrl.Run(run.path).state().learner
    assert int(state["updates"]) == 2
    assert np.abs(state["value"]).min() > 0
    assert flockrl.Run(run.path).evaluate(2).episodes == 2
    action = run.policy().act(np.zeros((2, run.spec.obs_size), np.float32))
    np.testing.assert_array_equal(action, state["value"].argmax(-1))
    with pytest.raises(flockrl.UsageError, match=r"blind has no setting 'lrr'.*'lr'"):
        flockrl.train(blind, SPREAD, lrr=1.0)


def test_a_registered_algorithm_plays_a_side(blind, tmp_path):
    settings = {"rollout_steps": 8, "epochs": 1, "minibatches": 2, "hidden": (8,)}
    run = flockrl.train(
        {"adversary": "ippo", "agent": blind}, "mpe/simple_tag", out=tmp_path / "run", adversary=settings,
        agent={"lr": 0.25}, **RUN,
    )  # fmt: skip
    state = flockrl.Run(run.path).state().learner["agent"]
    assert state["value"].shape == (1, 5)  # of its own agent alone
    assert int(state["updates"]) == 2
    assert {"agent/value", "adversary/policy_loss"} <= set(run.metrics()[-1])


def test_a_registered_algorithm_learns_from_trajectories(blind):
    trainer = flockrl.Trainer(blind, obs_dim=2, act_dim=3, agents=2, envs=2)
    assert trainer.config == Config()
    assert flockrl.Trainer.blind(obs_dim=2, act_dim=3, hyperparams={"lr": 0.125}).config.lr == 0.125


def test_names_that_are_taken_or_are_none_are_refused():
    with pytest.raises(flockrl.UsageError, match="There is an algorithm 'ippo' already"):
        flockrl.register("ippo", make, Config)
    with pytest.raises(flockrl.UsageError, match="letters, digits and underscores, not 'my own'"):
        flockrl.register("my own", make, Config)
    assert set(presets._REGISTERED) == set()


# Another distribution


def write_distribution(base, points):
    """Fill a directory as pip would, with a module and what says which algorithms it brings."""
    head = "import dataclasses\n\nimport jax\nimport jax.numpy as jnp\n\nfrom flockrl import Algorithm, Family\n"
    parts = [head, inspect.getsource(Config), inspect.getsource(make), "FAMILY = Family(make, Config)\nNONE = 3\n"]
    (base / "mine.py").write_text("\n\n".join(parts))
    about = base / "mine-0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 0.1\n")
    (about / "entry_points.txt").write_text(f"[flockrl.algorithms]\n{points}\n")
    files = ["mine.py", *(f"mine-0.1.dist-info/{name}" for name in ("METADATA", "entry_points.txt", "RECORD"))]
    (about / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    return base


@pytest.fixture(scope="module")
def distribution(tmp_path_factory):
    return write_distribution(tmp_path_factory.mktemp("site"), "mine = mine:FAMILY")


def flockrl_command(distribution, *words):
    paths = [str(distribution), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.run(
        [sys.executable, "-m", "flockrl", *map(str, words)], env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_an_algorithm_of_another_distribution_trains_from_the_command_line(distribution, tmp_path):
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in RUN.items()]
    done = flockrl_command(distribution, "train", "mine", SPREAD, "--lr", "0.25", *flags, "--out", tmp_path / "run")
    assert (done.returncode, done.stderr) == (0, "")
    assert read_json(tmp_path / "run" / "config.json")["config"] == {"rollout_steps": 8, "lr": 0.25}
    assert read_json(tmp_path / "run" / "result.json")["steps"] == 64
    with pytest.raises(flockrl.UsageError, match="There is no algorithm 'mine'"):
        flockrl.Run(tmp_path / "run")


@pytest.fixture
def install(monkeypatch):
    """Put a distribution on the path."""
    yield lambda base: monkeypatch.syspath_prepend(str(base))
    sys.modules.pop("mine", None)


def test_it_is_listed_and_explained(distribution, install, capsys):
    install(distribution)
    assert main(["list", "algorithms"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "mine                    Learns what each action pays, blind to what agents see." in lines
    assert isinstance(presets.family("mine"), Family)
    assert main(["train", "mine", "--help"]) == 0
    text = capsys.readouterr().out
    assert "Learns what each action pays" in text
    assert "--lr" in text
    assert main(["train", "mien", SPREAD]) == 2
    assert "Did you mean 'mine'?" in capsys.readouterr().err


def test_an_entry_point_that_is_no_family_is_refused(tmp_path, install, capsys):
    install(write_distribution(tmp_path, "unsound = mine:NONE"))
    assert main(["train", "unsound", SPREAD]) == 2
    assert "The entry point unsound of flockrl.algorithms must name a flockrl Family, not 3." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("refused", "action", "words"),
    [
        ({"continuous": False}, flockrl.Box((1,), -1.0, 1.0), "continuous actions"),
        ({"discrete": False}, flockrl.Discrete(3), "discrete actions"),
        ({}, flockrl.MultiDiscrete((2, 3)), "several discrete actions"),
    ],
)
def test_actions_that_a_family_does_not_take_are_refused(monkeypatch, refused, action, words):
    monkeypatch.setattr("flockrl.algos.assembly.family", lambda name: Family(make, Config, **refused))
    spec = flockrl.EnvSpec("own", ("a",), (flockrl.Box((1,)),), (action,), 5)
    with pytest.raises(flockrl.UsageError, match=f"does not take the {words} of own"):
        make_algorithm("ippo", spec, Config(), envs=2, updates=1)
    fine = flockrl.EnvSpec("own", ("a",), (flockrl.Box((1,)),), (flockrl.Discrete(2),), 5)
    monkeypatch.setattr("flockrl.algos.assembly.family", lambda name: Family(make, Config, continuous=False))
    assert make_algorithm("ippo", fine, Config(), envs=2, updates=1).rollout_steps == 8
