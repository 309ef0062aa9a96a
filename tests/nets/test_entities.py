"""Networks of entities: order and number change nothing that they should not, and what is not described is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flockrl.algos.assembly import make_algorithm
from flockrl.algos.presets import make_config
from flockrl.core.entities import Entities, Kind, layout
from flockrl.core.errors import UsageError
from flockrl.core.spec import spec_from_json, spec_to_json
from flockrl.core.types import Box, Discrete, EnvSpec, Observation
from flockrl.envs import make
from flockrl.nets.entities import EntityTorso, Points, attention
from flockrl.nets.network import Network

HERD = layout(("own", 2), ("wolf", 3, 2), ("tree", 2, 1), ("wolf", 3, 1))
"""Own: 0, 1. Wolves: (2, 3, 10), (4, 5, 11), (6, 7, 12). Trees: 8, 9."""


def test_a_layout_says_where_numbers_stand():
    assert Entities(((0, 2),), (Kind("wolf", 3, ((2, 2), (10, 1))), Kind("tree", 2, ((8, 1),)))) == HERD
    assert HERD.end == 13
    assert HERD.kinds[0].width == 3
    with pytest.raises(UsageError, match="3 entities of kind wolf, and 2"):
        layout(("wolf", 3, 2), ("wolf", 2, 1))


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("heads", "team"), [(2, False), *(pytest.param(*pair, marks=SLOW) for pair in ((0, False), (0, True), (2, True)))]
)
def test_the_order_of_entities_changes_nothing(heads, team):
    torso = EntityTorso(HERD, 13, size=8, heads=heads, sizes=(6, 5), team=team)
    x = jax.random.normal(jax.random.key(0), (4, 3, 13 + team))
    if team:
        x = x.at[..., -1].set(1.0)
    params, apply = jax.jit(torso.init)(jax.random.key(1), x), jax.jit(torso.apply)
    wolves = np.array([0, 1, 4, 5, 6, 7, 2, 3, 9, 8, 11, 12, 10, *([13] if team else [])])
    swapped = x[..., wolves]  # the first wolf comes last, the trees change places
    out, same = apply(params, x), apply(params, swapped)
    assert out.shape == (4, 3, 5)
    np.testing.assert_allclose(out, same, atol=1e-6)
    other = apply(params, x[..., np.array([0, 1, 4, 5, 2, 3, 6, 7, 8, 9, *range(10, x.shape[-1])])])
    assert np.abs(out - other).max() > 1e-3  # half of a wolf changed places: these are other wolves
    if team:  # agents may change places too, and then features do
        np.testing.assert_allclose(apply(params, x[:, ::-1])[:, ::-1], out, atol=1e-6)


def test_attention_is_a_weighted_mean_over_what_is_there():
    rng = np.random.default_rng(0)
    query, key, value = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((2, 4), (3, 4), (3, 4)))
    mask = jnp.array([True, False, True])
    for q in range(2):
        parts = []
        for head in (slice(0, 2), slice(2, 4)):
            weights = np.exp(np.array([query[q, head] @ key[e, head] for e in (0, 2)]) / np.sqrt(2))
            parts.append((weights / weights.sum()) @ np.asarray(value)[[0, 2]][:, head])
        found = attention(query, key, value, 2, mask)[q]
        np.testing.assert_allclose(found, np.concatenate(parts), rtol=1e-5)


@pytest.mark.parametrize("hidden", [False, True])
def test_attention_and_its_gradient_are_those_of_the_plain_formula(hidden):
    """Five agents, two heads of three numbers, four that ask seven."""
    keys = jax.random.split(jax.random.key(0), 5)
    query, key, value, aim = (jax.random.normal(k, (5, n, 6)) for k, n in zip(keys, (4, 7, 7, 4), strict=False))
    mask = jax.random.bernoulli(keys[4], 0.5, (5, 7)).at[:, 0].set(True) if hidden else None

    def plain(query, key, value):
        ask, key, value = (x.reshape(*x.shape[:-1], 2, 3) for x in (query, key, value))
        scores = jnp.einsum("aqhd,aehd->ahqe", ask, key) / 3**0.5
        scores = scores if mask is None else jnp.where(mask[:, None, None], scores, -jnp.inf)
        return jnp.einsum("ahqe,aehd->aqhd", jax.nn.softmax(scores), value).reshape(query.shape)

    def both(formula):
        return jax.value_and_grad(lambda *x: (formula(*x) * aim).sum(), argnums=(0, 1, 2))(query, key, value)

    def mine(*x):
        return attention(*x, 2, mask)

    np.testing.assert_allclose(mine(query, key, value), plain(query, key, value), atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), both(mine), both(plain))


@pytest.mark.slow
@pytest.mark.parametrize("heads", [0, 2])
def test_entities_that_are_away_are_not_read(heads):
    described = Entities(((0, 1),), (Kind("bird", 3, ((1, 2),), there=7),))
    torso = EntityTorso(described, 10, size=4, heads=heads, sizes=(6,))
    x = jax.random.normal(jax.random.key(0), (1, 10)).at[0, 7:].set(jnp.array([1.0, 0.0, 1.0]))
    params, apply = jax.jit(torso.init)(jax.random.key(1), x), jax.jit(torso.apply)
    out = apply(params, x)
    np.testing.assert_array_equal(out, apply(params, x.at[0, 3:5].set(99.0)))
    fewer = EntityTorso(Entities(((0, 1),), (Kind("bird", 2, ((1, 2),)),)), 5, size=4, heads=heads, sizes=(6,))
    np.testing.assert_allclose(out, jax.jit(fewer.apply)(params, x[:, np.array([0, 1, 2, 5, 6])]), atol=1e-6)


def shapes(name, env, **settings):
    algorithm = make_algorithm(name, make(env).spec, make_config(name, settings), envs=4, updates=1)
    state = jax.eval_shape(lambda: algorithm.init(jax.random.key(0)))
    return algorithm, state


@pytest.mark.parametrize("net", ["entities", "deep_set"])
@pytest.mark.parametrize(("name", "env"), [("mappo", "mpe/simple_spread:N={}"), ("ippo", "mpe/simple_tag:num_good={}")])
def test_policies_and_critics_do_not_depend_on_the_number_of_agents(net, name, env):
    few, many = (shapes(name, env.format(n), net=net)[1].params for n in (2, 7))
    assert jax.tree.structure(few) == jax.tree.structure(many)
    assert [x.shape for x in jax.tree.leaves(few)] == [x.shape for x in jax.tree.leaves(many)]


def test_one_agent_alone_has_the_same_parameters():
    alone, many = (shapes("ippo", f"mpe/simple_spread:N={n}", net="entities")[1].params for n in (1, 3))
    assert jax.tree.map(jnp.shape, alone) == jax.tree.map(jnp.shape, many)


def world(env, key, order=None):
    """What agents see in a state of simple_spread, whose landmarks stand in another order."""
    state, _ = env.reset(key)
    n = env.n
    if order is not None:
        state = state._replace(pos=jnp.concatenate([state.pos[:n], state.pos[n:][order]]))
    return env._observe(state).obs[None]


@pytest.mark.slow
def test_landmarks_of_simple_spread_may_stand_in_any_order():
    env = make("mpe/simple_spread:N=4")
    algorithm, _ = shapes("ippo", "mpe/simple_spread:N=4", net="entities", hidden=(16,))
    params = jax.jit(lambda key: algorithm.params(algorithm.init(key)))(jax.random.key(0))
    a, b = (world(env, jax.random.key(3), order) for order in (None, np.array([2, 0, 3, 1])))
    assert np.abs(a - b).max() > 0.1
    gap = jax.jit(lambda a, b: algorithm.kl(params, params, Observation(a), (), Observation(b)))(a, b)
    np.testing.assert_allclose(gap, 0.0, atol=1e-6)


def test_descriptions_travel_as_json_and_with_parts():
    spec = make("mpe/simple_tag").spec
    assert spec_from_json(spec_to_json(spec)) == spec
    assert spec.part([3]).entities == (spec.entities[3],)
    with pytest.raises(UsageError, match="pairs"):
        spec_from_json({**spec_to_json(spec), "entities": [{"own": [3], "kinds": []}] * 4})


HUNT = layout(("own", 2), ("wolf", 3, 2), ("tree", 2, 1), ("wolf", 3, 1), chosen="wolf")
"""The herd's, whose last three actions are the wolves."""


@pytest.mark.parametrize("heads", [0, 2])
def test_actions_that_are_entities_move_with_them(heads):
    """Two actions that are none keep their places; the same weights serve any number of wolves."""
    torso = EntityTorso(HUNT, 13, size=4, heads=heads, sizes=(6,), points=True)
    net = Network((6,), 5, entities=torso)
    x = jax.random.normal(jax.random.key(0), (4, 3, 13))
    params, apply = jax.jit(net.init)(jax.random.key(1), x), jax.jit(net.apply)
    out, _ = apply(params, x)
    assert out.shape == (4, 3, 5)
    moved, _ = apply(params, x[..., np.array([0, 1, 4, 5, 6, 7, 2, 3, 9, 8, 11, 12, 10])])
    np.testing.assert_allclose(moved, out[..., np.array([0, 1, 3, 4, 2])], atol=1e-6)
    assert np.abs(out[..., 2] - out[..., 3]).max() > 1e-3
    alone = layout(("own", 2), ("wolf", 1, 2), ("tree", 2, 1), ("wolf", 1, 1), chosen="wolf")
    one = Network((6,), 3, entities=EntityTorso(alone, 7, size=4, heads=heads, sizes=(6,), points=True))
    fewer = jax.eval_shape(lambda: one.init(jax.random.key(1), jnp.zeros((1, 1, 7))))
    assert jax.tree.map(jnp.shape, fewer) == jax.tree.map(jnp.shape, params)


def test_scores_of_entities_by_hand():
    points = Points(2, 3, 0.5)
    x = jax.random.normal(jax.random.key(0), (1, 4 + 2 * 3))
    tree = points.init(jax.random.key(1), x)
    mine, scores = points.apply(tree, x)
    np.testing.assert_array_equal(mine, x[:, :4])
    p = jax.tree.map(np.asarray, tree["params"])
    for k in range(2):
        own = np.asarray(x)[0, 4 + 3 * k : 7 + 3 * k]
        hidden = np.tanh(own @ p["each"]["kernel"] + p["each"]["bias"] + np.asarray(x)[0, :4] @ p["mine"]["kernel"])
        np.testing.assert_allclose(scores[0, k], (hidden @ p["score"]["kernel"] + p["score"]["bias"])[0], rtol=1e-4)


def hunters(actions, **more):
    return EnvSpec("x", ("a",), (Box((13,)),), (actions,), 5, entities=(HUNT,), **more)


def test_what_agents_choose_from_is_described():
    spec = hunters(Discrete(5))
    assert spec_from_json(spec_to_json(spec)) == spec
    for name, settings in (("ippo", {}), ("iql", {"dueling": True}), ("ippo", {"memory": "gru"})):
        learner = make_algorithm(name, spec, make_config(name, {"net": "deep_set", **settings}), envs=2, updates=1)
        names = {
            str(path)
            for path, _ in jax.tree_util.tree_leaves_with_path(jax.eval_shape(learner.init, jax.random.key(0)))
        }
        assert any("points" in name for name in names) == ("memory" not in settings)
    for wrong in (Discrete(2), Box((5,))):
        with pytest.raises(UsageError, match="chooses from 3 entities 'wolf'"):
            hunters(wrong)
    with pytest.raises(UsageError, match="cannot choose from entities 'bear'"):
        layout(("own", 2), ("wolf", 3, 2), chosen="bear")
    saved = spec_to_json(spec)
    with pytest.raises(UsageError, match="'chosen' of 'entities'"):
        spec_from_json({**saved, "entities": [{**saved["entities"][0], "chosen": 3}]})


def test_what_cannot_be_read_as_entities_is_refused():
    with pytest.raises(UsageError, match="does not say which numbers"):
        shapes("ippo", "mpe/simple_crypto", net="entities")
    with pytest.raises(UsageError, match="no places"):
        make_config("ippo", {"net": "entities", "normalize_obs": True})
    with pytest.raises(UsageError, match="entity_heads has no meaning with net=deep_set"):
        make_config("ippo", {"net": "deep_set", "entity_heads": 2})
    with pytest.raises(UsageError, match="share groups"):
        shapes("ippo", "mpe/simple_tag", net="entities", share="all")
    with pytest.raises(UsageError, match="observes 3 numbers, and its entities reach to 13"):
        EnvSpec("x", ("a",), (Box((3,)),), (Discrete(2),), 5, entities=(HERD,))
