"""The page in a real browser: live, across a restart of the server, at two widths, by keyboard, with many runs."""

import base64
import os
import re
import shutil
import threading
import time

import pytest
from dash_kit import HOSTILE, Server, add, make_run, make_study, row, rows

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="the program chromium is not installed (apt-get install chromium)"),
]
WIDTHS = {"desktop": (1280, 860), "phone": (390, 844)}


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Tab:
    """A page that remembers what went wrong."""

    def __init__(self, browser, width=1280, height=860, **options):
        self.context = browser.new_context(viewport={"width": width, "height": height}, **options)
        self.page, self.wrong, self.outside = self.context.new_page(), [], []
        self.page.on("console", lambda said: said.type in ("error", "warning") and self.wrong.append(said.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", lambda asked: "127.0.0.1" in asked.url or self.outside.append(asked.url))

    def line(self):
        """x of the only line of the first chart, as it is drawn."""
        return self.page.evaluate(
            "(plot => plot ? [...plot.data[0]] : [])(document.querySelector('.chart')?.chart?.plot)"
        )

    def lines(self):
        """The numbers of points of the first chart's lines."""
        return self.page.evaluate(
            "(chart => chart.lines.map((line) => line.x.length))(document.querySelector('.chart').chart)"
        )


@pytest.fixture
def tab(browser):
    tab = Tab(browser)
    yield tab
    tab.context.close()


@pytest.fixture
def server(tmp_path):
    make_run(tmp_path / "a", rows(20))
    server = Server(tmp_path)
    yield server
    server.stop()


def wait(tab, points, seconds):
    """Wait until the chart has so many points."""
    until(lambda: len(tab.line()) == points, tab, seconds)


def until(ready, tab, seconds):
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, f"not within {seconds} s; the chart has {tab.line()[:30]}"
        tab.page.wait_for_timeout(50)


def test_a_new_point_appears_within_three_seconds(tab, server, tmp_path):
    tab.page.goto(server.url)
    wait(tab, 4, 20)
    add(tmp_path / "a", row(2000, eval_return=4.0))
    wait(tab, 5, 3)
    assert tab.line()[-1] == 2000
    assert not tab.wrong
    assert not tab.outside


def test_the_server_is_killed_and_comes_back_without_gap_or_double(tab, server, tmp_path):
    tab.page.goto(server.url)
    wait(tab, 4, 20)
    server.stop()
    playwright.expect(tab.page.locator("#link")).to_have_text("not connected", timeout=10_000)
    add(tmp_path / "a", row(2000, eval_return=4.0), row(2500, eval_return=5.0))
    again = Server(tmp_path, port=server.port)
    try:
        wait(tab, 6, 20)
        add(tmp_path / "a", row(3000, eval_return=6.0))
        wait(tab, 7, 3)
        assert tab.line() == [500 * i for i in range(7)]
        playwright.expect(tab.page.locator("#link")).to_have_text("live")
        assert all("ERR_CONNECTION" in text or "ERR_INCOMPLETE" in text for text in tab.wrong)  # while it was away
    finally:
        again.stop()


def test_a_run_that_appears_and_one_that_is_being_written(tab, server, tmp_path):
    tab.page.goto(server.url)
    wait(tab, 4, 20)
    make_run(tmp_path / "b", rows(5))
    playwright.expect(tab.page.get_by_role("link", name="b", exact=True)).to_be_visible(timeout=5000)
    with (tmp_path / "a" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2000, "eval_re')
        file.flush()
        time.sleep(2)
        assert len(tab.line()) == 4
        file.write('turn": 3.0, "seconds": 20}\n')
    wait(tab, 5, 5)
    assert not tab.wrong


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_fits_the_screen(browser, server, tmp_path, width, scheme):
    make_run(tmp_path / "long" / ("name" * 30) / "seed_1", rows(9), env="mpe/" + "long" * 20, algorithm=HOSTILE)
    make_run(tmp_path / "bench" / "cells" / "x" / "seed_0", rows(9), result={"final_eval_return": 2.0})
    (tmp_path / "bench" / "suite.json").write_text('{"name": "s", "cells": ["x/seed_0"]}')
    make_study(tmp_path / "tune")
    tab = Tab(browser, *WIDTHS[width], color_scheme=scheme)
    page = tab.page
    page.goto(server.url)
    playwright.expect(page.get_by_role("link", name="a", exact=True)).to_be_visible(timeout=20_000)
    assert "taken" not in page.title()
    assert page.locator("img, main :not(li) > b").count() == 0  # what the hostile name would have made
    for view in ("runs", "benchmarks", "tuning", "servers", "run"):
        if view == "run":
            page.goto(f"{server.url}/#/")
            page.get_by_role("link", name="a", exact=True).click()
            playwright.expect(page.get_by_role("heading", name="Settings")).to_be_visible(timeout=10_000)
        else:
            page.locator(f'nav a[data-view="{view}"]').click()
            page.wait_for_timeout(600)
        if view == "tuning":
            playwright.expect(page.get_by_role("cell", name="★ best")).to_be_visible(timeout=10_000)
        assert "taken" not in page.title()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
    assert not tab.wrong
    assert not tab.outside
    tab.context.close()


def focused(page):
    return page.evaluate("document.activeElement.getAttribute('aria-label') || document.activeElement.textContent")


def reach(page, name, most=60):
    """Press the tabulator until something with this name has the focus."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if focused(page) == name:
            return
    raise AssertionError(f"{name} cannot be reached by keyboard")


def test_by_keyboard_alone(tab, server, tmp_path):
    page = tab.page
    page.goto(server.url)
    wait(tab, 4, 20)
    page.keyboard.press("Tab")
    assert focused(page) == "Skip to the content"
    reach(page, "Search runs")
    page.keyboard.type("nothing like this")
    playwright.expect(page.get_by_role("link", name="a", exact=True)).to_have_count(0)
    page.keyboard.press("Control+A")
    page.keyboard.press("Delete")
    reach(page, "Show a in the chart")
    page.keyboard.press("Space")
    playwright.expect(page.locator(".chart .none")).to_be_visible()
    assert focused(page) == "Show a in the chart"  # the list was drawn anew around it
    page.keyboard.press("Space")
    wait(tab, 4, 5)
    reach(page, "a")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Enter")
    playwright.expect(page.get_by_role("heading", name="a", exact=True)).to_be_visible()
    assert not tab.wrong


def test_any_figure_on_either_axis_and_comparison(tab, server, tmp_path):
    make_run(tmp_path / "b", rows(20), config={"lr": 0.7})
    page = tab.page
    page.goto(server.url)
    playwright.expect(page.get_by_text("What differs")).to_be_visible(timeout=20_000)
    playwright.expect(page.get_by_role("cell", name="0.7")).to_be_visible()
    page.get_by_label("Figure on the y axis").fill("return")
    page.keyboard.press("Enter")
    page.get_by_label("Figure on the x axis").fill("seconds")
    page.keyboard.press("Enter")
    wait(tab, 20, 10)
    assert tab.line() == list(range(20))
    page.get_by_role("button", name="log y").click()
    assert not tab.wrong


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """300 runs with 10,000 log points each; they share one file."""
    root = tmp_path_factory.mktemp("many")
    more = {f"loss_{i}": 0.123456789 for i in range(12)}
    first = make_run(root / "run_0", [{**one, **more} for one in rows(10_000, evals=100)])
    for i in range(1, 300):
        path = make_run(root / f"run_{i}", [], seed=i % 5, config={"lr": 0.001 * (i // 5)})
        (path / "metrics.jsonl").unlink()
        os.link(first / "metrics.jsonl", path / "metrics.jsonl")
    return root


def test_three_hundred_runs(tab, many):
    server, page, most = Server(many), tab.page, [0]
    going = threading.Event()

    def measure():
        while not going.wait(0.05):
            most[0] = max(most[0], server.memory)

    threading.Thread(target=measure, daemon=True).start()
    try:
        page.goto(server.url)
        playwright.expect(page.get_by_text("300 of 300 runs")).to_be_visible(timeout=10_000)
        wait(tab, 100, 10)
        page.get_by_label("Figure on the y axis").fill("return")
        page.keyboard.press("Enter")
        until(lambda: len(tab.lines()) >= 5 and max(tab.lines()) > 200, tab, 120)
        assert max(tab.lines()) <= 2000
        page.get_by_label("Figure on the y axis").fill("eval_return")
        page.keyboard.press("Enter")
        page.get_by_label("Choose all runs that are listed").check()
        until(lambda: len(tab.lines()) == 32, tab, 120)
        page.get_by_role("link", name="run_7", exact=True).click()
        playwright.expect(page.get_by_role("heading", name="Settings")).to_be_visible(timeout=20_000)
        assert most[0] < 300e6, most[0]
        assert not tab.wrong
    finally:
        going.set()
        server.stop()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A team that talks, hardly trained."""
    from conftest import TINY

    import flockrl

    root = tmp_path_factory.mktemp("trained")
    flockrl.train("ippo", "comm/traffic_junction", comm="tarmac", out=root / "junction", **TINY)
    return root


def shown(page, film, name):
    """The width at which the browser plays a video."""
    data = f"data:video/{name[-4:].lstrip('.')};base64," + base64.b64encode(film).decode()
    other = page.context.new_page()
    try:
        return other.evaluate(
            """(src) => new Promise((done) => {
                const video = document.createElement("video");
                video.onloadeddata = () => done(video.videoWidth);
                video.onerror = () => done(0);
                video.src = src;
            })""",
            data,
        )
    finally:
        other.close()


def test_a_team_is_watched(tab, trained):
    server, page = Server(trained), tab.page
    try:
        page.goto(server.url)
        page.get_by_role("link", name="junction", exact=True).click()
        page.get_by_role("link", name="Watch this team").click()
        page.get_by_role("button", name="Pause").click(timeout=120_000)
        slider = page.get_by_label("Step of the episode")
        slider.fill("7")
        playwright.expect(page.get_by_text("step 7 of 20")).to_be_visible()
        page.get_by_label("One step on").click()
        playwright.expect(page.get_by_text("step 8 of 20")).to_be_visible()
        page.get_by_label("One step back").click()
        page.locator("main").focus()
        page.keyboard.press("ArrowLeft")
        playwright.expect(page.get_by_text("step 6 of 20")).to_be_visible()
        page.get_by_role("button", name="car_3").click()
        playwright.expect(page.get_by_role("heading", name="car_3")).to_be_visible()
        playwright.expect(page.get_by_role("heading", name="Who listens to whom")).to_be_visible()
        playwright.expect(page.get_by_text("value: expected from here on")).to_be_visible()
        assert page.locator(".curve polyline").count() >= 1
        rows = page.locator(".attends tbody tr")
        assert rows.count() == 5
        shares = [float(cell) for cell in rows.nth(3).locator("td").all_inner_texts()]
        alive = (
            page.locator(".ring .gone").count() < 5 and "not in the game" not in page.locator(".watch h2").inner_text()
        )
        assert abs(sum(shares) - alive) < 5e-3
        assert page.locator(".bars i").count() == 2
        assert page.evaluate("document.querySelector('.screen').naturalWidth") == 480
        with page.expect_download() as saved:
            page.get_by_role("link", name="Save as GIF").click()
        assert saved.value.path().read_bytes()[:6] == b"GIF89a"
        page.get_by_label("speed").select_option("4")
        with page.expect_download(timeout=60_000) as saved:
            page.get_by_role("button", name=re.compile("Save as (MP4|WebM)")).click()
        film, name = saved.value.path().read_bytes(), saved.value.suggested_filename
        assert film[4:8] == b"ftyp" if name.endswith(".mp4") else film[:4] == b"\x1a\x45\xdf\xa3"
        assert len(film) > 1000
        assert shown(page, film, name) == 480
        assert not tab.wrong
    finally:
        server.stop()
