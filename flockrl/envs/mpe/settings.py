"""Checks of the scenarios' settings. Each error names the environment, the setting and the bound that it misses."""

from __future__ import annotations

from flockrl.core.settings import check_number

MOST = 10_000
"""Bodies of one kind that a scenario may have: each is a value in Python before anything is compiled."""


def at_least(scenario: str, least: int, most: int = MOST, /, **settings: int) -> None:
    """Check whole numbers with a lower bound, and one that keeps what is built within reason."""
    for name, value in settings.items():
        check_number(f"mpe/{scenario}: {name}", value, least=least, whole=True)
        check_number(f"mpe/{scenario}: {name}", value, most=most, whole=True)


def neighbors(scenario: str, **settings: int | None) -> None:
    """Check how many neighbours an agent sees: a whole number of at least 1, or None for all."""
    for name, value in settings.items():
        if value is not None:
            check_number(f"mpe/{scenario}: {name}", value, least=1, whole=True)
