"""Short trainings on particle worlds that a broken learner would not get through."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flockrl
from flockrl.evaluation.playing import make_evaluator


class RandomOpponents:
    """The same environment, in which some agents act at random whatever they were told."""

    def __init__(self, env, agents):
        self.env, self.spec = env, env.spec
        self.random = np.isin(np.arange(env.spec.num_agents), agents)
        self.reset = env.reset

    def step(self, key, state, action):
        choice = jax.random.randint(key, action.shape, 0, np.array([s.n for s in self.spec.actions]))
        return self.env.step(key, state, jnp.where(self.random, choice, action))


def returns(run, at_random=(), episodes=500):
    """[N] mean return of each agent in greedy episodes, where the agents named act at random."""
    env = RandomOpponents(run.env, list(at_random))
    evaluator = jax.jit(make_evaluator(run.algorithm, env, episodes))
    return np.asarray(evaluator(run.params(), jax.random.key(1))[0]).mean(0)


def random_return(run):
    return returns(run, range(run.env.spec.num_agents))


def train(tmp_path, algorithm, env, steps, **settings):
    settings = {"steps": steps, "eval_episodes": 300, "seed": 1, **settings}
    return flockrl.train(algorithm, env, out=tmp_path / "run", **settings)


@pytest.mark.slow
def test_mappo_learns_simple_spread(tmp_path):
    """Random is about -24 and the best about -9; at 300k steps a working learner is around -16."""
    run = train(tmp_path, "mappo", "mpe/simple_spread", 300_000)
    assert returns(run).mean() > random_return(run).mean() + 6


@pytest.mark.slow
def test_qtran_learns_simple_spread(tmp_path):
    """At 60k steps a working learner is around -18. Agents that learn from QTRAN's two conditions alone leave the
    arena, and end below random."""
    run = train(tmp_path, "qtran", "mpe/simple_spread", 60_000, agent_ids=False, gamma=0.8)
    assert returns(run).mean() > random_return(run).mean() + 4


@pytest.mark.slow
def test_recurrent_unshared_agents_learn_simple_spread(tmp_path):
    settings = {"share": "none", "memory": "gru", "rollout_steps": 25, "minibatches": 2, "memory_size": 32}
    run = train(tmp_path, "ippo", "mpe/simple_spread:N=2", 80_000, **settings)
    assert returns(run).mean() > random_return(run).mean() + 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "margin"), [("simple_speaker_listener", 10.0), ("simple_reference", 8.0)], ids=["speaker", "reference"]
)
def test_communicating_teams_beat_random(tmp_path, env, margin):
    run = train(tmp_path, "mappo", f"mpe/{env}", 120_000)
    assert returns(run).mean() > random_return(run).mean() + margin


@pytest.mark.slow
def test_predators_beat_random_predators(tmp_path):
    """Against the same prey, which acts at random in both cases."""
    run = train(tmp_path, "mappo", "mpe/simple_tag", 120_000, hidden=(64, 64))
    assert returns(run, [3])[:3].mean() > random_return(run)[:3].mean() + 10


@pytest.mark.slow
def test_the_good_team_beats_a_random_team(tmp_path):
    """Against the same adversary, which acts at random in both cases."""
    run = train(tmp_path, "mappo", "mpe/simple_adversary", 120_000)
    assert returns(run, [0])[1:].mean() > random_return(run)[1:].mean() + 5
