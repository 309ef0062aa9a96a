"""Level-based foraging against lbforaging: every step, what players see, and how episodes begin."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lbforaging.foraging.environment import ForagingEnv
from scipy.stats import chi2_contingency

from flockrl.core.errors import UsageError
from flockrl.envs import check, make
from flockrl.envs.foraging.rules import EAST, LOAD, NONE, NORTH, SOUTH, WEST, Harvest
from flockrl.envs.registry import environments
from flockrl.training.scripted import Scripted

KEY = jax.random.key(0)
NAMED = [name for name in environments("foraging") if name != "field"]
FIELDS = [
    "field:size=5,players=5,food=4", "field:size=6,players=3,food=2,coop=true,sight=1,penalty=0.1",
    "field:size=7,players=4,food=3,sight=3,normalize=false,max_player_level=3,max_food_level=5,min_food_level=2",
]  # fmt: skip


def theirs(env):
    """The environment of lbforaging with the same rules."""
    rules = env.rules
    return ForagingEnv(
        players=rules.players, min_player_level=rules.min_player_level, max_player_level=rules.max_player_level,
        min_food_level=rules.min_food_level, max_food_level=rules.max_food_level, field_size=(env.size,) * 2,
        max_num_food=rules.food, sight=env.sight, max_episode_steps=rules.max_steps, force_coop=rules.coop,
        normalize_reward=rules.normalize, penalty=rules.penalty,
    )  # fmt: skip


def begun(host):
    """[K, 2] the cells of food at the beginning of an episode, in their order."""
    return np.argwhere(host.field)


def read(host, cells, food):
    """The state of lbforaging's environment as one of ours, in numpy. cells: of food at the beginning; food: how many
    there may be at most."""
    worth, rest = host.field[tuple(cells.T)], food - len(cells)
    return Harvest(
        np.int32(host.current_step), np.array([p.position for p in host.players], np.int32),
        np.array([p.level for p in host.players], np.int32), np.pad(cells, ((0, rest), (0, 0))).astype(np.int32),
        np.pad(worth, (0, rest)).astype(np.int32), np.int32(host._food_spawned),
    )  # fmt: skip


NEAR = np.array([[-1, 0], [1, 0], [0, -1], [0, 1], [1, 1], [-1, 1]])


def crowd(host, rng):
    """Put all players near the same food, also on cells that they share."""
    food = np.argwhere(host.field)
    near = (food[rng.integers(len(food))] + NEAR).tolist()
    for player in host.players:
        player.position = tuple(near[rng.integers(len(near))])
    host._gen_valid_moves()


def played(env, steps, seed=0):
    """Transitions of lbforaging's environment, [K, ...] each: states before, legal actions, actions, states after, what
    is seen, rewards, whether it is over. Now and then all players are put near one food, and LOAD is chosen often."""
    host, rng, rows, over = theirs(env), np.random.default_rng(seed), [], True
    while len(rows) < steps:
        if over:
            host.reset(seed=int(rng.integers(2**31)))
            cells = begun(host)
        if rng.random() < 0.15 and host.field.any():
            crowd(host, rng)
        before = read(host, cells, env.rules.food)
        able = [[choice.value for choice in host._valid_actions[player]] for player in host.players]
        legal = np.array([np.isin(np.arange(6), choices) for choices in able])
        action = np.where(rng.random(env.n) < 0.4, LOAD, rng.integers(0, 6, env.n)).astype(np.int32)
        seen, reward, over, *_ = host.step(action.tolist())
        after = read(host, cells, env.rules.food)
        rows.append((before, legal, action, after, np.stack(seen), np.float32(reward), np.bool_(over)))
    return jax.tree.map(lambda *x: np.stack(x), *rows)


@pytest.mark.parametrize("name", NAMED + FIELDS)
def test_a_step_is_that_of_lbforaging(name):
    env = make(f"foraging/{name}{',' if ':' in name else ':'}masks=true")
    before, legal, action, after, seen, reward, over = played(env, 700)
    ours, observation, paid, terminated, truncated = jax.jit(jax.vmap(lambda s, a: env.step(KEY, s, a)))(before, action)
    for now, then in zip(ours, after, strict=True):
        np.testing.assert_array_equal(now, then)
    np.testing.assert_array_equal(observation.obs, seen)
    np.testing.assert_allclose(paid, reward, rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(terminated | truncated, over)
    assert not (terminated & truncated).any()
    np.testing.assert_array_equal(terminated, (after.worth == 0).all(-1))
    masks = jax.jit(jax.vmap(lambda state: env._observe(state).avail))(before)
    np.testing.assert_array_equal(masks, legal)
    # All of it came up: food that was loaded and food that was not, blocked moves, shared cells.
    taken = (after.worth != before.worth).any(-1)
    tried = ((action == LOAD) & legal[:, :, LOAD]).any(-1)
    moves = (action > NONE) & (action < LOAD) & np.take_along_axis(legal, action[..., None], -1)[..., 0]
    stuck = moves & (after.players == before.players).all(-1)
    shared = (after.players[:, 0] == after.players[:, 1]).all(-1)
    assert min(taken.sum(), (tried & ~taken).sum(), stuck.sum(), shared.sum()) >= 5


def test_a_team_of_lbforaging_looks_the_same():
    for ours, name in (
        ("8x8-2p-2f-coop", "Foraging-8x8-2p-2f-coop-v3"),
        ("2s-10x10-3p-3f", "Foraging-2s-10x10-3p-3f-v3"),
    ):
        mine, host = make(f"foraging/{ours}").spec, make(f"lbf/{name}").spec
        for part in ("agents", "observations", "actions", "max_steps", "sides", "state_size"):
            assert getattr(mine, part) == getattr(host, part)


# --- how episodes begin


def beginnings(env, count):
    """First states of lbforaging, [count, ...] each; every one as in a new environment, in which nobody stands yet."""
    host, rows = theirs(env), []
    for seed in range(count):
        for player in host.players:
            player.position = None
        host.reset(seed=seed)
        rows.append(read(host, begun(host), env.rules.food))
    return jax.tree.map(lambda *x: np.stack(x), *rows)


def tell_apart(some, others):
    """The p-value of two samples of whole numbers coming from one distribution; rare numbers are put together."""
    some, others = (np.asarray(x).reshape(-1) for x in (some, others))
    numbers, where = np.unique(np.concatenate([some, others]), return_inverse=True)
    counts = np.stack([np.bincount(where[: len(some)], minlength=len(numbers)),
                       np.bincount(where[len(some) :], minlength=len(numbers))])  # fmt: skip
    rare = counts.sum(0) < 40
    counts = np.concatenate([counts[:, ~rare], counts[:, rare].sum(1, keepdims=True)], 1)
    counts = counts[:, counts.sum(0) > 0]
    return chi2_contingency(counts).pvalue if counts.shape[1] > 1 else 1.0


def figures(state, size):
    """What beginnings are compared by, each [K]."""
    food, players = state.food, state.players
    there = state.worth > 0
    number = np.where(there, food[..., 0] * size + food[..., 1], -1)
    apart = np.abs(food[:, 0] - food[:, -1])
    alone = np.abs(players[:, 0] - food[:, 0]).sum(-1)
    return {
        "food": number[:, 0], "last food": number[:, -1], "how many": there.sum(-1),
        "between food": np.where(there[:, -1], apart[:, 0] * size + apart[:, 1], -1),
        "first player": players[:, 0] @ [size, 1], "last player": players[:, -1] @ [size, 1],
        "between players": np.abs(players[:, 0] - players[:, -1]) @ [size, 1], "to food": alone,
        "levels": state.levels @ 3 ** np.arange(state.levels.shape[1]),
        "worth": state.worth[:, 0] * 10 + state.worth[:, -1],
        "worth by levels": state.spawned * 20 + state.levels.sum(-1),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "count"),
    [("8x8-2p-2f", 3000), ("8x8-2p-2f-coop", 2000), ("10x10-3p-3f", 2000), ("field:size=5,players=3", 1500)],
)
def test_episodes_begin_as_those_of_lbforaging(name, count):
    env = make(f"foraging/{name}")
    ours = jax.device_get(jax.jit(jax.vmap(lambda key: env.reset(key)[0]))(jax.random.split(KEY, 10 * count)))
    mine, other = figures(ours, env.size), figures(beginnings(env, count), env.size)
    unlikely = {what: p for what in mine if (p := tell_apart(mine[what], other[what])) < 1e-3}
    assert not unlikely


def test_the_comparison_notices_food_that_is_spread_otherwise():
    """Food that may lie closer together, as in a first version of any such field."""
    env = make("foraging/8x8-2p-2f")
    other, rng = figures(beginnings(env, 1000), 8), np.random.default_rng(0)
    food = rng.integers(1, 7, (10_000, 2, 2))
    food = food[(np.abs(food[:, 0] - food[:, 1]).sum(-1) > 1)]
    apart = np.abs(food[:, 0] - food[:, 1])
    assert tell_apart(apart[:, 0] * 8 + apart[:, 1], other["between food"]) < 1e-6


# --- rules, one by one


def at(players, levels, food, worth, t=0):
    arrays = [jnp.array(x, jnp.int32) for x in (players, levels, food, worth)]
    return Harvest(jnp.int32(t), *arrays, arrays[-1].sum())


def test_food_is_loaded_together_and_shared_by_levels():
    env = make("foraging/field:players=3,food=2,penalty=0.1")
    state = at([[2, 3], [3, 2], [6, 5]], [1, 2, 1], [[3, 3], [5, 5]], [3, 2])
    state, _, reward, over, _ = jax.jit(env.step)(KEY, state, jnp.array([LOAD, LOAD, LOAD]))
    np.testing.assert_allclose(reward, [3 / 5 / 3, 3 / 5 * 2 / 3, -0.1], rtol=1e-6)
    assert state.worth.tolist() == [0, 2]
    assert not over
    assert float(env.measures(state)["collected"]) == pytest.approx(0.6)


def test_who_wants_the_same_cell_stays_and_others_may_enter_theirs():
    env = make("foraging/field:players=3,food=1")
    state = at([[0, 0], [0, 2], [1, 2]], [1, 1, 1], [[5, 5]], [1])
    step = jax.jit(env.step)
    moved = step(KEY, state, jnp.array([EAST, WEST, NORTH]))[0].players
    assert moved.tolist() == [[0, 0], [0, 2], [0, 2]]  # as in lbforaging: two on one cell
    swapped = step(KEY, state, jnp.array([NONE, SOUTH, NORTH]))[0].players
    assert swapped.tolist() == [[0, 0], [1, 2], [0, 2]]


def test_the_end_of_time_truncates_and_the_end_of_food_terminates():
    env = make("foraging/8x8-2p-2f:max_steps=7")
    state = at([[2, 3], [3, 2]], [1, 1], [[3, 3], [0, 0]], [2, 0], t=6)
    step = jax.jit(env.step)
    for action, ends in (([NONE, NONE], [False, True]), ([LOAD, LOAD], [True, False])):
        assert [bool(flag) for flag in step(KEY, state, jnp.array(action))[3:]] == ends


def test_masks_are_offered_where_they_are_wanted():
    state = at([[0, 0], [3, 2]], [1, 1], [[3, 3], [0, 0]], [1, 0])
    env = make("foraging/8x8-2p-2f:masks=true")
    assert env._observe(state).avail.tolist() == [
        [True, False, True, False, True, False], [True, True, True, True, False, True]
    ]  # fmt: skip
    assert make("foraging/8x8-2p-2f")._observe(state).avail is None


# --- policies, settings, pictures


@pytest.mark.parametrize("name", ["8x8-2p-2f-coop", "10x10-3p-3f", "field:size=6,players=5,food=2,coop=true"])
def test_a_team_that_goes_together_collects_everything(name):
    together = Scripted("together", f"foraging/{name}").evaluate(200)
    assert together.measures["collected"].min() == 1
    assert together.returns.sum(1) == pytest.approx(np.ones(200), abs=1e-5)


def test_nobody_loads_food_of_the_whole_team_alone():
    assert Scripted("greedy_alone", "foraging/8x8-2p-2f-coop").evaluate(100).mean == 0
    alone = Scripted("greedy_alone", "foraging/8x8-2p-2f").evaluate(200).measures["collected"].mean()
    assert 0.4 < alone < 0.55


def test_the_best_return_is_known_where_all_food_can_be_loaded():
    found = [
        getattr(make(f"foraging/field:players=5,{more}"), "best", None)
        for more in ("coop=true", "max_food_level=4", "max_food_level=5", "normalize=false")
    ]
    assert found == [0.2, 0.2, None, None]


@pytest.mark.parametrize("name", FIELDS)
def test_other_fields_keep_the_contract(name):
    check(make(f"foraging/{name}"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("field:size=4", "size must be a whole number from 5 to 28"),
        ("field:players=0", "players must be a whole number from 1 to 20"),
        ("field:sight=9", "sight must be a whole number from 1 to 8"),
        ("field:min_player_level=3", "max_player_level must be a whole number from 3"),
        ("field:min_food_level=3", "min_food_level must be a whole number from 1 to 2"),
        ("field:min_food_level=5,max_food_level=4", "max_food_level must be a whole number from 5"),
        ("8x8-2p-2f:penalty=-1", "foraging/8x8-2p-2f: penalty must be"),
        ("8x8-2p-2f:size=9", "has no setting 'size'"),
        ("Foraging-8x8-2p-2f-coop-v3", "Did you mean '8x8-2p-2f-coop'.*foraging/field.*lbf/ID"),
    ],
)
def test_wrong_settings_are_named(name, words):
    with pytest.raises(UsageError, match=words):
        make(f"foraging/{name}")


@pytest.mark.parametrize("name", ["lbforaging/Foraging-8x8-2p-2f-v3", "Foraging-8x8-2p-2f-v3"])
def test_people_who_know_the_package_find_both(name):
    with pytest.raises(UsageError, match=r"Did you mean 'lbf/Foraging-8x8-2p-2f-v3'.*Compiled tasks .* in foraging/"):
        make(name)


def test_pictures_show_each_step():
    env = make("foraging/8x8-2p-2f-coop")
    state = at([[2, 3], [3, 2]], [1, 2], [[3, 3], [5, 5]], [3, 3])
    states, step = [state], jax.jit(env.step)
    for action in ([NORTH, NONE], [SOUTH, NONE], [LOAD, LOAD]):
        states.append(step(KEY, states[-1], jnp.array(action))[0])
    frames = env.render(jax.device_get(states), 120)
    assert [f.shape for f in frames] == [(120, 120, 3)] * 4
    field = [frame[14:] for frame in frames]  # under the line that counts steps
    assert (field[0] != field[1]).any()
    assert (field[0] == field[2]).all()
    assert (field[2] != field[3]).any()
