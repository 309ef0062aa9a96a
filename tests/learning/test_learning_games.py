"""Games whose answers are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flockrl
from flockrl.core.rundir import read_metrics
from flockrl.envs.games.boards import BoardState

STEPS = {"steps": 200_000, "rollout_steps": 100, "eval_episodes": 50}


def final(tmp_path, algorithm, env, **settings):
    run = flockrl.train(algorithm, env, out=tmp_path / "run", **{**STEPS, **settings})
    return run, run.result["final_eval_return"]


@pytest.mark.slow
def test_penalty_without_penalty_is_solved(tmp_path):
    assert final(tmp_path, "mappo", "games/penalty:k=0")[1] == pytest.approx(250)


@pytest.mark.slow
def test_climbing_reaches_the_published_equilibrium(tmp_path):
    assert final(tmp_path, "mappo", "games/climbing")[1] >= 175


@pytest.mark.slow
def test_prisoners_defect(tmp_path):
    """Defection is dominant, so independent learners end there."""
    run, _ = final(tmp_path, "ippo", "games/prisoners_dilemma", steps=50_000)
    policy = run.policy()
    assert (policy.act(np.ones((2, run.env.spec.obs_size))) == 1).all()


@pytest.mark.slow
def test_matching_pennies_ends_near_one_half(tmp_path):
    """With a strong entropy bonus both players come to rest at the mixed equilibrium. Players with probabilities p and
    q of heads can be exploited by |2p - 1| + |2q - 1| in each of the 25 rounds; pure ones by 2."""
    run, _ = final(tmp_path, "ippo", "games/matching_pennies", steps=120_000, entropy=0.2, lr=1e-3)
    rows = [row for row in read_metrics(run.path) if row["step"] > 80_000 and "eval_nash_conv" in row]
    late = [row["eval_nash_conv"] / 25 for row in rows]
    assert len(late) > 3
    assert np.mean(late) < 0.2
    assert late[-1] < 0.3


@pytest.mark.slow
def test_magnetic_mirror_descent_finds_the_equilibrium_of_kuhn_poker(tmp_path):
    """Its last policy, as it samples; PPO with an entropy bonus instead of a magnet wanders about 0.3."""
    run = flockrl.train("mmd", "games/kuhn", steps=2_000_000, eval_episodes=10, out=tmp_path / "run")
    assert flockrl.exploit(run).nash_conv < 0.05


@pytest.mark.slow
def test_the_average_of_past_selves_is_near_the_equilibrium_of_leduc(tmp_path):
    """Uniform play has 4.75. The last policy alone goes round between 0.5 and 1."""
    settings = {"lr": 5e-4, "entropy": 0.07, "magnet_rate": 0.01, "minibatches": 4, "critic": "central", "envs": 64}
    settings |= {"self_play": "average", "pool_size": 12, "eval_episodes": 2, "steps": 6_000_000}
    run = flockrl.train("mmd", "games/leduc", out=tmp_path / "run", **settings)
    assert flockrl.exploit(run).nash_conv < 0.5


@pytest.mark.slow
def test_fictitious_self_play_averages_what_cycles(tmp_path):
    """The mixture of past selves is what is examined."""
    settings = {"steps": 100_000, "rollout_steps": 20, "gamma": 1.0, "pool_size": 16, "eval_episodes": 10}
    run = flockrl.train("ippo", "games/kuhn", self_play="fictitious", out=tmp_path / "run", **settings)
    assert flockrl.exploit(run).nash_conv < 0.4


def lines_lost(policy, player):
    """How many lines of tic-tac-toe a policy loses for one player, whatever the other does: all of them are tried.

    policy: (boards [K, 9] of 0, 1, 2, player) -> squares [K].
    """
    rows = [(a, b, c) for a, b, c in (
        (0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)
    )]  # fmt: skip
    boards, lost = np.zeros((1, 9), int), 0
    for move in range(9):
        mover = move % 2
        if mover == player:
            chosen = np.asarray(policy(boards, player))
            assert (boards[np.arange(len(boards)), chosen] == 0).all(), "a legal move"
            pairs = list(zip(range(len(boards)), chosen, strict=True))
        else:
            pairs = [tuple(pair) for pair in np.argwhere(boards == 0)]
        after = boards[[i for i, _ in pairs]]
        after[np.arange(len(pairs)), [square for _, square in pairs]] = mover + 1
        won = np.array([any((board[list(row)] == mover + 1).all() for row in rows) for board in after], bool)
        lost += int(won.sum()) if mover != player else 0
        boards = after[~won]
    return lost


def test_lines_are_counted_right():
    first_free = lambda boards, player: (boards == 0).argmax(1)  # noqa: E731
    assert lines_lost(first_free, 0) > 0
    assert lines_lost(first_free, 1) > 0


@pytest.mark.slow
def test_tic_tac_toe_learned_from_itself_never_loses(tmp_path):
    """Two tables that learn from each other; then every line of the opponent is tried against greedy play."""
    settings = {"gamma": 1.0, "lr": 0.3, "explore_end": 0.2, "explore_part": 0.7, "envs": 64, "eval_episodes": 10}
    run = flockrl.train("iql_tabular", "games/tic_tac_toe", steps=3_000_000, out=tmp_path / "run", **settings)
    env, params, algorithm = run.env, run.params(), run.algorithm
    seen = jax.jit(jax.vmap(lambda board: env.observe(BoardState(board.reshape(3, 3), jnp.int32(0)))))
    act = jax.jit(
        lambda seen: algorithm.act(params, seen, algorithm.memory(len(seen.obs)), jax.random.key(0), False)[0]
    )

    def policy(boards, player):
        return act(seen(jnp.asarray(boards)))[:, player]

    assert [lines_lost(policy, player) for player in (0, 1)] == [0, 0]
    gap = flockrl.exploit(run, sampled=False)
    assert gap.values + gap.gains == pytest.approx([0, 0]), "a best response draws"


@pytest.mark.slow
def test_sparring_teaches_to_beat_the_search_at_connect_four(tmp_path):
    """One network for both seats against the search that looks two moves ahead, from the empty board. Self-play alone
    loses nearly all of these games after more steps than these."""
    settings = {"self_play": "latest", "pool_size": 2, "pool_share": 0.85, "sparring_share": 0.9, "entropy": 0.02}
    settings |= {"envs": 128, "rollout_steps": 32, "epochs": 2, "minibatches": 8, "lr": 1e-3, "gae_lambda": 0.95}
    settings |= {"hidden": (128, 128), "activation": "relu", "steps": 800_000, "eval_episodes": 2}
    script = "flockrl.envs.games.search:depth_2"
    got = []
    for seed in (0, 1, 2):  # one of four is unlucky
        out = tmp_path / str(seed)
        run = flockrl.train("ippo", "games/connect_four", sparring=script, seed=seed, out=out, **settings)
        with pytest.raises(flockrl.UsageError, match="names code that would be imported"):
            flockrl.Run(run.path)
        pairs = [{f"agent_{seat}": run, f"agent_{1 - seat}": "search"} for seat in (0, 1)]
        played = [flockrl.match(pair, "games/connect_four:depth=2", episodes=100) for pair in pairs]
        got.append(sum(result.per_agent[seat] for seat, result in enumerate(played)) / 2)
        if got[-1] > 0.2:
            break
    assert got[-1] > 0.2, got
