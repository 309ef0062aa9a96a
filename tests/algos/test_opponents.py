"""Opponent modelling: the loss by hand, weight 0 changes nothing, past selves and scripts are learned, refusals; and
returns and global states that policies predict."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flockrl
from flockrl.algos.assembly import make_algorithm
from flockrl.algos.opponents import (
    CHOSE,
    MOVES,
    deciding,
    foreseen_loss,
    foreseen_size,
    note_moves,
    others_moves,
    prediction,
    state_miss,
)
from flockrl.algos.presets import make_config
from flockrl.algos.wrappers.self_play import OWN
from flockrl.core.errors import UsageError
from flockrl.core.groups import make_groups
from flockrl.core.types import Box, Discrete, EnvSpec, MultiDiscrete, Observation, Trajectory
from flockrl.envs import make
from flockrl.envs.comm.signalling import Signalling
from flockrl.rollouts.compiled import scan_rollout, start

TAG = make("mpe/simple_tag").spec
PENNIES = make("games/matching_pennies").spec
SMALL = {"hidden": (16,), "rollout_steps": 25, "seed": 0}


def drawn(spec, seed=0):
    """Predictions, moves and weights of 3 x 2 moments."""
    rng, n, whole = np.random.default_rng(seed), spec.num_agents, spec.whole or spec
    foreseen = rng.normal(size=(3, 2, n, whole.num_agents * whole.action_size))
    moves = np.stack([rng.integers(space.size, size=(3, 2)) for space in whole.actions], -1)
    return foreseen, moves, rng.random((3, 2, whole.num_agents)) < 0.7, rng.random((3, 2, n)) < 0.7


def by_hand(spec, agents, foreseen, moves, chose, learns):
    """Mean surprise and accuracy, one prediction after the other."""
    whole, costs, hits = spec.whole or spec, [], []
    for t, b in np.ndindex(3, 2):
        for row, i in enumerate(agents):
            for j in range(whole.num_agents):
                if spec.places[i] == j or not chose[t, b, j] or not learns[t, b, i]:
                    continue
                logits = foreseen[t, b, row].reshape(whole.num_agents, -1)[j, : whole.actions[j].size]
                odds = np.exp(logits) / np.exp(logits).sum()
                costs.append(-np.log(odds[moves[t, b, j]]))
                hits.append(odds.argmax() == moves[t, b, j])
    return np.mean(costs), np.mean(hits)


@pytest.mark.parametrize("spec", [TAG, TAG.part([3]), make("games/chicken").spec], ids=["tag", "prey", "chicken"])
def test_the_loss_by_hand(spec):
    foreseen, moves, chose, learns = drawn(spec)
    for group in make_groups(spec, "groups"):
        rows, own = foreseen[..., list(group.agents), :], learns[..., list(group.agents)]
        told = jnp.asarray(moves), jnp.asarray(chose)
        found = prediction(spec, group, jnp.asarray(rows), told, jnp.asarray(own, jnp.float32))
        assert [float(x) for x in found] == pytest.approx(by_hand(spec, group.agents, rows, moves, chose, learns), 1e-5)


def test_a_move_without_a_choice_is_not_predicted():
    env = make("games/kuhn")
    algorithm = make_algorithm("ippo", env.spec, make_config("ippo", {"rollout_steps": 8}), envs=8, updates=1)
    moves, chose = others_moves(env.spec, played(algorithm, env, jax.jit(algorithm.init)(jax.random.key(0))))
    assert (np.asarray(chose).sum(-1) <= 1).all(), "one player moves at a time"
    assert np.asarray(chose).any()
    assert (np.asarray(moves)[~np.asarray(chose)] == 2).all(), "and the other waits"


def played(algorithm, env, state, envs=8):
    actor, key = algorithm.in_training, jax.random.key(1)
    return jax.jit(lambda s: scan_rollout(actor, actor.params(s), env, start(actor, env, key, envs), key)[1])(state)


def trained(weight, **more):
    return flockrl.train("ippo", "games/chicken:history=true", steps=2_000, model_opponents=weight, **SMALL, **more)


def test_weight_0_is_the_plain_learner(tmp_path):
    plain, with_heads = (trained(w, out=tmp_path / str(w)) for w in (None, 0.0))
    heads = []
    for a, b in zip(plain.params()["actor"], with_heads.params()["actor"], strict=True):
        heads.append(b.pop("foresight"))
        assert all(map(np.array_equal, jax.tree.leaves(a), jax.tree.leaves(b))), "to the bit"
    assert {x["kernel"].shape for x in heads} == {(16, 4)}
    assert "opponent_accuracy" in with_heads.metrics()[-1]
    assert "opponent_accuracy" not in plain.metrics()[-1]
    moved = trained(0.5, out=tmp_path / "half").params()["actor"][0]
    torsos = zip(*(jax.tree.leaves(net["torso"]) for net in (moved, plain.params()["actor"][0])), strict=True)
    assert not all(np.array_equal(a, b) for a, b in torsos)


def echo(spec, seen, key):
    """Rock, paper, scissors: does what the opponent did last."""
    return seen.obs[..., 1:4].argmax(-1).astype(jnp.int32)


def test_a_scripted_opponent_is_seen_through(tmp_path):
    """The other side's moves come to a learner of one side."""
    players = {"agent_0": "ippo", "agent_1": echo}
    run = flockrl.train(
        players, "games/rock_paper_scissors:history=true", steps=8_000, envs=16, out=tmp_path / "run", seed=0,
        agent_0={"model_opponents": 1.0, "hidden": (16,), "entropy": 0.5, "rollout_steps": 25, "epochs": 1},
    )  # fmt: skip
    rows = [row["agent_0/opponent_accuracy"] for row in run.metrics() if "agent_0/opponent_accuracy" in row]
    assert rows[0] < 0.8
    assert rows[-1] > 0.9
    assert run.metrics()[-1]["agent_0/opponent_loss"] < 0.9 < np.log(3)


def test_past_selves_are_predicted_though_nobody_learns_for_them():
    env = make("games/chicken")
    config = make_config("ippo", {"model_opponents": 1.0, "self_play": "uniform", "pool_share": 1.0, **PPO})
    algorithm = make_algorithm("ippo", env.spec, config, envs=8, updates=4, env=env)
    state = jax.jit(algorithm.init)(jax.random.key(0))
    rollout = played(algorithm, env, state)
    assert not np.asarray(rollout.extras[OWN]).all(-1).any(), "one of the two is a past self"
    _, metrics = jax.jit(algorithm.update)(state, rollout, jax.random.key(0))
    assert float(metrics["opponent_loss"]) == pytest.approx(np.log(2), abs=0.05), "and not 0, as where nobody chose"


PPO = {"rollout_steps": 8, "epochs": 1, "minibatches": 1, "hidden": (8,)}


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["none", "gru"])
def test_memory_and_talk_stand_between_what_is_seen_and_predicted(memory):
    """Predictions come from the features that the policy reads, after memory and messages."""
    env = make("mpe/simple_tag")
    config = make_config("ippo", {"model_opponents": 1.0, "comm": "commnet", "memory": memory, **PPO})
    algorithm = make_algorithm("ippo", env.spec, config, envs=8, updates=4, env=env)
    state = jax.jit(algorithm.init)(jax.random.key(0))
    after, metrics = jax.jit(algorithm.update)(state, played(algorithm, env, state), jax.random.key(0))
    assert float(metrics["opponent_loss"]) == pytest.approx(np.log(5), abs=0.1)
    pairs = zip(
        *(jax.tree.leaves([net["exchange_0"] for net in s.params["actor"]]) for s in (state, after)), strict=True
    )
    assert any((np.asarray(a) != np.asarray(b)).any() for a, b in pairs)


def test_what_predicting_returns_costs_by_hand():
    config = make_config("ippo", {"predict_return": 0.5})
    spec = make("mpe/simple_spread:N=2").spec
    (group,) = make_groups(spec, "groups")
    foreseen, target = jnp.array([[[0.5], [1.0]], [[-1.0], [2.0]]]), jnp.array([1.0, 1.0, 1.0, 0.0])
    assert foreseen_size(spec, config) == 1
    loss, told = foreseen_loss(spec, config, group, foreseen, (), target, None, None)
    assert float(told["return_loss"]) == pytest.approx((0.25 + 0 + 4 + 4) / 2 / 4)
    assert float(loss) == pytest.approx(float(told["return_loss"]) / 2)
    loss, _ = foreseen_loss(spec, config, group, foreseen, (), target, jnp.array([1.0, 1.0, 0.0, 0.0]), None)
    assert float(loss) == pytest.approx(0.25 / 2 / 2 / 2)
    both = make_config("ippo", {"predict_return": 0.5, "model_opponents": 1.0})
    assert foreseen_size(spec, both) == 2 * spec.action_size + 1


def test_what_predicting_states_costs_by_hand():
    """Numbers of any size count alike, and those that never change count as known."""
    state = jnp.array([[[0.0, 100.0, 7.0]], [[2.0, 300.0, 7.0]]])  # [T, B, S], deviations 1, 100 and 0
    right = jnp.array([[-1.0, -1.0, 0.0], [1.0, 1.0, 0.0]])[:, None, None]  # [T, B, n, S]
    assert float(state_miss(jnp.broadcast_to(right, (2, 1, 2, 3)), state, None)) == pytest.approx(0, abs=1e-10)
    zero = jnp.zeros((2, 1, 2, 3))
    assert float(state_miss(zero, state, None)) == pytest.approx(2 / 3 / 2)
    off = zero.at[0, 0, 1].set(jnp.array([2.0, -1.0, 0.0]))  # one agent, once: misses 3, 0 and 0
    weight = jnp.array([[[1.0, 1.0]], [[0.0, 0.0]]])
    assert float(state_miss(off, state, weight)) == pytest.approx((2 / 3 + 9 / 3) / 2 / 2)


def test_predictions_have_their_places_beside_each_other():
    """The others' actions come first, then the global state, then the return."""
    spec = make("comm/switch_riddle").spec
    (group,) = make_groups(spec, "all")
    config = make_config("mappo", {"predict_return": 1.0, "predict_state": 0.5, "model_opponents": 1.0})
    moves, size = spec.num_agents * spec.action_size, foreseen_size(spec, config)
    assert size == moves + spec.state_size + 1
    state = jax.random.normal(jax.random.key(0), (4, 2, spec.state_size))
    foreseen = jax.random.normal(jax.random.key(1), (4, 2, 3, size))
    did = jnp.zeros((4, 2, 3), jnp.int32), jnp.ones((4, 2, 3), bool)
    loss, told = foreseen_loss(
        spec, config, group, foreseen, did, jnp.zeros(24), None, None, Observation(None, state=state)
    )
    middle = state_miss(foreseen[..., moves:-1], state, None)
    assert float(told["state_loss"]) == pytest.approx(float(middle), 1e-6)
    assert float(told["return_loss"]) == pytest.approx(float((foreseen[..., -1] ** 2).mean() / 2), 1e-5)
    assert float(told["opponent_loss"]) == pytest.approx(float(prediction(spec, group, foreseen, did, None)[0]), 1e-6)
    assert float(loss) == pytest.approx(float(told["opponent_loss"] + 0.5 * middle + told["return_loss"]), 1e-5)


def test_who_has_no_choice_predicts_no_state():
    """Several choices are free if one of them is, and real actions always are."""
    acts = (Discrete(3), Discrete(3), Box((1,), -1.0, 1.0), MultiDiscrete((2, 2)), MultiDiscrete((2, 2)))
    spec = EnvSpec("five", tuple("abcde"), (Box((2,)),) * 5, acts, 4, groups=(0,) * 2 + (1, 2, 2), state_size=2)
    avail = jnp.array([[1, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 0], [1, 0, 0, 1], [1, 0, 1, 1]], bool)  # [N, A]
    found = [deciding(spec, group, avail, None).tolist() for group in make_groups(spec, "groups")]
    assert found == [[1, 0], [1], [0, 1]]
    first = make_groups(spec, "groups")[0]
    assert deciding(spec, first, avail, jnp.array([0.0, 1.0])).tolist() == [0, 0]
    assert deciding(spec, first, None, None) is None


@pytest.mark.parametrize(("algorithm", "words"), [("happo", "predict nobody's"), ("ippo", "simple_spread has none")])
def test_a_state_that_is_not_there_is_not_predicted(algorithm, words, tmp_path):
    with pytest.raises(UsageError, match=words):
        flockrl.train(algorithm, "mpe/simple_spread", predict_state=0.5, out=tmp_path / "run")


def learned(env, config):
    """Metrics of the last of 40 updates."""
    algorithm = make_algorithm("ippo", env.spec, config, envs=64, updates=60, env=env)

    @jax.jit
    def learn(state, key):
        first = start(algorithm, env, key, 64)
        return algorithm.update(state, scan_rollout(algorithm, algorithm.params(state), env, first, key)[1], key)

    state = jax.jit(algorithm.init)(jax.random.key(0))
    for i in range(40):
        state, metrics = learn(state, jax.random.key(i))
    return metrics


def test_messages_learn_what_returns_depend_on():
    """Only the leader sees the bit, all are paid for it whatever they do: there is nothing to gain, and something to
    tell."""

    class Fate(Signalling):
        def step(self, key, state, action):
            after, seen, reward, *over = super().step(key, state, action)
            return after, seen, jnp.full_like(reward, state.bit), *over

    env, more = Fate(), {"rollout_steps": 4, "epochs": 4, "minibatches": 1, "hidden": (16,), "lr": 1e-2, "entropy": 0.0}
    config = make_config("ippo", {"comm": "commnet", "channel": "bits=1", "predict_return": 1.0, **more})
    metrics = learned(env, config)
    assert float(metrics["return_loss"]) < 0.05  # of a half: the followers know, too


class Secret(Signalling):
    """Nothing is paid, and the bit that the leader sees is the global state."""

    def __init__(self):
        super().__init__()
        self.spec = dataclasses.replace(self.spec, state_size=1)

    def reset(self, key):
        state, seen = super().reset(key)
        return state, seen._replace(state=state.bit[None] * 1.0)

    def step(self, key, state, action):
        after, seen, reward, *over = super().step(key, state, action)
        return after, seen._replace(state=after.bit[None] * 1.0), 0.0 * reward, *over


@pytest.mark.parametrize("channel", ["bits=1", "bits=0"])
def test_messages_learn_the_state_that_others_do_not_see(channel):
    env, more = Secret(), {"rollout_steps": 4, "epochs": 4, "minibatches": 1, "hidden": (16,), "lr": 1e-2}
    config = make_config("ippo", {"comm": "commnet", "channel": channel, "predict_state": 1.0, **more})
    metrics = learned(env, config)
    # Half the variance, 1/2, for those who know nothing: two of three agents without messages.
    low, high = (0.0, 0.05) if channel == "bits=1" else (0.3, 0.4)
    assert low <= float(metrics["state_loss"]) < high


@pytest.mark.parametrize(
    ("algorithm", "env", "words"),
    [
        ("ippo", "mpe/simple_spread:continuous_actions=true", "not all agents of mpe/simple_spread choose one"),
        ("ippo", "classic/cartpole", "classic/cartpole has none"),
        ("happo", "mpe/simple_spread", "predict nobody's actions"),
    ],
)
def test_where_it_does_not_fit_it_is_refused(algorithm, env, words, tmp_path):
    with pytest.raises(UsageError, match=words):
        flockrl.train(algorithm, env, model_opponents=0.5, out=tmp_path / "run")


def test_a_side_without_the_others_moves_is_refused():
    part = TAG.part([3])
    moves = drawn(TAG)[1]
    nothing = jnp.zeros((3, 2, 1))
    rollout = Trajectory(nothing, jnp.asarray(moves)[..., 3:], nothing, *([nothing > 0] * 2), nothing, nothing[..., 0])
    with pytest.raises(UsageError, match="others' actions are known"):
        others_moves(part, rollout)
    whole = rollout._replace(reward=jnp.zeros((3, 2, 4)), action=jnp.asarray(moves))
    told = note_moves(TAG, whole)
    assert others_moves(part, rollout._replace(extras=told)) == (told[MOVES], told[CHOSE])
    assert told[CHOSE].all()
