"""A run in one line of the list: what it is, how far it is, how it goes."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

from flockrl.core.rundir import CONFIG, FAILURE, METRICS, RESULT, TRAINER
from flockrl.dash.files import flat, number, parse_object, plain, read_end, read_object, read_part, stamp, text
from flockrl.dash.scan import Found, held_locks, is_held

NEAR, END = 1 << 13, 1 << 17
"""Bytes at the end of a metrics file in which the newest figures are looked for, and if they are not there, again."""
PACE = 10
"""Log points over which the pace is told."""
WATCHED = (CONFIG, TRAINER, METRICS, RESULT, FAILURE, "errors.txt")
"""Files whose change makes a run's line anew."""
QUIET = 120.0
"""Seconds without a log point after which a run counts as stopped, where the system tells of no locks."""
NOT_SETTINGS = ("seed", "versions", "chosen", "extended", "record", "workers", "worker_timeout", "ray", "acting")
"""What may differ between seeds of one experiment."""


def settings(config: dict[str, Any]) -> dict[str, Any]:
    """What two runs may differ in, by name."""
    return flat(plain({name: x for name, x in config.items() if name not in NOT_SETTINGS}))


class Summaries:
    """One for each run, made again only when its files changed."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[Any, dict[str, Any]]] = {}

    def __call__(self, found: Found) -> list[dict[str, Any]]:
        held, now = held_locks(), {}
        for key, path in found.runs.items():
            stamps = tuple(stamp(f"{path}/{name}") for name in WATCHED)  # no Path: this is done for all runs, often
            known = self._held.get(key)
            if known is None or known[0] != stamps:
                known = stamps, {"id": key, "title": plain(found.titles[key]), **read(path)}
            now[key] = known
        self._held = now
        return [{**row, **state(found.runs[key], row, held)} for key, (_, row) in now.items()]


def read(path: Path) -> dict[str, Any]:
    """What its files say."""
    trainer = not (path / CONFIG).exists()
    config = read_object(path / (TRAINER if trainer else CONFIG))
    result, told = read_object(path / RESULT), stamp(path / METRICS)
    env = config.get("env")
    if trainer:
        env = config["spec"].get("name") if isinstance(config.get("spec"), dict) else None
    kept = json.dumps(settings(config), sort_keys=True, default=str)
    return {
        "algorithm": text(config.get("algorithm")),
        "env": text(env),
        "seed": plain(number(config.get("seed"))),
        "steps": number(config.get("steps")),
        "group": hashlib.sha256(kept.encode(errors="surrogateescape")).hexdigest()[:12],
        "trainer": trainer,
        "readable": bool(config),
        "finished": bool(result),
        "began": _time(path),
        "changed": told[2] / 1e9 if told else _time(path),
        "failure": _failure(path),
        **_newest(path / METRICS),
        **({"eval_return": number(result.get("final_eval_return"))} if result else {}),
    }


def state(path: Path, row: dict[str, Any], held: set[tuple[int, int]] | None) -> dict[str, Any]:
    """Running, finished, failed, or stopped: interrupted or killed, and resumed by `flockrl resume`."""
    busy = is_held(path, held)
    if busy is None:
        busy = not row["finished"] and time.time() - row["changed"] < QUIET
    if busy:
        return {"state": "running"}
    over = "finished" if row["finished"] else "failed" if row["failure"] else "stopped"
    return {"state": "trainer" if row["trainer"] else over, "left": None}


def _time(path: Path) -> float:
    found = stamp(path / CONFIG) or stamp(path / TRAINER)
    return found[2] / 1e9 if found else 0.0


def _failure(path: Path) -> str:
    """Why training failed: what it wrote, or the last line of what a cell of a benchmark said."""
    for name in (FAILURE, "errors.txt"):
        lines = read_part(path / name, 0, 1 << 16).decode(errors="replace").strip().splitlines()
        if lines:
            return plain(lines[-1])
    return ""


def _newest(file: Path) -> dict[str, Any]:
    """Step, time and returns of the last log points, and the seconds that are left at their pace."""
    lines, evaluated = _last_lines(file, NEAR)
    if len(lines) < PACE or not evaluated:
        lines, evaluated = _last_lines(file, END)
    last = parse_object(lines[-1]) if lines else {}
    earlier = parse_object(lines[max(len(lines) - PACE, 0)]) if lines else {}
    step, seconds = number(last.get("step")), number(last.get("seconds"))
    before = number(earlier.get("step")), number(earlier.get("seconds"))
    pace = None
    if None not in (step, seconds, *before) and step > before[0] and seconds > before[1]:  # type: ignore[operator]
        pace = (seconds - before[1]) / (step - before[0])  # type: ignore[operator]
    return {
        "step": step,
        "seconds": seconds,
        "pace": pace,
        "return": number(last.get("return")),
        "eval_return": number(parse_object(evaluated).get("eval_return")),
        "speed": number(last.get("steps_per_second")),
    }


def _last_lines(file: Path, size: int) -> tuple[list[bytes], bytes]:
    """Whole lines alone: the last among the last `size` bytes of a file, and the last that tells of an evaluation."""
    content = read_end(file, size)
    begin = content.find(b"\n") + 1 if len(content) == size else 0
    content = content[begin : content.rfind(b"\n") + 1]
    lines = content[-NEAR:].splitlines()[1:] if len(content) > NEAR else content.splitlines()
    if len(lines) < PACE:  # long ones
        lines = content.splitlines()
    at = content.rfind(b'"eval_return"')
    evaluated = content[content.rfind(b"\n", 0, at) + 1 : content.find(b"\n", at)] if at >= 0 else b""
    return [line for line in lines if line.endswith(b"}")], evaluated
