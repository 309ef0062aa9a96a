"""One bit that only the first agent sees, and only at first: everyone is paid 1 when all choose it in the last step."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from flockrl.core.types import Box, Discrete, EnvSpec, Observation


class Drawn(NamedTuple):
    bit: jax.Array
    time: jax.Array


class Signalling:
    """Episodes of so many steps. Agent 0 sees the bit as -1 or 1 in the first one, the others see 0."""

    def __init__(self, agents=3, steps=1):
        names = tuple(f"agent_{i}" for i in range(agents))
        self.spec = EnvSpec("signalling", names, (Box((1,)),) * agents, (Discrete(2),) * agents, max_steps=steps)

    def reset(self, key):
        state = Drawn(jax.random.bernoulli(key).astype(jnp.int32), jnp.int32(0))
        return state, self._seen(state)

    def _seen(self, state):
        shown = (jnp.arange(self.spec.num_agents) == 0) & (state.time == 0)
        return Observation(jnp.where(shown, 2.0 * state.bit - 1, 0.0)[:, None])

    def step(self, key, state, action):
        n, state = self.spec.num_agents, state._replace(time=state.time + 1)
        over = state.time == self.spec.max_steps
        reward = jnp.full(n, over & (action == state.bit).all(), jnp.float32)
        return state, self._seen(state), reward, jnp.broadcast_to(over, (n,)), jnp.zeros(n, bool)
