"""The parts of a report as HTML text. Every table states how its figures were computed."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from flockrl.core.rundir import finite
from flockrl.evidence import statistics, svg
from flockrl.evidence.records import TEAM, Record, protocol
from flockrl.evidence.statistics import Estimate
from flockrl.evidence.summary import Line, Scale, at_shared_steps, best_lines, leaders

TEAM_NAMES = {
    "eval_efficiency": "efficiency", "eval_welfare": "welfare (sum)", "eval_welfare_min": "worst-off agent",
    "eval_welfare_nash": "Nash welfare", "eval_proportional_fairness": "proportional fairness",
    "eval_jain": "Jain index", "eval_gini": "Gini index", "eval_envy": "largest envy",
}  # fmt: skip
Styles = dict[str, int]


def answers(found: Sequence[Line]) -> str:
    """The result at a glance: which algorithm leads on each environment, and whether that is certain."""
    items = []
    for env in dict.fromkeys(line.env for line in found):
        own = [line for line in found if line.env == env]
        if any(line.sides for line in own):
            words = "opponents: the returns of each side stand below"
            items.append(f"<li><small>{escape(env)}</small><b>-</b><small>{words}</small></li>")
            continue
        first, others = leaders(own)
        figure = first[0].figures["iqm"]
        words = f"IQM {figure} over {first[0].seeds} seed{'s' * (first[0].seeds > 1)}"
        if len(first) > 1:
            words += "; equal"
        if others:
            rival = others[0].figures["iqm"]
            verdict, caution = "not clearly ahead of", ""
            if min(line.figures["iqm"].low for line in first) > rival.high:
                few = min(line.seeds for line in (*first, others[0])) < statistics.MIN_SEEDS
                verdict, caution = ("ahead of", ", but too few seeds to be sure") if few else ("clearly ahead of", "")
            words += f"; {verdict} {others[0].label} ({rival.value:.2f}){caution}"
        name = ", ".join(line.label for line in first)
        items.append(f"<li><small>{escape(env)}</small><b>{escape(name)}</b><small>{escape(words)}</small></li>")
    return f'<ul class="answers">{"".join(items)}</ul>'


def scores(found: Sequence[Line]) -> str:
    """The table of final scores."""
    head = [
        "algorithm",
        "seeds",
        "steps",
        "IQM [95% interval]",
        "mean",
        "median",
        "95% there at step",
        "still varies by",
        "steps/s",
    ]
    best, body, env = best_lines(found), [], None
    for i, line in enumerate(found):
        if line.env != env:
            env = line.env
            body.append(f'<tr class="group"><td colspan="{len(head)}">{escape(env)}</td></tr>')
        figures, at = line.figures, line.converged_at
        cells = [
            escape(line.label), str(line.seeds), line.steps, _interval(figures["iqm"]), _interval(figures["mean"]),
            _interval(figures["median"]), "–" if at is None else f"{at:,.0f}", f"{line.stability:.2f}",
            f"{line.steps_per_second:,.0f}" if finite(line.steps_per_second) else "–",
        ]  # fmt: skip
        body.append(_row(cells, "best" if i in best else ""))
    records = [record for line in found for record in line.records]
    note = (
        f"{protocol(records)} Intervals: 95%, stratified bootstrap over seeds ({statistics.REPS:,} draws). "
        "95% there: the first step from which the curve keeps at least 95% of its rise (median seed). Still varies by: "
        "standard deviation over the last fifth of the evaluations. Steps/s: training only; other programs on the "
        "machine may have slowed it down."
    )
    return _table(head, body) + f'<p class="note">{escape(note)}</p>'


def curves(found: Sequence[Line], styles: Styles) -> str:
    """Learning curves: IQM over seeds with its interval, one chart per environment."""
    figures = []
    for env in dict.fromkeys(line.env for line in found):
        series = [one for line in found if line.env == env and (one := curve(line, styles)) is not None]
        if series:
            plot = svg.chart(f"Learning curves on {env}", series, "environment steps", "return, mean over agents")
            figures.append(f"<figure><h3>{escape(env)}</h3>{plot}</figure>")
    served = any(record.served for line in found for record in line.records)
    note = (
        f"Greedy evaluation return{' (of a server: what its actors earned)' * served}, interquartile mean over seeds; "
        "bands: pointwise 95% bootstrap intervals."
    )
    return f'{_legend(styles)}<div class="grid2">{"".join(figures)}</div><p class="note">{note}</p>'


def curve(line: Line, styles: Styles, figure: str = "eval_return") -> svg.Series | None:
    """A figure over the steps at which all seeds were evaluated and have it; None if there are fewer than two."""
    told = [{row["step"]: row[figure] for row in record.evals if finite(row.get(figure))} for record in line.records]
    if (found := at_shared_steps(told)) is None:
        return None
    return svg.Series(line.label, found[0], *statistics.curve(found[1][:, None, :]), styles[line.label])


def across(
    scores: dict[str, np.ndarray], scales: dict[str, Scale], curves: dict[str, tuple[np.ndarray, np.ndarray]],
    styles: Styles,
) -> str:  # fmt: skip
    """All environments on a common scale: aggregates, profiles, sample efficiency, probabilities of improvement."""
    found = {label: statistics.aggregate(table) for label, table in scores.items()}
    rows = [
        _row([escape(label), str(len(scores[label])), *(_interval(found[label][k]) for k in ("iqm", "mean", "median"))])
        for label in found
    ]
    known = all(scale.known for scale in scales.values())
    top = "the stated maximum" if known else "the stated maximum of the environment, or else the best seed here"
    zero = f"0 is the mean return of untrained policies, 1 is {top}"
    table = _table(["algorithm", "seeds", "IQM", "mean", "median"], rows)
    marks = [(label, *found[label]["iqm"], styles[label]) for label in found]
    picture = svg.intervals("IQM of normalised scores", marks, "IQM of normalised scores")
    efficiency = _efficiency(curves, styles) if len(scales) > 1 else ""
    words = "Sample efficiency: IQM over seeds and environments at the steps that all of them were evaluated at. "
    words = words if efficiency else ""
    parts = [
        f"<p>Scores on a common scale over {len(scales)} environment{'s' * (len(scales) > 1)}: {zero}.</p>",
        table,
        _legend(styles),
        f'<div class="grid2"><figure><h3>Interquartile mean</h3>{picture}</figure>',
        f"<figure><h3>Performance profiles</h3>{_profiles(scores, styles)}</figure>",
        f'{efficiency}</div><p class="note">Profiles: share of runs above a score; higher is better everywhere. {words}'
        "Bands: 95%.</p>",
        _improvements(scores),
    ]
    return "".join(parts)


def _profiles(scores: dict[str, np.ndarray], styles: Styles) -> str:
    low = min(0.0, *(float(table.min()) for table in scores.values()))
    high = max(1.0, *(float(table.max()) for table in scores.values()))
    thresholds = np.linspace(max(low, -1.0), high, 51)
    series = [
        svg.Series(label, thresholds, *statistics.profile(table, thresholds, _few()), styles[label])
        for label, table in scores.items()
    ]
    return svg.chart("Performance profiles", series, "normalised score", "share of runs above it", (0.0, 1.04))


def _efficiency(curves: dict[str, tuple[np.ndarray, np.ndarray]], styles: Styles) -> str:
    series = [
        svg.Series(label, steps, *statistics.curve(table, _few()), styles[label])
        for label, (steps, table) in curves.items()
    ]
    if not series:
        return ""
    plot = svg.chart("Sample efficiency", series, "environment steps", "IQM of normalised scores")
    return f"<figure><h3>Sample efficiency</h3>{plot}</figure>"


def _few() -> int:
    """Bootstrap draws for figures that are computed many times."""
    return min(500, statistics.REPS)


def _improvements(scores: dict[str, np.ndarray]) -> str:
    names = list(scores)
    if len(names) < 2:
        return ""
    rows = []
    for ours in names:
        cells = [escape(ours)]
        for theirs in names:
            cells.append(
                "" if ours == theirs else _interval(statistics.improvement(scores[ours], scores[theirs], _few()))
            )
        rows.append(_row(cells))
    head = ["row beats column", *names]
    note = "Probability that a random seed of the row beats one of the column on a random environment; ties count half."
    return f'<h3>Probability of improvement</h3>{_table(head, rows)}<p class="note">{note}</p>'


def sides(found: Sequence[Line]) -> str:
    """Final returns of each side where agents oppose each other; empty when they do nowhere."""
    rows = []
    for line in found:
        for side in line.sides:
            values = np.array([[record.evals[-1][f"eval_return_{side}"]] for record in line.records])
            mean = statistics.aggregate(values)["mean"]
            rows.append(_row([escape(line.env), escape(line.label), escape(side), str(line.seeds), _interval(mean)]))
    if not rows:
        return ""
    note = "Return of the last evaluation, mean over the agents of the side and over seeds."
    return _table(["environment", "algorithm", "side", "seeds", "mean"], rows) + f'<p class="note">{note}</p>'


def team(found: Sequence[Line]) -> str:
    """Team metrics at the last evaluation, mean over seeds; empty when no run has any."""
    names = [name for name in TEAM if any(line.team(name) is not None for line in found)]
    if not names:
        return ""
    rows, env = [], None
    for line in found:
        if line.env != env:
            env = line.env
            rows.append(f'<tr class="group"><td colspan="{len(names) + 1}">{escape(env)}</td></tr>')
        rows.append(_row([escape(line.label), *(_number(line.team(name)) for name in names)]))
    note = (
        "Computed from the agents' mean returns in the last evaluation, mean over seeds; – where a metric is not "
        "defined (a product or a logarithm of returns that are not positive, an index of mixed gains and losses)."
    )
    return _table(["algorithm", *(TEAM_NAMES[name] for name in names)], rows) + f'<p class="note">{note}</p>'


def differences(records: Sequence[Record]) -> str:
    """A table of the settings in which algorithms differ; below it, settings that are equal and those of only some."""
    labels = list(dict.fromkeys(record.label for record in records))
    rows, same, own = [], [], dict[str, list[str]]()
    for key in dict.fromkeys(key for record in records for key in record.settings):
        values = {label: _values(records, label, key) for label in labels}
        having = [label for label in labels if values[label]]
        if not having:  # a text that is empty everywhere
            continue
        if len({values[label] for label in having}) > 1:
            rows.append(_row([escape(key), *(escape(values[label] or "–") for label in labels)]))
        elif len(having) == len(labels):
            same.append(f"{key} {values[having[0]]}")
        else:
            own.setdefault(", ".join(having), []).append(f"{key} {values[having[0]]}")
    versions = {f"{name} {version}" for record in records for name, version in record.versions.items()}
    notes = [f"All: {', '.join(same)}."] if same else []
    notes += [f"{whose} only: {', '.join(settings)}." for whose, settings in own.items()]
    chosen = {f"{record.label} on {record.env}: {record.chosen}" for record in records if record.chosen}
    notes += [f"Settings that are none were chosen by the learner. {'. '.join(sorted(chosen))}."] if chosen else []
    notes.append(f"Versions: {', '.join(sorted(versions))}.")
    table = _table(["setting", *labels], rows, "words") if rows else "<p>No setting differs.</p>"
    return table + "".join(f'<p class="note">{escape(note)}</p>' for note in notes)


def _values(records: Sequence[Record], label: str, key: str) -> str:
    found = dict.fromkeys(_plain(r.settings[key]) for r in records if r.label == label and key in r.settings)
    return " / ".join(found)


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return "×".join(map(str, value))
    return "none" if value is None else str(value)


def _legend(styles: Styles) -> str:
    return svg.legend(list(styles.items()))


def _table(head: Sequence[str], rows: Sequence[str], kind: str = "") -> str:
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(rows)
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _row(cells: Sequence[str], kind: str = "") -> str:
    """Cells are HTML already."""
    return f'<tr class="{kind}">' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _interval(estimate: Estimate) -> str:
    return f"{estimate.value:.2f} <small>[{estimate.low:.2f}, {estimate.high:.2f}]</small>"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if abs(value) < 1e5 else f"{value:.2e}"
