"""The stream behind a page: the list of runs, and the lines of its chart, sent again whenever they changed.

After the lines comes an event whose number names the place that every run's file was read to. A page that comes back
with it, after a pause or to a server that was started anew, gets exactly the lines that changed since.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import anyio

from flockrl.core.rundir import METRICS
from flockrl.dash.curves import MOST, line
from flockrl.dash.scan import Scan
from flockrl.dash.summary import Summaries
from flockrl.dash.tail import Tails

TICK = 0.7
"""Seconds between looks at the files."""
RUNS, FIGURES = 300, 120
"""Runs and figures in one chart."""
PLACE = re.compile(r"([0-9a-f]{12})=([0-9]{1,15}\.[0-9a-f]{1,8})")


@dataclass(frozen=True)
class Wish:
    """What a page shows. lines: the runs of each line. points: at most so many of a line."""

    lines: tuple[tuple[str, ...], ...] = ()
    x: str = "step"
    ys: tuple[str, ...] = ("eval_return",)
    points: int = MOST

    @staticmethod
    def of(query: Mapping[str, str]) -> Wish:
        """From a query such as lines=ID+ID,ID&x=step&y=eval_return. What makes no sense in it is left out."""
        groups = [
            tuple(key for key in re.split(r"[+ ]", group) if re.fullmatch("[0-9a-f]{12}", key))
            for group in query.get("lines", "").split(",")
        ]
        points = query.get("points", "")
        most = int(points) if re.fullmatch(r"[0-9]{1,5}", points) else MOST
        try:
            names = json.loads(query.get("y", '["eval_return"]'))
        except (ValueError, RecursionError):
            names = []
        ys = tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()
        lines, room = [], RUNS
        for group in groups:
            lines += [group[:room]] if group[:room] else []
            room -= len(group[:room])
        return Wish(tuple(lines), query.get("x", "step"), ys[:FIGURES], max(2, min(most, MOST)))


class Source:
    """What the files say, for all pages. Its methods take turns in one thread at a time."""

    def __init__(self, scan: Scan):
        self.scan, self.tails, self.summaries = scan, Tails(), Summaries()

    def runs(self) -> dict[str, Any]:
        found = self.scan()
        told = {"benches": len(found.benches), "relays": len(found.relays), "cut": found.cut}
        return {"runs": self.summaries(found), **told}

    def lines(self, wish: Wish, places: dict[str, str]) -> Iterator[dict[str, Any]]:
        """The lines of which a run is no longer at its place. Places are brought up to date."""
        found, now = self.scan().runs, dict[str, str]()
        names = (wish.x, *wish.ys) if len(wish.ys) == 1 else ()
        for group in wish.lines:
            files = {key: found[key] / METRICS for key in group if key in found}
            if all(places.get(key, "") == self.tails.place(file) for key, file in files.items()):
                continue
            tails = [self.tails.get(file, names) for file in files.values()]
            places_now = {key: tail.place for key, tail in zip(files, tails, strict=True)}
            if all(places.get(key) == place for key, place in places_now.items()):
                continue  # as after a restart, when all is read again
            now = {**places_now, **now}  # where a run is in two lines, the earlier place counts
            yield {"runs": list(group), "figures": {y: line(tails, wish.x, y, wish.points) for y in wish.ys}}
        places |= now


def places_of(text: str) -> dict[str, str]:
    """Places from the number of an event."""
    return dict(PLACE.findall(text[: RUNS * 40]))


def told(places: Mapping[str, str]) -> str:
    return ";".join(f"{key}={place}" for key, place in places.items())


def dumped(content: Any) -> str:
    return json.dumps(content, allow_nan=False, separators=(",", ":"))


class Page:
    """What one page was told so far. last: the number of the event that it saw last, where it comes back."""

    def __init__(self, source: Source, wish: Wish, last: str = ""):
        self.source, self.wish, self.places = source, wish, places_of(last)
        self._rows: dict[str, str] = {}
        self._about, self._place = "", told(self.places)

    def changes(self) -> Iterator[dict[str, Any]]:
        """Events since the last look."""
        listing = self.source.runs()
        rows, about = {row["id"]: dumped(row) for row in listing.pop("runs")}, dumped(listing)
        if rows != self._rows or about != self._about:
            new = [json.loads(text) for key, text in rows.items() if self._rows.get(key) != text]
            gone = [key for key in self._rows if key not in rows]
            yield {"event": "runs", "data": dumped({"runs": new, "gone": gone, "all": not self._about, **listing})}
            self._rows, self._about = rows, about
        for found in self.source.lines(self.wish, self.places):
            yield {"event": "line", "data": dumped(found)}
        if told(self.places) != self._place:
            self._place = told(self.places)
            yield {"event": "place", "id": self._place, "data": "{}"}


async def stream(page: Page, turn: anyio.CapacityLimiter) -> AsyncIterator[dict[str, Any]]:
    """All events of a page. Each is sent when it is ready, so that a page begins to fill at once."""
    yield {"event": "hello", "retry": 1000, "data": "{}"}
    while True:
        events = page.changes()
        while event := await anyio.to_thread.run_sync(next, events, None, limiter=turn):
            yield event
        await anyio.sleep(TICK)
