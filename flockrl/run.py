"""A run on disk: config, metrics, result, curve, checkpoints; and what can be done with it later."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import jax

from flockrl.checkpoint import Checkpoints
from flockrl.config import RunConfig
from flockrl.envs.base import Env, make
from flockrl.envs.host import Host
from flockrl.errors import UsageError
from flockrl.evaluate import make_player, record_episode, summarize
from flockrl.policy import Policy
from flockrl.program import Program, TrainState, make_program
from flockrl.types import EvalResult, PyTree

CONFIG, METRICS, RESULT, CURVE, CHECKPOINTS = (
    "config.json", "metrics.jsonl", "result.json", "curve.png", "checkpoints",
)  # fmt: skip


class Run:
    """A training run, finished or not. `env` is needed only for environments that have no name."""

    def __init__(self, path: str | Path, env: Any = None):
        self.path = Path(path)
        if not (self.path / CONFIG).is_file():
            seeds = sorted(self.path.glob(f"seed_*/{CONFIG}")) if self.path.is_dir() else []
            hint = f" It holds several seeds: name one, such as {seeds[0].parent}." if seeds else ""
            raise UsageError(f"{self.path} is not a run: it has no {CONFIG}.{hint}")
        self.config = RunConfig.from_json(_read_json(self.path / CONFIG))
        self._env = None if env is None else make(env)

    @functools.cached_property
    def env(self) -> Env:
        """Where the team plays; for a run on recorded trajectories, the environment that they were recorded in."""
        if self._env is None and self.config.recorded:
            if self.source.home is None:
                raise UsageError(f"{self.path} learned from recordings whose environment is not known: pass env=...")
            return self.source.home
        return self.source

    @functools.cached_property
    def source(self) -> Any:
        """What the run learns from: an environment, or recorded trajectories."""
        if self._env is not None and not self.config.recorded:
            return self._env
        if self.config.env.startswith("custom/"):
            raise UsageError(
                f"{self.path} was trained on an environment of your own ({self.config.env[7:]}): pass it as env=..."
            )
        return make(self.config.env)

    @functools.cached_property
    def program(self) -> Program:
        return make_program(self.config, self.source)

    def metrics(self) -> list[dict[str, Any]]:
        """All log points so far."""
        return read_metrics(self.path)

    @property
    def result(self) -> dict[str, Any]:
        """The final figures; an error while the run is unfinished."""
        if not (self.path / RESULT).is_file():
            raise UsageError(f"{self.path} is not finished: continue it with `flockrl resume {self.path}`.")
        return _read_json(self.path / RESULT)

    def params(self) -> PyTree:
        """The policy's parameters from the newest checkpoint."""
        return self.program.algorithm.params(self.state().learner)

    def state(self) -> TrainState:
        """The newest checkpoint."""
        checkpoints = Checkpoints(self.path / CHECKPOINTS)
        try:
            steps = checkpoints.steps()
            if not steps:
                raise UsageError(f"{self.path} has no checkpoint yet.")
            state, _ = checkpoints.restore(self.program.shape(), steps[-1])
        finally:
            checkpoints.close()
        return state

    def evaluate(
        self, episodes: int = 100, seed: int = 0, explore: bool = False, env: Any = None,
        record: str | Path | None = None,
    ) -> EvalResult:  # fmt: skip
        """Play whole episodes with the newest parameters, greedily unless `explore`.

        env: another environment with the same agents and spaces, such as the original of a compiled one.
        record: a file (.arrow, .parquet or .csv) to write these episodes to, see docs/data.md.
        """
        if episodes < 1:
            raise UsageError(f"episodes must be at least 1, not {episodes}.")
        place = self.env if env is None else self._other(env)
        if record is not None:
            return self._record(Path(record), place, env, episodes, seed, explore)
        play = make_player(self.program.algorithm, place, episodes, explore, self.config.options.workers)
        return summarize(*play(self.params(), jax.random.key(seed)))

    def _record(self, path: Path, place: Any, name: Any, episodes: int, seed: int, explore: bool) -> EvalResult:
        try:
            from flockrl.data.record import record_episodes
        except ImportError as error:
            raise UsageError("Recording needs pyarrow: pip install 'flockrl[relay]'.") from error
        called = name if isinstance(name, str) else self.config.env if name is None else f"custom/{place.spec.name}"
        if called.startswith("data/"):
            called = self.source.files.about["env"]
        about = {"env": called, "algorithm": self.config.algorithm, "seed": seed, "explore": explore}
        return record_episodes(
            path, self.program.algorithm, place, self.params(), about, episodes, jax.random.key(seed), explore,
            workers=self.config.options.workers,
        )  # fmt: skip

    def _other(self, name: Any) -> Any:
        """Another environment that this team can play in."""
        other = make(name)
        mine, theirs = self.env.spec, other.spec
        for what in ("agents", "observations", "actions"):
            a, b = ([_size(x) for x in getattr(spec, what)] for spec in (mine, theirs))
            if a != b:
                raise UsageError(
                    f"The team of {self.path} cannot play {theirs.name}: its {what} are {a}, and there they are {b}."
                )
        return other

    def policy(self, seed: int = 0) -> Policy:
        """The trained team, to act anywhere."""
        place = getattr(self.source, "home", None) or self.source
        codec = place.codec if isinstance(place, Host) else None
        algorithm, state = self.program.algorithm, self.state()
        return Policy(
            algorithm, algorithm.params(state.learner), place.spec, seed, codec,
            name=self.config.algorithm, share=self.config.config.share, version=int(state.iteration),
        )  # fmt: skip

    def episode(self, seed: int = 0) -> list[PyTree]:
        """The environment's states over one greedy episode, for drawing."""
        return record_episode(self.program.algorithm, self.env, self.params(), jax.random.key(seed))

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {self.config.algorithm} on {self.config.env})"


def _size(x: Any) -> Any:
    """What has to agree between two environments: names, kinds and sizes."""
    return x if isinstance(x, str) else f"{type(x).__name__}({x.size})"


class Log:
    """Writes a run's metrics: one JSON object per line, and TensorBoard events beside it."""

    def __init__(self, path: Path, resume_at: int | None = None, offset: int = 0):
        """`resume_at` and `offset`: step and size of the metrics file at the checkpoint that is continued."""
        from tensorboardX import SummaryWriter

        file = path / METRICS
        if file.exists():
            os.truncate(file, offset)
        self._file: IO[str] = file.open("a")
        self._board = SummaryWriter(str(path), purge_step=resume_at, flush_secs=30)

    def write(self, row: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        for name, value in row.items():
            if isinstance(value, int | float) and name != "step":
                self._board.add_scalar(name, value, row["step"])

    @property
    def offset(self) -> int:
        """Size of the metrics file, to cut it back to when a checkpoint taken now is continued."""
        return self._file.tell()

    def close(self) -> None:
        self._file.close()
        self._board.close()


def new_directories(out: str | Path | None, name: str, seeds: list[int]) -> list[Path]:
    """Create the run's directory, or one per seed inside it. An existing run is never touched."""
    base = Path(out) if out is not None else _fresh(Path("runs") / name)
    if (base / CONFIG).exists() or any(base.glob(f"seed_*/{CONFIG}")):
        raise UsageError(
            f"{base} already holds a run: resume it with `flockrl resume {base}`, or choose another --out."
        )
    paths = [base] if len(seeds) == 1 else [base / f"seed_{seed}" for seed in seeds]
    try:
        for path in paths:
            path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"Cannot create {base}: {error.strerror}.") from error
    return paths


def find_runs(path: str | Path) -> list[Path]:
    """The run at `path`, or the runs of several seeds below it."""
    base = Path(path)
    if not base.is_dir():
        raise UsageError(f"There is no run at {base}.")
    if (base / CONFIG).is_file():
        return [base]
    found = sorted((p.parent for p in base.glob(f"seed_*/{CONFIG}")), key=lambda p: int(p.name.split("_")[1]))
    if not found:
        raise UsageError(f"{base} is not a run: it has no {CONFIG}.")
    return found


def _fresh(base: Path) -> Path:
    path, number = base, 1
    while path.exists():
        number += 1
        path = base.with_name(f"{base.name}-{number}")
    return path


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write all or nothing."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=2) + "\n")
    temporary.replace(path)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    file = path / METRICS
    return [json.loads(line) for line in file.read_text().splitlines() if line] if file.exists() else []


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"Cannot read {path}: {error}.") from error
