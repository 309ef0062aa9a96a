"""One team's episode while it is played, as experience once it is over. NumPy alone."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.spec import EnvSpec
from flockrl.data.choices import is_real, own_action, without_option
from flockrl.data.experience import Experience, blank


class Form:
    """Between what an application passes (arrays, lists, dicts by agent, a plain vector) and arrays of the team."""

    def __init__(self, spec: EnvSpec) -> None:
        self.spec = spec
        self.place = {name: i for i, name in enumerate(spec.agents)}
        self.sizes = [space.size for space in spec.observations]
        self.options = [space.size for space in spec.actions]
        self._real = is_real(spec.actions)
        self._shape = (spec.num_agents, spec.obs_size)
        self._padding = np.arange(spec.obs_size) >= np.array(self.sizes)[:, None]
        self._even = not self._padding.any()
        self.everybody = np.ones(spec.num_agents, bool)
        self._dtype = np.dtype(spec.observations[0].dtype)

    def observe(self, obs: Any) -> tuple[np.ndarray, np.ndarray]:
        """[N, O] observations and [N] bool, who is there."""
        if isinstance(obs, np.ndarray) and obs.shape == self._shape and obs.dtype.kind in "fiu":
            array = obs.astype(self._dtype)
            if not self._even:
                array[self._padding] = 0
            return self._finite(array), self.everybody
        n, size = self._shape
        flat = self._even and isinstance(obs, np.ndarray) and obs.dtype != object and obs.size == n * size
        if flat and (obs.shape[0] == n or n == 1):  # pictures, or the vector of a single agent
            return self._finite(obs.reshape(n, size).astype(self._dtype)), self.everybody
        rows = self._rows(obs, "observations", self.sizes)
        array, there = np.zeros((n, size), self._dtype), np.zeros(n, bool)
        for i, row in rows.items():
            array[i, : self.sizes[i]] = row
            there[i] = True
        if not there.any():
            raise UsageError("There are no observations: when nobody is left, call flag_last_action.")
        return self._finite(array), there

    def mask(self, mask: Any) -> np.ndarray:
        """[N, A] bool; agents that are not named may do everything, and so may agents with real actions."""
        if not self.spec.maskable:
            raise UsageError("A mask says which actions are legal, and these actions are not discrete.")
        whole = self.spec.own_actions.copy()
        if isinstance(mask, np.ndarray) and mask.shape == whole.shape:
            whole &= mask.astype(bool) | self._real[:, None]
        else:
            for i, row in self._rows(mask, "masks", self.options).items():
                if not self._real[i]:
                    whole[i, : self.options[i]] = row.astype(bool)
        stuck = without_option(self.spec, whole)
        if stuck.any():
            raise UsageError(f"The mask leaves {self.spec.agents[int(np.argmax(stuck))]} no action at all.")
        return whole

    def reward(self, reward: Any) -> np.ndarray:
        """[N] from one number for all, one for each agent, or a dict."""
        if isinstance(reward, float) and abs(reward) < 3.4e38:  # finite as float32 too
            return np.full(self.spec.num_agents, reward, np.float32)
        if isinstance(reward, Mapping):
            whole = np.zeros(self.spec.num_agents, np.float32)
            for name, value in reward.items():
                whole[self._index(name)] = value
        else:
            whole = np.array(reward, np.float32)
            if whole.shape not in ((), (self.spec.num_agents,)):
                raise UsageError(f"A reward is one number, or one for each of {self.spec.num_agents} agents.")
            whole = np.broadcast_to(whole, (self.spec.num_agents,))
        if not np.isfinite(whole).all():
            raise UsageError("The reward has a number that is not finite.")
        return whole

    def state(self, state: Any) -> np.ndarray | None:
        """[G], where the environment has a global state."""
        if not self.spec.state_size:
            if state is not None:
                raise UsageError(f"{self.spec.name} has no global state of its own: leave out `state`.")
            return None
        array = np.zeros(0) if state is None else np.array(state, np.float32).reshape(-1)
        if len(array) != self.spec.state_size:
            raise UsageError(
                f"{self.spec.name} has a global state of {self.spec.state_size} numbers: give it as `state`."
            )
        return self._finite(array)

    def answer(self, action: np.ndarray, asked: Any) -> Any:
        """The team's actions [N] or [N, W] in the form in which the observations came."""
        if isinstance(asked, Mapping):
            return {name: self._own(action, self._index(name)) for name in asked}
        if isinstance(asked, np.ndarray) and asked.dtype != object:
            return self._own(action, 0) if self.spec.num_agents == 1 and asked.shape[:1] != (1,) else action
        if self._plain(asked):
            return self._own(action, 0)
        return [None if row is None else self._own(action, i) for i, row in enumerate(asked)]

    def _own(self, action: np.ndarray, i: int) -> Any:
        return own_action(self.spec.actions[i], action[i])

    def _plain(self, values: Any) -> bool:
        """A vector of the one agent that there is."""
        return self.spec.num_agents == 1 and len(values) > 0 and all(np.ndim(x) == 0 and x is not None for x in values)

    def _rows(self, values: Any, what: str, sizes: Sequence[int]) -> dict[int, np.ndarray]:
        """Vectors by agent's place, of those agents that have one."""
        if isinstance(values, Mapping):
            given = {self._index(name): row for name, row in values.items()}
        elif not isinstance(values, Sequence | np.ndarray):
            raise UsageError(f"The {what} must be an array, a list or a dict by agent, not {type(values).__name__}.")
        elif self._plain(values):
            given = {0: values}
        elif len(values) != self.spec.num_agents:
            raise UsageError(f"There are {self.spec.num_agents} agents, and the {what} are of {len(values)}.")
        else:
            given = {i: row for i, row in enumerate(values) if row is not None}
        try:
            rows = {i: np.asarray(row, np.float32).reshape(-1) for i, row in given.items()}
        except (TypeError, ValueError) as error:
            raise UsageError(f"The {what} of each agent must be a vector of numbers: {error}.") from error
        for i, row in rows.items():
            if len(row) != sizes[i]:
                raise UsageError(f"The {what} of {self.spec.agents[i]} must have {sizes[i]} numbers, not {len(row)}.")
        return rows

    def _index(self, name: Any) -> int:
        if name not in self.place:
            raise UsageError(f"There is no agent {name!r}: the agents are {', '.join(self.spec.agents)}.")
        return self.place[name]

    def _finite(self, array: np.ndarray) -> np.ndarray:
        if array.dtype.kind == "f" and not math.isfinite(array.sum(dtype=np.float64)):
            raise UsageError("The observation has a number that is not finite.")
        return array


class Episode:
    """Steps of the episode under way. Rewards come one step late: with the next observation, or at the end."""

    def __init__(self, spec: EnvSpec) -> None:
        self.spec = spec
        self._steps: list[tuple[Any, ...]] = []
        self._rewards: list[np.ndarray] = []
        self._first = 0

    def __len__(self) -> int:
        """Steps that are not finished yet."""
        return len(self._steps)

    def earn(self, reward: np.ndarray) -> None:
        """What the last action earned, [N]. Told again, because no action followed, the later word counts."""
        if self._steps:
            self._rewards[len(self._steps) - 1 :] = [reward]

    def add(
        self, obs: np.ndarray, there: np.ndarray, mask: np.ndarray | None, state: np.ndarray | None,
        action: np.ndarray, logp: np.ndarray | None,
    ) -> None:  # fmt: skip
        """A step: what was seen [N, O] by whom [N], what was legal [N, A], the state [G], what was done, how likely."""
        self._steps.append((obs, there, mask, state, action, logp, time.time_ns() // 1000))

    def finish(
        self, id: str, env: str, number: int, version: int, end: str,
        obs: tuple[np.ndarray, np.ndarray] | None, mask: np.ndarray | None, state: np.ndarray | None,
    ) -> Experience:  # fmt: skip
        """What was recorded, after the last reward was told; the episode may go on from there.

        end: "terminated", "truncated", or "open" when the episode goes on. obs, mask, state: what was seen afterwards.
        """
        spec, t = self.spec, len(self._steps)
        seen, there, masks, states, actions, logps, times = zip(*self._steps, strict=True)
        masked = mask is not None or any(x is not None for x in masks)
        fields = blank(spec, t, 1, masked, spec.state_size > 0)
        fields["id"][0], fields["env"][0], fields["episode"][0] = id, env, number
        fields["version"][0], fields["length"][0] = version, t
        fields["step"], fields["time"] = self._first + np.arange(t), np.array(times, np.int64)
        alive = fields["alive"] = np.stack(there)
        fields["obs"], fields["reward"] = np.stack(seen), np.stack(self._rewards) * alive
        fields["action"][alive] = np.stack(actions)[alive]
        if logps[0] is not None:
            fields["logp"][alive] = np.stack(logps)[alive]
        gone = np.zeros_like(alive[0]) if obs is None else ~obs[1]
        over = {"terminated": np.ones_like(gone), "truncated": np.zeros_like(gone), "open": gone}[end]
        after = np.concatenate([alive[1:], ~over[None]])
        fields["terminated"] = alive & ~after  # who is not seen again died
        fields["truncated"][-1] = alive[-1] & (end == "truncated")
        unseen = obs is None or bool((alive[-1] & gone & ~over).any()) or bool(spec.state_size and state is None)
        fields["blind"][-1] = unseen and bool((alive[-1] & ~over).any())
        own, nothing = spec.own_actions, np.zeros_like(seen[0])
        fields["next_obs"] = np.concatenate([fields["obs"][1:], (nothing if obs is None else obs[0])[None]])
        if masked:
            fields["avail"] = np.stack([own if x is None else x for x in masks]) & alive[..., None]
            final = (own if mask is None else mask) & alive[-1][:, None]
            fields["next_avail"] = np.concatenate([fields["avail"][1:], final[None]])
        if spec.state_size:
            fields["state"] = np.stack(states)
            final = np.zeros(spec.state_size, np.float32) if state is None else state
            fields["next_state"] = np.concatenate([fields["state"][1:], final[None]])
        self._first += t
        self._steps, self._rewards = [], []
        return Experience(**fields)
