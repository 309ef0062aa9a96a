"""How fast the page with many runs opens, and what its server takes.

    python bench/dash.py [--runs 300] [--rows 10000]

Needs the extra dash, playwright and the program chromium. Writes runs to a temporary directory; their log points share
one file.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from flockrl.core.rundir import CONFIG, METRICS


def write_runs(root: Path, runs: int, rows: int) -> None:
    """Runs in groups of five seeds, with an evaluation in every hundredth log point."""
    more = {f"loss_{i}": 0.123456789 for i in range(15)}
    shared = root / "metrics"
    with shared.open("w") as file:
        for i in range(rows):
            tested = {"eval_return": i / rows, "eval_return_per_agent": [0.5, 0.5]} if i % 100 == 0 else {}
            file.write(json.dumps({"step": i * 100, "seconds": i / 10, "return": i / rows, **more, **tested}) + "\n")
    for i in range(runs):
        path = root / f"run_{i}"
        path.mkdir()
        config = {
            "algorithm": "ippo",
            "env": "mpe/simple_spread",
            "steps": rows * 100,
            "seed": i % 5,
            "config": {"lr": i // 5},
        }
        (path / CONFIG).write_text(json.dumps(config))
        os.link(shared, path / METRICS)


def memory(process: int) -> float:
    """Megabytes that a process holds now, on Linux."""
    return int(Path(f"/proc/{process}/status").read_text().split("VmRSS:")[1].split()[0]) / 1024


def computed(process: int) -> float:
    """Seconds for which a process has computed, on Linux: on a busy machine less noisy than the time that passes."""
    user, system = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def measure(root: Path, runs: int) -> None:
    from playwright.sync_api import sync_playwright

    words = [sys.executable, "-m", "flockrl", "dash", str(root), "--port", "0"]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().split()[0]
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            for name in ("first page", "second page"):
                page, before = browser.new_page(), computed(server.pid)
                inside = page.context.new_cdp_session(page)
                inside.send("Performance.enable", {"timeDomain": "threadTicks"})
                began = time.perf_counter()
                page.goto(url)
                page.get_by_text(f"{runs} of {runs} runs").wait_for()
                listed = time.perf_counter() - began
                page.wait_for_selector(".uplot")
                drawn = time.perf_counter() - began
                spent = computed(server.pid) - before
                told = {one["name"]: one["value"] for one in inside.send("Performance.getMetrics")["metrics"]}
                print(
                    f"{name}: list after {listed:.2f} s, chart after {drawn:.2f} s; computed: server {spent:.2f} s, "
                    f"page {told['TaskDuration']:.2f} s; server {memory(server.pid):.0f} MB"
                )
                page.close()
            browser.close()
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--rows", type=int, default=10_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        write_runs(Path(root), given.runs, given.rows)
        measure(Path(root), given.runs)


if __name__ == "__main__":
    main()
