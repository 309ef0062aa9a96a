"""Ctrl-C and SIGTERM during training."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


class Interrupted(KeyboardInterrupt):
    """Training was interrupted and saved; the text says how to resume."""


@contextlib.contextmanager
def interrupts(handler: Callable[[], None]) -> Iterator[None]:
    """Within, the first Ctrl-C (or SIGTERM) calls `handler`; the second one interrupts as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def caught(number: int, frame: FrameType | None) -> None:
        signal.signal(number, old[number])
        handler()

    old: dict[int, Any] = {number: signal.signal(number, caught) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, previous in old.items():
            signal.signal(number, previous)
