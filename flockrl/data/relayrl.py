"""Reads RelayRL's own Arrow and CSV files.

They hold one trajectory of one agent each batch (CSV: until `done`), without episode, truncation, environment and
policy version. What a trajectory without `done` at its end led to is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from flockrl.core.spec import Box, Discrete, EnvSpec
from flockrl.data.columns import BadData, too_large
from flockrl.data.decoding import decode
from flockrl.data.encoding import encode
from flockrl.data.experience import Experience, blank
from flockrl.data.reading import arrow_batches
from flockrl.data.text import read_json, read_rows

TYPES = {
    "f32": "<f4", "f64": "<f8", "i8": "<i1", "i16": "<i2", "i32": "<i4", "i64": "<i8", "u8": "<u1", "bool": "<u1",
    "float": "<f4", "double": "<f8", "byte": "<i1", "short": "<i2", "int": "<i4", "long": "<i8", "uint8": "<u1",
}  # fmt: skip
"""RelayRL's names of types -> NumPy's, for values that are kept as bytes."""
MOST_ACTIONS = 65_536
"""The most actions to choose from where no mask says how many there are."""
PER_STEP = 1000
"""Bytes of memory that a step takes besides its numbers."""
WRONG = (ValueError, KeyError, TypeError, OverflowError, AttributeError, pa.ArrowException)
VECTORS = tuple(f"{x}_{kind}" for x in ("obs", "act", "mask") for kind in ("dtype", "f32", "f64", "binary"))
USED = ("reward", "done", "timestamp", "aux_data", *VECTORS)
"""The columns that are read."""
Row = dict[str, Any]


class Step(NamedTuple):
    """One row. where: its line or row in the file; obs, act, mask: vectors, empty where there are none; whole: whether
    the action is of a whole-number type; starts: whether a trajectory begins with it; logp: NaN when unknown."""

    where: str
    obs: np.ndarray
    act: np.ndarray
    mask: np.ndarray
    whole: bool
    reward: float
    time: int
    done: bool
    logp: float
    starts: bool


def spec(path: Path, most: int) -> EnvSpec:
    """What the rows look like, as an environment of one agent called "agent".

    One action number beside a mask, or of a whole-number type, is discrete; anything else is continuous.
    """
    sizes, highest, whole, length, longest = (-1, -1, 0), 0, True, 0, 1
    for step in _steps(path, most):
        length = 1 if step.starts else length + 1
        mine = len(step.obs), len(step.act), len(step.mask) or sizes[2]
        if sizes[0] >= 0 and (mine[:2] != sizes[:2] or (sizes[2] and mine[2] != sizes[2])):
            raise _bad(step.where, "observations, actions or masks change their size")
        sizes, longest, whole = mine, max(longest, length), whole and step.whole
        highest = max(highest, int(step.act.max(initial=0)))
    if sizes[0] < 1 or sizes[1] < 1:
        raise _bad(path, "it has no rows with observations and actions")
    observation, width, options = sizes
    discrete = width == 1 and (options > 0 or whole)
    if discrete and not options and highest >= MOST_ACTIONS:
        raise _bad(path, f"it has the action {highest}, and at most {MOST_ACTIONS} actions are taken without a mask")
    actions: Any = Discrete(options or highest + 1) if discrete else Box((width,))
    return EnvSpec("relayrl", ("agent",), (Box((observation,)),), (actions,), longest)


def read(path: Path, spec: EnvSpec, most: int) -> Iterator[Experience]:
    """Its trajectories, one at a time, each within `most` bytes."""
    steps: list[Step] = []
    size = number = 0
    for step in _steps(path, most):
        if step.starts and steps:
            yield _experience(path, number, steps, spec)
            steps, size, number = [], 0, number + 1
        steps.append(step)
        size += PER_STEP + 8 * spec.obs_size + 12 * spec.action_size
        if size > most:
            raise BadData(f"{step.where}: {too_large(size, most, 'A trajectory')}")
    if steps:
        yield _experience(path, number, steps, spec)


def _experience(path: Path, number: int, steps: list[Step], spec: EnvSpec) -> Experience:
    masks = any(len(step.mask) for step in steps) and spec.discrete
    fields = blank(spec, len(steps), 1, masks, states=False)
    fields["id"][0], fields["env"][0] = f"{path.stem}-{number}", spec.name
    fields["episode"][0], fields["length"][0] = number, len(steps)
    fields["step"], fields["alive"][:] = np.arange(len(steps)), True
    for t, step in enumerate(steps):
        if len(step.obs) != spec.obs_size or len(step.act) != spec.action_width:
            raise _bad(step.where, "its numbers are not as many as in the other files")
        if spec.discrete and not (step.act == np.floor(step.act)).all():
            raise _bad(step.where, f"the action {step.act[0]:g} is not a whole number")
        fields["obs"][t, 0], fields["reward"][t, 0], fields["time"][t] = step.obs, step.reward, step.time
        fields["action"][t, 0] = np.clip(step.act[0], -(2**30), 2**30) if spec.discrete else step.act
        fields["logp"][t, 0] = step.logp
        if masks:
            fields["avail"][t, 0] = step.mask > 0 if len(step.mask) == spec.action_size else True
    fields["next_obs"][:-1] = fields["obs"][1:]
    if masks:
        fields["next_avail"][:-1] = fields["avail"][1:]
        fields["next_avail"][-1] = True
    fields["terminated"][-1] = steps[-1].done
    fields["blind"][-1] = not steps[-1].done
    try:  # as rows and back: what is checked in flockrl's own files is checked here
        return decode(encode(Experience(**fields), spec), spec)
    except BadData as error:
        raise BadData(f"{path if error.row is None else steps[error.row].where}: {error}") from error


def _steps(path: Path, most: int) -> Iterator[Step]:
    """All rows of a file."""
    if path.suffix == ".csv":
        rows = read_rows(path, 0, most)
        names = next(rows)[1]
        starts = True
        for number, cells in rows:
            step = _step(f"{path}, line {number}", dict(zip(names, cells, strict=True)), _from_cell, starts)
            yield step
            starts = step.done
        return
    before = 0
    for batch in arrow_batches(path, most):
        columns = {name: batch.column(name) for name in USED if name in batch.schema.names}
        for i in range(len(batch)):
            row = {name: column[i] for name, column in columns.items()}
            yield _step(f"{path}, row {before + i + 1}", row, _from_scalar, i == 0)
        before += len(batch)


def _step(where: str, row: Row, value: Any, starts: bool) -> Step:
    """value: from a cell of the row and its column's name to numbers, text, or None."""
    try:
        get = {name: value(row[name], name) for name in USED if name in row}
        obs, act, mask = (_numbers(get, name) for name in ("obs", "act", "mask"))
        aux = read_json(get.get("aux_data") or "{}")
        logp = _first(aux.get("logp_a")) if isinstance(aux, dict) else None
        whole = str(get["act_dtype"]).lower().startswith(("i", "u", "long", "short", "byte"))
        reward, time = float(get["reward"] or 0), int(float(get["timestamp"] or 0))
        if not (np.isfinite(act).all() and np.isfinite(obs).all() and abs(reward) < 3e38 and abs(time) < 2**63):
            raise ValueError("it has numbers that are not finite")
        logp = float("nan") if logp is None else logp
        return Step(where, obs, act, mask, whole, reward, time, _flag(get["done"]), logp, starts)
    except WRONG as error:
        text = f"there is no column {error}" if isinstance(error, KeyError) else str(error).split("\n")[0][:200]
        raise _bad(where, text.rstrip(".")) from error


def _from_cell(cell: str, name: str) -> Any:
    """A cell of a CSV file."""
    if not cell:
        return None
    if not name.startswith(("obs_", "act_", "mask_")) or name.endswith("_dtype"):
        return cell
    numbers = read_json(cell)
    if not isinstance(numbers, list):
        raise ValueError(f"the column {name!r} must hold a list")
    return bytes(numbers) if name.endswith("_binary") else numbers


def _from_scalar(cell: Any, name: str) -> Any:
    """A cell of a record batch. Lists stay arrays, which take less memory."""
    if not cell.is_valid:
        return None
    if pa.types.is_list(cell.type):
        return cell.values.to_numpy(zero_copy_only=False)
    return cell.as_py()


def _flag(value: Any) -> bool:
    text = str(value).lower()
    if text not in ("true", "1", "false", "0", "none"):
        raise ValueError(f"{text[:40]!r} is neither true nor false")
    return text in ("true", "1")


def _numbers(row: Row, name: str) -> np.ndarray:
    """The numbers of obs, act or mask, wherever they were put; none when there are none."""
    for kind in ("f32", "f64"):
        given = row.get(f"{name}_{kind}")
        if given is not None and len(given):
            with np.errstate(over="ignore"):
                numbers = np.asarray(given).astype(np.float32)
            if numbers.ndim != 1:
                raise ValueError(f"{name} must be a flat list of numbers")
            return numbers
    raw = row.get(f"{name}_binary")
    if not raw:
        return np.zeros(0, np.float32)
    said = str(row.get(f"{name}_dtype")).lower()
    if said not in TYPES or len(raw) % np.dtype(TYPES[said]).itemsize:
        raise ValueError(f"{name} is not made of numbers of type {said[:20]!r}")
    with np.errstate(over="ignore"):
        return np.frombuffer(raw, TYPES[said]).astype(np.float32)


def _first(value: Any) -> float | None:
    """A number, or the first one of a list or of a tensor written as an object."""
    while isinstance(value, list | dict) and value:
        value = value[0] if isinstance(value, list) else next(iter(value.values()))
    return float(value) if isinstance(value, int | float) else None


def _bad(where: Path | str, why: str) -> BadData:
    return BadData(f"{where} cannot be used: {why}.")
