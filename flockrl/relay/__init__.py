"""Trained policies in applications: `flockrl.relay.Actor`, and `Member` for one agent that runs apart from its team.
This package needs no JAX."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flockrl.portable.model import Model
    from flockrl.relay.actor import Actor
    from flockrl.relay.client import Client
    from flockrl.relay.hub import Hub
    from flockrl.relay.member import Member
    from flockrl.relay.outbox import Outbox

_HOMES = {
    "Actor": "relay.actor", "Client": "relay.client", "Hub": "relay.hub", "Member": "relay.member",
    "Model": "portable.model", "Outbox": "relay.outbox",
}  # fmt: skip
__all__ = ["Actor", "Client", "Hub", "Member", "Model", "Outbox"]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: `Model` alone needs no pyarrow."""
    if name not in _HOMES:
        raise AttributeError(f"module 'flockrl.relay' has no attribute {name!r}")
    return getattr(importlib.import_module(f"flockrl.{_HOMES[name]}"), name)
