"""What a trained team earns in the switch riddle, exactly: played out over all orders of visits.

    python bench/riddle.py runs/riddle [runs/other ...]

All prisoners act greedily, so that only chance in who visits is left: a tree of n^days orders, in which what the team
knows after the same first visits is computed once.
"""

from __future__ import annotations

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import flockrl

MOST = 4**7
"""Orders that are played at once."""


def worth(run: Any) -> tuple[float, int]:
    """The expected return of a team, and the number of orders."""
    env, algorithm, params, key = run.env, run.algorithm, run.params(), jax.random.key(0)

    @jax.jit
    def day(state: Any, memory: Any) -> Any:
        """One day of M prisons, in each of which any of the n prisoners visits: M n of them afterwards."""
        state, memory = jax.tree.map(lambda x: jnp.repeat(x, env.n, axis=0), (state, memory))
        state = state._replace(room=jnp.arange(len(state.t)) % env.n)
        action, memory, _ = algorithm.act(params, jax.vmap(env._observe)(state), memory, key, False)
        state, _, reward, over, _ = jax.vmap(env.step, (None, 0, 0))(key, state, action)
        return state, memory, reward[:, 0], over

    def rest(state: Any, memory: Any, going: np.ndarray, left: int) -> float:
        """What is earned in the days that are left, added up over the orders of their visits."""
        if len(going) * env.n > MOST:
            half = len(going) // 2
            halves = (slice(half), slice(half, None))
            parts: Any = [jax.tree.map(lambda x, part=part: x[part], (state, memory, going)) for part in halves]
            return sum(rest(now, kept, open_ones, left) for now, kept, open_ones in parts)
        state, memory, reward, over = day(state, memory)
        going = np.repeat(going, env.n)
        paid = float((np.asarray(reward, np.float64) * going).sum()) * env.n ** (left - 1)
        return paid if left == 1 else paid + rest(state, memory, going & ~np.asarray(over), left - 1)

    start = jax.tree.map(lambda x: x[None], env.reset(key)[0])
    orders = env.n**env.days
    return rest(start, algorithm.memory(1), np.ones(1, bool), env.days) / orders, orders


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+")
    for path in parser.parse_args().runs:
        run: Any = flockrl.Run(path)
        mean, orders = worth(run)
        print(f"{path}: {mean:.6f} over {orders:,} orders of visits; the oracle has {run.env.best:.6f}", flush=True)


if __name__ == "__main__":
    main()
