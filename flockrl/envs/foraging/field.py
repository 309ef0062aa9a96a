"""The environment of level-based foraging, and its tasks by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

import flockrl.envs.foraging.scripts as scripts
from flockrl.core.entities import layout
from flockrl.core.types import Array, Box, Discrete, EnvSpec, Observation
from flockrl.envs.emergence import apart
from flockrl.envs.foraging.rules import (
    LARGEST,
    Harvest,
    draw_levels,
    legal,
    loaded,
    look,
    moved,
    place_food,
    place_players,
)
from flockrl.envs.settings import between, whole

LOWEST = 3
"""Without a highest level of food, no food needs more than the players of the lowest levels, so many of them."""
BESIDE = 4
"""Cells beside food, from which it is loaded."""


@dataclass(frozen=True)
class Rules:
    """size: cells on a side; players, food: how many; coop: all food has the highest level; sight: how far players see,
    None for everything; levels are drawn evenly from the lowest to the highest, max_food_level=None: the sum of the
    three lowest levels of players; penalty: what loading in vain costs; normalize: rewards are
    parts of all food, else level of the player times that of the food; masks: tell which actions are legal."""

    size: int = 8
    players: int = 2
    food: int = 2
    coop: bool = False
    sight: int | None = None
    max_steps: int = 50
    penalty: float = 0.0
    min_player_level: int = 1
    max_player_level: int = 2
    min_food_level: int = 1
    max_food_level: int | None = None
    normalize: bool = True
    masks: bool = False

    def check(self, name: str) -> None:
        whole(name, 5, LARGEST, size=self.size)
        whole(name, 1, 20, players=self.players)
        whole(name, 1, 20, food=self.food)
        whole(name, 1, 100_000, max_steps=self.max_steps)
        between(name, 0, 100, penalty=self.penalty)
        if self.sight is not None:
            whole(name, 1, self.size, sight=self.sight)
        whole(name, 1, 100, min_player_level=self.min_player_level)
        whole(name, self.min_player_level, 100, max_player_level=self.max_player_level)
        if self.max_food_level is None:
            # The weakest team must be able to load the food of the lowest level that it may meet.
            most = self.min_player_level * min(self.players, LOWEST)
            whole(name, 1, most, min_food_level=self.min_food_level)
        else:
            whole(name, 1, 1000, min_food_level=self.min_food_level)
            whole(name, self.min_food_level, 1000, max_food_level=self.max_food_level)


class Foraging:
    """Players on a field load food together: they are beside it, and their levels add up to its own.

    The rules are those of lbforaging 2, by comparison of every step; `rules` tells them. Food pays those who loaded it
    by their levels, in parts of all food of the episode, so that a team that loads everything earns 1, added up over
    its players. An episode terminates when all food is gone, and is truncated after `max_steps` steps, where lbforaging
    terminates it. `masks`: legal actions, which lbforaging knows and does not offer. Measures: `collected` (share of
    food, by level), `success` (all of it), `steps`.
    """

    def __init__(self, name: str, rules: Rules):
        name = f"foraging/{name}"
        rules.check(name)
        self.rules, self.size, self.n = rules, rules.size, rules.players
        self.sight = rules.size if rules.sight is None else rules.sight
        numbers = 3 * (rules.food + self.n)
        strongest = rules.max_food_level or rules.max_player_level * min(self.n, LOWEST)
        high = (self.size - 1, self.size - 1, strongest) * rules.food
        high += (self.size - 1, self.size - 1, rules.max_player_level) * self.n
        low = (-1, -1, 0) * (rules.food + self.n)
        self.spec = EnvSpec(
            name=name,
            agents=tuple(f"agent_{i}" for i in range(self.n)),
            observations=(Box((numbers,), tuple(map(float, low)), tuple(map(float, high))),) * self.n,
            actions=(Discrete(6),) * self.n,
            max_steps=rules.max_steps,
            entities=(layout(("food", rules.food, 3), ("own", 3), ("agent", self.n - 1, 3)),) * self.n,
        )
        weakest = rules.min_player_level * min(self.n, BESIDE)
        if rules.normalize and (rules.max_food_level is None or rules.max_food_level <= weakest):
            self.best = 1 / self.n  # otherwise some food may be too much for all who find room beside it
        self.policies = {"greedy_alone": self._greedy_alone, "together": self._together}

    def reset(self, key: Array) -> tuple[Harvest, Observation]:
        rules, n = self.rules, self.n
        # One draw for everything: most of what a reset costs is random numbers.
        chances = jax.random.uniform(key, (2, n + rules.food))
        players = place_players(chances[0, :n], self.size)
        levels = draw_levels(chances[1, :n], rules.min_player_level, rules.max_player_level)
        most = jnp.sort(levels)[:LOWEST].sum() if rules.max_food_level is None else rules.max_food_level
        food, there = place_food(chances[0, n:], self.size, players)
        drawn = draw_levels(chances[1, n:], most if rules.coop else rules.min_food_level, most)
        worth = jnp.where(there, drawn, 0)
        state = Harvest(jnp.int32(0), players, levels, food, worth, worth.sum())
        return state, self._observe(state)

    def step(self, key: Array, state: Harvest, action: Array) -> tuple[Harvest, Observation, Array, Array, Array]:
        can = legal(state, self.size)
        action = jnp.where((can & (action[:, None] == np.arange(6))).any(-1), action, 0)
        worth, paid, in_vain = loaded(state, action, self.rules.normalize)
        reward = paid - self.rules.penalty * in_vain
        t, over = state.t + 1, (worth == 0).all()
        state = state._replace(t=t, players=moved(state.players, action), worth=worth)
        return state, self._observe(state), reward, over, (t >= self.rules.max_steps) & ~over

    def measures(self, state: Harvest) -> dict[str, Array]:
        left = state.worth.sum()
        return {"collected": 1 - left / jnp.maximum(state.spawned, 1), "success": left == 0, "steps": state.t}

    def distances(self, state: Harvest) -> Array:
        """[N, N] how far players are from each other, in cells."""
        return apart(state.players.astype(jnp.float32))

    def render(self, states: Sequence[Harvest], size: int = 400) -> list[np.ndarray]:
        """Frames [size, size, 3] uint8 of one episode: food and players with their levels."""
        from flockrl.envs.foraging.render import frames

        return frames(states, self.size, size)

    def _observe(self, state: Harvest) -> Observation:
        avail = legal(state, self.size) if self.rules.masks else None
        return Observation(look(state, self.sight), avail)

    def _greedy_alone(self, state: Harvest, seen: Observation, key: Array) -> Array:
        """Everyone goes to the nearest food that it can load alone, and stays where there is none."""
        return scripts.greedy_alone(state, self.size)

    def _together(self, state: Harvest, seen: Observation, key: Array) -> Array:
        """All go to the food that is nearest to all of them, and load it when enough are there."""
        return scripts.together(state, self.size)


def named(size: int, players: int, food: int, coop: bool = False, sight: int | None = None) -> Callable[..., Foraging]:
    """A task by its name in lbforaging; what the name does not tell stays a setting."""
    name = f"{f'{sight}s-' if sight else ''}{size}x{size}-{players}p-{food}f{'-coop' if coop else ''}"

    def task(max_steps: int = 50, penalty: float = 0.0, masks: bool = False) -> Foraging:
        return Foraging(name, Rules(size, players, food, coop, sight, max_steps, penalty, masks=masks))

    return task


def field(
    size: int = 8,
    players: int = 2,
    food: int = 2,
    coop: bool = False,
    sight: int | None = None,
    max_steps: int = 50,
    penalty: float = 0.0,
    min_player_level: int = 1,
    max_player_level: int = 2,
    min_food_level: int = 1,
    max_food_level: int | None = None,
    normalize: bool = True,
    masks: bool = False,
) -> Foraging:
    """A field of one's own; see `Rules`."""
    levels = min_player_level, max_player_level, min_food_level, max_food_level
    return Foraging("field", Rules(size, players, food, coop, sight, max_steps, penalty, *levels, normalize, masks))
