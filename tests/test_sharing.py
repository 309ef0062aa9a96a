"""Groups of agents: who is in them, and that taking and merging are inverse."""

import jax.numpy as jnp
import numpy as np
import pytest

from flockrl.core.groups import make_groups, merge, pooling, take
from flockrl.core.types import Box, Discrete, EnvSpec

SPEC = EnvSpec(
    "unlike",
    ("wolf_0", "sheep_0", "wolf_1", "sheep_1"),
    (Box((3,)), Box((5,)), Box((3,)), Box((5,))),
    (Discrete(2), Discrete(4), Discrete(2), Discrete(4)),
    max_steps=5,
)


def test_kinds_come_from_names_spaces_and_teams():
    assert SPEC.groups == (0, 1, 0, 1)
    assert [g.agents for g in make_groups(SPEC, "groups")] == [(0, 2), (1, 3)]
    assert [g.agents for g in make_groups(SPEC, "all")] == [(0, 1, 2, 3)]
    assert [g.agents for g in make_groups(SPEC, "none")] == [(0,), (1,), (2,), (3,)]


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
    matrix = pooling(make_groups(SPEC, "groups"), 4)
    np.testing.assert_allclose(matrix @ np.array([1.0, 10.0, 3.0, 30.0]), [2, 20, 2, 20])
