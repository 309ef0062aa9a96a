"""Runs as files, made without training."""

import json
import math
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

CONFIG = {
    "algorithm": "ippo", "env": "mpe/simple_spread", "steps": 10_000, "envs": 8, "seed": 0,
    "config": {"lr": 0.002, "hidden": [64, 64]}, "versions": {"python": "3"}, "chosen": {"platform": "cpu"},
}  # fmt: skip


HOSTILE = "<img src=x onerror=\"document.title='taken'\"><b>bold</b>\"'</script><script>alert(2)</script>"
SEARCHING = [
    {"algorithm": "ippo", "env": HOSTILE, "objective": "eval_return", "seeds": 2, "sampler": "tpe", "pruner": "median",
     "search": {"lr": "log:1e-4:1e-2", HOSTILE: "a,b"}},
    {"trial": 0, "proposed": {"lr": 0.001, HOSTILE: "a"}}, {"trial": 0, "step": 10, "value": 1.0},
    {"trial": 1, "proposed": {"lr": 0.002, HOSTILE: "b"}}, {"trial": 1, "step": 10, "value": 9.0},
    {"trial": 0, "step": 20, "value": 3.0}, {"trial": 0, "end": "complete", "why": ""},
    {"trial": 1, "end": "pruned", "why": ""},
    {"trial": 2, "proposed": {"lr": 0.003, HOSTILE: "a"}}, {"trial": 2, "end": "failed", "why": HOSTILE},
    {"trial": 3, "proposed": {"lr": 0.004, HOSTILE: "a"}}, {"trial": 3, "step": 20, "value": 2.0},
    {"trial": 3, "end": "complete", "why": ""}, {"trial": 4, "proposed": {"lr": 0.005, HOSTILE: "b"}},
]  # fmt: skip
"""What `flockrl tune` writes."""


def make_study(path, events=SEARCHING):
    path.mkdir()
    (path / "search.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return path


def row(step, **more):
    return {"step": step, "seconds": step / 100, "return": -math.sqrt(step + 1), "steps_per_second": 100.0, **more}


def rows(count, every=100, evals=5):
    """Log points, each `evals`-th of them with an evaluation."""
    found = []
    for i in range(count):
        tested = {
            "eval_return": float(i),
            "eval_return_std": 1.0,
            "eval_episodes": 4,
            "eval_return_per_agent": [i - 1.0, i + 1.0],
        }
        found.append(row(i * every, **(tested if i % evals == 0 else {})))
    return found


def lines(found):
    return "".join(json.dumps(one) + "\n" for one in found)


def make_run(path, found=(), result=None, **config):
    """A run's directory."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps({**CONFIG, **config}))
    (path / "metrics.jsonl").write_text(lines(found))
    (path / "lock").touch()
    if result is not None:
        (path / "result.json").write_text(
            json.dumps({"steps": 10_000, "seconds": 1.0, "steps_per_second": 9.0, **result})
        )
    return path


def add(path, *found):
    """Log points as a run adds them."""
    with (path / "metrics.jsonl").open("a") as file:
        for one in found:
            file.write(json.dumps(one) + "\n")
            file.flush()


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Server:
    """A real `flockrl dash` in a process of its own."""

    def __init__(self, *dirs, port=None):
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        root = Path(__file__).parents[2]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "flockrl", "dash", *map(str, dirs), "--port", str(self.port)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "PYTHONPATH": str(root)},
        )  # fmt: skip
        assert self.url in self.process.stdout.readline()
        for _ in range(200):
            try:
                urllib.request.urlopen(self.url, timeout=5).read()
                return
            except OSError:
                time.sleep(0.05)
        raise AssertionError("the server does not answer")

    @property
    def memory(self):
        """Bytes that it takes."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(text.split("VmRSS:")[1].split()[0])

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
