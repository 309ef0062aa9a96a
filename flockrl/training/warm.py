"""Warm starts: a run that begins with parameters of other runs."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flockrl.algos.assembly import Sides
from flockrl.algos.wrappers.adversary import AttackState
from flockrl.algos.wrappers.held import HeldState
from flockrl.algos.wrappers.self_play import SelfPlayState
from flockrl.core.errors import UsageError
from flockrl.core.types import EnvSpec, PyTree
from flockrl.training.config import RunConfig
from flockrl.training.players import frozen_params
from flockrl.training.run import Run

NOT_LEARNED = re.compile(r"\b(optimiser|replay|iterations|updates|critic_memory)\b")
"""Parts of a learner's state that belong to its own history: a new run begins them anew."""
PER_AGENT = re.compile(r"\b(value_moments|paid)\b")
"""Parts that have one number for each agent, equal within a kind."""
SHOWN = 3
"""Names that an error lists before it only counts the others."""


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


def _init_from(config: RunConfig, learner: PyTree, partly: bool, spec: EnvSpec | None) -> tuple[PyTree, str]:
    path, _, side = config.init_from.partition(":")
    run = Run(path)
    source = run.learner(lambda name: not NOT_LEARNED.search(name))
    if side:
        if not isinstance(run.config.config, Sides) or side not in source:
            raise UsageError(f"{path} has no side {side!r} to begin with.")
        source = source[side]
    if side and isinstance(config.config, Sides):
        if side not in learner:
            raise UsageError(f"This run has no side {side!r} that could begin with {config.init_from}.")
        taken, note = take_over(source, learner[side], config.init_from, partly)
        return {**learner, side: taken}, note
    while isinstance(source, HeldState | SelfPlayState | AttackState):
        source = source.learner
    if spec is not None and not side:
        source = resized(source, run.spec, spec)
    return _within(source, learner, config.init_from, partly)


def _within(source: PyTree, learner: PyTree, name: str, partly: bool) -> tuple[PyTree, str]:
    """`take_over` by the learner itself: whom it practises with and settings that it holds begin anew."""
    if not isinstance(learner, HeldState | SelfPlayState | AttackState):
        return take_over(source, learner, name, partly)
    taken, note = _within(source, learner.learner, name, partly)
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


def take_over(source: PyTree, learner: PyTree, name: str, partly: bool) -> tuple[PyTree, str]:
    """`learner` with the parameters and normalisers of `source` where names and shapes agree.

    What does not fit is refused by name unless `partly`.
    """
    known = {jax.tree_util.keystr(p): x for p, x in jax.tree_util.tree_leaves_with_path(source)}
    taken, wrong = 0, []

    def fit(path: Any, leaf: Any) -> Any:
        nonlocal taken
        where = jax.tree_util.keystr(path)
        if NOT_LEARNED.search(where):
            return leaf
        old = known.pop(where, None)
        if old is None or old.shape != leaf.shape or old.dtype != leaf.dtype:
            there = "is not there" if old is None else f"is {list(old.shape)} there"
            wrong.append(f"{where} {list(leaf.shape)} {there}")
            return leaf
        taken += 1
        return jnp.asarray(old)

    result = jax.tree_util.tree_map_with_path(fit, learner)
    wrong += [f"{where} {list(x.shape)} is only there" for where, x in known.items() if not NOT_LEARNED.search(where)]
    listed = "; ".join(wrong[:SHOWN]) + (f"; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else "")
    if not taken:
        raise UsageError(f"Nothing of {name} fits this run: {listed}.")
    if wrong and not partly:
        raise UsageError(f"{name} does not fit this run: {listed}. Use --init-partly to take over what fits.")
    return result, f"{taken} arrays from {name}" + (f", {len(wrong)} did not fit: {listed}" if wrong else "")
