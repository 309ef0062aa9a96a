import dataclasses
import hashlib
import importlib.util
import json
import shutil
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flockrl
from flockrl.algos.assembly import make_algorithm
from flockrl.algos.presets import make_config
from flockrl.commands.main import main
from flockrl.core.actions import clip_action
from flockrl.core.errors import UsageError
from flockrl.core.groups import make_groups
from flockrl.core.random import Tape
from flockrl.core.spec import Box, Discrete, EnvSpec, MultiDiscrete, spec_to_json
from flockrl.core.types import Actor, Observation
from flockrl.data.choices import choices, is_real
from flockrl.policies.policy import Policy
from flockrl.portable.graph import ordered
from flockrl.portable.model import Model
from flockrl.portable.write import Exporter
from flockrl.relay.actor import Actor as RelayActor

NAMES = ("x_0", "lead", "x_1")
SEES, ALIKE = (Box((6,)), Box((4,)), Box((6,))), (Box((6,)),) * 3
SPECS = {
    "alike": EnvSpec("alike", ("a_0", "a_1", "a_2"), ALIKE, (Discrete(5),) * 3, max_steps=25),
    "unlike": EnvSpec("unlike", NAMES, SEES, (Discrete(5), Discrete(3), Discrete(5)), max_steps=25),
    "many": EnvSpec("many", ("a_0", "a_1"), ALIKE[:2], (Discrete(40),) * 2, max_steps=25),
    "real": EnvSpec("real", NAMES, SEES, (Box((2,), -1.0, 4.0), Box((1,), -2.0, 3.0), Box((2,), -1.0, 4.0)), 25),
    "bounds": EnvSpec("bounds", ("a_0", "a_1", "a_2"), ALIKE, (Box((2,), (-1.0, 0.0), (1.0, 4.0)),) * 3, 25),
    "free": EnvSpec("free", NAMES, SEES, (Box((2,), -2.0), Box((1,)), Box((2,), -2.0)), 25),
    "mixed": EnvSpec(
        "mixed", (*NAMES, "much"), (*SEES, Box((5,))),
        (Discrete(5), Box((2,), (-1.0, 0.0), (4.0, 9.0)), Discrete(5), MultiDiscrete((3, 4))), 25,
    ),
    "pair": EnvSpec("pair", NAMES, SEES, (Discrete(5), Box((1,), -2.0, 3.0), Discrete(5)), 25),
    "eye": EnvSpec("eye", ("e_0", "e_1"), (Box((14, 13, 3), 0.0, 255.0, "uint8"),) * 2, (Discrete(4),) * 2, 25),
}  # fmt: skip
FORMATS = ["onnx", "torchscript"] if importlib.util.find_spec("torch") else ["onnx"]
GRU, WARM = {"memory": "gru", "memory_size": 8}, {"learning_starts": 0}
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("mappo", "unlike", GRU),
    ("ippo", "real", {"normalize_obs": True, "activation": "gelu"}),
    ("maddpg", "real", {**WARM, "explore": "ou"}),
    ("iql_tabular", "unlike", {"table_size": 512, "bin_width": 0.5}),
    ("ippo", "unlike", {"comm": "tarmac", "comm_rounds": 2, "channel": "delay=1,bits=3"}),
    ("mappo", "mixed", {}),
    ("maddpg", "mixed", {**WARM, **GRU, "explore": "ou", "sequence": 2, "rollout_steps": 2, "steps_per_update": 2}),
]
MORE: list[tuple[str, str, dict[str, Any]]] = [
    ("mappo", "alike", {"normalize_obs": True, "activation": "silu"}),
    ("ippo", "unlike", {"share": "all"}),
    ("ippo", "unlike", {"share": "none", "agent_ids": False}),
    ("ippo", "many", {}),
    ("ippo", "bounds", {"share": "all"}),
    ("ippo", "free", GRU),
    ("ippo", "eye", {**GRU, "activation": "relu"}),
    ("ippo", "mixed", {**GRU, "share": "none"}),
    ("maddpg", "mixed", {}),
    ("matd3", "mixed", {**WARM, "explore": "epsilon"}),
    ("masac", "pair", {**WARM, **GRU, "sequence": 2, "rollout_steps": 2, "steps_per_update": 2}),
    ("ireinforce", "mixed", {}),
    ("maddpg", "real", {**WARM, **GRU, "explore": "ou", "sequence": 2, "rollout_steps": 2, "steps_per_update": 2}),
    ("ia2c", "alike", {}),
    ("ireinforce", "unlike", {}),
    ("mareinforce", "real", {}),
    ("maddpg", "bounds", WARM),
    ("maddpg", "bounds", {}),
    ("iddpg", "real", {**WARM, "explore": "epsilon"}),
    ("maddpg", "unlike", WARM),
    ("maddpg", "unlike", {}),
    ("iddpg", "alike", {**WARM, "explore": "epsilon"}),
    ("matd3", "real", WARM),
    ("matd3", "unlike", WARM),
    ("masac", "real", WARM),
    ("masac", "unlike", WARM),
    ("isac", "bounds", {**WARM, "share": "all"}),
    ("iql", "unlike", {**WARM, "dueling": True}),
    ("vdn", "many", WARM),
    ("qmix", "unlike", {**WARM, **GRU, "dueling": True}),
    ("qplex", "unlike", {**WARM, "share": "none"}),
    ("wqmix", "alike", {**WARM, "share": "all"}),
    ("qtran", "alike", {}),
    ("iql_tabular", "alike", {"table_size": 512, "share": "none"}),
]
MATRIX = [pytest.param(*case, id="-".join(case[:2])) for case in CASES] + [
    pytest.param(*case, id="-".join(map(str, [*case[:2], *case[2]])), marks=pytest.mark.slow) for case in MORE
]


class Given:
    """Numbers in the place of a generator."""

    def __init__(self, numbers):
        self.numbers = numbers

    def random(self, size, dtype):
        return np.broadcast_to(self.numbers, size).astype(dtype)


def build(name, spec, settings):
    """An algorithm and parameters that look as if they had learned something."""
    hidden = {} if name == "iql_tabular" else {"hidden": (8,)}
    config = make_config(name, {**hidden, **settings})
    algorithm = make_algorithm(name, spec, config, envs=4, updates=10)

    @jax.jit
    def make(key):
        params = algorithm.params(algorithm.init(key))
        leaves, structure = jax.tree.flatten(params)
        keys = jax.random.split(key, len(leaves))
        moved = [
            x + 0.1 * jnp.abs(jax.random.normal(k, x.shape)) if x.ndim and x.dtype == jnp.float32 else x
            for x, k in zip(leaves, keys, strict=True)
        ]
        return jax.tree.unflatten(structure, moved)

    return algorithm, make(jax.random.key(0)), config.share


def seen(spec, batch, rng):
    """Random observations and masks."""
    shape = (batch, spec.num_agents, spec.obs_size)
    pictures = spec.observations[0].dtype == "uint8"
    obs = rng.integers(0, 256, shape).astype(np.uint8) if pictures else rng.normal(size=shape).astype(np.float32)
    mask = (rng.random((batch, spec.num_agents, spec.action_size)) < 0.7) | is_real(spec.actions)[:, None]
    for choice in choices(spec.actions):
        mask[:, choice.agent, choice.start] = True
    return obs, mask if spec.maskable else None


def native(algorithm, params, spec, obs, mask, memory, noise, columns, alive):
    """What JAX does with the same inputs: every output by name."""
    batch = len(obs)

    @jax.jit
    def act(params, observation, memory, noise):
        probe = Tape(batch)
        algorithm.act(params, observation, memory, probe, True)
        given = [
            jnp.zeros((batch, len(agents), count)) if first is None else noise[:, agents, first : first + count]
            for (agents, count), first in zip(probe.asked, columns, strict=True)
        ]
        action = algorithm.act(params, observation, memory, jax.random.key(0), False)[0]
        raw, after, extras = algorithm.act(params, observation, memory, Tape(batch, given), True)
        extras.pop("messages", None)  # counts are not exported
        memories = {f"next_memory_{i}": x for i, x in enumerate(jax.tree.leaves(after))}
        continuous = {} if spec.discrete else {"raw": raw}
        bounded = {"action": clip_action(spec, action), "sampled": clip_action(spec, raw)}
        return {**bounded, **continuous, **extras, **memories}

    result = act(
        params,
        Observation(obs, mask, alive=alive),
        jax.tree.unflatten(jax.tree.structure(algorithm.memory(1)), memory),
        noise,
    )
    return {name: np.asarray(x) for name, x in result.items()}


def outputs(path, feed):
    """What the exported file does with the inputs that it knows."""
    saved = json.loads((path / "metadata.json").read_text())
    names = [entry["name"] for entry in saved["outputs"]]
    given = {entry["name"]: feed[entry["name"]] for entry in saved["inputs"]}
    if saved["model_type"] == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(path / saved["model_file"], providers=["CPUExecutionProvider"])
        return dict(zip(names, session.run(names, given), strict=True))
    import torch

    model = torch.jit.load(path / saved["model_file"])
    return {n: x.numpy() for n, x in zip(names, model(*map(torch.from_numpy, given.values())), strict=True)}


def weights(exporter):
    """How many numbers of weights there are in all files together."""
    values = [x for team in exporter.traced for x in ordered(list(team.outputs.values()))]
    return sum(x.parameter.size for x in values if x.parameter is not None and x.parameter.ndim)


def largest_difference(want, got):
    assert set(want) == set(got)
    for name, x in want.items():
        assert got[name].shape == x.shape
        assert got[name].dtype == x.dtype
    return max(float(np.abs(got[name].astype(float) - x).max()) for name, x in want.items())


@pytest.mark.parametrize(("name", "world", "settings"), MATRIX)
def test_exported_and_native_actions_agree(name, world, settings, tmp_path):
    spec, rng = SPECS[world], np.random.default_rng(0)
    algorithm, params, share = build(name, spec, settings)
    exporter = Exporter(algorithm, spec, share, name=name)
    path = exporter.write(params, tmp_path / "onnx")
    (team,) = exporter.traced
    obs, mask = seen(spec, 200, rng)
    sizes = {x.name: x.shape[1:] for x in team.inputs}
    memory = [rng.normal(size=(200, *sizes[x])).astype(np.float32) for x in sizes if x.startswith("memory")]
    noise = rng.random((200, *sizes.get("noise", (spec.num_agents, 0))), np.float32)
    alive = rng.random((200, spec.num_agents)) < 0.8
    feed = {"obs": obs, "mask": mask, "noise": noise, "alive": alive}
    feed |= {f"memory_{i}": x for i, x in enumerate(memory)}
    want = native(algorithm, params, spec, obs, mask, memory, noise, team.columns, alive)
    for format in FORMATS:
        if format != "onnx":
            path = Exporter(algorithm, spec, share, name=name, format=format).write(params, tmp_path / format)
        one = {key: None if x is None else x[:1] for key, x in feed.items()}
        differences = [
            largest_difference(want, outputs(path, feed)),
            largest_difference({key: x[:1] for key, x in want.items()}, outputs(path, one)),
        ]
        print(f"{format} {name} {world} {settings}: {max(differences):.1e}")
        assert max(differences) < 1e-5


def test_an_exported_team_loses_the_messages_that_its_numbers_lose(tmp_path):
    """Numbers above the chance of loss lose nothing, numbers of 0 everything."""
    spec, rng = SPECS["alike"], np.random.default_rng(0)
    algorithm, params, share = build("ippo", spec, {"comm": "commnet", "channel": "loss=0.5"})
    path = Exporter(algorithm, spec, share, name="ippo").write(params, tmp_path / "model")
    obs, _ = seen(spec, 50, rng)
    (noise,) = [x for x in json.loads((path / "metadata.json").read_text())["inputs"] if x["name"] == "noise"]
    found = {}
    for level, channel in ((0.9, ""), (0.0, "loss=1")):
        feed = {"obs": obs, "noise": np.full((50, *noise["shape"][1:]), level, np.float32)}
        feed |= {"mask": np.ones((50, 3, 5), bool), "alive": np.ones((50, 3), bool)}
        found[level] = outputs(path, feed)["action"]
        other = build("ippo", spec, {"comm": "commnet", "channel": channel})[0]
        want = other.act(params, Observation(jnp.asarray(obs)), (), jax.random.key(0), False)[0]
        np.testing.assert_array_equal(found[level], want)
    assert (found[0.9] != found[0.0]).any()
    split = build("ippo", spec, {"comm": "commnet", "share": "none"})
    with pytest.raises(UsageError, match="depends on what others see"):
        Exporter(split[0], spec, "none", name="ippo", per_group=True).write(split[1], tmp_path / "apart")


GROUPS = [
    *(pytest.param(*case, id="-".join(map(str, [*case[:2], *case[2]]))) for case in (CASES[0], CASES[2], *CASES[-2:])),
    *(pytest.param(*case, id="-".join(map(str, [*case[:2], *case[2]])), marks=pytest.mark.slow) for case in MORE[7:13]),
]


@pytest.mark.parametrize(("name", "world", "settings"), GROUPS)
def test_a_group_alone_acts_as_in_its_team(name, world, settings, tmp_path):
    spec, rng = SPECS[world], np.random.default_rng(1)
    algorithm, params, share = build(name, spec, settings)
    one, several = (Exporter(algorithm, spec, share, name=name, per_group=x) for x in (False, True))
    team, parts = Model(one.write(params, tmp_path / "team")), several.write(params, tmp_path / "parts")
    assert weights(one) == weights(several)  # nobody carries others' weights
    obs, mask = seen(spec, 20, rng)
    numbers = rng.random((20, *team.metadata["noise"]["shape"][1:]))
    memory = tuple(rng.normal(size=(20, *shape)).astype(np.float32) for shape in team.metadata["memory"])
    for number, group in enumerate(make_groups(spec, share)):
        model, index = Model(parts / f"group_{number}"), list(group.agents)

        def own_memories(memories, number=number, index=index):
            """The group's own memory, and its rows of what has one for each agent."""
            apart = [x for x in memories if x.shape[1] != spec.num_agents][number : number + 1]
            return (*apart, *(x[:, index] for x in memories if x.shape[1] == spec.num_agents))

        assert model.spec.agents == tuple(spec.agents[i] for i in index)
        o, a, w = model.spec.obs_size, model.spec.action_size, model.spec.action_width
        own = own_memories(memory)
        assert len(model.memory()) == len(own)
        chance = numbers[:, index, : model.metadata["noise"]["shape"][2]]
        legal = mask[:, index, :a] if model.spec.maskable else None
        for explore in (True, False):
            together = team.act(obs, mask, memory, Given(numbers), explore)
            alone = model.act(obs[:, index, :o], legal, own, Given(chance), explore)
            expected = together.action[:, index] if spec.discrete else together.action[:, index, :w]
            assert alone.action.dtype == np.dtype(model.spec.action_dtype)
            np.testing.assert_allclose(
                alone.action.reshape(20, len(index), -1), expected.reshape(20, len(index), -1), atol=1e-5
            )
            for x, y in zip(alone.memory, own_memories(together.memory), strict=True):
                np.testing.assert_allclose(x, y, atol=1e-5)
    with pytest.raises(UsageError, match=r"one model per group: name one, such as .*group_0"):
        Model(parts)


def lookers(act, memory=lambda batch: ()):
    """The teams of `act(obs, memory) -> action, memory`, with the agents of "unlike"."""
    return Actor(lambda params, seen, memory, key, explore: (*act(seen.obs, memory), {}), memory)


@pytest.mark.parametrize(
    "policy",
    [
        lookers(lambda obs, memory: ((obs.sum(1, keepdims=True) + obs > 0).sum(-1) % 3, memory)),
        lookers(
            lambda obs, memory: ((memory + obs[..., 0]).astype(int) % 3, jnp.roll(memory, 1, 1)),
            lambda b: jnp.ones((b, 3)),
        ),
        lookers(lambda obs, memory: ((memory[:, None] + obs[..., 0]).astype(int) % 3, obs[:, 2, 0]), jnp.zeros),
    ],
    ids=["observations", "rows of memory", "memory"],
)
def test_a_group_that_needs_others_cannot_be_alone(policy, tmp_path):
    spec = SPECS["unlike"]
    Exporter(policy, spec, "groups", name="mine").write({}, tmp_path / "team")
    with pytest.raises(UsageError, match="do depends on what others see or remember: export the whole team"):
        Exporter(policy, spec, "groups", name="mine", per_group=True).write({}, tmp_path / "parts")


@pytest.mark.parametrize("world", ["mixed", "pair"])
def test_a_model_of_unlike_agents_acts_as_the_policy(world, tmp_path):
    spec, rng = SPECS[world], np.random.default_rng(2)
    algorithm, params, share = build("ippo", spec, {})
    policy = Policy(algorithm, params, spec, name="ippo", share=share)
    model = Model(flockrl.export(policy, tmp_path / "team"))
    obs, mask = seen(spec, 50, rng)
    expected = policy.act(obs, mask)
    got = model.act(obs, mask, explore=False).action
    assert got.shape == (50, *spec.action_shape)
    np.testing.assert_allclose(got, expected, atol=1e-5)
    forbidden = np.where(is_real(spec.actions)[:, None], False, mask)  # masks of real actions are not used
    np.testing.assert_array_equal(model.act(obs, forbidden, explore=False).action, got)
    named = policy.act(
        dict(zip(spec.agents, (row[: s.size] for row, s in zip(obs[0], spec.observations, strict=True)), strict=True)),
        dict(zip(spec.agents, (row[: s.size] for row, s in zip(mask[0], spec.actions, strict=True)), strict=True)),
    )
    for i, (agent, space) in enumerate(zip(spec.agents, spec.actions, strict=True)):
        np.testing.assert_allclose(named[agent], expected[0, i, : space.width].squeeze(), atol=1e-6)
    assert type(named["x_0"]) is int
    with pytest.raises(UsageError, match="act expects masks of shape"):
        policy.act(obs, mask[..., :2])


FAR = np.array([0.5, -np.inf, 2.0], np.float32)


def counting():
    """Counts steps in whole numbers from 1 on, and keeps the highest first entry that each agent saw, from FAR on."""

    def act(params, seen, memory, key, explore):
        count, high = memory["count"], jnp.maximum(memory["high"], seen.obs[..., 0])
        action = jnp.minimum(count[:, None] + (high > 1), 4)
        return action.astype(jnp.int32), {"count": count + 1, "high": high}, {}

    def memory(batch):
        return {"count": jnp.ones(batch, jnp.int32), "high": jnp.tile(FAR, (batch, 1))}

    return Actor(act, memory)


def test_memory_begins_as_the_algorithm_says(tmp_path):
    spec, obs = SPECS["alike"], np.zeros((3, 6), np.float32)
    policy = Policy(counting(), {}, spec, name="mine", share="all")
    path = flockrl.export(policy, tmp_path / "team")
    model = Model(path)
    count, high = model.memory(4)
    assert (count.dtype, count.tolist()) == (np.int32, [1] * 4)
    assert high.dtype == np.float32
    assert np.array_equal(high, np.tile(FAR, (4, 1)))
    assert [entry["dtype"] for entry in model.metadata["inputs"] if "memory" in entry["name"]] == ["int32", "float32"]
    memory = None
    for t in range(4):
        step = model.act(obs + (t == 2) * np.float32(5), None, memory, explore=False)
        memory = step.memory
        assert step.action.tolist() == policy.act(obs + (t == 2) * np.float32(5)).tolist()
        assert step.action.tolist() == [[1, 1, 2], [2, 2, 3], [4, 4, 4], [4, 4, 4]][t]
    assert model.act(np.stack([obs] * 3), explore=False).action.tolist() == [[1, 1, 2]] * 3
    relayed = RelayActor(path, explore=False)
    for _ in range(2):  # every episode begins there
        assert [relayed.request_action(obs).tolist() for _ in range(2)] == [[1, 1, 2], [2, 2, 3]]
        relayed.flag_last_action()
    saved = json.loads((path / "metadata.json").read_text())
    for changed, says in (
        (["much", 0.0], "no usable 'initial_memory'"),
        ([1], "no usable"),
        ([1, [1.0, 2.0]], "no usable"),
    ):
        (path / "metadata.json").write_text(json.dumps({**saved, "initial_memory": changed}))
        with pytest.raises(UsageError, match=says):
            Model(path)
    del saved["initial_memory"]  # as exports had it before
    (path / "metadata.json").write_text(json.dumps(saved))
    assert Model(path).act(obs, explore=False).action.tolist() == [0, 0, 0]


def test_a_memory_that_is_a_key_is_refused(tmp_path):
    policy = Actor(
        counting().act, lambda batch: {"count": jax.random.split(jax.random.key(0), batch), "high": FAR[None]}
    )
    with pytest.raises(UsageError, match="remembers a random key"):
        Exporter(policy, SPECS["alike"], "all", name="mine").write({}, tmp_path / "team")


@pytest.fixture(scope="module")
def exported(tiny_run, tmp_path_factory):
    return flockrl.export(tiny_run, tmp_path_factory.mktemp("export") / "team")


def test_a_model_acts_as_its_run_does(tiny_run, exported):
    model, policy = Model(exported), tiny_run.policy()
    assert model.spec == tiny_run.env.spec
    assert model.version == 8
    obs = np.random.default_rng(0).normal(size=(50, 3, 18)).astype(np.float32)
    np.testing.assert_array_equal(model.act(obs, explore=False).action, policy.act(obs))
    np.testing.assert_array_equal(model.act(obs[0], explore=False).action, policy.act(obs[0]))


def test_the_numbers_that_a_key_draws_make_the_action_that_the_key_makes(tiny_run, exported):
    algorithm, key = tiny_run.algorithm, jax.random.key(3)
    obs = np.random.default_rng(0).normal(size=(50, 3, 18)).astype(np.float32)
    act = jax.jit(algorithm.act, static_argnums=4)
    action, _, extras = act(tiny_run.params(), Observation(obs), (), key, True)
    numbers = np.asarray(jax.random.uniform(key, (50, 3, 1)))
    step = Model(exported).act(obs, rng=Given(numbers))
    np.testing.assert_array_equal(step.action, action)
    np.testing.assert_allclose(step.logp, extras["logp"], atol=1e-5)


def test_sampled_actions_are_spread_as_the_policy_says(exported):
    model, obs = Model(exported), np.zeros((3, 18), np.float32)
    many = model.act(np.broadcast_to(obs, (20_000, 3, 18)), rng=np.random.default_rng(0))
    share = np.bincount(many.action[:, 0], minlength=5) / 20_000
    claimed = np.array([np.exp(many.logp[:, 0][many.action[:, 0] == i].mean()) for i in range(5)])
    np.testing.assert_allclose(share, claimed, atol=0.015)
    assert abs(claimed.sum() - 1) < 1e-5


def test_metadata_says_what_others_need(exported):
    saved = json.loads((exported / "metadata.json").read_text())
    content = (exported / saved["model_file"]).read_bytes()
    assert saved["sha256"] == hashlib.sha256(content).hexdigest()
    assert (saved["model_type"], saved["default_device"]) == ("onnx", "cpu")
    assert (saved["input_dtype"], saved["input_shape"]) == ("float32", [1, 3, 18])
    assert (saved["output_dtype"], saved["output_shape"]) == ("int32", [1, 3])
    assert saved["share"] == [["agent_0", "agent_1", "agent_2"]]
    assert saved["noise"] == {"kind": "uniform", "low": 0.0, "high": 1.0, "shape": ["batch", 3, 1]}
    assert [x["name"] for x in saved["inputs"]] == ["obs", "mask", "noise"]
    assert [x["name"] for x in saved["outputs"]] == ["action", "sampled", "logp"]


def test_the_rate_of_exploration_is_in_the_file(tmp_path):
    algorithm, params, share = build("iql", SPECS["alike"], {})
    exporter = Exporter(algorithm, SPECS["alike"], share, name="iql")
    model = Model(exporter.write({**params, "epsilon": jnp.float32(0.0)}, tmp_path / "team"))
    obs, mask = seen(SPECS["alike"], 100, np.random.default_rng(0))
    greedy, rng = model.act(obs, mask, explore=False).action, np.random.default_rng(1)
    assert model.metadata["exploration"] == {"epsilon": 0.0}
    np.testing.assert_array_equal(model.act(obs, mask, rng=rng).action, greedy)
    # The same exporter, other parameters: nothing is traced again, and the old model is gone.
    traced = exporter.traced
    model = Model(exporter.write({**params, "epsilon": jnp.float32(1.0)}, tmp_path / "team", version=5))
    assert exporter.traced is traced
    assert (model.version, model.metadata["exploration"]) == (5, {"epsilon": 1.0})
    assert len(list((tmp_path / "team").iterdir())) == 2
    action = model.act(obs, mask, rng=rng).action
    assert (action != greedy).mean() > 0.4
    assert np.take_along_axis(mask, action[..., None], -1).all()


class Attention(nn.Module):
    """A user's network: pictures through convolutions and pooling, then agents that look at each other."""

    @nn.compact
    def __call__(self, x):
        y = x.reshape(-1, 8, 8, 3)
        y = nn.relu(nn.Conv(4, (3, 3), strides=(2, 2))(y))
        y = nn.max_pool(y, (2, 2), (2, 2)) + nn.avg_pool(y, (2, 2), (2, 2), padding="SAME")
        y = nn.LayerNorm()(nn.Dense(8)(y.reshape(*x.shape[:-1], -1)))
        y = y + nn.MultiHeadDotProductAttention(2)(y, y)
        order = jnp.take_along_axis(y, jnp.argmax(y, -1, keepdims=True), -1)
        steps = jax.lax.scan(lambda h, w: (jnp.tanh(h + w), h), order, jnp.arange(3.0))[1]
        steps = jax.lax.dynamic_slice_in_dim(steps, jnp.int32(7), 1)  # the last one: 7 is beyond the end
        return nn.Dense(4)(nn.softplus(y) + steps[0] + nn.Embed(4, 8)(jnp.argmin(y, -1) % 4))


def actor(net):
    def act(params, observation, memory, key, explore):
        out = net.apply(params, observation.obs)
        return (
            jnp.where(observation.avail, out, -1e9).argmax(-1).astype(jnp.int32),
            memory,
            {"out": out} if explore else {},
        )

    return Actor(act, lambda batch: ())


@pytest.mark.parametrize("format", FORMATS)
def test_a_network_of_the_user_is_exported_as_it_is(format, tmp_path):
    net, rng = Attention(), np.random.default_rng(0)
    spec = dataclasses.replace(SPECS["eye"], observations=(Box((192,)),) * 2)
    params = jax.jit(net.init)(jax.random.key(0), jnp.zeros((1, 2, 192)))
    path = Exporter(actor(net), spec, "all", name="mine", format=format).write(params, tmp_path / "mine")
    for batch in (1, 6):
        obs, mask = seen(spec, batch, rng)
        want = np.asarray(jax.jit(net.apply)(params, obs))
        got = outputs(path, {"obs": obs, "mask": mask})
        np.testing.assert_allclose(got["out"], want, atol=1e-5)
        np.testing.assert_array_equal(got["action"], np.where(mask, want, -1e9).argmax(-1))


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda x: jnp.sort(x, axis=-1), "the JAX operation 'sort', which export does not know"),
        (lambda x: x - x.mean(0), "mixes the teams of a batch"),
        (lambda x: x + len(x), "the batch size changes"),
        (lambda x: x + jax.random.normal(jax.random.key(0), x.shape), "the JAX operation 'random_"),
        (lambda x: x.astype(jnp.bfloat16), "computes with bfloat16"),
        (lambda x: jax.lax.while_loop(lambda y: y.sum() < 0, lambda y: y + 1, x), "operation 'while'"),
    ],
)
def test_what_cannot_be_exported_is_named(function, says, tmp_path):
    class Odd(nn.Module):
        def __call__(self, x):
            return function(x)[..., :5]

    exporter = Exporter(actor(Odd()), SPECS["alike"], "all", name="odd")
    with pytest.raises(UsageError, match=says):
        exporter.write({}, tmp_path / "odd")


def test_a_damaged_or_foreign_model_is_refused(exported, tmp_path):
    def changed(**fields):
        path = tmp_path / str(len(list(tmp_path.iterdir())))
        shutil.copytree(exported, path)
        saved = json.loads((path / "metadata.json").read_text())
        (path / "metadata.json").write_text(json.dumps({**saved, **fields}))
        return path

    file = next(exported.glob("*.onnx")).name
    for path, says in [
        (changed(sha256="0" * 64), "is damaged"),
        (changed(model_file=f"../0/{file}"), "must lie beside"),
        (changed(model_file="none.onnx"), "Cannot read the model"),
        (changed(format="other"), "not a team that flockrl exported"),
        (changed(format_version=2), "format version 2, and this flockrl reads 1"),
        (changed(model_type="pt"), "TorchScript"),
        (changed(policy_version="new"), "no usable 'policy_version'"),
        (changed(inputs=[]), "has other inputs"),
        (changed(spec={}), "has no 'name'"),
        (changed(spec=spec_to_json(SPECS["alike"])), "is not one for the agents and spaces"),
        (tmp_path / "nowhere", "has no metadata.json"),
    ]:
        with pytest.raises(UsageError, match=says):
            Model(path)
    path = changed()
    (path / "metadata.json").write_text("{")
    with pytest.raises(UsageError, match="not valid JSON"):
        Model(path)
    path = changed(sha256=hashlib.sha256(b"nonsense").hexdigest())
    (path / file).write_bytes(b"nonsense")
    with pytest.raises(UsageError, match="onnxruntime cannot load"):
        Model(path)


def test_wrong_inputs_are_named(exported):
    model, rng = Model(exported), np.random.default_rng(0)
    with pytest.raises(UsageError, match=r"shape \[3, 18\], not \[1, 3, 17\]"):
        model.act(np.zeros((3, 17)), rng=rng)
    with pytest.raises(UsageError, match=r"mask has shape \[1, 3, 4\]"):
        model.act(np.zeros((3, 18)), np.ones((3, 4)), rng=rng)
    with pytest.raises(UsageError, match="give a numpy generator"):
        model.act(np.zeros((3, 18)))


def test_the_command_line_exports_and_explains(tiny_run, tmp_path, capsys):
    out = tmp_path / "team"
    assert main(["export", str(tiny_run.path), "--out", str(out), "--per-group"]) == 0
    assert Model(out / "group_0").version == 8
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    capsys.readouterr()
    for words, says in [
        (["export", str(tiny_run.path)], "--out"),
        (["export", str(tmp_path), "--out", str(out)], "is not a run"),
        (["export", str(tiny_run.path), "--out", str(out), "--format", "pickle"], "onnx"),
        (["export", str(tiny_run.path), "--out", str(tmp_path / "full")], "holds something else"),
        (["export", str(tiny_run.path), "--out", str(out), "--formt", "onnx"], "--format"),
    ]:
        assert main(words) == 2
        error = capsys.readouterr().err
        assert says in error
        assert "Traceback" not in error
    assert (tmp_path / "full" / "thesis.txt").read_text() == "mine"
