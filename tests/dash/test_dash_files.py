"""What the page makes of files: of growing, cut, damaged and hostile ones."""

import json
import os

import numpy as np
import pytest
from dash_kit import add, lines, make_run, row, rows

from flockrl.core.lock import lock
from flockrl.dash import tail as tails
from flockrl.dash.curves import MOST, interval, line, thinned
from flockrl.dash.files import plain, read_object
from flockrl.dash.live import Page, Source, Wish
from flockrl.dash.scan import Scan, look
from flockrl.dash.summary import Summaries
from flockrl.dash.tail import Tail, Tails


def summary(path):
    (found,) = Summaries()(look([path]))
    return found


def test_a_file_is_read_on_as_it_grows_and_a_half_line_waits(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text(lines(rows(3)) + '{"step": 300, "retu')
    found = Tail(file)
    found.update()
    assert found.rows == 3
    with file.open("a") as more:
        more.write('rn": 7.0}\n')
    found.update()
    x, y = found.pairs("step", "return")
    assert x.tolist() == [0, 100, 200, 300]
    assert y[-1] == 7.0


@pytest.mark.parametrize("names", [(), ("step", "return")], ids=["all", "two"])
def test_a_file_that_was_cut_and_grew_again_has_no_old_points(tmp_path, names):
    path = make_run(tmp_path / "run", rows(50))
    found = Tail(path / "metrics.jsonl", names)
    found.update()
    other = [row(i * 100, note=1.0) for i in range(80)]
    (path / "metrics.jsonl").write_text(lines(rows(20)) + lines(other[20:]))  # longer than before
    found.update()
    x, _ = found.pairs("step", "return")
    assert x.tolist() == [i * 100 for i in range(80)]


def test_a_column_needs_only_the_rows_that_have_it(tmp_path):
    path = make_run(tmp_path / "run", rows(20, evals=5))
    found = Tail(path / "metrics.jsonl", ("seconds", "eval_return_per_agent[1]"))
    found.update()
    x, y = found.pairs("seconds", "eval_return_per_agent[1]")
    assert (x.tolist(), y.tolist()) == ([0, 5, 10, 15], [1, 6, 11, 16])
    assert found.rows == 4


BAD = [
    b"\xff\xfe garbage", b"[1, 2]", b"{}", b'{"step": "one"}', b'{"step": NaN}', b'{"step": 1e999}', b"null",
    b'{"step":' + b"9" * 5000 + b"}", b"[" * 5000, b'{"step": 1, "return": {"a": 1}}', b"x" * (3 << 20),
]  # fmt: skip


def test_lines_that_are_no_log_points_are_skipped(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b"".join(bad + b"\n" + lines([row(i)]).encode() for i, bad in enumerate(BAD)))
    found = Tail(file)
    found.update()
    assert found.pairs("step", "return")[0].tolist() == list(range(len(BAD)))
    assert found.skipped == len(BAD) - 1  # one of them is a log point with a figure that is none


@pytest.mark.parametrize("line", [
    *BAD, b'{"step": 1.2.3, "return": 5}', b'{"step": 2, "return": "\\"return\\": 7"}', b'{"step":3,"return":-1e-3}\r',
    b'{"note": "return", "step": 4, "return": 1e400}', b'{"step": 5, "x": {"return": 8}, "return": 9}',
    b'{"step": 6, "return": 1, "text": "a, b"}', b'{"step": 7, "return": 2', b'{"step": 8, "note": "\\"return\\": 3}"}',
    b'{"return": 4, "step": 1e999}', b'{"step": 9, "return": true}', b'  {"return" : 6, "step" : 10}',
    b'{"step": 11, "return": [1]}',
], ids=range(len(BAD) + 12))  # fmt: skip
def test_two_figures_are_what_they_are_among_all(tmp_path, line):
    """Numbers that are taken from a line without reading the rest of it, and those of the whole line."""
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(lines(rows(2)).encode() + line + b"\n" + lines(rows(5)[2:]).encode())
    some, every = Tail(file, ("step", "return")), Tail(file)
    for found in (some, every):
        found.update()
    for ours, theirs in zip(some.pairs("step", "return"), every.pairs("step", "return"), strict=True):
        assert ours.tolist() == theirs.tolist()


def test_the_newest_evaluation_is_found_far_from_the_end(tmp_path):
    many = [row(i, more="x" * 50, **({"eval_return": 3.0} if i == 5 else {})) for i in range(400)]
    found = summary(make_run(tmp_path / "run", many))
    assert (found["step"], found["eval_return"], found["pace"]) == (399, 3.0, pytest.approx(0.01))
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 400, "eval_return": 9')  # being written
    found = summary(tmp_path / "run")
    assert (found["step"], found["eval_return"]) == (399, 3.0)
    for shift in range(0, 60, 7):  # the place at which reading begins is in the middle of the evaluation's line
        near = [row(i, more="x" * (8000 // 60 + shift), **({"eval_return": 3.0} if i == 5 else {})) for i in range(50)]
        assert summary(make_run(tmp_path / f"run{shift}", near))["eval_return"] == 3.0


def test_hostile_columns_stay_few_and_small(tmp_path, monkeypatch):
    monkeypatch.setattr(tails, "HELD", 1 << 16)
    file = tmp_path / "metrics.jsonl"
    names = {f"name{i}": 1.0 for i in range(1000)} | {"n" * 500: 1.0, "list": [0.0] * 1000}
    file.write_text(lines([{"step": i, **(names if i == 0 else {"name1": float(i)})} for i in range(5000)]))
    found = Tail(file)
    found.update()
    assert len(found.columns) == tails.COLUMNS
    assert found.weight <= 1 << 16
    assert len(found.pairs("step", "name1")[0]) > 1000


def test_a_long_column_keeps_every_second_row(tmp_path, monkeypatch):
    monkeypatch.setattr(tails, "POINTS", 100)
    found = Tail(make_run(tmp_path / "run", rows(1000)) / "metrics.jsonl")
    found.update()
    x, y = found.pairs("step", "return")
    assert 50 <= len(x) <= 100
    assert np.array_equal(y, -np.sqrt(x + 1))
    assert len(found.pairs("step", "eval_return")[0]) >= 10


def test_what_is_held_is_bounded(tmp_path):
    held = Tails(limit=20_000)
    for i in range(6):
        held.get(make_run(tmp_path / str(i), rows(200)) / "metrics.jsonl")
    assert 1 <= len(held._held) < 6


def test_thinning_keeps_ends_and_extremes():
    y = np.sin(np.arange(100_000) / 50)
    y[77_777], y[33_333] = 9.0, -9.0
    kept = thinned(y, MOST)
    assert len(kept) <= MOST
    assert {0, 33_333, 77_777, 99_999} <= set(kept.tolist())
    assert (np.diff(kept) > 0).all()
    assert np.array_equal(thinned(y[:500], MOST), np.arange(500))


def test_the_mean_over_seeds_and_its_interval(tmp_path):
    found = [
        Tail(make_run(tmp_path / str(i), [row(s, score=float(i)) for s in range(0, 1000, 100)]) / "metrics.jsonl")
        for i in range(3)
    ]
    for one in found:
        one.update()
    drawn = line(found, "step", "score")
    assert drawn["y"] == [1.0] * 10
    assert drawn["of"] == 3
    table = np.repeat([[0.0], [1.0], [2.0]], 10, 1)
    # of three values, the mean is 0 or 1/3 in 4 of 27 resamples: the 2.5% point lies at 0 or 1/3
    assert drawn["low"] == interval(table)[0].tolist()
    assert 0 <= drawn["low"][0] <= 1 / 3
    assert 5 / 3 <= drawn["high"][0] <= 2
    same = line([found[1]] * 3, "step", "score")
    assert same["low"] == same["y"] == same["high"]


def test_seeds_that_share_no_places_are_compared_between_their_ends(tmp_path):
    found = []
    for i in (0, 1):
        logged = [{"step": s, "seconds": s + i / 2, "z": 2.0 * (s + i / 2)} for s in range(50)]
        found.append(Tail(make_run(tmp_path / str(i), logged) / "metrics.jsonl"))
    for one in found:
        one.update()
    drawn = line(found, "seconds", "z")
    assert (drawn["x"][0], drawn["x"][-1]) == (0.5, 49.0)
    assert np.allclose(drawn["y"], 2 * np.array(drawn["x"]))


def test_states(tmp_path):
    path = make_run(tmp_path / "run", rows(30))
    assert summary(path)["state"] == "stopped"
    held = lock(path)
    assert summary(path)["state"] == "running"
    held.close()
    (path / "failed.txt").write_text("Training stopped.\nReturn is nan.\n")
    told = summary(path)
    assert (told["state"], told["failure"]) == ("failed", "Return is nan.")
    make_run(path, rows(30), result={"final_eval_return": 3.0})
    told = summary(path)
    assert (told["state"], told["eval_return"], told["step"], told["steps"]) == ("finished", 3.0, 2900, 10_000)
    assert told["pace"] == pytest.approx(1 / 100)


def test_looking_at_a_run_never_takes_its_lock(tmp_path):
    path = make_run(tmp_path / "run", rows(3))
    summary(path)
    lock(path).close()


def test_seeds_of_one_experiment_are_a_group_and_other_settings_are_not(tmp_path):
    for seed in range(2):
        make_run(tmp_path / f"seed_{seed}", rows(3), seed=seed)
    make_run(tmp_path / "other", rows(3), config={"lr": 0.1})
    found = {told["title"]: told["group"] for told in Summaries()(look([tmp_path]))}
    assert found["seed_0"] == found["seed_1"] != found["other"]


DAMAGED = [
    "", "{", "[]",
    '{"a":' * 900 + "1" + "}" * 900, '{"algorithm": 5, "env": ["x"]}', "\0" * 100, '{"a":' * 3000, "9" * 9999,
]  # fmt: skip


@pytest.mark.parametrize("content", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_run_is_listed(tmp_path, content):
    path = make_run(tmp_path / "run", rows(3), result={})
    for name in ("config.json", "result.json"):
        (path / name).write_text(content)
    json.dumps(summary(path), allow_nan=False)
    assert summary(path)["algorithm"] == "?"


def test_links_pipes_and_giants_are_not_read(tmp_path):
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "config.json").write_text('{"algorithm": "secret"}')
    root = tmp_path / "runs"
    path = make_run(root / "run", rows(3))
    (root / "link").symlink_to(secret)
    (path / "result.json").symlink_to(secret / "config.json")
    assert list(look([root]).titles.values()) == ["run"]
    assert read_object(path / "result.json") == {}
    os.mkfifo(path / "failed.txt")
    (path / "config.json").write_bytes(b" " * (2 << 20) + b"{}")
    assert summary(path)["state"] == "stopped"
    (path / "config.json").unlink()
    (path / "config.json").symlink_to(secret / "config.json")
    assert look([root]).runs == {}


def test_values_are_cut_to_what_can_be_shown():
    deep = [[[[[[[[[[[1]]]]]]]]]]]
    shown = plain(
        {
            "nan": float("nan"),
            "long": "x" * 10_000,
            "many": list(range(10_000)),
            "deep": deep,
            "big": 2**80,
            "odd": "\ud800",
        }
    )
    assert len(json.dumps(shown, allow_nan=False)) < 3000
    assert shown["nan"] == "nan"


def page_of(root, keys, last=""):
    return Page(Source(Scan([root])), Wish(lines=tuple((key,) for key in keys)), last)


def test_a_page_that_comes_back_gets_what_changed_and_nothing_twice(tmp_path):
    for name in ("a", "b"):
        make_run(tmp_path / name, rows(20))
    keys = list(look([tmp_path]).runs)
    page = page_of(tmp_path, keys)
    first = list(page.changes())
    assert [event["event"] for event in first] == ["runs", "line", "line", "place"]
    assert list(page.changes()) == []
    last = first[-1]["id"]
    again = list(page_of(tmp_path, keys, last).changes())  # another server
    assert [event["event"] for event in again] == ["runs"]
    add(tmp_path / "b", row(2000, eval_return=5.0))
    changed = list(page_of(tmp_path, keys, last).changes())
    assert [event["event"] for event in changed] == ["runs", "line", "place"]
    told = json.loads(changed[1]["data"])
    assert told["runs"] == [keys[1]]
    assert told["figures"]["eval_return"]["x"] == [0.0, 500.0, 1000.0, 1500.0, 2000.0]
    (tmp_path / "b" / "metrics.jsonl").write_text(lines(rows(6)))  # a resumed run goes on from a checkpoint
    cut = json.loads(list(page_of(tmp_path, keys, changed[-1]["id"]).changes())[1]["data"])
    assert cut["figures"]["eval_return"]["x"] == [0.0, 500.0]


@pytest.mark.parametrize("last", ["", "x", "=;=", "a" * 100_000, f"{'a' * 12}=99999.ff", f"{'0' * 12}=1.{'f' * 99}"])
def test_a_place_that_makes_no_sense_is_the_beginning(tmp_path, last):
    make_run(tmp_path / "a", rows(5))
    events = [event["event"] for event in page_of(tmp_path, look([tmp_path]).runs, last).changes()]
    assert events == ["runs", "line", "place"]


@pytest.mark.parametrize(
    "query", [{"lines": "../../etc"}, {"y": "[" * 9999}, {"y": '{"a": 1}'}, {"points": "9" * 30}, {"x": "\0"}]
)
def test_a_wish_that_makes_no_sense_is_a_small_one(query):
    wish = Wish.of(query)
    assert wish.lines == ()
    assert wish.points <= MOST


def test_a_wish_is_bounded():
    key = "0123456789ab"
    wish = Wish.of({"lines": ",".join(["+".join([key] * 200)] * 9), "y": json.dumps(["a"] * 9999)})
    assert sum(map(len, wish.lines)) == 300
    assert len(wish.ys) == 120
