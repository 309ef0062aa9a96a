"""Curricula: a run whose environment grows harder in stages, each a value of one of its settings.

A stage is a program like any other. Where the setting is a number that the environment reads at every step
(`tunable`), all stages are one program and nothing is compiled anew; where shapes change, the learner's state goes on
with networks that do not depend on them. The stage is part of the checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from flockrl.core.errors import UsageError
from flockrl.core.types import EnvSpec, PyTree
from flockrl.envs.host.env import Host
from flockrl.envs.registry import make
from flockrl.rollouts.compiled import Episodes
from flockrl.training.channels import around
from flockrl.training.compiled import CompiledProgram
from flockrl.training.config import RunConfig
from flockrl.training.program import TrainState
from flockrl.training.programs import make_program
from flockrl.training.stages import STEPS, Curriculum
from flockrl.training.warm import resized

OF_EXPERIENCE = re.compile(r"\b(replay|critic_memory)\b")
"""Parts of a learner's state that are made of experience: where observations change, they begin anew."""


class Staged:
    """The program of one seed with a curriculum. What the loop calls goes to the program of the present stage."""

    def __init__(self, config: RunConfig, curriculum: Curriculum, stage: int = 0):
        self.config, self.curriculum, self.stage = config, curriculum, stage
        self.compile_seconds, self.note, self.recording = 0.0, "", None
        self.env: Any = None
        self._program = self._make(stage)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    def _place(self, stage: int) -> Any:
        return around(self.config.config, make(self.curriculum.env(self.config.env, stage)))

    def _make(self, stage: int) -> CompiledProgram:
        env = self._place(stage)
        if isinstance(env, Host):
            raise UsageError(f"A curriculum needs a compiled environment, and {self.config.env} runs on the host.")
        program = make_program(self.config, env)
        self.env = env
        assert isinstance(program, CompiledProgram)
        if self.curriculum.setting in getattr(env, "tunable", ()):
            program.settings = self._tuned(stage)
        return program

    def _tuned(self, stage: int) -> dict[str, Any]:
        return {self.curriculum.setting: jnp.float32(self.curriculum.values[stage])}

    def check(self) -> None:
        """Refuse stages that cannot be made, or between which the learner's state cannot go on."""
        before, env = self._program, self.env
        for stage in range(self.stage + 1, len(self.curriculum.values)):
            after = self._make(stage)
            specs = before.setting.spec, after.setting.spec
            jax.eval_shape(
                lambda old, new, specs=specs: carried(old, new, *specs), before.shape().learner, after.shape().learner
            )
            before = after
        self.env = env

    def compile(self, seed: int) -> None:
        self._program.compile(seed)
        self.compile_seconds += self._program.compile_seconds

    def run(self, state: TrainState, seed: int, count: int) -> tuple[TrainState, Episodes, dict[str, Any]]:
        state, episodes, metrics = self._program.run(state, seed, count)
        return state, episodes, {**metrics, "stage": jnp.float32(self.stage)}

    def due(self, step: int, row: Mapping[str, Any]) -> bool:
        """Whether the next stage begins after so many steps of the run, with these figures."""
        if self.stage + 1 == len(self.curriculum.values):
            return False
        if self.curriculum.metric == STEPS:
            return step >= (self.stage + 1) * self.curriculum.level
        value = row.get(self.curriculum.metric)
        if value is None and "eval_return" in row:
            raise UsageError(
                f"An evaluation here has no {self.curriculum.metric!r}, which the curriculum waits for: it has "
                f"{', '.join(name for name in row if isinstance(row[name], int | float) and name.startswith('eval'))}."
            )
        return value is not None and value >= self.curriculum.level

    def climb(self, state: TrainState, seed: int) -> TrainState:
        """The state in which the next stage begins: with new environments where it has another program."""
        self.stage += 1
        if self._program.settings:
            self._program.settings = self._tuned(self.stage)
            self.env = self._place(self.stage)
            return state
        old, self._program = self._program, self._make(self.stage)
        self.compile(seed)
        fresh = self._program.start_state(seed, self.stage)
        learner = carried(state.learner, fresh.learner, old.setting.spec, self._program.setting.spec)
        return TrainState(learner, fresh.actors, state.iteration)


def carried(old: PyTree, fresh: PyTree, theirs: EnvSpec, mine: EnvSpec) -> PyTree:
    """A learner's state of one stage as one of the next: all of it, but experience of other shapes."""
    same = theirs.num_agents == mine.num_agents and theirs.obs_size == mine.obs_size
    known = {jax.tree_util.keystr(p): x for p, x in jax.tree_util.tree_leaves_with_path(resized(old, theirs, mine))}

    def fit(path: Any, leaf: Any) -> Any:
        where = jax.tree_util.keystr(path)
        if not same and OF_EXPERIENCE.search(where):
            return leaf
        was = known.get(where)
        if was is None or was.shape != leaf.shape or was.dtype != leaf.dtype:
            raise UsageError(
                f"A curriculum from {theirs.num_agents} agents that see {theirs.obs_size} numbers to {mine.num_agents} "
                f"that see {mine.obs_size} needs networks that do not depend on these, and {where} does: use --net "
                "entities, with a learner without a mixer of all agents."
            )
        return was

    return jax.tree_util.tree_map_with_path(fit, fresh)
