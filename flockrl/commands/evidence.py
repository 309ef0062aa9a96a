"""The commands for evidence: bench, report, recommend."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import Positional

from flockrl.commands.parsing import parse
from flockrl.core.cluster import check_cluster
from flockrl.core.errors import UsageError
from flockrl.core.lock import lock
from flockrl.envs.registry import parse_settings
from flockrl.training.compilation import Platform, prepare


@dataclass(frozen=True)
class BenchFlags:
    """What `flockrl bench` takes."""

    suite: Annotated[str | None, Positional, tyro.conf.arg(metavar="SUITE")] = None
    """A suite's .toml file, or a shipped one: smoke, mpe, classic, games, tuning, everywhere, scaling. Leave it
    out to name the parts by flags."""
    algorithms: tuple[str, ...] = ()
    """Algorithms to compare, instead of a suite."""
    environments: tuple[str, ...] = ()
    """Environments to compare them on, instead of a suite."""
    seeds: int | None = None
    """Seeds per algorithm and environment, from 0 on; by default what the suite says, or 5."""
    steps: int | None = None
    """Environment steps of every run, in place of what the suite says."""
    set: tuple[str, ...] = ()
    """Settings of every run as name=value, in place of what the suite says, e.g. --set lr=0.001 envs=32."""
    only: tuple[str, ...] = ()
    """Run a piece of the suite: algorithms by name, and environments by how their names begin, e.g. --only mappo
    jaxmarl/overcooked. What other pieces with the same --out found stays in the tables."""
    out: Path | None = None
    """The benchmark's directory, by default runs/bench-SUITE. The same command continues what is there."""
    trust: bool = False
    """Import code that the suite's file names: an environment of your own, a kernel."""
    jobs: int | None = None
    """Runs at a time, each on a share of the cores; by default one per core, and one with --platform gpu or tpu."""
    ray: str | None = None
    """Run on a Ray cluster: auto for the one at hand, or a local one, or its address HOST:PORT. All machines must see
    --out."""
    cores: int = 1
    """Cores of each run on a Ray cluster."""
    platform: Platform | None = None
    """Where to compute, cpu, gpu or tpu; by default where JAX finds the fastest."""
    quiet: bool = False
    """Print nothing but errors."""


def bench(words: list[str]) -> int:
    about = "Run algorithms x environments x seeds; interrupted, the same command continues."
    given = parse(BenchFlags, words, "flockrl bench", about)
    from rich.console import Console

    from flockrl.evidence.board import Board, plain_table, result_table, written
    from flockrl.evidence.harness import run_suite, write_tables

    if given.jobs is not None and given.jobs < 1:
        raise UsageError(f"jobs must be at least 1, not {given.jobs}.")
    check_cluster(given.jobs, given.ray, given.cores)
    prepare(given.platform)
    suite = _suite(given)
    out = given.out or Path("runs") / f"bench-{suite.name}"
    console = Console(quiet=given.quiet, width=None if sys.stdout.isatty() else 140)  # a log has room
    device = given.platform not in (None, "cpu")
    how: dict[str, Any] = {"jobs": 1 if device and given.jobs is None else given.jobs, "platform": given.platform}
    how |= {"ray": given.ray, "cores": given.cores}
    if given.quiet:
        works = run_suite(suite, out, **how)
    else:
        print(f"{len(suite.cells)} runs in {out}" + (f": {suite.question}" if suite.question else ""))
        with Board(console) as board:
            works = run_suite(suite, out, watch=board.watch, **how)
    failed = [work for work in works if work.state == "failed"]
    if len(failed) < len(works):
        with lock(out, wait=True):  # other pieces may be run beside this one
            records = write_tables(out)
            table = result_table(records) if _statistics(records, out) else plain_table(records)
        console.print(table)
        console.print(written(out), highlight=False, soft_wrap=True)
    if failed:
        from flockrl.core.errors import TrainingError

        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise TrainingError(f"{failed[0].cell.folder} failed{more}: {failed[0].complaint}")
    return 0


def _suite(given: Any) -> Any:
    from flockrl.evidence.suite import make_suite, read_suite, shipped

    settings = {} if given.steps is None else {"steps": given.steps}
    for word in given.set:
        settings |= parse_settings(word)
    changes: dict[str, Any] = {"settings": settings, "only": given.only}
    if given.seeds is not None:
        changes["seeds"] = given.seeds
    if given.suite is None:
        if not given.algorithms or not given.environments:
            raise UsageError(
                f"Name a suite ({', '.join(shipped())} or a .toml file), or --algorithms and --environments."
            )
        parts = {"algorithms": list(given.algorithms), "environments": list(given.environments)}
        return make_suite("own", parts, changes)
    if given.algorithms or given.environments:
        raise UsageError("A suite names its own algorithms and environments: leave out the suite or the flags.")
    return read_suite(given.suite, changes)


def _statistics(records: Any, out: Path) -> bool:
    """Write summary.csv; False when the extra `report` is missing."""
    from flockrl.evidence import statistics
    from flockrl.evidence.records import write_csv
    from flockrl.evidence.summary import lines, summary_rows

    if not statistics.available():
        return False
    write_csv(summary_rows(lines(records)), out / "summary.csv")
    return True


@dataclass(frozen=True)
class ReportFlags:
    """What `flockrl report` takes."""

    runs: Annotated[tuple[Path, ...], Positional, tyro.conf.arg(metavar="RUNS")]
    """Runs, directories of seeds, or benchmarks: every finished run at or below them. Or the data of a server."""
    out: Path = Path("report.html")
    """The page to write."""
    title: str = ""
    """Its title; by default what was compared."""
    question: str = ""
    """The question it answers; by default the benchmark's."""
    animations: bool = True
    """Show the best, median and worst episodes; they take a few seconds for each algorithm and environment."""
    trust: bool = False
    """Import code that the runs' files name: an environment of your own, a kernel, a script. Only for runs that you
    know: such code can do whatever you can."""


def report(words: list[str]) -> int:
    about = "Write one self-contained page about finished runs."
    given = parse(ReportFlags, words, "flockrl report", about)
    if not given.runs:
        raise UsageError("Name at least one run or benchmark: flockrl report RUNS... --out report.html.")
    from flockrl.evidence.report import write_report

    prepare()
    size, notes = write_report(given.runs, given.out, given.title, given.question, given.animations)
    for note in notes:
        print(note)
    told = f"{size / 1e6:.1f} MB" if size > 100_000 else f"{size / 1e3:.0f} kB"
    print(f"wrote {given.out} ({told})")
    return 0


@dataclass(frozen=True)
class RecommendFlags:
    """What `flockrl recommend` takes."""

    env: Annotated[str, Positional, tyro.conf.arg(metavar="ENV")]
    """Environment as SUITE/NAME[:setting=value,...]."""
    all: bool = False
    """Show the algorithms that do not fit, too, with the reason."""


def recommend(words: list[str]) -> int:
    about = "Say which algorithms fit an environment, and why."
    given = parse(RecommendFlags, words, "flockrl recommend", about)
    from rich.console import Console
    from rich.table import Table

    from flockrl.envs.registry import make
    from flockrl.evidence.facts import describe, look
    from flockrl.evidence.recommend import NO, advise, hints

    prepare()
    facts = look(make(given.env))
    found = advise(facts)
    shown = [advice for advice in found if given.all or advice.fit != NO]
    table = Table(title=f"algorithms for {given.env}", title_justify="left")
    for column in ("algorithm", "fit", "why"):
        table.add_column(column)
    for advice in shown:
        table.add_row(*advice, style="bold" if advice.fit == "fits" else "dim" if advice.fit == NO else "")
    print("\n".join(describe(facts)))
    Console().print(table)
    print("\n".join(hints(facts)), end="\n" * bool(hints(facts)))
    if len(shown) < len(found):
        print(f"{len(found) - len(shown)} algorithms do not fit: --all says why.")
    print(f"Try: flockrl train {found[0].name} {given.env}")
    return 0
