"""The space that a search looks in: settings of an algorithm with their ranges or choices, checked before it begins.

lr=log:1e-4:1e-2     a number between two ends, even on a logarithmic scale
gamma=0.9:0.999      a number between two ends; a whole one where the setting is
epochs=2,5,10        one of these; lists as 64x64, no value as none
"""

from __future__ import annotations

import json
import math
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from flockrl.algos.presets import family, make_config
from flockrl.core.code import SETTINGS, require_trust
from flockrl.core.errors import UsageError, nearest
from flockrl.core.settings import build
from flockrl.training.config import TrainOptions

SEARCHED_OPTIONS = ("envs",)
"""Train options that may be searched; the others say how long and how to measure, which all trials share."""
LARGEST = 1 << 20
"""Bytes that the file of a space may have."""


@dataclass(frozen=True)
class Dimension:
    """A setting that is searched: a range of numbers, or choices by what the user wrote for them."""

    name: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False
    choices: tuple[tuple[str, Any], ...] = ()

    def suggest(self, trial: Any) -> Any:
        """What an Optuna trial proposes: a number, or the word of a choice."""
        if self.choices:
            return trial.suggest_categorical(self.name, [word for word, _ in self.choices])
        if self.whole:
            return trial.suggest_int(self.name, int(self.low), int(self.high), log=self.log)
        return trial.suggest_float(self.name, self.low, self.high, log=self.log)

    def value(self, proposed: Any) -> Any:
        """The setting's value for what `suggest` returned."""
        return dict(self.choices)[proposed] if self.choices else proposed

    def tests(self) -> list[Any]:
        """Values that must be legal: the ends, or all choices."""
        if self.choices:
            return [value for _, value in self.choices]
        return [int(x) if self.whole else x for x in (self.low, self.high)]

    def __str__(self) -> str:
        if self.choices:
            return ",".join(word for word, _ in self.choices)
        ends = f"{int(self.low)}:{int(self.high)}" if self.whole else f"{self.low!r}:{self.high!r}"
        return f"log:{ends}" if self.log else ends


def read_space(words: Iterable[str], algorithm: str) -> tuple[Dimension, ...]:
    """Words NAME=RANGE or NAME=CHOICES, and names of TOML files that have them under [search]."""
    found: dict[str, Dimension] = {}
    for word in words:
        name, equals, text = word.partition("=")
        entries = {name: text} if equals else _read_file(Path(word))
        if not equals:  # names of code are imported in trials
            require_trust(word, [str(entries[own]) for own in SETTINGS if own in entries])
        for name, entry in entries.items():
            if name in found:
                raise UsageError(f"{name} is searched twice: name it once.")
            found[name] = make_dimension(name, entry, algorithm)
    if not found:
        raise UsageError("Say what to search: --search lr=log:1e-4:1e-2 epochs=2,5,10, or a .toml file.")
    return tuple(found.values())


def _read_file(path: Path) -> dict[str, Any]:
    if path.suffix != ".toml":
        raise UsageError(f"Write --search as NAME=LOW:HIGH, NAME=log:LOW:HIGH, NAME=A,B,C or FILE.toml, not {path}.")
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST + 1)
        if len(text) > LARGEST:
            raise UsageError(f"The search space {path} is larger than {LARGEST >> 20} MB.")
        entries = tomllib.loads(text.decode()).get("search")
    except OSError as error:
        raise UsageError(f"Cannot read the search space {path}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The search space {path} is not valid TOML: {error}.") from error
    if not isinstance(entries, dict) or not entries:
        raise UsageError(f"The search space {path} must have settings under [search].")
    return entries


def make_dimension(name: str, entry: Any, algorithm: str) -> Dimension:
    """A dimension from what stands after the equals sign, or in a file: a text, or a list of choices."""
    hint = _hint(name, algorithm)
    if isinstance(entry, list):
        return Dimension(name, choices=_choices(name, [(_word(x), x) for x in entry]))
    if not isinstance(entry, str):
        raise UsageError(f"{name} is searched in a text such as 'log:1e-4:1e-2' or in a list, not in {entry!r}.")
    if ":" not in entry:
        return Dimension(name, choices=_choices(name, [(word, _parsed(word, hint)) for word in entry.split(",")]))
    log = entry.startswith("log:")
    ends = entry.removeprefix("log:").split(":")
    kind = _number(hint)
    if kind is None:
        raise UsageError(f"{name} is not a number, so that it has no range: write its choices as {name}=A,B,C.")
    try:
        low, high = (float(end) for end in ends)
    except ValueError:
        raise UsageError(f"Write the range of {name} as LOW:HIGH or log:LOW:HIGH, not {entry!r}.") from None
    whole = kind is int
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise UsageError(f"The range of {name} must go from a lower to a higher number, not {entry!r}.")
    if log and low <= 0:
        raise UsageError(f"A logarithmic range begins above 0, and that of {name} begins at {low:g}.")
    if whole and not (low.is_integer() and high.is_integer() and abs(low) < 2**53 and abs(high) < 2**53):
        raise UsageError(f"{name} is a whole number, and so must be the ends of its range, not {entry!r}.")
    return Dimension(name, low, high, log, whole)


def _hint(name: str, algorithm: str) -> Any:
    """The type of a setting that may be searched."""
    options, own = typing.get_type_hints(TrainOptions), typing.get_type_hints(family(algorithm).config)
    known = {**{option: options[option] for option in SEARCHED_OPTIONS}, **own}
    if name in known:
        return known[name]
    if name in options:
        raise UsageError(f"{name} is the same for all trials: give it as --{name.replace('_', '-')}, not in --search.")
    raise UsageError(f"{algorithm} has no setting {name!r}.{nearest(name, known)}")


def _number(hint: Any) -> type | None:
    """int or float, where the type of a setting is one of them or that or None."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    kinds = [kind for kind in (typing.get_args(hint) if union else (hint,)) if kind is not type(None)]
    return kinds[0] if len(kinds) == 1 and kinds[0] in (int, float) else None


def _choices(name: str, found: list[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
    if len(found) < 2 or len(dict(found)) < len(found):
        raise UsageError(f"{name} needs at least two choices, all different.")
    return tuple(found)


def _parsed(word: str, hint: Any) -> Any:
    """`0.5`, `true`, `none`, `64x64` or a word as a value of this type; what it is not is said when it is checked."""
    parts = word.split("x")
    if typing.get_origin(hint) is tuple and all(part.isdecimal() and part.isascii() for part in parts):
        return [int(part) for part in parts]
    if word.lower() == "none":
        return None if type(None) in typing.get_args(hint) else word
    try:
        value = json.loads({"True": "true", "False": "false"}.get(word, word))
    except (ValueError, RecursionError):
        return word
    return value if isinstance(value, bool | int | float) else word


def _word(value: Any) -> str:
    """What is written for a choice of a file."""
    if isinstance(value, list):
        return "x".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value, default=str)


def split(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train options, and the algorithm's own settings."""
    own = {field.name for field in fields(TrainOptions)}
    return {k: v for k, v in settings.items() if k in own}, {k: v for k, v in settings.items() if k not in own}


def settle(algorithm: str, settings: Mapping[str, Any]) -> tuple[TrainOptions, Any]:
    """Options and config from settings, checked."""
    options, own = split(settings)
    return build(TrainOptions, options, algorithm), make_config(algorithm, own)


def check_space(space: Iterable[Dimension], algorithm: str, fixed: Mapping[str, Any]) -> tuple[Dimension, ...]:
    """Refuse a space with illegal ends or choices."""
    space = tuple(space)
    for dimension in space:
        for value in dimension.tests():
            try:
                settle(algorithm, {**fixed, dimension.name: value})
            except UsageError as error:
                raise UsageError(f"The search space reaches {dimension.name}={value}: {error}") from error
    return space
