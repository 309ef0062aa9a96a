"""hierarchy/goal_assignment: the best return by exhaustive search, the policies that come with it, rules by hand."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flockrl.core.errors import UsageError
from flockrl.envs import make
from flockrl.envs.assignment import assign
from flockrl.envs.hierarchy.goal_assignment import MOVES, GoalAssignment
from flockrl.training.scripted import Scripted


def searched(size, steps, starts, marks):
    """The highest return of two agents, over all joint moves, by going backwards from the end."""
    cells = list(itertools.product(range(size), repeat=2))
    value = dict.fromkeys(itertools.product(cells, cells), 0.0)
    for _ in range(steps):
        value = {both: max(_after(value, size, both, moves, marks) for moves in itertools.product(range(5), repeat=2))
                 for both in value}  # fmt: skip
    return value[starts]


def _after(value, size, both, moves, marks):
    ends = tuple(
        tuple(np.clip(np.add(place, MOVES[move]), 0, size - 1)) for place, move in zip(both, moves, strict=True)
    )
    stays = {end for end, move in zip(ends, moves, strict=True) if move == 0}
    return len(stays & set(marks)) / 2 - 1 + value[ends]


@pytest.mark.parametrize(
    ("starts", "marks"),
    [(((0, 0), (0, 1)), ((0, 1), (2, 2))), (((0, 0), (1, 0)), ((0, 0), (0, 2))), (((2, 2), (2, 2)), ((0, 0), (2, 0)))],
)
def test_no_moves_earn_more_than_the_cheapest_assignment(starts, marks):
    costs = np.abs(np.array(starts)[:, None] - np.array(marks)[None]).sum(-1)
    best = -min(costs[0, 0] + costs[1, 1], costs[0, 1] + costs[1, 0]) / 2
    assert searched(3, 6, starts, marks) == pytest.approx(best)


def test_assignments_are_the_cheapest_of_all():
    rng = np.random.default_rng(0)
    cost = rng.integers(0, 9, (5, 4, 4))
    for table in cost:
        rows, columns = assign(jnp.asarray(table))
        assert rows.tolist() == [0, 1, 2, 3]
        cheapest = min(sum(table[i, p[i]] for i in range(4)) for p in itertools.permutations(range(4)))
        assert table[np.asarray(rows), np.asarray(columns)].sum() == cheapest


def test_the_hungarian_policy_earns_the_optimum_and_the_nearest_less():
    best = Scripted("hungarian", "hierarchy/goal_assignment:n=4,size=6").evaluate(episodes=50)
    np.testing.assert_allclose(best.returns.mean(1), best.measures["optimum"], atol=1e-4)
    assert (best.measures["covered"] == 1).all()
    nearest = Scripted("nearest", "hierarchy/goal_assignment:n=4,size=6").evaluate(episodes=50)
    assert nearest.mean < best.mean - 2


def test_passing_by_covers_nothing():
    env = GoalAssignment(n=1, size=3)
    state, _ = env.reset(jax.random.key(0))
    state = state._replace(agents=jnp.array([[0, 0]]), landmarks=jnp.array([[0, 1]]))
    earned = []
    for action in (2, 0, 0, 2):  # onto it, stay, stay, on
        state, seen, reward, *_ = env.step(jax.random.key(1), state, jnp.array([action]))
        earned.append(float(reward[0]))
    assert earned == [-1, 0, 0, -1]
    np.testing.assert_allclose(seen.obs[0], [0, 2 / 3, 0, -1 / 3, 0], atol=1e-6)
    assert env.render([state], 30)[0].shape == (30, 30, 3)


def test_landmarks_may_belong_to_agents():
    env = GoalAssignment(n=3, size=4, owner=1)
    state, _ = env.reset(jax.random.key(0))
    assert [np.flatnonzero(row).tolist() for row in env.may] == [[2], [0], [1]]  # landmark k is agent k + 1's
    away = np.abs(np.asarray(state.agents) - np.asarray(state.landmarks)[[2, 0, 1]]).sum()
    assert float(state.optimum) == pytest.approx(-away / 3)
    state = state._replace(agents=state.landmarks)  # everyone on a landmark of another
    assert env.step(jax.random.key(0), state, jnp.zeros(3, jnp.int32))[2].tolist() == [-1, -1, -1]
    state = state._replace(agents=state.landmarks[jnp.array([2, 1, 1])])  # two of three on their own
    np.testing.assert_allclose(env.step(jax.random.key(0), state, jnp.zeros(3, jnp.int32))[2], -1 / 3, atol=1e-6)
    with pytest.raises(UsageError, match="owner must be a whole number from 0 to 2"):
        make("hierarchy/goal_assignment:n=3,owner=3")


def test_settings_are_checked():
    with pytest.raises(UsageError, match="whole number from 2 to 100"):
        make("hierarchy/goal_assignment:size=1")
    with pytest.raises(UsageError, match="more than 4 cells"):
        make("hierarchy/goal_assignment:size=2,n=5")
