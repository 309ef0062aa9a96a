"""Config dataclasses from plain values, and numbers within bounds, with errors that name what is allowed."""

from __future__ import annotations

import collections.abc
import json
import operator
import types
import typing
from numbers import Integral, Real
from typing import Any, Literal

from flockrl.core.errors import UsageError, nearest

LARGEST = 2.0**1000
"""What whole numbers may not exceed, so that they can be floats; nor do infinity and nan pass."""

LONGEST = 100
"""Entries of a list, such as layers."""


class Part:
    """A part that config classes are put together from. Each checks its own settings and hands on to the next."""

    def __post_init__(self) -> None:
        """The end of the chain."""


def build(cls: type, values: dict[str, Any], whose: str) -> Any:
    """Make a config dataclass from plain values. Errors about unknown names and wrong types name the right ones."""
    hints = typing.get_type_hints(cls)
    for key in values:
        if key not in hints:
            raise UsageError(f"{whose} has no setting {key!r}.{nearest(key, hints)}")
    return cls(**{key: _coerce(key, hints[key], value) for key, value in values.items()})


def _coerce(name: str, hint: Any, value: Any) -> Any:
    """`value` as the annotated type, or an error that names the valid values."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        kinds = [arg for arg in args if arg is not type(None)]
        words = next((kind for kind in kinds if typing.get_origin(kind) is Literal), None)
        if len(kinds) > 1 and words is not None and isinstance(value, str):
            return _coerce(name, words, value)
        return _coerce(name, kinds[0], value)
    if origin is Literal:
        if value not in args:
            raise UsageError(f"{name} must be one of {', '.join(map(str, args))}, not {value!r}.")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise UsageError(f"{name} must be a list, not {value!r}.")
        if len(value) > LONGEST:
            raise UsageError(f"{name} must be a list of at most {LONGEST}, not of {len(value):,}.")
        return tuple(_coerce(name, args[0], item) for item in value)
    if origin is collections.abc.Mapping:
        if not isinstance(value, collections.abc.Mapping):
            raise UsageError(f"{name} must hold settings by name, not {value!r}.")
        return dict(value)
    number = _finite(value)
    good = {
        bool: isinstance(value, bool),
        int: number and float(value).is_integer(),
        float: number,
        str: isinstance(value, str),
    }[hint]
    if not good:
        words = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a string"}
        raise UsageError(f"{name} must be {words[hint]}, not {value!r}.")
    return hint(value)


def parse_settings(text: str) -> dict[str, Any]:
    """`N=5,continuous_actions=true` -> {"N": 5, "continuous_actions": True}; what is not JSON stays a string."""
    settings: dict[str, Any] = {}
    for part in filter(None, _parts(text)):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"Write environment settings as name=value, separated by commas, not {part!r}.")
        key, word = key.strip(), value.strip()
        if key in settings:
            raise UsageError(f"The setting {key} is given twice: leave out one of them.")
        try:
            settings[key] = json.loads({"True": "true", "False": "false", "None": "null"}.get(word, word))
        except (ValueError, RecursionError):  # no JSON, too many digits, or too deep
            settings[key] = word
    return settings


def _parts(text: str) -> list[str]:
    """What stands between commas, of which those of lists are none: `a=[1,2],b=3` has two parts."""
    cuts, depth = [-1], 0
    for i, character in enumerate(text):
        depth = max(0, depth + (character == "[") - (character == "]"))
        if character == "," and not depth:
            cuts.append(i)
    return [text[a + 1 : b] for a, b in zip(cuts, [*cuts[1:], len(text)], strict=True)]


def check_number(
    name: str,
    value: Any,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    whole: bool = False,
) -> None:
    """Refuse what is no finite number within these bounds, of which least and most are allowed themselves."""
    bounds = [("at least", least, operator.ge), ("above", above, operator.gt)]
    bounds += [("at most", most, operator.le), ("below", below, operator.lt)]
    said = [(word, bound, meets) for word, bound, meets in bounds if bound is not None]
    number = _finite(value)
    fits = number and all(meets(value, bound) for _, bound, meets in said)
    if fits and (isinstance(value, Integral) or not whole):
        return
    words = " and ".join(f"{word} {_plain(bound)}" for word, bound, _ in said)
    if least is not None and most is not None:
        words = f"from {_plain(least)} to {_plain(most)}"
    kind = "a whole number " if whole else "" if number else "a finite number "
    of = "of " if kind and words.startswith("at") else ""
    allowed = f"{kind}{of}{words}".rstrip()
    raise UsageError(f"{name} must be {allowed}, not {value!r:.60}.")


def _finite(value: Any) -> bool:
    """Whether it is a number that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    size: Any = value if isinstance(value, Integral) else float(value)
    return bool(abs(size) <= LARGEST)


def _plain(bound: float) -> str:
    return f"{bound:,.0f}" if float(bound).is_integer() and abs(bound) < 1e15 else f"{bound:g}"


def check_numbers(config: Any, *names: str, whose: str = "", **bounds: float) -> None:
    """Refuse settings of a config class beyond the bounds, see `check_number`. Those that are None are left open.
    whose: what a sentence adds to the name of a setting."""
    for name in names:
        value = getattr(config, name)
        if value is not None:
            check_number(f"{name}{whose}", value, **bounds)  # type: ignore[arg-type]


def check_seed(seed: int) -> None:
    """Refuse what is no seed of random numbers."""
    if not (isinstance(seed, Integral) and 0 <= seed < 2**32):
        raise UsageError(f"seed must lie between 0 and 2^32 - 1, not {seed}.")


def check_count(name: str, value: int, most: int) -> None:
    """Refuse a number below 1, or beyond what makes sense, by the one bound that it misses."""
    check_number(name, value, least=1)
    check_number(name, value, most=most)
