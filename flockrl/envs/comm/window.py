"""What an agent on a grid sees: a square of cells around it."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array

OUTSIDE = -1


def offsets(vision: int) -> np.ndarray:
    """[K, 2] rows and columns of the (2 vision + 1)^2 cells of a window, relative to its middle."""
    reach = np.arange(-vision, vision + 1)
    return np.stack(np.meshgrid(reach, reach, indexing="ij"), -1).reshape(-1, 2)


def window_size(cells: int, vision: int, counts: int, compact: bool) -> int:
    """How many numbers `look` gives each agent."""
    k = (2 * vision + 1) ** 2
    return cells + k * (1 + counts) if compact else k * (cells + 1 + counts)


def look(cells: int, window: Array, counts: Sequence[Array], compact: bool) -> Array:
    """[N, F]: for each cell of the window the one-hot of its number, whether it is outside, and the counts.

    cells: how many numbers there are; window: [N, K] numbers of the cells, or OUTSIDE; counts: what stands there, each
    [N, K]. compact: the one-hot of the middle cell alone, which tells the numbers of the others.
    """
    n, k = window.shape
    rest = jnp.stack([(window == OUTSIDE).astype(jnp.float32), *(x.astype(jnp.float32) for x in counts)], -1)
    if compact:
        middle = window[:, k // 2, None] == np.arange(cells)
        return jnp.concatenate([middle.astype(jnp.float32), rest.reshape(n, -1)], -1)
    numbers = (window[..., None] == np.arange(cells)).astype(jnp.float32)
    return jnp.concatenate([numbers, rest], -1).reshape(n, -1)
