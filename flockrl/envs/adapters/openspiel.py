"""Games of OpenSpiel on the host (`openspiel/NAME[:settings]`): each player is an agent and a side.

A step is a move, and the draws of chance after it. In games in which players move in turn, waiting is an action of its
own, the last one, and the only legal one of an agent that waits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from flockrl.core.errors import UsageError, nearest, reason
from flockrl.core.spec import MOST_NUMBERS
from flockrl.core.types import Box, Discrete, EnvSpec, Observation
from flockrl.envs.adapters.options import Options, load
from flockrl.envs.host.env import HostEnv, TeamStep, short_seed


def make_game(name: str, settings: Mapping[str, Any]) -> Any:
    """OpenSpiel's game of that name."""
    pyspiel = load("pyspiel", "openspiel")
    if name not in pyspiel.registered_names():
        raise UsageError(f"There is no environment openspiel/{name}.{nearest(name, pyspiel.registered_names())}")
    try:
        return pyspiel.load_game(name, dict(settings))
    except Exception as error:  # pyspiel.SpielError, or RuntimeError where settings have the wrong type
        raise UsageError(f"openspiel/{name} cannot be made: {reason(error)}.") from error


class SpielTeam(HostEnv):
    """All players of a game. What they see is OpenSpiel's information state, or its observation where there is none."""

    masked = True

    def __init__(self, name: str, settings: Mapping[str, Any], options: Options):
        given = [f.name for f in dataclasses.fields(Options) if getattr(options, f.name) != f.default]
        if wrong := [word for word in given if word not in ("max_steps", "team_reward")]:
            raise UsageError(
                f"openspiel/{name} has no pictures, and its players are sides that live to the end: leave out "
                f"{', '.join(wrong)}."
            )
        self.game, self.options = make_game(name, settings), options
        try:
            self._look(name)
        except RuntimeError as error:  # of games whose settings OpenSpiel checks no earlier
            raise UsageError(f"openspiel/{name} cannot be made: {reason(error)}.") from error

    def _look(self, name: str) -> None:
        """Find out what players see and do."""
        kind = self.game.get_type()
        self.together = kind.dynamics == kind.Dynamics.SIMULTANEOUS
        if kind.dynamics == kind.Dynamics.MEAN_FIELD:
            raise UsageError(f"openspiel/{name} is a mean-field game, which has no players to train.")
        self.full = kind.provides_information_state_tensor
        if not self.full and not kind.provides_observation_tensor:
            raise UsageError(f"openspiel/{name} has no observations in numbers.")
        size = self.game.information_state_tensor_size() if self.full else self.game.observation_tensor_size()
        if not 0 <= size <= MOST_NUMBERS:  # below 0, OpenSpiel counted too far
            raise UsageError(f"openspiel/{name} is too large: an observation has {size:,} numbers.")
        n, self.choices = self.game.num_players(), self.game.num_distinct_actions()
        agents = tuple(f"agent_{i}" for i in range(n))
        same = kind.utility == kind.Utility.IDENTICAL
        self.spec = EnvSpec(
            name=f"openspiel/{name}", agents=agents, observations=(Box((size,)),) * n,
            actions=(Discrete(self.choices + (not self.together)),) * n,
            max_steps=self.options.max_steps or self.game.max_game_length(), sides=() if same else agents,
        )  # fmt: skip
        self._generator = np.random.default_rng(0)
        self._state = self.game.new_initial_state()
        self._seen = np.zeros((n, self.spec.obs_size), np.float32)

    def reset(self, seed: int) -> Observation:
        self._generator = np.random.default_rng(short_seed(seed))
        self._state = self.game.new_initial_state()
        self._settle()
        return self._observe()

    def step(self, action: np.ndarray, seed: int) -> TeamStep:
        before = np.array(self._state.returns())
        if not self._state.is_terminal():
            legal = self._legal()
            chosen = [int(a) if legal[i, a] else int(legal[i].argmax()) for i, a in enumerate(action)]
            if self._state.is_simultaneous_node():
                self._state.apply_actions(chosen)
            else:
                self._state.apply_action(chosen[self._state.current_player()])
            self._settle()
        reward = (np.array(self._state.returns()) - before).astype(np.float32)
        over = self._state.is_terminal()
        return self._observe(), self.options.reward(reward), over, False

    def _settle(self) -> None:
        """Let chance draw wherever it is to."""
        while self._state.is_chance_node():
            outcomes, odds = zip(*self._state.chance_outcomes(), strict=True)
            weights = np.array(odds) / np.sum(odds)
            self._state.apply_action(int(outcomes[self._generator.choice(len(outcomes), p=weights)]))

    def _legal(self) -> np.ndarray:
        """[N, A]: legal actions of all, waiting included where there is such."""
        legal = np.zeros((self.spec.num_agents, self.spec.action_size), bool)
        state = self._state
        for i in range(self.spec.num_agents):
            moves = not state.is_terminal() and (state.is_simultaneous_node() or state.current_player() == i)
            own = state.legal_actions(i) if moves else []
            legal[i, own if own else [self.spec.action_size - 1]] = True
        return legal

    def _observe(self) -> Observation:
        """After the end some games have nothing more to see: then the last observation stays."""
        see = self._state.information_state_tensor if self.full else self._state.observation_tensor
        for i in range(self.spec.num_agents):
            try:
                self._seen[i] = see(i)
            except RuntimeError:
                if not self._state.is_terminal():
                    raise
        return Observation(self._seen.copy(), avail=self._legal())  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"SpielTeam({self.spec.name!r})"
