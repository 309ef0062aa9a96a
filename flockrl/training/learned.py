"""What a relay's server or a trainer of one's own learned, read like a run: to be evaluated and exported."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flockrl.core.code import Untrusted, require_trust, trusting
from flockrl.core.errors import UsageError
from flockrl.core.rundir import find_runs, read_metrics, trainer_at
from flockrl.core.types import Algorithm, EnvSpec, PyTree
from flockrl.envs.adapters.adapt import code_of
from flockrl.training.config import RunConfig, TrainOptions
from flockrl.training.program import TrainState
from flockrl.training.run import Run
from flockrl.training.trainer import Trainer


class LearnedRun(Run):
    """The newest checkpoint of a trainer at `path`, or of the server whose data `path` holds. Nothing is written.

    env: where it plays; by default the environment that its spec names, where there is one of that name.
    """

    def __init__(self, path: str | Path, env: Any = None, trust: bool = False):
        self.path, self._trust = Path(path), trust
        home = trainer_at(self.path)
        if home is None:
            raise UsageError(f"{path} holds no trainer.")
        self.home, self.trainer = home, Trainer.load(home, trust=trust)
        trainer = self.trainer
        options = TrainOptions(steps=trainer.steps, envs=trainer.envs, seed=trainer.seed)
        self.config = RunConfig(trainer.algorithm, trainer.spec.name, options, trainer.config)
        self._env = None if env is None else self._other(env)

    @property
    def spec(self) -> EnvSpec:
        return self.trainer.spec

    @functools.cached_property
    def source(self) -> Any:
        """The environment, or only its spec where there is none of that name."""
        if self._env is not None:
            return self._env
        try:
            with trusting(self._trust):
                require_trust(self.home, filter(None, [code_of(self.spec.name)]))
            return self._other(self.spec.name)
        except Untrusted as error:
            return SimpleNamespace(spec=self.spec, why=str(error))
        except UsageError:
            why = (
                f"{self.path} learned in {self.spec.name!r}, and no environment of that name fits: name one with --env."
            )
            return SimpleNamespace(spec=self.spec, why=why)

    @functools.cached_property
    def env(self) -> Any:
        if isinstance(self.source, SimpleNamespace):
            raise UsageError(self.source.why)
        return self.source

    @property
    def algorithm(self) -> Algorithm:
        return self.trainer._learner

    @property
    def result(self) -> dict[str, Any]:
        raise UsageError(f"{self.path} is never finished: it learns on with `flockrl serve` or in your own loop.")

    def metrics(self) -> list[dict[str, Any]]:
        return read_metrics(self.home)

    def steps(self) -> list[int]:
        return [self.trainer.stats["steps"]]

    def _versioned(self, best: bool) -> tuple[PyTree, int]:
        if best:
            raise UsageError(
                f"{self.path} has only the newest policy, since a trainer evaluates none: leave out --best."
            )
        return super()._versioned(best)

    def _arrays(self, reader: Callable[[PyTree], Any]) -> Callable[[str], bool]:
        return lambda name: True

    def _read(self, wanted: Callable[[str], bool] | None) -> TrainState:
        return TrainState(self.trainer._state, (), self.trainer.version)  # type: ignore[arg-type]


def open_run(path: str | Path, env: Any = None, trust: bool = False) -> Run:
    """The run at `path`, or what a trainer or server learned there."""
    return (Run if trainer_at(Path(path)) is None else LearnedRun)(path, env, trust)


def open_runs(path: str | Path) -> list[Run]:
    """The same; of several seeds, each of them."""
    return [Run(run) for run in find_runs(path)] if trainer_at(Path(path)) is None else [LearnedRun(path)]
