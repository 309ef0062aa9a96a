"""simple_speaker_listener: one agent knows the goal and can only speak, the other can only walk."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array
from flockrl.envs.mpe.core import Body, ParticleEnv, Scenario, World
from flockrl.envs.mpe.geometry import beside, pick, relative

COLORS = np.array([[0.65, 0.15, 0.15], [0.15, 0.65, 0.15], [0.15, 0.15, 0.65]])
"""[3, 3] the landmarks' colours: the speaker observes the colour of the goal."""


class SimpleSpeakerListener(Scenario):
    """Both agents' reward is minus the listener's squared distance to the goal. `World.info` is the goal's index."""

    name = "simple_speaker_listener"
    dim_c = 3
    agents = (
        Body("speaker_0", size=0.075, collide=False, silent=False),
        Body("listener_0", size=0.075, collide=False, movable=True),
    )
    landmarks = (
        Body("landmark_0", size=0.04, collide=False, color=(0.65, 0.15, 0.15)),
        Body("landmark_1", size=0.04, collide=False, color=(0.15, 0.65, 0.15)),
        Body("landmark_2", size=0.04, collide=False, color=(0.15, 0.15, 0.65)),
    )

    def draw(self, key: Array) -> Array:
        return jax.random.randint(key, (), 0, len(COLORS))

    def observe(self, world: World) -> list[Array]:
        """Speaker: [the goal's colour]. Listener: [velocity, landmarks, what the speaker said]."""
        marks = relative(world.pos[2:], world.pos[1:2])
        return [pick(COLORS, world.info)[None], beside(world.vel[1:], marks, world.comm[:1])]

    def reward(self, world: World) -> Array:
        miss = jnp.sum((world.pos[1] - pick(world.pos[2:], world.info)) ** 2)
        return jnp.stack([-miss, -miss])

    def paint(self, world: World) -> np.ndarray:
        """The listener has a light shade of the goal's colour."""
        colors = super().paint(world)
        colors[1, :3] = np.minimum(COLORS[int(world.info)] + 0.45, 1.0)
        return colors


def simple_speaker_listener(max_cycles: int = 25, continuous_actions: bool = False) -> ParticleEnv:
    """A speaker, a listener, three landmarks, three words."""
    return ParticleEnv(SimpleSpeakerListener(), max_cycles, continuous_actions)
