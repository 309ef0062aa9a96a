"""mean_field/battle: rules by hand, what is conserved, who perceives whom, tactics, and learning against them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flockrl
from flockrl.core.errors import UsageError
from flockrl.envs import make
from flockrl.envs.checks import check
from flockrl.envs.mean_field.battle import Battle
from flockrl.envs.mean_field.tactics import MOVES, TACTICS, TURNS

STAY, UP, RIGHT, DOWN, LEFT = range(5)


def attack(row, column):
    """The action that strikes the cell so many rows and columns away."""
    return len(MOVES) + [tuple(turn) for turn in TURNS.tolist()].index((row, column))


def placed(env, cells, health=None):
    """A state with the agents, red ones first, at these rows and columns."""
    state, _ = env.reset(jax.random.key(0))
    place = jnp.array([row * env.size + column for row, column in cells], jnp.int32)
    return state._replace(place=place, health=state.health if health is None else jnp.array(health, jnp.float32))


SMALL = Battle(n=2, size=6)
STEP = jax.jit(SMALL.step)


def after(state, actions, key=1):
    """A step of the small battle."""
    return STEP(jax.random.key(key), state, jnp.array(actions))


def test_blows_and_pay_by_hand():
    env = SMALL
    state = placed(env, [(2, 2), (5, 0), (2, 3), (0, 5)])
    new, seen, reward, ended, cut = after(state, [attack(0, 1), attack(-1, 0), attack(-1, -1), STAY])
    np.testing.assert_allclose(new.health, [10.0, 10.0, 8.1, 10.0], rtol=1e-6)  # 2 taken, 0.1 recovered
    np.testing.assert_allclose(reward, [0.095, -0.105, -0.105, -0.005], rtol=1e-4)
    assert new.aim.tolist() == [2, 4, 4, 4]
    assert not ended.any()
    assert not bool(cut)
    new, seen, reward, ended, _ = after(
        state._replace(health=jnp.array([10.0, 10.0, 1.5, 10.0])), [attack(0, 1), STAY, attack(0, -1), STAY]
    )
    np.testing.assert_allclose(new.health, [8.1, 10.0, 0.0, 10.0], rtol=1e-6)  # the last blow of the dead lands
    np.testing.assert_allclose(reward, [5.095, -0.005, 0.095 - 0.1, -0.005], rtol=1e-4)
    assert ended.tolist() == [False, False, True, False]
    assert seen.alive.tolist() == [True, True, False, True]
    assert (seen.obs[2] == 0).all()
    again, _, reward, ended, _ = after(new, [attack(0, 1), STAY, attack(0, -1), LEFT])
    assert float(reward[2]) == 0
    assert float(reward[0]) == pytest.approx(-0.105)  # nobody is there any more
    assert float(again.health[0]) == pytest.approx(8.2)
    assert not ended[2] or not seen.alive[2]


def test_one_blow_kills_and_the_side_is_beaten():
    env = SMALL
    state = placed(env, [(2, 2), (2, 4), (2, 3), (0, 0)], [10, 10, 2, 0])
    killers = set()
    for key in range(8):
        new, _, reward, ended, _ = after(state, [attack(0, 1), attack(0, -1), STAY, STAY], key)
        assert sorted(np.round(reward[:2].tolist(), 3)) == [-0.105, 5.095]
        assert ended.all()  # blue is dead
        assert float(env.measures(new)["won"]) == 1
        killers.add(int(reward[0] < reward[1]))
    assert killers == {0, 1}  # by lot


def test_nobody_enters_an_occupied_cell_and_one_wins_a_free_one():
    env = SMALL
    state = placed(env, [(2, 1), (2, 3), (0, 0), (4, 4)])
    winners = set()
    for key in range(8):
        new, *_ = after(state, [RIGHT, LEFT, UP, DOWN], key)
        moved = (new.place != state.place).tolist()
        assert moved[:2] in ([True, False], [False, True])
        winners.add(moved[0])
        assert moved[2:] == [False, True]  # a wall, and a free cell
    assert winners == {True, False}
    new, *_ = after(placed(env, [(2, 1), (2, 2), (0, 0), (4, 4)]), [RIGHT, RIGHT, STAY, STAY])
    assert (new.place[:2] - jnp.array([2 * 6 + 1, 2 * 6 + 2])).tolist() == [0, 1]  # nor one that is being left


def test_what_is_conserved():
    """Over random fights: cells, health, kills and pay add up."""
    env = Battle(n=6, size=6, steps=80)

    def step(state, key):
        act_key, env_key = jax.random.split(key)
        rushes, moves = jax.random.bernoulli(key), [TACTICS[who](env, state, act_key) for who in ("rush", "random")]
        mixed = jnp.where(rushes, *moves)
        new, seen, reward, *_ = env.step(env_key, state, mixed)
        return new, (state, new, reward, mixed, seen)

    def play(key):
        return jax.lax.scan(step, env.reset(key)[0], jax.random.split(key, env.steps))[1]

    old, new, reward, action, seen = jax.tree.map(
        np.array, jax.jit(jax.vmap(play))(jax.random.split(jax.random.key(3), 8))
    )
    alive, lives = old.health > 0, new.health > 0
    assert not (lives & ~alive).any()  # nobody comes back
    assert (alive & ~lives).sum() > 20
    hits = new.aim < 12
    assert not (hits & ~alive).any()
    deaths = (alive & ~lives).sum(-1)
    swings = ((action >= len(MOVES)) & alive).sum(-1)
    paid = -0.005 * alive.sum(-1) - 0.1 * swings + 0.2 * hits.sum(-1) + 4.9 * deaths  # each death is paid once
    np.testing.assert_allclose(reward.sum(-1), paid, atol=1e-4)
    lost = np.minimum(old.health.sum(-1), 1e9) - new.health.sum(-1)
    assert (lost <= 2.0 * hits.sum(-1) + 1e-4).all()  # no more than the blows took
    assert (lost >= -0.1 * lives.sum(-1) - 1e-4).all()  # and nobody gains more than it recovers
    for b in range(8):
        for t in range(env.steps):
            cells = new.place[b, t][lives[b, t]]
            assert len(set(cells.tolist())) == len(cells)
    rows = np.abs(np.stack(np.divmod(new.place, 6), -1) - np.stack(np.divmod(old.place, 6), -1)).sum(-1)
    assert rows.max() == 1
    np.testing.assert_array_equal(seen.alive, lives)


def test_who_perceives_whom():
    env = Battle(n=2, size=9, view=2)
    state = placed(env, [(4, 4), (2, 6), (4, 5), (8, 8)], [10, 5, 2, 10])
    seen = jax.jit(env._observe)(state)
    assert seen.neighbours.astype(int).tolist() == [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    window = np.asarray(seen.obs[0, : 3 * 25]).reshape(5, 5, 3)
    assert window[0, 4].tolist() == [0, 0.5, 0]  # an ally with half its health, two up and two to the right
    np.testing.assert_allclose(window[2, 3], [0, 0, 0.2], rtol=1e-6)
    assert window[2, 2].tolist() == [0, 1, 0]  # itself
    assert window.sum() == pytest.approx(1.7)
    corner = np.asarray(seen.obs[3, : 3 * 25]).reshape(5, 5, 3)
    assert corner[..., 0].sum() == 25 - 9
    about = np.asarray(seen.obs[0, 75:])
    np.testing.assert_allclose(about, [1, 4 / 9, 4 / 9, 1, -1 / 9, 1 / 9, 1, 2 / 9, 2.5 / 9], atol=1e-6)
    dead = jax.jit(env._observe)(state._replace(health=jnp.array([10.0, 0.0, 2.0, 10.0])))
    assert not bool(dead.neighbours.any())


def test_entities_tell_the_same():
    env = Battle(n=2, size=9, view=2, see="entities")
    state = placed(env, [(4, 4), (2, 6), (4, 5), (8, 8)], [10, 5, 2, 10])
    obs = np.asarray(jax.jit(env._observe)(state).obs[0])
    np.testing.assert_allclose(obs[9:18], [-2 / 3, 2 / 3, 0.5, 0, 1 / 3, 0.2, 0, 0, 0], atol=1e-6)
    assert obs[18:].tolist() == [1, 1, 0]  # the ally, one opponent, and nobody beyond the view
    kinds = {kind.name: kind for kind in env.spec.entities[0].kinds}
    assert (kinds["ally"].there, kinds["opponent"].there, kinds["opponent"].count) == (18, 19, 2)


@pytest.mark.parametrize("text", ["", pytest.param(":opponent=rush,n=3,size=6,see=entities", marks=pytest.mark.slow)])
def test_the_conformance_kit(text):
    check(make(f"mean_field/battle{text}"))


def test_settings_are_checked():
    for text, word in (
        ("n=0", "n must"), ("n=30,size=6", "need more"), ("opponent=fox", "no opponent=fox"),
        ("see=all", "no see=all"), ("damage=0", "damage must"), ("recover=-1", "recover must"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=word):
            make(f"mean_field/battle:{text}")


def test_pictures():
    env = SMALL
    state = placed(env, [(2, 2), (5, 0), (2, 3), (0, 5)])
    new, *_ = after(state, [attack(0, 1), STAY, STAY, STAY])
    first, second = env.render([state, new], size=60)
    assert first.shape == (60, 60, 3)
    assert (first != second).any()


def won(env, red, blue, teams):
    """How often red wins with one tactic against another."""

    def play(key):
        def step(carry, key):
            state, over = carry
            keys = jax.random.split(key, 3)
            actions = [TACTICS[who](env, state, k) for who, k in zip((red, blue), keys[:2], strict=True)]
            new, _, _, ended, cut = env.step(
                keys[2], state, jnp.concatenate([actions[0][: env.n], actions[1][env.n :]])
            )
            return (jax.tree.map(partial(jnp.where, over), state, new), over | ended.all() | cut), None

        carry = env.reset(key)[0], jnp.bool_(False)
        return env.measures(jax.lax.scan(step, carry, jax.random.split(key, env.steps))[0][0])["won"]

    return float(jax.jit(jax.vmap(play))(jax.random.split(jax.random.key(0), teams)).mean())


@pytest.mark.slow
def test_focus_beats_rush_and_rush_beats_chance():
    env = Battle(steps=45)
    assert won(env, "rush", "random", 40) > 0.95
    assert won(env, "focus", "rush", 200) > 0.65
    assert abs(won(env, "rush", "rush", 200) - 0.5) < 0.15


@pytest.mark.slow
def test_a_team_that_keeps_exploring_learns_to_fight(tmp_path):
    """An attack costs 0.1 and at first hardly ever lands: without much entropy, agents learn to strike nobody."""
    run = flockrl.train(
        "mfac", "mean_field/battle:n=8,size=8,opponent=random", steps=300_000, envs=64, entropy=0.2,
        entropy_schedule="exponential", eval_every=300_000, eval_episodes=50, out=tmp_path / "run",
    )  # fmt: skip
    assert run.metrics()[-1]["eval_won"] > 0.9
    assert run.metrics()[-1]["eval_kills"] > 0.6
