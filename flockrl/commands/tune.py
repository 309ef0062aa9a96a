"""The command tune: search for settings, and confirm what was found."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import Positional

from flockrl.commands.train import parse_training
from flockrl.core.cluster import check_cluster
from flockrl.core.errors import UsageError
from flockrl.training.compilation import Platform, prepare
from flockrl.tuning.search import Pruner, Sampler, read_objective


@dataclass(frozen=True)
class TuneFlags:
    """What `flockrl tune` takes besides the settings, which are the same for all trials."""

    env: Annotated[str, Positional, tyro.conf.arg(metavar="ENV")]
    """Environment as SUITE/NAME[:setting=value,...]."""
    search: tuple[str, ...] = ()
    """What to search: NAME=LOW:HIGH, NAME=log:LOW:HIGH, NAME=A,B,C, or a TOML file that has these under [search]."""
    trials: int = 50
    """Trials in all. A search that has fewer goes on, one that was stopped too."""
    sampler: Sampler = "tpe"
    """How settings are proposed: tpe and cmaes learn from the trials before, random does not."""
    prune: bool = False
    """Stop trials early that do worse than others did: those below the median of the trials before them."""
    pruner: Pruner | None = None
    """How to stop trials early: median, as --prune does, or asha, which keeps the best third at each of a few rungs."""
    objective: tuple[str, ...] = ("eval_return",)
    """The figure of an evaluation that is searched for, e.g. eval_return_adversary; min:NAME for the smallest. With
    several, the trials are told than which none is better in all of them; the first decides what is called best."""
    seeds: int = 1
    """Seeds of each trial, which is worth the mean of their last evaluations."""
    confirm: int = 5
    """Fresh seeds on which the best settings are compared with the default ones; 0 for none."""
    jobs: int | None = None
    """Trials at a time, each on a share of the cores, by default one. With more, the order in which they end counts."""
    cores: int = 1
    """Cores of each trial on a cluster (--ray), which runs as many at a time as it has cores for."""
    out: Path | None = None
    """The search's directory, by default runs/tune-ALGORITHM-ENV. The same command continues what is there."""
    config: Path | None = None
    """JSON or TOML file with settings that all trials share; flags win over it."""
    platform: Platform | None = None
    """Where to compute, cpu, gpu or tpu; by default where JAX finds the fastest."""
    trust: bool = False
    """Import code that files name (--config, --search)."""
    quiet: bool = False
    """Print nothing but errors."""


def tune(words: list[str]) -> int:
    from flockrl.algos.presets import algorithms

    if not words or words[0].startswith("-"):
        print("usage: flockrl tune ALGORITHM ENV --search NAME=RANGE ... [options]\n")
        print("`flockrl tune ALGORITHM --help` lists the options.\n")
        print("algorithms: " + ", ".join(algorithms()))
        return 0 if words[:1] in (["-h"], ["--help"]) else 2
    name = words[0]
    if "=" in name:
        raise UsageError("One algorithm is tuned at a time: train the other sides first, and freeze them.")
    given, settings = parse_training(name, words[1:], TuneFlags, "tune")
    for flag, least in (("trials", 1), ("seeds", 1), ("jobs", 1), ("confirm", 0)):
        if (value := getattr(given.run, flag)) is not None and value < least:
            raise UsageError(f"{flag} must be at least {least}, not {value}.")
    check_cluster(given.run.jobs, given.training.ray, given.run.cores)
    if given.run.confirm == 1:
        raise UsageError("A confirmation compares means: it needs at least 2 seeds, or --confirm 0.")
    prepare(given.run.platform)
    from flockrl.core.lock import locked

    out = given.run.out or Path("runs") / f"tune-{name}-{given.run.env.partition(':')[0].replace('/', '-')}"
    job = Tuning(name, given, settings, out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"Cannot create {out}: {error.strerror}.") from error
    with locked([out]):
        job.run()
    return 0


class Tuning:
    """One call of the command: search, write down, confirm."""

    def __init__(self, algorithm: str, given: Any, settings: dict[str, Any], out: Path):
        from rich.console import Console

        from flockrl.algos.assembly import make_algorithm
        from flockrl.envs.registry import make
        from flockrl.training.channels import around
        from flockrl.training.space import check_space, read_space, settle

        self.algorithm, self.flags, self.out = algorithm, given.run, out
        self.ray = given.training.ray  # of the trials, each of which runs on one node
        self.fixed = {**vars(given.training), **settings, "ray": None}
        self.objectives = [read_objective(word) for word in self.flags.objective]
        if not self.objectives or len({objective.name for objective in self.objectives}) < len(self.objectives):
            raise UsageError("--objective names figures of evaluations, each once: e.g. eval_return.")
        self.space = check_space(read_space(self.flags.search, algorithm), algorithm, self.fixed)
        options, config = settle(algorithm, self.fixed)
        make_algorithm(algorithm, around(config, make(self.flags.env)).spec, config, envs=options.envs, updates=1)
        self.options = options
        self.console = Console(quiet=self.flags.quiet, width=None if sys.stdout.isatty() else 120)

    def _run_config(self, settings: dict[str, Any]) -> Any:
        from flockrl.training.config import RunConfig
        from flockrl.training.space import settle

        return RunConfig(self.algorithm, self.flags.env, *settle(self.algorithm, {**self.fixed, **settings}))

    def _task(self, settings: Any) -> dict[str, Any]:
        run = self._run_config(settings).to_json()
        return {"run": run, "seeds": self.flags.seeds, "objectives": [objective.name for objective in self.objectives]}

    def run(self) -> None:
        from flockrl.core.errors import TrainingError
        from flockrl.tuning.places import Cluster, Here, Place
        from flockrl.tuning.result import PICTURE, TABLE, draw_search, told, trials_table, write_best, write_trials
        from flockrl.tuning.search import SEARCH, Search
        from flockrl.tuning.trials import Trials

        if any(path.name not in ("lock", SEARCH) for path in self.out.iterdir()) and not (self.out / SEARCH).exists():
            raise UsageError(f"{self.out} holds something else than a search: choose another --out.")
        flags = self.flags
        saved = self._run_config({}).to_json()  # what stays empty is left out, as it was before it could be asked for
        about = {key: value for key, value in saved.items() if key != "versions" and value != ()}
        about |= {"objective": " ".join(flags.objective), "seeds": flags.seeds}
        pruner: Pruner | None = flags.pruner or ("median" if flags.prune else None)
        search = Search(
            self.out, self.space, about, sampler=flags.sampler, pruner=pruner,
            seed=self.options.seed, every=self.options.eval_every or max(1, self.options.steps // 20),
            objectives=self.objectives,
        )  # fmt: skip
        self._say(self._begin(search))
        if self.ray is None:
            place: Place = Here(flags.jobs or 1)
        else:
            place = Cluster(self.ray, flags.cores, search.path, flags.platform)
        Trials(search, self.out, self._task, place, flags.platform).run(flags.trials, self._watch)
        write_trials(search, self.out / TABLE)
        if search.best is None:
            why = next((trial.why for trial in search.trials if trial.why), "all were pruned")
            raise TrainingError(f"No trial was completed: {why}")
        draw_search(search, self.out / PICTURE)
        self.console.print(trials_table(search))
        self._say(told(search))
        file = write_best(self.out, self.algorithm, flags.env, self.fixed, search.best.settings)
        self._confirm(search)
        self._say(f"Train with it: flockrl train {self.algorithm} {flags.env} --config {file}")

    def _begin(self, search: Any) -> str:
        done = f", {len(search.trials)} of them begun before" if search.trials else ""
        searched = " ".join(f"{d.name}={d}" for d in self.space)
        return f"{self.flags.trials} trials{done} of {self.algorithm} on {self.flags.env} in {self.out}: {searched}"

    def _confirm(self, search: Any) -> None:
        from flockrl.evidence.board import Board
        from flockrl.tuning.confirm import confirm, confirming
        from flockrl.tuning.result import SUMMARY, tell, write_summary

        confirmations, best, flags = {}, search.best, self.flags
        if flags.confirm:
            first = self.options.seed + flags.seeds  # seeds that no trial had
            suite = confirming(self.algorithm, flags.env, self.fixed, best.settings, first, flags.confirm)
            promised = {objective.name: value for objective, value in zip(self.objectives, best.values, strict=True)}
            where: dict[str, Any] = {"platform": flags.platform, "jobs": flags.jobs or 1}
            if self.ray is not None:
                where |= {"jobs": None, "ray": self.ray, "cores": flags.cores}
            with Board(self.console) as board:
                watch = None if flags.quiet else board.watch
                confirmations = confirm(suite, self.out / f"trial-{best.number:04d}", promised, watch, **where)
            for objective in self.objectives:
                self._say(tell(confirmations[objective.name], objective))
        write_summary(self.out / SUMMARY, search, confirmations)

    def _watch(self, search: Any, ended: Any) -> None:
        if ended is None:
            return
        over = sum(trial.state != "running" for trial in search.trials)
        values = zip(self.objectives, ended.values, strict=False)
        how = ", ".join(f"{objective.name} {value:.3f}" for objective, value in values)
        how += {"pruned": f" pruned at step {max(ended.reports, default=0):,}", "failed": f" failed: {ended.why}"}.get(
            ended.state, ""
        )
        best = f"  (best {search.best.value:.3f} of trial {search.best.number})" if search.best else ""
        self._say(f"[{over}/{self.flags.trials}] {json.dumps(ended.settings)}  {how}{best}")

    def _say(self, text: str) -> None:
        if not self.flags.quiet:
            print(text, flush=True)
