"""Code of users, by name: package.module:attribute. Names that stand in files are imported only with trust."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from flockrl.core.errors import UsageError

SETTINGS = ("kernel", "shaping", "sparring")
"""Settings of learners that name code."""
_trust: ContextVar[bool] = ContextVar("trust", default=False)


class Untrusted(UsageError):
    """A file names code that nobody has allowed to be imported."""


@contextmanager
def trusting(trust: bool) -> Iterator[None]:
    """With `trust`, allow files that are opened inside to name code. Without it, nothing changes."""
    token = _trust.set(trust or _trust.get())
    try:
        yield
    finally:
        _trust.reset(token)


def trust_files() -> None:
    """Allow all files that this process opens to name code: what `--trust` says."""
    _trust.set(True)


def require_trust(file: str | Path | None, names: Iterable[str]) -> None:
    """Refuse a file that names code, unless such files are trusted. Names that a user typed need no trust."""
    found = [repr(name[:100]) for name in dict.fromkeys(names)]
    if found and not _trust.get():
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        raise Untrusted(
            f"{file} names code that would be imported and run: {', '.join(found[:3])}{more}. If you know where it "
            "comes from, add --trust (in Python: trust=True)."
        )


def load(name: str, what: str) -> Any:
    """What stands at `package.module:attribute`. Modules in the working directory are found too.

    what: how errors call it, e.g. "script".
    """
    module, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), attribute)):
        raise UsageError(f"There is no {what} {name!r}: write it as package.module:name.")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    importlib.invalidate_caches()
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError)
        why = f"there is no module {error.name!r} to import" if missing else str(error)
        raise UsageError(f"There is no {what} {name!r}: {why}.") from error
    except SyntaxError as error:
        raise UsageError(f"There is no {what} {name!r}: {error.filename}, line {error.lineno}: {error.msg}.") from error
    except SystemExit as error:
        raise UsageError(f"There is no {what} {name!r}: the module {module} ends the program.") from error
    if not hasattr(found, attribute):
        raise UsageError(f"There is no {what} {name!r}: the module {module} has no {attribute!r}.")
    return getattr(found, attribute)


def load_function(name: str, what: str) -> Any:
    """The same for what is called: a script or a potential."""
    found = load(name, what)
    if not callable(found):
        raise UsageError(f"The {what} {name} must be a function, not {type(found).__name__}.")
    return found
