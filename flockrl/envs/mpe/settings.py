"""Checks of the scenarios' settings. Each error names the environment, the setting and its bound."""

from __future__ import annotations

from numbers import Integral, Real

from flockrl.core.errors import UsageError

MOST = 10_000
"""Bodies of one kind that a scenario may have: each is a value in Python before anything is compiled."""


def at_least(scenario: str, least: int, most: int = MOST, /, **settings: int) -> None:
    """Check whole numbers with a lower bound, and one that keeps what is built within reason."""
    for name, value in settings.items():
        if not _whole(value) or not least <= value <= most:
            bound = f"at most {most}" if _whole(value) and value > most else f"at least {least}"
            raise UsageError(f"mpe/{scenario}: {name} must be a whole number of {bound}, not {value!r}.")


def share(scenario: str, **settings: float) -> None:
    """Check numbers between 0 and 1."""
    for name, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= value <= 1:
            raise UsageError(f"mpe/{scenario}: {name} must lie between 0 and 1, not {value!r}.")


def neighbors(scenario: str, **settings: int | None) -> None:
    """Check how many neighbours an agent sees: a whole number of at least 1, or None for all."""
    for name, value in settings.items():
        if value is not None and (not _whole(value) or value < 1):
            raise UsageError(
                f"mpe/{scenario}: {name} must be a whole number of at least 1 or None for all, not {value!r}."
            )


def _whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
