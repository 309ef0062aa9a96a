"""A team whose agents run apart acts as the joint policy does; what goes wrong on the way counts as lost."""

import dataclasses
import functools
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flockrl.algos.assembly import make_algorithm
from flockrl.algos.presets import make_config
from flockrl.commands.main import main
from flockrl.core.actions import clip_action
from flockrl.core.errors import UsageError
from flockrl.core.spec import Box, Discrete, EnvSpec
from flockrl.core.types import Observation
from flockrl.portable.model import Model
from flockrl.portable.write import Exporter
from flockrl.relay.hub import Hub
from flockrl.relay.member import Member
from flockrl.relay.post import ALIVE, ASKS, SAYS, SENT, Frame, pack, team_id, unpack

NAMES = ("x_0", "lead", "x_1")
SEES = (Box((6,)), Box((4,)), Box((6,)))
REAL = EnvSpec("real", NAMES, SEES, (Box((2,), -2.0, 2.0), Box((1,), -2.0, 2.0), Box((2,), -2.0, 2.0)), 25)
CHOICES = EnvSpec("choices", NAMES, SEES, (Discrete(5), Discrete(3), Discrete(5)), 25)
NEAR = dataclasses.replace(REAL, neighbours=True)
GRU = {"memory": "gru", "memory_size": 8}
PATIENCE = 20.0
"""Seconds after which a message counts as lost where none may be: never reached, unless something is broken."""
MORE = {
    "dial": ("iql", CHOICES, {"comm": "dial", **GRU, "learning_starts": 0}),
    "early": ("ippo", REAL, {"comm": "ic3net", "comm_early": True, **GRU}),
    "gates": ("maddpg", CHOICES, {"comm": "ic3net", "learning_starts": 0}),
    "late": ("ippo", REAL, {"comm": "commnet", "comm_rounds": 2, "channel": "delay=2,bits=3"}),
    "turns": ("ippo", REAL, {"comm": "gat", "channel": "top=1,access=round_robin,topology=ring"}),
    "lossy": ("ippo", REAL, {"comm": "share_obs", "channel": "loss=0.5,noise=1,topology=star", "share": "none"}),
    "near": ("ippo", NEAR, {"comm": "commnet", "channel": "range=1.5"}),
    "nearest": ("ippo", NEAR, {"comm": "tarmac", "channel": "nearest=1"}),
    "mute": ("ippo", REAL, GRU),
}


def build(name, spec, settings, **more):
    config = make_config(name, {"hidden": (8,), **settings, **more})
    return make_algorithm(name, spec, config, envs=4, updates=10)


def shaken(algorithm):
    """Parameters that look as if they had learned something."""
    params = jax.jit(lambda key: algorithm.params(algorithm.init(key)))(jax.random.key(0))

    def move(x):
        real = x.dtype == jnp.float32 and x.ndim > 0
        return x + 0.2 * np.random.default_rng(x.size).normal(size=x.shape).astype(np.float32) if real else x

    return jax.tree.map(move, params)


class Team:
    """An algorithm, parameters, and the directory with its members."""

    def __init__(self, path, name, spec, settings):
        self.case, self.spec, self.path = (name, spec, settings), spec, path
        self.algorithm = build(*self.case)
        self.params = shaken(self.algorithm)
        share = settings.get("share", "groups")
        Exporter(self.algorithm, spec, share, name=name, per_agent=True).write(self.params, path)

    @functools.cache  # noqa: B019 - a team lives as long as its tests
    def acting(self, channel=None):
        algorithm = self.algorithm if channel is None else build(*self.case, channel=channel)
        return algorithm, jax.jit(algorithm.act, static_argnums=4)

    def joint(self, seen, alive=None, near=None, **more):
        """[T, N(, W)] what the team does, on another channel if `more` says so."""
        algorithm, act = self.acting(*more.values())
        memory, found = algorithm.memory(1), []
        for t, obs in enumerate(seen):
            told = None if alive is None else jnp.asarray(alive[t][None])
            around = None if near is None else jnp.asarray(near[t][None])
            moment = Observation(jnp.asarray(obs[None]), alive=told, neighbours=around)
            action, memory, _ = act(self.params, moment, memory, jax.random.key(0), False)
            found.append(np.asarray(clip_action(self.spec, action)[0]))
        return np.stack(found)

    def members(self, **options):
        return [Member(self.path / f"member_{i}", seed=i, **options) for i in range(self.spec.num_agents)]


def sights(spec, steps=5):
    drawn = np.random.default_rng(1).normal(size=(steps, spec.num_agents, spec.obs_size)).astype(np.float32)
    return drawn * (np.arange(spec.obs_size) < np.array([[space.size] for space in spec.observations]))


def introduce(members):
    """Tell all members where the others are, and wait until they hear each other."""
    for one in members:
        one.join({other.name: other.address for other in members if other is not one and other.address})
    assert all(together([lambda one=one: one.meet(PATIENCE) for one in members]))


def together(calls):
    """What these functions return, each in a thread of its own."""
    found = [None] * len(calls)

    def run(i):
        found[i] = calls[i]()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def play(team, members, seen, alive=None, near=None):
    """[T, N(, W)] what members do that run side by side."""
    sizes = [space.size for space in team.spec.observations]

    def one(i):
        live = [True] * len(seen) if alive is None else alive[:, i]
        assert members[i].meet(PATIENCE)
        around = [None] * len(seen) if near is None else near[:, i]
        moments = zip(seen, live, around, strict=True)
        return [members[i].act(obs[i, : sizes[i]], alive=bool(lives), neighbours=by) for obs, lives, by in moments]

    each = together([lambda i=i: one(i) for i in range(len(members))])
    width = team.spec.action_width
    rows = [[np.pad(np.atleast_1d(a), (0, width - np.size(a))) for a in own] for own in each]
    found = np.array(rows).swapaxes(0, 1)
    return found[..., 0] if team.spec.discrete else found


def close(members):
    for one in members:
        one.close()


@pytest.fixture(scope="module")
def team(tmp_path_factory):
    settings = {"comm": "tarmac", "comm_rounds": 2, **GRU}
    return Team(tmp_path_factory.mktemp("team"), "ippo", REAL, settings)


def test_members_act_exactly_as_the_joint_policy(team):
    members, seen = team.members(timeout=PATIENCE), sights(REAL)
    introduce(members)
    found = play(team, members, seen)
    np.testing.assert_allclose(found, team.joint(seen), atol=1e-5)
    assert np.abs(found - team.joint(seen, channel="bits=0")).max() > 0.01  # they did listen
    assert [one.counts["lost"] for one in members] == [0, 0, 0]
    close(members)


def test_with_all_messages_lost_members_are_the_silent_team(team):
    members, seen = team.members(timeout=PATIENCE, loss=1.0), sights(REAL)
    introduce(members)
    np.testing.assert_allclose(play(team, members, seen), team.joint(seen, channel="bits=0"), atol=1e-5)
    assert all(one.counts["received"] == 0 and one.counts["lost"] == 5 * 2 * 2 for one in members)
    close(members)


def test_a_member_alone_acts_in_time_and_as_if_nobody_spoke(team):
    seen = sights(REAL)
    member = Member(team.path / "member_0", timeout=0.0)
    found = np.array([member.act(obs[0]) for obs in seen])
    np.testing.assert_allclose(found, team.joint(seen, channel="bits=0")[:, 0], atol=1e-5)
    assert member.counts["lost"] == 5 * 2 * 2
    assert member.choice.logp is None  # what is greedy has no chance
    member.explore = True
    action = member.act(seen[0][0])
    assert np.isfinite(member.choice.logp).all()
    np.testing.assert_array_equal(action, member.choice.action[0])
    member.close()


def test_members_meet_at_a_hub_with_a_token_and_the_dead_are_not_heard(team):
    token = "a token of this test"
    seen, alive = sights(REAL), np.ones((5, 3), bool)
    alive[2:, 1] = False
    with Hub(token=token) as hub:
        members = team.members(timeout=PATIENCE, token=token, hub=hub.addresses)
        introduce(members)
        found = play(team, members, seen, alive)
        wanted = team.joint(seen, alive)
        np.testing.assert_allclose(found, wanted, atol=1e-5)
        assert np.abs(wanted - team.joint(seen))[2:, 0].max() > 0.01
        close(members)


def test_who_has_another_token_is_not_heard(team):
    first = Member(team.path / "member_0", token="the token of the team")
    other = Member(team.path / "member_1", token="another token, a guess", peers={"x_0": first.address})
    first.join({"lead": other.address})
    assert together([lambda: first.meet(0.5), lambda: other.meet(0.5)]) == [False, False]
    assert not first._met
    assert not other._met
    close([first, other])


def test_a_member_that_was_restarted_is_heard_again(team):
    members, seen = team.members(timeout=PATIENCE), sights(REAL)
    introduce(members)
    play(team, members, seen)
    where = members[1].address
    members[1].close()
    members[1] = Member(team.path / "member_1", timeout=PATIENCE, listen=where)
    members[1].join({other.name: other.address for other in members if other.name != "lead"})
    for one in members:
        one.begin(7)
    # The others act and wait; while they do, they answer the newcomer.
    np.testing.assert_allclose(play(team, members, seen), team.joint(seen), atol=1e-5)
    close(members)


def test_who_comes_late_hears_what_was_said_before(team):
    first = Member(team.path / "member_0", timeout=0.0)
    first.act(sights(REAL)[0, 0])
    late = Member(team.path / "member_1", timeout=0.0, peers={"x_0": first.address})
    first.join({"lead": late.address})
    assert together([lambda: first.meet(1.0), lambda: late.meet(1.0)]) == [False, False]  # x_1 is not there
    late.act(sights(REAL)[0, 1, :4])
    assert late.counts["received"] == first.model.rounds
    close([first, late])


@pytest.mark.slow
@pytest.mark.parametrize("case", MORE)
def test_every_kind_of_talk_runs_apart(tmp_path, case):
    name, spec, settings = MORE[case]
    one = Team(tmp_path, name, spec, settings)
    members, seen = one.members(timeout=PATIENCE), sights(spec, 6)
    introduce(members)
    channel = {"channel": "topology=star"} if case == "lossy" else {}
    near = np.random.default_rng(2).random((6, 3, 3)) < 0.5 if spec.neighbours else None
    found = play(one, members, seen, near=near)
    np.testing.assert_allclose(found, one.joint(seen, near=near, **channel), atol=1e-5)
    if case == "nearest":
        with pytest.raises(UsageError, match="hears the nearest alone: give neighbours"):
            members[0].act(seen[0, 0])
    close(members)


def test_a_member_that_comes_back_to_life_remembers_nothing_as_in_the_joint_policy(tmp_path):
    spec = dataclasses.replace(REAL, respawn=True)
    one, seen = Team(tmp_path, "ippo", spec, GRU), sights(REAL, 6)
    members, alive = one.members(timeout=PATIENCE), np.ones((6, 3), bool)
    alive[2:4, 1] = False
    found, joint = play(one, members, seen, alive), one.joint(seen, alive)
    np.testing.assert_allclose(found[alive], joint[alive], atol=1e-5)
    assert np.abs(found - one.joint(seen))[4:, 1].max() > 1e-3  # who lived on remembers
    close(members)


def test_what_cannot_run_apart_is_refused_in_a_sentence(team, tmp_path):
    ranked = build("ippo", CHOICES, {"comm": "commnet", "channel": "top=1"})
    with pytest.raises(UsageError, match="access=round_robin"):
        Exporter(ranked, CHOICES, "groups", name="ippo", per_agent=True)
    with pytest.raises(UsageError, match=r"flockrl\.relay\.Member"):
        Model(team.path / "member_0")
    with pytest.raises(UsageError, match="own machine"):
        Member(team.path / "member_0", listen="tcp://0.0.0.0:0")
    with pytest.raises(UsageError, match="at least 16"):
        Member(team.path / "member_0", token="short")
    with pytest.raises(UsageError, match="no 'nobody'"):
        Member(team.path / "member_0", peers={"nobody": "tcp://127.0.0.1:1"})
    assert main(["export", str(tmp_path), "--per-agent", "--out", str(tmp_path / "x")]) == 2


def test_frames_are_read_back_and_anything_else_is_refused():
    ours, size = team_id("ours"), 5
    said = Frame(SAYS, 2, SENT | ALIVE, 3, 9, 1, np.arange(5, dtype=np.float32))
    hello = Frame(ASKS, 1, body=np.array([4_000_000_000, 0, 7]))

    def read(data, agents=3, rounds=2, numbers=size):
        return unpack(data, ours, agents, rounds, numbers)

    for frame in (said, hello, Frame(SAYS, 0, ALIVE, 1, 1, 0)):
        back = read(pack(ours, frame))
        assert back[:6] == frame[:6]
        np.testing.assert_array_equal(back.body, frame.body)
    good = pack(ours, said)
    wrong = [b"", good[:-1], good + b"x", pack(team_id("theirs"), said), pack(ours, said._replace(sender=3))]
    wrong += [pack(ours, said._replace(round=2)), good[:12] + b"\7" + good[13:], pack(ours, hello) + b"x"]
    wrong += [pack(ours, said._replace(body=np.full(5, x, np.float32))) for x in (np.nan, np.inf, 2e6)]
    wrong += [pack(ours, said._replace(body=np.zeros(4, np.float32))), pack(ours, said._replace(body=None))]
    assert [read(data) for data in wrong] == [None] * len(wrong)
    rng = np.random.default_rng(0)
    for _ in range(2000):  # damage: refused, or a frame that a member could have sent; never an exception
        data = bytearray(good)
        for place in rng.integers(0, len(data), 3):
            data[place] = rng.integers(256)
        found = read(bytes(data[: rng.integers(1, len(data) + 1)] if rng.random() < 0.3 else data))
        assert found is None or (found.sender < 3 and found.round < 2 and np.isfinite(found.body).all())


def test_a_flood_of_frames_keeps_memory_bounded(team):
    member = Member(team.path / "member_0")
    size = member.model.size
    for step in range(3000):
        said = Frame(SAYS, 1, SENT | ALIVE, step % 5, step, step % 2, np.zeros(size, np.float32))
        member._read(pack(member._team, said))
        member._read(pack(member._team, said._replace(sender=2, step=7)))
        member._read(b"noise")
    assert len(member._said) <= 2 * 2 * 17
    assert member.counts["refused"] == 3000
    member.close()


def test_who_sends_without_end_holds_nobody_up(team, monkeypatch):
    class Flooded:
        read = 0

        def poll(self, _):
            return 1

        def recv(self, _):
            self.read += 1
            assert self.read < 100_000, "it reads for ever"
            return b"noise"

    with Member(team.path / "member_0") as member, monkeypatch.context() as patch:
        patch.setattr(member, "_ear", Flooded())
        member._listen(0.0, lambda: False)
        assert 0 < member.counts["refused"] < 100_000


def test_a_member_needs_no_jax(team):
    code = (
        "import sys; from flockrl.relay import Member; m = Member(sys.argv[1], timeout=0); m.act([0] * 6); m.close();"
        "assert not {'jax', 'flax', 'pyarrow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(team.path / "member_0")], check=True, timeout=120)
