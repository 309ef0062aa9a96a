"""How much memory recorded trajectories need as arrays, counted before they become any."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flockrl.core.spec import EnvSpec


def decoded_size(batch: pa.RecordBatch, spec: EnvSpec) -> int:
    """Bytes of a batch with flockrl's columns as experience."""
    name, step = batch.column("trajectory"), batch.column("step")
    moves = pc.or_(pc.not_equal(name[1:], name[:-1]), pc.not_equal(step[1:], step[:-1]))
    return (1 + (pc.sum(moves).as_py() or 0)) * step_size(batch, spec)


def step_size(batch: pa.RecordBatch, spec: EnvSpec) -> int:
    """Bytes of each step: arrays have room for all agents, also for those that are not in the batch."""
    aux = batch.column("aux")
    seen = 2 * spec.obs_size * np.dtype(spec.observations[0].dtype).itemsize
    numbers = 3 * spec.action_size + 8
    if aux.null_count < len(aux):
        widest = pc.max(pc.list_value_length(aux.items)).as_py() or 0
        numbers += widest * len(pc.unique(aux.keys))
    return spec.num_agents * (seen + 4 * numbers) + 8 * spec.state_size
