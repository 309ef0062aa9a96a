"""Checks of the environments' settings. Each error names the environment, the setting and what it may be."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from flockrl.core.errors import UsageError, nearest
from flockrl.core.settings import check_number


def whole(name: str, least: int, most: int, /, **settings: Any) -> None:
    """Check whole numbers between bounds. name: the environment's, as in all checks here."""
    for setting, value in settings.items():
        check_number(f"{name}: {setting}", value, least=least, most=most, whole=True)


def between(name: str, least: float, most: float, /, **settings: Any) -> None:
    """Check numbers between bounds."""
    for setting, value in settings.items():
        check_number(f"{name}: {setting}", value, least=least, most=most)


def share(name: str, /, **settings: Any) -> None:
    """Check numbers between 0 and 1."""
    between(name, 0, 1, **settings)


def one_of(name: str, choices: Collection[Any], /, **settings: Any) -> None:
    """Check that a setting is one of a few values."""
    for setting, value in settings.items():
        if isinstance(value, bool) or value not in list(choices):
            hint = nearest(str(value), map(str, choices)).replace("'", "")
            raise UsageError(f"{name}: there is no {setting}={value}.{hint}")
