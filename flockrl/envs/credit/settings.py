"""Checks of the environments' settings. Each error names the environment, the setting and what it may be."""

from __future__ import annotations

from typing import Any

import numpy as np

from flockrl.core.errors import UsageError


def whole(name: str, least: int, most: int, **settings: Any) -> None:
    """Check whole numbers between bounds."""
    for setting, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= most:
            raise UsageError(f"credit/{name}: {setting} must be a whole number from {least} to {most}, not {value!r}.")


def between(name: str, least: float, most: float, **settings: Any) -> None:
    """Check real numbers between bounds."""
    for setting, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not least <= value <= most:
            raise UsageError(f"credit/{name}: {setting} must lie between {least:g} and {most:g}, not {value!r}.")
