"""Learned policies in games that can be enumerated: asked at every point, and held against best responses, exactly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.types import Actor, Algorithm, Mixture, Observation, PyTree
from flockrl.envs.games.matrix import MatrixGame
from flockrl.envs.games.rules import RulesEnv
from flockrl.games.extensive import Extensive, unfold
from flockrl.games.markov import MarkovGame, from_rules
from flockrl.games.normal import NormalForm, from_matrix_game
from flockrl.games.sequence import Gap

CHEAP = 20_000
"""The most histories or states of a game whose NashConv is computed in every evaluation of a run."""
BATCH = 2_048
ALIKE = 1e-3
"""By how much a policy's probabilities may differ between histories that its player cannot tell apart."""


class Question(NamedTuple):
    """What K teams see at once. parents: [K] the row of the question before that each goes on from."""

    seen: np.ndarray
    legal: np.ndarray
    parents: np.ndarray


class Examiner:
    """A game, unfolded once, in which policies can be examined many times."""

    def __init__(self, env: Any, most: int | None = None):
        self.env, self.game = env, unfolded(env, most)
        self._ask: Any = None

    def gap(self, actor: Algorithm | Actor, params: PyTree, sampled: bool = True) -> Gap:
        """What each player gets, and what it would gain by a best response to the others.

        sampled: the policy as it draws its actions, where it does; otherwise its most likely actions.
        """
        if isinstance(actor, Algorithm) and actor.member is not None:
            return self._gap_of_mixture(actor.member, params, sampled)
        answers = list(self._answers(actor, params, sampled))
        if isinstance(self.game, Extensive):
            return self.game.form.gap(_to_policies(self.game, answers))
        if isinstance(self.game, MarkovGame):
            return self.game.gap([answers[0][:, i] for i in range(self.game.players)])[0]
        return _gap_of_rounds(self.game, answers)

    def _gap_of_mixture(self, member: Actor, mixture: Mixture, sampled: bool) -> Gap:
        """The same for a policy that is drawn as an episode begins."""
        odds = np.asarray(mixture.odds, float)
        players = len(self.env.spec.agents)
        each = [
            ([weight] * players, jax.tree.map(lambda x, k=k: x[k], mixture.params))
            for k, weight in enumerate(odds / odds.sum())
        ]
        return self.gap_of_pools(member, each, sampled)

    def gap_of_pools(
        self, actor: Algorithm | Actor, pools: Sequence[tuple[Sequence[float], PyTree]], sampled: bool = True
    ) -> Gap:
        """The same where each player draws one of several policies as an episode begins: by what it does with which
        probability. pools: how likely each player [N] draws a team's policy, and that team's parameters."""
        each = [(odds, list(self._answers(actor, params, sampled))) for odds, params in pools if max(odds) > 0]
        if isinstance(self.game, Extensive):
            seats, form = self.game.form.seats, self.game.form
            plans = [[s.plan(p) for s, p in zip(seats, _to_policies(self.game, a), strict=True)] for _, a in each]
            mean: list[Any] = [
                sum(w[i] * p[i] for (w, _), p in zip(each, plans, strict=True)) for i in range(len(seats))
            ]
            return form.gap([seat.policy(plan) for seat, plan in zip(seats, mean, strict=True)])
        if isinstance(self.game, MarkovGame):
            raise UsageError(
                f"{self.game.name} is solved by its states, and this policy is a mixture that remembers its draw: its "
                "exploitability cannot be computed exactly."
            )
        rounds: list[Any] = [sum(np.asarray(w)[None, :, None] * a[t] for w, a in each) for t in range(len(each[0][1]))]
        return _gap_of_rounds(self.game, rounds)

    def samples(self, actor: Algorithm | Actor, params: PyTree) -> bool:
        """Whether `sampled` makes a difference: the policy draws, and tells with which probability."""
        question = next(self._questions())
        seen, legal = jnp.asarray(question.seen[:1]), jnp.asarray(question.legal[:1])
        return tells(actor, params, Observation(seen, avail=legal), actor.memory(1))

    def _questions(self) -> Iterator[Question]:
        if isinstance(self.game, Extensive):
            for moment in self.game.moments:
                yield Question(moment.seen, moment.legal, moment.parents)
        elif isinstance(self.game, MarkovGame):
            assert self.game.seen is not None
            yield Question(self.game.seen.astype(np.float32), self.game.legal, np.zeros(self.game.states, int))
        else:
            counts = self.game.counts
            legal = np.stack([np.arange(max(counts)) < n for n in counts])[None]
            seen = np.asarray(self.env.reset(jax.random.key(0))[1].obs)[None]
            for _ in range(self.env.rounds):
                yield Question(seen, legal, np.zeros(1, int))

    def _answers(self, actor: Algorithm | Actor, params: PyTree, sampled: bool) -> Iterator[np.ndarray]:
        """Probabilities [K, N, A] of the team's actions at each question, its memory included."""
        if isinstance(self.game, MarkovGame) and jax.tree.leaves(actor.memory(1)):
            raise UsageError(
                f"{self.game.name} is solved by its states, and this policy remembers: its exploitability cannot be "
                "computed exactly."
            )
        if self._ask is None or self._ask[0] is not actor or self._ask[2] != sampled:
            self._ask = (actor, jax.jit(_asked(actor, sampled)), sampled)
        memory = jax.tree.map(np.asarray, actor.memory(1))
        for question in self._questions():
            before = jax.tree.map(lambda x, rows=question.parents: x[rows], memory)
            answer, memory = self._in_batches(params, question, before)
            yield answer

    def _in_batches(self, params: PyTree, question: Question, memory: PyTree) -> tuple[np.ndarray, PyTree]:
        count = len(question.seen)
        size = BATCH if count > 64 else 64
        parts = []
        for start in range(0, count, size):
            rows = np.minimum(np.arange(start, start + size), count - 1)
            given = (question.seen[rows], question.legal[rows], jax.tree.map(lambda x, rows=rows: x[rows], memory))
            found = self._ask[1](params, *given)
            parts.append(jax.tree.map(lambda x, left=count - start: np.asarray(x)[:left], found))
        return jax.tree.map(lambda *x: np.concatenate(x), *parts)


def _gap_of_rounds(game: NormalForm, answers: list[np.ndarray]) -> Gap:
    """Of a matrix game, from the players' probabilities [1, N, A] in each round."""
    rounds = [game.gap([row[0, i, :n] for i, n in enumerate(game.counts)]) for row in answers]
    return Gap(sum(r.values for r in rounds), sum(r.gains for r in rounds))  # type: ignore[arg-type]


def unfolded(env: Any, most: int | None = None) -> Extensive | MarkovGame | NormalForm:
    """The game that an environment plays, ready to be examined. most: of histories or states."""
    if isinstance(env, RulesEnv):
        if env.rules.recall:
            return unfold(env.rules) if most is None else unfold(env.rules, most)
        return from_rules(env.rules)
    if isinstance(env, MatrixGame):
        if env.history and env.rounds > 1:
            raise UsageError(
                f"{env.spec.name}: with history=true and several rounds the exploitability is not computed exactly."
            )
        return from_matrix_game(env)
    name = getattr(getattr(env, "spec", None), "name", "This environment")
    raise UsageError(f"{name} is no game that can be enumerated, so that its exploitability is not computed exactly.")


def cheap_examiner(env: Any) -> Examiner | None:
    """An examiner for every evaluation of a run, or None where there is no exact answer or it would take long."""
    if isinstance(env, MatrixGame):
        if len(set(env.spec.sides)) == 1 or env.payoff[..., 0].size > CHEAP:
            return None
    elif not isinstance(env, RulesEnv) or not env.rules.recall:
        return None
    try:
        return Examiner(env, CHEAP)
    except UsageError:
        return None


def tells(actor: Algorithm | Actor, params: PyTree, observation: Observation, memory: PyTree) -> bool:
    """Whether a policy tells the probability of what it draws; otherwise only its most likely actions are known."""
    key = jax.random.key(0)
    return "logp" in jax.eval_shape(lambda p, o, m: actor.act(p, o, m, key, True), params, observation, memory)[2]


def _asked(actor: Algorithm | Actor, sampled: bool) -> Any:
    """A function (params, seen, legal, memory) -> (probabilities [K, N, A], memory after it).

    A policy draws among legal actions in proportion to weights, and tells the log-probability of what it drew. If only
    two actions are legal, that gives the ratio of their weights. So it is asked about each action beside the most
    likely one. A policy that tells no log-probability is taken by its most likely action.
    """

    def ask(params: PyTree, seen: Any, legal: Any, memory: PyTree) -> tuple[Any, PyTree]:
        key = jax.random.key(0)
        observation = Observation(seen, avail=legal)
        mode, after, _ = actor.act(params, observation, memory, key, False)
        chosen = jax.nn.one_hot(mode, legal.shape[-1], dtype=bool)
        if not sampled or not tells(actor, params, observation, memory):
            return chosen.astype(jnp.float32), after

        def beside(action: Any) -> Any:
            """[K, N] the weight of an action as a share of the most likely one's."""
            this = jnp.arange(legal.shape[-1]) == action
            drawn, _, extras = actor.act(params, observation._replace(avail=(chosen | this) & legal), memory, key, True)
            odds = jnp.exp(extras["logp"])
            share = jnp.where(drawn == action, odds, 1.0 - odds)
            return jnp.where(
                mode == action, 1.0, jnp.where(legal[..., action], share / jnp.maximum(1.0 - share, 1e-9), 0)
            )

        weights = jnp.moveaxis(jax.lax.map(beside, jnp.arange(legal.shape[-1])), 0, -1)
        return weights / weights.sum(-1, keepdims=True), after

    return ask


def _to_policies(game: Extensive, answers: list[np.ndarray]) -> list[np.ndarray]:
    """Probabilities at all histories as policies [S] of the players; those of one information set must agree."""
    policies = []
    for player, seat in enumerate(game.form.seats):
        low, high = np.full(len(seat.actions), np.inf), np.full(len(seat.actions), -np.inf)
        for moment, answer in zip(game.moments, answers, strict=True):
            rows = np.nonzero(moment.sets[:, player] >= 0)[0]
            sets = moment.sets[rows, player]
            counts = seat.counts[sets]
            inside = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            sequences = np.repeat(seat.starts[sets], counts) + inside
            values = answer[np.repeat(rows, counts), player, seat.actions[sequences]].astype(float)
            np.minimum.at(low, sequences, values)
            np.maximum.at(high, sequences, values)
        if (high[1:] - low[1:]).max(initial=0.0) > ALIKE:
            raise UsageError(
                f"{game.name}: the policy of player {player} acts on what it cannot see, such as messages of "
                "the other, so that it has no exploitability."
            )
        policies.append(seat.policy(np.concatenate([[1.0], high[1:]])))
    return policies
