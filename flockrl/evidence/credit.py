"""The part of a report about who earned it: what each agent was credited with along the run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

import numpy as np

from flockrl.core.rundir import finite, read_metrics
from flockrl.evidence import svg
from flockrl.evidence.summary import Line, at_shared_steps

NAME = re.compile(r"(?:(.+)/)?credit_(.+)")
"""Of a metric that tells one agent's credit, after the side where there are several."""
OTHERS = ("spread", "error")
"""What such names tell that is no agent's."""


def section(found: Sequence[Line]) -> str:
    """A picture for each line whose runs divided their reward; empty where none did."""
    pictures = [_picture(line, shares) for line in found if (shares := _shares(line))]
    if not pictures:
        return ""
    note = (
        "What each agent was credited with per step, mean over seeds; bands from the lowest to the highest seed. With "
        "credit counterfactual: by how much its choices were better or worse than its usual ones, in absolute numbers."
    )
    return f'<div class="grid2">{"".join(pictures)}</div><p class="note">{note}</p>'


def _shares(line: Line) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Agent -> steps [K] and its credit [seeds, K] at the log points that all seeds have; in the log's order."""
    runs = []
    for record in line.records:
        told: dict[str, dict[float, float]] = {}
        for row in read_metrics(record.path):
            for key, value in row.items():
                match = NAME.fullmatch(key)
                if match and match[2] not in OTHERS and finite(value):
                    told.setdefault(match[2], {})[row["step"]] = float(value)
        runs.append(told)
    found = {agent: at_shared_steps([told.get(agent, {}) for told in runs]) for agent in runs[0]}
    return {agent: share for agent, share in found.items() if share is not None}


def _picture(line: Line, shares: dict[str, tuple[np.ndarray, np.ndarray]]) -> str:
    series = [
        svg.Series(agent, steps, table.mean(0), table.min(0), table.max(0), i)
        for i, (agent, (steps, table)) in enumerate(shares.items())
    ]
    title = f"Credit of each agent: {line.label} on {line.env}"
    plot = svg.chart(title, series, "environment steps", "credit per step")
    return f"<figure><h3>{escape(title)}</h3>{plot}{svg.legend([(s.name, s.style) for s in series])}</figure>"
