"""Make the pictures of docs/gallery.md: train small teams, film them, and open the page with all runs in a browser; and
those of the environments' pages, a scene of each environment.

    python bench/gallery.py [--runs DIR] [--out docs/images] [--scale 1.0] [--only simple_tag ...]
    python bench/gallery.py --scenes [mpe comm ...]          # the environments alone: no training, no browser

Runs that are finished in DIR are kept. Teams need the extra dash, playwright and the program chromium.
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

import numpy as np

from flockrl.core.rundir import RESULT
from flockrl.training.scripted import Scripted
from flockrl.view.animation import frames

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

SCENES: dict[str, dict[str, tuple[str, float]]] = {
    "mpe": {
        "simple": ("random", 0.5), "simple_spread": ("hungarian", 0.4), "simple_tag": ("random", 0.5),
        "simple_adversary": ("random", 0.5), "simple_push": ("random", 0.5), "simple_crypto": ("random", 0.5),
        "simple_reference": ("random", 0.5), "simple_speaker_listener": ("random", 0.5),
        "simple_world_comm": ("random", 0.5), "simple_formation": ("random", 0.5), "simple_line": ("random", 0.5),
        "collect_treasure": ("random", 0.5),
    },
    "games": {
        "climbing": ("random", 0.2), "chicken": ("random", 0.2), "rock_paper_scissors": ("random", 0.2),
        "two_step": ("random", 1.0), "kuhn": ("random", 1.0), "connect_four": ("search", 0.6),
    },
    "comm": {
        "signalling": ("told", 1.0), "levers": ("by_rank", 1.0), "switch_riddle": ("one_bit", 1.0),
        "traffic_junction:difficulty=medium": ("omniscient", 0.7), "predator_prey:size=10": ("full_information", 0.5),
    },
    "credit": {"bar": ("best", 1.0), "gaussian_squeeze": ("best", 1.0), "rover": ("best", 0.5)},
    "explore": {
        "pass": ("best", 0.5), "secret_room": ("best", 0.5), "push_box": ("best", 0.6), "k_step": ("best", 1.0),
    },
    "foraging": {
        "8x8-2p-2f-coop": ("together", 0.4), "10x10-3p-3f": ("together", 0.5), "15x15-4p-5f": ("together", 0.5),
    },
    "warehouse": {
        "tiny": ("planned", 0.5), "small:agents=4": ("planned", 0.5), "medium:agents=4": ("planned", 0.5),
        "large:agents=8": ("planned", 0.3),
    },
    "mean_field": {"ising:temperature=1.2": ("heat_bath", 0.5), "battle": ("focus", 0.3)},
    "hierarchy": {"goal_assignment": ("hungarian", 0.12), "rooms": ("best", 0.3)},
    "classic": {"pendulum": ("random", 0.5), "cartpole": ("random", 0.5)},
    "probe": {"memory": ("random", 1.0), "masks": ("random", 0.5), "unlike": ("random", 1.0), "death": ("random", 0.3)},
    "traffic": {"grid": ("max_pressure", 0.5), "platoon": ("ovm", 0.2)},
    "market": {"making": ("avellaneda_stoikov", 1.0)},
    "fleet": {"coverage:zones=2": ("lloyd", 0.6), "delivery": ("assigned", 0.5)},
    "swarm": {"flocking": ("vicsek", 1.0), "foraging": ("trail", 0.6), "search": ("sweep", 0.5)},
    "grid": {"homes": ("rules", 0.8)},
    "tasks": {"allocation": ("assigned", 0.5)},
}  # fmt: skip
"""Suite -> its environments -> who plays in the picture, and which part of the episode is over there."""
PANEL, COLUMNS, COLORS = 240, 4, 256
"""Width of a scene in points, scenes in a row, colours of a picture."""


def scenes(suites: list[str], out: Path) -> None:
    """One picture for each suite, with a scene of its environments."""
    from PIL import Image

    for suite in suites or SCENES:
        panels = [panel(f"{suite}/{name}", *who) for name, who in SCENES[suite].items()]
        columns = min(len(panels), 3 if len(panels) in (3, 5, 6) else COLUMNS)
        blank = np.full_like(panels[0], 255)
        panels += [blank] * (-len(panels) % columns)
        rows = [np.hstack(panels[k : k + columns]) for k in range(0, len(panels), columns)]
        picture = Image.fromarray(np.vstack(rows)).quantize(COLORS, dither=Image.Dither.NONE)
        picture.save(out / f"suite-{suite}.png", optimize=True)


def panel(env: str, policy: str, part: float) -> np.ndarray:
    """[PANEL + heading, PANEL, 3] uint8: one moment of an episode under its name, with a white edge."""
    from PIL import Image, ImageDraw, ImageFont

    team, edge, head = Scripted(policy, env), 6, 24
    film = frames(team.env, team.episode(), PANEL - 2 * edge)
    picture = Image.new("RGB", (PANEL, PANEL + head - edge), (255, 255, 255))
    picture.paste(Image.fromarray(film[round(part * (len(film) - 1))]), (edge, head))
    name = env.partition("/")[2].partition(":")[0]
    ImageDraw.Draw(picture).text((PANEL / 2, head / 2), name, (38, 38, 42), ImageFont.load_default(14), "mm")
    return np.array(picture)


def flockrl(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "flockrl", *map(str, words)], check=True)


def train(runs: Path, scale: float, names: list[str]) -> None:
    for name in names:
        algorithm, env, steps, more = TEAMS[name]
        if not (runs / name / RESULT).is_file():
            shutil.rmtree(runs / name, ignore_errors=True)
            flockrl("train", algorithm, env, "--steps", int(steps * scale), "--out", runs / name, "--quiet", *more)


def train_many(runs: Path, scale: float) -> None:
    """Seeds of two algorithms and a search, for the pictures of the page with all runs."""
    for algorithm, seeds in SEEDS.items():
        path = runs / f"spread-{algorithm}"
        if not (path / "seed_0" / RESULT).is_file():
            shutil.rmtree(path, ignore_errors=True)
            words = ("--steps", int(200_000 * scale), "--seeds", seeds, "--out", path, "--quiet")
            flockrl("train", algorithm, "mpe/simple_spread", *words)
    if not (runs / "tune" / "tuning.json").is_file():
        flockrl("tune", *TUNED, "--confirm", 0, "--out", runs / "tune", "--quiet")


def shoot(runs: Path, out: Path, names: list[str], overview: bool) -> None:
    """Pictures of the page: each team being watched and, with `overview`, all runs and a search."""
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
            if overview:
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
            for name in names:
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
    parser.add_argument("--only", nargs="+", choices=TEAMS, help="show these teams alone")
    parser.add_argument("--scenes", nargs="*", choices=SCENES, help="draw the environments of these suites, or all")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.scenes is not None:
        return scenes(given.scenes, given.out)
    names = given.only or list(TEAMS)
    train(given.runs, given.scale, names)
    for name in names:
        flockrl("eval", given.runs / name, "--episodes", 20, "--gif", given.out / f"gallery-{name}.gif")
    if not given.only:
        train_many(given.runs, given.scale)
        scenes([], given.out)
    return shoot(given.runs, given.out, names, overview=not given.only)


if __name__ == "__main__":
    main()
