"""Recorded trajectories as rows of an Arrow table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from flockrl.core.spec import EnvSpec
from flockrl.data.columns import BadData, make_schema
from flockrl.data.experience import Experience


def encode(data: Experience, spec: EnvSpec, schema: pa.Schema | None = None) -> pa.RecordBatch:
    """Experience as rows. `schema`: what `make_schema` made of `spec`. Numbers that are not finite raise `BadData`,
    because nobody could read them again."""
    schema = make_schema(spec) if schema is None else schema
    s, n = np.nonzero(data.alive)
    k = np.repeat(np.arange(data.trajectories), data.length)[s]
    opening = np.ones(len(s), bool)
    opening[1:] = np.diff(s) != 0
    last, ended = data.last, data.terminated | data.truncated
    final = (last[:, None] | ended)[s, n] & ~data.blind[s]
    sizes = np.array([space.size for space in spec.observations])[n]
    widths = np.array([space.width for space in spec.actions])[n]
    options = np.array([space.size for space in spec.actions])[n]
    obs, number, flag = (schema.field(name).type.value_type for name in ("obs", "action", "mask"))
    every = np.ones(len(s), bool)
    action = data.action[s, n].reshape(len(s), -1)
    columns = {
        "trajectory": _strings(data.id, k), "env": _strings(data.env, k), "episode": data.episode[k],
        "policy_version": data.version[k], "step": data.step[s], "agent": _strings(np.array(spec.agents, object), n),
        "timestamp": data.time[s], "reward": data.reward[s, n], "terminated": data.terminated[s, n],
        "truncated": data.truncated[s, n],
        "obs": _lists(data.obs[s, n], sizes, every, obs), "final_obs": _lists(data.next_obs[s, n], sizes, final, obs),
        "action": _lists(action, widths, every, number),
        "mask": _lists(_rows(data.avail, s, n), options, every, flag),
        "final_mask": _lists(_rows(data.next_avail, s, n), options, final, flag),
        "state": _lists(_rows(data.state, s), None, opening, number),
        "final_state": _lists(_rows(data.next_state, s), None, opening & last[s] & ~data.blind[s], number),
        "logp": pa.array(data.logp[s, n], mask=np.isnan(data.logp[s, n])),
        "aux": _map({name: values[s, n] for name, values in data.aux.items()}, len(s)),
    }  # fmt: skip
    arrays = [
        pa.nulls(len(s), field.type) if columns[field.name] is None else pa.array(columns[field.name], field.type)
        for field in schema
    ]
    for field, array in zip(schema, arrays, strict=True):
        _finite(field.name, array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _finite(name: str, array: pa.Array) -> None:
    """Refuse a column with numbers that are not finite."""
    while pa.types.is_nested(array.type):
        array = array.items if pa.types.is_map(array.type) else array.flatten()
    if pa.types.is_floating(array.type) and not np.isfinite(array.drop_null().to_numpy()).all():
        raise BadData(f"{name!r} has numbers that are not finite as float32, and they cannot be recorded.")


def _strings(names: np.ndarray, which: np.ndarray) -> pa.Array:
    return pa.array(names, pa.string()).take(pa.array(which))


def _rows(values: np.ndarray | None, *where: np.ndarray) -> np.ndarray | None:
    return None if values is None else values[where]


def _lists(values: np.ndarray | None, sizes: np.ndarray | None, present: np.ndarray, kind: Any) -> pa.Array | None:
    """Rows [R, W] as lists of the first `sizes` [R] numbers of each, null where it is not `present` [R]."""
    if values is None:
        return None
    sizes = np.full(len(values), values.shape[1]) if sizes is None else sizes
    lengths = np.where(present, sizes, 0)
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    flat = values.reshape(-1) if offsets[-1] == values.size else values[np.arange(values.shape[1]) < lengths[:, None]]
    absent = None if present.all() else pa.array(~present)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat, kind), mask=absent)


def _map(aux: Mapping[str, np.ndarray], rows: int) -> pa.Array | None:
    """Named values [R, k] as a map in each row; what is NaN is left out."""
    if not aux:
        return None
    kept = {name: ~np.isnan(values) for name, values in aux.items()}
    counts = np.sum([good.any(1) for good in kept.values()], axis=0)
    # Entries in the order of rows, then names.
    order = [(row, name) for name, good in kept.items() for row in np.flatnonzero(good.any(1))]
    order.sort(key=lambda entry: entry[0])
    items = pa.array([aux[name][row][kept[name][row]] for row, name in order], pa.list_(pa.float32()))
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pa.MapArray.from_arrays(pa.array(offsets), pa.array([name for _, name in order], pa.string()), items)
