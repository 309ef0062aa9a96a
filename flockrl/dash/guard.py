"""Who may ask: pages of this server on this machine, and nobody else."""

from __future__ import annotations

import re
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse

HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What a page may load: nothing from elsewhere, and no script or style that stands in the page itself."""


class Guard:
    """Refuses requests for another host's name, which a foreign page can point at this machine, and requests that a
    page of another origin makes. A port may differ, as it does through a tunnel."""

    def __init__(self, app: Any):
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        wrong = refusal(headers)
        if wrong:
            await PlainTextResponse(wrong, 403)(scope, receive, send)
            return

        async def safely(message: Any) -> None:
            if message["type"] == "http.response.start":
                out = MutableHeaders(scope=message)
                out["content-security-policy"] = POLICY
                out["x-content-type-options"] = "nosniff"
                out["referrer-policy"] = "no-referrer"
                out["cross-origin-resource-policy"] = "same-origin"
                out.setdefault("cache-control", "no-cache")
            await send(message)

        await self.app(scope, receive, safely)


def refusal(headers: Headers) -> str:
    """Why a request is refused; empty where it is not."""
    host, origin = headers.get("host", ""), headers.get("origin")
    if not HOST.fullmatch(host):
        return "This server answers to 127.0.0.1 and localhost alone."
    if origin is not None and origin != f"http://{host}":
        return "This server answers to its own pages alone."
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return "This server answers to its own pages alone."
    return ""
