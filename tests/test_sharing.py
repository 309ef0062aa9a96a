"""Groups of agents: who is in them, and that taking and merging are inverse."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from flockrl.core.errors import UsageError
from flockrl.core.groups import make_groups, merge, pooling, read_actions, take, write_actions
from flockrl.core.types import Box, Discrete, EnvSpec, MultiDiscrete
from flockrl.nets.normalisation import moments, observe

SPEC = EnvSpec(
    "unlike",
    ("wolf_0", "sheep_0", "wolf_1", "sheep_1"),
    (Box((3,)), Box((5,)), Box((3,)), Box((5,))),
    (Discrete(2), Discrete(4), Discrete(2), Discrete(4)),
    max_steps=5,
)


def test_kinds_come_from_names_spaces_and_sides():
    assert SPEC.groups == (0, 1, 0, 1)
    assert [g.agents for g in make_groups(SPEC, "groups")] == [(0, 2), (1, 3)]
    assert [g.agents for g in make_groups(SPEC, "all")] == [(0, 1, 2, 3)]
    assert [g.agents for g in make_groups(SPEC, "none")] == [(0,), (1,), (2,), (3,)]
    apart = dataclasses.replace(SPEC, groups=(), sides=("day", "day", "night", "day"))
    assert apart.groups == (0, 1, 2, 1)


@pytest.mark.parametrize(("share", "numbers", "of"), [("all", [1], 2), ("groups", [1], 2), ("none", [1, 3], 4)])
def test_a_side_keeps_the_numbers_that_its_groups_have_in_the_whole(share, numbers, of):
    """Random numbers follow from them, so that a side learns the same whoever else is learned."""
    sheep = make_groups(SPEC.part([1, 3]), share)
    assert [group.number for group in sheep] == numbers
    assert {group.of for group in sheep} == {of}
    assert [i for group in sheep for i in group.agents] == [0, 1]
    whole = make_groups(SPEC, share)
    assert [group.number for group in whole] == list(range(len(whole)))
    assert {group.of for group in whole} == {len(whole)}


def test_sizes_are_the_groups_own():
    wolves, sheep = make_groups(SPEC, "groups")
    assert (wolves.obs_size, wolves.action_size, sheep.obs_size, sheep.action_size) == (3, 2, 5, 4)
    everyone = make_groups(SPEC, "all")[0]
    assert everyone.legal.tolist() == [[True, True, False, False], [True] * 4] * 2


@pytest.mark.parametrize("share", ["all", "groups", "none"])
def test_merge_undoes_take(share):
    groups = make_groups(SPEC, share)
    x = jnp.arange(2 * 4 * 5.0).reshape(2, 4, 5) * jnp.asarray(
        np.arange(5) < np.array([s.size for s in SPEC.observations])[:, None]
    )
    parts = [take(x, group, 1, group.obs_size) for group in groups]
    np.testing.assert_array_equal(merge(parts, groups, 1, 5), x)
    np.testing.assert_array_equal(merge([take(x[..., 0], g, 1) for g in groups], groups, 1), x[..., 0])


def test_pooling_averages_within_groups():
    pool = pooling(make_groups(SPEC, "groups"), 4)
    assert pool.tolist() == [0, 1, 0, 1]
    rows = jnp.array([1.0, 10.0, 3.0, 30.0])[None, None]
    stats = observe(moments((4,)), rows, None, pool, slowest=0.0)
    np.testing.assert_allclose(stats.mean, [2, 20, 2, 20])
    np.testing.assert_allclose(stats.var, [1, 100, 1, 100])


MIXED = EnvSpec(
    "mixed", ("pick", "mix_0", "mix_1", "aim"), (Box((2,)),) * 4,
    (Discrete(2), MultiDiscrete((3, 2)), MultiDiscrete((3, 2)), Box((3,), -1.0, 1.0)), max_steps=5,
)  # fmt: skip


@pytest.mark.parametrize("share", ["groups", "none"])
def test_writing_actions_undoes_reading_them(share):
    groups = make_groups(MIXED, share)
    action = jnp.array([[[1, 0, 0], [2, 1, 0], [0, 1, 0], [0.5, -0.5, 0.25]]])
    parts = [read_actions(MIXED, group, action) for group in groups]
    np.testing.assert_array_equal(write_actions(MIXED, groups, parts), action)
    assert [part.dtype.kind for part in parts] == ["f" if group.continuous else "i" for group in groups]
    assert [part.shape[2:] for part in parts] == [() if g.width == 1 else (g.width,) for g in groups]


def test_unlike_kinds_of_actions_cannot_share_one_network():
    with pytest.raises(UsageError, match="pick, mix_0, mix_1, aim have unlike kinds of actions"):
        make_groups(MIXED, "all")
