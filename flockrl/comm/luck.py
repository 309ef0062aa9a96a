"""What chance does to messages: drawn from a seed that acting records, so that learning meets the same draws.

A seed is a number for each agent and step, from the key of acting. Everything that is random on the way follows from
it, so that a rollout, a replay and a checkpoint need only keep the seeds.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.comm.channel import Channel
from flockrl.core.random import Tape, normal, uniform
from flockrl.core.types import Array

OWN_STREAM = 0x6D657373
"""Folded into the key of acting, so that a team without messages draws the same numbers for its actions."""
HARD = 1 << 31
LOSS, BROADCAST, NOISE, MORE_NOISE = range(4)


class Luck(NamedTuple):
    """What chance does in each of R rounds. lost: [..., R, N, N] bool, what the agent of the row does not hear from
    that of the column; noise: [..., R, N, C] standard normal numbers; None where there is no such thing.
    turn: [...] int32, the number of the step in its episode, where agents speak in turn. hard: [...] bool, whether
    messages are bits already, where learning blurs them."""

    lost: Array | None = None
    noise: Array | None = None
    turn: Array | None = None
    hard: Array | None = None


class Cut(NamedTuple):
    """Seeds, or None where none are needed or drawn yet, and links [..., N, N] bool that are cut on purpose: what the
    agent of the row does not hear from that of the column, to find out what messages do."""

    seeds: Array | None
    links: Array


class Inbox(NamedTuple):
    """What one agent hears from outside, in the place of its team's own messages: so an agent runs apart.

    said: [..., R, N, C + 1] what came from each agent in each round, whose last number is 1 where something did, else
    0. peers: [..., N] bool, whom it could hear. luck: what is left to chance, see `Talk.with_luck`.
    """

    said: Array
    peers: Array
    luck: Luck = Luck()


def draw_seeds(source: Array, batch: int, agents: int, turn: Array | None, hard: bool = False) -> Array:
    """[B, N, 2] uint32: a seed for each agent, and the number of the step, with `hard` in its highest bit."""
    seeds = jax.random.bits(jax.random.fold_in(source, OWN_STREAM), (batch, agents), jnp.uint32)
    steps = jnp.zeros(batch, jnp.uint32) if turn is None else turn.astype(jnp.uint32)
    steps = steps | jnp.uint32(HARD if hard else 0)
    return jnp.stack([seeds, jnp.broadcast_to(steps[:, None], seeds.shape)], -1)


def from_seeds(channel: Channel, seeds: Array, rounds: int, size: int, blurred: bool = False) -> Luck:
    """Luck from seeds [..., N, 2]. size: numbers in a message. blurred: whether learning needs noise on them anyway."""
    agents = seeds.shape[-2]

    def numbers(kind: int, count: int) -> Array:
        """[..., R, N, count] in [0, 1); each agent's numbers follow from its own seed."""
        places = np.arange(rounds * count, dtype=np.uint32).reshape(rounds, 1, count) * np.uint32(4) + np.uint32(kind)
        return scattered(seeds[..., None, :, :1], places)

    lost = noise = None
    if channel.loss:
        lost = numbers(LOSS, agents) < channel.loss
    if channel.broadcast_loss:
        lost = _or(lost, (numbers(BROADCAST, 1) < channel.broadcast_loss)[..., None, :, 0])
    if channel.noise or blurred:
        noise = bell(numbers(NOISE, size), numbers(MORE_NOISE, size))
    step, hard = seeds[..., 0, 1] & jnp.uint32(HARD - 1), seeds[..., 0, 1] >= jnp.uint32(HARD)
    return Luck(lost, noise, step.astype(jnp.int32) if channel.turns else None, hard if blurred else None)


def scattered(seed: Array, place: np.ndarray) -> Array:
    """Numbers in [0, 1) of 24 bits, as if drawn, at these places of the streams that seeds name (both uint32).

    Two rounds of MurmurHash3's finaliser. A block cipher such as Threefry in its place doubled the time that programs
    take to compile; seeds themselves are drawn with one.
    """
    x = seed ^ _mixed(jnp.asarray(place) * jnp.uint32(0x9E3779B9) + jnp.uint32(0x7F4A7C15))
    return (_mixed(_mixed(x) + seed) >> 8).astype(jnp.float32) * np.float32(2.0**-24)


def _mixed(x: Array) -> Array:
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def bell(radius: Array, turn: Array) -> Array:
    """Standard normal numbers from two uniform ones each (Box and Muller 1958)."""
    return jnp.sqrt(-2 * jnp.log(1 - radius)) * jnp.cos(2 * np.pi * turn)


def from_tape(
    channel: Channel, tape: Tape, agents: int, rounds: int, size: int, turn: Array | None, hard: bool | None
) -> Luck:
    """Luck from given numbers instead of seeds, for exported teams. hard: None where messages are not blurred."""
    everyone, batch = range(agents), tape.batch

    def numbers(count: int, draw: object = uniform) -> Array:
        found = draw(tape, (batch, agents, rounds * count), everyone)  # type: ignore[operator]
        return jnp.swapaxes(found.reshape(batch, agents, rounds, count), 1, 2)

    lost = noise = None
    if channel.loss:
        lost = numbers(agents) < channel.loss
    if channel.broadcast_loss:
        lost = _or(lost, (numbers(1) < channel.broadcast_loss)[..., None, :, 0])
    if hard is False or (channel.noise and not hard):
        noise = numbers(size, normal)
    elif hard:
        noise = jnp.zeros((batch, rounds, agents, size))
    return Luck(lost, noise, turn if channel.turns else None, None if hard is None else jnp.full(batch, hard))


def _or(lost: Array | None, more: Array) -> Array:
    """Whether either happened; `more` is [..., R, 1, N], the same for all who listen."""
    if lost is not None:
        return lost | more
    return jnp.broadcast_to(more, (*more.shape[:-2], more.shape[-1], more.shape[-1]))


def steps_since(first: Array) -> Array:
    """[T, B] steps since the episode began, as far as a rollout shows: 0 at its first step."""
    index = jnp.arange(first.shape[0])[:, None]
    began = jax.lax.cummax(jnp.where(first, index, 0), axis=0)
    return index - began
