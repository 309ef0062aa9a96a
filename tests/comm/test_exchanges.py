"""Each exchange against a number worked by hand, and what holds for all of them."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flockrl.comm.attention import KEY
from flockrl.comm.dial import regularised
from flockrl.comm.settings import EXCHANGES, CommConfig
from flockrl.core.groups import make_groups, merge
from flockrl.core.types import Box, Discrete, EnvSpec, Observation
from flockrl.policies.network import TeamNetwork

B, SEEN, F = 5, 4, 6


def team(comm, agents=3, *, channel="", share="all", ids=False, rounds=None, **sizes):
    """A team's network without memory, with outputs that are not near zero."""
    talk = CommConfig(comm=comm, channel=channel, comm_rounds=rounds, **sizes)
    names = ("comm", "channel", "rounds", "heads", "message_size", "early")
    config = SimpleNamespace(
        hidden=(F,), activation="tanh", kernel=None, agent_ids=ids, memory="none", memory_size=5,
        **{name: getattr(talk, name) for name in names},
    )  # fmt: skip
    spec = EnvSpec("x", tuple(f"a_{i}" for i in range(agents)), (Box((SEEN,)),) * agents, (Discrete(2),) * agents, 9)
    groups = make_groups(spec, share)
    return TeamNetwork(spec, groups, config, [2 for _ in groups], out_scale=1.0)


def start(net, seed=0):
    return net.init(jax.random.split(jax.random.key(seed), len(net.groups)))


def look(agents=3, seed=0, alive=None):
    obs = np.random.default_rng(seed).normal(size=(B, agents, SEEN)).astype(np.float32)
    return Observation(jnp.asarray(obs), alive=None if alive is None else jnp.asarray(alive))


def say(net, params, seen, key=None):
    """[B, N, 2] outputs of all agents; in the second of two like steps, where messages are heard a step later."""
    memory, key = net.memory(len(seen.obs)), jax.random.key(0) if key is None else key
    for _ in range(1 + (net.talk is not None and net.talk.early)):
        lucky = net.with_luck(seen, memory, key, False)
        outs, memory, _ = net.step(params, lucky, memory)
    return np.asarray(merge(outs, net.groups, 1))


# By hand: three agents with two features each, weights of whole numbers, one of them dead where `alive` says so.

H = np.array([[1.0, 2.0], [3.0, -1.0], [0.5, 0.0]], np.float32)
PLAIN = {"own": {"kernel": [[1, 0], [0, 1]], "bias": [0.5, 0]}, "into": {"kernel": [[1, 1], [0, 2]]}}


def heard_by_hand(comm, weights, c, **kept):
    """What an exchange makes of features H of three agents when its weights are these, and by hand: c [3, C]."""
    talk = EXCHANGES[comm](2, kept.pop("size"), activation="tanh", **{k: v for k, v in kept.items() if k == "heads"})
    weights = jax.tree.map(
        lambda x: jnp.asarray(x, jnp.float32), {**PLAIN, **weights}, is_leaf=lambda x: isinstance(x, list)
    )
    there = jnp.asarray(kept.get("there", 1 - np.eye(3)), jnp.float32)
    possible = jnp.asarray(kept.get("possible", 1 - np.eye(3)), jnp.float32)
    h = jnp.asarray(H)
    subject = jnp.asarray(kept.get("subject", H), jnp.float32)
    bound = talk.bind({"params": weights})
    own = bound.speak(subject)
    gate = bound.gate(h)
    said = own if gate is None else own * gate[:, None]
    found = bound.hear(h, said, own, there, possible)
    before = H @ PLAIN["own"]["kernel"] + np.array(PLAIN["own"]["bias"])
    wanted = (
        H + (np.tanh(before + c @ np.array(weights["heard"]["kernel"])) - np.tanh(before)) @ PLAIN["into"]["kernel"]
    )
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert np.abs(wanted - H).max() > 0.1  # something was heard
    return gate


HEARD = {"heard": {"kernel": [[1, 0], [0, 1]]}}
DOUBLE = {"encode": {"kernel": [[2, 0], [0, 1]]}}
SAID = H * [2, 1]


def test_commnet_hears_the_mean_of_the_other_living_agents():
    mean = np.array([(SAID[1] + SAID[2]) / 2, (SAID[0] + SAID[2]) / 2, (SAID[0] + SAID[1]) / 2])
    heard_by_hand("commnet", {**HEARD, **DOUBLE}, mean, size=2)
    # Agent 2 is dead: the two others hear each other undivided. The message from 1 to 0 is lost: half of nothing.
    alive = np.array([[0, 1, 0], [1, 0, 0], [0, 0, 0]])
    alone = np.array([SAID[1], SAID[0], [0, 0]])
    heard_by_hand("commnet", {**HEARD, **DOUBLE}, alone, size=2, there=alive, possible=alive)
    lost = np.array([[0, 0, 1], [1, 0, 1], [1, 1, 0]])
    missed = np.array([SAID[2] / 2, mean[1], mean[2]])
    heard_by_hand("commnet", {**HEARD, **DOUBLE}, missed, size=2, there=lost)


def test_ic3net_closes_the_gate_of_an_agent_whose_logit_is_not_positive():
    # The logit is h_0 - 2 + 1: 0 for agent 0 (closed: not above 0), 2 for agent 1, -0.5 for agent 2.
    door = {"door": {"kernel": [[1], [0]], "bias": [-2]}}
    mean = np.array([SAID[1] / 2, [0, 0], SAID[1] / 2])
    gate = heard_by_hand("ic3net", {**HEARD, **DOUBLE, **door}, mean, size=2)
    np.testing.assert_array_equal(gate, [0, 1, 0])
    slope = jax.grad(lambda b: EXCHANGES["ic3net"](2, 2).apply(
        {"params": {"door": {"kernel": jnp.array([[1.0], [0.0]]), "bias": b}}}, jnp.asarray(H), method="gate").sum()
    )(jnp.array([-2.0]))  # fmt: skip
    s = 1 / (1 + np.exp(-np.array([0, 2, -0.5])))
    np.testing.assert_allclose(slope, [(s * (1 - s)).sum()], rtol=1e-5)


def softmax(x):
    weights = np.exp(x - x.max())
    return weights / weights.sum()


def test_tarmac_weighs_values_by_queries_and_keys_and_leaves_its_own_at_home():
    pad = lambda m: np.pad(np.array(m, float), [(0, 0), (0, KEY - 2)]).tolist()  # noqa: E731
    sign, query = [[1, 0], [0, 1]], [[0, 2], [1, 0]]
    value = [[2, 0], [0, 1]]
    keys, queries, values = H @ sign, H @ query, H @ value
    c = np.zeros((3, 2))
    for i in range(3):
        weights = softmax(queries[i] @ keys.T / np.sqrt(KEY))  # over all three, itself included
        c[i] = sum(weights[j] * values[j] for j in range(3) if j != i)
    weights = {"sign": {"kernel": pad(sign)}, "query": {"kernel": pad(query)}, "value": {"kernel": value}}
    heard_by_hand("tarmac", {**HEARD, **weights}, c, size=KEY + 2)
    # Agent 0 hears agent 2 alone: softmax over the two of them. Agent 1 hears nobody: exactly zero.
    there = np.array([[0, 0, 1], [0, 0, 0], [1, 1, 0]])
    few = softmax(np.array([queries[0] @ keys[0], queries[0] @ keys[2]]) / np.sqrt(KEY))
    c[0], c[1] = few[1] * values[2], 0
    heard_by_hand("tarmac", {**HEARD, **weights}, c, size=KEY + 2, there=there)


def test_graph_attention_has_keys_and_values_of_the_listener_for_each_head():
    eye, turn = [[1, 0], [0, 1]], [[0, 1], [1, 0]]
    weights = {**DOUBLE, "query": {"kernel": turn}, "key": {"kernel": eye}, "value": {"kernel": [[1, 0], [1, 1]]}}
    queries, keys, values = H @ turn, SAID, SAID @ [[1, 0], [1, 1]]
    c = np.zeros((3, 2))
    for i in range(3):
        for head in range(2):  # one number each
            part = softmax(queries[i, head] * keys[:, head])
            c[i, head] = sum(part[j] * values[j, head] for j in range(3) if j != i)
    heard_by_hand("gat", {**HEARD, **weights}, c, size=2, heads=2)


def test_dial_sends_bits_when_it_matters_and_blurs_them_to_learn():
    logit = jnp.array([[[-0.2, 0.3], [0.0, 0.6]]])  # agents of two numbers each; the bit is 1 above 0, not above 0.5
    noise = jnp.array([[[1.0, -1.0], [0.5, 0.0]]])
    np.testing.assert_array_equal(regularised(logit, noise, jnp.array([True])), [[[0, 1], [0, 1]]])
    soft = 1 / (1 + np.exp(-(np.asarray(logit) + 2 * np.asarray(noise))))
    np.testing.assert_allclose(regularised(logit, noise, jnp.array([False])), soft, rtol=1e-6)
    louder = regularised(logit, noise / 3, jnp.array([False]), 6.0)
    np.testing.assert_allclose(louder, soft, rtol=1e-6)


def test_dial_learns_from_bits_where_the_channel_has_but_one():
    logit, noise = jnp.array([[[-0.2, 0.3, 3.0]]]), jnp.array([[[1.0, -1.0, -1.0]]])
    for hard, bits in ((False, [1, 0, 1]), (True, [0, 1, 1])):
        sent = regularised(logit, noise, jnp.array([hard]), rounded=True)
        np.testing.assert_array_equal(sent, [[bits]])
    slope = jax.grad(lambda x: regularised(x, noise, jnp.array([False]), rounded=True).sum())(logit)
    s = 1 / (1 + np.exp(-np.array([1.8, -1.7, 1.0])))
    np.testing.assert_allclose(slope, [[s * (1 - s)]], rtol=1e-5)


@pytest.mark.parametrize("comm", ["share_obs", "share_intent"])
def test_what_is_shared_is_read_and_added_up(comm):
    seen = np.array([[1.0], [-2.0], [0.5]])
    told = np.pad(seen, [(0, 0), (0, 1)])  # filled up to the largest
    read = np.tanh(told @ [[1, 2], [3, 4]] + [0.1, 0])
    c = np.array([read[1] + read[2], read[0] + read[2], read[0] + read[1]])
    weights = {"read": {"kernel": [[1, 2], [3, 4]], "bias": [0.1, 0]}}
    heard_by_hand(comm, {**HEARD, **weights}, c, size=2, subject=seen)


def test_agents_tell_what_they_see_or_what_they_would_do():
    for comm, subject in (("share_obs", lambda net, p, seen: seen.obs), ("share_intent", intent)):
        net = team(comm)
        params, seen = start(net), look()
        told, _, _ = net.nets[0].apply({"params": params[0]}, features(net, params, seen), seen.obs, 0, method="speak")
        np.testing.assert_allclose(told, subject(net, params, seen), atol=1e-6)


def features(net, params, seen):
    return net.nets[0].apply({"params": params[0]}, seen.obs, (), None, method="features")[0]


def intent(net, params, seen):
    plain = team("none")
    return say(plain, tuple({k: p[k] for k in ("torso", "head")} for p in params), seen)


# What holds for all of them

ALL = sorted(EXCHANGES)
ONCE = "share_obs", "dial"
"""Those that have one round."""


@pytest.mark.parametrize("comm", ALL)
@pytest.mark.parametrize("channel", ["loss=1", "bits=0", "broadcast_loss=1,noise=1"])
def test_a_team_that_hears_nothing_is_the_team_without_messages_to_the_bit(comm, channel):
    for share, ids in (("all", True), ("none", False)):
        plain, mute = team("none", share=share, ids=ids), team(comm, channel=channel, share=share, ids=ids)
        params, own = start(mute), start(plain)
        for with_talk, without in zip(params, own, strict=True):
            jax.tree.map(np.testing.assert_array_equal, {k: with_talk[k] for k in without}, without)
        np.testing.assert_array_equal(say(mute, params, look(), jax.random.key(1)), say(plain, own, look()))
    heard, plain = team(comm), team("none")
    assert (say(heard, start(heard), look()) != say(plain, start(plain), look())).any()


@pytest.mark.parametrize("comm", ALL)
def test_one_agent_alone_is_the_plain_policy(comm):
    plain, one = team("none", 1), team(comm, 1, rounds=None if comm in ONCE else 2)
    np.testing.assert_array_equal(say(one, start(one), look(1)), say(plain, start(plain), look(1)))


@pytest.mark.parametrize("comm", ALL)
def test_permuting_agents_permutes_outputs(comm):
    net = team(comm, 4, rounds=None if comm in ONCE else 2)
    params, seen, order = start(net), look(4), np.array([2, 0, 3, 1])
    moved = seen._replace(obs=seen.obs[:, order])
    np.testing.assert_allclose(say(net, params, moved), say(net, params, seen)[:, order], atol=1e-6)


@pytest.mark.parametrize("comm", ALL)
def test_the_dead_say_and_hear_nothing(comm):
    alive = np.ones((B, 3), bool)
    alive[:, 1] = False
    net, plain = team(comm), team("none")
    params, seen = start(net), look(alive=alive)
    other = seen._replace(obs=seen.obs.at[:, 1].add(1.0))
    before, after = say(net, params, seen), say(net, params, other)
    np.testing.assert_array_equal(before[:, [0, 2]], after[:, [0, 2]])
    np.testing.assert_array_equal(before[:, 1], say(plain, start(plain), seen)[:, 1])
    assert (before[:, [0, 2]] != say(net, params, seen._replace(alive=None))[:, [0, 2]]).any()


def test_several_rounds_are_hops():
    """On a ring of five, what an agent sees reaches those beside it in one round, and those beside them in two."""
    for rounds, reach in ((1, [0, 1, 4]), (2, [0, 1, 2, 3, 4])):
        net = team("gat", 5, rounds=rounds, channel="topology=ring")
        params, seen = start(net), look(5)
        moved = say(net, params, seen._replace(obs=seen.obs.at[:, 0].add(1.0))) != say(net, params, seen)
        np.testing.assert_array_equal(moved.any((0, 2)), np.isin(np.arange(5), reach))
