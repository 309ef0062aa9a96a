"""The commands for recorded trajectories: data info, data validate, data convert."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from tyro.conf import Positional

from flockrl.commands.parsing import parse
from flockrl.core.errors import UsageError, nearest
from flockrl.core.memory import parse_size
from flockrl.core.spec import Box, Space
from flockrl.data.choices import options
from flockrl.data.files import Files, Writer, find


@dataclass(frozen=True)
class InfoFlags:
    """What `flockrl data info` takes."""

    files: Annotated[tuple[str, ...], Positional, tyro.conf.arg(metavar="FILES")]
    """Files, directories, or patterns with *."""
    json: bool = False
    """Print one JSON object instead of text."""
    memory_limit: str = "1GB"
    """Memory that reading may take, such as 512MB; files that need more are refused."""


@dataclass(frozen=True)
class ValidateFlags:
    """What `flockrl data validate` takes."""

    files: Annotated[tuple[str, ...], Positional, tyro.conf.arg(metavar="FILES")]
    """Files, directories, or patterns with *."""
    memory_limit: str = "1GB"
    """Memory that reading may take, such as 512MB; files that need more are refused."""


@dataclass(frozen=True)
class ConvertFlags:
    """What `flockrl data convert` takes."""

    files: Annotated[tuple[str, ...], Positional, tyro.conf.arg(metavar="FILES")]
    """Files, directories, or patterns with *; several become one. minari:NAME is a dataset of Minari."""
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")]
    """The new file; its ending (.arrow, .parquet or .csv) says which format."""
    memory_limit: str = "1GB"
    """Memory that reading may take, such as 512MB; files that need more are refused."""


def data(words: list[str]) -> int:
    actions = {"info": _info, "validate": _validate, "convert": _convert}
    if not words or words[0] in ("-h", "--help"):
        print("usage: flockrl data info|validate|convert FILES...\n\nRecorded trajectories: see what is in them,")
        print("check them, change their format. `flockrl data info --help` explains one of these.")
        return 0 if words else 2
    if words[0] not in actions:
        raise UsageError(f"There is no command 'data {words[0]}'.{nearest(words[0], actions)}")
    return actions[words[0]](words[1:])


def _info(words: list[str]) -> int:
    given = parse(InfoFlags, words, "flockrl data info", "Say what is in trajectory files.")
    facts = summarize(Files(given.files, parse_size(given.memory_limit)))
    if given.json:
        print(json.dumps(facts))
        return 0
    for name, value in facts.items():
        print(f"{name.replace('_', ' '):18}{value}")
    return 0


def summarize(files: Files) -> dict[str, Any]:
    """Figures about trajectory files, read piece by piece."""
    counts: Counter[str] = Counter()
    versions, returns, lengths = set(), [], []
    for data in files:
        over, whole, terminated = data.over, data.whole, data.terminated[data.last].any(1)
        counts["trajectories"] += data.trajectories
        counts["steps"] += data.steps
        counts["agent_steps"] += int(data.alive.sum())
        counts["terminated"] += int((over & terminated).sum())
        counts["truncated"] += int((over & ~terminated).sum())
        counts["unfinished"] += int((~over).sum())
        returns += list(data.returns[whole])
        lengths += data.length[whole].tolist()
        versions |= set(data.version.tolist())
    spec = files.spec
    actions = {_kind_of(space) for space in spec.actions}
    facts: dict[str, Any] = {
        "files": len(files.paths), "bytes": sum(path.stat().st_size for path in files.paths),
        "environment": files.about.get("env", spec.name), "agents": ", ".join(spec.agents),
        "observations": ", ".join(map(str, sorted({space.size for space in spec.observations}))),
        "actions": ", ".join(sorted(actions)), **counts,
        "policy_versions": f"{min(versions)} to {max(versions)}" if versions else "none",
    }  # fmt: skip
    for name in ("algorithm", "source"):
        if name in files.about:
            facts[name] = files.about[name]
    if returns:
        scores = np.mean(returns, axis=1)
        facts["return"] = f"{scores.mean():.3f}, deviation {scores.std():.3f} (mean over agents; whole episodes)"
        facts["episode_length"] = round(float(np.mean(lengths)), 2)
    return facts


def _kind_of(space: Space) -> str:
    """An action space in words: 5 discrete, 5 x 3 discrete, 2 real."""
    return f"{space.size} real" if isinstance(space, Box) else f"{' x '.join(map(str, options(space)))} discrete"


def _validate(words: list[str]) -> int:
    given = parse(ValidateFlags, words, "flockrl data validate", "Check every row of trajectory files.")
    bad, memory = 0, parse_size(given.memory_limit)
    for path in find(given.files):
        try:
            files = Files([path], memory)
            names: set[str] = set()
            twice = 0
            for data in files:
                mine = set(data.id.tolist())
                twice += len(mine & names)
                names |= mine
            if twice:
                raise UsageError(f"{path}: {twice} trajectories come twice.")
            print(f"{path}: {len(names)} trajectories, all good")
        except UsageError as error:
            bad += 1
            print(error)
    if bad:
        raise UsageError(f"{bad} of the files cannot be used.")
    return 0


def _convert(words: list[str]) -> int:
    about = "Write trajectory files in another format, several as one."
    given = parse(ConvertFlags, words, "flockrl data convert", about)
    imported = [name for name in given.files if name.startswith("minari:")]
    files: Any
    if imported:
        files, said = _imported(given.files)
    else:
        files = Files(given.files, parse_size(given.memory_limit))
        said = {name: value for name, value in files.about.items() if name not in ("format", "spec")}
    with Writer(given.out, files.spec, said) as writer:
        for data in files:
            writer.add(data)
    print(f"wrote {given.out}: {writer.rows:,} rows")
    return 0


def _imported(names: tuple[str, ...]) -> tuple[Any, dict[str, str]]:
    """A dataset of Minari, and what the file says about it."""
    if len(names) > 1:
        raise UsageError("A dataset of Minari is converted alone: name one, and join the files afterwards.")
    from flockrl.evaluation.minari import Dataset, load

    name = names[0].removeprefix("minari:")
    dataset = Dataset(load(name), name)
    return dataset, {"env": dataset.spec.name, "source": names[0]}
