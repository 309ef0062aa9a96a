"""Who lives, and how long an agent's return goes on.

Where rewards after death count (`EnvSpec.reward_after_death`), an agent's return goes on as long as its side does: its
sacrifice is worth what the others earn by it. Otherwise it ends with the agent's own life.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from flockrl.core.spec import EnvSpec


def side_has(spec: EnvSpec, flags: Any, module: Any = jnp) -> Any:
    """[..., N] bool: whether `flags` [..., N] hold for any agent of the same side, by `jnp` or `np`."""
    if len(set(spec.sides)) == 1:
        return module.broadcast_to(flags.any(-1, keepdims=True), flags.shape)
    names, sides = np.array(spec.sides), list(dict.fromkeys(spec.sides))
    found = module.stack([flags[..., names == side].any(-1) for side in sides], -1)
    return found[..., np.array([sides.index(side) for side in spec.sides])]


def survivors(final_alive: Any, truncated: Any, done: Any) -> Any:
    """[..., N] bool: who lives after a step, those included whose episode was cut there. None where nobody dies.

    final_alive: [..., N] what the environment says then; truncated: [..., N] of those who acted; done: [...].
    """
    return None if final_alive is None else (final_alive & ~done[..., None]) | truncated


def return_ends(spec: EnvSpec, terminated: Any, truncated: Any, left: Any, module: Any = jnp) -> tuple[Any, Any]:
    """(terminated, truncated) [..., N] of each agent's return, from those of its life; left: its `survivors`."""
    if left is None or not spec.reward_after_death:
        return terminated, truncated
    cut = side_has(spec, truncated, module)
    ends = ~side_has(spec, left & ~truncated, module)
    return ends & ~cut, ends & cut


def learning_weight(spec: EnvSpec, alive: Any) -> Any:
    """[..., N] float32: 1 where an agent's return is still running, so that its value is worth learning; None for
    everywhere. alive: [..., N] or None. Policies learn only where their agent is alive."""
    if alive is None:
        return None
    return (side_has(spec, alive.astype(bool)) if spec.reward_after_death else alive).astype(jnp.float32)
