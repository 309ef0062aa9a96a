"""Curricula: a run whose environment grows harder in stages, each a value of one of its settings.

A stage is a program like any other. Where the setting is a number that the environment reads at every step
(`tunable`), all stages are one program and nothing is compiled anew; where shapes change, the learner's state goes on
with networks that do not depend on them. Stages follow each other, or are chosen by how fast the team learns in them
(Matiisen et al. 2017, arXiv 1707.00183). The position is part of the checkpoint.
"""

from __future__ import annotations

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
from flockrl.training.stages import FEWEST, STEPS, Curriculum, Position, position_of
from flockrl.training.warm import OF_EXPERIENCE, resized


class Staged:
    """The program of one seed with a curriculum. What the loop calls goes to the program of the present stage.

    Where progress chooses, stages come again: their programs are kept, and each is compiled once.
    """

    def __init__(self, config: RunConfig, curriculum: Curriculum, position: Position | None = None):
        self.config, self.curriculum = config, curriculum
        self.position = position or position_of(curriculum)
        self.compile_seconds, self.note, self.recording = 0.0, "", None
        self._kept: dict[int, CompiledProgram] = {}
        self.env = self._place(self.stage)
        self._program = self._make(self.env)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    @property
    def stage(self) -> int:
        return self.position.stage

    def _place(self, stage: int) -> Any:
        """The environment of a stage."""
        env = around(self.config.config, make(self.curriculum.env(self.config.env, stage)))
        if isinstance(env, Host):
            raise UsageError(f"A curriculum needs a compiled environment, and {self.config.env} runs on the host.")
        return env

    def _make(self, env: Any) -> CompiledProgram:
        program = make_program(self.config, env)
        assert isinstance(program, CompiledProgram)
        if self.curriculum.setting in getattr(env, "tunable", ()):
            program.settings = self._tuned()
        return program

    def _tuned(self) -> dict[str, Any]:
        return {self.curriculum.setting: jnp.float32(self.curriculum.values[self.stage])}

    def check(self) -> None:
        """Refuse stages that cannot be made, or between which the learner's state cannot go on."""
        before, back = self._program, self.curriculum.level is None
        for stage in range(0 if back else self.stage + 1, len(self.curriculum.values)):
            env = self._place(stage)
            if self._program.settings or stage == self.stage:
                continue
            after = self._make(env)
            for old, new in ((before, after), (after, before))[: 1 + back]:
                specs = old.setting.spec, new.setting.spec
                jax.eval_shape(
                    lambda was, is_now, specs=specs: carried(was, is_now, *specs),
                    old.shape().learner, new.shape().learner,
                )  # fmt: skip
            before = after

    def compile(self, seed: int) -> None:
        self._program.compile(seed)
        self.compile_seconds += self._program.compile_seconds

    def run(self, state: TrainState, seed: int, count: int) -> tuple[TrainState, Episodes, dict[str, Any]]:
        state, episodes, metrics = self._program.run(state, seed, count)
        metrics = {**metrics, "stage": jnp.float32(self.stage)}
        if self.position.met and self.position.met[self.stage].times >= FEWEST:
            metrics["learning_progress"] = jnp.float32(self.position.met[self.stage].progress)
        return state, episodes, metrics

    def after(self, step: int, row: Mapping[str, Any], seed: int) -> int:
        """The stage that comes after so many steps of the run, with these figures: mostly the present one."""
        metric, level, stage = self.curriculum.metric, self.curriculum.level, self.stage
        higher = min(stage + 1, len(self.curriculum.values) - 1)
        if metric == STEPS:
            return higher if level is not None and step >= (stage + 1) * level else stage
        value = row.get(metric)
        if value is None and "eval_return" in row:
            raise UsageError(
                f"An evaluation here has no {metric!r}, which the curriculum waits for: it has "
                f"{', '.join(name for name in row if isinstance(row[name], int | float) and name.startswith('eval'))}."
            )
        if value is None:
            return stage
        if level is not None:
            return higher if value >= level else stage
        met = list(self.position.met)
        met[stage] = met[stage].after(float(value))
        self.position = self.position._replace(met=tuple(met))
        return self.position.chosen(seed, step)

    def move(self, state: TrainState, seed: int, stage: int) -> TrainState:
        """The state in which another stage begins: with new environments where it has another program."""
        if self.curriculum.level is None:
            self._kept[self.stage] = self._program
        self.position = self.position._replace(stage=stage, moves=self.position.moves + 1)
        self.env = self._place(stage)
        if self._program.settings:
            self._program.settings = self._tuned()
            return state
        old = self._program
        if stage in self._kept:
            self._program = self._kept[stage]
        else:
            self._program = self._make(self.env)
            self.compile(seed)
        fresh = self._program.start_state(seed, self.position.moves)
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
