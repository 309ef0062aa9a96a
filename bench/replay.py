"""flockrl's replay ring compared with flashbax's item buffer: the same transitions, written and drawn in one program.

Each round writes a rollout (16 environments x 25 steps of continuous simple_spread) and draws 16 batches of 256, as
training with the defaults does. One JSON line per buffer and capacity. Needs `pip install flashbax`.

    python bench/replay.py
"""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp

from flockrl.envs import make
from flockrl.replay.ring import add, draw, gather, make_replay

ENVS, STEPS, BATCH, DRAWS, ROUNDS = 16, 25, 256, 16, 20
SPEC = make("mpe/simple_spread:continuous_actions=true").spec


def rollout() -> Any:
    """Random experience [T, B] in the form that flockrl's ring takes."""
    rows = make_replay(SPEC, STEPS, ENVS, False).rows
    return jax.tree.map(lambda x: jax.random.normal(jax.random.key(0), x.shape).astype(x.dtype), rows)


def total(batch: Any) -> jax.Array:
    """A number that depends on the whole batch, so that the compiler removes nothing."""
    return sum((jnp.sum(x.astype(jnp.float32)) for x in jax.tree.leaves(batch)), jnp.float32(0))


def ours(capacity: int) -> tuple[Any, Any]:
    def once(state: Any, rows: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        state = add(state, rows)

        def one(i: jax.Array, acc: jax.Array) -> jax.Array:
            place = draw(state, jax.random.fold_in(key, i), BATCH, 1, 1.0)
            return acc + total(gather(state, *place, 1, 0.95))

        return state, jax.lax.fori_loop(0, DRAWS, one, jnp.float32(0))

    return make_replay(SPEC, capacity // ENVS // STEPS * STEPS, ENVS, False), once


def flashbax(capacity: int) -> tuple[Any, Any]:
    import flashbax as fbx  # type: ignore[import-not-found, import-untyped, unused-ignore]

    buffer = fbx.make_item_buffer(capacity, BATCH, BATCH, add_sequences=True, add_batches=True)
    item = jax.tree.map(lambda x: x[0, 0], rollout())

    def once(state: Any, rows: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        state = buffer.add(state, jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), rows))

        def one(i: jax.Array, acc: jax.Array) -> jax.Array:
            return acc + total(buffer.sample(state, jax.random.fold_in(key, i)).experience)

        return state, jax.lax.fori_loop(0, DRAWS, one, jnp.float32(0))

    return buffer.init(item), once


def measure(name: str, capacity: int) -> dict[str, Any]:
    state, once = {"flockrl": ours, "flashbax": flashbax}[name](capacity)

    def rounds(state: Any, rows: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        def one(i: jax.Array, carry: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
            state, number = once(carry[0], rows, jax.random.fold_in(key, i))
            return state, carry[1] + number

        return jax.lax.fori_loop(0, ROUNDS, one, (state, jnp.float32(0)))

    program: Any = jax.jit(rounds, donate_argnums=0)
    rows, times = rollout(), []
    state, _ = jax.block_until_ready(program(state, rows, jax.random.key(0)))
    for i in range(7):
        began = time.perf_counter()
        state, _ = jax.block_until_ready(program(state, rows, jax.random.key(i)))
        times.append((time.perf_counter() - began) / ROUNDS)
    return {"replay": name, "capacity": capacity, "ms_per_round": round(1e3 * statistics.median(times), 2)}


if __name__ == "__main__":
    for capacity in (10_000, 1_000_000):
        for name in ("flockrl", "flashbax"):
            print(json.dumps(measure(name, capacity)), flush=True)
