"""Code of users, by name: package.module:attribute."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from flockrl.core.errors import UsageError


def load(name: str, what: str) -> Any:
    """What stands at `package.module:attribute`. Modules in the working directory are found too.

    what: how errors call it, e.g. "script".
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
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
    if not hasattr(found, attribute):
        raise UsageError(f"There is no {what} {name!r}: the module {module} has no {attribute!r}.")
    return getattr(found, attribute)
