"""What a run is: algorithm, environment, sizes and seeds, as values that can be saved and checked."""

from __future__ import annotations

import dataclasses
import json
import platform
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import jax

from flockrl.algos.assembly import Sides, code_of, config_from_json, config_to_json
from flockrl.core.errors import UsageError
from flockrl.core.memory import parse_size
from flockrl.core.rundir import CONFIG, read_file, read_json, write_json
from flockrl.core.settings import build, check_count, check_seed
from flockrl.envs.adapters.adapt import code_of as env_code
from flockrl.evaluation.playing import MOST_EPISODES
from flockrl.training.stages import curriculum_of
from flockrl.training.trackers import names as tracker_names

MOST = {"eval_episodes": MOST_EPISODES}
MOST_STEPS = 10**15
"""The largest numbers that make sense, of episodes and of steps. What environments take is counted elsewhere."""


@dataclass(frozen=True)
class TrainOptions:
    """How long and how to train, whatever the algorithm."""

    steps: int = 2_000_000
    """Environment steps in all, counted over all parallel environments."""
    envs: int = 16
    """Environments that run in parallel."""
    seed: int = 0
    """Seed of everything random; with --seeds the first of them."""
    eval_every: int | None = None
    """Environment steps between evaluations; by default a twentieth of the run."""
    eval_episodes: int = 100
    """Episodes of each evaluation."""
    checkpoint_every: int | None = None
    """Environment steps between checkpoints; by default a tenth of the run."""
    workers: int | None = None
    """Processes that step environments which are not compiled, 0 for none; by default a short measurement chooses."""
    worker_timeout: float | None = None
    """Seconds without an answer after which a worker is taken for hung and replaced; by default 60."""
    ray: str | None = None
    """Ray cluster whose actors are the workers: auto for the one at hand, or a local one, or its address HOST:PORT. Of
    `flockrl tune`, the cluster that runs the trials."""
    acting: Literal["actors", "learner"] | None = None
    """Where policies act with --ray: on the actors, so that whole rollouts travel (the default), or on the learner."""
    devices: int | Literal["all"] = 1
    """Devices to train on, which share out the environments and minibatches of a compiled environment."""
    log: str = "tensorboard"
    """Where metrics go besides metrics.jsonl: tensorboard, csv, wandb, mlflow, separated by commas, or none."""
    memory_limit: str | None = None
    """Memory that reading and shuffling recorded trajectories may take, such as 512MB; by default 1GB."""
    curriculum: str | None = None
    """Stages of the environment, as values of one of its settings: N=2,3,5, N=2..5 or rate=0.1..0.4:4 (four values)."""
    curriculum_when: str | None = None
    """When the next stage begins: at an evaluation, as eval_return:-12, or after steps in each, as steps:100000; by
    default after equal parts of the run. progress: each evaluation chooses a stage, by how fast eval_return (or
    progress:METRIC) changes there."""
    pbt: tuple[str, ...] = ()
    """Population-based training: seeds copy better ones every=STEPS, and vary settings such as lr=log:1e-4:1e-2."""

    def __post_init__(self) -> None:
        for name in ("steps", "envs", "eval_every", "eval_episodes", "checkpoint_every"):
            value = getattr(self, name)
            if value is not None:
                check_count(name, value, MOST.get(name, MOST_STEPS))
        if self.workers is not None and self.workers < 0:
            raise UsageError(f"workers must be at least 0, not {self.workers}.")
        if self.worker_timeout is not None and self.worker_timeout <= 0:
            raise UsageError(f"worker_timeout must be more than 0 seconds, not {self.worker_timeout}.")
        tracker_names(self.log)
        if self.memory_limit is not None:
            parse_size(self.memory_limit)
        if self.devices != "all" and self.devices < 1:
            raise UsageError(f"devices must be at least 1, or all, not {self.devices}.")
        check_seed(self.seed)


@dataclass(frozen=True)
class RunConfig:
    """Everything needed to repeat a run. Saved as `config.json`.

    algorithm: a name, or SIDE=PLAYER,... with a `Sides` as config. init_from: the run that its parameters begin with;
    init_map: what things there are called here; reinit: layers that begin anew nevertheless.
    record: the file that its episodes are written to when it is finished; may be empty. extended: the numbers of steps
    that it was given before those of `options`.
    """

    algorithm: str
    env: str
    options: TrainOptions
    config: Any
    init_from: str = ""
    record: str = ""
    extended: tuple[int, ...] = ()
    init_map: str = ""
    reinit: str = ""

    @property
    def recorded(self) -> bool:
        """Whether it learns from recorded trajectories instead of an environment."""
        return self.env.startswith("data/")

    @property
    def begins_elsewhere(self) -> bool:
        """Whether its first state holds parameters of other runs."""
        frozen = isinstance(self.config, Sides) and any(side.kind == "frozen" for side in self.config.players.values())
        return bool(self.init_from) or frozen

    def code(self, env: bool = True) -> list[str]:
        """The names of users' code that the run needs; without `env`, those of its environment are left out."""
        found = map(env_code, self._homes()) if env else ()
        return [*dict.fromkeys(filter(None, found)), *code_of(self.config)]

    @property
    def trust(self) -> str:
        """The flag that commands need to open the run; empty where it names no code."""
        return " --trust" if self.code() else ""

    def _homes(self) -> list[str]:
        """The names of its environment, in all stages of a curriculum."""
        curriculum = curriculum_of(self.options)
        if curriculum is None:
            return [self.env]
        return [curriculum.env(self.env, stage) for stage in range(len(curriculum.values))]

    def to_json(self) -> dict[str, Any]:
        saved = config_to_json(self.config)
        return {
            "algorithm": self.algorithm,
            "env": self.env,
            **dataclasses.asdict(self.options),
            **(saved if isinstance(self.config, Sides) else {"config": saved}),
            **{name: getattr(self, name) for name in (*TOLD, "extended") if getattr(self, name)},
            "versions": versions(),
        }

    def decisive(self) -> dict[str, Any]:
        """The settings that the numbers of the run depend on, by name; those of the algorithm as config.lr."""
        saved = {name: x for name, x in json.loads(json.dumps(self.to_json())).items() if name not in INDIFFERENT}
        return _flat(saved)

    def changes(self, before: Mapping[str, Any]) -> list[str]:
        """What differs from the settings that `decisive` returned before, as "config.lr 0.01 -> 0.1".

        A setting that another version of flockrl added is not compared, and earlier numbers of steps are none.
        """
        now = self.decisive()
        if before.get("steps") in self.extended:
            before = {**before, "steps": self.options.steps}
        return [f"{name} {old!r} -> {now.get(name)!r}" for name, old in before.items() if now.get(name) != old]

    @staticmethod
    def from_json(saved: dict[str, Any]) -> RunConfig:
        for name in ("algorithm", "env"):
            if not isinstance(saved.get(name), str):
                raise UsageError(f"A run's configuration must name its {name}.")
        for name in TOLD:
            if not isinstance(saved.get(name, ""), str):
                raise UsageError(f"{name} of a run's configuration must be a name, not {saved[name]!r}.")
        extended = saved.get("extended", [])
        if not isinstance(extended, list) or not all(type(steps) is int for steps in extended):
            raise UsageError(f"extended of a run's configuration must list numbers of steps, not {extended!r}.")
        options, settings = split_settings(saved)
        name, built = saved["algorithm"], build(TrainOptions, options, "A run")
        config = config_from_json(name, {"sides": saved["sides"], "config": settings} if "sides" in saved else settings)
        told = {x: saved.get(x, "") for x in TOLD}
        return RunConfig(name, saved["env"], built, config, **told, extended=tuple(extended))


TOLD = ("init_from", "record", "init_map", "reinit")
"""What `config.json` says of a run's beginning and end in words."""
NOT_SETTINGS = ("algorithm", "env", "config", "sides", *TOLD, "extended", "chosen", "versions")
"""What stands in `config.json` besides settings."""
INDIFFERENT = ("log", "workers", "worker_timeout", "ray", "acting", "devices", *TOLD, "extended", "versions")
"""What may change between two parts of one run."""


def _flat(saved: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested settings by names with dots."""
    found: dict[str, Any] = {}
    for name, value in saved.items():
        found |= _flat(value, f"{before}{name}.") if isinstance(value, Mapping) else {f"{before}{name}": value}
    return found


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    names = ("flockrl", "jax", "jaxlib", "flax", "optax", "numpy")
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in names}}


def check_settings(path: Path, config: RunConfig, meta: Mapping[str, Any]) -> None:
    """Refuse to go on with other settings than those that a checkpoint was made with, as its meta data have them."""
    changes = config.changes(meta.get("settings", {}))
    if changes:
        more = f" More steps are given with `flockrl resume {path} --steps N`." * changes[0].startswith("steps ")
        raise UsageError(
            f"{path / CONFIG} is not what the run was begun with ({'; '.join(changes)}): put it back to resume, or "
            f"train a new run with --init-from.{more}"
        )


def write_choices(path: Path, chosen: Mapping[str, Any]) -> None:
    """Add to the configuration of a run what it chose by itself, and where it computes."""
    device = {"platform": jax.default_backend(), "device": jax.devices()[0].device_kind}
    write_json(path / CONFIG, {**read_json(path / CONFIG), "chosen": {**device, **chosen}})


def read_settings(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """A JSON or TOML file -> (train options, algorithm settings)."""
    try:
        text = read_file(path).decode()
        saved = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The configuration {path} is not valid JSON or TOML: {error}.") from error
    if not isinstance(saved, dict):
        raise UsageError(f"The configuration {path} must be an object with named settings.")
    return split_settings(saved)


def split_settings(saved: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tell train options from the algorithm's own settings, which stand under "config" or beside them."""
    own = {field.name for field in dataclasses.fields(TrainOptions)}
    nested = saved.get("config", {})
    if not isinstance(nested, dict):
        raise UsageError('"config" must hold the algorithm\'s settings by name.')
    rest = {k: v for k, v in saved.items() if k not in own and k not in NOT_SETTINGS}
    return {k: v for k, v in saved.items() if k in own}, {**rest, **nested}
