"""Warm starts: a run that begins with parameters of other runs."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.algos.assembly import Sides
from flockrl.algos.parts import check_layers, in_layers, layer_names
from flockrl.algos.wrappers.adversary import AttackState
from flockrl.algos.wrappers.held import HeldState
from flockrl.algos.wrappers.league import LeagueState, first
from flockrl.algos.wrappers.self_play import SelfPlayState
from flockrl.core.errors import UsageError
from flockrl.core.types import EnvSpec, PyTree
from flockrl.training.config import RunConfig
from flockrl.training.players import frozen_params
from flockrl.training.run import Run

EXPERIENCE = "replay|critic_memory|earned"
OF_EXPERIENCE = re.compile(rf"\b({EXPERIENCE})\b")
"""Parts of a learner's state that are made of experience: where observations change, they begin anew."""
NOT_LEARNED = re.compile(rf"\b(optimiser|iterations|updates|{EXPERIENCE})\b")
"""Parts of a learner's state that belong to its own history: a new run begins them anew."""
UNIT = re.compile(r"\bscales\.reward\.most\b")
"""Largest discounted sum of rewards, of a learner that counts them in a unit."""
PER_AGENT = re.compile(r"\b(value_moments|paid|most)\b")
"""Parts that have one number for each agent, equal within a kind."""
SHOWN = 3
"""Names that an error lists before it only counts the others."""


class Changes(NamedTuple):
    """What a run that is taken over calls otherwise, or does not give. kinds: (there, here) names of entities; actions:
    (there, here) numbers of actions, where only these are taken over; sizes: (there, here) how many actions there are.
    reinit: layers that begin anew."""

    kinds: tuple[tuple[str, str], ...] = ()
    actions: tuple[tuple[int, int], ...] = ()
    sizes: tuple[int, int] = (0, 0)
    reinit: tuple[str, ...] = ()

    def source_of(self, where: str) -> str:
        """The name there of an array `where` here."""
        for there, here in self.kinds:
            for layer in ("", "_0", "_1"):
                mine, theirs = (f"['kind_{name}{layer}']" for name in (here, there))
                if mine in where:
                    return where.replace(mine, theirs)
        return where

    def taken(self, old: Any, leaf: Any) -> Any:
        """An array of the other run as one of this run, maybe with its last axis, the actions, in another order."""
        ends = (old.shape[-1:], leaf.shape[-1:]) == ((self.sizes[0],), (self.sizes[1],))
        if not self.actions or not ends or old.shape[:-1] != leaf.shape[:-1]:
            return jnp.asarray(old)
        fresh = jnp.zeros(leaf.shape, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf
        was, now = np.array(self.actions).T
        return fresh.at[..., now].set(jnp.asarray(old)[..., was])


def changes_of(config: RunConfig, theirs: EnvSpec, mine: EnvSpec) -> Changes:
    """What a user says: `landmark=goal,action:1=4` and `head,torso.dense_0`."""
    kinds: list[tuple[str, str]] = []
    actions: list[tuple[int, int]] = []
    for word in layer_names(config.init_map):
        there, equals, here = (part.strip() for part in word.partition("="))
        numbers = re.fullmatch(r"action:(\d{1,6})=(\d{1,6})", f"{there}={here}")
        if not equals or not there or not here or ("action:" in there and numbers is None):
            raise UsageError(
                "Write init_map as THERE=HERE, kinds of entities or action:NUMBER=NUMBER, separated by commas, not "
                f"{word!r}."
            )
        if numbers is None:
            _require_kind(there, theirs)
            _require_kind(here, mine)
            kinds.append((there, here))
            continue
        was, now = int(numbers[1]), int(numbers[2])
        if was >= theirs.action_size or now >= mine.action_size or now in [x for _, x in actions]:
            raise UsageError(
                f"init_map: {theirs.name} has actions 0 to {theirs.action_size - 1}, {mine.name} 0 to "
                f"{mine.action_size - 1}, each of which is taken over once: {word!r} cannot be."
            )
        actions.append((was, now))
    sizes = (theirs.action_size, mine.action_size)
    return Changes(tuple(kinds), tuple(actions), sizes, layer_names(config.reinit))


def _require_kind(name: str, spec: EnvSpec) -> None:
    known = sorted({kind.name for entities in spec.entities for kind in entities.kinds})
    if name not in known:
        raise UsageError(
            f"init_map: {spec.name} has no entities {name!r}"
            + (f", but {', '.join(known)}." if known else "; it describes none.")
        )


def begin(config: RunConfig, learner: PyTree, partly: bool, spec: EnvSpec | None = None) -> tuple[PyTree, str]:
    """A fresh learner's state with what it takes over from other runs, and a sentence about that (may be empty).

    spec: of the environment that it learns in, which may have other numbers of agents than theirs.
    """
    note = ""
    if config.init_from:
        learner, note = _init_from(config, learner, partly, spec)
    if isinstance(learner, dict) and isinstance(config.config, Sides):
        learner = {**learner, **frozen_params(config.config)}
    return learner, note


def begin_trainer(trainer: Any, init_from: str) -> str:
    """Let a new trainer begin with the parameters of a run of the same algorithm; a sentence about that."""
    run = Run(init_from)
    source = run.learner(lambda name: not NOT_LEARNED.search(name))
    trainer._state, note = take_over(source, trainer._state, init_from, partly=False)
    trainer._acting.forget()
    return note


def _init_from(config: RunConfig, learner: PyTree, partly: bool, spec: EnvSpec | None) -> tuple[PyTree, str]:
    path, _, side = config.init_from.partition(":")
    run = Run(path)
    changes = changes_of(config, run.spec, run.spec if spec is None else spec)
    source = run.learner(lambda name: not NOT_LEARNED.search(name))
    if side:
        if not isinstance(run.config.config, Sides) or side not in source:
            raise UsageError(f"{path} has no side {side!r} to begin with.")
        source = source[side]
    if side and isinstance(config.config, Sides):
        if side not in learner:
            raise UsageError(f"This run has no side {side!r} that could begin with {config.init_from}.")
        taken, note = take_over(source, learner[side], config.init_from, partly, changes)
        return {**learner, side: taken}, note
    while isinstance(source, HeldState | SelfPlayState | AttackState):
        source = source.learner
    if isinstance(source, LeagueState):
        source = first(source.learners)
    if isinstance(learner, LeagueState):
        raise UsageError("The learners of a league begin anew: leave out --init-from.")
    if spec is not None and not side:
        source = resized(source, run.spec, spec)
    return _within(source, learner, config.init_from, partly, changes)


def _within(source: PyTree, learner: PyTree, name: str, partly: bool, changes: Changes) -> tuple[PyTree, str]:
    """`take_over` by the learner itself: whom it practises with and settings that it holds begin anew."""
    if not isinstance(learner, HeldState | SelfPlayState | AttackState):
        return take_over(source, learner, name, partly, changes)
    taken, note = _within(source, learner.learner, name, partly, changes)
    return learner._replace(learner=taken), note


def resized(source: PyTree, theirs: EnvSpec, mine: EnvSpec) -> PyTree:
    """A learner's state as it would be with other numbers of agents: what is kept for each agent of a kind, and the
    same for all of that kind, is given to those of the same kind here."""
    if theirs.num_agents == mine.num_agents or not set(mine.groups) <= set(theirs.groups):
        return source
    places = np.array([theirs.groups.index(kind) for kind in mine.groups])

    def fit(path: Any, leaf: Any) -> Any:
        own = PER_AGENT.search(jax.tree_util.keystr(path)) and leaf is not None and leaf.shape == (theirs.num_agents,)
        return leaf[places] if own else leaf

    return jax.tree_util.tree_map_with_path(fit, source)


def take_over(
    source: PyTree, learner: PyTree, name: str, partly: bool, changes: Changes | None = None
) -> tuple[PyTree, str]:
    """`learner` with the parameters and normalisers of `source` where names and shapes agree, after these changes.

    What does not fit is refused by name unless `partly`.
    """
    changes = changes or Changes()
    known = {jax.tree_util.keystr(p): x for p, x in jax.tree_util.tree_leaves_with_path(source)}
    check_layers("reinit", ",".join(changes.reinit), [learner])
    used, taken, wrong = set(), 0, []

    def fit(path: Any, leaf: Any) -> Any:
        nonlocal taken
        where = jax.tree_util.keystr(path)
        if NOT_LEARNED.search(where):
            return leaf
        there = changes.source_of(where)
        used.add(there)
        if in_layers(path, changes.reinit):
            return leaf
        old = known.get(there)
        new = leaf if old is None else changes.taken(old, leaf)
        if old is None or new.shape != leaf.shape or new.dtype != leaf.dtype:
            found = "is not there" if old is None else f"is {list(old.shape)} there"
            wrong.append(f"{where} {list(leaf.shape)} {found}")
            return leaf
        taken += 1
        return new

    result = jax.tree_util.tree_map_with_path(fit, learner)
    left = {where: x for where, x in known.items() if where not in used and not NOT_LEARNED.search(where)}
    wrong += [f"{where} {list(x.shape)} is only there" for where, x in left.items()]
    listed = "; ".join(wrong[:SHOWN]) + (f"; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else "")
    if not taken:
        raise UsageError(f"Nothing of {name} fits this run: {listed}.")
    for word, flag in (("is not there", "--no-normalize-reward"), ("is only there", "--normalize-reward")):
        if any(UNIT.search(row) and row.endswith(word) for row in wrong):
            raise UsageError(f"{name} counts rewards otherwise than this run, and so its values: set {flag}.")
    if wrong and not partly:
        raise UsageError(f"{name} does not fit this run: {listed}. Use --init-partly to take over what fits.")
    return result, f"{taken} arrays from {name}" + (f", {len(wrong)} did not fit: {listed}" if wrong else "")
