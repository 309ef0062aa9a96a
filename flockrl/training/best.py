"""The best evaluation of a run so far, and the policy that reached it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from flockrl.core.types import Algorithm, PyTree
from flockrl.training.figures import side_names


class Best:
    """The best of one seed. Where agents oppose each other, each side has a best figure of its own and no policy is
    kept, since what is best for one side is not for another.

    figures: the largest value of each figure by name. step: after which step the policy was made, None where there is
    none. policy: its parameters as NumPy arrays.
    """

    def __init__(self, sides: Mapping[str, Any], meta: Mapping[str, Any] | None = None, policy: PyTree = None):
        """meta: what `meta` returned before, as a checkpoint has it, and `policy`: what that checkpoint holds."""
        meta = meta or {}
        self.names = tuple(side_names(sides, "eval_return")) or ("eval_return",)
        self.alone = not sides
        self.figures: dict[str, float] = dict(meta.get("best", {}))
        self.step: int | None = None if policy is None else int(meta["best_step"])
        self.policy = policy

    def note(self, row: Mapping[str, Any], step: int, algorithm: Algorithm, learner: PyTree) -> None:
        """Compare an evaluation after `step` steps with the best before it. The first of equals is kept."""
        for name in self.names:
            if row[name] <= self.figures.get(name, -math.inf):
                continue
            self.figures[name] = row[name]
            if self.alone:
                self.step, self.policy = step, jax.tree.map(np.array, algorithm.params(learner))

    def meta(self) -> dict[str, Any]:
        return {"best": self.figures, "best_step": self.step}

    def result(self) -> dict[str, Any]:
        """What result.json says about it."""
        return {
            "best_eval_return": self.figures.get("eval_return"),
            "best_step": self.step,
            **{f"best_{name}": self.figures.get(name) for name in self.names if name != "eval_return"},
        }
