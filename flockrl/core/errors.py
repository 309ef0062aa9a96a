"""The one error a user can cause, and the helper that finds the name they meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UsageError(Exception):
    """Something the user can fix. Its text is one sentence that names the fix.

    The command line prints it without a traceback and exits with status 2.
    """


class NotFinite(UsageError):
    """An update made numbers that are not finite: what was learned is lost, up to the last checkpoint."""


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the closest choice, or the sorted choices when nothing is close."""
    options = sorted(choices)
    close = difflib.get_close_matches(name, options, n=1, cutoff=0.5)
    if close:
        return f" Did you mean {close[0]!r}?"
    return f" Choose from: {', '.join(options)}." if options else ""
