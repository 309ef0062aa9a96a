"""Benchmark suites: which algorithms on which environments with which seeds, read from TOML and checked."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from flockrl.algos.assembly import make_algorithm
from flockrl.algos.presets import make_config
from flockrl.core.cluster import outside
from flockrl.core.code import require_trust
from flockrl.core.errors import UsageError, nearest, notice
from flockrl.core.settings import build, check_number
from flockrl.envs.registry import make
from flockrl.training.channels import around
from flockrl.training.config import RunConfig, TrainOptions

SHIPPED = Path(__file__).parent / "suites"
PART_KEYS = (
    "name",
    "algorithms",
    "environments",
    "seeds",
    "first_seed",
    "settings",
    "per_algorithm",
    "per_environment",
    "optional",
)
SUITE_KEYS = ("question", *PART_KEYS, "part")
MOST_SEEDS = 10_000
LONGEST = 110
"""Letters of an algorithm and of an environment in the name of a directory, which may have 255 in all."""


@dataclass(frozen=True)
class Cell:
    """One run of a benchmark: its config, its directory below the benchmark's, and what tables call it if not by its
    algorithm."""

    run: RunConfig
    folder: str
    label: str = ""

    @property
    def algorithm(self) -> str:
        return self.run.algorithm

    @property
    def env(self) -> str:
        return self.run.env

    @property
    def seed(self) -> int:
        return self.run.options.seed


@dataclass(frozen=True)
class Suite:
    """A benchmark: the question it asks, and its cells."""

    name: str
    question: str
    cells: tuple[Cell, ...]


def shipped() -> dict[str, Path]:
    """Suites that come with flockrl, by name."""
    return {file.stem: file for file in sorted(SHIPPED.glob("*.toml"))}


def read_suite(name: str, changes: dict[str, Any] | None = None) -> Suite:
    """A suite by file or shipped name. `changes` override the seeds and settings of all parts; "only" among them names
    the algorithms, and the beginnings of the names of environments, that stay."""
    file = Path(name) if name.endswith(".toml") else shipped().get(name)
    if file is None:
        raise UsageError(f"There is no suite {name!r}.{nearest(name, shipped())} A file must end in .toml.")
    try:
        content = tomllib.loads(file.read_text())
    except OSError as error:
        raise UsageError(f"Cannot read the suite {file}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The suite {file} is not valid TOML: {error}.") from error
    return make_suite(file.stem, content, changes or {}, file)


def make_suite(name: str, content: dict[str, Any], changes: dict[str, Any], file: Path | None = None) -> Suite:
    """A suite from its content: one part at the top, or several under [[part]]. Everything is checked here.

    file: where the content comes from; code that it names must be trusted.
    """
    _known(content, SUITE_KEYS, name)
    parts = content.get("part", [])
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise UsageError(f"Suite {name}: write parts as [[part]].")
    if "name" in content:
        raise UsageError(f"Suite {name}: a name belongs to a [[part]].")
    shared = {key: value for key, value in content.items() if key in PART_KEYS}
    cells: dict[str, Cell] = {}
    only = _only(name, parts or [{}], shared, changes.get("only", ()))
    for part in parts or [{}]:
        _known(part, PART_KEYS, name)
        merged = {**shared, **part, "settings": {**_table(shared, "settings"), **_table(part, "settings")}}
        for cell in _cells(name, merged, changes, file, only):
            if cells.setdefault(cell.folder, cell) != cell:
                raise UsageError(
                    f"Suite {name}: two parts ask for {cell.folder} with unlike settings: give each part a name."
                )
    if not cells:
        raise UsageError(f"Suite {name} has no run left: no part of it that can run here has all that was asked for.")
    return Suite(name, str(content.get("question", "")), tuple(cells.values()))


def _only(
    suite: str, parts: Sequence[dict[str, Any]], shared: dict[str, Any], words: Sequence[str]
) -> Callable[[str, str], bool]:
    """Whether an algorithm on an environment is of the piece that these words ask for; without words all are. Words
    that name no algorithm are beginnings of environments' names."""
    merged = [{**shared, **part} for part in parts]
    known = [{name for part in merged for name in _names(suite, part, key)} for key in ("algorithms", "environments")]
    starts = tuple(word for word in words if word not in known[0])
    names = [word for word in words if word in known[0]]
    for word in starts:
        if not any(env.startswith(word) for env in known[1]):
            raise UsageError(f"Suite {suite} runs no {word!r}.{nearest(word, [*known[0], *known[1]])}")

    def wanted(algorithm: str, env: str) -> bool:
        return (not names or algorithm in names) and (not starts or env.startswith(starts))

    pairs = (product(_names(suite, part, "algorithms"), _names(suite, part, "environments")) for part in merged)
    if not any(wanted(*pair) for part in pairs for pair in part):
        raise UsageError(f"Suite {suite} does not run {' or '.join(names)} on {' or '.join(starts)}.")
    return wanted


def _cells(
    suite: str, part: dict[str, Any], changes: dict[str, Any], file: Path | None, only: Callable[[str, str], bool]
) -> list[Cell]:
    algorithms, envs = _names(suite, part, "algorithms"), _names(suite, part, "environments")
    count, first = changes.get("seeds", part.get("seeds", 5)), part.get("first_seed", 0)
    check_number(f"Suite {suite}: seeds", count, least=1, most=MOST_SEEDS, whole=True)
    check_number(f"Suite {suite}: first_seed", first, least=0, most=2**32 - count, whole=True)
    optional = part.get("optional", False)
    if not isinstance(optional, bool):
        raise UsageError(f"Suite {suite}: optional must be true or false, not {optional!r}.")
    title = part.get("name", "")
    if not isinstance(title, str) or (title and not _slug(title)):
        raise UsageError(f"Suite {suite}: the name of a part must be words, not {title!r}.")
    runs = []
    for algorithm, env in filter(lambda pair: only(*pair), product(algorithms, envs)):
        settings = {
            **_table(part, "settings"),
            **_entry(suite, part, "per_environment", envs).get(env, {}),
            **_entry(suite, part, "per_algorithm", algorithms).get(algorithm, {}),
            **changes.get("settings", {}),
        }
        runs.append(_config(algorithm, env, settings))
    if file is not None:  # before anything is built: building an environment imports it
        require_trust(file, [name for run in runs for name in (*run.code(), *outside(run.options.ray))])
    places = _places(suite, list(dict.fromkeys(run.env for run in runs)), optional)
    cells = []
    for run in runs:
        if run.env not in places:
            continue
        algorithm = run.algorithm
        spec = around(run.config, places[run.env]).spec
        make_algorithm(algorithm, spec, run.config, envs=run.options.envs, updates=1)
        label = title if len(algorithms) == 1 else f"{algorithm} {title}" if title else ""
        for seed in range(first, first + count):
            options = dataclasses.replace(run.options, seed=seed)
            folder = f"{_slug(label or algorithm)}-{_slug(run.env)}/seed_{seed}"
            cells.append(Cell(dataclasses.replace(run, options=options), folder, label))
    return cells


def _places(suite: str, envs: list[str], optional: bool) -> dict[str, Any]:
    """Environments by name. Where they are optional, those that cannot be built here are named and left out."""
    found = {}
    for env in envs:
        try:
            found[env] = make(env)
        except UsageError as error:
            if not optional:
                raise
            notice(f"Suite {suite} goes without {env}: {error}")
    return found


def _config(algorithm: str, env: str, settings: dict[str, Any]) -> RunConfig:
    """A cell's config, its settings checked."""
    if "seed" in settings:
        raise UsageError("A suite counts its seeds with seeds and first_seed: leave seed out of the settings.")
    own = {field.name for field in dataclasses.fields(TrainOptions)}
    options = build(TrainOptions, {k: v for k, v in settings.items() if k in own}, f"{algorithm} on {env}")
    config = make_config(algorithm, {k: v for k, v in settings.items() if k not in own})
    return RunConfig(algorithm, env, options, config)


def _known(content: dict[str, Any], keys: Sequence[str], suite: str) -> None:
    for key in content:
        if key not in keys:
            raise UsageError(f"Suite {suite} has no entry {key!r}.{nearest(key, keys)}")


def _names(suite: str, part: dict[str, Any], key: str) -> list[str]:
    names = part.get(key)
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise UsageError(f"Suite {suite}: {key} must be a list of names.")
    return list(dict.fromkeys(names))


def _table(part: dict[str, Any], key: str) -> dict[str, Any]:
    table = part.get(key, {})
    if not isinstance(table, dict):
        raise UsageError(f"{key} must be a table of settings by name.")
    return table


def _entry(suite: str, part: dict[str, Any], key: str, names: Sequence[str]) -> dict[str, Any]:
    table = _table(part, key)
    for name, settings in table.items():
        if name not in names:
            raise UsageError(f"Suite {suite}: {key} names {name!r}, which the part does not run.{nearest(name, names)}")
        if not isinstance(settings, dict):
            raise UsageError(f"Suite {suite}: {key} of {name!r} must be a table of settings.")
    return table


def _slug(env: str) -> str:
    """As a part of a path. What is too long for one ends in a digest."""
    slug = re.sub(r"[^A-Za-z0-9_.=-]+", "-", env).strip("-")
    if len(slug) <= LONGEST:
        return slug
    return f"{slug[: LONGEST - 13]}-{hashlib.sha256(env.encode()).hexdigest()[:12]}"
