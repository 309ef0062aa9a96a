"""Matches between policies that were trained apart."""

import jax
import numpy as np
import pytest
from conftest import TINY

import flockrl
from flockrl.evaluation.matches import Side, compose, make_match, random_actor

ENV = "mpe/simple_tag"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return flockrl.train("ippo", ENV, out=tmp_path_factory.mktemp("teams") / "run", **TINY)


def test_a_team_split_in_two_plays_as_the_team(run):
    """The same policy on both sides gives the very episodes that the whole team plays."""
    hunters, prey = run.env.spec.agents[:3], run.env.spec.agents[3:]
    algorithm, params = run.algorithm, run.params()
    match = make_match(run.env, [Side(algorithm, hunters), Side(algorithm, prey)], 8)
    np.testing.assert_array_equal(match((params, params), 3).returns, run.evaluate(8, seed=3).returns)


def test_each_side_moves_its_own_agents(run):
    """Against a random prey the hunters act as trained and the prey as drawn."""
    spec = run.env.spec
    hunters, prey = spec.agents[:3], spec.agents[3:]
    actor = compose(spec, [Side(run.algorithm, hunters), Side(random_actor(spec), prey)])
    _, seen = jax.vmap(run.env.reset)(jax.random.split(jax.random.key(0), 500))
    action, _, _ = actor.act((run.params(), ()), seen, actor.memory(500), jax.random.key(1), False)
    trained, _, _ = run.algorithm.act(run.params(), seen, (), jax.random.key(1), False)
    np.testing.assert_array_equal(action[:, :3], trained[:, :3])
    assert np.bincount(np.asarray(action[:, 3]), minlength=5).min() > 60


def test_every_agent_must_have_a_side(run):
    with pytest.raises(flockrl.UsageError, match="every agent"):
        compose(run.env.spec, [Side(run.algorithm, run.env.spec.agents[:2])])
