"""hierarchy/rooms: rules by hand, the fewest steps by a plain search of its own, the policies that come with it."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flockrl.core.errors import UsageError
from flockrl.envs import check, make
from flockrl.envs.hierarchy.rooms import FAR, Rooms
from flockrl.training.scripted import Scripted

STAY, UP, RIGHT, DOWN, LEFT = range(5)
WAYS = {STAY: (0, 0), UP: (-1, 0), RIGHT: (0, 1), DOWN: (1, 0), LEFT: (0, -1)}


class Plain:
    """The rules as a person would write them down: places are (row, column), a key is a word."""

    def __init__(self, env):
        self.size, self.rooms, self.n = env.size, env.rooms, env.n
        self.keys = [tuple(env.places[cell]) for cell in env.key_cells]

    def wall(self, row, column):
        outside = not (0 <= row < self.size and 0 <= column < self.rooms * (self.size + 1) - 1)
        return outside or (column % (self.size + 1) == self.size and row != self.size // 2)

    def door(self, column):
        return column // (self.size + 1) if column % (self.size + 1) == self.size else None

    def step(self, agents, keys, moves):
        after, held = [], list(keys)
        for i, (place, move) in enumerate(zip(agents, moves, strict=True)):
            row, column = place[0] + WAYS[move][0], place[1] + WAYS[move][1]
            door = None if self.wall(row, column) else self.door(column)
            shut = door is not None and keys[door] != "used" and keys[door] != i
            after.append(place if self.wall(row, column) or shut else (row, column))
        for i, (_, column) in enumerate(after):
            door = self.door(column)
            if door is not None and keys[door] == i:
                held[door] = "used"
        for k, cell in enumerate(self.keys):
            takers = [i for i, place in enumerate(after) if place == cell]
            if keys[k] == "lies" and takers:
                held[k] = takers[0]
        return tuple(after), tuple(held)

    def fewest(self, agents):
        """Steps to the end, by a search forwards over joint moves."""
        now, seen, steps = {(agents, ("lies",) * len(self.keys))}, set(), 0
        while now:
            if any(all(column >= (self.rooms - 1) * (self.size + 1) for _, column in places) for places, _ in now):
                return steps
            seen |= now
            moves = list(itertools.product(range(5), repeat=self.n))
            now = {self.step(*state, move) for state in now for move in moves} - seen
            steps += 1
        raise AssertionError("no way")


@pytest.mark.parametrize(
    "settings",
    [{"n": 1, "rooms": 2}, {"n": 1, "size": 3}, {"rooms": 2, "size": 2, "layout": 1}, {"size": 2, "layout": 2}],
)
def test_the_fewest_steps_are_those_of_a_plain_search(settings):
    env = Rooms(**settings)
    plain, none = Plain(env), np.zeros(env.doors, int)
    for cells in list(itertools.product(env.start, repeat=env.n))[:6]:
        agents = tuple(tuple(env.places[cell].tolist()) for cell in cells)
        assert env.distance[env.index(np.array(cells), none, np)] == plain.fewest(agents)


def test_steps_are_those_of_the_plain_rules():
    env = Rooms(n=3, rooms=2, size=3, layout=5, steps=80)
    plain, rng, step = Plain(env), np.random.default_rng(0), jax.jit(env.step)
    state, _ = env.reset(jax.random.key(1))
    agents, keys = tuple(tuple(env.places[cell].tolist()) for cell in np.asarray(state.cells)), ("lies",)
    words = {0: "lies", env.n + 1: "used"}
    met = set()
    for _ in range(80):
        moves = rng.integers(0, 5, 3)
        state, *_ = step(jax.random.key(0), state, jnp.asarray(moves))
        agents, keys = plain.step(agents, keys, moves.tolist())
        assert [tuple(env.places[cell].tolist()) for cell in np.asarray(state.cells)] == list(agents)
        assert tuple(words.get(int(code), int(code) - 1) for code in state.keys) == keys
        met |= set(keys)
    assert "used" in met


def test_a_door_opens_for_its_key_and_then_for_everyone():
    env = Rooms(n=2, rooms=2, size=2)
    state, _ = env.reset(jax.random.key(0))
    number = {tuple(place): i for i, place in enumerate(env.places.tolist())}
    before = jnp.array([number[1, 1], number[1, 1]])
    state = state._replace(cells=before, keys=jnp.array([2]))  # agent 1 carries the key, both stand at the door
    state, *_ = env.step(jax.random.key(0), state, jnp.array([RIGHT, RIGHT]))
    assert state.cells.tolist() == [number[1, 1], number[1, 2]]
    assert state.keys.tolist() == [3]
    state, _, reward, done, _ = env.step(jax.random.key(0), state, jnp.array([RIGHT, RIGHT]))
    assert state.cells.tolist() == [number[1, 2], number[1, 3]]
    assert not done
    state, _, reward, done, _ = env.step(jax.random.key(0), state, jnp.array([RIGHT, UP]))
    assert done
    assert reward.tolist() == [-1, -1]


def test_what_agents_see():
    env = Rooms(n=2, rooms=2, size=2)
    state, _ = env.reset(jax.random.key(0))
    number = {tuple(place): i for i, place in enumerate(env.places.tolist())}
    state = state._replace(cells=jnp.array([number[0, 0], number[1, 1]]), keys=jnp.array([2]))
    first, second = env._observe(state).obs.reshape(2, -1).tolist()
    # own; offsets of key (agent 1 has it), door, exit; kind, done, mine of each; the other agent
    facts = [1, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0]
    assert first == [0, 0, 0.5, 0.5, 0.5, 1, 0.5, 2, *facts, 0.5, 0.5]
    assert second[2:4] == [0, 0]
    assert second[8:13] == [1, 0, 0, 1, 1]


def test_the_best_policy_earns_the_optimum_and_the_other_less():
    best, other = (Scripted(name, "hierarchy/rooms").evaluate(episodes=40) for name in ("best", "together"))
    np.testing.assert_array_equal(best.returns.mean(1), best.measures["optimum"])
    assert (best.measures["success"] == 1).all()
    assert (other.measures["success"] == 1).all()
    assert other.mean < best.mean - 2
    env = make("hierarchy/rooms")
    assert (env.distance[env.index(np.full((1, 2), env.start[0]), np.zeros((1, 2), int), np)] < FAR).all()


def test_it_conforms_and_is_drawn():
    env = make("hierarchy/rooms:n=3,rooms=2,size=3")
    check(env)
    state, _ = env.reset(jax.random.key(0))
    carried = state._replace(keys=jnp.array([1]))
    pictures = env.render([state, carried], 60)
    assert pictures[0].shape == (60, 60, 3)
    assert (pictures[0] != pictures[1]).any()


def test_settings_are_checked():
    with pytest.raises(UsageError, match="too many to search"):
        make("hierarchy/rooms:n=4,rooms=4")
    with pytest.raises(UsageError, match="whole number from 2 to 6"):
        make("hierarchy/rooms:rooms=1")
