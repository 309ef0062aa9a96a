"""Games by their rules: one description that is played as an environment and unfolded by solvers.

At each moment of a game either players move (one of them, or several at once), or chance draws, or it is over. A game's
rules are pure functions of its state, so that they compile, and draws have listed outcomes with listed
probabilities, so that solvers can try them all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from flockrl.core.types import Array, Box, Discrete, EnvSpec, Observation, PyTree


class Rules:
    """The rules of a game of N players with A actions each. States are trees of arrays.

    start() -> state
    movers(state) -> [N] bool: who moves now; nobody while chance draws and after the end.
    legal(state) -> [N, A] bool: legal actions of those who move.
    move(state, action [N]) -> (state, reward [N]): entries of players who do not move are ignored.
    odds(state) -> [C]: probabilities of the outcomes of a draw.
    draw(state, outcome) -> (state, reward [N])
    over(state) -> bool
    see(state) -> [N, O]: what each player knows, as numbers from 0 to 1.
    symmetries(key) -> Renaming: where a game has any, see `envs.api`.
    """

    name: str
    players = 2
    choices: int
    """A."""
    outcomes = 0
    """C: the most outcomes of a draw; 0 where nothing is drawn."""
    draws = 0
    """The most draws in a row."""
    waits = True
    """Whether a player has to wait while another moves. Then waiting is an action of its own, the last one."""
    size: int
    """O."""
    longest: int
    """The most moves of an episode."""
    endless = False
    """Whether an episode is cut after `longest` moves, and would go on otherwise."""
    recall = True
    """Whether `see` tells all that a player ever saw and did; otherwise it tells the present state, which is all that
    matters for what follows."""
    discount = 1.0
    """What a reward is worth that comes one move later, for solvers of games that may go on for ever."""
    policies: dict[str, Any] = {}  # noqa: RUF012 - replaced, never changed
    """Policies that come with the game, see `envs.api.Knowing`; states are places."""

    def start(self) -> PyTree:
        raise NotImplementedError

    def movers(self, state: PyTree) -> Array:
        raise NotImplementedError

    def legal(self, state: PyTree) -> Array:
        return jnp.ones((self.players, self.choices), bool)

    def move(self, state: PyTree, action: Array) -> tuple[PyTree, Array]:
        raise NotImplementedError

    def odds(self, state: PyTree) -> Array:
        raise NotImplementedError

    def draw(self, state: PyTree, outcome: Array) -> tuple[PyTree, Array]:
        raise NotImplementedError

    def over(self, state: PyTree) -> Array:
        raise NotImplementedError

    def see(self, state: PyTree) -> Array:
        raise NotImplementedError


class Place(NamedTuple):
    """Where an episode stands. state: of the game; t: moves so far."""

    state: PyTree
    t: Array


class RulesEnv:
    """A game as an environment: each player is an agent and a side, `agent_0` moves first.

    A step is a move, and the draws after it. Agents that wait have one legal action, waiting. An illegal action counts
    as the first legal one.
    """

    def __init__(self, rules: Rules):
        self.rules, self.policies = rules, rules.policies
        if hasattr(rules, "symmetries"):
            self.symmetries = rules.symmetries
        names = tuple(f"agent_{i}" for i in range(rules.players))
        self.spec = EnvSpec(
            name=rules.name,
            agents=names,
            observations=(Box((rules.size,), 0.0, 1.0),) * rules.players,
            actions=(Discrete(rules.choices + rules.waits),) * rules.players,
            max_steps=rules.longest,
            sides=names,
            undiscounted=not rules.endless and rules.discount == 1,
        )

    def reset(self, key: Array) -> tuple[Place, Observation]:
        state, _ = self._settle(key, self.rules.start(), jnp.zeros(self.rules.players))
        place = Place(state, jnp.int32(0))
        return place, self._observe(place)

    def step(self, key: Array, state: Place, action: Array) -> tuple[Place, Observation, Array, Array, Array]:
        rules, before = self.rules, state.state
        ended = rules.over(before)
        after, reward = rules.move(before, self._legal_action(before, action))
        after = jax.tree.map(lambda new, old: jnp.where(ended, old, new), after, before)
        after, reward = self._settle(key, after, jnp.where(ended, 0.0, reward))
        place = Place(after, state.t + 1)
        over = rules.over(after)
        cut = ~over & (place.t >= rules.longest) if rules.endless else jnp.bool_(False)
        return place, self._observe(place), reward.astype(jnp.float32), over, cut

    def legal(self, state: PyTree) -> Array:
        """[N, A or A + 1]: what each agent may do, waiting included where the game has it."""
        moves = self.rules.movers(state)
        own = jnp.where(moves[:, None], self.rules.legal(state), not self.rules.waits)
        return jnp.concatenate([own, ~moves[:, None]], 1) if self.rules.waits else own

    def observe(self, state: PyTree) -> Observation:
        """What the agents see where the game stands at `state`."""
        return Observation(self.rules.see(state).astype(jnp.float32), avail=self.legal(state))

    def _observe(self, place: Place) -> Observation:
        return self.observe(place.state)

    def _legal_action(self, state: PyTree, action: Array) -> Array:
        legal = self.legal(state)
        action = jnp.clip(action.astype(jnp.int32), 0, legal.shape[1] - 1)
        allowed = jnp.take_along_axis(legal, action[:, None], 1)[:, 0]
        return jnp.where(allowed, action, legal.argmax(1)).astype(jnp.int32)

    def _settle(self, key: Array, state: PyTree, reward: Array) -> tuple[PyTree, Array]:
        """The state after all draws that are due, and the reward with what they paid."""
        rules = self.rules
        for i in range(rules.draws):
            due = ~rules.movers(state).any() & ~rules.over(state)
            odds = jnp.where(due, rules.odds(state), jnp.ones(rules.outcomes) / rules.outcomes)
            outcome = jax.random.categorical(jax.random.fold_in(key, i), jnp.log(odds)).astype(jnp.int32)
            drawn, paid = rules.draw(state, outcome)
            state = jax.tree.map(lambda new, old, due=due: jnp.where(due, new, old), drawn, state)
            reward = reward + jnp.where(due, paid, 0.0)
        return state, reward


def one_hot(index: Any, size: int) -> Array:
    """[..., size] float32; all zeros where the index is -1."""
    return (jnp.asarray(index)[..., None] == jnp.arange(size)).astype(jnp.float32)


def seats(players: int = 2) -> Array:
    """[N, N]: which player each is, the first numbers of what it sees."""
    return jnp.eye(players)


def versus(paid: Array) -> Array:
    """[2] rewards of two players, of which the first gains what the second loses."""
    return jnp.stack([paid, -paid]).astype(jnp.float32)
