"""Games with information sets: sizes, values, NashConv, CFR and linear programmes, and OpenSpiel's answers."""

import re

import numpy as np
import pytest
from game_kit import draw_policies, tree

from flockrl.core.errors import UsageError
from flockrl.envs.games.bidding import Goofspiel, LiarsDice
from flockrl.envs.games.boards import ConnectFour
from flockrl.envs.games.poker import Kuhn
from flockrl.games.cfr import solve_cfr
from flockrl.games.extensive import unfold
from flockrl.games.linear import solve_sequence_form
from flockrl.games.sequence import SequenceForm


@pytest.mark.parametrize(
    ("name", "histories", "infosets"),
    [("kuhn", 58, 12), ("leduc", 9457, 936), ("liars_dice:faces=3", 1147, 192), ("goofspiel", 737, 162)],
)
def test_every_history_and_information_set_is_found(name, histories, infosets):
    game = tree(name)
    assert (game.histories, game.form.infosets) == (histories, infosets)
    assert game.form.zero_sum


@pytest.mark.parametrize(("name", "conv"), [("kuhn", 11 / 12), ("leduc", 4.747222222222222)])
def test_nash_conv_of_uniform_play(name, conv):
    form = tree(name).form
    gap = form.gap(form.uniform())
    assert gap.nash_conv == pytest.approx(conv, abs=1e-12)
    assert gap.exploitability == pytest.approx(conv / 2, abs=1e-12)


@pytest.mark.parametrize("name", ["kuhn", "leduc"])
def test_always_passing_or_folding_has_nash_conv_2(name):
    form = tree(name).form
    passing = []
    for seat in form.seats:
        policy = np.zeros(len(seat.actions))
        policy[[0, *seat.starts]] = 1.0
        passing.append(policy)
    assert form.gap(passing).nash_conv == pytest.approx(2.0, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "value", "digits"),
    [("kuhn", -1 / 18, 12), ("leduc", -0.085606424078, 10), ("goofspiel", 0.0, 10), ("liars_dice:faces=3", None, 0)],
)
def test_values_by_linear_programme(name, value, digits):
    form = tree(name).form
    gap = form.gap(solve_sequence_form(form))
    assert gap.nash_conv < 1e-9
    if value is not None:
        assert gap.values[0] == pytest.approx(value, abs=10**-digits)


CFR = {1: 0.916667, 10: 0.137398, 100: 0.016452, 300: 0.006068, 1000: 0.001875, 2000: 0.001078, 10000: 0.000227}
CFR_PLUS = {10: 0.065374, 100: 0.002389, 300: 0.000867, 1000: 0.000175, 2000: 0.000087}


@pytest.mark.parametrize(("plus", "known"), [(False, CFR), (True, CFR_PLUS)])
def test_cfr_on_kuhn_to_the_digit(plus, known):
    form, found = tree("kuhn").form, {}
    solve_cfr(form, max(known), plus, lambda t, p: found.update({t: round(form.gap(p).nash_conv, 6)}), tuple(known))
    assert found == known


def test_cfr_on_leduc_to_the_digit():
    form, found = tree("leduc").form, {}
    marks = (1, 101, 201, 501, 1000)
    solve_cfr(form, 1000, each=lambda t, p: found.update({t: form.gap(p).exploitability}), marks=marks)
    known = [2.37361, 0.0939493, 0.0533379, 0.0214263]  # what OpenSpiel prints after iterations 0, 100, 200 and 500
    assert [round(found[t], 7) for t in marks[:4]] == pytest.approx(known, abs=4e-6)
    assert round(found[101], 7) == 0.0939493
    assert found[1000] == pytest.approx(0.0118178, abs=1e-5), "ties are broken by rounding: other sums, another path"


def test_cfr_plus_finds_the_value_of_leduc():
    form = tree("leduc").form
    gap = form.gap(solve_cfr(form, 300, plus=True))
    assert gap.values[0] == pytest.approx(-0.0856, abs=2e-3)
    assert gap.nash_conv < 0.02


def test_goofspiel_by_cfr():
    form = tree("goofspiel").form
    assert form.gap(solve_cfr(form, 1000)).exploitability <= 0.01


@pytest.mark.slow
def test_larger_trees():
    form = tree("goofspiel:order=random").form
    assert form.gap(solve_cfr(form, 100)).exploitability <= 0.1
    form = tree("liars_dice").form
    assert form.infosets == 24_576
    gap = form.gap(solve_sequence_form(form))
    assert gap.values[0] == pytest.approx(-7 / 258, abs=1e-9)
    assert gap.nash_conv < 1e-9


def test_a_best_response_gets_what_it_promises():
    form = tree("leduc").form
    policies = draw_policies(form)
    plans = [seat.plan(p) for seat, p in zip(form.seats, policies, strict=True)]
    for player in range(2):
        value, answer = form.seats[player].best(form.gradient(player, plans))
        against = [answer if i == player else p for i, p in enumerate(policies)]
        assert form.values(against)[player] == pytest.approx(value, abs=1e-12)
        assert value >= form.values(policies)[player]


def test_what_is_no_policy_is_refused():
    form = tree("kuhn").form
    with pytest.raises(UsageError, match="has 13 numbers, not"):
        form.gap([np.ones(3), form.uniform()[1]])
    wrong = form.uniform()[0]
    wrong[1] = 0.9
    with pytest.raises(UsageError, match="add up to 1"):
        form.gap([wrong, form.uniform()[1]])


# --- refusals


def test_a_game_too_large_is_refused_quickly():
    with pytest.raises(UsageError, match="games/liars_dice is too large to enumerate"):
        unfold(LiarsDice(6), most=10_000)
    with pytest.raises(UsageError, match="games/goofspiel is too large to enumerate"):
        unfold(Goofspiel(13))
    with pytest.raises(UsageError, match="solved by its states"):
        unfold(ConnectFour())


def test_players_who_forget_are_refused():
    class Forgetful(Kuhn):
        def see(self, state):
            return super().see(state).at[:, 5:].set(0.0)

    with pytest.raises(UsageError, match="player 0 forgets what it did"):
        unfold(Forgetful())


def test_the_linear_programme_is_for_zero_sum_games():
    form = tree("kuhn").form
    other = SequenceForm(form.seats, form.leaves, form.worth + 1.0)
    with pytest.raises(UsageError, match="one gains what the other loses"):
        solve_sequence_form(other)
    with pytest.raises(UsageError, match="iterations must be at least 1"):
        solve_cfr(form, 0)


# --- OpenSpiel


def numbers(text, label):
    found = re.search(rf"{label}: ([-\d ]*)", text)
    return [int(x) for x in found[1].split()]


def hot(values, size, rows):
    out = np.zeros((rows, size))
    for i, x in enumerate(values):
        out[i, x] = 1.0
    return out.reshape(-1)


def see_goofspiel(state, player):
    """What a player sees in our Goofspiel of four cards, from OpenSpiel's text."""
    text = state.information_state_string(player)
    own = numbers(text, f"P{player} action sequence")
    won = [{player: 0, 1 - player: 2}.get(w, 1) for w in numbers(text, "Win sequence")]
    return np.concatenate([np.eye(2)[player], hot(own, 4, 4), hot([3, 2, 1, 0], 4, 4), hot(won, 3, 4)])


def see_tensor(state, player):
    return np.array(state.information_state_tensor(player))


def see_dice(state, player):
    return np.array(state.information_state_tensor(player))[:-1]  # the last says that somebody called


def nash_conv_of_open_spiel(pyspiel, game, ours, policies, see):
    """NashConv by OpenSpiel of our policies, found by what players see."""
    numbers = [{row.astype(np.float32).tobytes(): i for i, row in enumerate(shown)} for shown in ours.shown]
    table, seen = {}, [set(), set()]

    def walk(state):
        if state.is_terminal():
            return
        if not state.is_chance_node():
            player = state.current_player()
            seat = ours.form.seats[player]
            g = numbers[player][see(state, player).astype(np.float32).tobytes()]
            seen[player].add(g)
            legal = state.legal_actions()
            own = slice(seat.starts[g], seat.starts[g] + seat.counts[g])
            assert seat.actions[own].tolist() == legal
            table[state.information_state_string()] = list(zip(legal, policies[player][own], strict=True))
        for action in state.legal_actions():
            walk(state.child(action))

    walk(game.new_initial_state())
    assert [len(s) for s in seen] == [len(seat.parents) for seat in ours.form.seats]
    return pyspiel.nash_conv(game, pyspiel.TabularPolicy(table))


@pytest.mark.parametrize(
    ("name", "theirs", "settings", "see"),
    [
        ("kuhn", "kuhn_poker", {}, see_tensor),
        ("leduc", "leduc_poker", {}, see_tensor),
        ("liars_dice:faces=3", "liars_dice", {"dice_sides": 3}, see_dice),
        ("goofspiel", "goofspiel", {"num_cards": 4, "imp_info": True, "points_order": "descending"}, see_goofspiel),
    ],
)
def test_nash_conv_of_random_policies_is_that_of_open_spiel(name, theirs, settings, see):
    pyspiel = pytest.importorskip("pyspiel")
    ours = tree(name)
    game = pyspiel.load_game(theirs, settings)
    if theirs == "goofspiel":
        game = pyspiel.convert_to_turn_based(game)
    for seed in range(2):
        policies = draw_policies(ours.form, seed)
        expected = nash_conv_of_open_spiel(pyspiel, game, ours, policies, see)
        assert ours.form.gap(policies).nash_conv == pytest.approx(expected, abs=1e-8)
