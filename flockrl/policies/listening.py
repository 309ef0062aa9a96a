"""Who attends to whom in a team whose listeners weigh what they hear."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.comm.few import Who
from flockrl.comm.talk import Heard
from flockrl.core.groups import merge
from flockrl.core.types import Array, Observation, PyTree
from flockrl.policies.early import encoded


def attention(team: Any, params: PyTree, seen: Observation, memory: PyTree) -> Array:
    """[B, R, H, N, N] the share of its attention that the agent of the row gives that of the column, itself on the
    diagonal, in each round and by each head of a `TeamNetwork` that sees this [B, N, ...]. Rows of the dead are 0."""
    talk, (own, mail) = team.talk, team._apart(memory)
    here, first = talk.conditions(seen), None
    if team.recurrent:
        seen, first = jax.tree.map(lambda x: x[None], seen), jnp.zeros((1, len(seen.obs)), bool)
    speak, hear = team._mouths_and_ears(params, seen)
    found: list[Array] = []

    def ears(number: int, features: list[Array], heard: Heard) -> list[Array]:
        parts = hear(number, features, heard, "attends")
        found.append(merge(parts, team.groups, parts[0].ndim - 2))
        return hear(number, features, heard)

    if talk.early:
        now = talk.conditions(seen)
        said, there, _ = talk.arrive(mail.past[0][None, :, 0], now, 0)
        ears(0, encoded(team, params, seen), talk.heard(said, jnp.zeros_like(said), there, now))
    else:
        features = [f for f, _ in team._before_talk(params, seen, own, first)]
        talk(speak, ears, features, seen, mail, first)
    rounds = jnp.stack(found, -4)
    who = talk.who if here.who is None else here.who[:, None, None]
    return _square(rounds[0] if team.recurrent else rounds, who) * here.alive[:, None, None, :, None]


def _square(weights: Array, who: Who) -> Array:
    """[..., N, N] of weights [..., N, N + 1], or [..., N, D + 1] where links are few; the last is the agent's own."""
    others, own = weights[..., :-1], weights[..., -1]
    n = own.shape[-1]
    if who is not None:
        others = (others[..., None] * (jnp.asarray(who)[..., None] == np.arange(n))).sum(-2)
    return others + own[..., None] * np.eye(n, dtype=np.float32)
