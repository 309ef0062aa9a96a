"""A game in which one agent's death pays for the whole team."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from flockrl import Box, Discrete, EnvSpec, Observation

STEPS = 4


class Game(NamedTuple):
    t: Any
    alive: Any
    gave: Any


class Sacrifice:
    """Two agents see the time and whether one gave its life, as either may in the first step (action 1). Then the last
    step pays 5 to both, and 3.5 otherwise.

    dies: whether who gives its life dies of it; without it the game is the same, and nobody dies. state: whether there
    is a global state; it is what both see while they live.
    """

    def __init__(self, dies: bool = True, reward_after_death: bool = True, state: bool = False):
        self.dies = dies
        self.spec = EnvSpec(
            "sacrifice", ("agent_0", "agent_1"), (Box((STEPS + 1,)),) * 2, (Discrete(2),) * 2, STEPS,
            reward_after_death=reward_after_death, state_size=(STEPS + 1) * state,
        )  # fmt: skip

    def _see(self, game: Game) -> Observation:
        clock = jnp.append(jax.nn.one_hot(game.t, STEPS), game.gave)
        obs = jnp.broadcast_to(clock, (2, STEPS + 1))
        state = clock if self.spec.state_size else None
        if not self.dies:
            return Observation(obs, state=state)
        return Observation(jnp.where(game.alive[:, None], obs, 0.0), alive=game.alive, state=state)

    def reset(self, key: Any) -> tuple[Game, Observation]:
        game = Game(jnp.int32(0), jnp.ones(2, bool), jnp.bool_(False))
        return game, self._see(game)

    def step(self, key: Any, game: Game, action: Any) -> tuple[Any, ...]:
        gives = (game.t == 0) & (action == 1) & (jnp.arange(2) == action.argmax())  # at most one of them
        gave, last = game.gave | gives.any(), game.t == STEPS - 1
        after = Game(game.t + 1, game.alive & ~gives, gave)
        reward = jnp.full(2, jnp.where(last, jnp.where(gave, 5.0, 3.5), 0.0))
        died = gives if self.dies else jnp.zeros(2, bool)
        return after, self._see(after), reward, last | died, jnp.zeros(2, bool)
