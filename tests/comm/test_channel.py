"""What a channel does to messages on their way, and how it is written down."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_exchanges import B, look, say, start, team

from flockrl.algos.feudal_config import FeudalConfig
from flockrl.comm.channel import Channel, parse_channel
from flockrl.comm.luck import draw_seeds, from_seeds
from flockrl.comm.settings import CommConfig
from flockrl.comm.talk import delayed, quantised
from flockrl.core.errors import UsageError
from flockrl.core.types import choose
from flockrl.training.channels import on_channel


@pytest.mark.parametrize(
    "text", ["", "loss=0.2,delay=1,noise=0.1,bits=4,top=2", "topology=star,hub=2", "top=1,access=round_robin",
             "broadcast_loss=0.5,topology=ring", "bits=0", "topology=010/101/010"],
)  # fmt: skip
def test_a_channel_is_written_as_it_is_read(text):
    channel = parse_channel(text)
    assert parse_channel(str(channel)) == channel
    assert set(filter(None, str(channel).split(","))) == set(filter(None, text.split(",")))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("loss=2", "loss of a channel must be from 0 to 1, not 2"), ("loss", "name=value"),
        ("los=0.1", "Did you mean 'loss'"), ("loss=nan", "loss of a channel must be a finite number from 0 to 1"),
        ("loss=x", "must be a number"), ("delay=1.5", "whole number"),
        ("delay=-1", "from 0 to"),
        ("bits=99", "from 0 to 16"), ("top=0", "at least 1"), ("access=round_robin", "top"),
        ("topology=rin", "Did you mean 'ring'"), ("topology=01/1", "square"), ("hub=1", "star"),
        ("noise=-1", "noise of a channel must be at least 0"),
        ("loss=0.1,loss=0.2", "twice"), ("noise=inf", "must be a finite number of at least 0"),
        (f"topology={'2' * 5000}", "file of rows"),
    ],
)  # fmt: skip
def test_a_bad_channel_is_refused_in_one_sentence(text, words):
    with pytest.raises(UsageError, match=words) as error:
        parse_channel(text)
    assert "\n" not in str(error.value)


def test_a_topology_comes_from_a_file_and_stays_in_the_settings(tmp_path):
    file = tmp_path / "links.csv"
    file.write_text("0,1,0\n0,0,1\n1 0 0\n\n")
    config = CommConfig(comm="commnet", channel=f"topology={file}")
    assert config.channel == "topology=010/001/100"
    np.testing.assert_array_equal(parse_channel(config.channel).links(3), [[0, 1, 0], [0, 0, 1], [1, 0, 0]])
    file.write_bytes(b"\xff\xfe01")
    with pytest.raises(UsageError, match="cannot be read"):
        parse_channel(f"topology={file}")
    with pytest.raises(UsageError, match="3 agents, and the team has 4"):
        parse_channel(config.channel).links(4)


def test_topologies():
    ring = np.array([[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]], bool)
    star = np.array([[0, 1, 0, 0], [1, 0, 1, 1], [0, 1, 0, 0], [0, 1, 0, 0]], bool)
    np.testing.assert_array_equal(Channel(topology="ring").links(4), ring)
    np.testing.assert_array_equal(Channel(topology="star", hub=1).links(4), star)
    np.testing.assert_array_equal(Channel().links(2), [[0, 1], [1, 0]])
    assert not Channel(topology="ring").links(1).any()
    assert Channel(topology="ring").links(2).sum() == 2


def test_settings_that_belong_to_nothing_are_refused():
    for settings, words in (
        ({"channel": "loss=0.1"}, "comm=none"), ({"comm_rounds": 2}, "comm=none"),
        ({"comm": "share_obs", "comm_rounds": 2}, "comm_rounds has no meaning"),
        ({"comm": "commnet", "comm_heads": 2}, "comm_heads has no meaning"),
        ({"comm": "gat", "comm_heads": 3}, "multiple of comm_heads"), ({"comm": "gat", "comm_size": -1}, "from 1 to"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=words):
            CommConfig(**settings)
    assert CommConfig(comm="dgn").comm == "gat"


def test_numbers_are_rounded_to_as_many_values_as_bits_can_tell_apart():
    x = jnp.linspace(-3, 3, 401)
    for bits in (1, 2, 4):
        found = np.asarray(quantised(x, bits))
        assert len(np.unique(found)) == 2**bits
        assert (found.min(), found.max()) == (-1, 1)
        assert np.abs(found - np.tanh(x)).max() <= 1 / (2**bits - 1) + 1e-6
    np.testing.assert_array_equal(quantised(jnp.array([-0.4, 0.4]), 1), [-1, 1])
    slope = jax.grad(lambda x: quantised(x, 1).sum())(x)
    np.testing.assert_allclose(slope, 1 - np.tanh(x) ** 2, atol=1e-6)


def test_messages_arrive_later_and_never_in_another_episode():
    sent = jnp.arange(1.0, 7.0).reshape(6, 1, 1)
    first = jnp.zeros((6, 1), bool).at[4].set(True)
    past = jnp.array([[[-2.0], [-1.0]]])
    arrived, after = delayed(sent, past, first)
    np.testing.assert_array_equal(arrived[:, 0, 0], [-2, -1, 1, 2, 0, 0])
    np.testing.assert_array_equal(after[:, 0, :, 0], [[-1, 1], [1, 2], [2, 3], [3, 4], [0, 5], [5, 6]])


def test_loss_is_as_frequent_as_it_says_and_a_function_of_the_seed():
    seeds = draw_seeds(jax.random.key(0), 4000, 3, None)
    lost = np.asarray(from_seeds(Channel(loss=0.3), seeds, 2, 5).lost)
    assert lost.shape == (4000, 2, 3, 3)
    assert abs(lost.mean() - 0.3) < 0.01
    assert np.abs(np.corrcoef(lost.reshape(4000, -1).T) - np.eye(18)).max() < 0.08  # links and rounds on their own
    np.testing.assert_array_equal(lost[7], from_seeds(Channel(loss=0.3), seeds[7], 2, 5).lost)
    together = np.asarray(from_seeds(Channel(broadcast_loss=0.3), seeds, 1, 5).lost)
    assert (together == together[:, :, :1]).all()
    assert abs(together.mean() - 0.3) < 0.02
    noise = np.asarray(from_seeds(Channel(noise=1.0), seeds, 1, 5).noise)
    assert abs(noise.std() - 1) < 0.02


def heard_from(net, params, seen, key=None):
    """[N, N] whether what the agent of the row says depends on what that of the column sees, in any environment."""
    n = seen.obs.shape[1]
    before = say(net, params, seen, key)
    moved = [say(net, params, seen._replace(obs=seen.obs.at[:, j].add(1.0)), key) != before for j in range(n)]
    return np.stack([m.any((0, 2)) for m in moved], 1) & ~np.eye(n, dtype=bool)


@pytest.mark.parametrize("comm", ["commnet", "tarmac"])
def test_messages_take_the_links_that_there_are(comm):
    for channel in ("topology=ring", "topology=star,hub=3", "topology=0111/0000/0100/1100"):
        net = team(comm, 4, channel=channel)
        np.testing.assert_array_equal(heard_from(net, start(net), look(4)), parse_channel(channel).links(4))


def test_loss_cuts_the_links_that_it_draws():
    net, key = team("commnet", 4, channel="loss=0.5"), jax.random.key(3)
    seen = look(4)
    seen = seen._replace(obs=seen.obs[:1])
    luck = from_seeds(Channel(loss=0.5), net.with_luck(seen, (), key, False).seeds, 1, 32)
    kept = ~np.asarray(luck.lost)[0, 0] & ~np.eye(4, dtype=bool)
    assert 0 < kept.sum() < 12
    np.testing.assert_array_equal(heard_from(net, start(net), seen, key), kept)


def test_at_most_so_many_speak_as_may():
    net = team("commnet", 4, channel="top=2")
    params, seen = start(net), look(4)
    _, _, noted = net.step(params, seen, ())
    sent = np.asarray(noted["messages"])[..., 0]
    assert (sent.sum(-1) == 2).all()
    assert (sent.std(0) > 0).any()  # who may depends on what agents see
    urge = net.nets[0].apply({"params": params[0]}, *features_and_obs(net, params, seen), 0, method="speak")[2]
    np.testing.assert_array_equal(sent, np.argsort(np.argsort(-np.asarray(urge))) < 2)
    alive = jnp.ones((B, 4), bool).at[:, :3].set(False)
    sent = net.step(params, seen._replace(alive=alive), ())[2]["messages"][..., 0]
    np.testing.assert_array_equal(sent, np.broadcast_to([0, 0, 0, 1], (B, 4)))


def features_and_obs(net, params, seen):
    return net.nets[0].apply({"params": params[0]}, seen.obs, (), None, method="features")[0], seen.obs


def test_agents_speak_in_turn_and_the_turn_begins_anew_with_the_episode():
    net = team("commnet", 3, channel="top=1,access=round_robin")
    params, memory, sent = start(net), net.memory(B), []
    for t in range(5):
        if t == 4:
            memory = choose(jnp.arange(B) == 1, net.memory(B), memory)
        seen = net.with_luck(look(seed=t), memory, jax.random.key(t), False)
        _, memory, noted = net.step(params, seen, memory)
        sent.append(np.asarray(noted["messages"])[..., 0].argmax(-1))
    np.testing.assert_array_equal(np.array(sent)[:, 0], [0, 1, 2, 0, 1])
    np.testing.assert_array_equal(np.array(sent)[:, 1], [0, 1, 2, 0, 0])


def test_counts_of_messages_and_bits():
    alive = np.ones((B, 3), bool)
    alive[:, 2] = False
    net = team("tarmac", channel="bits=4", comm_size=8, comm_heads=2, rounds=2)
    counts = np.asarray(net.step(start(net), look(alive=alive), ())[2]["messages"])
    np.testing.assert_array_equal(counts[0], [[2, 2, 0, 2 * 4 * 40], [2, 2, 0, 2 * 4 * 40], [0, 0, 0, 0]])
    net = team("commnet", channel="loss=1")
    seen = net.with_luck(look(), (), jax.random.key(0), False)
    counts = np.asarray(net.step(start(net), seen, ())[2]["messages"])
    np.testing.assert_array_equal(counts[0, 0], [1, 0, 2, 32 * 32])


@pytest.mark.parametrize("access", ["weight", "round_robin"])
def test_a_team_no_larger_than_top_speaks_as_a_whole(access):
    net = team("commnet", 3, channel=f"top=99,access={access}")
    memory = net.memory(B)
    seen = net.with_luck(look(), memory, jax.random.key(0), False)
    noted = net.step(start(net), seen, memory)[2]
    np.testing.assert_array_equal(noted["messages"][..., 0], np.ones((B, 3)))


def test_sides_and_tiers_have_channels_of_their_own():
    feudal = FeudalConfig(manager_settings={"comm": "commnet"})
    with pytest.raises(UsageError, match="each side or tier has one of its own"):
        on_channel(SimpleNamespace(config=feudal), None, "bits=0")
    with pytest.raises(UsageError, match="train with --comm"):
        on_channel(SimpleNamespace(config=FeudalConfig()), None, "bits=0")
