"""The part of a report about teams that talk: silenced, what messages tell and change, who listens to whom."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from flockrl.core.errors import UsageError
from flockrl.evaluation.talk import Listening
from flockrl.evidence.summary import Line

EPISODES = 100


class Talked(NamedTuple):
    """What one line's median seed did with messages and without; found: None where it cannot be measured."""

    line: Line
    agents: tuple[str, ...]
    heard: float
    silenced: float
    found: Listening | None


def talked(found: Sequence[Line], notes: list[str]) -> list[Talked]:
    """Play the teams that talk, as they are and silenced. What cannot be played gets a note."""
    from flockrl.training.channels import SILENCE, talks
    from flockrl.training.learned import open_run

    results = []
    for line in found:
        ranked = sorted(line.records, key=lambda record: record.final)
        try:
            run = open_run(ranked[(len(ranked) - 1) // 2].path)
            if not talks(run.config):
                continue
            heard, silenced = (run.evaluate(EPISODES, channel=channel).mean for channel in (None, SILENCE))
        except UsageError as error:
            notes.append(f"Messages of {line.label} on {line.env} are not measured: {error}")
            continue
        try:
            measures = run.listening()
        except UsageError as error:
            measures = None
            notes.append(f"What messages of {line.label} on {line.env} change is not measured: {error}")
        results.append(Talked(line, tuple(run.spec.agents), heard, silenced, measures))
    return results


def section(results: Sequence[Talked]) -> str:
    """A table, and a picture for each team; empty where nobody talks."""
    if not results:
        return ""
    head = ("algorithm", "environment", "return", "silenced", "signalling, bits", "listening, nats", "actions changed")
    rows = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in _cells(one)) + "</tr>" for one in results)
    cells = "".join(f"<th>{name}</th>" for name in head)
    pictures = "".join(_picture(one) for one in results if one.found is not None)
    note = (
        f"The seed with the median final score, {EPISODES} greedy episodes with messages and with all messages cut. "
        "Silencing shows that a team relies on messages; a team trained without them, in the table of final scores, "
        "shows whether they are needed. Signalling is the mutual information of messages and observations; listening "
        "how far policies move when nothing is heard."
    )
    return (
        f'<div class="scroll"><table><thead><tr>{cells}</tr></thead><tbody>{rows}</tbody></table></div>'
        f'<div class="grid2">{pictures}</div><p class="note">{note}</p>'
    )


def _cells(one: Talked) -> list[str]:
    words = [escape(one.line.label), escape(one.line.env), f"{one.heard:.3f}", f"{one.silenced:.3f}"]
    if one.found is None:
        return [*words, "–", "–", "–"]
    nats = "–" if one.found.listening is None else f"{one.found.listening.mean():.3f}"
    return [*words, f"{one.found.signalling.mean():.3f}", nats, f"{100 * one.found.changed.mean():.1f}%"]


def _picture(one: Talked) -> str:
    """A square for each pair of agents, darker where leaving out the messages of one moves the other more."""
    assert one.found is not None
    influence, n = np.asarray(one.found.influence, float), len(one.agents)
    most = max(float(influence.max()), 1e-12)
    size, left, top = 240 / n, 110, 30
    marks = []
    for i, name in enumerate(one.agents):
        middle = (i + 0.5) * size
        word = escape(name[:14])
        marks.append(f'<text x="{left - 6}" y="{top + middle + 4:.1f}" text-anchor="end">{word}</text>')
        marks.append(f'<text x="{left + middle:.1f}" y="{top - 8}" text-anchor="middle">{escape(name[-6:])}</text>')
        for j in range(n):
            told, shade = f"{name} to {one.agents[j]}: {influence[i, j]:.3g}", 0.04 + 0.96 * influence[i, j] / most
            place = f'x="{left + j * size:.1f}" y="{top + i * size:.1f}"'
            marks.append(
                f'<rect {place} width="{size - 1:.1f}" height="{size - 1:.1f}" fill="#1f5fa8" '
                f'fill-opacity="{shade:.3f}"><title>{escape(told)}</title></rect>'
            )
    words = f"{escape(one.line.label)} on {escape(one.line.env)}"
    return (
        f"<figure><h3>Who listens to whom: {words}</h3>"
        f'<svg viewBox="0 0 {left + 260} {top + 260}" role="img" aria-label="Who listens to whom, {words}">'
        f"{''.join(marks)}</svg><figcaption>Rows listen to columns; the darkest is {most:.3g}.</figcaption></figure>"
    )
