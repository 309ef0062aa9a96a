"""Transfer between tasks: entities and actions by other names, layers that begin anew or stay as they are."""

import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import flockrl
from flockrl.algos.assembly import make_algorithm
from flockrl.algos.parts import adam, descend, in_layers
from flockrl.algos.presets import make_config
from flockrl.core.entities import layout
from flockrl.core.errors import UsageError
from flockrl.core.types import Box, Discrete, EnvSpec
from flockrl.envs import make
from flockrl.rollouts.compiled import scan_rollout, start
from flockrl.training.config import RunConfig, TrainOptions
from flockrl.training.warm import changes_of, take_over

SMALL = {"rollout_steps": 10, "hidden": (8,), "epochs": 2, "minibatches": 1}


def spec(kind, actions=5, count=2):
    entities = layout(("own", 3), (kind, count, 2), ("agent", 1, 2))
    return EnvSpec(
        f"test/{kind}", ("a_0", "a_1"), (Box((5 + 2 * count,)),) * 2, (Discrete(actions),) * 2, 9,
        entities=(entities,) * 2,
    )  # fmt: skip


def learner(where, seed=0, name="ippo", **settings):
    config = make_config(name, {"net": "deep_set", "entity_size": 4, "hidden": (4,), **settings})
    return jax.jit(make_algorithm(name, where, config, envs=2, updates=3).init)(jax.random.key(seed))


def config(init_map="", reinit=""):
    return RunConfig("ippo", "x", TrainOptions(), None, "run", init_map=init_map, reinit=reinit)


def equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_entities_by_another_name():
    there, here = spec("landmark"), spec("goal", count=5)
    old, fresh = learner(there, 1), learner(here, 2)
    with pytest.raises(UsageError, match=r"kind_goal_0.* is not there"):
        take_over(old, fresh, "run", False, changes_of(config(), there, here))
    new, note = take_over(old, fresh, "run", False, changes_of(config("landmark=goal"), there, here))
    torso, source = new.params["actor"][0]["torso"], old.params["actor"][0]["torso"]
    equal(torso["kind_goal_0"], source["kind_landmark_0"])
    equal(torso["kind_goal_1"], source["kind_landmark_1"])
    equal(new.params["critic"][0]["torso"]["mlp"], old.params["critic"][0]["torso"]["mlp"])
    assert "did not fit" not in note


def test_actions_by_other_numbers():
    there, here = spec("landmark", 5), spec("landmark", 3)
    old, fresh = learner(there, 1), learner(here, 2)
    new, _ = take_over(old, fresh, "run", False, changes_of(config("action:4=0,action:1=2"), there, here))
    head, source, own = (x.params["actor"][0]["head"]["kernel"] for x in (new, old, fresh))
    equal(head[:, 0], source[:, 4])
    equal(head[:, 2], source[:, 1])
    equal(head[:, 1], own[:, 1])  # nothing there stands for it
    equal(new.params["critic"][0]["head"], old.params["critic"][0]["head"])


def test_layers_that_begin_anew():
    where = spec("landmark")
    old, fresh = learner(where, 1), learner(where, 2)
    new, _ = take_over(old, fresh, "run", False, changes_of(config(reinit="head,value_moments"), where, where))
    equal(new.params["actor"][0]["head"], fresh.params["actor"][0]["head"])
    equal(new.params["actor"][0]["torso"], old.params["actor"][0]["torso"])
    with pytest.raises(UsageError, match="reinit: there is no layer 'tail'"):
        take_over(old, fresh, "run", False, changes_of(config(reinit="tail"), where, where))


def test_what_cannot_be_said():
    there, here = spec("landmark"), spec("goal", 3)
    for text, word in (
        ("landmark", "Write init_map"), ("action:x=1", "Write init_map"), ("treasure=goal", "no entities 'treasure'"),
        ("landmark=treasure", "test/goal has no entities 'treasure', but agent, goal"), ("action:5=0", "cannot be"),
        ("action:0=3", "cannot be"), ("action:0=1,action:2=1", "cannot be"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=word):
            changes_of(config(text), there, here)
    with pytest.raises(UsageError, match="reinit changes what init_from takes over"):
        flockrl.train("ippo", "probe/action", reinit="head")


def test_frozen_layers_get_no_gradient_and_the_others_the_same_as_without_them():
    key = jax.tree_util.DictKey
    assert in_layers((key("torso"), key("dense_0"), key("bias")), ("dense_0.bias",))
    assert not in_layers((key("torso"), key("dense_01"), key("bias")), ("dense_0", "tor"))
    net = {"torso": {"kernel": jnp.array([1.0, 2.0])}, "head": {"kernel": jnp.array([3.0])}}
    grads = {"torso": {"kernel": jnp.array([30.0, 40.0])}, "head": {"kernel": jnp.array([0.3])}}
    held, alone = adam(1.0, 1e-5, "torso"), adam(1.0, 1e-5)
    (moved,), _ = descend(held, [net], [held.init(net)], [grads], jnp.float32(0.1))
    (head,), _ = descend(alone, [net["head"]], [alone.init(net["head"])], [grads["head"]], jnp.float32(0.1))
    equal(moved["torso"], net["torso"])
    equal(moved["head"], head)  # frozen gradients are not in the norm that is clipped
    assert optax.tree.norm(head) != 3.0


@pytest.mark.parametrize(
    ("name", "settings"),
    [("ippo", SMALL), pytest.param("iql", {"rollout_steps": 10, "hidden": (8,), "steps_per_update": 10, "batch_size": 8,
      "buffer_size": 200, "learning_starts": 10}, marks=pytest.mark.slow)],
)  # fmt: skip
def test_frozen_parameters_are_bit_equal_after_training(name, settings):
    env = make("mpe/simple_spread:N=2")
    made = make_algorithm(name, env.spec, make_config(name, {**settings, "freeze": "torso"}), envs=2, updates=3)

    @jax.jit
    def train(state, key):
        actors = start(made, env, key, 2)
        for k in jax.random.split(key, 2):
            actors, trajectory, _ = scan_rollout(made, made.params(state), env, actors, k)
            state, _ = made.update(state, trajectory, k)
        return state

    def networks(state):
        params = state.params if name == "ippo" else state.learned.params
        return [net for nets in params.values() for net in nets]

    before = jax.jit(made.init)(jax.random.key(0))
    for old, new in zip(networks(before), networks(train(before, jax.random.key(1))), strict=True):
        equal(new["torso"], old["torso"])
        assert (new["head"]["kernel"] != old["head"]["kernel"]).any()


def test_layers_that_cannot_be_frozen_are_refused():
    where = spec("landmark")
    with pytest.raises(UsageError, match="freeze: there is no layer 'actor', but bias, dense_0, head, kernel, torso"):
        learner(where, freeze="actor", net="flat", entity_size=None)
    with pytest.raises(UsageError, match="PopArt rescales"):
        learner(where, freeze="head")
    with pytest.raises(UsageError, match="use happo"):
        learner(where, name="hatrpo", freeze="torso", net="flat", entity_size=None)


def test_what_a_warm_start_bought():
    """Steps to a score by hand; the interval of a ratio holds it, and shrinks to it where seeds agree."""
    bench = runpy.run_path(str(Path(__file__).parent.parent / "bench" / "bought.py"))
    rows = [{"step": 0, "eval_return": 1.0}, {"step": 10}, {"step": 20, "eval_return": 5.0}, {"step": 30}]
    steps, there = bench["reached"]([rows, rows[:2], rows[2:]], "eval_return", 4.5)
    assert steps.tolist() == [20, 10, 20]
    assert there.tolist() == [True, False, True]
    staged = [{**row, "stage": stage} for row, stage in zip(rows * 2, [0] * 4 + [1] * 4, strict=True)]
    staged[4:] = [{**row, "step": row["step"] + 40} for row in staged[4:]]
    steps, there = bench["reached"]([staged, staged[:4]], "eval_return", 4.5, [1, 1])
    assert steps.tolist() == [60, 30]  # what an earlier stage pays does not count
    assert there.tolist() == [True, False]
    value, low, high = bench["ratio"](np.array([10.0, 20.0, 30.0]), np.array([30.0, 40.0, 50.0]))
    assert value == 0.5
    assert 10 / 50 <= low < 0.5 < high <= 30 / 30
    assert bench["ratio"](np.array([10.0, 10.0]), np.array([40.0])) == (0.25, 0.25, 0.25)
