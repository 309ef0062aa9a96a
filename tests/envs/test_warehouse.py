"""The warehouse against rware 2.0: the same floor, actions and draws give the same step."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rware.warehouse
from rware.warehouse import Direction

from flockrl.core.errors import UsageError
from flockrl.envs import check, make
from flockrl.envs.warehouse.layout import FORWARD, NONE, STAY, TOGGLE, TURN_LEFT, TURN_RIGHT
from flockrl.envs.warehouse.moves import moving
from flockrl.envs.warehouse.warehouse import Floor
from flockrl.training.scripted import Scripted

KEY = jax.random.key(0)
CASES = [
    ("tiny", "rware-tiny-2ag-v2"),
    ("tiny:agents=4", "rware-tiny-4ag-v2"),
    ("tiny:agents=19", "rware-tiny-19ag-v2"),
    ("small:agents=9,difficulty=hard", "rware-small-9ag-hard-v2"),
    ("medium:agents=3,difficulty=easy", "rware-medium-3ag-easy-v2"),
    ("large:agents=8", "rware-large-8ag-v2"),
]


class Draws:
    """In the place of rware's random numbers. luck: one number from 0 to 1 for each goal, in their order."""

    def __init__(self, other, luck):
        self.other, self.luck, self.done = other, luck, set()

    def choice(self, shelves):
        """Goals are asked in their order; those where no requested shelf is are passed over."""
        wanted = {(s.x, s.y) for s in self.other.request_queue}
        goal = min(k for k, spot in enumerate(self.other.goals) if spot in wanted and k not in self.done)
        self.done |= set(range(goal + 1))
        return shelves[int(self.luck[goal] * len(shelves))]


def lowest_first(graph):
    """A longest queue in a graph of cells without circles. Networkx takes one of equally long ones by the order of a
    Python set; the warehouse takes that of the robot with the lowest number, and so does this."""
    number = {a.x + 1j * a.y: a.id for a in lowest_first.robots}

    def queue(cell):
        behind = sorted(graph.predecessors(cell), key=lambda c: number[c[0] + 1j * c[1]])
        return [*max((queue(c) for c in behind), key=len, default=[]), cell]

    (end,) = [cell for cell in graph if not graph.out_degree(cell)]
    return queue(end)


def read(other, t=0):
    """rware's state as a `Floor`."""
    width = other.grid_size[1]
    cell = {s.id - 1: s.y * width + s.x for s in other.shelfs}
    carried = [a.carrying_shelf.id - 1 if a.carrying_shelf else NONE for a in other.agents]
    at = {c: s for s, c in cell.items() if s not in carried}
    places = [y * width + x for y, x in np.argwhere(other.highways == 0)]
    return {
        "cell": [a.y * width + a.x for a in other.agents],
        "way": [a.dir.value for a in other.agents],
        "carried": carried,
        "standing": [at.get(c, NONE) for c in places],
        "requested": [s.id - 1 for s in other.request_queue],
    }


def floor(env, other):
    given = {k: jnp.array(v, jnp.int32) for k, v in read(other).items()}
    return Floor(t=jnp.int32(0), delivered=jnp.zeros(env.n, jnp.int32), **given)


def shuffle(other, rng):
    """A random state that play can lead to: shelves at other places, some on robots, robots anywhere, often crowded."""
    rows, columns = other.grid_size
    places = [(x, y) for y, x in np.argwhere(other.highways == 0)]
    for shelf, k in zip(other.shelfs, rng.permutation(len(places)), strict=True):
        shelf.x, shelf.y = places[k]
    crowd = rng.random() < 0.7
    near = (rows - 1, columns // 2) if rng.random() < 0.5 else (rng.integers(rows), rng.integers(columns))
    cells = [(x, y) for y in range(rows) for x in range(columns)]
    if crowd:
        cells.sort(key=lambda c: abs(c[0] - near[1]) + abs(c[1] - near[0]) + rng.random())
        cells = cells[: 2 * len(other.agents)]
    rng.shuffle(cells)
    standing = {(s.x, s.y): s for s in other.shelfs}
    loads = [s for s in rng.permutation(other.shelfs) if (s.x, s.y) not in cells]
    for agent, (x, y) in zip(other.agents, cells, strict=False):
        agent.x, agent.y, agent.dir, agent.carrying_shelf = x, y, Direction(rng.integers(4)), None
        if rng.random() < 0.5 and (loads or (x, y) in standing):
            shelf = standing.get((x, y)) or loads.pop()
            shelf.x, shelf.y, agent.carrying_shelf = x, y, shelf
    other.request_queue = list(rng.choice(other.shelfs, len(other.request_queue), replace=False))
    for agent in other.agents:  # so that there is something to deliver
        if agent.carrying_shelf and rng.random() < 0.5 and agent.carrying_shelf not in other.request_queue:
            other.request_queue[rng.integers(len(other.request_queue))] = agent.carrying_shelf
    other._recalc_grid()


@pytest.mark.parametrize(("name", "id_"), CASES)
def test_a_step_is_that_of_rware(name, id_, monkeypatch):
    env, other, rng = make(f"warehouse/{name}"), gymnasium.make(id_).unwrapped, np.random.default_rng(1)
    if env.n > 2:  # of two robots that want one cell, networkx lets the first go by itself
        monkeypatch.setattr(rware.warehouse.nx.algorithms, "dag_longest_path", lowest_first)
    other.reset(seed=0)
    lowest_first.robots = other.agents
    advance, observe = jax.jit(env.advance), jax.jit(lambda state: env.observe(state).obs)
    earned, contests = 0, 0
    for round_ in range(120 if env.n < 5 else 50):
        shuffle(other, rng)
        for _ in range(6):
            action = rng.choice(5, env.n, p=[0.05, 0.65, 0.1, 0.1, 0.1])
            luck = rng.random(2, np.float32)
            before = floor(env, other)
            state, reward = advance(before, action, luck)
            other._np_random = Draws(other, luck)
            seen, paid, over, cut, _ = other.step(action.tolist())
            for key, value in read(other).items():
                assert getattr(state, key).tolist() == value, (key, round_)
            assert reward.tolist() == list(paid)
            assert np.array_equal(observe(state), np.stack(seen))
            earned += sum(paid)
            contests += int(((action == FORWARD) & (state.cell == before.cell)).sum())
            assert not cut
            assert over == (other._cur_steps >= 500)
    assert earned > 0
    assert contests > 50


def test_the_layouts_are_those_of_rware():
    for size in ("tiny", "small", "medium", "large"):
        layout, other = make(f"warehouse/{size}").layout, gymnasium.make(f"rware-{size}-2ag-v2").unwrapped
        assert (layout.rows, layout.columns) == other.grid_size
        assert (layout.road.reshape(other.grid_size) == other.highways).all()
        assert [(g % layout.columns, g // layout.columns) for g in layout.goals] == other.goals


def test_two_goals_are_served_in_turn():
    """What is drawn at the first goal may be what stands on the second, which is then delivered at once."""
    env = make("warehouse/tiny:difficulty=hard")
    left, right = env.layout.goals.tolist()
    standing = jnp.arange(32).at[jnp.array([4, 9])].set(NONE)
    robots = jnp.array([left, right]), jnp.zeros(2, jnp.int32), jnp.array([4, 9])
    state = Floor(jnp.int32(0), *robots, jnp.zeros(2, jnp.int32), standing, jnp.array([4]))
    stay = jnp.array([STAY, STAY])
    advance = jax.jit(env.advance)
    after, reward = advance(state, stay, jnp.array([8.5, 0.0]) / 31)  # 9 is number 8 of those without 4
    assert reward.tolist() == [1, 1]
    assert after.requested.tolist() == [0]
    assert after.delivered.tolist() == [1, 1]
    after, reward = advance(state, stay, jnp.array([9.5, 0.0]) / 31)
    assert (reward.tolist(), after.requested.tolist()) == ([1, 0], [10])


@pytest.mark.parametrize(
    ("cell", "target", "goes"),
    [
        ([0, 1], [1, 2], [True, True]),  # a queue moves on
        ([0, 1], [1, 1], [False, False]),  # one that stays is waited for
        ([0, 1], [1, 0], [False, False]),  # nobody changes places
        ([0, 1, 2], [1, 2, 0], [True, True, True]),  # a circle turns
        ([0, 1, 2, 3], [1, 2, 0, 0], [True, True, True, False]),  # and whoever queues for it waits
        ([0, 2], [1, 1], [True, False]),  # of two the first
        ([0, 2, 3], [1, 1, 2], [False, True, True]),  # but rather the longer queue
    ],
)
def test_who_moves(cell, target, goes):
    assert moving(jnp.array(cell), jnp.array(target)).tolist() == goes


def test_episodes_begin_at_random_and_are_cut():
    env = make("warehouse/tiny:max_steps=3")
    states, seen = jax.jit(jax.vmap(env.reset))(jax.random.split(KEY, 500))
    assert len(set(states.cell.reshape(-1).tolist())) == 110
    assert (states.cell[:, 0] != states.cell[:, 1]).all()
    assert (states.requested[:, 0] != states.requested[:, 1]).all()
    assert set(states.way.reshape(-1).tolist()) == {0, 1, 2, 3}
    assert seen.obs.shape == (500, 2, 71)
    state = jax.tree.map(lambda x: x[0], states)
    cuts, step = [], jax.jit(env.step)
    for _ in range(3):
        state, _, _, terminated, truncated = step(KEY, state, jnp.array([TURN_LEFT, TURN_RIGHT]))
        cuts.append((bool(terminated), bool(truncated)))
    assert cuts == [(False, False), (False, False), (False, True)]


def test_new_requests_are_drawn_evenly():
    env = make("warehouse/tiny")
    goal = int(env.layout.goals[0])
    state = env.reset(KEY)[0]._replace(
        cell=jnp.array([goal, 0]), carried=jnp.array([3, NONE]), standing=jnp.arange(32).at[3].set(NONE),
        requested=jnp.array([20, 3]),
    )  # fmt: skip
    draw = jax.jit(jax.vmap(lambda key: env.step(key, state, jnp.array([STAY, STAY]))[0].requested))
    requested = np.asarray(draw(jax.random.split(KEY, 6000)))
    assert (requested[:, 0] == 20).all()
    many = np.bincount(requested[:, 1], minlength=32)
    assert many[[3, 20]].tolist() == [0, 0]
    rest = np.delete(many, [3, 20])
    assert rest.min() > 140  # 200 each
    assert rest.max() < 260


def test_variants_keep_the_contract():
    for name in ("small:agents=5,difficulty=hard,sight=2", "tiny:agents=1,height=1", "large:agents=3,max_steps=40"):
        check(make(f"warehouse/{name}"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tiny:agents=0", "agents must be a whole number from 1 to 19"),
        ("tiny:difficulty=medium", "there is no difficulty=medium"),
        ("tiny:agents=1,difficulty=hard", "make 0 requests, and with 32 shelves there must be 1 to 31"),
        ("tiny:agents=16,difficulty=easy", "make 32 requests"),
        ("small:sight=0", "sight must be a whole number from 1 to 5"),
        ("rware-tiny-2ag-v2", "Did you mean 'rware/rware-tiny-2ag-v2'"),
        ("tny", "Did you mean 'tiny'"),
    ],
)
def test_wrong_names_and_settings_are_told(name, words):
    with pytest.raises(UsageError, match=words):
        make(f"warehouse/{name}")


def test_other_names_lead_to_both():
    with pytest.raises(UsageError, match="Did you mean 'warehouse/tiny' or 'rware/rware-tiny-2ag-v2'"):
        make("robotic_warehouse/rware-tiny-2ag-v2")


def test_the_planned_robots_deliver():
    """An episode of 500 steps has 32 deliveries; 200 steps from anywhere have at least 8."""
    result = Scripted("planned", "warehouse/tiny:max_steps=200").evaluate(4)
    assert result.measures["deliveries"].min() >= 8
    assert result.mean == pytest.approx(result.measures["deliveries"].mean() / 2)
    assert Scripted("still", "warehouse/tiny:max_steps=20").evaluate(4).mean == 0


def test_planning_takes_a_place_for_each_robot():
    """Of four shelves, four robots can have one each to bring back, and five cannot."""
    four, five = (f"warehouse/tiny:agents={n},height=1,difficulty=hard,max_steps=60" for n in (4, 5))
    assert Scripted("planned", four).evaluate(2).measures["deliveries"].min() > 0
    with pytest.raises(UsageError, match="no policy 'planned'"):
        Scripted("planned", five)


def test_pictures_show_each_step():
    env = make("warehouse/tiny")
    state, states, step = jax.jit(env.reset)(KEY)[0], [], jax.jit(env.step)
    for action in (TURN_LEFT, FORWARD, TOGGLE):
        states.append(jax.device_get(state))
        state = step(KEY, state, jnp.full(2, action))[0]
    frames = env.render(states, 120)
    assert [f.shape for f in frames] == [(120, 120, 3)] * 3
    assert (frames[0] != frames[1]).any()
