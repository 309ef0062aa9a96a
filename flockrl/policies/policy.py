"""A trained team outside training: observations in, actions out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.actions import clip_action
from flockrl.core.errors import UsageError
from flockrl.core.groups import Share
from flockrl.core.types import Actor, Algorithm, Array, EnvSpec, Observation, PyTree, choose
from flockrl.envs.adapters.spaces import plain_codec


class Policy:
    """Acts for one team or for a batch of teams.

    The team's memory, where it has one, is kept between calls: call `reset` when an episode begins.
    name, share, version: the algorithm's name, who shares parameters, and how many updates made it, for an export.
    """

    def __init__(
        self,
        algorithm: Algorithm | Actor,
        params: PyTree,
        spec: EnvSpec,
        seed: int = 0,
        codec: Any = None,
        *,
        name: str = "",
        share: Share = "groups",
        version: int = 0,
    ):
        self.algorithm, self.params, self.spec, self._codec = algorithm, params, spec, codec
        self.name, self.share, self.version = name, share, version
        self._stack = None if codec is None else codec.stack()
        self._act = jax.jit(self._pure_act, static_argnames="explore")
        self._key = jax.random.key(seed)
        self._memory: PyTree | None = None
        self._steps = 0

    def _pure_act(self, params: PyTree, seen: Observation, memory: PyTree, key: Array, explore: bool) -> Any:
        action, memory, _ = self.algorithm.act(params, seen, memory, key, explore)
        return clip_action(self.spec, action), memory

    def reset(self, where: np.ndarray | None = None) -> None:
        """Forget. `where`: [B] bool, the teams whose episode begins; all of them by default."""
        if self._stack is not None:
            self._stack.restart()
        if where is None or self._memory is None:
            self._memory = None
            return
        flags = jnp.asarray(where, bool)
        self._memory = choose(flags, self.algorithm.memory(len(flags)), self._memory)

    def act(
        self,
        obs: np.ndarray | Sequence[Any] | Mapping[str, Any],
        avail: np.ndarray | Mapping[str, Any] | None = None,
        explore: bool = False,
        alive: np.ndarray | None = None,
        neighbours: np.ndarray | None = None,
    ) -> Any:
        """Actions of the team: [N] int or [N, W] float, with a batch axis in front when `obs` has one.

        A dict of observations by agent, as PettingZoo gives it, returns one of these agents' actions, as
        PettingZoo takes it. Masks are read from the observations or from `avail`: infos, or masks by agent.

        obs: [N, O] or [B, N, O], or a sequence of N arrays [O_i] (or [B, O_i]) of unlike sizes.
        avail: [N, A] or [B, N, A] bool, the legal actions, where the environment has such; of several choices the
        options of all, side by side, and all True for real actions.
        explore: sample from the policy instead of taking its most likely action.
        alive: [N] or [B, N] bool, all by default (in a dict, those who are there), and neighbours: [N, N] or [B, N, N]
        bool, who perceives whom: for agents that talk, since the dead neither speak nor hear.
        """
        if isinstance(obs, Mapping):
            return self._act_by_name(obs, avail, explore, neighbours)
        array = self._pad(obs)
        single = array.ndim == 2
        expected = (self.spec.num_agents, self.spec.obs_size)
        if array.ndim not in (2, 3) or array.shape[-2:] != expected:
            raise UsageError(
                f"act expects observations of shape {list(expected)} (agents, size) or with a batch axis in front, "
                f"not {list(array.shape)}."
            )
        n, lead = self.spec.num_agents, array.shape[:-2]
        seen = Observation(
            jnp.asarray(array), None if avail is None else self._masks(avail, array.shape[:-1]),
            alive=self._told("alive", alive, lead, (n,)),
            neighbours=self._told("neighbours", neighbours, lead, (n, n)),
        )  # fmt: skip
        if single:
            seen = jax.tree.map(lambda x: x[None], seen)
        batch = seen.obs.shape[0]
        if self._memory is None or (jax.tree.leaves(self._memory) and len(jax.tree.leaves(self._memory)[0]) != batch):
            self._memory = self.algorithm.memory(batch)
        key = jax.random.fold_in(self._key, self._steps)
        self._steps += 1
        action, self._memory = self._act(self.params, seen, self._memory, key, explore=explore)
        return np.asarray(action[0] if single else action)

    def _told(self, name: str, given: Any, lead: tuple[int, ...], own: tuple[int, ...]) -> Array | None:
        """What agents are told of each other, [N] or [N, N], with the batch that observations have."""
        if given is None:
            return None
        value = jnp.asarray(given, bool)
        if value.shape not in (own, (*lead, *own)):
            raise UsageError(f"act expects {name} of shape {[*lead, *own]}, not {list(value.shape)}.")
        return jnp.broadcast_to(value, (*lead, *own))

    def _act_by_name(self, obs: Mapping[str, Any], avail: Any, explore: bool, neighbours: Any) -> dict[str, Any]:
        codec = self._codec or plain_codec(self.spec)
        named = {str(agent): value for agent, value in obs.items()}
        infos = {
            str(agent): value if isinstance(value, Mapping) else {"action_mask": value}
            for agent, value in (avail or {}).items()
        }
        masks = codec.avail(named, infos) if self.spec.maskable else None
        frame = codec.obs(named)
        seen = frame if self._stack is None else self._stack.add(frame)
        there = np.array([agent in named for agent in self.spec.agents])
        actions = codec.act(self.act(seen, masks, explore, there, neighbours), list(named))
        return {agent: actions[str(agent)] for agent in obs}

    def _masks(self, avail: Any, lead: tuple[int, ...]) -> Array:
        """Masks [N, A] or [B, N, A] for observations with the axes `lead`, [N] or [B, N]."""
        masks, size = jnp.asarray(avail, bool), self.spec.action_size
        if masks.shape not in ((self.spec.num_agents, size), (*lead, size)):
            raise UsageError(f"act expects masks of shape {[*lead, size]}, not {list(masks.shape)}.")
        return jnp.broadcast_to(masks, (*lead, size))

    def _pad(self, obs: np.ndarray | Sequence[Any]) -> np.ndarray:
        assert not isinstance(obs, Mapping)
        if isinstance(obs, np.ndarray | jax.Array):
            return np.asarray(obs, self.spec.observations[0].dtype)
        rows = [np.asarray(row, self.spec.observations[0].dtype) for row in obs]
        size = self.spec.obs_size
        return np.stack([np.pad(r, [(0, 0)] * (r.ndim - 1) + [(0, size - r.shape[-1])]) for r in rows], axis=-2)
