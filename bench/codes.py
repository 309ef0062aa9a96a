"""How far a gradient ascends in the switch riddle, exactly, from random codes: why messages need something to tell.

    python bench/codes.py                                     # every objective, figures as JSON lines
    python bench/codes.py --starts 60 --scale 3 --only count
    python bench/codes.py --day-by-day --only count all --scale 0.1 1 --steps 3000

A policy is a table: of the day, whether the visitor has been in before, and the bit that it finds, to the chances of
telling and of leaving a 1. Its expected return is computed exactly, day by day, over how many have been in. Three
objectives are ascended from random tables: the return alone; and the return with, beside it, how well a visitor can
predict from what it knows, while nobody tells, whether all have been in (`all`) or how many (`count`), as
`--predict-state` lets networks do. Day by day, what is predicted counts on two days at first and on one more after the
other, and the return counts once all do. The figures are returns of the tables that are most likely at the end.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

N, DAYS = 4, 10
COUNTS = np.arange(N + 1)
GROWING = 0.8
"""Part of the steps in which, day by day, one day after the other comes to count."""
Table = dict[str, jax.Array]
"""tell, write: [DAYS, 2, 2] logits for each day, whether the visitor has been in, and the bit."""


def outcome(table: Table, objective: str, counts: Any = 1.0) -> tuple[jax.Array, jax.Array]:
    """The expected return, and the part of the variance of what is predicted that visitors know, added up over days.
    counts: [DAYS] how much each day's prediction weighs."""
    after = np.zeros((N + 1, N + 1))
    after[np.minimum(COUNTS + 1, N), COUNTS] = 1  # how many have been in once a new one is
    been = np.stack([1 - COUNTS / N, COUNTS / N])  # [2, N + 1]: whether the visitor of today has been in
    paid = np.where(COUNTS == N, 1.0, -1.0)

    def day(carry: Any, chance: Any) -> tuple[Any, None]:
        before, value, known = carry  # before: [N + 1, 2] of how many have been in and the bit
        tells, writes, weight = chance
        now = before * been[..., None]
        now = jnp.stack([after @ now[0], now[1]])  # [2, N + 1, 2], today's visitor counted
        value += (now * tells[:, None] * paid[:, None]).sum()
        there = now.sum(1) + 1e-6
        guess = now[:, N:] if objective == "all" else now
        known += weight * (guess**2 / there[:, None]).sum()
        stays = now * (1 - tells[:, None])
        ones = (stays * writes[:, None]).sum((0, 2))
        return (jnp.stack([stays.sum((0, 2)) - ones, ones], -1), value, known), None

    begin = jnp.zeros((N + 1, 2)).at[0, 0].set(1.0), jnp.float32(0), jnp.float32(0)
    chances = jax.nn.sigmoid(table["tell"]), jax.nn.sigmoid(table["write"]), jnp.broadcast_to(counts, DAYS)
    return jax.lax.scan(day, begin, chances)[0][1:]


def ascend(key: jax.Array, objective: str, scale: float, weight: float, steps: int, by_day: bool) -> jax.Array:
    """The return of the most likely table after so many steps of Adam from a random one."""
    keys, shape = jax.random.split(key), (DAYS, 2, 2)
    table = {
        "tell": scale * jax.random.normal(keys[0], shape) - 4.0,
        "write": scale * jax.random.normal(keys[1], shape),
    }
    adam = optax.adam(0.05)

    def loss(table: Table, progress: jax.Array) -> jax.Array:
        quiet = {**table, "tell": jnp.full(shape, -6.0)}
        counts = (np.arange(DAYS) < 2 + progress / GROWING * (DAYS - 1)) * 1.0 if by_day else 1.0
        told = weight * outcome(quiet, objective, counts)[1] if objective != "return" else 0.0
        return -outcome(table, objective)[0] * ((progress > GROWING) if by_day else 1.0) - told

    def step(carry: Any, done: jax.Array) -> tuple[Any, None]:
        table, moments = carry
        change, moments = adam.update(jax.grad(loss)(table, done / steps), moments)
        return (optax.apply_updates(table, change), moments), None

    (table, _), _ = jax.lax.scan(step, (table, adam.init(table)), jnp.arange(steps))
    return outcome(jax.tree.map(lambda x: 100 * jnp.sign(x), table), objective)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description="Ascends the exact return of the switch riddle from random codes.")
    parser.add_argument("--starts", type=int, default=60)
    parser.add_argument("--scale", type=float, nargs="+", default=[1.0, 3.0], help="deviation of the first logits")
    parser.add_argument("--weight", type=float, default=3.0, help="of what is predicted")
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--only", choices=["return", "all", "count"], nargs="+", default=["return", "all", "count"])
    parser.add_argument("--day-by-day", action="store_true", help="let days count one after the other")
    args = parser.parse_args()
    if args.day_by_day and "return" in args.only:
        parser.error("day by day, something is predicted: add --only count all.")
    keys = jax.random.split(jax.random.key(0), args.starts)
    for objective in args.only:
        for scale in args.scale:
            how = {"weight": args.weight, "steps": args.steps, "by_day": args.day_by_day}
            one = partial(ascend, objective=objective, scale=scale, **how)
            found = np.asarray(jax.jit(jax.vmap(one))(keys))
            shares = {f"above_{level}": round(float((found > level).mean()), 3) for level in (0.6, 0.7, 0.76)}
            row = {"objective": objective, "scale": scale, "mean": round(float(found.mean()), 3)}
            print(json.dumps({**row, "best": round(float(found.max()), 4), **shares}), flush=True)


if __name__ == "__main__":
    main()
