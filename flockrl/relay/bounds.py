"""Bounds of the numbers in a message: those of the spec where it has them, and limits of the server's."""

from __future__ import annotations

import functools

import numpy as np

from flockrl.core.spec import EnvSpec
from flockrl.data.experience import Experience
from flockrl.data.schema import BadData

SLACK = 1e-3
"""Part of a bound by which numbers may miss it: they were rounded."""


def check_numbers(data: Experience, spec: EnvSpec, largest: float, reward: float, logp: float) -> None:
    """Refuse numbers that could overflow in a learner.

    largest: of observations, states, actions and what follows them; reward: of rewards; logp: how far the
    log-probability of an action may lie from 0, for each number that the action has. Absolute values all.
    """
    most = {"reward": reward, "logp": logp * spec.action_width}
    for name in ("obs", "next_obs", "action", "state", "next_state", "reward", "logp"):
        values, bound = getattr(data, name), most.get(name, largest)
        if values is None or values.dtype.kind != "f" or not values.size:
            continue
        if max(np.nanmax(values, initial=0.0), -np.nanmin(values, initial=0.0)) > bound:
            raise BadData(f"The column for {name} has numbers beyond {bound:g}.")
    box = _bounds(spec)
    if box is not None:
        low, high = box
        for name in ("obs", "next_obs"):
            values = getattr(data, name)
            there = data.alive if name == "obs" else data.alive & ~data.blind[:, None]
            wrong = ((values < low) | (values > high)) & there[..., None]
            if name == "next_obs":  # an agent that was never seen again has zeros
                wrong &= (values != 0).any(-1, keepdims=True)
            if wrong.any():
                agent = spec.agents[int(np.argwhere(wrong)[0][1])]
                raise BadData(f"The observations of {agent} lie outside of the bounds that its space has.")


@functools.lru_cache(maxsize=4)
def _bounds(spec: EnvSpec) -> tuple[np.ndarray, np.ndarray] | None:
    """The bounds [N, O] of observations with some slack; None where the spec has none."""
    shape = (spec.num_agents, spec.obs_size)
    low, high = np.full(shape, -np.inf, np.float32), np.full(shape, np.inf, np.float32)
    for i, space in enumerate(spec.observations):
        if space.dtype == "uint8":
            return None
        for bound, own, sign in ((low, space.low, -1), (high, space.high, 1)):
            values = np.broadcast_to(np.asarray(own, np.float32), space.shape if np.ndim(own) == 0 else (space.size,))
            bound[i, : space.size] = values.reshape(-1) + sign * SLACK * np.maximum(1, np.abs(values.reshape(-1)))
    return (low, high) if np.isfinite(low).any() or np.isfinite(high).any() else None
