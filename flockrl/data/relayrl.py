"""Reads RelayRL's own Arrow and CSV files.

They hold one trajectory of one agent each batch (CSV: until `done`), without episode, truncation, environment and
policy version. What a trajectory without `done` at its end led to is unknown.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from flockrl.core.spec import Box, Discrete, EnvSpec
from flockrl.data.columns import BadData
from flockrl.data.experience import Experience, blank

TYPES = {
    "f32": "<f4", "f64": "<f8", "i8": "<i1", "i16": "<i2", "i32": "<i4", "i64": "<i8", "u8": "<u1", "bool": "<u1",
    "float": "<f4", "double": "<f8", "byte": "<i1", "short": "<i2", "int": "<i4", "long": "<i8", "uint8": "<u1",
}  # fmt: skip
"""RelayRL's names of types -> NumPy's, for values that are kept as bytes."""
Row = dict[str, Any]


def spec(path: Path) -> EnvSpec:
    """What the rows look like, as an environment of one agent called "agent".

    One action number beside a mask, or of a whole-number type, is discrete; anything else is continuous.
    """
    sizes, widths, masks, highest, whole, longest = set(), set(), set(), 0, True, 1
    for rows in _trajectories(path):
        longest = max(longest, len(rows))
        for row in rows:
            action = _values(row, "act")
            sizes.add(len(_values(row, "obs")))
            widths.add(len(action))
            masks.add(len(_values(row, "mask")))
            whole = whole and str(row["act_dtype"]).lower().startswith(("i", "u", "long", "short", "byte"))
            highest = max(highest, int(action.max(initial=0)))
    masks.discard(0)
    if len(sizes) != 1 or len(widths) != 1 or len(masks) > 1:
        raise _bad(path, f"observations, actions or masks change their size ({sorted(sizes)}, {sorted(widths)})")
    discrete = widths == {1} and (bool(masks) or whole)
    actions: Any = Discrete(max(masks, default=highest + 1)) if discrete else Box((widths.pop(),))
    return EnvSpec("relayrl", ("agent",), (Box((sizes.pop(),)),), (actions,), longest)


def read(path: Path, spec: EnvSpec) -> Iterator[Experience]:
    """Its trajectories, one at a time."""
    for number, rows in enumerate(_trajectories(path)):
        masks = any(len(_values(row, "mask")) for row in rows) and spec.discrete
        fields = blank(spec, len(rows), 1, masks, states=False)
        fields["id"][0], fields["env"][0] = f"{path.stem}-{number}", spec.name
        fields["episode"][0], fields["length"][0] = number, len(rows)
        fields["step"], fields["alive"][:] = np.arange(len(rows)), True
        for t, row in enumerate(rows):
            fields["obs"][t, 0] = _values(row, "obs")
            action = _values(row, "act")
            fields["action"][t, 0] = action[0] if spec.discrete else action
            fields["reward"][t, 0], fields["time"][t] = row["reward"] or 0.0, row["timestamp"] or 0
            if masks:
                mask = _values(row, "mask")
                fields["avail"][t, 0] = mask > 0 if len(mask) else True
            aux = json.loads(row.get("aux_data") or "{}") or {}
            logp = _number(aux.get("logp_a"))
            fields["logp"][t, 0] = np.nan if logp is None else logp
        fields["next_obs"][:-1] = fields["obs"][1:]
        if masks:
            fields["next_avail"][:-1] = fields["avail"][1:]
            fields["next_avail"][-1] = True
        fields["terminated"][-1] = bool(rows[-1]["done"])
        fields["blind"][-1] = not rows[-1]["done"]
        if not all(np.isfinite(fields[name]).all() for name in ("obs", "reward", "action")):
            raise _bad(path, "it has numbers that are not finite")
        yield Experience(**fields)


def _trajectories(path: Path) -> Iterator[list[Row]]:
    if path.suffix == ".arrow":
        with pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as reader:
            for i in range(reader.num_record_batches):
                batch = reader.get_batch(i)
                batch.validate(full=True)
                if len(batch):
                    yield batch.to_pylist()
        return
    rows: list[Row] = []
    with path.open(newline="") as file:
        for cells in csv.DictReader(file):
            row: Row = dict(cells)
            try:
                for key in [k for k in row if k.startswith(("obs_", "act_", "mask_")) and not k.endswith("_dtype")]:
                    row[key] = json.loads(row[key]) if row[key] else None
                row["reward"], row["timestamp"] = float(row["reward"] or 0), int(float(row["timestamp"] or 0))
                row["done"] = str(row["done"]).lower() in ("true", "1")
            except (ValueError, KeyError, TypeError) as error:
                raise _bad(path, f"row {len(rows) + 1} cannot be read ({error})") from error
            rows.append(row)
            if row["done"]:
                yield rows
                rows = []
    if rows:
        yield rows


def _values(row: Row, name: str) -> np.ndarray:
    """The numbers of obs, act or mask, wherever they were put; none when there are none."""
    for kind in ("f32", "f64"):
        if row.get(f"{name}_{kind}"):
            return np.asarray(row[f"{name}_{kind}"], np.float32)
    raw = row.get(f"{name}_binary")
    if not raw:
        return np.zeros(0, np.float32)
    dtype = TYPES.get(str(row[f"{name}_dtype"]).lower(), "<f4")
    data = bytes(raw)
    return np.frombuffer(data[: len(data) // np.dtype(dtype).itemsize * np.dtype(dtype).itemsize], dtype).astype("f4")


def _number(value: Any) -> float | None:
    """A number, or the first one of a list or of a tensor written as an object."""
    while isinstance(value, list | dict) and value:
        value = value[0] if isinstance(value, list) else next(iter(value.values()))
    return float(value) if isinstance(value, int | float) else None


def _bad(path: Path, why: str) -> Exception:
    return BadData(f"{path} cannot be used: {why}.")
