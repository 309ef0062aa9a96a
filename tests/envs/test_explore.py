"""The exploration environments: their rules, worked out by hand and by a second, plain implementation of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flockrl.core.errors import UsageError
from flockrl.envs import check, make
from flockrl.envs.explore.grid import DOWN, LEFT, RIGHT, UP, Place
from flockrl.training.scripted import Scripted

KEY = jax.random.key(0)
WAYS = {UP: (0, -1), DOWN: (0, 1), LEFT: (-1, 0), RIGHT: (1, 0)}


class PlainRooms:
    """Walls as a set of cells, one agent after the other."""

    def __init__(self, size, begin, shut, doors, switches, near):
        self.size, self.agents, self.walls, self.doors = size, [list(a) for a in begin], shut, doors
        self.switches, self.near, self.open = switches, near, set()

    def step(self, action):
        free = {cell for door in self.open for cell in self.doors[door]}
        for agent, a in zip(self.agents, action, strict=True):
            x, y = agent[0] + WAYS[a][0], agent[1] + WAYS[a][1]
            if 0 <= x < self.size and 0 <= y < self.size and ((x, y) not in self.walls or (x, y) in free):
                agent[:] = x, y
        self.open = set()
        for (x, y), opens in self.switches:
            if any((ax - x) ** 2 + (ay - y) ** 2 <= self.near**2 for ax, ay in self.agents):
                self.open = set(opens)
                break


def plain_pass():
    wall = {(15, y) for y in range(30)}
    door = [{(15, y) for y in range(12, 19)}]
    return PlainRooms(30, [(4, 4), (3, 3)], wall, door, [((3, 24), [0]), ((24, 3), [0])], 4.5)


def plain_secret():
    wall = {(12, y) for y in range(25)} | {(x, y) for x in range(12, 25) for y in (8, 16)}
    doors = [{(12, y + i) for i in (-1, 0, 1)} for y in (4, 12, 20)]
    switches = [((5, 20), [0, 1, 2]), ((20, 4), [0]), ((20, 12), [1]), ((20, 20), [2])]
    return PlainRooms(25, [(3, 3), (2, 2)], wall, doors, switches, 1.5)


THROUGH = {  # the first agent to the switch on the left, the second through a door
    "pass": [(DOWN, RIGHT)] * 10 + [(DOWN, DOWN)] * 10 + [(LEFT, RIGHT)] * 8,
    "secret_room": [(DOWN, DOWN)] * 10
    + [(DOWN, RIGHT)] * 7
    + [(RIGHT, RIGHT)] * 2
    + [(LEFT, RIGHT), (RIGHT, RIGHT)] * 3,
}


class PlainBox:
    def __init__(self):
        self.agents, self.box = [[11, 11], [9, 9]], [7, 7]

    def cells(self):
        return {(self.box[0] + i, self.box[1] + j) for i in (-1, 0, 1) for j in (-1, 0, 1)}

    def step(self, action):
        ahead = [(x + WAYS[a][0], y + WAYS[a][1]) for (x, y), a in zip(self.agents, action, strict=True)]
        if action[0] == action[1] and all(cell in self.cells() for cell in ahead):
            self.box = [self.box[i] + WAYS[action[0]][i] for i in (0, 1)]
        for agent, (x, y) in zip(self.agents, ahead, strict=True):
            if 0 <= x < 15 and 0 <= y < 15 and (x, y) not in self.cells():
                agent[:] = x, y


def moves(policy_bias, steps, seed):
    """Random moves that drift, so that agents get somewhere: each stretch has a favourite."""
    draw = np.random.default_rng(seed)
    for _ in range(steps // 10):
        favourite = draw.integers(0, 4, 2)
        for _ in range(10):
            own = draw.random(2) < policy_bias
            yield np.where(own, favourite, draw.integers(0, 4, 2))


@pytest.mark.parametrize(("name", "plain"), [("pass", plain_pass), ("secret_room", plain_secret)])
def test_rooms_move_like_the_plain_ones(name, plain):
    env = make(f"explore/{name}")
    step, passed, opened = jax.jit(env.step), 0, set()
    for seed in range(2):
        state, other = env.reset(KEY)[0], plain()
        assert state.agents.tolist() == other.agents
        there = [] if seed else [np.array(pair) for pair in THROUGH[name]]
        for action in (*there, *moves(0.7, 300, seed)):
            before = state.agents[:, 0]
            state, *_ = step(KEY, state, jnp.asarray(action))
            other.step(action.tolist())
            assert state.agents.tolist() == other.agents
            assert {i for i, is_open in enumerate(state.things.tolist()) if is_open} == other.open
            opened |= {frozenset(other.open)}
            passed += int(((before == env.size // 2) & (state.agents[:, 0] > before)).sum())
    assert passed > 0
    assert len(opened) > 1


def test_the_box_moves_like_the_plain_one():
    env = make("explore/push_box")
    step, pushed = jax.jit(env.step), 0
    for seed in range(4):
        state, other = env.reset(KEY)[0], PlainBox()
        assert (state.agents.tolist(), state.things.tolist()) == (other.agents, other.box)
        for action in moves(0.8, 400, seed):
            if 2 * (seed % 2):  # both on the left of the box, to see many pushes
                other.agents = [[other.box[0] - 2, other.box[1] + i] for i in (0, 1)]
                state = state._replace(agents=jnp.asarray(other.agents, jnp.int32))
            state, _, reward, terminated, _ = step(KEY, state, jnp.asarray(action))
            before = list(other.box)
            other.step(action.tolist())
            assert (state.agents.tolist(), state.things.tolist()) == (other.agents, other.box)
            pushed += before != other.box
            touches = min(other.box) == 1 or max(other.box) == 13
            assert (reward.tolist(), bool(terminated)) == ([float(touches)] * 2, touches)
            if touches:
                break
    assert pushed >= 6


def place(env, agents, things):
    return Place(jnp.int32(0), jnp.array(agents, jnp.int32), jnp.array(things, jnp.int32), jnp.bool_(False))


def walk(env, state, *actions):
    for action in actions:
        state, _, reward, terminated, truncated = env.step(KEY, state, jnp.array(action))
    return state, float(reward[0]), bool(terminated), bool(truncated)


def test_pass_by_hand():
    env = make("explore/pass")
    # At (4, 20) the switch (3, 24) is 4.12 away and held; at (4, 19) it is 5.1 away.
    state, *_ = walk(env, place(env, [[4, 18], [14, 12]], [0]), (DOWN, RIGHT))
    assert (state.things.tolist(), state.agents.tolist()) == ([0], [[4, 19], [14, 12]])
    state, *_ = walk(env, state, (DOWN, RIGHT))
    assert (state.things.tolist(), state.agents.tolist()) == ([1], [[4, 20], [14, 12]])  # the door opens after moves
    state, reward, *_ = walk(env, state, (DOWN, RIGHT), (DOWN, RIGHT))
    assert state.agents.tolist() == [[4, 22], [16, 12]]
    assert reward == 0
    state, reward, terminated, truncated = walk(env, place(env, [[15, 14], [20, 4]], [1]), (RIGHT, UP))
    assert (reward, terminated, truncated) == (1.0, True, False)
    # Whoever stands in the door when it shuts can leave it, but not along the wall.
    shut = place(env, [[15, 14], [8, 8]], [0])
    assert walk(env, shut, (DOWN, UP))[0].agents[0].tolist() == [15, 14]
    assert walk(env, shut, (RIGHT, UP))[0].agents[0].tolist() == [16, 14]


def test_the_secret_room_ends_behind_its_wall():
    env = make("explore/secret_room")
    for y, paid in ((7, 1.0), (9, 1.0), (10, 0.0)):
        assert walk(env, place(env, [[14, 3], [14, y]], [0, 0, 0]), (RIGHT, RIGHT))[1] == paid
    # Only the first switch that is held counts.
    both = walk(env, place(env, [[20, 11], [20, 19]], [0, 0, 0]), (DOWN, DOWN))[0]
    assert both.things.tolist() == [0, 1, 0]


def test_episodes_are_cut_after_their_steps():
    env = make("explore/push_box:steps=3")
    state = env.reset(KEY)[0]
    assert walk(env, state, (UP, DOWN), (UP, DOWN))[1:] == (0.0, False, False)
    assert walk(env, state, *[(UP, DOWN)] * 3)[1:] == (0.0, False, True)


def test_everyone_sees_itself_first():
    env = make("explore/secret_room")
    seen = env._observe(place(env, [[24, 12], [0, 6]], [0, 1, 0]))
    np.testing.assert_allclose(seen.obs, [[1, 0.5, 0, 0.25, 0, 1, 0], [0, 0.25, 1, 0.5, 0, 1, 0]])
    np.testing.assert_allclose(seen.state, seen.obs[0])


@pytest.mark.parametrize(("first", "paid"), [((0, 0), 13), ((1, 1), 10), ((0, 1), 0), ((1, 0), 0)])
def test_k_step_pays_by_branch(first, paid):
    env = make("explore/k_step")
    state, earned, over, steps = env.reset(KEY)[0], 0.0, False, 0
    while not over:
        last = int(state.t) == 9 and first == (0, 0)
        state, _, reward, over, _ = env.step(KEY, state, jnp.array((1, 1) if last else first))
        earned, steps = earned + float(reward[0]), steps + 1
    assert (earned, steps) == (paid, 10 if paid else 1)
    assert bool(env.measures(state)["success"]) == (paid == 13)


def test_k_step_ends_at_the_first_wrong_step():
    env = make("explore/k_step:k=4")
    state = env.reset(KEY)[0]
    for t, (action, paid, over) in enumerate([((0, 0), 1, False), ((0, 0), 1, False), ((0, 1), 0, True)]):
        state, seen, reward, terminated, truncated = env.step(KEY, state, jnp.array(action))
        assert (float(reward[1]), bool(terminated), bool(truncated)) == (paid, over, False)
        assert seen.obs[0].tolist() == np.concatenate([np.eye(5)[t + 1], np.eye(4)[0]]).tolist()
    four = make("explore/k_step:k=4,branches=4")
    assert float(four.step(KEY, four.reset(KEY)[0], jnp.array([0, 1]))[2][0]) == 1


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("push_box", 11),
        pytest.param("pass", 33, marks=pytest.mark.slow),
        pytest.param("secret_room", 37, marks=pytest.mark.slow),
    ],
)
def test_the_best_policy_takes_a_shortest_way(name, steps):
    result = Scripted("best", f"explore/{name}").evaluate(4)
    assert result.returns.tolist() == [[1.0, 1.0]] * 4
    assert result.measures["steps"].tolist() == [steps] * 4
    assert Scripted("corner", f"explore/{name}").evaluate(4).mean == 0


def test_the_policies_of_k_step():
    assert Scripted("best", "explore/k_step:k=7").evaluate(4).mean == 10
    assert Scripted("ones", "explore/k_step:k=7").evaluate(4).mean == 7


def test_other_sizes_keep_the_contract():
    for name in ("pass:size=10,steps=40", "secret_room:size=16", "push_box:size=11", "k_step:k=3,branches=4"):
        check(make(f"explore/{name}"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pass:size=9", "size must be a whole number from 10 to 60"),
        ("push_box:steps=0", "steps must be a whole number"),
        ("k_step:k=1", "k must be a whole number from 2 to 1,000"),
        ("k_step:branches=5", "branches must be a whole number from 2 to 4"),
    ],
)
def test_wrong_settings_are_named(name, words):
    with pytest.raises(UsageError, match=words):
        make(f"explore/{name}")


@pytest.mark.parametrize("name", ["pass:size=10", "secret_room:size=12", "push_box", "k_step"])
def test_pictures_show_each_step(name):
    env = make(f"explore/{name}")
    state, states = env.reset(KEY)[0], []
    for _ in range(3):
        states.append(jax.device_get(state))
        state = env.step(KEY, state, jnp.array([1, 1]))[0]
    frames = env.render(states, 120)
    assert [f.shape for f in frames] == [(120, 120, 3)] * 3
    assert (frames[0] != frames[1]).any()


def played(name, count, alike):
    """How many of these episodes of random moves succeed, and in how many somebody gets beyond the wall or moves the
    box. alike: both agents make the same move."""
    env = make(f"explore/{name}")
    begin = jax.vmap(lambda _: env.reset(KEY)[0])(jnp.arange(count))

    def step(carry, key):
        state, reached, done = carry
        action = jax.random.randint(key, (count, 1 if alike else 2), 0, 4) * jnp.ones((1, 2), jnp.int32)
        state = jax.vmap(lambda s, a: env.step(key, s, a)[0])(state, action)
        beyond = (state.agents[..., 0] > env.size // 2).any(1)
        moved = (state.things != begin.things).any(1)
        return (state, reached | (moved if name == "push_box" else beyond), done | state.success), None

    never = jnp.zeros(count, bool)
    run = jax.jit(lambda s, k: jax.lax.scan(step, (s, never, never), jax.random.split(k, 300)))
    (_, reached, done), _ = run(begin, jax.random.key(1))
    return int(done.sum()), float(reached.mean())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "share"), [("pass", 0.0094), ("secret_room", 0.0109), ("push_box", 0.015)])
def test_chance_finds_nothing(name, share):
    """20,000 random episodes: no success, and the first step towards it as rarely as was measured before."""
    successes, reached = played(name, 20_000, alike=False)
    assert successes == 0
    assert abs(reached - share) < 4 * np.sqrt(2 * share / 20_000)


@pytest.mark.slow
def test_agents_who_move_alike_find_the_wall_by_chance():
    """The box hides from agents who draw their moves apart, not from those who always agree."""
    successes, reached = played("push_box", 4_000, alike=True)
    assert 0.05 < successes / 4_000 < 0.1
    assert reached > 0.5
