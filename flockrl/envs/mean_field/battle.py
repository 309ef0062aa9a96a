"""Battle: two sides of many agents on a grid, after the battle of MAgent (Zheng et al. 2018), small and compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.entities import Entities, Kind
from flockrl.core.errors import UsageError
from flockrl.core.types import Array, Box, Discrete, EnvSpec, Observation
from flockrl.envs.mean_field.tactics import MOVES, TACTICS, TURNS, offsets
from flockrl.envs.settings import between, one_of, whole

NAME = "mean_field/battle"
SIDES = ("red", "blue")
STEP, BLOW, MISS, KILL, DEATH = -0.005, 0.2, -0.1, 5.0, -0.1
"""What MAgent pays: for every step, for a blow that lands, for every attack, for a kill, for dying."""


class Field(NamedTuple):
    """t: steps so far; place: [M] the cell of each agent, row * size + column; health: [M], 0 for the dead; aim: [M]
    whom each struck in the last step, M for nobody."""

    t: Array
    place: Array
    health: Array
    aim: Array


class Battle:
    """`n` agents of each side, red and blue, on a grid of `size` x `size` cells, at most one in a cell.

    An agent stays, moves one cell (up, right, down, left), or attacks one of the 8 cells around it: 13 actions. A blow
    that lands on an opponent takes `damage` of its `health`; at 0 it is dead and leaves the grid. Who lives recovers
    `recover` in each step, up to the full health. Everyone who lives is paid -0.005 in each step, -0.1 for an attack,
    0.2 more if the blow lands, 5 more if it kills, and -0.1 for dying; the dead are paid nothing. All blows of a step
    fall before anyone moves, also those of agents that die in it; where several strike one opponent, chance orders
    them: the blow that takes the last health kills, and those after it strike nothing. Nobody enters a cell in which
    somebody lives, and one of those who want the same free cell, drawn by lot, gets it.

    Red begins on random cells of the left third, blue on their mirror images. The episode ends when a side is dead, and
    is truncated after `steps` steps. An agent perceives who is at most `view` cells away in rows and in columns. With
    see=window it observes the cells around it, row by row, with three numbers each (is it outside; the health of an
    ally there; that of an opponent), then about itself: health, row, column, of each side the share that lives and the
    offset to its centre. With see=entities it observes the same about itself, then of each other agent whom it
    perceives, allies first, offset and health, and flags that tell who these are. `neighbours` are the allies that it
    perceives.

    opponent: a tactic (random, rush, focus) that plays blue as a part of the environment, so that all agents are red;
    "" for a game of two sides. Measures: `won`, 1 if more of red than of blue live at the end, 0.5 for as many;
    `red` and `blue`, the shares that live then; `kills`, of red per agent.
    """

    tunable = ("damage", "recover")

    def __init__(
        self, n: int = 8, size: int = 12, steps: int = 100, view: int = 3, opponent: str = "", see: str = "window",
        health: float = 10.0, damage: float = 2.0, recover: float = 0.1,
    ):  # fmt: skip
        whole(NAME, 1, 64, n=n)
        whole(NAME, 3, 100, size=size)
        whole(NAME, 1, 100_000, steps=steps)
        whole(NAME, 1, 10, view=view)
        between(NAME, 1e-3, 1e6, health=health, damage=damage)
        between(NAME, 0, 1e6, recover=recover)
        one_of(NAME, ("", *TACTICS), opponent=opponent)
        one_of(NAME, ("window", "entities"), see=see)
        if n > size * (size // 3):
            raise UsageError(f"{NAME}: {n} agents need more than the {size * (size // 3)} cells of a third.")
        self.n, self.size, self.steps, self.view, self.opponent, self.see = n, size, steps, view, opponent, see
        self.health, self.damage, self.recover = health, damage, recover
        self.side = np.repeat([0, 1], n)
        sides = SIDES[:1] if opponent else SIDES
        self.playing = n * len(sides)
        agents = tuple(f"{side}_{i}" for side in sides for i in range(n))
        self.spec = EnvSpec(
            name=NAME,
            agents=agents,
            observations=(Box((self._width(),), -2.0, 2.0),) * self.playing,
            actions=(Discrete(len(MOVES) + len(TURNS)),) * self.playing,
            max_steps=steps,
            sides=() if opponent else tuple(agent.partition("_")[0] for agent in agents),
            neighbours=True,
            reward_after_death=False,
            entities=(self._entities(),) * self.playing if see == "entities" else (),
        )
        self.policies = {
            name: lambda state, seen, key, tactic=tactic: tactic(self, state, key)[: self.playing]
            for name, tactic in TACTICS.items()
            if name != "random"
        }

    # The rules

    def reset(self, key: Array) -> tuple[Field, Observation]:
        third = self.size // 3
        row, column = jnp.divmod(jax.random.permutation(key, self.size * third)[: self.n], third)
        place = jnp.concatenate([row * self.size + column, row * self.size + self.size - 1 - column])
        nobody = jnp.full(2 * self.n, 2 * self.n)
        state = Field(jnp.int32(0), place, jnp.full(2 * self.n, jnp.float32(self.health)), nobody)
        return state, self._observe(state)

    def step(self, key: Array, state: Field, action: Array) -> tuple[Field, Observation, Array, Array, Array]:
        blow_key, move_key, blue_key = jax.random.split(key, 3)
        if self.opponent:
            action = jnp.concatenate([action, TACTICS[self.opponent](self, state, blue_key)[self.n :]])
        alive = state.health > 0
        aim = self._aims(state, action)
        lands, kills, blows = self._blows(blow_key, state.health, aim)
        taken = self.damage * blows
        left = jnp.where(state.health > taken, state.health - taken, 0.0)
        dies = alive & (left <= 0)
        health = jnp.where(left > 0, jnp.minimum(left + self.recover, self.health), 0.0)
        place = self._moved(move_key, state.place, health > 0, action)
        paid = STEP + MISS * (action >= len(MOVES)) + BLOW * lands + KILL * kills + DEATH * dies
        t = state.t + 1
        state = Field(t, place, health, jnp.where(lands, aim, 2 * self.n))
        over = ~(health > 0).reshape(2, self.n).any(-1).all()
        ended = dies[: self.playing] | over
        return (
            state,
            self._observe(state),
            jnp.where(alive, paid, 0.0)[: self.playing],
            ended,
            (t >= self.steps) & ~over,
        )

    def _aims(self, state: Field, action: Array) -> Array:
        """[M] the living opponent whom each living agent strikes at, M for nobody."""
        row, column = jnp.divmod(state.place, self.size)
        turn = jnp.asarray(TURNS)[jnp.maximum(action - len(MOVES), 0)]
        at, inside = self._cell(row + turn[:, 0], column + turn[:, 1])
        whom = self.occupants(state)[at]
        enemy = jnp.append(self.side, -1)[whom] == 1 - self.side
        strikes = (state.health > 0) & (action >= len(MOVES)) & inside & enemy
        return jnp.where(strikes, whom, 2 * self.n)

    def _blows(self, key: Array, health: Array, aim: Array) -> tuple[Array, Array, Array]:
        """[M] whether an agent's blow lands, whether it kills, and how many blows fall on an agent."""
        many = 2 * self.n
        order = jnp.lexsort((jax.random.uniform(key, (many,)), aim))
        target = aim[order]
        before = jnp.zeros(many, jnp.int32).at[order].set(jnp.arange(many) - jnp.searchsorted(target, target))
        has = jnp.append(health, 0.0)[aim]
        lands = (aim < many) & (has > self.damage * before)
        kills = lands & (has <= self.damage * (before + 1))
        return lands, kills, jnp.zeros(many).at[aim].add(1.0, mode="drop")

    def _moved(self, key: Array, place: Array, alive: Array, action: Array) -> Array:
        """[M] the cells after those who live moved."""
        many, cells = 2 * self.n, self.size**2
        row, column = jnp.divmod(place, self.size)
        way = jnp.asarray(MOVES)[jnp.where(action < len(MOVES), action, 0)]
        want, inside = self._cell(row + way[:, 0], column + way[:, 1])
        taken = jnp.zeros(cells, bool).at[jnp.where(alive, place, cells)].set(True, mode="drop")
        asks = alive & inside & ~taken[want]
        lot = jax.random.permutation(key, many)
        first = jnp.full(cells, many).at[jnp.where(asks, want, cells)].min(lot, mode="drop")
        return jnp.where(asks & (first[want] == lot), want, place)

    def _cell(self, row: Array, column: Array) -> tuple[Array, Array]:
        """The cells at rows and columns, and whether they are inside; those outside are the nearest inside."""
        inside = (row >= 0) & (row < self.size) & (column >= 0) & (column < self.size)
        return jnp.clip(row, 0, self.size - 1) * self.size + jnp.clip(column, 0, self.size - 1), inside

    def occupants(self, state: Field) -> Array:
        """[size * size] who lives in each cell, M for nobody."""
        many, cells = 2 * self.n, self.size**2
        at = jnp.where(state.health > 0, state.place, cells)
        return jnp.full(cells, many).at[at].set(jnp.arange(many), mode="drop")

    def measures(self, state: Field) -> dict[str, Array]:
        red, blue = (state.health > 0).reshape(2, self.n).mean(-1)
        won = jnp.where(red > blue, 1.0, jnp.where(red == blue, 0.5, 0.0))
        return {"won": won, "red": red, "blue": blue, "kills": 1.0 - blue}

    # What agents see

    def _width(self) -> int:
        about = 9
        if self.see == "window":
            return 3 * (2 * self.view + 1) ** 2 + about
        return about + 4 * (2 * self.n - 1)

    def _entities(self) -> Entities:
        """An observation with see=entities: about itself; offset and health of allies; of opponents; flags."""
        allies, start = self.n - 1, 9
        flags = start + 3 * (2 * self.n - 1)
        kinds = (
            Kind("ally", allies, ((start, 3),), flags),
            Kind("opponent", self.n, ((start + 3 * allies, 3),), flags + allies),
        )
        return Entities(((0, start),), kinds)

    def _observe(self, state: Field) -> Observation:
        alive = state.health > 0
        away = offsets(self, state)
        perceives = (jnp.abs(away).max(-1) <= self.view) & alive[:, None] & alive[None]
        allies = perceives & (self.side[:, None] == self.side[None]) & ~np.eye(2 * self.n, dtype=bool)
        seen = self._windows(state) if self.see == "window" else self._others(state, away, perceives)
        parts = [seen, self._about(state)] if self.see == "window" else [self._about(state), seen]
        obs = jnp.where(alive[:, None], jnp.concatenate(parts, -1), 0.0)
        k = self.playing
        return Observation(obs[:k], alive=alive[:k], neighbours=allies[:k, :k])

    def _about(self, state: Field) -> Array:
        """[M, 9] what each agent knows of itself and of both sides, its own first."""
        alive = (state.health > 0) * 1.0
        spot = jnp.stack(jnp.divmod(state.place, self.size), -1) / self.size
        weight = alive.reshape(2, self.n, 1)
        centre = (spot.reshape(2, self.n, 2) * weight).sum(1) / jnp.maximum(weight.sum(1), 1.0)
        there = jnp.where(weight.sum(1) > 0, 1.0, 0.0)
        own, other = self.side, 1 - self.side
        parts = [state.health[:, None] / self.health, spot]
        for side in (own, other):
            parts += [weight.mean(1)[side], (centre[side] - spot) * there[side]]
        return jnp.concatenate(parts, -1)

    def _windows(self, state: Field) -> Array:
        """[M, 3 (2 view + 1)²] the cells around each agent: outside, an ally's health, an opponent's health."""
        span = np.arange(-self.view, self.view + 1)
        row, column = jnp.divmod(state.place, self.size)
        at, inside = self._cell((row[:, None] + np.repeat(span, len(span))), column[:, None] + np.tile(span, len(span)))
        whom = jnp.where(inside, self.occupants(state)[at], 2 * self.n)
        health = jnp.append(state.health, 0.0)[whom] / self.health
        ally = jnp.append(self.side, -1)[whom] == self.side[:, None]
        cells = jnp.stack([~inside * 1.0, jnp.where(ally, health, 0.0), jnp.where(ally, 0.0, health)], -1)
        return cells.reshape(2 * self.n, -1)

    def _others(self, state: Field, away: Array, perceives: Array) -> Array:
        """[M, 4 (2n - 1)] offset and health of each other agent, allies first, then whether it is perceived."""
        n, places = self.n, np.arange(2 * self.n)
        order = np.array([[j for j in places if j != i and self.side[j] == self.side[i]] for i in places], int)
        order = np.concatenate([order.reshape(2 * n, n - 1), [places[self.side != self.side[i]] for i in places]], -1)
        there = jnp.take_along_axis(perceives, order, 1)
        offset = jnp.take_along_axis(away, order[..., None], 1) / (self.view + 1)
        each = jnp.concatenate([offset, (state.health / self.health)[order][..., None]], -1) * there[..., None]
        return jnp.concatenate([each.reshape(2 * n, -1), there * 1.0], -1)

    def render(self, states: Sequence[Field], size: int = 400) -> list[np.ndarray]:
        """Frames [size, size, 3] uint8 of one episode: red and blue agents, paler with less health, and their blows."""
        from flockrl.envs.sketch import BLUE, INK, LINE, ORANGE, Sketch, mix

        pictures, cell, before = [], 1 / self.size, None
        for state in states:
            sketch = Sketch(size)
            for k in range(self.size + 1):
                sketch.line([(k * cell, 0), (k * cell, 1)], LINE, 0.002)
                sketch.line([(0, k * cell), (1, k * cell)], LINE, 0.002)
            health, spots = np.asarray(state.health), self._spots(state)
            for who in np.flatnonzero(health > 0):
                color = mix((ORANGE, BLUE)[self.side[who]], 0.7 * (1 - float(health[who]) / self.health))
                sketch.disc(float(spots[who, 0]), float(spots[who, 1]), 0.38 * cell, color)
            for i, whom in enumerate(np.asarray(state.aim)):  # blows fell before agents moved
                if whom < 2 * self.n and before is not None:
                    sketch.line([before[i], before[whom]], INK, 0.006)
            before = spots
            pictures.append(sketch.picture())
        return pictures

    def _spots(self, state: Field) -> np.ndarray:
        """[M, 2] x and y of the cells' centres, from 0 to 1."""
        row, column = np.divmod(np.asarray(state.place), self.size)
        return (np.stack([column, row], -1) + 0.5) / self.size
