"""Searches for settings as tables: a line per trial, the best so far, and what mattered where the search is over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flockrl.dash.files import number, parse_object, plain, read_object, read_part, stamp, text
from flockrl.dash.scan import SEARCH, held_locks, is_held

SUMMARY = "tuning.json"
READ, LINE = 8 << 20, 1 << 16
"""Bytes of a search that are read, and that one of its lines may have."""
MOST, SETTINGS, SEEDS = 1000, 16, 1000
"""Trials of a search, settings that are shown, and seeds of its confirmation."""
LISTED = 40
"""Searches that are shown: those that changed last."""
ENDS = ("complete", "pruned", "failed")


def changed(path: Path) -> int:
    """When something was added to a search."""
    found = stamp(path / SEARCH)
    return found[2] if found else 0


def study(path: Path) -> dict[str, Any]:
    """A search as far as its file makes sense: what it is about, its trials, the best, and what its summary says."""
    content = read_part(path / SEARCH, 0, READ)
    lines = [line for line in content[: content.rfind(b"\n") + 1].splitlines() if len(line) <= LINE]
    about = parse_object(lines[0]) if lines else {}
    searched = _object(about.get("search"))
    names = list(searched)[:SETTINGS]
    objective = text(about.get("objective"))
    maximise = not objective.startswith("min:")
    trials, more = _trials(lines[1:], names)
    best = _best(trials, maximise)
    counts = {state: sum(trial["state"] == state for trial in trials) for state in (*ENDS, "running")}
    return {
        "algorithm": text(about.get("algorithm")), "env": text(about.get("env")), "objective": objective,
        "maximise": maximise, "sampler": text(about.get("sampler")), "pruner": plain(about.get("pruner")),
        "seeds": number(about.get("seeds")), "searched": {plain(name): plain(searched[name]) for name in names},
        "trials": trials, "counts": counts, "best": best, "so_far": _so_far(trials, maximise),
        "cut": more or len(content) == READ, "busy": bool(is_held(path, held_locks())), **_summary(path),
    }  # fmt: skip


def _trials(lines: list[bytes], names: list[str]) -> tuple[list[dict[str, Any]], bool]:
    """The trials that events tell of, by number, and whether there are more than are shown."""
    found: dict[int, dict[str, Any]] = {}
    more = False
    for line in lines:
        event = parse_object(line)
        key = event.get("trial")
        if type(key) is not int or not 0 <= key < 10**9:
            continue
        proposed = event.get("proposed")
        if isinstance(proposed, dict) and key not in found:
            if len(found) >= MOST:
                more = True
                continue
            settings = {plain(name): plain(proposed.get(name)) for name in names}
            found[key] = {"number": key, "state": "running", "value": None, "step": 0, "settings": settings, "why": ""}
        elif key in found:
            _note(found[key], event)
    return list(found.values()), more


def _note(trial: dict[str, Any], event: dict[str, Any]) -> None:
    """An evaluation of a trial, or its end."""
    if event.get("end") in ENDS:
        trial |= {"state": event["end"], "why": plain(event["why"]) if isinstance(event.get("why"), str) else ""}
        return
    told = event.get("value")  # of several objectives, the first
    step, value = number(event.get("step")), number(told[0] if isinstance(told, list) and told else told)
    if step is not None and value is not None:
        trial |= {"step": step, "value": value}


def _complete(trials: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [trial for trial in trials if trial["state"] == "complete" and trial["value"] is not None]


def _best(trials: list[dict[str, Any]], maximise: bool) -> int | None:
    """The number of the complete trial with the best value, the first of equals."""
    done = _complete(trials)
    sign = 1 if maximise else -1
    return max(done, key=lambda trial: sign * trial["value"])["number"] if done else None


def _so_far(trials: list[dict[str, Any]], maximise: bool) -> list[tuple[int, float]]:
    """The best value up to each complete trial, in the order of their numbers."""
    told: list[tuple[int, float]] = []
    for trial in sorted(_complete(trials), key=lambda trial: trial["number"]):
        before = told[-1][1] if told else trial["value"]
        told.append((trial["number"], max(before, trial["value"]) if maximise else min(before, trial["value"])))
    return told


def _summary(path: Path) -> dict[str, Any]:
    """What mattered, as shares, and how the best does on fresh seeds; empty before the search is over."""
    found = read_object(path / SUMMARY)
    shares, confirmed, fresh = _object(found.get("importances")), found.get("confirmation"), None
    told = {plain(name): x for name, x in list(shares.items())[:SETTINGS] if number(x) is not None}
    if isinstance(confirmed, dict):
        gain = _object(confirmed.get("gain"))
        fresh = {
            "default": _mean(confirmed.get("default")), "best": _mean(confirmed.get("best")),
            **{name: number(gain.get(name)) for name in ("value", "low", "high")},
            "optimism": number(confirmed.get("optimism")), "of": len(_numbers(confirmed.get("best"))),
        }  # fmt: skip
    return {"importances": told, "confirmation": fresh}


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _numbers(values: Any) -> list[float]:
    found = [number(x) for x in values[:SEEDS]] if isinstance(values, list) else []
    return [x for x in found if x is not None]


def _mean(values: Any) -> float | None:
    known = _numbers(values)
    return sum(known) / len(known) if known else None
