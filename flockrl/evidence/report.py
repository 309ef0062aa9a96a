"""One self-contained page about finished runs: question, answer, tables, curves, team metrics, settings, animations."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from pathlib import Path

from flockrl.core.errors import UsageError
from flockrl.core.rundir import read_json
from flockrl.evidence import credit, messages, sections, statistics, tiers
from flockrl.evidence.records import Record, collect
from flockrl.evidence.summary import Line, lines, normalized, normalized_curves

FRAMES = 60
"""The most frames of an animation: longer episodes are shown with larger strides."""
SIZE = 200
"""Width and height of each of the three pictures of an animation, in pixels."""


def write_report(
    runs: Sequence[str | Path], out: Path, title: str = "", question: str = "", animations: bool = True
) -> tuple[int, list[str]]:
    """Write the page. Returns its size in bytes, and notes for the user."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"A report is written as an .html file, not {out.name!r}.")
    records, unfinished = collect(runs)
    notes = [f"{path} is unfinished and left out." for path in unfinished]
    found = lines(records)
    films = _films(found, notes) if animations else {}
    text = page(records, found, title, question or _question(runs), films, messages.talked(found, notes))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"Cannot write {out}: {error.strerror}.") from error
    return len(text.encode()), notes


def page(
    records: Sequence[Record], found: Sequence[Line], title: str, question: str, films: dict[tuple[str, str], bytes],
    talk: Sequence[messages.Talked] = (),
) -> str:  # fmt: skip
    """The page as text. It loads nothing over the network."""
    styles = {label: i for i, label in enumerate(dict.fromkeys(record.label for record in records))}
    envs = list(dict.fromkeys(record.env for record in records))
    title = title or f"{_count(styles, 'algorithm')} on {_count(envs, 'environment')}"
    caution = statistics.caution(min(line.seeds for line in found))
    scores, scales = normalized(records)
    curves = normalized_curves(records, scales)
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="question">{escape(question)}</p>' if question else "",
        f'<p class="caution">{escape(caution)}</p>' if caution else "",
        sections.answers(found),
        _section("Final scores", sections.scores(found)),
        _section("Returns per side", sections.sides(found)),
        _section("Learning curves", sections.curves(found, styles)),
        _section("Over all environments", sections.across(scores, scales, curves, styles)) if len(scores) > 1 else "",
        _section("Team metrics", sections.team(found)),
        _section("Credit", credit.section(found)),
        _section("Hierarchy", tiers.section(found, styles)),
        _section("Messages", messages.section(talk)),
        _section("Episodes", _episodes(films)),
        _section("Settings", sections.differences(records)),
    ]
    return document(title, "".join(parts))


def document(title: str, body: str) -> str:
    """A page of HTML that loads nothing over the network."""
    css = (Path(__file__).parent / "page.css").read_text()
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width, initial-scale=1"><link rel="icon" href="data:,"><title>{escape(title)}</title>'
        f"<style>{css}</style></head><body><main>{body}</main></body></html>\n"
    )


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{content}</section>" if content else ""


def _count(things: Sequence[str] | dict[str, int], name: str) -> str:
    return next(iter(things)) if len(things) == 1 else f"{len(things)} {name}s"


def _question(runs: Sequence[str | Path]) -> str:
    """The question of a benchmark, when the report is about one."""
    from flockrl.evidence.records import SUITE

    for run in runs:
        for folder in (Path(run), Path(run).parent):
            if (folder / SUITE).is_file():
                return str(read_json(folder / SUITE).get("question", ""))
    return ""


def _films(found: Sequence[Line], notes: list[str]) -> dict[tuple[str, str], bytes]:
    """For every line, the best, median and worst episode of its median seed. What cannot be rendered gets a note."""
    from flockrl.training.learned import open_run
    from flockrl.view.animation import compare, write_gif

    films = {}
    for line in found:
        ranked = sorted(line.records, key=lambda record: record.final)
        chosen = ranked[(len(ranked) - 1) // 2]
        try:
            pictures = compare(open_run(chosen.path), size=SIZE)
        except UsageError as error:
            notes.append(f"No animation of {line.label} on {line.env}: {error}")
            continue
        stride = -(-len(pictures) // FRAMES)
        file = io.BytesIO()
        write_gif(pictures[::stride], file)
        films[line.env, line.label] = file.getvalue()
    return films


def _episodes(films: dict[tuple[str, str], bytes]) -> str:
    if not films:
        return ""
    figures = []
    for (env, label), data in films.items():
        source = f"data:image/gif;base64,{base64.b64encode(data).decode()}"
        words = f"{escape(label)} on {escape(env)}"
        figures.append(f'<figure><h3>{words}</h3><img alt="Episodes of {words}" src="{source}"></figure>')
    note = "Best, median and worst by return of 25 greedy episodes of the seed with the median final score."
    return f'<div class="grid2">{"".join(figures)}</div><p class="note">{note}</p>'
