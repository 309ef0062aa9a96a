"""A search is a function of its seed and of what its trials report: cut anywhere and rebuilt, it is the same search."""

import json
import math
import random

import numpy as np
import pytest

pytest.importorskip("optuna")

from flockrl.core.errors import UsageError
from flockrl.training.space import read_space
from flockrl.tuning.confirm import Confirmation, confirming, welch
from flockrl.tuning.places import Here
from flockrl.tuning.result import draw_search, tell, told, trials_table, write_best, write_summary, write_trials
from flockrl.tuning.search import SEARCH, Objective, Search
from flockrl.tuning.trials import Trials

WORDS = ("lr=log:1e-4:1e-1", "gamma=0.9:0.999")
RETURN = Objective("eval_return")
STEPS = (100, 200, 300, 400)


def score(settings, step):
    """Best at lr 0.003; gamma hardly matters."""
    return -((math.log10(settings["lr"]) + 2.5) ** 2) - 0.01 * abs(settings["gamma"] - 0.95) - 100 / step


def make(out, words=WORDS, **how):
    out.mkdir(exist_ok=True)
    return Search(out, read_space(words, "mappo"), {"algorithm": "mappo"}, every=100, **how)


def both(settings, step):
    """What pulls apart: the score, and a cost that is least at the lowest lr."""
    return score(settings, step), settings["lr"] + settings["gamma"]


def drive(search, count, events=10**9, value=score):
    """Run trials until there are `count` of them, or so many things have happened."""
    happened = 0
    while happened < events and (search.running or len(search.trials) < count):
        trial = search.running[0] if search.running else search.propose()
        left = [step for step in STEPS if step not in trial.reports]
        if not left or not all(trial.verdicts.values()):
            search.end(trial)
        else:
            search.report(trial, left[0], *np.atleast_1d(value(trial.settings, left[0])).tolist())
        happened += 1
    return search


def seen(search):
    return [(t.number, t.settings, t.state, t.reports, t.verdicts) for t in search.trials]


@pytest.mark.parametrize("how", [{"sampler": "tpe", "pruner": "median"}, {"sampler": "cmaes", "pruner": "asha"},
                                 {"sampler": "random"}], ids=["tpe", "cmaes", "random"])  # fmt: skip
def test_a_search_that_is_cut_again_and_again_is_the_same_search(tmp_path, how):
    whole = drive(make(tmp_path / "whole", **how), 16)
    cuts, luck = 0, random.Random(0)
    while True:
        search = drive(make(tmp_path / "cut", **how), 16, luck.randint(1, 20))
        cuts += 1
        if len(search.trials) == 16 and not search.running:
            break
        if luck.random() < 0.5:  # a crash may tear the last line
            with (tmp_path / "cut" / SEARCH).open("a") as file:
                file.write('{"trial": 3, "st')
    assert cuts > 3
    assert seen(search) == seen(whole)
    assert search.best.number == whole.best.number
    assert (tmp_path / "cut" / SEARCH).read_bytes() == (tmp_path / "whole" / SEARCH).read_bytes()


def test_it_finds_what_is_good_and_says_what_mattered(tmp_path):
    search = drive(make(tmp_path), 40)
    chance = drive(make(tmp_path / "chance", sampler="random"), 40)
    assert abs(math.log10(search.best.settings["lr"]) + 2.5) < 0.1
    late = [np.mean([t.value for t in s.trials[20:]]) for s in (search, chance)]
    assert late[0] > late[1] + 0.2  # it learns from the trials before, and chance does not
    assert search.importances()["lr"] > 0.8


@pytest.mark.parametrize("pruner", ["median", "asha"])
def test_pruning_stops_what_is_worse(tmp_path, pruner):
    search = drive(make(tmp_path, pruner=pruner), 30)
    pruned = [t for t in search.trials if t.state == "pruned"]
    assert len(pruned) >= 5
    assert search.best.state == "complete"
    assert np.mean([score(t.settings, 400) for t in pruned]) < np.mean(
        [t.value for t in search.trials if t.state == "complete"]
    )
    assert all(list(t.verdicts.values()) == [True] * (len(t.verdicts) - 1) + [False] for t in pruned)


def test_the_smallest_may_be_searched_for(tmp_path):
    search = drive(make(tmp_path, objectives=[Objective("loss", False)]), 12)
    assert search.best.value == min(t.value for t in search.trials)


def test_of_several_objectives_the_front_is_told(tmp_path):
    objectives = [RETURN, Objective("cost", False)]
    search = drive(make(tmp_path, objectives=objectives), 24, value=both)
    points = np.array([t.values for t in search.trials]) * [1, -1]
    beaten = [any((other >= point).all() and (other > point).any() for other in points) for point in points]
    assert sorted(t.number for t in search.front) == np.flatnonzero(~np.array(beaten)).tolist()
    assert 1 < len(search.front) < 24
    assert search.best.values[0] == max(t.values[0] for t in search.trials)
    assert search.importances()["lr"] > 0.5
    again = make(tmp_path, objectives=objectives)
    assert seen(again) == seen(search)
    assert trials_table(search).row_count == min(len(search.front), 10)
    write_trials(search, tmp_path / "trials.csv")
    assert (tmp_path / "trials.csv").read_text().startswith("trial,state,eval_return,cost,step,")
    draw_search(search, tmp_path / "picture.png")
    write_summary(tmp_path / "tuning.json", search, {"eval_return": Confirmation(np.zeros(2), np.ones(2), 1.0)})
    told = json.loads((tmp_path / "tuning.json").read_text())
    assert [one["trial"] for one in told["front"]] == [t.number for t in search.front]
    assert told["confirmation"]["best"] == [1.0, 1.0]


@pytest.mark.parametrize("how", [{"pruner": "median"}, {"sampler": "cmaes"}])
def test_what_needs_one_objective_says_so(tmp_path, how):
    with pytest.raises(UsageError, match="name one --objective"):
        make(tmp_path, objectives=[RETURN, Objective("cost", False)], **how)


def test_a_trial_that_ends_without_a_number_has_failed(tmp_path):
    search = make(tmp_path)
    trial = search.propose()
    search.report(trial, 100, math.nan)
    search.end(trial)
    assert (trial.state, trial.why) == ("failed", "its last evaluation gave nan")
    assert make(tmp_path).trials[0].state == "failed"


def test_a_failed_trial_is_told_and_the_search_goes_on(tmp_path):
    search = make(tmp_path)
    search.end(search.propose(), "loss is nan")
    search.end(search.propose())
    drive(search, 5)
    assert [t.state for t in search.trials] == ["failed", "failed", "complete", "complete", "complete"]
    assert [t.why for t in search.trials[:2]] == ["loss is nan", "it was never evaluated"]
    assert seen(make(tmp_path)) == seen(search)


def test_other_settings_do_not_mix(tmp_path):
    drive(make(tmp_path), 2)
    with pytest.raises(UsageError, match="other settings \\(search\\): choose another --out"):
        make(tmp_path, ("lr=log:1e-4:1e-2",))
    with pytest.raises(UsageError, match="other settings \\(sampler\\)"):
        make(tmp_path, sampler="random")


DAMAGE = {
    "another proposal": lambda lines: [*lines[:1], lines[1].replace("0.9", "0.8"), *lines[2:]],
    "a trial that never began": lambda lines: [*lines, '{"trial": 99, "step": 1, "value": 0}'],
    "no number": lambda lines: [*lines, '{"trial": 0, "end": "odd", "why": ""}'],
    "not JSON": lambda lines: [*lines, "{"],
    "not an object": lambda lines: [*lines, "[1]"],
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_file_is_refused(tmp_path, what):
    drive(make(tmp_path), 2)
    file = tmp_path / SEARCH
    file.write_text("\n".join(DAMAGE[what](file.read_text().splitlines())) + "\n")
    with pytest.raises(UsageError):
        make(tmp_path)


def test_cmaes_takes_no_choices(tmp_path):
    with pytest.raises(UsageError, match="epochs has choices: use --sampler tpe"):
        make(tmp_path, ("lr=0.1:1", "epochs=2,5"), sampler="cmaes")


def test_what_is_written(tmp_path):
    search = drive(make(tmp_path, ("lr=log:1e-4:1e-1", "gamma=0.9:0.999", "hidden=32,64x64"), pruner="median"), 12)
    write_trials(search, tmp_path / "trials.csv")
    assert len((tmp_path / "trials.csv").read_text().splitlines()) == 13
    draw_search(search, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 5000
    assert told(search).startswith("12 trials: ")
    assert "(a hint: the trials are few)" in told(search)
    assert trials_table(search).row_count > 0


def test_the_best_is_what_train_takes(tmp_path):
    import flockrl.training.config as config

    fixed = {"steps": 1000, "envs": 4, "seed": 3, "epochs": 2, "lr": 0.5}
    file = write_best(tmp_path, "mappo", "mpe/simple", fixed, {"lr": 0.01, "hidden": [32]})
    assert file.name == "best.toml"
    options, settings = config.read_settings(file)
    assert (options, settings) == ({"steps": 1000, "envs": 4}, {"epochs": 2, "lr": 0.01, "hidden": [32]})
    file = write_best(tmp_path, "mappo", "mpe/simple", fixed, {"max_grad_norm": None})
    assert file.name == "best.json"
    assert config.read_settings(file)[1]["max_grad_norm"] is None


def test_welch_against_the_textbook():
    """Interval by hand: means 3 and 1, variances 2.5 and 0.5, five each; 5.6 degrees of freedom, t = 2.4892."""
    ours, theirs = np.array([1, 2, 3, 4, 5.0]), np.array([0.0, 1, 1, 1, 2])
    estimate = welch(ours, theirs)
    freedom = (0.5 + 0.1) ** 2 / (0.5**2 / 4 + 0.1**2 / 4)
    assert freedom == pytest.approx(5.538, abs=1e-3)
    assert estimate.value == 2.0
    assert estimate.high - estimate.value == pytest.approx(2.497 * math.sqrt(0.6), abs=2e-3)
    assert estimate.low == pytest.approx(2 * estimate.value - estimate.high)
    assert welch(np.ones(3), np.zeros(3)) == (1.0, 1.0, 1.0)


def test_the_sentences_follow_from_the_scores():
    worse, better = np.array([1.0, 1.1, 0.9]), np.array([2.0, 2.1, 1.9])
    text = tell(Confirmation(worse, better, 2.5), RETURN)
    assert "best is better than the default" in text
    assert "0.50 better than it is" in text
    assert "not to be told from" in tell(Confirmation(worse, worse, 1.0), RETURN)
    assert "worse than the default" in tell(Confirmation(better, worse, 1.0), RETURN)
    assert "best is better" in tell(Confirmation(better, worse, 1.0), Objective("loss", False))


def test_the_confirmation_has_seeds_of_its_own():
    fixed = {"steps": 100, "envs": 4, "seed": 7, "eval_every": None, "epochs": 2}
    cells = confirming("ippo", "mpe/simple", fixed, {"lr": 0.1}, 8, 2).cells
    assert [(cell.label, cell.seed, cell.run.config.lr) for cell in cells] == [
        ("default", 8, 0.002), ("default", 9, 0.002), ("best", 8, 0.1), ("best", 9, 0.1)
    ]  # fmt: skip
    assert {cell.run.config.epochs for cell in cells} == {2}


def test_events_hold_nothing_but_plain_values(tmp_path):
    drive(make(tmp_path, sampler="cmaes"), 4)
    keys = {key for line in (tmp_path / SEARCH).read_text().splitlines()[1:] for key in json.loads(line)}
    assert keys == {"trial", "proposed", "step", "value", "end", "why"}


def test_a_trial_of_somebody_else_is_not_resumed(tmp_path):
    """Its configuration could name code, and trials are resumed with trust."""
    search = make(tmp_path)
    trials = Trials(search, tmp_path, lambda settings: {"run": {"algorithm": "mappo", "seed": 0}}, Here(1))
    trial = search.propose()
    trials.path(trial).mkdir(parents=True)
    for odd in ({"algorithm": "ippo"}, {"algorithm": "mappo", "sides": {}}):
        (trials.path(trial) / "config.json").write_text(json.dumps(odd))
        with pytest.raises(UsageError, match="is not the trial that this search began"):
            trials.run(1, lambda *_: None)
    assert trials.running == {}
