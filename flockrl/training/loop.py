"""The one loop: advance, log, evaluate, checkpoint, tell the callbacks; again until the steps are done."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from flockrl.core.callbacks import Callback, Moment
from flockrl.core.code import trusting
from flockrl.core.devices import agreed, whole
from flockrl.core.errors import CannotWrite, TrainingError
from flockrl.core.rundir import CHECKPOINTS, CURVE, RESULT, read_metrics, write_json
from flockrl.core.types import PyTree
from flockrl.envs.api import Env
from flockrl.envs.host.batch import HostFault
from flockrl.evaluation.playing import summarize
from flockrl.training.best import Best
from flockrl.training.checkpoint import Checkpoints
from flockrl.training.config import RunConfig, check_settings, write_choices
from flockrl.training.curriculum import Staged
from flockrl.training.exploit import Exact
from flockrl.training.figures import draw, evaluated, parties, per_side, row_of, side_names
from flockrl.training.interrupt import Interrupted, interrupts
from flockrl.training.log import Log
from flockrl.training.memory import ADVICE
from flockrl.training.population import population_of
from flockrl.training.program import Program, TrainState
from flockrl.training.run import Run
from flockrl.training.trackers import make_trackers
from flockrl.view.progress import Progress

LOG_POINTS = 100
"""Log points in a run, so that progress shows and no time is lost between compiled stretches."""


class Loop:
    """A run under way, for one seed or several."""

    def __init__(
        self,
        program: Program,
        runs: Sequence[RunConfig],
        paths: Sequence[Path],
        env: Env,
        callbacks: Sequence[Callback],
        quiet: bool,
        warm: Callable[[PyTree], tuple[PyTree, str]] | None = None,
    ):
        self.program, self.runs, self.paths = program, list(runs), list(paths)
        self.seeds = [run.options.seed for run in runs]
        self.warm = warm
        self._enter(env)
        self.population = population_of(runs, self.base, apart=bool(self.parties))
        self.trackers = make_trackers(runs[0].options.log)
        self.callbacks: list[Callback] = [*self.trackers, *callbacks]
        if not quiet:
            self.callbacks.append(Progress(runs[0], program, len(runs)))
        total, options = program.setting.iterations, runs[0].options
        self.log_every = math.ceil(total / LOG_POINTS)
        self.eval_every = self._iterations(options.eval_every, 20)
        self.checkpoint_every = self._iterations(options.checkpoint_every, 10)
        self.evolve_every = total if self.population is None else self._iterations(self.population.plan.every, 10)
        self.interrupted, self.saved = False, -1
        self.stop_reason: str | None = None
        self.began, self.train_seconds = time.perf_counter(), 0.0

    def _enter(self, env: Env) -> None:
        """Where the team plays from now on."""
        self.env, self.parties = env, parties(env.spec, self.runs[0].config)
        self.exact = Exact(env, self.runs[0].config)

    def _iterations(self, steps: int | None, parts: int) -> int:
        """Every how many iterations: as many steps, or about that part of the run, where a log point is due anyway."""
        if steps is None:
            return self.log_every * math.ceil(self.program.setting.iterations / parts / self.log_every)
        return max(1, math.ceil(steps / self.program.setting.iteration_steps))

    @property
    def base(self) -> Path:
        """The directory of all seeds."""
        return self.paths[0] if len(self.paths) == 1 else self.paths[0].parent

    def run(self) -> Any:
        try:
            self.program.open(self.seeds)
            return self._run()
        except HostFault as fault:
            raise TrainingError(f"Training stopped: {self._kept(0)}. {fault}") from fault
        except CannotWrite as error:
            again = f"`flockrl resume {self.base}{self.runs[0].trust}`"
            raise CannotWrite(f"{error} Once that is mended, {again} continues.") from error
        except (MemoryError, jax.errors.JaxRuntimeError) as error:
            if not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in str(error):
                raise
            raise TrainingError(f"Training ran out of memory: {self._kept(0)}. {ADVICE}") from error
        finally:
            self.program.close()

    def _run(self) -> Any:
        self.program.compile(self.seeds[0])
        note = self.program.setting.algorithm.note
        for path in self.paths:
            write_choices(path, {**self.program.chosen, **({"learner": note} if note else {})})
        self.checkpoints = [Checkpoints(path / CHECKPOINTS) for path in self.paths]
        self.logs: list[Log] = []
        try:
            iteration = self._restore()
            with interrupts(self._interrupt):
                self._tell("on_start", iteration)
                if iteration == 0:
                    self._record(0, [{} for _ in self.paths], evaluate=True)
                while iteration < self.program.setting.iterations and not self.interrupted and self.stop_reason is None:
                    iteration = self._stretch(iteration)
                    self.interrupted = agreed(self.interrupted)
            self._finish(iteration)
        finally:
            for checkpoints in self.checkpoints:
                checkpoints.close()
            for log in self.logs:
                log.close()
            for tracker in self.trackers:
                tracker.close()
        with trusting(True):  # what the configs name was given to this process, or trusted when they were opened
            runs = [Run(path, None if self.runs[0].recorded else self.env) for path in self.paths]
        return runs[0] if len(runs) == 1 else runs

    def _interrupt(self) -> None:
        self.interrupted = True

    def _restore(self) -> int:
        """Begin at the newest checkpoint that all seeds have, or at the start."""
        shared = set.intersection(*(set(c.steps()) for c in self.checkpoints))
        self.best: list[Best] = []  # by seed
        self.last: list[dict[str, Any]] = []
        if not shared:
            self.states = [self._begin(self.program.start_state(seed)) for seed in self.seeds]
            if self.population is not None:
                self.states = self.population.begin(self.states)
            for path in self.paths:
                self._opened(Log(path), {}, Best(self.parties))
            if self.program.recording is not None:
                self.program.recording.begin(self.paths[0])
            if self.warm is not None:
                self._save(0)
            return 0
        step = max(shared)
        self.states = []
        like = self.program.shape()
        for i, checkpoints in enumerate(self.checkpoints):
            check_settings(self.paths[i], self.runs[i], checkpoints.meta(step))
            state, meta = checkpoints.restore(like, step)
            try:
                params = jax.eval_shape(self.program.setting.algorithm.params, like.learner)
                best = Best(self.parties, meta, checkpoints.restore_best(params, step)[0])
                self._continue(i, step, meta, best)
            except (KeyError, TypeError, ValueError, AttributeError) as error:  # of a version without a digest of it
                raise checkpoints.damaged(step) from error
            checkpoints.drop_after(step)
            self.states.append(self.program.settle(state, self.seeds[i]))
        if self.population is not None:
            self.population.resume(step)
        self.saved = step // self.program.setting.iteration_steps
        return self.saved

    def _continue(self, i: int, step: int, meta: dict[str, Any], best: Best) -> None:
        """Go on with the log, the recording and the times of a seed from what a checkpoint says."""
        seconds, train_seconds, compile_seconds = (
            float(meta[name]) for name in ("seconds", "train_seconds", "compile_seconds")
        )
        self._opened(Log(self.paths[i], meta["metrics_bytes"]), meta, best)
        if self.program.recording is not None:
            self.program.recording.begin(self.paths[i], meta.get("recording"))
        if i == len(self.paths) - 1:
            self.began -= seconds
            self.train_seconds = train_seconds
            self.program.compile_seconds += compile_seconds

    def _begin(self, state: TrainState) -> TrainState:
        """A fresh state, with the parameters that come from other runs."""
        if self.warm is None:
            return state
        learner, self.program.note = self.warm(state.learner)
        return state._replace(learner=learner)

    def _opened(self, log: Log, meta: dict[str, Any], best: Best) -> None:
        self.logs.append(log)
        self.best.append(best)
        self.last.append(meta.get("last", {}))

    def _stretch(self, iteration: int) -> int:
        """Advance all seeds to the next point where something is due."""
        total = self.program.setting.iterations
        each = (self.log_every, self.eval_every, self.checkpoint_every, self.evolve_every)
        until = min([every * (iteration // every + 1) for every in each] + [total])
        began = time.perf_counter()
        pairs = zip(self.states, self.seeds, strict=True)
        done = [self.program.run(state, seed, until - iteration) for state, seed in pairs]
        self.states = [state for state, _, _ in done]
        rows = [row_of(*numbers) for numbers in jax.device_get([d[1:] for d in done])]
        for row in rows:
            if row["return_per_agent"] is not None:
                row |= per_side(self.parties, "return", row["return_per_agent"])
        seconds = time.perf_counter() - began
        self.train_seconds += seconds
        for row in rows:
            row["steps_per_second"] = round((until - iteration) * self.program.setting.iteration_steps / seconds, 1)
        ranked = until % self.evolve_every == 0
        self._record(until, rows, evaluate=until % self.eval_every == 0 or ranked or until == total)
        if self.population is not None and ranked and until < total and self.stop_reason is None:
            step, scores = until * self.program.setting.iteration_steps, [row["eval_return"] for row in rows]
            self.states = self.population.evolve(step, scores, self.states)
        if isinstance(self.program, Staged) and until < total and self.stop_reason is None:
            self._choose_stage(self.program, until * self.program.setting.iteration_steps, rows[0])
        if until % self.checkpoint_every == 0 or until == total:
            self._save(until)
        return until

    def _choose_stage(self, program: Staged, step: int, row: dict[str, Any]) -> None:
        """Go on in another stage of the curriculum, where one is due."""
        if (stage := program.after(step, row, self.seeds[0])) != program.stage:
            self.states, self.best = [program.move(self.states[0], self.seeds[0], stage)], [Best(self.parties)]
            self._enter(program.env)

    def _record(self, iteration: int, rows: list[dict[str, Any]], evaluate: bool) -> None:
        """Check, evaluate if due, write down, and tell the callbacks."""
        step = iteration * self.program.setting.iteration_steps
        for i, row in enumerate(rows):
            self._check_finite(i, step, row)
            moment = self._moment(i, iteration)
            result = None
            if evaluate:
                played = self.program.evaluate(self.states[i], self.seeds[i], step)
                result = None if played is None else summarize(*played)
            if result is not None:
                row |= evaluated(result, self.parties, self.env)
                algorithm = self.program.setting.algorithm
                self.best[i].note(row, step, algorithm, self.states[i].learner)
                row |= self.exact.figures(algorithm, algorithm.params(self.states[i].learner))
            seconds = round(time.perf_counter() - self.began, 3)
            row = {"step": step, "seconds": seconds, **row}
            self.logs[i].write(row)
            self.last[i] = {**self.last[i], **{k: v for k, v in row.items() if v is not None}}
            moment.metrics = row
            for callback in self.callbacks:
                if result is not None:
                    callback.on_evaluation(moment, result)
                if row.get("episodes"):
                    callback.on_episode_stats(moment, row["episodes"], row["return_per_agent"], row["episode_length"])
                callback.on_iteration(moment)
            self.stop_reason = self.stop_reason or moment.stop_reason

    def _check_finite(self, i: int, step: int, row: dict[str, Any]) -> None:
        for name, value in row.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise TrainingError(
                    f"Training of seed {self.seeds[i]} stopped at step {step}: {name} is {value}; {self._kept(i)}. "
                    "A lower lr or max_grad_norm usually helps."
                )

    def _kept(self, i: int) -> str:
        """What is left of a run that stops."""
        if not hasattr(self, "checkpoints"):
            return "there was no checkpoint yet"
        checkpoints = Checkpoints(self.paths[i] / CHECKPOINTS)  # those of the loop may be closed by now
        steps = checkpoints.steps()
        checkpoints.close()
        if not steps:
            return "there was no checkpoint yet"
        return f"the last good checkpoint is {checkpoints.path / str(steps[-1])}"

    def _save(self, iteration: int) -> None:
        step = iteration * self.program.setting.iteration_steps
        recording = {} if self.program.recording is None else {"recording": self.program.recording.state()}
        for i, (state, checkpoints) in enumerate(zip(self.states, self.checkpoints, strict=True)):
            meta = {
                "metrics_bytes": self.logs[i].offset,
                **self.best[i].meta(),
                "last": self.last[i],
                "seconds": time.perf_counter() - self.began,
                "train_seconds": self.train_seconds,
                "compile_seconds": self.program.compile_seconds,
                "settings": self.runs[i].decisive(),
                **recording,
                **(self.program.position.meta() if isinstance(self.program, Staged) else {}),
            }
            checkpoints.save(step, whole(state), meta, self.best[i].policy)
        self.saved = iteration
        self._tell("on_checkpoint", iteration)

    def _finish(self, iteration: int) -> None:
        if self.stop_reason and not self.interrupted and "eval_return" not in self._newest_row():
            self._record(iteration, [{} for _ in self.paths], evaluate=True)
            self.saved = -1  # the evaluation belongs to it
        if self.saved != iteration:
            self._save(iteration)
        for checkpoints in self.checkpoints:
            checkpoints.wait()
        step = iteration * self.program.setting.iteration_steps
        if self.interrupted and iteration < self.program.setting.iterations:
            self._tell("on_end", iteration)
            trust = self.runs[0].trust
            raise Interrupted(f"Stopped at step {step} and saved: continue with `flockrl resume {self.base}{trust}`.")
        if self.program.recording is not None:
            self.program.recording.publish()
        for i, path in enumerate(self.paths):
            write_json(path / RESULT, self._result(i, step))
            draw([path], path / CURVE)
        if self.program.recording is not None:
            self.program.recording.remove()
        if len(self.paths) > 1:
            draw(self.paths, self.base / CURVE)
        if self.population is not None:
            self.population.draw(self.paths)
        self._tell("on_end", iteration)

    def _newest_row(self) -> dict[str, Any]:
        return (read_metrics(self.paths[0]) or [{}])[-1]

    def _result(self, i: int, step: int) -> dict[str, Any]:
        last = self.last[i]
        return {
            "steps": step,
            "seconds": round(time.perf_counter() - self.began, 3),
            "compile_seconds": round(self.program.compile_seconds, 3),
            "steps_per_second": round(step / max(self.train_seconds, 1e-9), 1),
            "final_return": last.get("return"),
            "final_eval_return": last.get("eval_return"),
            **self.best[i].result(),
            **{f"final_{name}": last.get(name) for name in side_names(self.parties, "eval_return")},
            **({"stopped": self.stop_reason} if self.stop_reason else {}),
        }

    def _moment(self, i: int, iteration: int) -> Moment:
        size = self.program.setting.iteration_steps
        steps = (iteration * size, self.program.setting.iterations * size)
        return Moment(self.paths[i], self.seeds[i], *steps, self.states[i], self.last[i], self.stop_reason)

    def _tell(self, event: str, iteration: int) -> None:
        for i in range(len(self.paths)):
            moment = self._moment(i, iteration)
            for callback in self.callbacks:
                getattr(callback, event)(moment)
            self.stop_reason = self.stop_reason or moment.stop_reason
