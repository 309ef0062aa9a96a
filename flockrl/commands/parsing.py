"""Words of the command line as a dataclass."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import typing
from typing import Any

import tyro

from flockrl.core.code import trust_files
from flockrl.core.errors import UsageError, nearest


def parse(flags: Any, words: list[str], prog: str, description: str, prefixes: bool = False) -> Any:
    """The options as a dataclass; a flag that does not exist is an error that names the nearest one.

    prefixes: whether flags of nested classes carry the name of their field (--adversary.lr).
    """
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            result, unknown = tyro.cli(
                flags, args=words, prog=prog, description=description, return_unknown_args=True,
                config=() if prefixes else (tyro.conf.OmitArgPrefixes,),
            )  # fmt: skip
    except SystemExit as stop:
        if stop.code:
            raise UsageError(f"{_sentence(complaint.getvalue())} `{prog} --help` explains.") from None
        raise
    if unknown:
        hint = nearest(unknown[0].partition("=")[0], _flags(flags, prefixes)) if unknown[0].startswith("-") else ""
        raise UsageError(f"{prog} does not know what to do with {unknown[0]!r}.{hint}")
    if getattr(result, "trust", False):
        trust_files()
    return result


def _sentence(box: str) -> str:
    """The message inside tyro's framed error as one line of plain text."""
    inside = "\n".join(line for line in box.splitlines() if not line.startswith("╭"))
    plain = re.sub(r"\x1b\[[0-9;]*m|[^\x00-\x7f]", " ", inside)
    message = re.split(r"Argument helptext|For full helptext", plain)[0]
    return " ".join(message.split()).rstrip(".") + "."


def _flags(cls: Any, prefixes: bool, prefix: str = "") -> list[str]:
    """All flags below a config class. With `prefixes`, those of nested classes that are not `Annotated` carry one."""
    found: list[str] = []
    for field in dataclasses.fields(cls):
        kind: Any = field.type
        bare = typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind
        if isinstance(bare, type) and dataclasses.is_dataclass(bare):
            found += _flags(bare, prefixes, f"{field.name}." if prefixes and bare is kind else "")
        else:
            found.append("--" + prefix + field.name.replace("_", "-"))
    return found
