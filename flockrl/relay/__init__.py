"""Trained policies in applications: `flockrl.relay.Actor`. This package needs no JAX."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flockrl.portable.model import Model
    from flockrl.relay.actor import Actor
    from flockrl.relay.client import Client

_HOMES = {"Actor": "relay.actor", "Client": "relay.client", "Model": "portable.model"}
__all__ = ["Actor", "Client", "Model"]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: `Model` alone needs no pyarrow."""
    if name not in _HOMES:
        raise AttributeError(f"module 'flockrl.relay' has no attribute {name!r}")
    return getattr(importlib.import_module(f"flockrl.{_HOMES[name]}"), name)
