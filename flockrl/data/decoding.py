"""Recorded trajectories from rows of an Arrow table. Nothing is trusted: what does not fit raises `BadData`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flockrl.core.spec import LONGEST_NAME, EnvSpec
from flockrl.data.choices import is_real, option_table
from flockrl.data.columns import BadData, make_columns
from flockrl.data.experience import Experience, blank

MOST_NAMES, MOST_VALUES = 16, 256
"""Limits of what `aux` may hold, so that a small file does not become large in memory."""


def decode(batch: pa.RecordBatch, spec: EnvSpec) -> Experience:
    """Rows as experience, after checking all that `Experience` promises."""
    check_columns(batch, make_columns(spec))
    column = dict(zip(batch.schema.names, batch.columns, strict=True))
    rows = len(batch)
    if not rows:
        raise BadData("There are no rows.")
    k, heads = _heads(column)
    agent = pc.index_in(column["agent"], pa.array(spec.agents)).fill_null(-1).to_numpy(zero_copy_only=False)
    if (agent < 0).any():
        i = int(np.argmin(agent))
        stranger, known = column["agent"][i].as_py(), ", ".join(spec.agents)
        raise BadData(f"There is no agent {stranger[:40]!r} in {spec.name}: its agents are {known[:200]}.", i)
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
    _gaps(k, step, s, (fields["terminated"] | fields["truncated"])[s, agent], spec.respawn)
    _finite("reward", column["reward"].to_numpy())
    _lives(fields, s, agent)
    if column["logp"].null_count < rows:
        logp = column["logp"].to_numpy(zero_copy_only=False)
        _finite("logp", np.where(column["logp"].is_valid().to_numpy(zero_copy_only=False), logp, 0))
        fields["logp"][s, agent] = logp
    _fill_seen(fields, column, spec, s, agent, opening)
    _fill_action(fields, column, spec, s, agent)
    aux = _read_aux(column["aux"], s, agent, fields["reward"].shape)
    return Experience(**fields, aux=aux)


def check_columns(batch: pa.RecordBatch, expected: pa.Schema) -> None:
    """Refuse a batch that has other columns than the expected ones, or empty entries where there may be none."""
    check_schema(batch.schema, expected)
    for field, array in zip(expected, batch.columns, strict=True):
        if not field.nullable and array.null_count:
            raise BadData(f"The column {field.name!r} has empty entries.", _place(pc.is_null(array)))


def check_schema(schema: pa.Schema, expected: pa.Schema) -> None:
    """Refuse columns that are not the expected ones."""
    if schema.names != expected.names:
        missing = [name for name in expected.names if name not in schema.names]
        more = [name for name in schema.names if name not in expected.names]
        raise BadData(f"The columns are not flockrl's: missing {missing[:5]}, unknown {[m[:40] for m in more[:5]]}.")
    for field, theirs in zip(expected, schema, strict=True):
        if theirs.type != field.type:
            raise BadData(f"The column {field.name!r} must be {field.type}, not {str(theirs.type)[:80]}.")


def _place(wrong: Any) -> int:
    """The first row where something is wrong. wrong: [R] bool, of Arrow or of NumPy."""
    return int(np.argmax(np.asarray(wrong)))


def _heads(column: dict[str, Any]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Which trajectory each row belongs to [R], and what is said once about each of them [K]."""
    names = column["trajectory"].dictionary_encode()
    k = names.indices.to_numpy()
    if (np.diff(k) < 0).any():
        raise BadData("The rows of a trajectory must follow each other.", _place(np.diff(k) < 0) + 1)
    first = np.flatnonzero(np.diff(k, prepend=-1))
    for name in ("trajectory", "env"):
        long = pc.greater(pc.utf8_length(column[name].take(pa.array(first))), LONGEST_NAME)
        if pc.any(long).as_py():
            raise BadData(f"The column {name!r} has more than {LONGEST_NAME} characters.", int(first[_place(long)]))
    heads = {"id": names.dictionary.to_numpy(zero_copy_only=False)}
    for name, source in (("env", "env"), ("episode", "episode"), ("version", "policy_version")):
        values = column[source]
        codes = values.dictionary_encode().indices.to_numpy() if name == "env" else values.to_numpy()
        changed = codes != codes[first][k]
        if changed.any():
            raise BadData(f"The column {source!r} changes within a trajectory.", _place(changed))
        heads[name] = values.take(pa.array(first)).to_numpy(zero_copy_only=False)
    if (heads["version"] < -1).any():
        raise BadData("The column 'policy_version' has numbers below -1.", int(first[_place(heads["version"] < -1)]))
    return k, heads


def _order(k: np.ndarray, step: np.ndarray, place: np.ndarray) -> None:
    """Rows are ordered. place: [R] the step's and agent's number."""
    if (step < 0).any():
        raise BadData("The column 'step' has negative numbers.", _place(step < 0))
    same, ahead = np.diff(k) == 0, np.diff(step)
    disorder = (same & (ahead < 0)) | (np.diff(place) <= 0)
    if disorder.any():
        reason = "Rows must be ordered by trajectory, step and agent, each agent once at each step."
        raise BadData(reason, _place(disorder) + 1)


def _gaps(k: np.ndarray, step: np.ndarray, s: np.ndarray, ended: np.ndarray, respawn: bool) -> None:
    """No step is missing within a trajectory, except where agents respawn and nobody lived. s, ended: [R] the number of
    each row's step, and whether its agent ended there."""
    gap = (np.diff(k) == 0) & (np.diff(step) > 1)
    if respawn:
        left = np.bincount(s, ~ended)
        gap &= left[s[:-1]] > 0
    if gap.any():
        i = _place(gap)
        raise BadData(
            f"The trajectory goes from step {step[i]} to step {step[i + 1]}: what is between is missing.", i + 1
        )


def _lives(fields: dict[str, Any], s: np.ndarray, agent: np.ndarray) -> None:
    """An agent that is not there in the next step of its trajectory must have ended. It may come back later."""
    lost = (_leaving(fields) & ~(fields["terminated"] | fields["truncated"]))[s, agent]
    if lost.any():
        reason = "The agent has no row in the next step, though it was neither terminated nor truncated."
        raise BadData(reason, _place(lost))


def _last(fields: dict[str, Any]) -> np.ndarray:
    """[S] bool: the last step of each trajectory."""
    last = np.zeros(len(fields["step"]), bool)
    last[np.cumsum(fields["length"]) - 1] = True
    return last


def _leaving(fields: dict[str, Any]) -> np.ndarray:
    """[S, N] bool: who is not there in the next step of the trajectory."""
    leaving = np.zeros_like(fields["alive"])
    leaving[:-1] = ~fields["alive"][1:] & ~_last(fields)[:-1, None]
    return leaving


def _finite(name: str, values: np.ndarray) -> None:
    """values: [R] or [R, W]."""
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        wrong = ~np.isfinite(values)
        raise BadData(
            f"The column {name!r} has numbers that are not finite.", _place(wrong.reshape(len(values), -1).any(1))
        )


def _matrix(column: dict[str, Any], name: str, sizes: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Lists as rows [R, width] padded with zeros, and where there are any [R]. sizes: [R], what each must have."""
    array = column[name]
    present = array.is_valid().to_numpy(zero_copy_only=False)
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    wrong = present & (lengths != sizes)
    if wrong.any():
        i = _place(wrong)
        raise BadData(f"The column {name!r} must have {sizes[i]} numbers in a row, not {lengths[i]}.", i)
    flat = array.flatten()
    if flat.null_count:
        raise BadData(f"The column {name!r} has empty entries.")
    values = flat.to_numpy(zero_copy_only=False)
    if len(values) == len(sizes) * width:
        whole = values.reshape(len(sizes), width)
    else:
        whole = np.zeros((len(sizes), width), values.dtype)
        whole[(np.arange(width) < sizes[:, None]) & present[:, None]] = values
    _finite(name, whole)
    return whole, present


def _fill_seen(
    fields: dict[str, Any], column: dict[str, Any], spec: EnvSpec, s: np.ndarray, agent: np.ndarray, opening: np.ndarray
) -> None:
    """Observations, masks and states, and what followed them: the next step's, or what was written as final."""
    last = _last(fields)
    sizes = np.array([space.size for space in spec.observations])[agent]
    obs, _ = _matrix(column, "obs", sizes, spec.obs_size)
    final, finals = _matrix(column, "final_obs", sizes, spec.obs_size)
    fields["obs"][s, agent] = obs
    fields["next_obs"] = _following(fields["obs"], last)
    fields["next_obs"][s[finals], agent[finals]] = final[finals]
    ended = fields["terminated"] | fields["truncated"]
    early = finals & ~(last[:, None] | ended)[s, agent]
    if early.any():
        reason = "The column 'final_obs' may be given only where an agent or the trajectory ends."
        raise BadData(reason, _place(early))
    cut = ~finals & (_leaving(fields) & ~fields["terminated"])[s, agent]
    if cut.any():
        reason = "The column 'final_obs' must be given where an agent is truncated before its trajectory ends."
        raise BadData(reason, _place(cut))
    unseen = np.zeros(fields["alive"].shape, bool)
    unseen[s, agent] = ~finals & (last[:, None] & ~fields["terminated"])[s, agent]
    fields["blind"] = unseen.any(1)
    _fill_masks(fields, column, spec, s, agent, last)
    _fill_state(fields, column, spec, s, opening, last)


def _fill_masks(
    fields: dict[str, Any], column: dict[str, Any], spec: EnvSpec, s: np.ndarray, agent: np.ndarray, last: np.ndarray
) -> None:
    """Masks, where there are any; a row without one allows everything."""
    if fields["avail"] is None:
        if column["final_mask"].null_count < len(s):
            raise BadData("The column 'final_mask' is given without 'mask'.")
        return
    sizes = np.array([space.size for space in spec.actions])[agent]
    own = np.arange(spec.action_size) < sizes[:, None]
    mask, given = _matrix(column, "mask", sizes, spec.action_size)
    final, finals = _matrix(column, "final_mask", sizes, spec.action_size)
    if spec.maskable:
        real = is_real(spec.actions)[agent]
        for masks, there in ((mask, given), (final, finals)):
            wrong = (masks != own).any(1) & real & there
            if wrong.any():
                reason = "The column 'mask' forbids a part of a real action, and only choices can be masked."
                raise BadData(reason, _place(wrong))
    fields["avail"][s, agent] = np.where(given[:, None], mask, own)
    fields["next_avail"] = _following(fields["avail"], last)
    fields["next_avail"][s[finals], agent[finals]] = final[finals]
    bare = (last[:, None] | _leaving(fields))[s, agent] & ~finals
    fields["next_avail"][s[bare], agent[bare]] = own[bare]


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
        reason = "The column 'state' must be given in the first row of every step, and only there."
        raise BadData(reason, _place(given != opening))
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
    """Actions [S, N] or [S, N, W]. Those that are choices must be legal options."""
    widths = np.array([space.width for space in spec.actions])[agent]
    action = _matrix(column, "action", widths, spec.action_width)[0]
    counts, starts = option_table(spec.actions)
    for entry in range(spec.action_width):
        choice = counts[agent, entry] > 0
        who, number = agent[choice], action[choice, entry]
        wrong = (number != np.floor(number)) | (number < 0) | (number >= counts[who, entry])
        if wrong.any():
            i = _place(wrong)
            reason = f"must hold whole numbers from 0 to {counts[who[i], entry] - 1}, not {number[i]}"
            raise BadData(f"The column 'action' {reason}.", int(np.flatnonzero(choice)[i]))
        if fields["avail"] is not None:
            place = starts[who, entry] + number.astype(int)
            wrong = ~fields["avail"][s[choice], who, place]
            if wrong.any():
                at = int(np.flatnonzero(choice)[_place(wrong)])
                raise BadData("The column 'action' has an action that 'mask' forbids.", at)
    fields["action"][s, agent] = action[:, 0] if spec.discrete else action


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
        if not np.isfinite(flat).all():
            i = np.searchsorted(np.cumsum(lengths), _place(~np.isfinite(flat)), "right")
            raise BadData("The column 'aux' has numbers that are not finite.", int(where[i]))
        width = int(lengths.max(initial=0))
        if width > MOST_VALUES or len(np.unique(where)) != len(where):
            raise BadData(f"The column 'aux' has a name twice in a row, or more than {MOST_VALUES} values under one.")
        whole = np.full((len(where), width), np.nan, np.float32)
        whole[np.arange(width) < lengths[:, None]] = flat
        aux[name] = np.full((*shape, width), np.nan, np.float32)
        aux[name][s[where], agent[where]] = whole
    return aux
