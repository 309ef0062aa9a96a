"""Games whose answers are known."""

import jax
import numpy as np
import pytest

import flockrl
from flockrl.core.types import Observation
from flockrl.nets.heads import make_head

STEPS = {"steps": 200_000, "rollout_steps": 100, "eval_episodes": 50}


def final(tmp_path, algorithm, env, **settings):
    run = flockrl.train(algorithm, env, out=tmp_path / "run", **{**STEPS, **settings})
    return run, run.result["final_eval_return"]


@pytest.mark.slow
def test_penalty_without_penalty_is_solved(tmp_path):
    assert final(tmp_path, "mappo", "games/penalty:k=0")[1] == pytest.approx(250)


@pytest.mark.slow
def test_climbing_reaches_the_published_equilibrium(tmp_path):
    assert final(tmp_path, "mappo", "games/climbing")[1] >= 175


@pytest.mark.slow
def test_prisoners_defect(tmp_path):
    """Defection is dominant, so independent learners end there."""
    run, _ = final(tmp_path, "ippo", "games/prisoners_dilemma", steps=50_000)
    policy = run.policy()
    assert (policy.act(np.ones((2, run.env.spec.obs_size))) == 1).all()


@pytest.mark.slow
def test_matching_pennies_ends_near_one_half(tmp_path):
    """With a strong entropy bonus both players come to rest at the mixed equilibrium."""
    seen = []

    class Watch(flockrl.Callback):
        def on_iteration(self, moment):
            if moment.step > 80_000:
                seen.append(probabilities(moment.state.learner))

    run = flockrl.make_env("games/matching_pennies")

    def probabilities(learner):
        from flockrl.algos.ppo import _PPO, PPOConfig

        team = _PPO(run.spec, PPOConfig(critic="own"), 16, 1)
        obs = jax.numpy.ones((1, 2, run.spec.obs_size))
        outs = team._actor(learner.params["actor"], Observation(obs).obs, (), None)
        heads = [make_head(run.spec, group) for group in team.groups]
        logps = [
            h.evaluate(out, None, jax.numpy.zeros((1, 1), int))[0] for h, (out, _) in zip(heads, outs, strict=True)
        ]
        return np.exp(np.array([float(logp[0, 0]) for logp in logps]))

    final(tmp_path, "ippo", "games/matching_pennies", steps=120_000, entropy=0.2, lr=1e-3, callbacks=[Watch()])
    assert np.mean(seen, axis=0) == pytest.approx([0.5, 0.5], abs=0.1)
    assert seen[-1] == pytest.approx([0.5, 0.5], abs=0.15)
