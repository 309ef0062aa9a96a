"""Reports: complete, self-contained, and right about which runs are which."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from pyarrow import parquet

from flockrl.commands.main import main
from flockrl.core.errors import Notice, UsageError
from flockrl.evidence import credit, statistics, svg, tiers
from flockrl.evidence.records import collect, tidy, write_parquet
from flockrl.evidence.report import write_report
from flockrl.evidence.summary import lines, normalized, normalized_curves, scale


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    """What is tested here is the page, not the intervals."""
    monkeypatch.setattr(statistics, "REPS", 40)


def write_run(path, algorithm, env, seed, scores, best=None, **config):
    """A finished run's files without the training."""
    path.mkdir(parents=True)
    steps = 1000 * (len(scores) - 1)
    saved = {
        "algorithm": algorithm,
        "env": env,
        "steps": steps,
        "envs": 4,
        "seed": seed,
        "config": {"lr": 1.0, **config},
    }
    rows = [
        {
            "step": 1000 * i, "eval_return": x, "eval_return_std": 1.0, "eval_return_per_agent": [x, x],
            "eval_episodes": 20, "eval_welfare": 2 * x, "eval_jain": 1.0,
            **({"eval_efficiency": x / best} if best else {}),
        }
        for i, x in enumerate(scores)
    ]  # fmt: skip
    result = {"steps": steps, "seconds": 1.0, "steps_per_second": 1234.0, "best_eval_return": max(scores)}
    (path / "config.json").write_text(json.dumps({**saved, "versions": {"jax": "1"}}))
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (path / "result.json").write_text(json.dumps(result))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three algorithms x two environments x five seeds."""
    base = tmp_path_factory.mktemp("runs")
    draw = np.random.default_rng(0)
    for k, algorithm in enumerate(("mappo", "ippo", "vdn")):
        for env, top in (("mpe/simple_spread", -10.0), ("games/climbing", 275.0)):
            for seed in range(5):
                rise = np.minimum(1, np.arange(21) / (8 + 4 * k)) + draw.normal(0, 0.03, 21)
                scores = (top - 20 + (20 - 2 * k) * rise).tolist()
                best = 275.0 if env == "games/climbing" else None
                write_run(
                    base / f"{algorithm}-{env.replace('/', '-')}" / f"seed_{seed}", algorithm, env, seed, scores, best
                )
    return base


class Reader(HTMLParser):
    """Notes what is opened and not closed, and every address."""

    def __init__(self):
        super().__init__()
        self.open, self.addresses = [], []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "link", "img", "line", "circle", "polygon"):
            self.open.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def read(file):
    text = file.read_text()
    reader = Reader()
    reader.feed(text.replace("/>", ">"))
    return text, reader


def test_a_report_of_thirty_runs(runs, tmp_path, capsys):
    out = tmp_path / "report.html"
    words = [
        "report",
        str(runs),
        "--out",
        str(out),
        "--no-animations",
        "--question",
        "Who wins?",
        "--title",
        "A <b> test",
    ]
    assert main(words) == 0
    assert re.search(r"wrote .* \([0-9]+(\.[0-9] MB| kB)\)", capsys.readouterr().out)
    text, reader = read(out)
    assert not [tag for tag in reader.open if tag not in ("doctype",)]
    assert all(address.startswith("data:") for address in reader.addresses)
    assert not re.search(r"https?://|<script|@import|url\(", text)
    assert "A &lt;b&gt; test" in text
    for words in (
        "Who wins?", "Final scores", "Learning curves", "Over all environments", "Probability of improvement",
        "Performance profiles", "Sample efficiency", "Team metrics", "Settings", "20 greedy episodes",
        "mean over agents", "20,000 environment",
    ):  # fmt: skip
        assert words in text, words
    assert text.count("<svg viewBox") >= 4
    assert "Caution" not in text
    assert len(text) < 300_000
    # The best is marked, and its lead judged.
    assert re.search(r"<small>mpe/simple_spread</small><b>mappo</b><small>IQM .*?; clearly ahead of ippo", text)
    assert re.findall(r'<tr class="best"><td>(\w+)</td>', text) == ["mappo", "mappo"]


def test_a_report_with_animations(tiny_run, tmp_path):
    size, notes = write_report([tiny_run.path], tmp_path / "deep" / "r.html")
    text, reader = read(tmp_path / "deep" / "r.html")
    assert notes == []
    assert size == len(text.encode()) < 1_000_000
    assert any(address.startswith("data:image/gif;base64,R0lGOD") for address in reader.addresses)
    assert "only 1 seed" in text
    assert "Settings that are none were chosen by the learner. mappo on mpe/simple_spread: gamma 0.96." in text


def test_scores_on_a_common_scale(runs):
    records, unfinished = collect([runs])
    assert (len(records), unfinished) == (30, [])
    climbing = scale([r for r in records if r.env == "games/climbing"])
    assert climbing.known
    assert climbing.high == pytest.approx(275)
    assert not scale([r for r in records if r.env == "mpe/simple_spread"]).known
    scores, scales = normalized(records)
    assert {label: table.shape for label, table in scores.items()} == dict.fromkeys(("mappo", "ippo", "vdn"), (5, 2))
    assert max(table[:, 1].max() for table in scores.values()) == pytest.approx(1)
    curves = normalized_curves(records, scales)
    for label, (steps, table) in curves.items():
        assert steps.tolist() == [1000 * i for i in range(21)]
        np.testing.assert_allclose(table[:, :, -1], scores[label])


def test_sample_efficiency_is_told_at_the_steps_that_all_environments_share(tmp_path):
    """1,000 steps apart up to 4,000 on one, and up to 2,000 on the other; hand-worked scores."""
    write_run(tmp_path / "a", "mappo", "mpe/simple", 0, [0, 1, 2, 3, 4])
    write_run(tmp_path / "b", "mappo", "mpe/simple_tag", 0, [10, 20, 30])
    write_run(tmp_path / "c", "ippo", "mpe/simple_tag", 0, [10, 20, 50])
    records, _ = collect([tmp_path])
    _, scales = normalized(records)
    curves = normalized_curves(records, scales)
    assert list(curves) == ["mappo"]  # ippo did not play everywhere
    steps, table = curves["mappo"]
    assert steps.tolist() == [0, 1000, 2000]
    np.testing.assert_allclose(table, [[[0, 0.25, 0.5], [0, 0.25, 0.5]]])


def test_runs_of_one_algorithm_are_told_apart_by_what_differs(tmp_path):
    for lr in (0.1, 0.2):
        for seed in (9, 10):
            write_run(tmp_path / f"lr{lr}" / f"seed_{seed}", "mappo", "mpe/simple", seed, [0, lr], lr=lr)
    records, _ = collect([tmp_path])
    assert [(r.label, r.seed) for r in records] == [
        ("mappo (lr=0.1)", 9), ("mappo (lr=0.1)", 10), ("mappo (lr=0.2)", 9), ("mappo (lr=0.2)", 10),
    ]  # fmt: skip
    assert [line.figures["mean"].value for line in lines(records)] == pytest.approx([0.1, 0.2])
    assert tidy(records)[1]["eval_return"] == 0.1
    write_report([tmp_path], tmp_path / "r.html", animations=False)
    text = (tmp_path / "r.html").read_text()
    assert "<td>lr</td><td>0.1</td><td>0.2</td>" in text
    assert "All: steps 1000, envs 4." in text
    assert "only 2 seeds" in text


def test_few_seeds_have_no_clear_lead(tmp_path):
    for name, top in (("mappo", 2), ("ippo", 1)):
        for seed in range(4):
            write_run(tmp_path / name / f"seed_{seed}", name, "mpe/simple", seed, [0, top])
    write_report([tmp_path], tmp_path / "r.html", animations=False)
    text = (tmp_path / "r.html").read_text()
    assert "; ahead of ippo (1.00), but too few seeds to be sure" in text
    assert "clearly ahead of" not in text


def test_a_tie_has_no_winner(tmp_path):
    for name in ("mappo", "ippo"):
        write_run(tmp_path / name, name, "mpe/simple", 0, [0, 1], **({"clip": 0.2} if name == "ippo" else {}))
    write_report([tmp_path], tmp_path / "r.html", animations=False)
    text = (tmp_path / "r.html").read_text()
    assert "<b>ippo, mappo</b><small>IQM 1.00 [1.00, 1.00] over 1 seed; equal</small>" in text
    assert 'class="best"' not in text
    assert "ippo only: clip 0.2." in text


def test_what_cannot_be_reported(tmp_path, capsys):
    write_run(tmp_path / "a", "mappo", "mpe/simple", 0, [0, 1])
    write_run(tmp_path / "b", "mappo", "mpe/simple", 0, [0, 1])
    with pytest.raises(UsageError, match="the same experiment"):
        collect([tmp_path / "a", tmp_path / "b"])
    result = json.loads((tmp_path / "b" / "result.json").read_text())
    (tmp_path / "b" / "result.json").write_text(json.dumps({**result, "best_eval_return": None}))
    assert len(collect([tmp_path / "b"])[0]) == 1  # as where agents oppose each other
    (tmp_path / "b" / "result.json").unlink()
    records, unfinished = collect([tmp_path])
    assert (len(records), unfinished) == (1, [tmp_path / "b"])
    with pytest.raises(UsageError, match="No finished run"):
        collect([tmp_path / "b"])
    (tmp_path / "a" / "metrics.jsonl").write_text("{")
    with pytest.warns(Notice), pytest.raises(UsageError, match="has no evaluation"):
        collect([tmp_path / "a"])
    (tmp_path / "a" / "result.json").write_text("{}")
    with pytest.warns(Notice), pytest.raises(UsageError, match="not a readable run"):
        collect([tmp_path / "a"])
    (tmp_path / "empty").mkdir()
    for words, sentence in (
        (["report"], "at least one"), (["report", "nowhere"], "no run at nowhere"),
        (["report", str(tmp_path / "empty")], "holds no runs"), (["report", str(tmp_path), "--out", "x.pdf"], ".html"),
    ):  # fmt: skip
        assert main(words) == 2
        err = capsys.readouterr().err
        assert sentence in err
        assert len(err.strip().splitlines()) == 1


def test_parquet_holds_the_same_rows(runs, tmp_path):
    rows = tidy(collect([runs])[0])
    assert write_parquet(rows, tmp_path / "r.parquet")
    assert parquet.read_table(tmp_path / "r.parquet").to_pylist() == rows


def test_ticks_are_round_and_inside():
    assert svg.ticks(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    assert svg.ticks(-31, -8) == [-30, -25, -20, -15, -10]
    assert [svg.label(x) for x in (0, 20_000, 1_500_000, -0.25)] == ["0", "20k", "1.5M", "-0.25"]


def test_credit_of_each_agent_is_drawn(tmp_path):
    for seed in range(2):
        path = tmp_path / f"seed_{seed}"
        write_run(path, "ippo", "credit/bar", seed, [1.0, 2.0, 3.0], credit="difference")
        rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        for row in rows[1:]:  # nothing was credited before the first update
            own = {"credit": 0.0, "credit_spread": 9.0, "credit_<b>": seed + row["step"] / 1000, "credit_two": -1.0}
            row.update(own)
        (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_report([tmp_path], tmp_path / "page.html", animations=False)
    text = (tmp_path / "page.html").read_text()
    (drawn,) = re.findall(r"<section><h2>Credit</h2>.*?</section>", text)
    named = [name for name in ("&lt;b&gt;", "two", "spread") if f"<title>{name}</title>" in drawn]
    assert named == ["&lt;b&gt;", "two"]
    assert drawn.count("<polyline") == 2
    (found,) = lines(collect([tmp_path])[0])
    steps, table = credit._shares(found)["<b>"]
    assert steps.tolist() == [1000, 2000]
    assert table.tolist() == [[1.0, 2.0], [2.0, 3.0]]


def test_runs_that_divide_nothing_have_no_such_part(runs):
    assert credit.section(lines(collect([runs])[0])) == ""


@pytest.mark.parametrize("value", [None, [0.5, 1.0], float("nan"), 1e300], ids=str)
def test_figures_that_are_no_numbers_are_not_drawn(tmp_path, value):
    write_run(tmp_path / "run", "feudal", "hierarchy/rooms", 0, [-9.0, -5.0, -4.0])
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        row.update({"manager/reward": value, "goals_reached": value, "credit_one": value})
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = lines(collect([tmp_path])[0])
    assert credit.section(found) == tiers.section(found, {found[0].label: 0}) == ""


def test_hierarchies_are_drawn_tier_by_tier(tmp_path):
    for seed in range(2):
        path = tmp_path / f"run_{seed}"
        write_run(path, "feudal", "hierarchy/rooms", seed, [-9.0, -5.0, -4.0])
        rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        more = [{**row, "manager/reward": -row["step"] / 1e3, "goals_reached": 0.25} for row in rows[1:]]
        (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [rows[0], *more]))
    write_report([tmp_path], tmp_path / "page.html", animations=False)
    page = (tmp_path / "page.html").read_text()
    assert "<h2>Hierarchy</h2>" in page
    assert "manager: reward per decision, hierarchy/rooms" in page
    assert "goals reached, share of decisions" in page
    assert "workers: reward per step" not in page
