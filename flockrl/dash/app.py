"""The server of the page: what it may be asked for."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
from sse_starlette.sse import EventSourceResponse
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from flockrl.core.rundir import CONFIG, METRICS, RESULT, TRAINER
from flockrl.dash import bench, relays, studies
from flockrl.dash.files import plain, read_object
from flockrl.dash.films import Films
from flockrl.dash.guard import Guard
from flockrl.dash.live import RUNS, Page, Source, Wish, stream
from flockrl.dash.scan import Scan
from flockrl.dash.summary import settings

STATIC = Path(__file__).parent / "static"
HEARTBEAT = 15
"""Seconds between signs of life of a stream in which nothing happens."""


class Dash:
    """Answers for the runs below the given directories."""

    def __init__(self, roots: Sequence[Path]):
        self.source, self.films = Source(Scan(roots)), Films()
        self.turn = anyio.CapacityLimiter(1)

    async def _read(self, call: Callable[..., Any], *words: Any) -> Any:
        """The answer of a function that reads files, in a thread, one at a time."""
        return await anyio.to_thread.run_sync(call, *words, limiter=self.turn)

    async def index(self, request: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    async def live(self, request: Request) -> Response:
        wish, last = Wish.of(request.query_params), request.headers.get("last-event-id", "")
        return EventSourceResponse(stream(Page(self.source, wish, last), self.turn), ping=HEARTBEAT)

    async def runs(self, request: Request) -> Response:
        return JSONResponse(await self._read(self.source.runs))

    async def lines(self, request: Request) -> Response:
        wish = Wish.of(request.query_params)
        return JSONResponse(await self._read(lambda: list(self.source.lines(wish, {}))))

    async def run(self, request: Request) -> Response:
        return JSONResponse(await self._read(self._detail, self._path(request)))

    def _path(self, request: Request) -> Path:
        path = self.source.scan().runs.get(request.path_params["key"])
        if path is None:
            raise HTTPException(404, "There is no such run.")
        return path

    def _detail(self, path: Path) -> dict[str, Any]:
        tail = self.source.tails.get(path / METRICS)
        config = read_object(path / CONFIG) or read_object(path / TRAINER)
        return {
            "path": plain(str(path)), "config": plain(config), "result": plain(read_object(path / RESULT)),
            "newest": tail.newest(), "rows": tail.rows, "skipped": tail.skipped,
        }  # fmt: skip

    async def differences(self, request: Request) -> Response:
        found, keys = self.source.scan().runs, request.query_params.get("runs", "").split(",")
        known = [key for key in keys if key in found][:RUNS]
        return JSONResponse(await self._read(differences, {key: found[key] for key in known}))

    async def benches(self, request: Request) -> Response:
        found = self.source.scan()
        tables = [{"title": found.titles[key], **await self._read(bench.table, p)} for key, p in found.benches.items()]
        return JSONResponse(tables)

    async def studies(self, request: Request) -> Response:
        found = self.source.scan()
        latest = sorted(found.studies, key=lambda key: -studies.changed(found.studies[key]))[: studies.LISTED]
        told = [{"title": found.titles[key], **await self._read(studies.study, found.studies[key])} for key in latest]
        return JSONResponse(told)

    async def relays(self, request: Request) -> Response:
        found = self.source.scan()
        told = []
        for key, path in found.relays.items():
            told.append({"title": found.titles[key], **await anyio.to_thread.run_sync(relays.status, path)})
        return JSONResponse(told)

    async def film(self, request: Request) -> Response:
        """Begin to film an episode of the newest checkpoint; asked again, the same film."""
        return JSONResponse(self.films.begin(self._path(request), request.query_params))

    async def filmed(self, request: Request) -> Response:
        return JSONResponse(self.films.state(request.path_params["film"]))

    async def picture(self, request: Request) -> Response:
        file = self.films.file(request.path_params["film"], request.path_params["name"])
        if file is None:
            raise HTTPException(404, "There is no such picture.")
        return FileResponse(file, headers={"cache-control": "max-age=3600"})

    def app(self) -> Starlette:
        @contextlib.asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            try:
                yield
            finally:
                self.films.close()

        routes = [
            Route("/", self.index), Route("/api/live", self.live), Route("/api/runs", self.runs),
            Route("/api/lines", self.lines), Route("/api/run/{key}", self.run),
            Route("/api/differences", self.differences), Route("/api/benches", self.benches),
            Route("/api/studies", self.studies), Route("/api/relays", self.relays),
            Route("/api/run/{key}/film", self.film, methods=["POST"]), Route("/api/film/{film}", self.filmed),
            Route("/api/film/{film}/{name}", self.picture), Mount("/static", StaticFiles(directory=STATIC)),
        ]  # fmt: skip
        return Starlette(routes=routes, middleware=[Middleware(Guard)], lifespan=lifespan)


def differences(paths: dict[str, Path]) -> dict[str, Any]:
    """The settings in which runs differ: their names, and each run's values; and how many are the same in all."""
    found = {key: settings(read_object(path / CONFIG) or read_object(path / TRAINER)) for key, path in paths.items()}
    names = list(dict.fromkeys(name for each in found.values() for name in each))
    unlike = [name for name in names if len({repr(each.get(name)) for each in found.values()}) > 1]
    values = {key: {name: plain(each.get(name)) for name in unlike} for key, each in found.items()}
    return {"names": [plain(name) for name in unlike], "values": values, "same": len(names) - len(unlike)}
