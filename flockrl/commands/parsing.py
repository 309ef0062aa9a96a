"""Words of the command line as a dataclass."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import typing
from typing import Any

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from flockrl.core.code import trust_files
from flockrl.core.errors import UsageError
from flockrl.core.settings import check_seed
from flockrl.core.synonyms import closest

NUMBERS = ConstructorRegistry()


@NUMBERS.primitive_rule
def _whole_numbers(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[int] | None:
    """Whole numbers as people write them: 1000000, 1_000_000, 1e6."""
    if info.type is not int:
        return None
    return PrimitiveConstructorSpec(
        nargs=1, metavar="INT", instance_from_str=lambda words: whole_number(words[0]),
        is_instance=lambda x: isinstance(x, int) and not isinstance(x, bool), str_from_instance=lambda x: [str(x)],
    )  # fmt: skip


def whole_number(word: str) -> int:
    try:
        return int(word)
    except ValueError:
        if re.fullmatch(r"[+-]?[0-9._]+e[+]?[0-9]{1,3}", word, re.IGNORECASE) and float(word).is_integer():
            return int(float(word))
        raise ValueError(f"expected a whole number, such as 1000000, 1_000_000 or 1e6, and not {word!r}") from None


def parse(flags: Any, words: list[str], prog: str, description: str, prefixes: bool = False) -> Any:
    """The options as a dataclass; a flag that does not exist is an error that names the nearest one.

    prefixes: whether flags of nested classes carry the name of their field (--adversary.lr).
    """
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint), NUMBERS:
            result, unknown = tyro.cli(
                flags, args=words, prog=prog, description=description, return_unknown_args=True,
                config=() if prefixes else (tyro.conf.OmitArgPrefixes,),
            )  # fmt: skip
    except SystemExit as stop:
        if stop.code:
            raise UsageError(f"{_sentence(complaint.getvalue())} `{prog} --help` explains.") from None
        raise
    if unknown:
        word, hint = unknown[0].partition("=")[0], ""
        if word.startswith("-"):
            meant = closest(word, _flags(flags, prefixes))
            hint = f" `{prog} --help` lists its options." if meant is None else f" Did you mean {meant!r}?"
        raise UsageError(f"{prog} does not know what to do with {unknown[0]!r}.{hint}")
    check_seed(getattr(result, "seed", 0))
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
