"""Between what an application passes and the arrays of a team. NumPy alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.spec import EnvSpec
from flockrl.data.choices import is_real, options, own_action, without_option


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
            raise UsageError("There are no observations: when nobody is left, end the episode (flag_last_action).")
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

    def action(self, action: Any, there: np.ndarray, legal: np.ndarray | None) -> np.ndarray:
        """[N] or [N, W] from actions that somebody else chose: a dict, list or array, or one number for a team of one.

        there: [N] who acts; legal: [N, A].
        """
        spec, whole = self.spec, np.zeros(self.spec.action_shape, self.spec.action_dtype)
        single = spec.num_agents == 1 and not isinstance(action, Mapping) and np.shape(action)[:1] != (1,)
        widths = [space.width for space in spec.actions]
        if isinstance(action, np.ndarray) and not single:
            action = action.tolist()  # a number where it has no axis
        if isinstance(action, int | float) and not single:
            raise UsageError(f"There are {spec.num_agents} agents, and only one action.")
        rows = self._rows([action] if single else action, "actions", widths)
        missing = [name for i, name in enumerate(spec.agents) if there[i] and i not in rows]
        if missing:
            raise UsageError(f"There is no action of {missing[0]}.")
        for i, row in rows.items():
            if not there[i]:
                continue
            if not np.isfinite(row).all():
                raise UsageError(f"The action of {spec.agents[i]} has a number that is not finite.")
            start = 0
            for number, count in zip(row.tolist(), options(spec.actions[i]), strict=False):
                exists = number == int(number) and 0 <= number < count
                if not exists or (legal is not None and not legal[i, start + int(number)]):
                    what = "not legal" if exists else "none of its actions"
                    raise UsageError(f"The action {number:g} of {spec.agents[i]} is {what}.")
                start += count
            whole[i, ...] = row[0] if spec.discrete else np.pad(row, (0, spec.action_width - len(row)))
        return whole

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
