"""Teams that hear before they remember: what was said in one step shapes memory and messages of the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from flockrl.comm.talk import Conditions, Mail
from flockrl.core.groups import begins
from flockrl.core.types import Array, Observation, PyTree


def encoded(team: Any, params: PyTree, seen: Observation) -> list[Array]:
    """Each group's features [..., n, F] before it hears and remembers."""
    groups = zip(team.nets, params, team.groups, strict=True)
    return [net.apply({"params": p}, team._own(group, seen), method="encode") for net, p, group in groups]


def early_talk(
    team: Any, params: PyTree, seen: Observation, memory: tuple[PyTree, Mail], first: Array, speak: Callable[..., Any],
    hear: Callable[..., Any],
) -> tuple[list[Array], PyTree, Array]:  # fmt: skip
    """Features [T, B, n, F] of each group, memory after each step, and counts of messages [T, B, N, 4], or what
    leaves, as `Talk` returns them.

    Messages pass from agent to agent and from step to step, so that the team goes through time together. What needs
    no memory is computed for all steps at once.
    """
    talk, groups = team.talk, list(zip(team.nets, params, team.groups, strict=True))
    now = talk.conditions(seen)

    def step(carry: tuple[PyTree, Array], row: tuple[list[Array], Conditions, Array]) -> Any:
        (own, past), (xs, now, opens) = carry, row
        past = jnp.where(opens[:, None, None, None], 0.0, past)
        said, there, counts = talk.arrive(past[:, 0], now, 0)
        xs = hear(0, xs, talk.heard(said, jnp.zeros_like(said), there, now))
        found: list[Any] = [
            net.apply(
                {"params": p}, x[None], h, begins(team.spec, group, opens[None], now.alive[None]), method="remember"
            )
            for (net, p, group), x, h in zip(groups, xs, own, strict=True)
        ]
        hs = [f[0] for f, _ in found]
        own = tuple(h[0] if team.memory_size else () for _, h in found)
        spoken = speak(0, hs)
        sends, _ = talk.sends(spoken, now, None)
        packet = talk.packet(spoken.message, sends, now, 0)
        past = jnp.concatenate([past[:, 1:], packet[:, None]], 1)
        told = talk.tally(sends, counts) if now.inbox is None else packet[..., None, :, :]
        return (own, past), (hs, own, past, told)

    own, mail = memory
    _, (hs, after, past, tally) = jax.lax.scan(
        step, (tuple(own), mail.past[0]), (encoded(team, params, seen), now, first)
    )
    return hs, (after, Mail((past,), talk.clock(now))), tally
