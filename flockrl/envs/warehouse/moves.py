"""Who of those that want to move can, when robots stand in each other's way."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array


def moving(cell: Array, target: Array) -> Array:
    """[N] bool: whether a robot leaves its cell. cell: [N] where robots are, all different; target: [N] where they want
    to be, their own cell for those that stay.

    Each robot points at one cell, so robots form queues. A queue that ends at a free cell moves on as a whole; one that
    ends at a robot that stays does not move. Where several robots want the same cell, the one with the longest queue
    behind it gets it, and among equally long ones that with the lowest number. Robots in a circle of three or more move
    round, two cannot change places, and whoever queues for a cell of a circle waits.
    """
    n = len(cell)
    blocks = target[:, None] == cell  # [N, N]: the robot of the row wants the cell that the robot of the column has
    free = ~blocks.any(1)
    # Each robot follows the pointers from robot to robot, n times: whoever meets itself is in a circle.
    each = np.arange(n)
    follows = jnp.append(jnp.where(free, n, (blocks * each).sum(1)), n)  # n stands for nobody

    def further(step: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        met, circle, queue = carry  # [N] each: who is step + 1 robots ahead, how long the circle is, the queue
        met = follows[met]
        circle = jnp.where((circle == 0) & (met == each), step + 1, circle)
        return met, circle, jnp.where(blocks, queue[:, None] + 1, 0).max(0)

    start = jnp.arange(n), jnp.zeros(n, jnp.int32), jnp.zeros(n, jnp.int32)
    _, circle, queue = jax.lax.fori_loop(0, n, further, start)
    rank = queue * n + (n - 1 - each)  # all different
    wins = ~((target[:, None] == target) & (rank > rank[:, None])).any(1)

    def onward(_: Array, goes: Array) -> Array:
        return wins & (free | (blocks & goes).any(1))

    goes = jax.lax.fori_loop(0, n, onward, jnp.zeros(n, bool))
    return goes | (circle > 2)
