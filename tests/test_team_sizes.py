"""Teams with other numbers of agents than they learned with: playing, beginning, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flockrl
from flockrl.algos.assembly import make_algorithm
from flockrl.algos.presets import make_config
from flockrl.core.errors import UsageError
from flockrl.envs import make
from flockrl.training.config import RunConfig, TrainOptions
from flockrl.training.programs import make_program
from flockrl.training.run import _policy_shape
from flockrl.training.setup import configure

RUN = {
    "steps": 80, "envs": 2, "rollout_steps": 20, "epochs": 1, "minibatches": 1, "hidden": (8,), "eval_every": 80,
    "eval_episodes": 2, "checkpoint_every": 40,
}  # fmt: skip


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    path = tmp_path_factory.mktemp("sizes")
    return flockrl.train("mappo", "mpe/simple_spread:N=2", net="deep_set", out=path / "two", **RUN)


@pytest.mark.slow
def test_a_team_plays_with_more_agents(two, capsys):
    from flockrl.commands.main import main

    assert two.evaluate(4, env="mpe/simple_spread:N=4").returns.shape == (4, 4)
    assert main(["eval", str(two.path), "--env", "mpe/simple_spread:N=3", "--episodes", "4"]) == 0
    assert "agent_2" in capsys.readouterr().out
    with pytest.raises(UsageError, match="cannot play mpe/simple_formation"):
        two.evaluate(4, env="mpe/simple_formation")
    with pytest.raises(UsageError, match="cannot play mpe/simple_tag"):
        two.evaluate(4, env="mpe/simple_tag")


@pytest.mark.slow
def test_a_team_begins_with_what_a_smaller_one_learned(two, tmp_path):
    more = flockrl.train(
        "mappo", "mpe/simple_spread:N=3", net="deep_set", out=tmp_path / "three", init_from=two, **{**RUN, "steps": 40}
    )  # fmt: skip
    old, new = two.state().learner, more.state().learner
    assert jax.tree.map(np.shape, old.params) == jax.tree.map(np.shape, new.params)
    assert new.value_moments.mean.shape == (3,)
    assert int(new.updates) == 1


@pytest.mark.slow
def test_flat_networks_play_with_their_own_number(tmp_path):
    flat = flockrl.train("ippo", "mpe/simple_spread:N=2", out=tmp_path / "flat", **RUN)
    with pytest.raises(UsageError, match="trained with --net entities"):
        flat.evaluate(4, env="mpe/simple_spread:N=3")


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("mfac", {"rollout_steps": 10, "agent_ids": False}),
        pytest.param("mappo", {}, marks=pytest.mark.slow),
        pytest.param("mappo", {"net": "entities"}, marks=pytest.mark.slow),
    ],
)
def test_the_program_is_as_long_for_many_agents_as_for_few(name, settings):
    """Compile time follows the length of the program, and agents are an axis of it."""
    lines = []
    for n in (4, 40):
        env = flockrl.make_env(f"mpe/simple_spread:N={n}")
        title, config = configure(name, settings, env.spec)
        program = make_program(RunConfig(title, "x", TrainOptions(envs=2), config), env)
        lowered = jax.jit(program.advance).lower(program.shape(), jax.random.key(0), jnp.int32(1))
        lines.append(lowered.as_text().count("\n"))
    assert lines[0] > 1000
    assert abs(lines[1] - lines[0]) < 0.01 * lines[0]


@pytest.mark.parametrize(
    ("env", "other"),
    [
        ("fleet/coverage", "fleet/coverage:drones=8,hotspots=5,zones=2"),
        ("fleet/delivery", "fleet/delivery:drones=2,orders=3"),
        ("swarm/search", "swarm/search:n=7"),
        ("tasks/allocation", "tasks/allocation:workers=9"),
    ],
)
def test_networks_of_sets_fit_other_numbers_in_case_studies(env, other):
    def shape(name, **settings):
        config = make_config("mappo", settings)
        return _policy_shape(make_algorithm("mappo", make(name).spec, config, envs=16, updates=1))

    assert shape(env, net="entities") == shape(other, net="entities")
    assert shape(env) != shape(other)
