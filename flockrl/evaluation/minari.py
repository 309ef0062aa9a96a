"""Datasets of Minari (Farama's home of D4RL's data) as trajectories of one agent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.spec import Box, Discrete, EnvSpec
from flockrl.data.episode import Episode
from flockrl.data.experience import Experience
from flockrl.envs.adapters.layouts import kind
from flockrl.envs.adapters.spaces import Codec

PREFIX, AGENT = "minari:", "agent"


def load(name: str) -> Any:
    """The dataset of that name: the local one, else it is fetched from Minari's server."""
    try:
        import minari
    except ImportError as error:
        raise UsageError(f"{PREFIX}{name} needs minari: pip install 'minari[hdf5,hf]'.") from error
    try:
        return minari.load_dataset(name, download=True)
    except Exception as error:  # of the network, of its storage, of an unknown name
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise UsageError(f"Minari cannot load {name}: {lines[0]}") from error


class Dataset:
    """A Minari dataset, of which observations lie in rows as in a Gymnasium environment of the same spaces.

    spec: the agent's; its name is the environment's, so that what learns from it can be evaluated there.
    """

    def __init__(self, dataset: Any, name: str):
        self.dataset, self.name = dataset, name
        acts = dataset.action_space
        if kind(acts) not in ("Discrete", "Box"):
            raise UsageError(f"{name} has actions in a {kind(acts)} space, and only Discrete and Box can be imported.")
        self._codec = Codec(name, [AGENT], {AGENT: dataset.observation_space}, {AGENT: acts})
        made_in = getattr(dataset, "env_spec", None)
        self._start = int(getattr(acts, "start", 0))
        self.spec = EnvSpec(
            f"gymnasium/{made_in.id}" if made_in is not None else name, (AGENT,), self._codec.observations,
            self._codec.actions, max_steps=getattr(made_in, "max_episode_steps", None) or self._longest(),
        )  # fmt: skip

    def _longest(self) -> int:
        return max((len(episode.rewards) for episode in self.dataset.iterate_episodes()), default=1)

    def __iter__(self) -> Iterator[Experience]:
        """Each episode, checked; a last observation is there unless the dataset left it out."""
        for number, made in enumerate(self.dataset.iterate_episodes()):
            if not len(made.rewards):
                continue
            episode = Episode(self.spec, env=self.spec.name, number=number)
            for t, reward in enumerate(made.rewards):
                episode.act(self._row(made.observations, t), action=self._action(made.actions, t))
                episode.reward(float(reward))
            cut = not bool(made.terminations[-1])
            yield episode.end(truncated=cut, obs=self._row(made.observations, len(made.rewards)) if cut else None)

    def _row(self, observations: Any, t: int) -> np.ndarray:
        """[1, O] the observation at time t, which may be a dict or tuple of arrays over time."""
        return self._codec.obs({AGENT: _at(observations, t)})

    def _action(self, actions: Any, t: int) -> Any:
        space = self.spec.actions[0]
        if isinstance(space, Discrete):
            return int(actions[t]) - self._start
        assert isinstance(space, Box)
        return np.asarray(actions[t], np.float32).reshape(1, -1)


def _at(values: Any, t: int) -> Any:
    if isinstance(values, dict):
        return {key: _at(part, t) for key, part in values.items()}
    return tuple(_at(part, t) for part in values) if isinstance(values, tuple) else values[t]
