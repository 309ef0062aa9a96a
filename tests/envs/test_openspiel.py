"""Games of OpenSpiel on the host: conformance, what is seen and paid, and refusals."""

import numpy as np
import pytest
from conftest import TINY

import flockrl
from flockrl.core.errors import UsageError
from flockrl.envs import check, make

pyspiel = pytest.importorskip("pyspiel")


@pytest.mark.parametrize(
    "name",
    [
        "kuhn_poker",
        "tic_tac_toe",
        "goofspiel:num_cards=3,imp_info=true,points_order=descending",
        "matrix_rps",
        "tiny_hanabi",
    ],
)
def test_games_keep_the_contract(name):
    check(make(f"openspiel/{name}"))


def test_kuhn_is_ours():
    """The same cards and moves look and pay the same in OpenSpiel and here."""
    from flockrl.envs.games.poker import Kuhn
    from flockrl.games.extensive import unfold

    shown = [{row.astype(np.float32).tobytes() for row in rows} for rows in unfold(Kuhn()).shown]
    host = make("openspiel/kuhn_poker")
    team, generator, found = host.build(False), np.random.default_rng(0), [set(), set()]
    for episode in range(60):
        seen, over, total = team.reset(episode), False, np.zeros(2)
        while not over:
            moves = seen.avail[:, 2].argmin()  # the one who does not wait
            assert seen.avail.sum(1).tolist() == ([2, 1] if moves == 0 else [1, 2])
            found[moves].add(seen.obs[moves].tobytes())
            action = np.where(np.arange(2) == moves, generator.integers(0, 2, 2), 2)
            seen, reward, over, _ = team.step(action, 0)
            total += reward
        assert total.sum() == 0
        assert abs(total[0]) in (1, 2)
    assert found == shown


def test_sides_and_lengths():
    assert make("openspiel/tiny_hanabi").spec.sides == ("team", "team")
    spec = make("openspiel/kuhn_poker:players=3").spec
    assert spec.sides == spec.agents == ("agent_0", "agent_1", "agent_2")
    assert make("openspiel/tic_tac_toe:max_steps=4").spec.max_steps == 4
    assert make("openspiel/matrix_rps").spec.actions[0].n == 3, "nobody waits where all move at once"


def test_episodes_follow_their_seed():
    team = make("openspiel/leduc_poker").build(False)
    first, again, other = (team.reset(seed).obs for seed in (1, 1, 2))
    assert first.tolist() == again.tolist()
    assert len({team.reset(seed).obs.tobytes() for seed in range(20)}) > 5
    assert other.shape == first.shape


def test_a_run(tmp_path):
    few = {**TINY, "steps": 256, "eval_every": 256, "checkpoint_every": 256, "workers": 0}
    run = flockrl.train("ippo", "openspiel/kuhn_poker", out=tmp_path / "run", **few)
    assert "eval_return_agent_0" in run.metrics()[-1]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("kuhn_pker", "There is no environment openspiel/kuhn_pker. Did you mean 'kuhn_poker'"),
        ("kuhn_poker:cards=3", "openspiel/kuhn_poker cannot be made"),
        ("go:board_size=0", "openspiel/go cannot be made: unsupported board size"),
        ("hex:board_size=100000", "openspiel/hex is too large"),
        ("kuhn_poker:grey=true", "has no pictures"),
        ("kuhn_poker:reward_after_death=true", "live to the end: leave out reward_after_death"),
        ("mfg_crowd_modelling", "is a mean-field game"),
    ],
)
def test_refusals(name, words):
    with pytest.raises(UsageError, match=words):
        make(f"openspiel/{name}")
