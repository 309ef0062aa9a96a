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
from flockrl.tuning.search import Objective, Search, Trial

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
            "trial": trial.number, "state": trial.state, **_values(search, trial),
            "step": max(trial.reports, default=0),
            **{d.name: json.dumps(trial.settings[d.name]) for d in search.space}, "why": trial.why,
        }
        for trial in search.trials
    ]  # fmt: skip
    write_csv(rows, file)


def _values(search: Search, trial: Trial) -> dict[str, float | None]:
    """The columns of the objectives: `value` where there is one."""
    if len(search.objectives) == 1:
        return {"value": trial.value}
    values = trial.values or (None,) * len(search.objectives)
    return {objective.name: value for objective, value in zip(search.objectives, values, strict=True)}


def trials_table(search: Search) -> Table:
    """The best trials; with several objectives those than which none is better in all of them."""
    several = len(search.objectives) > 1
    table = Table(title="trials that no other is better than" if several else "best trials", title_justify="left")
    for name in ("trial", *(o.name for o in search.objectives), *(d.name for d in search.space)):
        table.add_column(name, justify="right")
    for trial in (search.front if several else search.done)[:SHOWN]:
        settings = (_shown(trial.settings[d.name]) for d in search.space)
        table.add_row(str(trial.number), *(f"{value:.3f}" for value in trial.values), *map(Text, settings))
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


def write_summary(file: Path, search: Search, confirmations: Mapping[str, Confirmation]) -> None:
    """Everything that was found, for programs to read. With several objectives, `best` is by the first one."""
    best = search.best
    assert best is not None
    found: dict[str, Any] = {
        "objective": search.objectives[0].name, "trials": len(search.trials), "best_trial": best.number,
        "best_value": best.value, "best_settings": best.settings, "importances": search.importances(),
    }  # fmt: skip
    if len(search.objectives) > 1:
        found["objectives"] = [objective._asdict() for objective in search.objectives]
        found["front"] = [{"trial": t.number, "values": t.values, "settings": t.settings} for t in search.front]
    told = {name: _confirmed(one) for name, one in confirmations.items()}
    if told:
        found["confirmation"] = told.pop(search.objectives[0].name)
    if told:
        found["confirmation_of_others"] = told
    write_json(file, found)


def _confirmed(confirmation: Confirmation) -> dict[str, Any]:
    return {
        "default": confirmation.before.tolist(), "best": confirmation.after.tolist(),
        "gain": dict(confirmation.gain._asdict()), "optimism": confirmation.optimism,
    }  # fmt: skip


def tell(confirmation: Confirmation, objective: Objective) -> str:
    """The confirmation in two sentences."""
    name, maximise = objective
    before, after, gain = confirmation.before, confirmation.after, confirmation.gain
    good = gain.low > 0 if maximise else gain.high < 0
    bad = gain.high < 0 if maximise else gain.low > 0
    verdict = "better than" if good else "worse than" if bad else "not to be told from"
    more = confirmation.optimism if maximise else -confirmation.optimism
    side = f"{more:.2f} better than it is" if more > 0 else f"{-more:.2f} worse than it is"
    return (
        f"On {len(after)} fresh seeds the best settings give {name} {after.mean():.2f} and the default ones "
        f"{before.mean():.2f}: a difference of {gain} (95%, Welch), so the best is {verdict} the default. The search "
        f"said {confirmation.promised:.2f} about it, {side}: "
        + ("the best of many is lucky, too." if more > 0 else "it was not flattered by luck.")
    )


def draw_search(search: Search, file: Path) -> None:
    """What mattered, and each setting against the first objective; pruned trials in grey, the best with a ring. With
    several objectives also the first two against each other, and the trials that no other is better than."""
    from matplotlib.figure import Figure

    shares, first, several = search.importances(), search.objectives[0], len(search.objectives) > 1
    panels = sorted(search.space, key=lambda d: -shares.get(d.name, 0.0))
    figure = Figure(figsize=(3.2 * (len(panels) + 1 + several), 3.4), dpi=130, layout="constrained")
    grid = list(figure.subplots(1, len(panels) + 1 + several, squeeze=False)[0])
    if several:
        _draw_front(grid.pop(), search)
    names = list(reversed([d.name for d in panels]))
    grid[0].barh(names, [shares.get(name, 0.0) for name in names], color=COLORS["complete"])
    grid[0].set_xlabel("share of importance")
    done = sum(trial.state == "complete" for trial in search.trials)
    hint = f"{done} trials" if done >= ENOUGH else f"{done} trials, a hint"
    grid[0].set_title(f"what mattered ({hint})", loc="left", fontsize=10)
    for axes, dimension in zip(grid[1:], panels, strict=True):
        _draw_setting(axes, search, dimension)
    grid[1].set_ylabel(_axis(first))
    pruned = "; grey: pruned trials" if any(trial.state == "pruned" for trial in search.trials) else ""
    figure.suptitle(f"each setting against {first.name}, one dot per trial; ring: the best{pruned}", fontsize=9)
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    figure.savefig(file)


def _axis(objective: Objective) -> str:
    return f"{objective.name}, {'more' if objective.maximise else 'less'} is better"


def _draw_front(axes: Any, search: Search) -> None:
    """The first two objectives against each other."""
    for trial in search.done:
        axes.plot(*trial.values[:2], "o", ms=5, color=COLORS["complete"], alpha=0.8, mew=0)
    front = np.array([trial.values[:2] for trial in search.front])
    style = "-o" if len(search.objectives) == 2 else "o"
    axes.plot(*front.T, style, ms=9, mfc="none", mec="#c8553d", color="#c8553d", lw=1)
    axes.set_xlabel(_axis(search.objectives[0]))
    axes.set_ylabel(_axis(search.objectives[1]))
    axes.set_title("red: no trial is better in all", loc="left", fontsize=10)
    axes.grid(alpha=0.25)


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
        low, high = np.percentile(whole, [10, 100] if search.objectives[0].maximise else [0, 90])
        room = 0.15 * (high - low) or 1.0
        axes.set_ylim(low - room, high + room)
    axes.set_title(dimension.name, loc="left", fontsize=10)
    axes.grid(alpha=0.25)
