"""The communication environments: their rules, worked out by hand."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flockrl.core.errors import UsageError
from flockrl.envs import check, make
from flockrl.envs.comm.predator_prey import DOWN, LEFT, RIGHT, STAY, UP, Hunt
from flockrl.envs.comm.routes import LEVELS, make_roads
from flockrl.envs.comm.switch_riddle import NOBODY
from flockrl.envs.comm.traffic_junction import BRAKE, GAS

KEY = jax.random.key(0)


def ints(*values):
    return jnp.array(values, jnp.int32)


@pytest.mark.parametrize(
    "name",
    [
        "levers:n=3,ids=7", "switch_riddle:n=4,bit=false", "traffic_junction:rate=0.9,vision=1,difficulty=medium",
        "traffic_junction:rate=1,compact=true,vision=1,one_hot=true,ahead=2",
        "predator_prey:size=10,mode=cooperative,compact=true",
    ],
)  # fmt: skip
def test_they_keep_the_contract(name):
    """With other settings than those that the test of all environments takes."""
    check(make(f"comm/{name}"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("signalling:n=1", "n must be a whole number from 2 to 100"),
        ("levers:n=0", "n must be a whole number from 2 to 100"),
        ("levers:ids=100000000", "ids must be a whole number from 1 to 10,000"),
        ("switch_riddle:n=2", "n must be a whole number from 3 to 20"),
        ("switch_riddle:n=4,places=3", "places must be a whole number from 4 to 20"),
        ("switch_riddle:penalty=-1", "penalty must be from 0 to 100"),
        ("traffic_junction:difficulty=hrad", "Did you mean hard"),
        ("traffic_junction:difficulty=3", "Choose from: easy, hard, medium"),
        ("traffic_junction:vision=2", "there is no vision=2"),
        ("traffic_junction:ahead=9", "ahead must be a whole number from 0 to 8"),
        ("traffic_junction:difficulty=[1]", "there is no difficulty=.1."),
        ("traffic_junction:rate=NaN", "rate must be a finite number from 0 to 1"),
        ("traffic_junction:rate=1.5", "rate must be from 0 to 1"),
        ("traffic_junction:rate=often", "rate must be a finite number from 0 to 1"),
        ("predator_prey:size=6", "there is no size=6"),
        ("predator_prey:mode=mxed", "Did you mean mixed"),
    ],
)
def test_wrong_settings_are_named(name, words):
    with pytest.raises(UsageError, match=words):
        make(f"comm/{name}")


# --- signalling


def test_signalling_pays_when_all_choose_the_bit():
    env = make("comm/signalling")
    bits = set()
    for seed in range(8):
        state, seen = env.reset(jax.random.key(seed))
        bit = int(state.bit)
        bits.add(bit)
        np.testing.assert_array_equal(seen.obs, [[1, 2 * bit - 1], [0, 0], [0, 0]])
        for action in itertools.product((0, 1), repeat=3):
            after, _, reward, terminated, truncated = env.step(KEY, state, ints(*action))
            wins = all(a == bit for a in action)
            assert reward.tolist() == [float(wins)] * 3
            assert bool(terminated)
            assert not truncated
            assert bool(env.measures(after)["success"]) == wins
    assert bits == {0, 1}


# --- levers


@pytest.mark.parametrize(("pulled", "paid"), [((0, 0, 0, 0, 0), 0.0), ((0, 0, 1, 2, 4), 0.75), ((4, 2, 3, 0, 1), 1.0)])
def test_levers_pay_for_distinct_ones(pulled, paid):
    env = make("comm/levers")
    state, seen = env.reset(KEY)
    assert seen.obs.shape == (5, 500)
    np.testing.assert_array_equal(seen.obs.argmax(1), state.ids)
    np.testing.assert_array_equal(seen.obs.sum(1), 1)
    *_, reward, terminated, _ = env.step(KEY, state, ints(*pulled))
    assert reward.tolist() == [paid] * 5
    assert bool(terminated)


def test_ids_are_drawn_with_replacement():
    env = make("comm/levers")
    ids = jax.jit(jax.vmap(lambda key: env.reset(key)[0].ids))(jax.random.split(KEY, 20_000))
    twice = np.mean([len(set(row)) < 5 for row in np.asarray(ids).tolist()])
    assert abs(twice - 0.0199) < 3 * np.sqrt(0.02 * 0.98 / 20_000)
    assert (ids.min(), ids.max()) == (0, 499)


def test_a_lever_that_nobody_else_pulls_makes_a_difference():
    env = make("comm/levers")
    state, _ = env.reset(KEY)
    action = ints(0, 0, 3, 4, 4)
    without = [env.counterfactual_reward(state, action, np.arange(5) != i) for i in range(5)]
    np.testing.assert_allclose(env.step(KEY, state, action)[2] - jnp.stack(without), [0, 0, 0.25, 0, 0], atol=1e-6)


# --- switch riddle


def visits(env, rooms, actions):
    """Play with these visitors: [(observation, reward, over), ...], what each saw before it acted."""
    state, _ = env.reset(KEY)
    found = []
    for room, action in zip(rooms, actions, strict=True):
        state = state._replace(room=jnp.int32(room))
        seen = env._observe(state)
        state, _, reward, terminated, truncated = env.step(KEY, state, jnp.full(env.n, action))
        assert not truncated
        found.append((seen, float(reward[0]), bool(terminated)))
        assert (reward == reward[0]).all()
    return found


def test_the_switch_reaches_the_next_visitor_alone():
    env = make("comm/switch_riddle")
    days = visits(env, (1, 0, 0), (1, 0, 0))
    first, second, third = (seen.obs for seen, *_ in days)
    # [in the room, the switch, last action 0, 1, 2, own number 0, 1, 2]
    np.testing.assert_array_equal(first, [[0, 0, 1, 0, 0, 1, 0, 0], [1, 0, 1, 0, 0, 0, 1, 0], [0, 0, 1, 0, 0, 0, 0, 1]])
    np.testing.assert_array_equal(
        second, [[1, 1, 1, 0, 0, 1, 0, 0], [0, 0, 0, 1, 0, 0, 1, 0], [0, 0, 1, 0, 0, 0, 0, 1]]
    )
    np.testing.assert_array_equal(third[:, :5], [[1, 0, 1, 0, 0], [0, 0, 1, 0, 0], [0, 0, 1, 0, 0]])
    np.testing.assert_array_equal(days[0][0].avail, [[True, False, False], [True] * 3, [True, False, False]])
    assert days[0][0].neighbours is None


def test_the_state_tells_the_day_and_who_has_been_in():
    env = make("comm/switch_riddle:n=3,places=4")
    state = env.reset(KEY)[0]._replace(t=ints(2)[0], room=ints(1)[0], been=jnp.array([True, False, False]))
    state = state._replace(switch=ints(1)[0])
    day, room, number, been, switch = np.split(np.asarray(env._observe(state).state), [11, 15, 19, 23])
    assert day.nonzero()[0].tolist() == [2]
    assert room.tolist() == [0, 1, 0, 0]
    assert number.tolist() == [0, 1, 0, 0]  # the second
    assert been.tolist() == [1, 1, 0, 0]
    assert switch.tolist() == [1]


@pytest.mark.parametrize(
    ("rooms", "actions", "paid"),
    [
        ((0, 1, 2), (0, 0, 2), 1),
        ((0, 1, 1, 2), (0, 1, 0, 2), 1),
        ((0, 1), (0, 2), -1),
        ((2,), (2,), -1),
        ((0, 1, 2, 0, 1, 2), (0,) * 6, 0),
    ],
)
def test_telling_ends_the_riddle(rooms, actions, paid):
    days = visits(make("comm/switch_riddle"), rooms, actions)
    assert [over for *_, over in days] == [False] * (len(rooms) - 1) + [True]
    assert [reward for _, reward, _ in days] == [0.0] * (len(rooms) - 1) + [paid]


def test_who_is_outside_cannot_tell():
    env = make("comm/switch_riddle")
    state, _ = env.reset(KEY)
    state = state._replace(room=jnp.int32(1), been=jnp.array([True, True, True]))
    after, _, reward, terminated, _ = env.step(KEY, state, ints(2, 0, 2))
    assert (float(reward[0]), bool(terminated), int(after.switch)) == (0.0, False, 0)


def test_without_the_bit_today_hears_yesterday():
    env = make("comm/switch_riddle:bit=false")
    assert (env.spec.action_size, env.spec.obs_size, env.spec.neighbours) == (2, 6, True)
    days = visits(env, (1, 0, 0), (0, 0, 1))
    heard = [np.argwhere(seen.neighbours).tolist() for seen, *_ in days]
    assert heard == [[], [[0, 1]], [[0, 0]]]
    assert days[-1][1:] == (-1.0, True)


@pytest.mark.parametrize(("bit", "cases"), [("true", (0, 4, 11)), ("false", (0, 2, 5))])
def test_notes_tell_a_visitor_the_day_the_switch_and_whether_it_was_in(bit, cases):
    """Prisoners 1, 0 and 0 visit: one one-hot of (day, been, switch), or of (day, been), for who is in."""
    plain, noted = (make(f"comm/switch_riddle:bit={bit},notes={notes}") for notes in ("false", "true"))
    rooms, actions = (1, 0, 0), (0, 1 if bit == "true" else 0, 0)
    without, given = (visits(env, rooms, actions) for env in (plain, noted))
    assert noted.spec.obs_size == plain.spec.obs_size + (24 if bit == "true" else 12)
    for room, case, (before, *_), (seen, *_) in zip(rooms, cases, without, given, strict=True):
        np.testing.assert_array_equal(seen.obs[:, : plain.spec.obs_size], before.obs)
        assert np.argwhere(seen.obs[:, plain.spec.obs_size :]).tolist() == [[room, case]]


def test_networks_of_three_prisoners_fit_four():
    three, four = (make(f"comm/switch_riddle:n={n},places=4") for n in (3, 4))
    assert three.spec.obs_size == four.spec.obs_size == make("comm/switch_riddle:n=4").spec.obs_size
    np.testing.assert_array_equal(three.reset(KEY)[1].obs[:, -4:], np.eye(3, 4))


@pytest.mark.parametrize(
    ("name", "policy", "wins"),
    [
        ("n=3", "oracle", 540 / 729), ("n=3", "tell_last_day", 0.481481), ("n=3", "one_bit", 540 / 729),
        ("n=3,bit=false", "oracle", 540 / 729), ("n=4", "oracle", 818520 / 4**10), ("n=4", "tell_last_day", 0.561203),
        ("n=4", "one_bit", 812388 / 4**10), ("n=4,penalty=3", "tell_last_day", 4 * 818520 / 4**10 - 3),
    ],
)  # fmt: skip
def test_the_riddle_is_worth_what_counting_says(name, policy, wins):
    """All sequences of visitors, the first one fixed: by symmetry the others are worth the same."""
    env = make(f"comm/switch_riddle:{name}")
    n, days = env.n, env.days
    rooms = jnp.array(np.indices((n,) * (days - 1)).reshape(days - 1, -1).T, jnp.int32)
    rooms = jnp.concatenate([jnp.zeros((len(rooms), 1), jnp.int32), rooms], 1)

    @jax.jit
    @jax.vmap
    def play(rooms):
        def day(carry, room):
            state, paid, going = carry
            state = state._replace(room=room)
            state, _, reward, over, _ = env.step(KEY, state, env.policies[policy](state, env._observe(state), KEY))
            return (state, paid + going * reward[0], going & ~over), None

        start = env.reset(KEY)[0]._replace(before=jnp.int32(NOBODY))
        return jax.lax.scan(day, (start, 0.0, jnp.bool_(True)), rooms)[0][1]

    assert np.asarray(play(rooms), np.float64).mean() == pytest.approx(wins, abs=1e-6)
    assert env.best == pytest.approx({3: 0.740741, 4: 0.780602}[n], abs=1e-6)


# --- traffic junction


def test_there_are_as_many_routes_as_ic3net_has():
    found = {name: make_roads(level) for name, level in LEVELS.items()}
    assert {name: roads.paths.shape[0] for name, roads in found.items()} == {"easy": 2, "medium": 12, "hard": 56}
    assert {name: len(roads.starts) for name, roads in found.items()} == {"easy": 2, "medium": 4, "hard": 8}
    assert {name: len(roads.cells) for name, roads in found.items()} == {"easy": 13, "medium": 52, "hard": 128}
    for roads in found.values():
        for path in roads.paths:
            cells = roads.cells[path[path >= 0]]
            assert (np.abs(np.diff(cells, axis=0)).sum(1) == 1).all()
            assert len(np.unique(cells, axis=0)) == len(cells)
        assert len(np.unique(roads.paths, axis=0)) == len(roads.paths)


def test_routes_of_a_car_from_above():
    roads = make_roads(LEVELS["medium"])
    straight, right, left = ([tuple(c) for c in roads.cells[p[p >= 0]].tolist()] for p in roads.paths[:3])
    assert straight == [(r, 6) for r in range(14)]
    assert right == [(r, 6) for r in range(7)] + [(6, c) for c in range(5, -1, -1)]
    assert left == [(r, 6) for r in range(8)] + [(7, c) for c in range(7, 14)]
    assert roads.cells[roads.starts].tolist() == [[0, 6], [13, 7], [7, 0], [6, 13]]
    hard = make_roads(LEVELS["hard"])
    starts = [[0, 4], [0, 12], [5, 0], [13, 0], [17, 5], [17, 13], [4, 17], [12, 17]]
    assert hard.cells[hard.starts].tolist() == starts
    # From above on the left: straight on twice, then right, then left; right leads out at once; left, then all three.
    assert (hard.paths[:7] >= 0).sum(1).tolist() == [18, 13 + 4, 14 + 13, 5 + 4, 6 + 13, 6 + 8 + 12, 6 + 9 + 5]


def cars(env, *placed, **more):
    """A state with cars: (place, route, how far along it)."""
    state, _ = env.reset(KEY)
    for i, route, at in placed:
        state = state._replace(
            on=state.on.at[i].set(True), route=state.route.at[i].set(route), at=state.at.at[i].set(at),
            cell=state.cell.at[i].set(int(env.paths[route, at])), wait=state.wait.at[i].set(at),
        )  # fmt: skip
    return state._replace(**more)


def test_cars_that_meet_crash_and_drive_on():
    env = make("comm/traffic_junction:rate=0")  # the roads cross after three cells
    state = cars(env, (0, 0, 2), (3, 1, 2))
    after, seen, reward, terminated, truncated = env.step(KEY, state, ints(GAS, GAS, GAS, GAS, GAS))
    np.testing.assert_allclose(reward, [-10.03, 0, 0, -10.03, 0], atol=1e-6)
    assert not terminated.any()
    assert not truncated
    assert after.on.tolist() == [True, False, False, True, False]
    assert {k: int(v) for k, v in env.measures(after).items()} == {"success": 0, "throughput": 0}
    assert float(seen.obs[0, -1]) == 2  # cars in its cell
    after, _, reward, *_ = env.step(KEY, after, ints(GAS, GAS, GAS, GAS, GAS))
    np.testing.assert_allclose(reward, [-0.04, 0, 0, -0.04, 0], atol=1e-6)
    assert bool(after.crashed)
    after, _, reward, *_ = env.step(KEY, state, ints(GAS, GAS, GAS, BRAKE, GAS))
    np.testing.assert_allclose(reward, [-0.03, 0, 0, -0.03, 0], atol=1e-6)
    assert bool(env.measures(after)["success"])


def test_a_car_sees_its_cell_route_and_last_action():
    env = make("comm/traffic_junction:rate=0")
    _, seen, *_ = env.step(KEY, cars(env, (1, 1, 2)), ints(GAS, BRAKE, GAS, GAS, GAS))
    own = np.zeros(17)
    own[:2] = 1, 1  # braked; the second of two routes
    own[2 + int(env.paths[1, 2])] = 1
    own[-1] = 1  # no cell outside, and one car: itself
    np.testing.assert_array_equal(seen.obs[1], own)
    assert not np.delete(np.asarray(seen.obs), 1, 0).any()
    assert seen.alive.tolist() == [False, True, False, False, False]
    near = make("comm/traffic_junction:rate=0,vision=1")
    _, seen, *_ = near.step(KEY, cars(near, (1, 1, 1), (2, 1, 2)), ints(GAS, BRAKE, BRAKE, GAS, GAS))
    window = np.asarray(seen.obs)[1, 2:].reshape(3, 3, 15)
    np.testing.assert_array_equal(window[..., -1], [[0, 0, 0], [0, 1, 1], [0, 0, 0]])
    np.testing.assert_array_equal(window[..., -2], [[1, 1, 1], [0, 0, 0], [1, 1, 1]])
    np.testing.assert_array_equal(window[1, :, :13].argmax(-1), near.paths[1, :3])


def test_a_car_leaves_after_its_last_cell_and_another_takes_its_place():
    env = make("comm/traffic_junction:rate=0")
    full = cars(env, *((i, i % 2, 6) for i in range(5)))
    after, seen, reward, terminated, _ = env.step(KEY, full, ints(GAS, BRAKE, GAS, GAS, GAS))
    assert terminated.tolist() == [True, False, True, True, True]
    np.testing.assert_allclose(reward, [0, -0.07, 0, 0, 0], atol=1e-6)
    assert int(after.through) == 4
    assert seen.alive.tolist() == [False, True, False, False, False]
    busy = make("comm/traffic_junction:rate=1")
    one = cars(busy, *((i, 0, 5) for i in range(4)), (4, 1, 6))
    after, seen, _, terminated, _ = busy.step(KEY, one, ints(GAS, GAS, GAS, GAS, GAS))
    assert terminated.tolist() == [False] * 4 + [True]
    assert seen.alive.all()
    assert (int(after.route[4]), int(after.at[4]), int(after.wait[4]), int(after.acted[4])) == (0, 0, 0, 0)


def test_an_arrival_may_be_put_onto_a_car_that_waits():
    env = make("comm/traffic_junction:rate=1")
    state = cars(env, (0, 0, 0))
    after, _, reward, *_ = env.step(KEY, state, ints(BRAKE, GAS, GAS, GAS, GAS))
    assert int(after.on.sum()) == 3
    assert float(reward[0]) == pytest.approx(-10.01)
    assert not reward[1:].any()  # who has just come has not acted yet
    assert not env.measures(after)["success"]


@pytest.mark.parametrize(("level", "entries", "options"), [("easy", 2, 1), ("medium", 4, 3), ("hard", 8, 7)])
def test_places_and_routes_are_drawn_evenly(level, entries, options):
    env = make(f"comm/traffic_junction:difficulty={level},rate=1")
    state, seen = env.reset(KEY)
    assert not seen.alive.any()
    count = 7000
    step = jax.jit(jax.vmap(lambda key: env.step(key, state, jnp.zeros(env.n, jnp.int32))[0]))
    after = step(jax.random.split(KEY, count))
    assert (after.on.sum(1) == entries).all()
    for found, of in (
        (np.argwhere(after.on)[:, 1], env.n),
        (np.asarray(after.route)[np.asarray(after.on)], len(env.paths)),
    ):
        share = np.bincount(found, minlength=of) / count
        expected = entries / of
        assert np.abs(share - expected).max() < 4.5 * np.sqrt(expected * (1 - expected) / count) + 1e-9
    came = np.sort(np.asarray(after.route)[np.asarray(after.on)].reshape(count, entries) // options, 1)
    assert (came == np.arange(entries)).all()  # one from each entry


@pytest.mark.parametrize("rate", [0.05, 0.3])
def test_cars_come_at_the_rate_and_while_there_is_a_place(rate):
    env = make(f"comm/traffic_junction:rate={rate}")
    state, _ = env.reset(KEY)
    count = 20_000
    step = jax.jit(jax.vmap(lambda key, state: env.step(key, state, jnp.ones(5, jnp.int32))[0], in_axes=(0, None)))
    came = np.asarray(step(jax.random.split(KEY, count), state).on.sum(1))
    assert abs(came.mean() - 2 * rate) < 4 * np.sqrt(2 * rate * (1 - rate) / count)
    four = cars(env, *((i, 0, 3) for i in range(4)))
    full = np.asarray(step(jax.random.split(KEY, count), four).on.sum(1))
    some = 1 - (1 - rate) ** 2
    assert set(full) == {4, 5}
    assert abs((full == 5).mean() - some) < 4 * np.sqrt(some * (1 - some) / count)


def test_a_route_is_a_number_or_a_one_hot():
    number, one_hot = (make(f"comm/traffic_junction:difficulty=hard,rate=1,one_hot={c}") for c in ("false", "true"))
    for state in (lambda s: s, lambda s: number.step(KEY, s, jnp.zeros(20, jnp.int32))[0]):
        now = state(number.reset(KEY)[0])
        few, many = number._observe(now).obs, one_hot._observe(now).obs
        assert many.shape[1] == few.shape[1] + 55
        np.testing.assert_allclose(many[:, 1:57] @ np.arange(56) / 55, few[:, 1], atol=1e-6)
        np.testing.assert_array_equal(many[:, 1:57].sum(1), now.on)
        np.testing.assert_array_equal(np.delete(many, slice(1, 57), 1), np.delete(few, 1, 1))


def test_a_car_may_be_told_the_cells_that_come_next_on_its_route():
    plain, told = (make(f"comm/traffic_junction:difficulty=hard,ahead={n}") for n in (0, 3))
    ends = [int((plain.paths[route] >= 0).sum()) - 1 for route in (0, 7)]
    state = cars(plain, (0, 0, 3), (1, 0, ends[0] - 1), (7, 7, ends[1]))
    a, b = (np.asarray(env._observe(state).obs) for env in (plain, told))
    np.testing.assert_array_equal(b[:, : a.shape[1]], a)
    seen = b[:, a.shape[1] :].reshape(20, 3, 128)
    for place, route, at in ((0, 0, 3), (1, 0, ends[0] - 1), (7, 7, ends[1])):
        path = [*plain.paths[route], -1, -1, -1]
        cells = [cell for cell in path[at + 1 : at + 4] if cell >= 0]
        np.testing.assert_array_equal(seen[place, : len(cells)].argmax(1), cells)
        assert seen[place].sum() == len(cells)
    assert not seen[[2, 3, 19]].any()  # nobody is there


def test_compact_observations_leave_out_what_follows():
    long, short = (make(f"comm/traffic_junction:difficulty=hard,vision=1,compact={c}") for c in ("false", "true"))
    state = cars(long, (0, 0, 3), (1, 0, 4), (7, 20, 9))
    a, b = (np.asarray(env._observe(state).obs) for env in (long, short))
    window = a[:, 2:].reshape(20, 9, 130)
    np.testing.assert_array_equal(
        b, np.concatenate([a[:, :2], window[:, 4, :128], window[:, :, 128:].reshape(20, 18)], 1)
    )


# --- predator and prey


def hunt(env, prey, *predators):
    state, _ = env.reset(KEY)
    places = jnp.array(predators, jnp.int32)
    return state._replace(predators=places, prey=ints(*prey), reached=(places == ints(*prey)).all(-1))


def test_predators_move_and_walls_stop_them():
    env = make("comm/predator_prey")
    state = hunt(env, (4, 4), (0, 0), (2, 2), (2, 2))
    moves = {UP: (0, 0), RIGHT: (0, 1), DOWN: (1, 0), LEFT: (0, 0), STAY: (0, 0)}
    for action, place in moves.items():
        after, *_ = env.step(KEY, state, ints(action, STAY, action))
        assert after.predators[0].tolist() == list(place)
        assert after.predators[1].tolist() == [2, 2]
    assert after.predators[2].tolist() == [2, 2]


@pytest.mark.parametrize(
    ("mode", "paid"),
    [
        ("mixed", (-0.05, 0.0, 0.0)), ("cooperative", (-0.05, 0.1, 0.1)), ("competitive", (-0.05, 0.025, 0.025)),
        ("joint", (-0.05, -0.05, -0.05)),
    ],
)  # fmt: skip
def test_the_modes_pay_differently(mode, paid):
    env = make(f"comm/predator_prey:mode={mode}")
    state = hunt(env, (1, 1), (4, 4), (1, 1), (0, 1))
    after, _, reward, terminated, _ = env.step(KEY, state, ints(UP, LEFT, DOWN))
    np.testing.assert_allclose(reward, paid, atol=1e-6)
    assert after.predators.tolist() == [[3, 4], [1, 1], [1, 1]]  # who is on the prey stays there
    assert not terminated
    last = hunt(env, (1, 1), (1, 2), (1, 1), (1, 1))
    after, _, reward, terminated, truncated = env.step(KEY, last, ints(LEFT, STAY, UP))
    assert bool(terminated) == (mode in ("mixed", "joint"))
    np.testing.assert_allclose(reward[0], {"cooperative": 0.15, "competitive": 0.05 / 3}.get(mode, 0.0), atol=1e-6)
    assert not truncated
    assert {k: int(v) for k, v in env.measures(after).items()} == {"success": 1, "steps": 1}
    later, *_ = env.step(KEY, after, ints(UP, UP, UP))
    assert int(env.measures(later)["steps"]) == 1


def test_an_unfinished_hunt_is_cut_after_its_steps():
    env = make("comm/predator_prey")
    state = hunt(env, (4, 4), (0, 0), (2, 2), (2, 2))._replace(t=jnp.int32(19))
    after, *_, terminated, truncated = env.step(KEY, state, ints(UP, UP, UP))
    assert (bool(terminated), bool(truncated), int(after.steps)) == (False, True, 20)


def test_predators_see_what_is_near():
    env = make("comm/predator_prey:size=10")
    none = jnp.zeros(5, bool)
    state = Hunt(jnp.int32(0), jnp.array([[0, 0], [1, 1], [1, 1], [9, 9], [5, 5]]), ints(8, 8), none, none, ints(0)[0])
    seen = np.asarray(env._observe(state).obs).reshape(5, 3, 3, 103)
    outside = [[1, 1, 1], [1, 0, 0], [1, 0, 0]]
    np.testing.assert_array_equal(seen[0, ..., 100], outside)
    np.testing.assert_array_equal(seen[0, ..., 102], [[0, 0, 0], [0, 1, 0], [0, 0, 2]])
    np.testing.assert_array_equal(seen[0, 1:, 1:, :100].argmax(-1), [[0, 1], [10, 11]])
    assert not seen[0, ..., :100][np.array(outside, bool)].any()
    np.testing.assert_array_equal(seen[3, ..., 101], [[1, 0, 0], [0, 0, 0], [0, 0, 0]])
    assert not seen[4, ..., 101].any()


def test_the_state_tells_where_the_prey_is_and_who_has_found_it():
    env = make("comm/predator_prey:size=10")
    state = hunt(env, (8, 4), (0, 0), (5, 6), (6, 4), (9, 9), (8, 8))._replace(found=jnp.zeros(5, bool))
    after, seen, *_ = env.step(KEY, state, ints(STAY, UP, DOWN, STAY, STAY))
    told = np.asarray(seen.state).reshape(5, 7)
    np.testing.assert_allclose(told[1], [0.4, 0.6, 0.4, -0.2, 0.4, 0.2, 0], atol=1e-6)
    np.testing.assert_allclose(told[2], [0.7, 0.4, 0.1, 0, 0.1, 0, 1], atol=1e-6)
    after, *_ = env.step(KEY, after, ints(STAY, STAY, UP, STAY, STAY))  # it has turned away
    assert after.found.tolist() == [False, False, True, False, False]


def test_all_begin_on_cells_of_their_own():
    env = make("comm/predator_prey")
    state, _ = jax.jit(jax.vmap(env.reset))(jax.random.split(KEY, 2000))
    cells = np.concatenate([state.predators, state.prey[:, None]], 1) @ [5, 1]
    assert (np.diff(np.sort(cells, 1)) > 0).all()
    share = np.bincount(cells[:, -1], minlength=25) / 2000
    assert np.abs(share - 0.04).max() < 4.5 * np.sqrt(0.04 * 0.96 / 2000)
