"""Policy-space response oracles with learned responses (Lanctot et al. 2017), for games that need not be enumerable.

Each side has a pool of policies, which begins with an untrained one, and mixes them as a meta-solver says. In every
round an algorithm learns a response for each side against the others' mixtures, from which one policy is drawn as an
episode begins. What policies get against each other is measured by playing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.algos.assembly import Side, Sides, make_players
from flockrl.algos.presets import algorithms, make_config
from flockrl.algos.sides import compose
from flockrl.core.errors import UsageError, nearest
from flockrl.core.types import Mixture, PyTree
from flockrl.envs.registry import make
from flockrl.evaluation.playing import make_player, summarize
from flockrl.games.psro import Meta, mix
from flockrl.games.query import Examiner
from flockrl.training.ledger import Terms, holding, left_off
from flockrl.training.train import train

NOT_ZERO_SUM = 1e-3
"""Sums of returns up to this part of the largest one count as rounding."""
MOST = {"iterations": 1_000, "oracle_steps": 10**12, "episodes": 10**6, "envs": 10**6}
"""The largest numbers that make sense, whoever says them."""


class Round(NamedTuple):
    """policies: in each pool; nash_conv: of the mixtures, exactly, None where that is not known; gain: what the learned
    responses gain against them, summed over sides, by playing: a lower bound of NashConv (None for more sides)."""

    policies: int
    nash_conv: float | None
    gain: float | None


class LearnedPools(NamedTuple):
    """pools: the policies' parameters by side; weights: of the last mixtures by side, [K]; payoffs: [K, K, 2] mean
    returns of both sides, None where there are more; nash_conv: of the last mixtures, see `Round`; runs: by side, of
    all policies but the first."""

    pools: dict[str, list[PyTree]]
    weights: dict[str, np.ndarray]
    payoffs: np.ndarray | None
    nash_conv: float | None
    rounds: list[Round]
    runs: dict[str, list[Path]]


class _Game:
    """What stays the same over all rounds."""

    def __init__(self, env: Any, terms: Terms):
        if terms.oracle not in algorithms():
            raise UsageError(f"There is no algorithm {terms.oracle!r}.{nearest(terms.oracle, algorithms())}")
        self.env, self.place, self.terms, self.meta = env, make(env), terms, terms.meta
        self.spec = self.place.spec
        self.parties = self.spec.parties
        if len(set(self.spec.sides)) < 2:
            raise UsageError(f"All agents of {self.spec.name} are on one side: there is nobody to respond to.")
        if len(self.parties) != 2 and terms.meta != "uniform":
            raise UsageError(f"The meta-solver {terms.meta} is for two sides: use uniform.")
        self.learner = Side("learner", terms.oracle, make_config(terms.oracle, terms.settings))
        self.envs, self.seed = terms.envs, terms.seed
        steps, envs = self.learner.config.rollout_steps, terms.envs
        self.seats = make_players(self.spec, Sides(dict.fromkeys(self.parties, self.learner)), steps, envs, 1)
        self.team = compose(self.spec, self.seats)
        self._play = make_player(self.team, self.place, terms.episodes, True)
        self._examiner: Examiner | None = None
        with contextlib.suppress(UsageError):  # too large, or no game that can be enumerated
            self._examiner = Examiner(self.place)

    def first(self) -> dict[str, PyTree]:
        """An untrained policy of each side."""
        key = jax.random.key(self.seed)
        return {name: seat.algorithm.params(seat.algorithm.init(key)) for name, seat in self.seats.items()}

    def returns(self, params: Mapping[str, PyTree]) -> np.ndarray:
        """[sides] mean returns of the sides' agents, if these policies meet."""
        found = summarize(*self._play(dict(params), jax.random.key(1_000_003 + self.seed))).per_agent
        return np.array([found[list(own)].mean() for own in self.parties.values()])

    def nash_conv(self, pools: Mapping[str, list[PyTree]], weights: Mapping[str, np.ndarray]) -> float | None:
        """Of mixtures, exactly, where the game can be enumerated and each agent is a side."""
        if self._examiner is None or len(self.parties) < self.spec.num_agents:
            return None
        each = []
        for k in range(max(map(len, pools.values()))):
            odds = [float(w[k]) if k < len(w) else 0.0 for w in weights.values()]
            each.append((odds, {name: pool[min(k, len(pool) - 1)] for name, pool in pools.items()}))
        try:
            return self._examiner.gap_of_pools(self.team, each).nash_conv
        except UsageError:  # of policies that cannot be examined
            self._examiner = None
            return None

    def rival(self, name: str, pool: list[PyTree], weights: np.ndarray, size: int) -> Side:
        """A mixture as a side that does not learn. size: places, of which some stay empty."""
        padded = [*pool, *[pool[0]] * (size - len(pool))]
        odds = np.append(weights, np.zeros(size - len(pool)))
        params = Mixture(jax.tree.map(lambda *x: jnp.stack(x), *padded), jnp.asarray(odds, jnp.float32))
        origin = Sides({name: self.learner})
        given = SimpleNamespace(params=lambda: {name: params})
        return Side("frozen", self.learner.algorithm, origin, "pool", name, self.envs, given, size)

    def answer(
        self, name: str, number: int, pools: Mapping[str, list[PyTree]], weights: Mapping[str, np.ndarray], path: Path,
        trust: bool,
    ) -> PyTree:  # fmt: skip
        """The parameters of a side's response in a round, learned by the run at `path`, from where that was left.
        weights: of the mixtures that it answers; {} where it must have been learned before."""
        run = left_off(path, None if isinstance(self.env, str) else self.env, trust, anew=bool(weights))
        if run is None and not weights:
            raise UsageError(f"{path} is missing, and these pools cannot go on without it.")
        if run is None:
            terms, own = self.terms, dict[str, Any]({name: dict(self.terms.settings)})
            rivals = {o: self.rival(o, pools[o], weights[o], terms.iterations + 1) for o in pools if o != name}
            run = train(
                {name: terms.oracle, **rivals}, self.env, steps=terms.oracle_steps, envs=self.envs,
                seed=self.seed + number, eval_episodes=1, out=path, **own,
            )  # fmt: skip
        return run.params()[name]


def learned_psro(
    env: Any, oracle: str = "ippo", *, steps: int = 50_000, rounds: int = 10, meta: Meta = "nash", episodes: int = 400,
    envs: int = 16, seed: int = 0, out: str | Path, settings: Mapping[str, Any] | None = None,
    each: Callable[[Round], None] | None = None, trust: bool = False,
) -> LearnedPools:  # fmt: skip
    """Grow pools by responses that `oracle` learns in `steps` environment steps each.

    episodes: in which each pair of policies meets; settings: the oracle's; each: called after every round. out: where
    the responses' runs are written. Pools that were stopped there go on, if they have these settings, and end as if
    they had not been stopped; trust: whether code that the runs there name may be imported.
    """
    for name, number in {"iterations": rounds, "oracle_steps": steps, "episodes": episodes, "envs": envs}.items():
        if not 1 <= number <= MOST[name]:
            raise UsageError(f"{name} must be from 1 to {MOST[name]:,}, not {number}.")
    if meta not in get_args(Meta):
        raise UsageError(f"meta must be one of {', '.join(get_args(Meta))}, not {meta}.")
    path, called = Path(out), env if isinstance(env, str) else "custom"
    game = _Game(env, Terms(called, oracle, steps, rounds, meta, episodes, envs, seed, dict(settings or {})))
    pools: dict[str, list[PyTree]] = {name: [params] for name, params in game.first().items()}
    runs = {name: [path / f"round_{number}" / name for number in range(1, rounds + 1)] for name in pools}
    payoffs = _measured(game, pools, None)
    with holding(path, game.terms) as ledger:
        told = [Round(*row) for row in ledger.rounds]
        payoffs = payoffs if ledger.payoffs is None else ledger.payoffs
        weights: dict[str, np.ndarray] = {}
        for number in range(1, rounds + 1):
            known = number <= len(told)
            if not known:
                weights = _weights(game, pools, payoffs)
                conv = game.nash_conv(pools, weights)
            answers = {name: game.answer(name, number, pools, weights, runs[name][number - 1], trust) for name in pools}
            pools = {name: [*pool, answers[name]] for name, pool in pools.items()}
            if known:
                continue
            payoffs = _measured(game, pools, payoffs)
            told.append(Round(number, conv, _gain(weights, payoffs)))
            ledger.note(told[-1], payoffs)
            if each is not None:
                each(told[-1])
    weights = _weights(game, pools, payoffs)
    return LearnedPools(pools, weights, payoffs, game.nash_conv(pools, weights), told, runs)


def _measured(game: _Game, pools: Mapping[str, list[PyTree]], known: np.ndarray | None) -> np.ndarray | None:
    """[K, K, 2] what policies of both sides get against each other; pairs that met before are not played again."""
    if len(pools) != 2:
        return None
    (a, first), (b, second) = pools.items()
    table = np.zeros((len(first), len(second), 2))
    for i, j in np.ndindex(len(first), len(second)):
        met = known is not None and i < len(known) and j < len(known)
        table[i, j] = known[i, j] if met and known is not None else game.returns({a: first[i], b: second[j]})
    if game.meta == "nash" and np.abs(table.sum(-1)).max() > NOT_ZERO_SUM * max(1.0, np.abs(table).max()):
        raise UsageError(
            f"The meta-solver nash is for two sides of which one gains what the other loses, and those of "
            f"{game.spec.name} do not: use uniform or alpha-rank."
        )
    return table


def _weights(game: _Game, pools: Mapping[str, list[PyTree]], payoffs: np.ndarray | None) -> dict[str, np.ndarray]:
    if payoffs is None:
        return {name: np.full(len(pool), 1 / len(pool)) for name, pool in pools.items()}
    return dict(zip(pools, mix(payoffs, game.meta), strict=True))


def _gain(weights: Mapping[str, np.ndarray], payoffs: np.ndarray | None) -> float | None:
    """How much more the newest policies get against the others' mixtures of older ones than these mixtures do, in all.
    payoffs: with the newest in the last row and column."""
    if payoffs is None:
        return None
    first, second = weights.values()
    before = [float(first @ payoffs[:-1, :-1, s] @ second) for s in range(2)]
    return float(payoffs[-1, :-1, 0] @ second - before[0] + first @ payoffs[:-1, -1, 1] - before[1])
