"""A run on disk: config, metrics, result, curve, checkpoints; and what can be done with it later."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

from flockrl.algos.assembly import Sides, make_algorithm, make_players
from flockrl.algos.sides import Player
from flockrl.core.code import require_trust, trusting
from flockrl.core.errors import UsageError, install
from flockrl.core.rundir import CHECKPOINTS, CONFIG, RESULT, read_json, read_metrics
from flockrl.core.settings import check_seed
from flockrl.core.spec import stem
from flockrl.core.types import Algorithm, EnvSpec, EvalResult, PyTree
from flockrl.envs.api import Env
from flockrl.envs.host.env import Host
from flockrl.envs.registry import make
from flockrl.evaluation.episodes import Episode
from flockrl.evaluation.inside import Inside, look_inside
from flockrl.evaluation.playing import make_player, record_episode, summarize
from flockrl.evaluation.talk import Listening
from flockrl.policies.policy import Policy
from flockrl.training.channels import around, listening, on_channel
from flockrl.training.checkpoint import Checkpoints
from flockrl.training.config import RunConfig
from flockrl.training.figures import parties
from flockrl.training.program import Program, TrainState
from flockrl.training.programs import make_program, make_source
from flockrl.training.stages import Position, curriculum_of, position_of


class Run:
    """A training run, finished or not.

    env: needed only for environments that have no name. trust: whether code that the run's files name (an environment
    of your own, a kernel, a script) may be imported.
    """

    def __init__(self, path: str | Path, env: Any = None, trust: bool = False):
        self.path = Path(path)
        if not (self.path / CONFIG).is_file():
            seeds = sorted(self.path.glob(f"seed_*/{CONFIG}")) if self.path.is_dir() else []
            hint = f" It holds several seeds: name one, such as {seeds[0].parent}." if seeds else ""
            raise UsageError(f"{self.path} is not a run: it has no {CONFIG}.{hint}")
        self.config = RunConfig.from_json(read_json(self.path / CONFIG))
        self._env, self._trust = None if env is None else around(self.config.config, make(env)), trust
        with trusting(trust):
            require_trust(self.path / CONFIG, self.config.code(env=env is None))

    @functools.cached_property
    def env(self) -> Env:
        """Where the team plays; for a run on recorded trajectories, the environment that they were recorded in."""
        if self._env is None and self.config.recorded:
            if self.source.home is None:
                raise UsageError(f"{self.path} learned from recordings whose environment is not known: pass env=...")
            return around(self.config.config, self.source.home)
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
        with trusting(self._trust):
            found = make_source(self._home(), self.config.options.memory_limit)
        return found if self.config.recorded else around(self.config.config, found)

    def _home(self) -> str:
        """The name of its environment: with a curriculum, that of the stage which the newest checkpoint is in."""
        curriculum = curriculum_of(self.config.options)
        return self.config.env if curriculum is None else curriculum.env(self.config.env, self.stage)

    @functools.cached_property
    def position(self) -> Position | None:
        """Where the newest checkpoint is in its curriculum; None where there is none."""
        curriculum = curriculum_of(self.config.options)
        if curriculum is None:
            return None
        with Checkpoints(self.path / CHECKPOINTS) as checkpoints:
            steps = checkpoints.steps()
            return position_of(curriculum, checkpoints.meta(steps[-1]) if steps else None)

    @property
    def stage(self) -> int:
        """The stage of its curriculum that the newest checkpoint is in; 0 where there is none."""
        return 0 if self.position is None else self.position.stage

    @property
    def algorithm(self) -> Algorithm:
        return self.program.setting.algorithm

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
        return read_json(self.path / RESULT)

    @property
    def spec(self) -> EnvSpec:
        return self.source.spec

    def steps(self) -> list[int]:
        """Steps after which there are checkpoints."""
        with Checkpoints(self.path / CHECKPOINTS) as checkpoints:
            return checkpoints.steps()

    def params(self, best: bool = False) -> PyTree:
        """The policy's parameters from the newest checkpoint, or the `best`. Nothing else is read from it."""
        return self._versioned(best)[0]

    def _versioned(self, best: bool) -> tuple[PyTree, int]:
        """The policy's parameters, and the number of updates that made them."""
        if not best:
            state = self._read(self._arrays(self.algorithm.params))
            return self.algorithm.params(state.learner), int(state.iteration)
        if parties(self.spec, self.config.config):
            raise UsageError(
                f"{self.path} has several sides, and what is best for one is not for another: leave out --best "
                "(best=True)."
            )
        like = jax.eval_shape(self.algorithm.params, self.program.shape().learner)
        with self._checkpoints() as (checkpoints, step):
            params, meta = checkpoints.restore_best(like, step)
        if params is None:
            raise UsageError(f"{self.path} has no best policy: it was never evaluated, or by an earlier version.")
        return params, int(meta["best_step"]) // self.program.setting.iteration_steps

    def _arrays(self, reader: Callable[[PyTree], Any]) -> Callable[[str], bool]:
        """Which arrays of a state are needed, by name: those that `reader`, such as `Algorithm.params`, reads."""
        leaves = jax.tree_util.tree_leaves_with_path(TrainState(self.program.shape().learner, (), ()))  # type: ignore[arg-type]
        program = jax.make_jaxpr(reader)(self.program.shape().learner).jaxpr
        used = {id(x) for equation in program.eqns for x in equation.invars} | {id(x) for x in program.outvars}
        names = {jax.tree_util.keystr(p) for (p, _), x in zip(leaves, program.invars, strict=True) if id(x) in used}
        return lambda name: name in names or name == ".iteration"

    def learner(self, wanted: Callable[[str], bool]) -> PyTree:
        """The learner's state from the newest checkpoint; arrays whose name is not `wanted` are left out (None)."""
        learner = self._read(lambda name: name.startswith(".learner") and wanted(name)).learner
        return jax.tree.map(lambda x: None if isinstance(x, jax.ShapeDtypeStruct) else x, learner)

    def state(self) -> TrainState:
        """The newest checkpoint."""
        return self._read(None)

    def _read(self, wanted: Callable[[str], bool] | None) -> TrainState:
        """The newest checkpoint, or only the arrays with `wanted` names; the others stay shapes."""
        with self._checkpoints() as (checkpoints, step):
            return checkpoints.restore(self.program.shape(), step, wanted)[0]

    @contextlib.contextmanager
    def _checkpoints(self) -> Iterator[tuple[Checkpoints, int]]:
        """The checkpoints, and the step of the newest."""
        with Checkpoints(self.path / CHECKPOINTS) as checkpoints:
            steps = checkpoints.steps()
            if not steps:
                raise UsageError(f"{self.path} has no checkpoint yet.")
            yield checkpoints, steps[-1]

    def evaluate(
        self, episodes: int = 100, seed: int = 0, explore: bool = False, env: Any = None,
        record: str | Path | None = None, best: bool = False, channel: str | None = None, attacked: bool = False,
    ) -> EvalResult:  # fmt: skip
        """Play whole episodes with the newest parameters, or the `best`, greedily unless `explore`.

        env: another environment with the same agents and spaces, such as the original of a compiled one, or with
        other numbers of agents where the networks do not depend on these (--net entities).
        record: a file (.arrow, .parquet or .csv) to write these episodes to, see docs/data.md.
        channel: what happens to messages instead of what did in training, such as "loss=0.5", or "bits=0" for silence.
        attacked: under the attack of the adversary that was trained beside it.
        """
        if episodes < 1:
            raise UsageError(f"episodes must be at least 1, not {episodes}.")
        check_seed(seed)
        place = self.env if env is None else self._other(env)
        if record is not None and channel is not None:
            raise UsageError("Episodes are recorded on the run's own channel: leave out record, or channel.")
        if record is not None:
            return self._record(Path(record), place, env, episodes, seed, explore, best)
        if attacked:
            if best or record is not None or channel is not None:
                raise UsageError("An attack is evaluated with the newest policy: leave out best, record and channel.")
            return self._attacked(place, episodes, seed, explore)
        team, place = (self._team(place), place) if channel is None else on_channel(self.config, place, channel)
        play = make_player(team, place, episodes, explore, self.config.options.workers)
        return summarize(*play(self.params(best), jax.random.key(seed)))

    def _attacked(self, place: Any, episodes: int, seed: int, explore: bool) -> EvalResult:
        if not getattr(self.config.config, "adversary", ""):
            raise UsageError(f"{self.path} learned without an adversary: train it with --adversary to attack it.")
        team = self.algorithm.in_training
        play = make_player(team, place, episodes, explore, self.config.options.workers)
        return summarize(*play(team.params(self.state().learner), jax.random.key(seed)))

    def listening(self, seed: int = 0, best: bool = False) -> Listening:
        """What the messages of this team tell and change, see docs/communication.md."""
        return listening(self, seed, best)

    def _record(
        self, path: Path, place: Any, name: Any, episodes: int, seed: int, explore: bool, best: bool
    ) -> EvalResult:
        try:
            from flockrl.evaluation.record import record_episodes
        except ImportError as error:
            raise UsageError(f"Recording needs pyarrow: {install('relay')}.") from error
        called = name if isinstance(name, str) else self.config.env if name is None else f"custom/{place.spec.name}"
        if called.startswith("data/"):
            called = self.source.files.about["env"]
        about = {"env": called, "algorithm": self.config.algorithm, "seed": seed, "explore": explore}
        return record_episodes(
            path, self._team(place), place, self.params(best), about, episodes, jax.random.key(seed), explore,
            workers=self.config.options.workers,
        )  # fmt: skip

    def _other(self, name: Any) -> Any:
        """Another environment that this team can play in."""
        other = around(self.config.config, make(name))
        mine, theirs = self.spec, other.spec
        for what in ("agents", "observations", "actions"):
            a, b = ([_size(x) for x in getattr(spec, what)] for spec in (mine, theirs))
            if a != b and not self._fits(theirs):
                raise UsageError(
                    f"The team of {self.path} cannot play {theirs.name}: its {what} are {a}, and there they are {b}. "
                    "Networks that do not depend on these are trained with --net entities."
                )
        return other

    def _fits(self, theirs: EnvSpec) -> bool:
        """Whether the policy's parameters are those that a team for another spec would have, with agents of the same
        kinds."""
        if list(dict.fromkeys(map(stem, theirs.agents))) != list(dict.fromkeys(map(stem, self.spec.agents))):
            return False
        try:
            other = self._made_for(theirs)
        except UsageError:  # such a team cannot be made
            return False
        mine, needed = (_policy_shape(team) for team in (self.algorithm, other))
        return mine == needed

    def _made_for(self, spec: EnvSpec) -> Algorithm:
        config = self.config
        return make_algorithm(config.algorithm, spec, config.config, envs=config.options.envs, updates=1)

    def _team(self, place: Any) -> Algorithm:
        """The algorithm as it acts in this environment, which may have other numbers of agents."""
        same = place.spec.agents == self.spec.agents and place.spec.obs_size == self.spec.obs_size
        return self.algorithm if same else self._made_for(place.spec)

    def policy(self, seed: int = 0, side: str | None = None, best: bool = False) -> Policy:
        """The trained team, to act anywhere; with `side`, the agents of that side alone.

        best: as it was when its evaluation was the best, instead of the newest.
        """
        place = getattr(self.source, "home", None) or self.source
        codec = place.codec if isinstance(place, Host) else None
        config, (params, version) = self.config, self._versioned(best)
        about: dict[str, Any] = {"name": config.algorithm, "version": version}
        if side is None:
            share: Any = getattr(config.config, "share", "groups")
            return Policy(self.algorithm, params, place.spec, seed, codec, share=share, **about)
        player = self._player(side)
        share = getattr(config.config.players[side].config, "share", "groups")
        spec = dataclasses.replace(player.spec, whole=None)
        return Policy(player.algorithm, params[side], spec, seed, share=share, **about)

    def _player(self, side: str) -> Player:
        """Who plays for a side of this run."""
        config = self.config.config
        if not isinstance(config, Sides):
            raise UsageError(f"{self.path} has one policy for all agents: leave out the side ({side}).")
        if side not in config.players:
            raise UsageError(f"{self.path} has no side {side!r}: its sides are {', '.join(config.players)}.")
        player = make_players(self.spec, config, config.rollout_steps, self.config.options.envs, 1)[side]
        if player.for_all:
            source = config.players[side].source
            raise UsageError(f"{side} is played by the policy of {source} for all agents: name that run instead.")
        return player

    def episode(self, seed: int = 0, explore: bool = False, best: bool = False) -> Episode:
        """One episode in full, for drawing."""
        return record_episode(self.algorithm, self.env, self.params(best), jax.random.key(seed), explore)

    def inside(
        self, seed: int = 0, explore: bool = False, limit: int | None = None, agents: int | None = None
    ) -> tuple[Episode, list[Inside]]:
        """The same episode, of at most `limit` steps, and what goes on inside of the team, its critics included.

        agents: how many of them attention is kept of.
        """
        algorithm, critic = self.algorithm, self.algorithm.critic

        def minds(learner: PyTree) -> tuple[PyTree, PyTree]:
            return algorithm.params(learner), None if critic is None else critic.params(learner)

        params, judge = minds(self._read(self._arrays(minds)).learner)
        values = None if critic is None else functools.partial(critic.values, judge)
        return look_inside(algorithm, self.env, params, jax.random.key(seed), explore, limit, values, agents)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {self.config.algorithm} on {self.config.env})"


def _policy_shape(team: Algorithm) -> tuple[Any, ...]:
    """Names, shapes and types of a policy's parameters."""
    tree = jax.eval_shape(lambda: team.params(team.init(jax.random.key(0))))
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return tuple((jax.tree_util.keystr(path), x.shape, x.dtype) for path, x in leaves)


def _size(x: Any) -> Any:
    """What has to agree between two environments: names, kinds and sizes."""
    return x if isinstance(x, str) else f"{type(x).__name__}({x.size})"
