"""A trainer for people who own their loop: trajectories in, better policies out.

trainer = flockrl.Trainer.mappo(obs_dim=18, act_dim=5, agents=3, save_path="runs/mine")
episode = trainer.episode()
actions = episode.act(observations)
episode.reward(earned)
trained = trainer.receive_trajectory(episode.end())
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from flockrl.algos.assembly import code_of, config_to_json, facts, make_algorithm
from flockrl.algos.presets import algorithms
from flockrl.core.code import require_trust, trusting
from flockrl.core.errors import NotFinite, UsageError
from flockrl.core.rundir import TRAINER, read_json, write_json
from flockrl.core.spec import EnvSpec, spec_to_json
from flockrl.core.types import Array
from flockrl.data.episode import Episode
from flockrl.data.experience import Experience
from flockrl.policies.policy import Policy
from flockrl.training.acting import Acting
from flockrl.training.checkpoint import Checkpoints
from flockrl.training.config import versions
from flockrl.training.epoch import Epoch, log_line
from flockrl.training.growth import add_agent, grown, larger
from flockrl.training.pack import make_packer
from flockrl.training.players import frozen_params
from flockrl.training.program import all_finite
from flockrl.training.setup import configure_trainer, describe_team, saved_trainer

CONFIG, CHECKPOINTS, WAITING = TRAINER, "checkpoints", "waiting"
LAG = 5
"""Versions by which a trajectory may lag behind before an on-policy learner drops it."""


class _Named(type):
    """Makes `Trainer.mappo(...)` mean `Trainer("mappo", ...)`, for every algorithm there is."""

    def __getattr__(cls, name: str) -> Callable[..., Trainer]:
        if name not in algorithms():
            raise AttributeError(f"Trainer has no algorithm {name!r}")
        return partial(cls, name)

    def __dir__(cls) -> Iterable[str]:
        return [*super().__dir__(), *algorithms()]


class Trainer(metaclass=_Named):
    """Learns from trajectories that somebody else makes.

    The team is described by `spec`, or by `obs_dim` and `act_dim` (one number, or one for each agent), `agents` (their
    number or names), `continuous` (a bound of the actions, which then lie between -bound and bound), `max_steps` (the
    longest trajectory) and `state_dim` (the size of a global state, where there is one).

    save_path: where `save` and `log_epoch` write; by default nowhere.
    buffer_size: transitions that a replay holds; for on-policy learners the steps that one update learns from.
    algorithm: a name, or who plays for each side, as `flockrl.train` takes it; hyperparams are then dicts by side.
    hyperparams: any setting of the algorithm (`flockrl train NAME --help` lists them). Learning rates stay constant
    unless `lr_schedule` says otherwise; schedules run over `steps`.
    kernel: a flax module that takes the place of the hidden layers, see docs/data.md.
    max_version_lag: trajectories of policies that are older than that many updates are dropped; by default 5 for
    on-policy learners, and no limit for those with a replay.
    envs: columns of a rollout: one update of an on-policy learner takes envs x rollout_steps steps.
    """

    def __init__(
        self,
        algorithm: str | Mapping[str, Any],
        spec: EnvSpec | None = None,
        *,
        obs_dim: int | Sequence[int] | None = None,
        act_dim: int | Sequence[int] | None = None,
        agents: int | Sequence[str] = 1,
        continuous: float | None = None,
        max_steps: int = 1000,
        state_dim: int = 0,
        save_path: str | Path | None = None,
        buffer_size: int | None = None,
        hyperparams: Mapping[str, Any] | None = None,
        kernel: Any = None,
        max_version_lag: int | None = None,
        envs: int = 16,
        steps: int = 2_000_000,
        seed: int = 0,
    ):
        if spec is None:
            spec = describe_team(obs_dim, act_dim, agents, continuous, max_steps, state_dim)
        self.seed, self.envs, self.steps = seed, envs, steps
        self.algorithm, self.config = configure_trainer(algorithm, spec, hyperparams or {}, kernel, buffer_size, envs)
        self.save_path = None if save_path is None else Path(save_path)
        if self.save_path is not None and (self.save_path / CONFIG).exists():
            raise UsageError(f"{self.save_path} already holds a trainer: go on with Trainer.load, or choose another.")
        self.version = 0
        self.stats = {"trajectories": 0, "steps": 0, "dropped_stale": 0, "episodes": 0}
        self.note: dict[str, Any] = {}
        """What was given to `save` last."""
        self._lag, self._lock, self._saves = max_version_lag, threading.RLock(), 0
        self._epoch, self._played = Epoch(), 0
        self._build(spec)
        state = jax.jit(self._learner.init)(jax.random.fold_in(jax.random.key(seed), 0))
        others = frozen_params(self.config) if isinstance(hyperparams or {}, Mapping) else {}  # else it is loaded
        self._state = {**state, **others} if others else state

    def _build(self, spec: EnvSpec) -> None:
        """Everything that follows from the team and does not change while it learns."""
        self.facts = facts(self.algorithm, self.config)
        self.spec = spec
        self._packer = make_packer(spec, self.config.rollout_steps, self.envs, self.facts.memory)
        updates = math.ceil(self.steps / (self.envs * self.config.rollout_steps))
        self._learner = make_algorithm(self.algorithm, spec, self.config, envs=self.envs, updates=updates)
        self._update: Any = jax.jit(self._learner.update, donate_argnums=0)
        self._params: Any = jax.jit(self._learner.params)
        self._acting = Acting(self._learner, spec)
        self._extras = ("logp",) if self.facts.logp else ()
        if self._lag is None and self.facts.on_policy:
            self._lag = LAG

    # Learning

    def receive_trajectory(self, trajectory: Experience) -> bool:
        """Take in one trajectory, or several. Returns whether that was enough to learn from.

        What cannot be learned from is refused with a sentence that says why (`UsageError`).
        """
        with self._lock:
            self.check(trajectory)
            before, left = self.version, np.arange(trajectory.trajectories)
            while len(left):  # in the order and at the pace in which they would come one by one
                left = left[self._fresh(trajectory.version[left])]
                count = self._packer.share(trajectory.length[left])
                part, left = trajectory.pick(left[:count]), left[count:]
                self._count(part)
                self._packer.add(part)
                while self._packer.ready:
                    self.train_model()
            return self.version > before

    async def receive_trajectory_async(self, trajectory: Experience) -> bool:
        """The same, without blocking the event loop while it learns."""
        return await asyncio.to_thread(self.receive_trajectory, trajectory)

    def train_model(self) -> dict[str, float]:
        """One update with what has been received, be it ever so little. Returns its metrics, none without data."""
        with self._lock:
            if not self._packer.parts:
                return {}
            rollout = self._packer.take(self._learner.memory(self.envs), self._extras)
            self.version += 1
            self._state, metrics = self._update(self._state, rollout, _key(self.seed, self.version))
            numbers = {name: float(value) for name, value in jax.device_get(metrics).items()}
            bad = [name for name, value in numbers.items() if not math.isfinite(value)]
            if bad or not all_finite(self._params(self._state)):
                what = bad[0] if bad else "a parameter"
                raise NotFinite(f"Training went wrong at update {self.version}: {what} is not finite. Lower lr.")
            self._epoch.metrics.append(numbers)
            return numbers

    def episode(self, explore: bool = True, env: str = "") -> Episode:
        """A new episode, played with the policy as it is now; what its `end` returns is for `receive_trajectory`.

        explore: act as in training; without it actions are greedy and have no log-probabilities, which on-policy
        learners need. env: a name for where it is played. Any number of episodes may be under way at once.
        """
        with self._lock:
            self._played += 1
            params = self._acting.params(self.version, lambda: self._params(self._state))
            choose = self._acting.begin(params, _key(self.seed, -(2**30) - self._played), explore)
            return Episode(self.spec, choose, self.version, env, self._played)

    def acquire_model(self, newer_than: int | None = None) -> Policy | None:
        """The policy as it is now, or None when it is not newer than that version."""
        with self._lock:
            if newer_than is not None and self.version <= newer_than:
                return None
            params = self._acting.params(self.version, lambda: self._params(self._state))
            share: Any = getattr(self.config, "share", "none")
            return Policy(
                self._learner, params, self.spec, self.seed, name=self.algorithm, share=share, version=self.version
            )

    def reset_epoch(self) -> None:
        """Forget what was received and not learned from yet, and the figures since the last `log_epoch`."""
        with self._lock:
            self._packer.clear()
            self._epoch = Epoch()

    def log_epoch(self) -> dict[str, Any]:
        """What happened since the last call: return (mean over agents and episodes), lengths, losses.

        With a `save_path` it becomes a line of metrics.jsonl too.
        """
        with self._lock:
            epoch, self._epoch = self._epoch, Epoch()
            row = {"version": self.version, "step": self.stats["steps"], **epoch.summary()}
            if self.save_path is not None:
                log_line(self.save_path, row)
            return row

    def register_agent(self, name: str | None = None, obs_dim: int | None = None, act_dim: int | None = None) -> str:
        """One more agent, at the end of the team; by default of the same kind as the last one. Returns its name.

        The others keep what they learned. The newcomer begins like the mean of those that it shares parameters with.
        """
        with self._lock:
            old = self.spec
            if not self.facts.grows:
                raise UsageError(f"{self.algorithm} learns for a team of fixed size: it cannot take in another agent.")
            spec = grown(old, name, obs_dim, act_dim)
            waiting, state = self._packer.waiting, self._state
            self._build(spec)
            fresh = jax.jit(self._learner.init)(_key(self.seed, -spec.num_agents))
            self._state = add_agent(state, fresh, old, spec)
            if waiting is not None:
                self._packer.add(larger(waiting, old, spec))
            self._epoch.returns = [np.append(x, 0.0).astype(np.float32) for x in self._epoch.returns]
            return spec.agents[-1]

    def check(self, data: Experience) -> None:
        """Refuse, with a sentence that says why, what `receive_trajectory` cannot take."""
        agents, size = self.spec.num_agents, self.spec.obs_size
        if data.obs.shape[1:] != (agents, size):
            raise UsageError(
                f"The trajectory's observations have shape {list(data.obs.shape[1:])} at each step, and this team's "
                f"have {[agents, size]} (agents, size)."
            )
        if bool(self.spec.state_size) != (data.state is not None):
            raise UsageError(f"The trajectory must {'' if self.spec.state_size else 'not '}have a global state.")
        for name in self._extras:
            if name == "logp" and np.isnan(data.logp[data.alive]).any():
                raise UsageError(f"{self.algorithm} needs the log-probability (logp) of every action.")

    def _fresh(self, version: np.ndarray) -> np.ndarray:
        """Which trajectories, made by policies of these versions [k], are not too old."""
        if self._lag is None:
            return np.ones(len(version), bool)
        good = (version < 0) | (version >= self.version - self._lag)
        self.stats["dropped_stale"] += int((~good).sum())
        return good

    def _count(self, data: Experience) -> None:
        whole = data.whole
        self._epoch.returns += list(data.returns[whole])
        self._epoch.lengths += data.length[whole].tolist()
        self.stats["trajectories"] += data.trajectories
        self.stats["steps"] += data.steps
        self.stats["episodes"] += int(whole.sum())

    # Keeping

    def save(self, name: str = CHECKPOINTS, note: Mapping[str, Any] | None = None) -> None:
        """Write everything to `save_path`/`name`: a trainer that is loaded from there goes on as if never stopped.

        note: something of the caller's to keep with it, as JSON.
        """
        with self._lock:
            if self.save_path is None:
                raise UsageError("This trainer has no save_path: give one to keep what it learns.")
            where = self.save_path / name
            self.save_path.mkdir(parents=True, exist_ok=True)
            write_json(self.save_path / CONFIG, self._to_json())
            self.note = dict(note or {})
            self._saves += 1
            waiting = self._packer.waiting
            if waiting is not None:
                from flockrl.data.files import Writer  # needs pyarrow, which only these few need

                file = self.save_path / WAITING / f"{name}-{self._saves}.arrow"
                file.unlink(missing_ok=True)  # of a save that did not come to its end
                with Writer(file, self.spec) as writer:
                    writer.add(waiting)
            meta = {
                "version": self.version, "stats": self.stats, "note": self.note, "epoch": self._epoch.to_json(),
                "waiting": waiting is not None, "played": self._played,
            }  # fmt: skip
            checkpoints = Checkpoints(where)
            checkpoints.save(self._saves, self._state, meta)
            checkpoints.wait()
            kept = checkpoints.steps()
            checkpoints.close()
            for old in (self.save_path / WAITING).glob(f"{name}-*.arrow"):
                if int(old.stem.rpartition("-")[2]) not in kept:
                    old.unlink()

    @staticmethod
    def load(path: str | Path, name: str = CHECKPOINTS, trust: bool = False) -> Trainer:
        """The trainer that was saved at `path`, as it was. trust: whether code that it names may be imported."""
        path = Path(path)
        if not (path / CONFIG).is_file():
            raise UsageError(f"There is no trainer at {path}: it has no {CONFIG}.")
        saved = saved_trainer(read_json(path / CONFIG))
        with trusting(trust):
            require_trust(path / CONFIG, code_of(saved["hyperparams"]))
        trainer = Trainer(**saved)
        trainer.save_path = path
        trainer.restore(name)
        return trainer

    def restore(self, name: str = CHECKPOINTS) -> None:
        """Go back to what was saved last at `save_path`/`name`."""
        with self._lock:
            assert self.save_path is not None
            with Checkpoints(self.save_path / name) as checkpoints:
                steps = checkpoints.steps()
                if not steps:
                    raise UsageError(f"{self.save_path / name} has no checkpoint.")
                shape = jax.eval_shape(self._learner.init, jax.random.key(0))
                self._state, meta = checkpoints.restore(shape, steps[-1])
                try:
                    self._continue(meta)
                except (KeyError, TypeError, ValueError, AttributeError) as error:  # of a version without a digest
                    raise checkpoints.damaged(steps[-1]) from error
            self._saves = steps[-1]
            self._packer.clear()
            if meta["waiting"]:
                from flockrl.data.files import Files

                for data in Files([self.save_path / WAITING / f"{name}-{steps[-1]}.arrow"], memory_limit=2**63):
                    self._packer.add(data)

    def _continue(self, meta: Mapping[str, Any]) -> None:
        """Go on from what a checkpoint says besides the learner's state."""
        self.version, self.stats, self.note = int(meta["version"]), dict(meta["stats"]), dict(meta["note"])
        self._epoch, self._played = Epoch.from_json(meta["epoch"]), int(meta.get("played", 0))
        self._acting.forget()

    def _to_json(self) -> dict[str, Any]:
        config = config_to_json(self.config)
        return {
            "algorithm": self.algorithm, "spec": spec_to_json(self.spec),
            **(config if "sides" in config else {"config": config}),
            "envs": self.envs, "steps": self.steps, "seed": self.seed, "max_version_lag": self._lag,
            "versions": versions(),
        }  # fmt: skip


@jax.jit
def _key(seed: int, version: int) -> Array:
    return jax.random.fold_in(jax.random.key(seed), version)
