"""Exploration bonuses: their numbers by hand, what they leave alone, and what makes no sense."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import AS_USERS_DO

from flockrl.algos.assembly import facts, make_algorithm
from flockrl.algos.bonus.counts import SEEN, Counts, Coverage
from flockrl.algos.bonus.critic import LAMBDA, BonusCritic
from flockrl.algos.bonus.influence import Influence
from flockrl.algos.bonus.models import ICM, RND
from flockrl.algos.bonus.novelty import Look, share
from flockrl.algos.bonus.settings import parse_entries
from flockrl.algos.exploration import HEAVIEST, alike, others_change, taken_chance
from flockrl.algos.presets import make_config
from flockrl.algos.wrappers.fingerprint import longer, with_age
from flockrl.core.errors import UsageError
from flockrl.core.types import Box, Discrete, EnvSpec, Observation, Trajectory
from flockrl.envs import make
from flockrl.nets.normalisation import Moments
from flockrl.replay.ring import add, gather, make_replay, stretch
from flockrl.rollouts.compiled import scan_rollout, start

KEY = jax.random.key(0)
jit = partial(jax.jit, compiler_options=AS_USERS_DO)
SPEC = EnvSpec("two", ("a", "b"), (Box((1,)),) * 2, (Discrete(2),) * 2, max_steps=10)
ENV = make("explore/pass:size=10,steps=20")
SMALL = {"hidden": (8,), "rollout_steps": 8}
REPLAY = SMALL | {"steps_per_update": 8, "batch_size": 8, "buffer_size": 64, "learning_starts": 0}


def settings(**values):
    return make_config("iql", {"bonus": "count", **values})


def rows(next_obs, alive=None, action=None):
    """A rollout [T, B, N] that leads to these observations [T, B, N, O]."""
    x = jnp.asarray(next_obs, jnp.float32)
    flags = jnp.zeros(x.shape[:3], bool)
    action = jnp.zeros(x.shape[:3], jnp.int32) if action is None else jnp.asarray(action)
    there = None if alive is None else jnp.asarray(alive)
    return Trajectory(x, action, jnp.zeros(x.shape[:3]), flags, flags, x, flags[..., 0], alive=there)


def rollout(algorithm, state, env=ENV, envs=4, seed=0):
    actors = start(algorithm, env, jax.random.key(seed), envs)
    return scan_rollout(algorithm, algorithm.params(state), env, actors, jax.random.key(seed + 1))[1]


# --- counts


def test_what_is_done_counts_together_with_where():
    """Both agents were twice in cell 0: the first did 0 and 1 there, the second 1 both times."""
    seen = rows([[[[0], [0]], [[0], [0]]]], action=[[[0, 1], [1, 1]]])
    own = Counts(Look(SPEC, "own", acts=True), settings(bonus_cell=1.0, bonus_actions=True))
    state, _ = own.learn(own.init(KEY), seen, KEY)
    np.testing.assert_allclose(own.own(state, seen)[0], [[1, 2**-0.5], [1, 2**-0.5]], rtol=1e-6)
    joint = Counts(Look(SPEC, "state", acts=True), settings(bonus_cell=1.0, bonus_actions=True))
    state, _ = joint.learn(joint.init(KEY), seen, KEY)
    np.testing.assert_allclose(joint.own(state, seen)[0], [[1], [1]], rtol=1e-6)
    state, _ = joint.learn(state, seen._replace(next_obs=seen.next_obs + 5), KEY)  # where it leads does not matter
    np.testing.assert_allclose(joint.own(state, seen)[0], [[2**-0.5]] * 2, rtol=1e-6)


def test_counts_pay_by_the_root_of_visits():
    counts = Counts(Look(SPEC, "own"), settings(bonus_cell=1.0))
    state, _ = counts.learn(counts.init(KEY), rows([[[[0], [0]], [[0], [1]], [[0.5], [2]], [[3], [2]]]]), KEY)
    seen = rows([[[[0.9], [2.2]], [[3], [0]], [[7], [3]]]])
    # The first was in cell 0 three times and in 3 once; the second in 0 and 1 once, in 2 twice.
    np.testing.assert_allclose(counts.own(state, seen)[0], [[3**-0.5, 2**-0.5], [1, 1], [1, 1]], rtol=1e-6)
    matrix = counts.cross(state, seen)[0, 0]  # [j, i]: the observation of i by the counts of j
    np.testing.assert_allclose(matrix, [[3**-0.5, 1], [1, 2**-0.5]], rtol=1e-6)


def test_counts_decay_as_asked_and_leave_out_the_dead():
    counts = Counts(Look(SPEC, "own"), settings(bonus_decay=1.0))
    seen = [[[[0], [0]]] * 5]
    state, _ = counts.learn(counts.init(KEY), rows(seen, alive=[[[True, i < 2] for i in range(5)]]), KEY)
    np.testing.assert_allclose(counts.own(state, rows(seen))[0, 0], [1 / 5, 1 / 2], rtol=1e-6)


def test_the_state_is_counted_once_for_all():
    counts = Counts(Look(SPEC, "state"), settings(bonus_on="state"))
    state, _ = counts.learn(counts.init(KEY), rows([[[[0], [1]], [[0], [1]], [[1], [1]]]]), KEY)
    found = counts.own(state, rows([[[[0], [1]], [[1], [1]]]]))
    assert found.shape == (1, 2, 1)
    np.testing.assert_allclose(found[0, :, 0], [2**-0.5, 1], rtol=1e-6)


def test_signs_of_projections_do_not_tell_lengths_apart():
    spec = EnvSpec("wide", ("a",), (Box((64,)),), (Discrete(2),), max_steps=10)
    counts = Counts(Look(spec, "own"), settings(bonus_bits=16))
    x = jax.random.normal(KEY, (64,))
    state, _ = counts.learn(counts.init(KEY), rows([[[x], [2 * x], [-x], [0.01 * x]]]), KEY)
    np.testing.assert_allclose(counts.own(state, rows([[[3 * x], [-2 * x]]]))[0, :, 0], [3**-0.5, 1], rtol=1e-6)


def test_entries_choose_what_is_looked_at():
    assert parse_entries("0:4, 7") == [(0, 4), (7, 8)]
    look = Look(ENV.spec, "own", "0:2,4")
    seen = rows(np.arange(10.0).reshape(1, 1, 2, 5))
    assert look.then(seen)[0, 0].tolist() == [[0, 1, 4], [5, 6, 9]]
    assert Look(ENV.spec, "state").size == 5
    for text, words in (("x", "as numbers and ranges"), ("5:3", "holds no entries"), ("-1", "as numbers and ranges")):
        with pytest.raises(UsageError, match=words):
            settings(bonus_entries=text)
    with pytest.raises(UsageError, match="has 5 entries"):
        Look(ENV.spec, "own", "3:6")


def test_coverage_counts_distinct_joint_cells():
    spec = EnvSpec("plane", ("a",), (Box((2,)),), (Discrete(2),), max_steps=10)
    coverage = Coverage(spec, 1.0)
    places = np.stack(np.divmod(np.arange(300_000) % 200_000, 1000), -1)[None, :, None]
    marks = coverage.learn(coverage.init(), rows(places))
    assert abs(float(coverage.number(marks)) / 200_000 - 1) < 0.01
    assert int(marks.sum()) < 0.75 * 200_000  # many share a mark
    assert len(marks) == SEEN


# --- kinds


def test_agents_share_the_search():
    seen = jnp.array([[0.9, 0.2, 0.3], [0.1, 0.4, 0.3], [0.5, 0.6, 0.3]])  # [j, i]
    want = {
        "independent": [0.9, 0.4, 0.3],
        "minimum": [0.1, 0.2, 0.3],
        "covering": [0.9, 0.0, 0.0],  # means 0.5, 0.4, 0.3
        "burrowing": [0.0, 0.0, 0.0],
        "leader": [0.0, 0.0, 0.0],
    }
    for kind, paid in want.items():
        np.testing.assert_allclose(share(kind, seen), paid, atol=1e-6)
    other = jnp.array([[0.1, 0.9], [0.9, 0.6]])
    np.testing.assert_allclose(share("burrowing", other), [0.1, 0.6], atol=1e-6)
    np.testing.assert_allclose(share("leader", other), [0.1, 0.0], atol=1e-6)


# --- models


@pytest.mark.parametrize("kind", [RND, pytest.param(ICM, marks=pytest.mark.slow)])
def test_models_get_used_to_what_they_see(kind):
    model = kind(SPEC, Look(SPEC, "own"))
    near = rows(np.random.default_rng(0).normal(0, 0.3, (8, 16, 2, 1)))
    far = rows(np.full((1, 4, 2, 1), 3.0))
    state, learn = model.init(KEY), jax.jit(model.learn)
    for i in range(60):
        state, told = learn(state, near, jax.random.key(i))
    assert np.isfinite(float(told["bonus_model_loss"]))
    assert float(model.own(state, far).mean()) > 3 * float(model.own(state, near).mean())
    matrix, own = model.cross(state, near), model.own(state, near)
    assert matrix.shape == (8, 16, 2, 2)
    np.testing.assert_allclose(jnp.diagonal(matrix, axis1=-2, axis2=-1), own, rtol=1e-4)


class Told(Influence):
    """Influence with probabilities that are given: agent 1 tends to do what agent 0 did."""

    def _logits(self, net, params, x):
        if x.shape[-1] == self.look.size:  # what agents do now
            return jnp.broadcast_to(jnp.log(jnp.array([[0.5, 0.5], [0.25, 0.75]])), (*x.shape[:-1], 2, 2))
        first = x[..., self.look.size + 1, None] > 0  # whether agent 0 does 1
        copy = jnp.where(first, jnp.log(jnp.array([0.2, 0.8])), jnp.log(jnp.array([0.9, 0.1])))
        return jnp.stack([jnp.zeros_like(copy), copy], -2)


def test_influence_is_how_far_an_action_moves_the_others():
    told = Told(SPEC)
    paid = told.own(told.init(KEY), rows(np.zeros((1, 2, 2, 1)), action=[[[0, 1], [1, 1]]]))
    usual = [0.55, 0.45]  # half of each
    want = [sum(p * np.log(p / q) for p, q in zip(given, usual, strict=True)) for given in ([0.9, 0.1], [0.2, 0.8])]
    np.testing.assert_allclose(paid[0], [[want[0], 0.0], [want[1], 0.0]], atol=1e-5)


@pytest.mark.slow
def test_influence_is_learned_from_who_follows_whom():
    """Agent 1 repeats what agent 0 did the step before; agent 0 does as it likes."""
    influence = Influence(SPEC)
    draw = np.random.default_rng(0).integers(0, 2, (64, 16))
    action = np.stack([draw, np.concatenate([draw[:1], draw[:-1]])], -1)
    state, learn = influence.init(KEY), jax.jit(influence.learn)
    data = rows(np.zeros((64, 16, 2, 1)), action=action)
    for i in range(60):
        state, _ = learn(state, data, jax.random.key(i))
    first, second = influence.own(state, data).mean((0, 1))
    assert float(first) > 0.5  # at most log 2
    assert float(second) < 0.05


# --- how learners take it


def bonus_critic():
    """A critic of bonuses, its state, a rollout of nothing but ends, and what it pays."""
    config = make_config("ippo", {"bonus": "count", "hidden": (8,), "bonus_gamma": 0.9})
    critic = BonusCritic(ENV.spec, config, 4)
    draw = np.random.default_rng(0)
    seen = rows(draw.normal(size=(6, 4, 2, 5)))._replace(
        obs=jnp.asarray(draw.normal(size=(6, 4, 2, 5)), jnp.float32),
        state=jnp.asarray(draw.normal(size=(6, 4, 5)), jnp.float32),
        next_state=jnp.asarray(draw.normal(size=(6, 4, 5)), jnp.float32),
        terminated=jnp.ones((6, 4, 2), bool),
    )
    return critic, critic.init(KEY), seen, jnp.asarray(draw.random((6, 4, 2)), jnp.float32)


def test_returns_of_the_bonus_go_on_after_episodes():
    critic, state, seen, bonus = bonus_critic()
    state = state._replace(scale=Moments(jnp.full(2, 3.0), jnp.full(2, 4.0), jnp.int32(9)))
    value = np.asarray(critic._value(state.params, jnp.concatenate([seen.state, seen.next_state[-1:]])))
    value, want, later = 3 + value * np.sqrt(4 + 1e-4), [], np.zeros((4, 2))
    for t in reversed(range(6)):
        later = np.asarray(bonus[t]) + 0.9 * value[t + 1] - value[t] + 0.9 * LAMBDA * later
        want.append(later)
    want = np.stack(want[::-1])
    advantage, after, _ = critic.advantage(state, seen, bonus, KEY)
    np.testing.assert_allclose(advantage, (want - want.mean()) / want.std(), rtol=1e-4, atol=1e-5)
    returns = want + value[:-1]
    np.testing.assert_allclose(after.scale.mean, np.full(2, (3 + returns.mean()) / 2), rtol=1e-5)  # half old, half new
    alive = jnp.ones((6, 4, 2), bool).at[3:, :, 1].set(False)
    living = critic.advantage(state, seen._replace(alive=alive), bonus, KEY)[0]
    there = want[np.asarray(alive)]
    np.testing.assert_allclose(living, (want - there.mean()) / there.std(), rtol=1e-4, atol=1e-5)


def test_advantages_of_a_bonus_that_fades_stay_true():
    """Places tell nothing of what is to come, so that true advantages are those of bonuses over their mean. These fall
    to a hundredth in 100 rollouts; a value that had to unlearn its own past would drown them."""
    critic, state, seen, _ = bonus_critic()
    learn, draw, found, true = jax.jit(critic.advantage), np.random.default_rng(1), [], []
    for i in range(100):
        place, new = draw.random((7, 4, 5)).astype(np.float32), draw.random((6, 4, 2)).astype(np.float32)
        seen = seen._replace(state=jnp.asarray(place[:-1]), next_state=jnp.asarray(place[1:]))
        advantage, state, _ = learn(state, seen, 10 * 0.955**i * new, jax.random.key(i))
        later, want = 0, []
        for t in reversed(range(6)):
            later = new[t] - 0.5 + 0.9 * LAMBDA * later
            want.append(later)
        found.append(advantage)
        true.append(want[::-1])
    assert np.corrcoef(np.ravel(found[-20:]), np.ravel(true[-20:]))[0, 1] > 0.9


@pytest.mark.parametrize(("name", "own"), [pytest.param("ippo", SMALL, marks=pytest.mark.slow), ("iql", REPLAY)])
def test_without_scale_learners_learn_as_without_a_bonus(name, own):
    plain = make_algorithm(name, ENV.spec, make_config(name, own), envs=4, updates=4)
    bonus = {"bonus": "count", "bonus_scale": 0.0}
    with_bonus = make_algorithm(name, ENV.spec, make_config(name, own | bonus), envs=4, updates=4)
    one, two = plain.init(KEY), with_bonus.init(KEY)
    data = rollout(plain, one)
    for i in range(2):
        one, _ = jit(plain.update)(one, data, jax.random.key(i))
        two, told = jit(with_bonus.update)(two, data, jax.random.key(i))
    jax.tree.map(np.testing.assert_array_equal, one, two.learner)
    assert float(told["coverage"]) > 1
    assert 0 < float(told["bonus"]) <= 1


@pytest.mark.slow
def test_a_bonus_moves_policies_where_nothing_is_paid():
    config = make_config("ippo", SMALL | {"bonus": "count"})
    learner = make_algorithm("ippo", ENV.spec, config, envs=4, updates=4)
    state = learner.init(KEY)
    data = rollout(learner, state)
    assert not np.asarray(data.reward).any()
    after, _ = jax.jit(learner.update)(state, data, KEY)
    plain = make_algorithm("ippo", ENV.spec, make_config("ippo", SMALL | {"entropy": 0.0}), envs=4, updates=4)
    alone, _ = jax.jit(plain.update)(plain.init(KEY), data, KEY)

    def moved(old, new):
        old, new = old.params["actor"], new.params["actor"]
        return max(jax.tree.leaves(jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), old, new)))

    assert moved(plain.init(KEY), alone) < 1e-6
    assert moved(state.learner, after.learner) > 1e-3


def test_the_replay_pays_the_bonus_of_now():
    """Sampled rewards are as if those in the ring had been raised by what the function says now, in n-step sums too."""
    ring = make_replay(ENV.spec, 16, 4, False)
    learner = make_algorithm("iql", ENV.spec, make_config("iql", REPLAY), envs=4, updates=4)
    for seed in range(2):
        data = rollout(learner, learner.init(KEY), seed=seed)
        ring = add(ring, data._replace(reward=data.reward + 0.5, memory=(), extras={}))

    def bonus(rows):
        return rows.next_obs[..., 0] + 0.1 * rows.action

    whole = ring.rows.reward + bonus(ring.rows)
    raised, place = (
        ring._replace(rows=ring.rows._replace(reward=whole)),
        (jnp.arange(8), jnp.arange(8) % 4, jnp.ones(8)),
    )
    paying = ring._replace(bonus=bonus)
    np.testing.assert_allclose(gather(paying, *place, 3, 0.9).reward, gather(raised, *place, 3, 0.9).reward, rtol=1e-6)
    np.testing.assert_allclose(
        stretch(paying, *place[:2], 3).reward, stretch(raised, *place[:2], 3).reward, rtol=1e-6
    )  # fmt: skip
    assert float(jnp.abs(stretch(ring, *place[:2], 3).reward - 0.5).max()) == 0


def test_tables_are_paid_at_once():
    own = {"bonus": "count", "bonus_scale": 1.0, "rollout_steps": 1, "lr_schedule": "constant", "lr": 0.5, "gamma": 0.0}
    learner = make_algorithm("iql_tabular", ENV.spec, make_config("iql_tabular", own), envs=1, updates=9)
    state = learner.init(KEY)
    data = rollout(learner, state, envs=1)
    state, _ = jax.jit(learner.update)(state, data, KEY)
    assert float(state.learner.values.max()) == 0.5  # half of the way to 1, for what was seen once


# --- what makes no sense


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("ippo", {"bonus_scale": 1.0}, "bonus_scale has no meaning with bonus=none"),
        ("ippo", {"bonus_scale": 0.0}, "bonus_scale has no meaning with bonus=none"),
        ("ippo", {"bonus": "rnd", "bonus_cell": 1.0}, "bonus_cell has no meaning with bonus=rnd"),
        ("iql", {"bonus": "influence", "bonus_on": "own"}, "bonus_on has no meaning with bonus=influence"),
        ("ippo", {"bonus": "belief", "bonus_on": "state"}, "bonus_on has no meaning with bonus=belief"),
        ("iql", {"bonus": "count", "bonus_scale": -1.0}, "bonus_scale must be at least 0, not -1"),
        ("iql", {"bonus": "count", "bonus_bits": 8, "bonus_cell": 1.0}, "two ways to count"),
        ("iql", {"bonus": "count", "bonus_on": "state", "bonus_kind": "minimum"}, "use it with --bonus-on own"),
        ("iql", {"bonus": "counts"}, "bonus must be one of"),
        ("iql", {"bonus": "icm", "bonus_actions": True}, "bonus_actions has no meaning with bonus=icm"),
        ("vdn", {"importance": True}, "use iql"),
        ("iql", {"importance": True, "n_step": 2}, "weighs single steps"),
        ("iql", {"importance": True, "explore_together": True}, "one by one"),
    ],
)
def test_settings_that_make_no_sense_are_refused(name, given, words):
    with pytest.raises(UsageError, match=words):
        make_config(name, given)


@pytest.mark.parametrize(
    ("name", "env", "given", "words"),
    [
        ("cql", "explore/k_step", {"bonus": "count"}, "recordings do not go anywhere"),
        ("bc", "explore/k_step", {"bonus": "rnd"}, "recordings do not go anywhere"),
        ("ippo", "mpe/simple_spread:continuous_actions=true", {"bonus": "influence"}, "compares choices"),
        ("ppo", "classic/cartpole", {"bonus": "influence"}, "has one agent"),
        ("ppo", "classic/cartpole", {"bonus": "count", "bonus_kind": "minimum"}, "compares agents"),
        ("ippo", "mpe/simple_speaker_listener", {"bonus": "rnd", "bonus_kind": "leader"}, "unlike observations"),
        ("ippo", "mpe/simple_spread", {"bonus": "belief"}, "has none: use another bonus"),
        ("ippo", "explore/k_step", {"bonus": "belief", "bonus_entries": "99"}, "the state of explore/k_step has"),
        ("ippo", "explore/k_step", {"bonus": "rnd", "bonus_entries": "99"}, "an observation of .* has 15 entries"),
        ("qmix", "probe/state", {"bonus": "belief", "bonus_gamma": 0.5}, "bonus_gamma is for learners with advantages"),
        ("iql_tabular", "explore/k_step", {"bonus": "count", "bonus_gamma": 0.5}, "bonus_gamma is for learners with"),
        ("iql", "mpe/simple", {"importance": True}, "has one agent"),
        ("cql", "explore/k_step", {"importance": True, "conservative": 0.0}, "recordings do not go anywhere"),
    ],
)
def test_environments_that_do_not_fit_are_refused(name, env, given, words):
    with pytest.raises(UsageError, match=words):
        make_algorithm(name, make(env).spec, make_config(name, given), envs=4, updates=4)


def test_a_team_that_explores_does_not_grow():
    assert facts("ippo", make_config("ippo", {})).grows
    assert not facts("ippo", make_config("ippo", {"bonus": "count"})).grows


# --- what else helps to explore together


def test_agents_that_explore_together_do_so_in_the_same_steps():
    """Greedily both choose action 0; together they deviate in the same steps, and not always alike."""

    def deviates(**more):
        config = make_config("iql", REPLAY | {"explore_start": 0.5, "explore_end": 0.5, **more})
        learner = make_algorithm("iql", ENV.spec, config, envs=4, updates=4)
        params = learner.params(learner.init(KEY))
        seen = Observation(jnp.zeros((2000, 2, 5)), state=jnp.zeros((2000, 5)))
        greedy = learner.act(params, seen, (), KEY, False)[0]
        return np.asarray(learner.act(params, seen, (), KEY, True)[0] != greedy).astype(float), params

    apart, _ = deviates()
    together, _ = deviates(explore_together=True)
    assert abs(apart.mean() - 0.375) < 0.03  # half of the steps, three actions of four
    assert abs(together.mean() - 0.375) < 0.03
    assert abs((apart[:, 0] * apart[:, 1]).mean() - 0.375**2) < 0.03
    assert abs((together[:, 0] * together[:, 1]).mean() - 0.5 * 0.75**2) < 0.03
    numbers = alike(jnp.arange(6.0).reshape(1, 3, 2), True)
    assert numbers[0].tolist() == [[0, 1]] * 3


def test_fingerprints_stand_after_the_own_numbers_and_reach_the_replay():
    unlike = EnvSpec("unlike", ("a", "b"), (Box((3,)), Box((1,))), (Discrete(2),) * 2, max_steps=10)
    assert [space.size for space in longer(unlike).observations] == [4, 2]
    seen = with_age(unlike, jnp.array([[1.0, 2, 3], [4, 0, 0]]), jnp.float32(0.5))
    assert seen.tolist() == [[1, 2, 3, 0.5], [4, 0.5, 0, 0]]
    config = make_config("iql", REPLAY | {"fingerprint": True, "bonus": "count"})
    learner = make_algorithm("iql", ENV.spec, config, envs=4, updates=4)
    state, update = learner.init(KEY), jax.jit(learner.update)
    for i in range(2):
        state, _ = update(state, rollout(learner, state), jax.random.key(i))
    stored = np.asarray(state.learner.learner.replay.rows.obs)[:16, ..., -1]
    np.testing.assert_array_equal(stored, np.repeat([0.0, 0.25], 8)[:, None, None] * np.ones((1, 4, 2)))
    with pytest.raises(UsageError, match="recordings do not go anywhere"):
        make_algorithm("cql", ENV.spec, make_config("cql", {"fingerprint": True}), envs=4, updates=4)


# --- replayed steps of others that have changed


def test_steps_weigh_by_how_much_likelier_the_others_do_the_same_now():
    legal = jnp.array([[True] * 4, [True, True, False, False]])
    q = jnp.array([[0.0, 3, 1, 2], [1, 0, 9, 9]])
    chance = taken_chance(q, jnp.array([1, 1]), legal, jnp.float32(0.2))
    np.testing.assert_allclose(chance, [0.8 + 0.2 / 4, 0.2 / 2], rtol=1e-6)
    now, then = jnp.array([0.5, 0.2, 0.9]), jnp.array([0.25, 0.4, 0.9])
    alive = jnp.ones(3, bool)
    np.testing.assert_allclose(others_change(now, then, alive), [0.5, 2.0, 1.0], rtol=1e-5)
    np.testing.assert_allclose(others_change(now, then, alive.at[0].set(False)), [0.5, 1.0, 0.5], rtol=1e-5)
    assert others_change(jnp.array([1.0, 1.0]), jnp.array([1.0, 0.01]), alive[:2]).tolist() == [HEAVIEST, 1.0]


@pytest.mark.parametrize("memory", ["none", pytest.param("gru", marks=pytest.mark.slow)])
def test_the_steps_of_unchanged_others_weigh_as_ever_and_those_of_others_do_not(memory):
    """The first rollout meets the policy that made it; then that policy, and the chance of random actions, change."""
    more = {"memory": memory, "sequence": 8, "batch_size": 64} if memory != "none" else {}
    own = REPLAY | {"steps_per_update": 32, "explore_start": 0.5, "explore_part": 1.0} | more
    plain, weighing = (
        make_algorithm("iql", ENV.spec, make_config("iql", own | extra), envs=4, updates=4)
        for extra in ({}, {"importance": True})
    )
    one, two = plain.init(KEY), weighing.init(KEY)
    data = rollout(plain, one)
    updates = [jax.jit(learner.update) for learner in (plain, weighing)]
    apart = []
    for i in range(2):
        one, two = (
            update(state, data, jax.random.key(i))[0] for update, state in zip(updates, (one, two), strict=True)
        )
        leaves = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), one.learned.params, two.learned.params)
        apart.append(max(jax.tree.leaves(leaves)))
    assert apart[0] < 1e-6 < 1e-5 < apart[1]
    then = np.asarray(two.replay.rows.extras["chance"])[:8]
    assert set(np.unique(then.round(4))) <= {0.125, 0.625}  # a half of the steps is random, among four actions
