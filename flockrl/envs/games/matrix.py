"""Matrix games: small games whose best play and equilibria are known.

A game is a payoff tensor with one axis per agent, indexed by the agents' actions. In a repeated game
the agents play the same matrix `rounds` times. The last round ends the game, so the episode is
*terminated* there, not truncated: no reward follows, and there is nothing to bootstrap from.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.types import Array, Box, Discrete, EnvSpec, Observation
from flockrl.envs.api import Renaming
from flockrl.envs.games.payoffs import MOST_AXES, read_content, refuse_wide

ROUNDS = 25


class Play(NamedTuple):
    """t: rounds played; last: [N] each agent's action in the previous round, -1 before the first."""

    t: Array
    last: Array


class MatrixGame:
    """A payoff tensor as an environment.

    payoff: [A1, ..., AN, N] one payoff per agent, or [A1, ..., AN] a payoff common to all. A tensor that
    could be either (such as [2, 2, 2]) is read as one payoff per agent unless `common` says otherwise.
    Agents may have different numbers of actions; an action above an agent's last one counts as its last one.

    Each agent observes the constant 1 and, with `history`, the one-hot of all agents' actions in the previous
    round (zeros in the first round). All agents are on one side if their payoffs are always equal; otherwise
    every agent is a side of its own. `best` is the highest possible return if the agents are on one side, else None.
    """

    def __init__(
        self,
        payoff: Any,
        rounds: int = ROUNDS,
        history: bool = False,
        name: str = "games/matrix",
        common: bool | None = None,
    ):
        if rounds < 1 or rounds != int(rounds):
            raise UsageError(f"{name}: rounds must be a whole number of at least 1, not {rounds}.")
        self.payoff = payoff_tensor(payoff, name, common)
        """[A1, ..., AN, N] float32"""
        self.rounds, self.history = int(rounds), bool(history)
        self.counts = self.payoff.shape[:-1]
        n = len(self.counts)
        self.table = self.payoff.reshape(-1, n)
        self.strides = np.array([np.prod(self.counts[i + 1 :]) for i in range(n)], np.int32)
        together = bool((self.payoff == self.payoff[..., :1]).all())
        self.best = float(self.payoff.max()) * self.rounds if together else None
        size = 1 + sum(self.counts) * self.history
        names = tuple(f"agent_{i}" for i in range(n))
        self.spec = EnvSpec(
            name=name,
            agents=names,
            observations=(Box((size,), 0.0, 1.0),) * n,
            actions=tuple(Discrete(count) for count in self.counts),
            max_steps=self.rounds,
            sides=() if together else names,
        )

    def reset(self, key: Array) -> tuple[Play, Observation]:
        state = Play(jnp.int32(0), jnp.full(len(self.counts), -1, jnp.int32))
        return state, self._observe(state)

    def step(self, key: Array, state: Play, action: Array) -> tuple[Play, Observation, Array, Array, Array]:
        action = jnp.clip(action.astype(jnp.int32), 0, np.array(self.counts, np.int32) - 1)
        reward = jnp.asarray(self.table)[(action * self.strides).sum()]
        state = Play(state.t + 1, action)
        return state, self._observe(state), reward, state.t >= self.rounds, jnp.bool_(False)

    def render(self, states: Sequence[Play], size: int = 400) -> list[np.ndarray]:
        """Frames [size, size, 3] uint8 of one episode: the payoffs, with the joint action of each round."""
        from flockrl.envs.games.render import matrix_frames

        return matrix_frames(self.payoff, states, size)

    def symmetries(self, key: Array) -> Renaming:
        """A random renaming of the actions of each class that can be exchanged."""
        classes = interchangeable(self.payoff)
        order = jnp.argsort(classes + jax.random.uniform(key, classes.shape))  # by class, in a random order within each
        names = jnp.zeros(len(classes), jnp.int32).at[np.argsort(classes, kind="stable")].set(order.astype(jnp.int32))
        if not self.history:
            return Renaming(jnp.zeros(1, jnp.int32), names)
        blocks = [1 + int(start) + names for start in np.arange(len(self.counts)) * len(classes)]
        return Renaming(jnp.concatenate([jnp.zeros(1, jnp.int32), *blocks]), names)

    def _observe(self, state: Play) -> Observation:
        """[N, O]: all agents see the same."""
        parts = [jnp.ones(1)]
        if self.history:
            parts += [(state.last[i] == np.arange(count)).astype(jnp.float32) for i, count in enumerate(self.counts)]
        row = jnp.concatenate(parts)
        return Observation(jnp.broadcast_to(row, (len(self.counts), row.size)))


class TwoStepGame:
    """The two-step game of the QMIX paper (Rashid et al. 2018): two agents on one side, 2 actions each.

    In the first step the first agent's action chooses the matrix of the second step, and the reward is 0.
    Action 0 leads to 2A, where every joint action pays 7; action 1 leads to 2B, which pays [[0, 1], [1, 8]].
    Both agents observe the one-hot of the team's place: start, 2A or 2B. The best return is 8. A sum of
    the agents' own values cannot represent 2B; learners with such a sum get 7.
    """

    MATRICES = np.array([[[7, 7], [7, 7]], [[0, 1], [1, 8]]], np.float32)
    best = 8.0

    def __init__(self) -> None:
        self.spec = EnvSpec(
            name="games/two_step",
            agents=("agent_0", "agent_1"),
            observations=(Box((3,), 0.0, 1.0),) * 2,
            actions=(Discrete(2),) * 2,
            max_steps=2,
        )

    def reset(self, key: Array) -> tuple[Array, Observation]:
        """The state is the team's place: 0 at the start, 1 in 2A, 2 in 2B, and after the end that number plus 2."""
        return jnp.int32(0), self._observe(jnp.int32(0))

    def step(self, key: Array, state: Array, action: Array) -> tuple[Array, Observation, Array, Array, Array]:
        action = jnp.clip(action.astype(jnp.int32), 0, 1)
        second = state > 0
        paid = jnp.asarray(self.MATRICES)[jnp.clip(state - 1, 0, 1), action[0], action[1]]
        reward = jnp.broadcast_to(jnp.where(second, paid, 0.0), (2,))
        state = jnp.where(second, state + 2, 1 + action[0])
        return state, self._observe(state), reward, second, jnp.bool_(False)

    def render(self, states: Sequence[Array], size: int = 400) -> list[np.ndarray]:
        """Frames [size, size, 3] uint8 of one episode: the team's place."""
        from flockrl.envs.games.render import two_step_frames

        return two_step_frames(self.MATRICES, states, size)

    def _observe(self, state: Array) -> Observation:
        place = jnp.where(state > 2, state - 2, state)
        return Observation(jnp.broadcast_to((place == np.arange(3)).astype(jnp.float32), (2, 3)))


def payoff_tensor(payoff: Any, name: str, common: bool | None = None) -> np.ndarray:
    """Any accepted form of payoffs as [A1, ..., AN, N] float32."""
    try:
        tensor = np.asarray(payoff)
    except ValueError:
        tensor = np.empty(0, object)
    if tensor.dtype.kind not in "biuf":
        raise UsageError(f"{name}: the payoff must be a tensor of numbers with rows of equal length.")
    if not tensor.ndim or not tensor.size:
        shape = list(tensor.shape)
        raise UsageError(f"{name}: the payoff needs an axis of at least one action per agent, not shape {shape}.")
    if tensor.ndim > MOST_AXES:
        raise UsageError(f"{name}: the payoff has {tensor.ndim} axes, and games of up to {MOST_AXES} are read.")
    with np.errstate(over="ignore"):
        tensor = tensor.astype(np.float32)
    if not np.isfinite(tensor).all():
        at = [int(i) for i in np.argwhere(~np.isfinite(tensor))[0]]
        raise UsageError(f"{name}: every payoff must be a finite number, but the one at {at} is {tensor[tuple(at)]}.")
    agents = tensor.ndim - 1
    individual = agents > 0 and tensor.shape[-1] == agents
    if common is False and not individual:
        raise UsageError(f"{name}: a payoff per agent must have shape [A1, ..., AN, N], not {list(tensor.shape)}.")
    if individual and not common:
        return tensor
    return np.repeat(tensor[..., None], tensor.ndim, axis=-1)


def interchangeable(payoff: np.ndarray) -> np.ndarray:
    """[A] the class of each action in payoffs [A1, ..., AN, N]: two actions are of one class if nothing changes when
    all players exchange them. Where players have unlike numbers of actions, each is a class of its own."""
    counts = payoff.shape[:-1]
    classes = np.arange(max(counts))
    if len(set(counts)) != 1:
        return classes
    for a, b in itertools.combinations(range(counts[0]), 2):
        order = np.arange(counts[0])
        order[[a, b]] = b, a
        if np.array_equal(payoff[np.ix_(*[order] * len(counts))], payoff):
            classes[classes == classes[b]] = classes[a]
    return classes


def climbing(rounds: int = ROUNDS, history: bool = False) -> MatrixGame:
    """Climbing (Claus and Boutilier 1998), two agents with a common payoff: the best joint action (0, 0) pays 11, but
    if only one agent plays 0, both may lose 30. Learners therefore often end at (1, 1) with 7 or (2, 2) with 5."""
    return MatrixGame([[11, -30, 0], [-30, 7, 6], [0, 0, 5]], rounds, history, "games/climbing")


def penalty(k: float = -25.0, rounds: int = ROUNDS, history: bool = False) -> MatrixGame:
    """Penalty (Claus and Boutilier 1998), two agents with a common payoff: (0, 2) and (2, 0) both pay 10, but if the
    agents aim at different ones of them, they get `k` <= 0; (1, 1) is safe and pays 2."""
    if not -np.inf < k <= 0:
        raise UsageError(f"games/penalty: k must be a number of at most 0, not {k}.")
    return MatrixGame([[k, 0, 10], [0, 2, 0], [10, 0, k]], rounds, history, "games/penalty")


def prisoners_dilemma(rounds: int = ROUNDS, history: bool = False) -> MatrixGame:
    """Cooperate (0) or defect (1): both cooperate 3 each, both defect 1 each, one defects 5 for it and 0 for the other.
    In a single round, defecting is the dominant strategy."""
    return MatrixGame([[[3, 3], [0, 5]], [[5, 0], [1, 1]]], rounds, history, "games/prisoners_dilemma")


def stag_hunt(rounds: int = ROUNDS, history: bool = False) -> MatrixGame:
    """Stag (0) or hare (1): the stag pays 4 each if both hunt it, and 0 to an agent that hunts it alone; the hare pays
    3 whatever the other does. Both (0, 0) and (1, 1) are equilibria: stag pays more, hare is safer."""
    return MatrixGame([[[4, 4], [0, 3]], [[3, 0], [3, 3]]], rounds, history, "games/stag_hunt")


def matching_pennies(rounds: int = ROUNDS, history: bool = False) -> MatrixGame:
    """Zero-sum: agent_0 wins 1 from the other when the coins match, else loses 1. In the only equilibrium both play
    heads and tails with probability 0.5; its value is 0."""
    return MatrixGame([[[1, -1], [-1, 1]], [[-1, 1], [1, -1]]], rounds, history, "games/matching_pennies")


def chicken(
    rounds: int = ROUNDS,
    history: bool = False,
    both: float = 6.0,
    win: float = 7.0,
    lose: float = 2.0,
    crash: float = 0.0,
) -> MatrixGame:
    """Swerve (0) or go straight (1), with the payoffs of Aumann (1974): both swerve 6, straight against swerve 7 and 2,
    both straight 0. Equilibria: exactly one swerves, or both swerve with probability 2/3, which pays 14/3. With
    a signal (correlated equilibrium) both can get 5.25."""
    payoff = [[[both, both], [lose, win]], [[win, lose], [crash, crash]]]
    return MatrixGame(payoff, rounds, history, "games/chicken")


def battle_of_the_sexes(rounds: int = ROUNDS, history: bool = False) -> MatrixGame:
    """Both at 0 pays 3 and 2, both at 1 pays 2 and 3, different places pay 0. Equilibria: both at 0, both at 1, or
    each goes to its own favourite with probability 0.6."""
    return MatrixGame([[[3, 2], [0, 0]], [[0, 0], [2, 3]]], rounds, history, "games/battle_of_the_sexes")


def rock_paper_scissors(rounds: int = ROUNDS, history: bool = False) -> MatrixGame:
    """Rock (0), paper (1), scissors (2), zero-sum: winning pays 1. In the only equilibrium each is played with
    probability 1/3; its value is 0."""
    first = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]])
    return MatrixGame(np.stack([first, -first], -1), rounds, history, "games/rock_paper_scissors")


def shapley(rounds: int = ROUNDS, history: bool = False) -> MatrixGame:
    """Shapley's game (1964): agent_0 is paid 1 for choosing what the other chose, agent_1 for choosing the next one. In
    the only equilibrium all three are played with probability 1/3; fictitious play cycles and does not find it."""
    first = np.eye(3)
    return MatrixGame(np.stack([first, np.roll(first, 1, 1)], -1), rounds, history, "games/shapley")


def lever(rounds: int = 1, history: bool = False) -> MatrixGame:
    """The lever game (Hu et al. 2020), two agents with a common payoff: of ten levers both must pull the same one; nine
    pay 1 and the last pays 0.9. Partners who learned apart agree only on the last one."""
    return MatrixGame(np.diag([1.0] * 9 + [0.9]), rounds, history, "games/lever", common=True)


def two_step() -> TwoStepGame:
    """The two-step game of the QMIX paper: see `TwoStepGame`."""
    return TwoStepGame()


def file(path: str = "", rounds: int = ROUNDS, history: bool = False, common: bool | None = None) -> MatrixGame:
    """The payoff tensor in a .json (nested lists) or .npy file: see `MatrixGame` for its shapes."""
    if not path:
        raise UsageError("games/file needs the payoff file: write games/file:path=FILE.")
    if common not in (None, True, False):
        raise UsageError(f"games/file: setting common must be true or false, not {common!r}.")
    where = Path(str(path))
    if where.suffix.lower() not in (".json", ".npy"):
        raise UsageError(f"games/file: the payoff file must end in .json or .npy, not {where.name!r}.")
    payoff = read_content(where)
    refuse_wide(payoff, where)
    return MatrixGame(payoff, rounds, history, "games/file", common)


MATRIX_GAMES = {
    builder.__name__: builder
    for builder in (
        climbing, penalty, prisoners_dilemma, stag_hunt, matching_pennies, chicken, battle_of_the_sexes,
        rock_paper_scissors, shapley, lever, two_step, file,
    )
}  # fmt: skip
