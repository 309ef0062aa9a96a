"""Random numbers for `act`: drawn with a key, or read from a tape of given numbers.

With a key these functions give exactly the numbers of `jax.random`. With a `Tape`, `act` becomes a plain function of
numbers, which can be exported to runtimes without JAX keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.types import Array


class Tape:
    """Uniform numbers in [0, 1) for B environments, read in the order of the draws.

    asked: (agents, numbers per agent and environment) of each draw so far. given: the numbers to return, each
    [B, n, count]; without them all numbers are 0, which is enough to find out what is asked for.
    """

    def __init__(self, batch: int, given: Sequence[Array] | None = None):
        self.batch, self.given = batch, given
        self.asked: list[tuple[tuple[int, ...], int]] = []
        self.places: Sequence[int] | None = None

    def seated(self, places: Sequence[int]) -> Tape:
        """The same tape for some of the agents, numbered 0, 1, ..., which are at `places` in the team."""
        tape = Tape(self.batch, self.given)
        tape.asked, tape.places = self.asked, tuple(places)
        return tape

    def read(self, agents: Sequence[int], count: int) -> Array:
        """[B, n, count] numbers for these n agents."""
        place = len(self.asked)
        self.asked.append((tuple(agents if self.places is None else (self.places[i] for i in agents)), count))
        return jnp.zeros((self.batch, len(agents), count)) if self.given is None else self.given[place]


Source = Array | Tape


def split(source: Source, count: int = 2) -> Sequence[Any]:
    return [source] * count if isinstance(source, Tape) else list(jax.random.split(source, count))


def fold_in(source: Source, number: int) -> Source:
    return source if isinstance(source, Tape) else jax.random.fold_in(source, number)


def uniform(source: Source, shape: tuple[int, ...], agents: Sequence[int], copies: int = 0) -> Array:
    """Numbers in [0, 1) for n `agents`. shape: [B, n, ...] or [B n, ...]; `copies` adds a leading axis of that size."""
    if not isinstance(source, Tape):
        return jax.random.uniform(source, (copies, *shape) if copies else shape)
    count = int(np.prod(shape)) // (source.batch * len(agents))
    if not copies:
        return source.read(agents, count).reshape(shape)
    numbers = source.read(agents, copies * count)
    return jnp.stack([part.reshape(shape) for part in jnp.split(numbers, copies, axis=-1)])


def normal(source: Source, shape: tuple[int, ...], agents: Sequence[int]) -> Array:
    """Standard normal numbers; from a tape, two uniform ones for each (Box and Muller 1958)."""
    if not isinstance(source, Tape):
        return jax.random.normal(source, shape)
    radius, turn = uniform(source, shape, agents, copies=2)
    return jnp.sqrt(-2 * jnp.log(1 - radius)) * jnp.cos(2 * np.pi * turn)


def gumbel(source: Source, shape: tuple[int, ...], agents: Sequence[int]) -> Array:
    """Standard Gumbel numbers."""
    if not isinstance(source, Tape):
        return jax.random.gumbel(source, shape)
    number = jnp.maximum(uniform(source, shape, agents), jnp.finfo(jnp.float32).tiny)
    return -jnp.log(-jnp.log(number))
