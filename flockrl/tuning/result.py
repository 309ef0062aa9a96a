"""What a search leaves behind: a table of trials, a picture of what mattered, and the best settings as a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from flockrl.algos.presets import make_config
from flockrl.core.rundir import write_json
from flockrl.evidence.records import write_csv
from flockrl.training.space import Dimension, split
from flockrl.tuning.confirm import Confirmation
from flockrl.tuning.search import Search

SHOWN = 10
"""Trials in the printed table."""
ENOUGH = 20
"""Complete trials from which on shares of importance are more than a hint."""
PICTURE, TABLE, SUMMARY = "importance.png", "trials.csv", "tuning.json"
COLORS = {"complete": "#0b6e99", "pruned": "#b9c2cc"}


def write_trials(search: Search, file: Path) -> None:
    """A row per trial, in the order in which they began."""
    rows = [
        {
            "trial": trial.number, "state": trial.state, "value": trial.value,
            "step": max(trial.reports, default=0),
            **{d.name: json.dumps(trial.settings[d.name]) for d in search.space}, "why": trial.why,
        }
        for trial in search.trials
    ]  # fmt: skip
    write_csv(rows, file)


def trials_table(search: Search, objective: str) -> Table:
    """The best trials."""
    table = Table(title="best trials", title_justify="left")
    for name in ("trial", objective, *(d.name for d in search.space)):
        table.add_column(name, justify="right")
    done = [trial for trial in search.trials if trial.state == "complete" and trial.value is not None]
    sign = -1 if search.maximise else 1
    for trial in sorted(done, key=lambda t: (sign * (t.value or 0.0), t.number))[:SHOWN]:
        settings = (_shown(trial.settings[d.name]) for d in search.space)
        table.add_row(str(trial.number), f"{trial.value:.3f}", *map(Text, settings))
    return table


def told(search: Search) -> str:
    """How many trials there were, and what mattered, in two sentences."""
    counts = {state: sum(trial.state == state for trial in search.trials) for state in ("complete", "pruned", "failed")}
    ends = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    shares = ", ".join(f"{name} {share:.0%}" for name, share in search.importances().items())
    few = " (a hint: the trials are few)" if counts["complete"] < ENOUGH else ""
    return f"{len(search.trials)} trials: {ends}." + (f" What mattered{few}: {shares}." if shares else "")


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return "x".join(map(str, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value).lower() if value is None else str(value)


def write_best(path: Path, algorithm: str, env: str, fixed: Mapping[str, Any], best: Mapping[str, Any]) -> Path:
    """The settings that `flockrl train --config` takes: those that differ from the algorithm's own, steps and envs.

    TOML has no word for no value: where a setting is to have none, the file is JSON.
    """
    options, own = split({**fixed, **best})
    usual = vars(make_config(algorithm, {}))
    chosen: dict[str, Any] = {name: options[name] for name in ("steps", "envs") if name in options}
    chosen |= {k: list(v) if isinstance(v, tuple) else v for k, v in own.items() if v != usual[k] or k in best}
    if any(value is None for value in chosen.values()):
        write_json(path / "best.json", chosen)
        return path / "best.json"
    file = path / "best.toml"
    lines = [f"# flockrl train {algorithm} {env} --config {file}"]
    lines += [f"{name} = {json.dumps(value)}" for name, value in chosen.items()]
    file.write_text("\n".join(lines) + "\n")
    return file


def write_summary(file: Path, search: Search, objective: str, confirmation: Confirmation | None) -> None:
    """Everything that was found, for programs to read."""
    best = search.best
    assert best is not None
    found: dict[str, Any] = {
        "objective": objective, "trials": len(search.trials), "best_trial": best.number, "best_value": best.value,
        "best_settings": best.settings, "importances": search.importances(),
    }  # fmt: skip
    if confirmation is not None:
        found["confirmation"] = {
            "default": confirmation.before.tolist(), "best": confirmation.after.tolist(),
            "gain": dict(confirmation.gain._asdict()), "optimism": confirmation.optimism,
        }  # fmt: skip
    write_json(file, found)


def tell(confirmation: Confirmation, objective: str, maximise: bool = True) -> str:
    """The confirmation in two sentences."""
    before, after, gain = confirmation.before, confirmation.after, confirmation.gain
    good = gain.low > 0 if maximise else gain.high < 0
    bad = gain.high < 0 if maximise else gain.low > 0
    verdict = "better than" if good else "worse than" if bad else "not to be told from"
    more = confirmation.optimism if maximise else -confirmation.optimism
    side = f"{more:.2f} better than it is" if more > 0 else f"{-more:.2f} worse than it is"
    return (
        f"On {len(after)} fresh seeds the best settings give {objective} {after.mean():.2f} and the default ones "
        f"{before.mean():.2f}: a difference of {gain} (95%, Welch), so the best is {verdict} the default. The search "
        f"said {confirmation.promised:.2f} about it, {side}: "
        + ("the best of many is lucky, too." if more > 0 else "it was not flattered by luck.")
    )


def draw_search(search: Search, file: Path, objective: str) -> None:
    """Shares of importance, and each setting against the objective; pruned trials in grey, the best with a ring."""
    from matplotlib.figure import Figure

    shares = search.importances()
    panels = sorted(search.space, key=lambda d: -shares.get(d.name, 0.0))
    figure = Figure(figsize=(3.2 * (len(panels) + 1), 3.4), dpi=130, layout="constrained")
    grid = figure.subplots(1, len(panels) + 1, squeeze=False)[0]
    names = list(reversed([d.name for d in panels]))
    grid[0].barh(names, [shares.get(name, 0.0) for name in names], color=COLORS["complete"])
    grid[0].set_xlabel("share of importance")
    done = sum(trial.state == "complete" for trial in search.trials)
    hint = f"{done} trials" if done >= ENOUGH else f"{done} trials, a hint"
    grid[0].set_title(f"what mattered ({hint})", loc="left", fontsize=10)
    for axes, dimension in zip(grid[1:], panels, strict=True):
        _draw_setting(axes, search, dimension)
    grid[1].set_ylabel(f"{objective}, {'more' if search.maximise else 'less'} is better")
    pruned = "; grey: pruned trials" if any(trial.state == "pruned" for trial in search.trials) else ""
    figure.suptitle(f"each setting against the objective, one dot per trial; ring: the best{pruned}", fontsize=9)
    for axes in grid:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    figure.savefig(file)


def _draw_setting(axes: Any, search: Search, dimension: Dimension) -> None:
    """One setting against the objective."""
    rng = np.random.default_rng(0)
    words = [_shown(value) for _, value in dimension.choices]
    whole: list[float] = []
    for state in ("pruned", "complete"):
        for trial in search.trials:
            if trial.state != state or trial.value is None:
                continue
            value = trial.settings[dimension.name]
            x = words.index(_shown(value)) + rng.uniform(-0.15, 0.15) if words else value
            axes.plot(x, trial.value, "o", ms=5, color=COLORS[state], alpha=0.8, mew=0)
            if state == "complete":
                whole.append(trial.value)
            if search.best is trial:
                axes.plot(x, trial.value, "o", ms=11, mfc="none", mec="#c8553d", mew=1.6)
    if words:
        axes.set_xticks(range(len(words)), words)
        axes.set_xlim(-0.5, len(words) - 0.5)
    else:  # all of the range that was searched
        if dimension.log:
            axes.set_xscale("log")
            room = (dimension.high / dimension.low) ** 0.05
            axes.set_xlim(dimension.low / room, dimension.high * room)
        else:
            room = 0.05 * (dimension.high - dimension.low)
            axes.set_xlim(dimension.low - room, dimension.high + room)
    if len(whole) > 4:  # a trial that failed to learn must not hide the others
        low, high = np.percentile(whole, [10, 100] if search.maximise else [0, 90])
        room = 0.15 * (high - low) or 1.0
        axes.set_ylim(low - room, high + room)
    axes.set_title(dimension.name, loc="left", fontsize=10)
    axes.grid(alpha=0.25)
