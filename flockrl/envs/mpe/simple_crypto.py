"""simple_crypto: Alice tells Bob a secret over a public channel, with a shared key; Eve listens in."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array
from flockrl.envs.mpe.core import Body, ParticleEnv, Scenario, World
from flockrl.envs.mpe.geometry import beside, pick

EVE, BOB, ALICE = 0, 1, 2
WORDS = np.eye(4)[:2]
"""[2, 4] the secret is one of these rows, and so is the key."""


class Secret(NamedTuple):
    """Which of `WORDS` Alice has to tell, and which is the key (scalars)."""

    goal: Array
    key: Array


class SimpleCrypto(Scenario):
    """Eve's reward is minus the squared error of her word, Alice's and Bob's is Eve's error minus Bob's.
    Silence, possible only with continuous actions, counts as no error. Agents do not move."""

    name = "simple_crypto"
    dim_c = 4
    sides = ("adversary", "agent", "agent")
    agents = (
        Body("eve_0", collide=False, silent=False, color=(0.75, 0.25, 0.25)),
        Body("bob_0", collide=False, silent=False),
        Body("alice_0", collide=False, silent=False),
    )
    landmarks = (
        Body("landmark_0", collide=False, color=(1.0, 0.0, 0.0)),
        Body("landmark_1", collide=False, color=(0.0, 1.0, 0.0)),
    )

    def draw(self, key: Array) -> Secret:
        goal, code = jax.random.randint(key, (2,), 0, len(WORDS))
        return Secret(goal, code)

    def observe(self, world: World) -> list[Array]:
        """Eve: [Alice's word]. Bob: [key, Alice's word]. Alice: [secret, key]."""
        goal, key = pick(WORDS, world.info.goal)[None], pick(WORDS, world.info.key)[None]
        heard = world.comm[ALICE:]
        return [heard, beside(key, heard), beside(goal, key)]

    def reward(self, world: World) -> Array:
        spoke = jnp.any(world.comm != 0, axis=-1)
        error = jnp.where(spoke, jnp.sum((world.comm - pick(WORDS, world.info.goal)) ** 2, axis=-1), 0.0)
        good = error[EVE] - error[BOB]
        return jnp.stack([-error[EVE], good, good])

    def paint(self, world: World) -> np.ndarray:
        """Bob has the secret's colour."""
        colors = super().paint(world)
        colors[BOB] = colors[len(self.agents) + int(world.info.goal)]
        return colors


def simple_crypto(max_cycles: int = 25, continuous_actions: bool = False) -> ParticleEnv:
    """Eve against Bob and Alice, four words."""
    return ParticleEnv(SimpleCrypto(), max_cycles, continuous_actions)
