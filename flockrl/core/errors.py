"""Errors and warnings for users, and the end of a sentence that helps."""

from __future__ import annotations

import os
import re
import traceback
import warnings
from collections.abc import Iterable
from pathlib import Path

from flockrl.core.synonyms import closest


class UsageError(Exception):
    """Something the user can fix. Its text is one sentence that names the fix.

    The command line prints it without a traceback and exits with `status`.
    """

    status = 2


class TrainingError(UsageError):
    """Training went wrong by itself (a number is no longer finite)."""

    status = 1


class CannotWrite(UsageError):
    """A file could not be written, e.g. because the disk is full. What was saved before is still there."""

    status = 1


class Notice(UserWarning):
    """Something that went wrong and does not stop anything. The command line prints its text alone."""


def notice(text: str) -> None:
    """Warn the user."""
    warnings.warn(text, Notice, stacklevel=3)


def reason(error: BaseException) -> str:
    """Why something failed, in a few words: what the system said, or the first line of the error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        code = re.search(r"os_error_code='(\d+)'", str(cause))  # as tensorstore has it
        if code:
            return os.strerror(int(code[1]))
        cause = cause.__cause__ or cause.__context__
    lines = str(error).strip().splitlines()
    return lines[0][:200].rstrip(".") if lines else type(error).__name__


def blame(error: BaseException) -> str:
    """Where code of somebody else failed, and how: ` (file, line N): ErrorType: its first line`."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"
    first = (str(error).strip().split("\n")[0] or type(error).__name__).rstrip(".:")
    return f"{place}: {type(error).__name__}: {first}"


class NotFinite(UsageError):
    """An update made numbers that are not finite: what was learned is lost, up to the last checkpoint."""


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the closest choice, or the sorted choices when nothing is close."""
    options = sorted(choices)
    close = closest(name, options)
    if close is not None:
        return f" Did you mean {close!r}?"
    return f" Choose from: {', '.join(options)}." if options else ""


def install(extra: str) -> str:
    """How to get an optional part of flockrl, as an end of a sentence."""
    return f"pip install 'flockrl[{extra}]', or in a checkout pip install -e '.[{extra}]'"
