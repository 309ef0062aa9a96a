"""RelayRL's files made up for tests."""

import json

import numpy as np
import pyarrow as pa

KINDS = [f"{x}_{y}" for x in ("obs", "act", "mask") for y in ("dtype", "shape", "f32", "f64", "binary")]
NAMES = ["backend", "actor_id", "timestamp", *KINDS, "reward", "done", "aux_data"]
SCHEMA = pa.schema(
    [
        ("backend", pa.string()), ("reward", pa.float32()), ("done", pa.bool_()), ("timestamp", pa.uint64()),
        ("agent_id", pa.string()),
    ]
    + [
        (f"{x}_{name}", kind)
        for x in ("obs", "act", "mask")
        for name, kind in (
            ("dtype", pa.string()), ("shape", pa.list_(pa.uint64())), ("f32", pa.list_(pa.float32())),
            ("f64", pa.list_(pa.float64())), ("binary", pa.binary()),
        )
    ]
)  # fmt: skip


def relayrl_row(t, done, **changes):
    """A row of an Arrow file: two observed numbers, one of three actions."""
    return {
        "backend": "tch", "reward": 0.5 * t, "done": done, "timestamp": 100 + t, "agent_id": "a",
        "obs_dtype": "F32", "obs_shape": [2], "obs_f32": [t, -t], "act_dtype": "I64", "act_shape": [1],
        "act_binary": np.int64(t % 3).tobytes(), "mask_dtype": "F32", "mask_shape": [3], "mask_f32": [1.0, 1.0, 1.0],
        **changes,
    }  # fmt: skip


def relayrl_arrow(path, lengths=((3, True), (2, False)), **changes):
    """A file with trajectories of these lengths that end or not; changes: other cells of the last row of each."""
    with pa.ipc.new_file(str(path), SCHEMA) as writer:
        for length, done in lengths:
            rows = [relayrl_row(t, done and t == length - 1) for t in range(length)]
            rows[-1] |= changes
            writer.write_batch(pa.RecordBatch.from_pylist(rows, SCHEMA))
    return path


def relayrl_csv(path, steps=4, **changes):
    """A file with one trajectory: two observed numbers, two real actions. changes: other cells of the first row."""
    lines = [",".join(NAMES)]
    for t in range(steps):
        cells = dict.fromkeys(NAMES, "") | {
            "backend": "ndarray", "actor_id": "a", "timestamp": str(t), "obs_dtype": "F32", "obs_shape": "[2]",
            "obs_f32": json.dumps([t, 1.5]), "act_dtype": "F32", "act_shape": "[2]", "act_f32": "[0.25, -0.5]",
            "reward": str(t), "done": str(t == steps - 1).lower(),
            "aux_data": json.dumps({"logp_a": [-0.5], "val": 1.0}),
        }  # fmt: skip
        cells |= changes if t == 0 else {}
        lines.append(",".join(f'"{cells[name].replace(chr(34), chr(34) * 2)}"' for name in NAMES))
    path.write_text("\n".join(lines) + "\n")
    return path
