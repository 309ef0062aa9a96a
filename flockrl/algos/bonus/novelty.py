"""What novelty is looked for in, how it is measured, and how agents share the search."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import jax.numpy as jnp
import numpy as np

from flockrl.algos.bonus.settings import parse_entries
from flockrl.algos.parts import joint
from flockrl.core.errors import UsageError
from flockrl.core.types import Array, EnvSpec, Metrics, PyTree, Trajectory
from flockrl.nets.actions import ActionCode

HAIR = 1e-5
"""Part by which novelty must be above or below the mean, so that rounding does not tell equal ones apart."""


class Look:
    """What is looked at: each agent's own observation, K = N rows, or the state, K = 1.

    rows: K; size: numbers in each. reads: [K, F] which of them are an agent's own; the others are padding. acts: what
    was done, as codes, and where it was done stand in the place of what followed.
    """

    def __init__(self, spec: EnvSpec, on: str, entries: str = "", acts: bool = False):
        self.spec, self.on, self.code = spec, on, ActionCode(spec) if acts else None
        sizes = [space.size for space in spec.observations] if on == "own" else [spec.central_size]
        self.rows, width = len(sizes), max(sizes)
        ranges = parse_entries(entries) or [(0, width)]
        if max(last for _, last in ranges) > width:
            what = "an observation" if on == "own" else "the state"
            raise UsageError(f"bonus_entries: {what} of {spec.name} has {width} entries, numbered from 0.")
        self.entries = np.concatenate([np.arange(*ends) for ends in ranges])
        self.size = len(self.entries)
        self.reads = self.entries < np.array(sizes)[:, None]
        self.whole = self.size == width and not acts
        if acts:
            more = spec.action_size * (1 if on == "own" else spec.num_agents)
            self.size += more
            self.reads = np.concatenate([self.reads, np.ones((self.rows, more), bool)], 1)

    def now(self, rows: Trajectory) -> Array:
        """[..., K, F] what was there before a step."""
        return self._pick(rows.obs, rows.state)

    def then(self, rows: Trajectory) -> Array:
        """[..., K, F] what followed it; with actions, what was done where."""
        if self.code is None:
            return self._pick(rows.next_obs, rows.next_state)
        does = self.code.encode(rows.action)
        does = does if self.on == "own" else does.reshape(*does.shape[:-2], 1, -1)
        return jnp.concatenate([self.now(rows), does], -1)

    def _pick(self, obs: Array, state: Array | None) -> Array:
        obs = obs[..., : self.spec.obs_size]  # without what a wrapper added
        if self.on != "own":  # a side may be handed the state of the whole, which is not its own
            obs = joint(self.spec, obs, state if self.spec.state_size else None)[..., None, :]
        return obs if self.whole else obs[..., self.entries]


class Measure(ABC):
    """What agents earn, by K functions, one for each row of what it looks at. Its methods are pure."""

    look: Look

    @abstractmethod
    def init(self, key: Array) -> PyTree:
        """Everything that experience changes."""

    @abstractmethod
    def learn(self, state: PyTree, rollout: Trajectory, key: Array) -> tuple[PyTree, Metrics]:
        """The state after a rollout [T, B]."""

    @abstractmethod
    def own(self, state: PyTree, rows: Trajectory) -> Array:
        """[..., K] what each function pays for each step, of which it looks at its own row."""


class Novelty(Measure):
    """A measure of what is new, which can also be asked about what others see."""

    @abstractmethod
    def cross(self, state: PyTree, rows: Trajectory) -> Array:
        """[..., K, K] how new row i is to function j, at [j, i]."""


def share(kind: str, seen: Array) -> Array:
    """[..., N] what agents earn for novelty [..., N, N] of agent i's observation to agent j, at [j, i].

    Iqbal and Sha 2019 (arXiv 1905.12127), with f_j(o_i): minimum min_j f_j(o_i); covering f_i(o_i) where that is above
    the mean over j; burrowing where it is below; leader: the first agent burrows, the others cover. One agent alone is
    its own mean: it would never earn anything by covering or burrowing.
    """
    own = jnp.diagonal(seen, axis1=-2, axis2=-1)
    if kind == "minimum":
        return seen.min(-2)
    typical = seen.mean(-2)
    above, below = own > typical * (1 + HAIR), own < typical * (1 - HAIR)
    covering, burrowing = jnp.where(above, own, 0.0), jnp.where(below, own, 0.0)
    if kind == "leader":
        return jnp.where(np.arange(own.shape[-1]) == 0, burrowing, covering)
    return {"independent": own, "covering": covering, "burrowing": burrowing}[kind]


def shares(spec: EnvSpec, config: Any) -> str:
    """The kind of a config, or a refusal where agents cannot be compared."""
    kind = config.of_bonus("bonus_kind")
    if kind != "independent":
        if spec.num_agents == 1:
            raise UsageError(f"bonus_kind {kind} compares agents, and {spec.name} has one: leave it out.")
        if len({space.size for space in spec.observations}) > 1:
            raise UsageError(
                f"bonus_kind {kind} shows each agent's observation to the others' counts, and agents of {spec.name} "
                "have unlike observations: use --bonus-kind independent."
            )
    return kind
