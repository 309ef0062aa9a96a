"""Make the pictures of docs/gallery.md: train small teams, film them, and open the page with all runs in a browser.

    python bench/gallery.py [--runs DIR] [--out docs/images] [--scale 1.0]

Runs that are finished in DIR are kept. Needs the extra dash, playwright and the program chromium.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from flockrl.core.rundir import RESULT

TEAMS: dict[str, tuple[str, str, int, tuple[str, ...]]] = {
    "simple_tag": ("mappo", "mpe/simple_tag", 400_000, ()),
    "climbing": ("iql", "games/climbing", 20_000, ()),
    "traffic_junction": ("ippo", "comm/traffic_junction", 400_000, ("--comm", "tarmac")),
    "pettingzoo": ("ippo", "pettingzoo/mpe2.simple_spread_v3", 100_000, ("--workers", "0")),
}
"""Picture -> algorithm, environment, steps, further words."""
SEEDS = {"ippo": 3, "mappo": 3}
"""Seeds of simple_spread for the picture of all runs."""


SEARCH = ("--search", "lr=log:1e-4:1e-1", "explore_end=0.01:0.5")
TUNED = ("iql", "games/climbing", "--steps", 4000, "--trials", 12, *SEARCH)
"""A small search, for the picture of searches."""


def flockrl(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "flockrl", *map(str, words)], check=True)


def train(runs: Path, scale: float) -> None:
    for name, (algorithm, env, steps, more) in TEAMS.items():
        if not (runs / name / RESULT).is_file():
            shutil.rmtree(runs / name, ignore_errors=True)
            flockrl("train", algorithm, env, "--steps", int(steps * scale), "--out", runs / name, "--quiet", *more)
    for algorithm, seeds in SEEDS.items():
        path = runs / f"spread-{algorithm}"
        if not (path / "seed_0" / RESULT).is_file():
            shutil.rmtree(path, ignore_errors=True)
            words = ("--steps", int(200_000 * scale), "--seeds", seeds, "--out", path, "--quiet")
            flockrl("train", algorithm, "mpe/simple_spread", *words)
    if not (runs / "tune" / "tuning.json").is_file():
        flockrl("tune", *TUNED, "--confirm", 0, "--out", runs / "tune", "--quiet")


def shoot(runs: Path, out: Path) -> None:
    """Pictures of the page: all runs, and each team being watched."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    words = [sys.executable, "-m", "flockrl", "dash", str(runs), "--port", "0"]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().split()[0].rstrip("/")
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1180, "height": 720})
            page.goto(url)
            page.wait_for_selector(".uplot")
            page.get_by_label("Search runs").fill("spread")
            page.wait_for_timeout(1500)
            page.screenshot(path=out / "dash-runs.png")
            page.goto(f"{url}/#/tuning")
            page.wait_for_selector(".uplot")
            page.wait_for_timeout(500)
            page.screenshot(path=out / "dash-tuning.png")
            with urllib.request.urlopen(f"{url}/api/runs") as answer:
                keys = {run["title"]: run["id"] for run in json.load(answer)["runs"]}
            for name in TEAMS:
                watch(page, url, keys[name], out / f"watch-{name}.png")
            browser.close()
    finally:
        server.terminate()
        server.wait()


def watch(page: Any, url: str, key: str, file: Path) -> None:
    page.goto(f"{url}/#/watch/{key}")
    page.wait_for_selector(".screen", timeout=300_000)
    page.wait_for_timeout(2000)
    page.get_by_role("button", name="Pause").click()
    page.screenshot(path=file, full_page=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/gallery"))
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--scale", type=float, default=1.0, help="of the steps that teams are trained for")
    given = parser.parse_args()
    train(given.runs, given.scale)
    given.out.mkdir(parents=True, exist_ok=True)
    for name in TEAMS:
        flockrl("eval", given.runs / name, "--episodes", 20, "--gif", given.out / f"gallery-{name}.gif")
    shoot(given.runs, given.out)


if __name__ == "__main__":
    main()
