"""How the servers are whose data lie below the given directories. Only servers on this machine are asked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from flockrl.core.errors import UsageError
from flockrl.dash.files import plain, read_part
from flockrl.dash.scan import ADDRESS

LOCAL = re.compile(r"(127\.0\.0\.1|localhost):\d{1,5}")
PATIENCE = 2.0
"""Seconds to wait for an answer."""


def status(path: Path) -> dict[str, Any]:
    """What the server says of itself, or why it is not known."""
    address = read_part(path / ADDRESS, 0, 300).decode(errors="replace").strip()
    told = {"address": plain(address)}
    if not LOCAL.fullmatch(address):
        return {**told, "trouble": "It is not a plain address on this machine, so that it is not asked."}
    try:
        from flockrl.relay.client import Client
    except ImportError:
        return {**told, "trouble": "Asking it needs pyarrow: install the extra relay."}
    try:
        said = Client(address, timeout=PATIENCE).status()
    except UsageError as error:
        return {**told, "trouble": plain(str(error))}
    except Exception as error:  # whatever listens there may answer anything
        return {**told, "trouble": plain(f"It gives no answer: {error}")}
    return {**told, "said": plain(said)}
