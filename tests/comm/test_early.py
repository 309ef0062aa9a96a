"""What is heard before memory is remembered."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flockrl.algos.presets import make_config
from flockrl.core.errors import UsageError
from flockrl.core.groups import make_groups
from flockrl.core.spec import Box, Discrete, EnvSpec
from flockrl.core.types import Observation
from flockrl.policies.network import TeamNetwork

T, B, N = 4, 2, 3
SPEC = EnvSpec("x", ("a_0", "a_1", "a_2"), (Box((2,)),) * N, (Discrete(3),) * N, 9)
OBS = jax.random.normal(jax.random.key(1), (T, B, N, 2))
FIRST = jnp.zeros((T, B), bool).at[0].set(True)


def team(comm, **settings):
    config = make_config("ippo", {"comm": comm, "hidden": (8,), "memory": "gru", "memory_size": 8, **settings})
    net = TeamNetwork(SPEC, make_groups(SPEC, "groups"), config, [3])
    return net, net.init([jax.random.key(0)])


@jax.jit(static_argnums=0)
def outputs(net, params, obs):
    """[T, B, N, 3] outputs, and [T, B, N, H] what agents remember after each step."""
    outs, memory = net(params, Observation(obs), net.blank(B), FIRST)
    return outs[0], net._apart(memory)[0][0]


@pytest.mark.parametrize("comm", ["commnet", "tarmac", "ic3net"])
def test_what_was_heard_stays_in_memory(comm):
    """Agent 0 sees something else in the first step. Others act on it in that step if they hear at once, and from the
    next one on if they hear early; and only then they remember it."""
    other = OBS.at[0, :, 0].add(1.0)
    for early in (False, True):
        net, params = team(comm, comm_early=early)
        pairs = zip(outputs(net, params, other), outputs(net, params, OBS), strict=True)
        acts, remembers = (np.abs(a - b)[:, :, 1:].max((1, 2, 3)) > 1e-6 for a, b in pairs)
        assert acts.tolist() == [not early, True, True, True]
        assert remembers.tolist() == [False, early, early, early]


def test_early_teams_on_a_dead_line_are_silent_ones():
    net, params = team("commnet", comm_early=True, channel="bits=0")
    plain, _ = team("none")
    own = jax.tree.map(lambda x: x, params[0])
    own.pop("exchange_0", None)
    np.testing.assert_array_equal(outputs(net, params, OBS)[0], outputs(plain, (own,), OBS)[0])


def test_step_by_step_is_the_same():
    net, params = team("tarmac", comm_early=True)
    whole, memory = outputs(net, params, OBS)[0], net.blank(B)
    for t in range(T):
        outs, memory, _ = net.step(params, Observation(OBS[t]), memory)
        np.testing.assert_allclose(outs[0], whole[t], atol=1e-6)


def test_several_rounds_are_refused():
    with pytest.raises(UsageError, match="heard once in a step"):
        make_config("ippo", {"comm": "tarmac", "comm_rounds": 2, "comm_early": True})
