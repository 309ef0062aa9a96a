"""One learner per side does the arithmetic of one learner with a group per side, operation by operation."""

import jax
import numpy as np
import pytest

from flockrl.algos.assembly import make_algorithm
from flockrl.envs import make
from flockrl.rollouts.compiled import scan_rollout, start
from flockrl.training.setup import configure

SMALL = {"rollout_steps": 4, "minibatches": 1, "epochs": 2, "hidden": (8, 8), "agent_ids": False, "share": "groups"}


def learned(env, algorithm, settings, envs=2):
    """The state after one rollout and its update."""
    title, config = configure(algorithm, settings, env.spec)
    learner = make_algorithm(title, env.spec, config, envs=envs, updates=10)

    @jax.jit
    def play():
        state = learner.init(jax.random.key(0))
        actors = start(learner, env, jax.random.key(1), envs)
        return state, scan_rollout(learner, learner.params(state), env, actors, jax.random.key(2))[1]

    state, rollout = play()
    with jax.disable_jit():
        return learner.update(state, rollout, jax.random.key(3))[0]


@pytest.mark.slow
def test_sides_learn_what_groups_learn_bit_for_bit():
    """The update runs operation by operation. Compiled as a whole, the two programs are fused differently, and numbers
    of a side with one agent may be rounded differently (about 1e-7)."""
    env = make("mpe/simple_tag")
    one = learned(env, "ippo", SMALL)
    two = learned(env, {"adversary": "ippo", "agent": "ippo"}, {"adversary": SMALL, "agent": SMALL})
    for i, side in enumerate(("adversary", "agent")):
        for part in ("actor", "critic"):
            ours, theirs = (jax.tree.leaves(x) for x in (one.params[part][i], two[side].params[part][0]))
            assert len(ours) == len(theirs) > 0
            assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
