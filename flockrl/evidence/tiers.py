"""The part of a report about hierarchies: what either tier earns, and how goals and roles are set and met."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from flockrl.evidence import svg
from flockrl.evidence.sections import Styles, curve
from flockrl.evidence.summary import Line

FIGURES = {
    "manager/reward": "manager: reward per decision",
    "worker/reward": "workers: reward per step",
    "goals_reached": "goals reached, share of decisions",
    "goals_apart": "agents with a goal to themselves, share",
    "goal_entropy": "entropy of goals, nats",
    "goal_changes": "changes of goal per episode",
    "role_entropy": "entropy of roles, nats",
    "role_changes": "changes of role per episode",
    "role_information": "information of roles about actions, nats",
}


def section(found: Sequence[Line], styles: Styles) -> str:
    """A chart for each figure and environment; empty where there is no hierarchy."""
    charts = []
    for env in dict.fromkeys(line.env for line in found):
        for figure, name in FIGURES.items():
            lines = [line for line in found if line.env == env]
            series = [one for line in lines if (one := curve(line, styles, figure)) is not None]
            if series:
                plot = svg.chart(f"{name} on {env}", series, "environment steps", name)
                charts.append(f"<figure><h3>{escape(name)}, {escape(env)}</h3>{plot}</figure>")
    if not charts:
        return ""
    note = "Rollouts of the training, mean over each update; interquartile mean over seeds with 95% intervals."
    return f'<div class="grid2">{"".join(charts)}</div><p class="note">{note}</p>'
