"""The schema of recorded trajectories in Arrow: one row for each agent at each step. docs/data.md explains it.

Rows are ordered by trajectory, step and agent; an agent that is not there has no row. `encode` and `decode` are inverse
to each other to the bit. `decode` trusts nothing: whatever does not fit raises `BadData` with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flockrl.core.errors import UsageError
from flockrl.core.spec import Discrete, EnvSpec, spec_from_json, spec_to_json
from flockrl.data.experience import Experience, blank

FORMAT = 1
KEY = b"flockrl"
"""Where a schema's metadata says, as JSON, which format this is and what the environment looks like."""

MOST_NAMES, MOST_VALUES = 16, 256
"""Limits of what `aux` may hold, so that a small file does not become large in memory."""


class BadData(UsageError):
    """Recorded data that cannot be taken. The text says what is wrong with it."""


def make_schema(spec: EnvSpec, about: Mapping[str, Any] | None = None) -> pa.Schema:
    """The columns for an environment. `about`: more to keep in the metadata, such as the algorithm that acted."""
    pixel = pa.uint8() if spec.observations[0].dtype == "uint8" else pa.float32()
    obs, numbers, flags = pa.list_(pixel), pa.list_(pa.float32()), pa.list_(pa.bool_())
    here = [
        ("trajectory", pa.string()), ("env", pa.string()), ("episode", pa.int64()), ("policy_version", pa.int64()),
        ("step", pa.int64()), ("agent", pa.string()), ("timestamp", pa.int64()),
        ("obs", obs), ("action", numbers), ("reward", pa.float32()),
        ("terminated", pa.bool_()), ("truncated", pa.bool_()),
    ]  # fmt: skip
    perhaps = [
        ("mask", flags), ("state", numbers), ("final_obs", obs), ("final_mask", flags), ("final_state", numbers),
        ("logp", pa.float32()), ("aux", pa.map_(pa.string(), numbers)),
    ]  # fmt: skip
    fields = [pa.field(*column, nullable=False) for column in here] + [pa.field(*column) for column in perhaps]
    said = {"format": FORMAT, "spec": spec_to_json(spec), **(about or {})}
    return pa.schema(fields, metadata={KEY: json.dumps(said).encode()})


def read_about(schema: pa.Schema) -> dict[str, Any]:
    """What a schema's metadata says: at least `format` and `spec`."""
    try:
        said = json.loads((schema.metadata or {})[KEY])
        version = said["format"]
    except (KeyError, ValueError, TypeError) as error:
        raise BadData("This is not flockrl's schema: its metadata does not describe an environment.") from error
    if version != FORMAT:
        raise BadData(f"The data has format {version!r}, and this version of flockrl reads format {FORMAT}.")
    return said


def read_spec(schema: pa.Schema) -> EnvSpec:
    """The environment that a schema's metadata describes."""
    try:
        return spec_from_json(read_about(schema)["spec"])
    except (KeyError, ValueError, TypeError) as error:
        raise BadData(f"The data does not describe its environment: {error}.") from error


# Writing


def encode(data: Experience, spec: EnvSpec, schema: pa.Schema | None = None) -> pa.RecordBatch:
    """Experience as rows. `schema`: what `make_schema` made of `spec`."""
    schema = make_schema(spec) if schema is None else schema
    s, n = np.nonzero(data.alive)
    k = np.repeat(np.arange(data.trajectories), data.length)[s]
    opening = np.ones(len(s), bool)
    opening[1:] = np.diff(s) != 0
    last, ended = data.last, data.terminated | data.truncated
    final = (last[:, None] | ended)[s, n] & ~data.blind[s]
    sizes = np.array([space.size for space in spec.observations])[n]
    widths = np.array([space.size for space in spec.actions])[n]
    obs, number, flag = (schema.field(name).type.value_type for name in ("obs", "action", "mask"))
    every = np.ones(len(s), bool)
    action = data.action[s, n].reshape(len(s), -1)
    columns = {
        "trajectory": _strings(data.id, k), "env": _strings(data.env, k), "episode": data.episode[k],
        "policy_version": data.version[k], "step": data.step[s], "agent": _strings(np.array(spec.agents, object), n),
        "timestamp": data.time[s], "reward": data.reward[s, n], "terminated": data.terminated[s, n],
        "truncated": data.truncated[s, n],
        "obs": _lists(data.obs[s, n], sizes, every, obs), "final_obs": _lists(data.next_obs[s, n], sizes, final, obs),
        "action": _lists(action, np.ones_like(widths) if spec.discrete else widths, every, number),
        "mask": _lists(_rows(data.avail, s, n), widths, every, flag),
        "final_mask": _lists(_rows(data.next_avail, s, n), widths, final, flag),
        "state": _lists(_rows(data.state, s), None, opening, number),
        "final_state": _lists(_rows(data.next_state, s), None, opening & last[s] & ~data.blind[s], number),
        "logp": pa.array(data.logp[s, n], mask=np.isnan(data.logp[s, n])),
        "aux": _map({name: values[s, n] for name, values in data.aux.items()}, len(s)),
    }  # fmt: skip
    arrays = [
        pa.nulls(len(s), field.type) if columns[field.name] is None else pa.array(columns[field.name], field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


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


# Reading


def decode(batch: pa.RecordBatch, spec: EnvSpec) -> Experience:
    """Rows as experience, after checking all that `Experience` promises."""
    _columns(batch, make_schema(spec))
    column = dict(zip(batch.schema.names, batch.columns, strict=True))
    rows = len(batch)
    if not rows:
        raise BadData("There are no rows.")
    k, heads = _heads(column)
    agent = pc.index_in(column["agent"], pa.array(spec.agents)).fill_null(-1).to_numpy(zero_copy_only=False)
    if (agent < 0).any():
        stranger = column["agent"][int(np.argmin(agent))].as_py()
        raise BadData(f"There is no agent {stranger[:40]!r} in {spec.name}: its agents are {', '.join(spec.agents)}.")
    step = column["step"].to_numpy()
    opening = np.ones(rows, bool)
    opening[1:] = (np.diff(k) != 0) | (np.diff(step) != 0)
    s = np.cumsum(opening) - 1
    _order(k, step, s * spec.num_agents + agent)
    lengths = np.bincount(k[opening], minlength=len(heads["id"]))
    fields = blank(
        spec, int(s[-1]) + 1, len(lengths), column["mask"].null_count < rows, column["state"].null_count < rows
    )
    fields |= heads | {"length": lengths.astype(np.int64), "step": step[opening]}
    fields["time"] = column["timestamp"].to_numpy()[opening]
    fields["alive"][s, agent] = True
    for name in ("reward", "terminated", "truncated"):
        fields[name][s, agent] = column[name].to_numpy(zero_copy_only=False)
    _finite("reward", fields["reward"])
    if column["logp"].null_count < rows:
        logp = column["logp"].to_numpy(zero_copy_only=False)
        _finite("logp", logp[column["logp"].is_valid().to_numpy(zero_copy_only=False)])
        fields["logp"][s, agent] = logp
    _fill_seen(fields, column, spec, s, agent, opening)
    _fill_action(fields, column, spec, s, agent)
    aux = _read_aux(column["aux"], s, agent, fields["reward"].shape)
    return Experience(**fields, aux=aux)


def _columns(batch: pa.RecordBatch, expected: pa.Schema) -> None:
    if batch.schema.names != expected.names:
        missing = [name for name in expected.names if name not in batch.schema.names]
        more = [name for name in batch.schema.names if name not in expected.names]
        raise BadData(f"The columns are not flockrl's: missing {missing[:5]}, unknown {[m[:40] for m in more[:5]]}.")
    for field, array in zip(expected, batch.columns, strict=True):
        if array.type != field.type:
            raise BadData(f"The column {field.name!r} must be {field.type}, not {str(array.type)[:80]}.")
        if not field.nullable and array.null_count:
            raise BadData(f"The column {field.name!r} has empty entries.")


def _heads(column: dict[str, Any]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Which trajectory each row belongs to [R], and what is said once about each of them [K]."""
    names = column["trajectory"].dictionary_encode()
    k = names.indices.to_numpy()
    if (np.diff(k) < 0).any():
        raise BadData("The rows of a trajectory must follow each other.")
    first = np.flatnonzero(np.diff(k, prepend=-1))
    heads = {"id": names.dictionary.to_numpy(zero_copy_only=False)}
    for name, source in (("env", "env"), ("episode", "episode"), ("version", "policy_version")):
        values = column[source]
        codes = values.dictionary_encode().indices.to_numpy() if name == "env" else values.to_numpy()
        if (codes != codes[first][k]).any():
            raise BadData(f"The column {source!r} changes within a trajectory.")
        heads[name] = values.take(pa.array(first)).to_numpy(zero_copy_only=False)
    if (heads["version"] < -1).any():
        raise BadData("The column 'policy_version' has numbers below -1.")
    return k, heads


def _order(k: np.ndarray, step: np.ndarray, place: np.ndarray) -> None:
    if (step < 0).any():
        raise BadData("The column 'step' has negative numbers.")
    if ((np.diff(step) < 0) & (np.diff(k) == 0)).any() or (np.diff(place) <= 0).any():
        raise BadData("Rows must be ordered by trajectory, step and agent, each agent once at each step.")


def _finite(name: str, values: np.ndarray) -> None:
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise BadData(f"The column {name!r} has numbers that are not finite.")


def _matrix(column: dict[str, Any], name: str, sizes: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Lists as rows [R, width] padded with zeros, and where there are any [R]. sizes: [R], what each must have."""
    array = column[name]
    present = array.is_valid().to_numpy(zero_copy_only=False)
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    wrong = present & (lengths != sizes)
    if wrong.any():
        i = int(np.argmax(wrong))
        raise BadData(f"The column {name!r} must have {sizes[i]} numbers in a row, not {lengths[i]}.")
    flat = array.flatten()
    if flat.null_count:
        raise BadData(f"The column {name!r} has empty entries.")
    values = flat.to_numpy(zero_copy_only=False)
    _finite(name, values)
    if len(values) == len(sizes) * width:
        return values.reshape(-1, width), present
    whole = np.zeros((len(sizes), width), values.dtype)
    whole[(np.arange(width) < sizes[:, None]) & present[:, None]] = values
    return whole, present


def _fill_seen(
    fields: dict[str, Any], column: dict[str, Any], spec: EnvSpec, s: np.ndarray, agent: np.ndarray, opening: np.ndarray
) -> None:
    """Observations, masks and states, and what followed them: the next step's, or what was written as final."""
    last = np.zeros(len(fields["step"]), bool)
    last[np.cumsum(fields["length"]) - 1] = True
    sizes = np.array([space.size for space in spec.observations])[agent]
    widths = np.array([space.size for space in spec.actions])[agent]
    obs, _ = _matrix(column, "obs", sizes, spec.obs_size)
    final, finals = _matrix(column, "final_obs", sizes, spec.obs_size)
    fields["obs"][s, agent] = obs
    fields["next_obs"] = _following(fields["obs"], last)
    fields["next_obs"][s[finals], agent[finals]] = final[finals]
    ended = fields["terminated"] | fields["truncated"]
    if (finals & ~(last[:, None] | ended)[s, agent]).any():
        raise BadData("The column 'final_obs' may be given only where an agent or the trajectory ends.")
    unseen = np.zeros(fields["alive"].shape, bool)
    unseen[s, agent] = ~finals & (last[:, None] & ~fields["terminated"])[s, agent]
    fields["blind"] = unseen.any(1)
    if fields["avail"] is not None:
        mask, given = _matrix(column, "mask", widths, spec.action_size)
        own = np.arange(spec.action_size) < widths[:, None]
        fields["avail"][s, agent] = np.where(given[:, None], mask, own)
        fields["next_avail"] = _following(fields["avail"], last)
        final, finals = _matrix(column, "final_mask", widths, spec.action_size)
        fields["next_avail"][s[finals], agent[finals]] = final[finals]
        bare = last[s] & ~finals
        fields["next_avail"][s[bare], agent[bare]] = own[bare]
    elif column["final_mask"].null_count < len(s):
        raise BadData("The column 'final_mask' is given without 'mask'.")
    _fill_state(fields, column, spec, s, opening, last)


def _fill_state(
    fields: dict[str, Any], column: dict[str, Any], spec: EnvSpec, s: np.ndarray, opening: np.ndarray, last: np.ndarray
) -> None:
    if fields["state"] is None:
        if spec.state_size:
            raise BadData(f"{spec.name} has a global state of {spec.state_size} numbers, and 'state' is empty.")
        return
    if not spec.state_size:
        raise BadData(f"{spec.name} has no global state of its own, and 'state' is given.")
    sizes = np.full(len(s), spec.state_size)
    state, given = _matrix(column, "state", sizes, spec.state_size)
    if (given != opening).any():
        raise BadData("The column 'state' must be given in the first row of every step, and only there.")
    fields["state"] = np.ascontiguousarray(state[opening])
    fields["next_state"] = _following(fields["state"], last)
    final, finals = _matrix(column, "final_state", sizes, spec.state_size)
    fields["next_state"][s[finals]] = final[finals]
    known = np.zeros(len(last), bool)
    known[s[finals]] = True
    fields["blind"] |= last & ~known & ~(fields["terminated"] | ~fields["alive"]).all(1)


def _following(values: np.ndarray, last: np.ndarray) -> np.ndarray:
    """What the next step shows; zeros after the last one of a trajectory."""
    after = np.zeros_like(values)
    after[:-1] = values[1:]
    after[last] = 0
    return after


def _fill_action(
    fields: dict[str, Any], column: dict[str, Any], spec: EnvSpec, s: np.ndarray, agent: np.ndarray
) -> None:
    widths = np.array([space.size for space in spec.actions])[agent]
    if not spec.discrete:
        fields["action"][s, agent] = _matrix(column, "action", widths, spec.action_size)[0]
        return
    action = _matrix(column, "action", np.ones_like(widths), 1)[0][:, 0]
    wrong = (action != np.floor(action)) | (action < 0) | (action >= widths)
    if wrong.any():
        i = int(np.argmax(wrong))
        space = spec.actions[agent[i]]
        assert isinstance(space, Discrete)
        raise BadData(f"The column 'action' must hold whole numbers from 0 to {space.n - 1}, not {action[i]}.")
    fields["action"][s, agent] = action
    if fields["avail"] is not None and not fields["avail"][s, agent, action.astype(int)].all():
        raise BadData("The column 'action' has an action that 'mask' forbids.")


def _read_aux(column: Any, s: np.ndarray, agent: np.ndarray, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """More values by name, [S, N, k]."""
    if column.null_count == len(column):
        return {}
    counts = np.diff(column.offsets.to_numpy())
    counts[column.is_null().to_numpy(zero_copy_only=False)] = 0
    row = np.repeat(np.arange(len(column)), counts)
    start, stop = column.offsets[0].as_py(), column.offsets[-1].as_py()
    keys, items = column.keys[start:stop], column.items[start:stop]
    if len(keys) != len(row) or items.null_count or keys.null_count:
        raise BadData("The column 'aux' has empty entries.")
    names = keys.unique().to_pylist()
    if len(names) > MOST_NAMES:
        raise BadData(f"The column 'aux' has {len(names)} names, and at most {MOST_NAMES} are taken.")
    aux: dict[str, np.ndarray] = {}
    for name in names:
        mine = pc.equal(keys, name)
        values, where = items.filter(mine), row[mine.to_numpy(zero_copy_only=False)]
        lengths = pc.list_value_length(values).to_numpy()
        flat = values.flatten().to_numpy(zero_copy_only=False)
        _finite("aux", flat)
        width = int(lengths.max(initial=0))
        if width > MOST_VALUES or len(np.unique(where)) != len(where):
            raise BadData(f"The column 'aux' has a name twice in a row, or more than {MOST_VALUES} values under one.")
        whole = np.full((len(where), width), np.nan, np.float32)
        whole[np.arange(width) < lengths[:, None]] = flat
        aux[name] = np.full((*shape, width), np.nan, np.float32)
        aux[name][s[where], agent[where]] = whole
    return aux
