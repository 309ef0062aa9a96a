"""What the server answers, to whom, and what it never gives away."""

import http.client
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from dash_kit import HOSTILE, SEARCHING, Server, add, make_run, make_study, row, rows

import flockrl.dash

pytest.importorskip("sse_starlette")
from starlette.testclient import TestClient

from flockrl.dash.app import Dash
from flockrl.dash.scan import look

STATIC = Path(flockrl.dash.__file__).parent / "static"


@pytest.fixture
def root(tmp_path):
    make_run(tmp_path / "runs" / "a", rows(40), result={"final_eval_return": 1.0})
    make_run(tmp_path / "runs" / "b", rows(40), config={"lr": 0.5}, algorithm=HOSTILE, env=HOSTILE)
    (tmp_path / "secret.json").write_text('{"secret": 1}')
    return tmp_path / "runs"


@pytest.fixture
def client(root):
    with TestClient(Dash([root]).app(), base_url="http://127.0.0.1:8787") as client:
        yield client


def keys(client):
    return {run["title"]: run["id"] for run in client.get("/api/runs").json()["runs"]}


def test_the_page_and_all_that_it_names_are_there(client):
    page = client.get("/")
    assert page.status_code == 200
    named = re.findall(r'(?:src|href)="(/[^"#]*)"', page.text)
    modules = {
        f"/static/{name}"
        for file in STATIC.glob("*.js")
        for name in re.findall(r'from "\./(\w+\.js)"', file.read_text())
    }
    assert len(named) >= 5
    assert len(modules) >= 6
    for name in {*named, *modules}:
        assert client.get(name).status_code == 200, name
    assert (STATIC / "vendor" / "uPlot.LICENSE").read_text().startswith("The MIT License")


def test_no_script_reads_texts_as_html_or_asks_another_server():
    for file in [*STATIC.glob("*.js"), STATIC / "index.html", STATIC / "style.css"]:
        text = file.read_text()
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc", text
        ), file
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), file
        assert not re.search(r"\son\w+=", text) or file.suffix == ".js", file


@pytest.mark.parametrize("headers", [
    {"host": "evil.example"}, {"host": "127.0.0.1.evil.example:8787"}, {"host": "evil.example:8787"}, {"host": ""},
    {"origin": "http://evil.example"}, {"origin": "null"}, {"origin": "https://127.0.0.1:8787"},
    {"origin": "http://127.0.0.1:9999"}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"},
])  # fmt: skip
@pytest.mark.parametrize("path", ["/", "/api/runs", "/api/live", "/static/app.js"])
def test_others_are_refused(client, headers, path):
    answer = client.get(path, headers=headers)
    assert answer.status_code == 403
    assert "runs" not in answer.text


def test_own_pages_and_tunnels_are_not(client):
    for host in ("localhost:8787", "127.0.0.1:9000", "[::1]:8787", "localhost"):
        assert client.get("/api/runs", headers={"host": host, "origin": f"http://{host}"}).status_code == 200


def test_every_answer_forbids_foreign_content(client):
    for path in ("/", "/api/runs", "/static/app.js", "/nothing"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", [
    "/api/run/../../secret.json", "/api/run/%2e%2e%2fsecret.json", "/static/../app.py", "/static/%2e%2e/app.py",
    "/static/..%2fapp.py", "/static//etc/passwd", "/api/run/" + "0" * 12, "/api/film/f1/film.json", "/api/film/../../x",
    "/api/film/f1/%2e%2e%2ffilm.json", "/a/config.json", "/static/%00",
])  # fmt: skip
def test_nothing_else_is_served(client, path):
    answer = client.get(path)
    assert answer.status_code in (400, 404, 405), answer.text
    assert "secret" not in answer.text
    assert "root:" not in answer.text


def test_links_inside_of_a_run_lead_nowhere(client, root):
    key = keys(client)["a"]
    for name in ("config.json", "metrics.jsonl", "result.json"):
        (root / "a" / name).unlink()
        (root / "a" / name).symlink_to(root.parent / "secret.json")
    told = client.get(f"/api/run/{key}")
    assert "secret" not in told.text


def test_a_run_in_detail(client):
    told = client.get(f"/api/run/{keys(client)['a']}").json()
    assert told["config"]["algorithm"] == "ippo"
    assert told["newest"]["eval_return_per_agent[1]"] == 36.0
    assert told["rows"] == 40


def test_what_files_say_stays_text(client):
    answer = client.get("/api/runs")
    assert answer.headers["content-type"] == "application/json"
    assert HOSTILE in {run["algorithm"] for run in answer.json()["runs"]}


def test_lines_and_differences(client):
    found = keys(client)
    both = client.get(
        "/api/lines", params={"lines": f"{found['a']}+{found['b']}", "x": "seconds", "y": '["return"]'}
    ).json()
    assert both[0]["figures"]["return"]["of"] == 2
    told = client.get("/api/differences", params={"runs": ",".join(found.values())}).json()
    assert set(told["names"]) == {"algorithm", "env", "config.lr", "config.hidden"}
    assert told["values"][found["a"]]["config.lr"] == 0.002


def test_lines_have_few_points(client, root):
    make_run(root / "long", [row(i) for i in range(9000)])
    key = keys(client)["long"]
    told = client.get("/api/lines", params={"lines": key, "y": '["return"]', "points": "99999"}).json()
    assert 1000 < len(told[0]["figures"]["return"]["x"]) <= 2000


def test_benchmarks_are_tables(client, root):
    cells = ["spread/seed_0", "spread/seed_1", "spread/seed_2", "../../a"]
    for i, cell in enumerate(cells[:3]):
        make_run(root / "bench" / "cells" / cell, rows(10), result={"final_eval_return": float(i)} if i < 2 else None)
    suite = {"name": "x", "question": HOSTILE, "cells": cells, "labels": {cells[0]: "mine", cells[1]: "mine"}}
    (root / "bench" / "suite.json").write_text(json.dumps(suite))
    (told,) = client.get("/api/benches").json()
    (line,) = told["rows"]
    assert (line["algorithm"], line["seeds"], line["mean"], line["low"], line["high"]) == ("mine", 2, 0.5, 0.0, 1.0)
    assert (told["done"], told["cells"]) == (2, 3)
    (root / "bench" / "suite.json").write_text('{"cells": 5, "labels": []}')
    assert client.get("/api/benches").json()[0]["rows"] == []


def test_searches_are_tables(client, root):
    path = make_study(root / "tune")
    (told,) = client.get("/api/studies").json()
    assert (told["title"], told["algorithm"], told["env"], told["busy"]) == ("tune", "ippo", HOSTILE, False)
    assert told["counts"] == {"complete": 2, "pruned": 1, "failed": 1, "running": 1}
    assert told["best"] == 0  # the value of the pruned one does not count
    assert told["so_far"] == [[0, 3.0], [3, 3.0]]
    assert told["trials"][0] == {
        "number": 0, "state": "complete", "value": 3.0, "step": 20, "settings": {"lr": 0.001, HOSTILE: "a"}, "why": "",
    }  # fmt: skip
    assert told["trials"][2]["why"] == HOSTILE
    assert (told["importances"], told["confirmation"]) == ({}, None)
    summary = {
        "importances": {"lr": 0.75, "gamma": "x"},
        "confirmation": {"default": [1.0, 3.0], "best": [4.0, 4.0], "gain": {"value": 2.0, "low": 1.0}, "optimism": -1},
    }
    (path / "tuning.json").write_text(json.dumps(summary))
    (told,) = client.get("/api/studies").json()
    assert told["importances"] == {"lr": 0.75}
    assert told["confirmation"] == {
        "default": 2.0, "best": 4.0, "value": 2.0, "low": 1.0, "high": None, "optimism": -1, "of": 2,
    }  # fmt: skip


def test_a_search_for_the_smallest(client, root):
    make_study(root / "tune", [{**SEARCHING[0], "objective": "min:x"}, *SEARCHING[1:]])
    (told,) = client.get("/api/studies").json()
    assert (told["best"], told["so_far"]) == (3, [[0, 3.0], [3, 2.0]])


def test_searches_that_make_no_sense(client, root, monkeypatch):
    monkeypatch.setattr("flockrl.dash.studies.MOST", 3)
    nonsense = [
        [], {}, {"trial": True, "proposed": {}}, {"trial": -1, "proposed": {}}, {"trial": "0", "proposed": {}},
        {"trial": 0, "proposed": 5}, {"trial": 9, "end": "complete"}, *SEARCHING[1:], SEARCHING[1],
        {"trial": 0, "end": ["complete"]}, {"trial": 0, "end": "complete", "why": {}}, {"trial": 0, "value": 1e400},
        {"trial": 10**400, "proposed": {}}, {"trial": 1, "step": "x", "value": None},
    ]  # fmt: skip
    path = make_study(root / "tune", [SEARCHING[0], *nonsense])
    with (path / "search.jsonl").open("ab") as file:
        file.write(b'\xff\n{"trial": 1, "end"\n[[[[\n{"trial": 7, "proposed": {}}')
    (path / "tuning.json").write_text('{"importances": [], "confirmation": {"gain": 3, "best": {}, "optimism": "x"}}')
    (told,) = client.get("/api/studies").json()
    assert [trial["number"] for trial in told["trials"]] == [0, 1, 2]
    assert told["cut"]
    (path / "search.jsonl").write_text('[1]\n{"trial": 0, "proposed": {"lr": 1}}\n')
    (told,) = client.get("/api/studies").json()
    assert told["trials"][0]["settings"] == {}
    (path / "search.jsonl").unlink()
    (path / "search.jsonl").symlink_to(root.parent / "secret.json")
    assert "secret" not in client.get("/api/studies").text


@pytest.mark.parametrize("address", ["10.0.0.1:80", "evil.example:8815", "tls://127.0.0.1:1", "127.0.0.1:1/..", "\0"])
def test_only_servers_of_this_machine_are_asked(client, root, address, monkeypatch):
    data = root / "server"
    data.mkdir()
    (data / "spec.json").write_text("{}")
    (data / "address").write_text(address)
    monkeypatch.setitem(sys.modules, "flockrl.relay.client", None)  # importing it would raise
    (told,) = client.get("/api/relays").json()
    assert "not asked" in told["trouble"]


def test_the_server_needs_no_jax():
    code = "import flockrl.dash.app, sys; print('jax' in sys.modules, 'matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def until_place(answer):
    """The lines of a stream up to the next event that names a place, and that place."""
    found, name, number = [], "", ""
    while name != "place":
        key, _, value = answer.readline().decode().strip().partition(": ")
        name, number = (value if key == "event" else name), (value if key == "id" else number)
        if key == "data" and name == "line":
            found.append(json.loads(value)["figures"]["eval_return"]["x"])
    return found, number or answer.readline().decode().strip().removeprefix("id: ")


def asked(server, path, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("GET", path, headers=headers)
    return connection, connection.getresponse()


def test_a_stream_goes_on_at_another_server(root):
    key = next(key for key, title in look([root]).titles.items() if title == "a")
    first = Server(root)
    try:
        connection, answer = asked(first, f"/api/live?lines={key}")
        (line,), _ = until_place(answer)
        assert line == [500.0 * i for i in range(8)]
        add(root / "a", row(4000, eval_return=9.0))
        (line,), last = until_place(answer)
        assert line == [500.0 * i for i in range(9)]
        connection.close()
    finally:
        first.stop()
    second = Server(root)
    try:
        connection, answer = asked(second, f"/api/live?lines={key}", **{"Last-Event-ID": last})
        add(root / "a", row(4500, eval_return=9.5))
        (line,), _ = until_place(answer)
        assert line == [500.0 * i for i in range(10)]
        connection.close()
    finally:
        second.stop()
