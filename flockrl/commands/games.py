"""The commands about games: solve and crossplay."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from tyro.conf import Positional

from flockrl.commands.parsing import parse
from flockrl.core.errors import UsageError, nearest
from flockrl.core.settings import check_count, check_number
from flockrl.core.text import printable
from flockrl.training.compilation import prepare

LONGEST = 10_000
"""Characters in a field of a table."""


class NotSolved(UsageError):
    """A solver ended, and what it ended at is no equilibrium."""

    status = 1


QUICK = 1_000
"""Matrix games with up to this number of joint actions are solved before anybody wonders."""
MOST_ITERATIONS = 10**8
"""The largest number of iterations that a solver is asked for."""


@dataclass(frozen=True)
class SolveFlags:
    """What `flockrl solve` takes."""

    game: Annotated[str, Positional, tyro.conf.arg(metavar="GAME")]
    """A game as SUITE/NAME[:setting=value,...], or a file (.json, .npy, .npz) of payoffs or of a Markov game."""
    method: str | None = None
    """Matrix games: all (default), nash, correlated, or learning: best-response, fictitious, regret-matching,
    regret-matching+, multiplicative-weights, replicator. Markov games: minimax (default where one gains what the other
    loses), policy-iteration, nash (default), correlated, best-response, fictitious. Trees: lp (default), cfr, cfr+,
    psro, fictitious."""
    iterations: int = 1000
    """Iterations of cfr, cfr+, psro, fictitious and learning."""
    discount: float | None = None
    """What a reward is worth that comes one move later, in Markov games; by default the game's own."""
    out: Path | None = None
    """Write a picture to this file (.png, .pdf or .svg): payoffs and solutions, learning, or progress of cfr."""


LEARNING = (
    "best-response",
    "fictitious",
    "regret-matching",
    "regret-matching+",
    "multiplicative-weights",
    "replicator",
)
NORMAL = ("all", "nash", "correlated", *LEARNING)
TREE = ("lp", "cfr", "cfr+", "psro", "fictitious")


def solve(words: list[str]) -> int:
    about = "Solve a game. Whatever is called an equilibrium is printed with its regret."
    given = parse(SolveFlags, words, "flockrl solve", about)
    check_count("iterations", given.iterations, MOST_ITERATIONS)
    if given.discount is not None:
        check_number("discount", given.discount, least=0, most=1)
    if given.out is not None:
        from flockrl.view.games import check_picture

        check_picture(given.out)
    from flockrl.games.markov import MarkovGame
    from flockrl.games.normal import NormalForm

    prepare()
    game = load_game(given.game, given.discount)
    if isinstance(game, NormalForm):
        return _normal(game, given)
    return _markov(game, given) if isinstance(game, MarkovGame) else _tree(game, given)


def load_game(word: str, discount: float | None) -> Any:
    """A normal-form game, a Markov game, or the rules of a game with hidden information."""
    from flockrl.envs.games import MatrixGame, RulesEnv
    from flockrl.envs.games.payoffs import SUFFIXES
    from flockrl.envs.host.env import Host
    from flockrl.envs.registry import make
    from flockrl.games.files import read_game
    from flockrl.games.markov import from_env, from_rules
    from flockrl.games.normal import from_matrix_game

    if ":" not in word and Path(word).suffix.lower() in SUFFIXES:
        return read_game(Path(word))
    env = make(word)
    if isinstance(env, MatrixGame):
        return from_matrix_game(env)
    if isinstance(env, RulesEnv):
        return env.rules if env.rules.recall else from_rules(env.rules, discount)
    if isinstance(env, Host):
        raise UsageError(f"{word} cannot be enumerated: it is not compiled.")
    return from_env(env, 1.0 if discount is None else discount)


def _choose(method: str | None, known: Sequence[str], default: str, kind: str) -> str:
    word = default if method is None else method.replace("_", "-")
    if word not in known:
        raise UsageError(f"{kind} are not solved by {method!r}.{nearest(word, known)}")
    return word


def _numbers(values: np.ndarray) -> str:
    return ", ".join(f"{x:.6g}" for x in np.round(values, 12) + 0.0)


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(printable(title)), title_justify="left")  # names are text, and never markup
    for column in columns:
        table.add_column(Text(column), overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(word, LONGEST)) for word in row))
    Console(width=None if sys.stdout.isatty() else 140, highlight=False).print(table)


def _tell(game: Any, what: str) -> None:
    """Say what a solver is at, for whoever waits, where a game is large."""
    outcomes = game.payoff[..., 0].size
    if outcomes > QUICK:
        print(
            f"{printable(game.name)} has {outcomes:,} joint actions: looking for {what} ...",
            file=sys.stderr,
            flush=True,
        )


def _normal(game: Any, given: Any) -> int:
    from flockrl.games.overview import overview
    from flockrl.view.games import draw_game

    method = _choose(given.method, NORMAL, "all", "Matrix games")
    if method in LEARNING:
        return _learning(game, method, given)
    lines, notes = overview(game, None if method == "all" else (method,), lambda what: _tell(game, what))
    rows = [
        (line.what, line.play, _numbers(line.values), "" if line.regret is None else f"{line.regret:.2g}")
        for line in lines
    ]
    players = ", ".join(game.players)
    show_table(f"{game.name} (payoffs of {players}, per round)", ("what", "play", "payoffs", "regret"), rows)
    print("\n".join(printable(note, LONGEST) for note in notes))
    print("Regret is the most that any player would gain by deviating alone: 0 in an equilibrium.")
    if not lines:
        raise NotSolved(f"{game.name}: no equilibrium was found.")
    if given.out is not None:
        draw_game(game, lines, given.out)
        print(f"wrote {given.out}")
    return 0


def _learning(game: Any, method: str, given: Any) -> int:
    from flockrl.games import dynamics
    from flockrl.games.overview import mixed
    from flockrl.view.games import draw_dynamics

    rule = method.replace("-", "_").replace("+", "_plus")
    _tell(game, f"what {given.iterations:,} steps of {method} lead to")
    found = dynamics.run(game, rule, given.iterations)
    ends = ("last", dynamics.paths_end(found.strategies), found.last_gap), ("average", found.average, found.average_gap)
    rows = [(name, mixed(game, s), _numbers(gap.values), f"{gap.nash_conv:.6g}") for name, s, gap in ends]
    title = f"{game.name}: {method}, {given.iterations:,} steps"
    show_table(title, ("strategies", "play", "payoffs", "NashConv"), rows)
    print("NashConv is the sum of what all players would gain by best responses: 0 in an equilibrium and only there.")
    if given.out is not None:
        draw_dynamics(game, found, method, given.out)
        print(f"wrote {given.out}")
    return 0


def _markov(game: Any, given: Any) -> int:
    from flockrl.games.stochastic import METHODS

    method = _choose(given.method, tuple(METHODS), "minimax" if game.zero_sum else "nash", "Markov games")
    if given.out is not None:
        raise UsageError("There is no picture of a Markov game: leave out --out.")
    began = time.perf_counter()
    found = METHODS[method](game)
    print(f"{game.name}: {game.states:,} states, discount {game.discount:g}, {method}, {found.rounds} rounds, "
          f"{time.perf_counter() - began:.1f} s")  # fmt: skip
    rows = [
        (f"player {i}", f"{round(value, 9) + 0.0:.9f}", f"{gain:.2g}")
        for i, (value, gain) in enumerate(zip(found.gap.values, found.gap.gains, strict=True))
    ]
    show_table("at the start", ("player", "value", "gain of a best response"), rows)
    print(f"NashConv {found.gap.nash_conv:.2g} at the start; the largest gain in any state {found.worst:.2g}")
    scale = max(1.0, float(np.abs(found.values).max()))
    if found.worst > 1e-6 * scale:
        raise NotSolved(
            f"{game.name}: {method} did not converge to an equilibrium in {found.rounds} rounds: somebody would still "
            f"gain {found.worst:.3g} in some state."
        )
    return 0


def _tree(rules: Any, given: Any) -> int:
    from flockrl.games.cfr import solve_cfr
    from flockrl.games.extensive import unfold
    from flockrl.games.linear import solve_sequence_form
    from flockrl.games.psro import psro
    from flockrl.view.games import draw_progress

    method = _choose(given.method, TREE, "lp", "Games with hidden information")
    if given.discount is not None:
        raise UsageError(f"{rules.name} always ends, and is not discounted: leave out --discount.")
    if given.out is not None and method == "lp":
        raise UsageError("The linear programme has no progress to draw: leave out --out, or use --method cfr+.")
    game = unfold(rules)
    form = game.form
    print(f"{game.name}: {game.histories:,} histories, {form.infosets:,} information sets")
    points: list[tuple[int, float]] = []
    marks = [m for m in (b * 10**e for e in range(8) for b in (1, 2, 5)) if m < given.iterations] + [given.iterations]
    began = time.perf_counter()
    if method == "lp":
        policies = solve_sequence_form(form)
    elif method in ("psro", "fictitious"):
        meta: Any = "nash" if method == "psro" else "uniform"
        policies = psro(form, given.iterations, meta, lambda k, gap: points.append((k, gap.nash_conv))).policies
        points = [point for point in points if point[0] in marks or point == points[-1]]
    else:
        note = lambda t, found: points.append((t, form.gap(found).nash_conv))  # noqa: E731
        policies = solve_cfr(form, given.iterations, method == "cfr+", note, tuple(marks))
    seconds = time.perf_counter() - began
    gap = form.gap(policies)
    if points:
        rows = [(f"{t:,}", f"{conv:.6f}", f"{conv / form.players:.6f}") for t, conv in points]
        head = "policies" if method in ("psro", "fictitious") else "iterations"
        show_table(f"{method}, mixture of policies so far", (head, "NashConv", "exploitability"), rows)
    print(f"value of player 0: {gap.values[0]:.9f}" + ("" if form.zero_sum else f", of all: {_numbers(gap.values)}"))
    print(f"NashConv {gap.nash_conv:.6g} (sum over players), exploitability {gap.exploitability:.6g} (NashConv / "
          f"{form.players}), {method}, {seconds:.1f} s")  # fmt: skip
    if given.out is not None:
        draw_progress(game.name, method, points, given.out)
        print(f"wrote {given.out}")
    if method == "lp" and gap.nash_conv > 1e-6 * max(1.0, float(np.abs(form.worth).sum())):
        raise NotSolved(
            f"{game.name}: the linear programme's policies are no equilibrium, NashConv {gap.nash_conv:.3g}."
        )
    return 0


@dataclass(frozen=True)
class CrossplayFlags:
    """What `flockrl crossplay` takes."""

    runs: Annotated[tuple[Path, ...], Positional, tyro.conf.arg(metavar="RUNS")]
    """Runs of one environment, or directories of several seeds, each of which takes part."""
    out: Path | None = None
    """Write a page with the matrix as a heat map to this file (.html)."""
    episodes: int = 100
    """Episodes of each pair in each seating."""
    seed: int = 0
    """Seed of the episodes."""
    explore: bool = False
    """Sample actions instead of taking the most likely ones."""
    trust: bool = False
    """Import code that the runs' files name. Only for runs that you know: such code can do whatever you can."""


def crossplay(words: list[str]) -> int:
    about = "Let policies that were trained apart play with and against each other: every pair."
    given = parse(CrossplayFlags, words, "flockrl crossplay", about)
    if given.episodes < 1:
        raise UsageError(f"episodes must be at least 1, not {given.episodes}.")
    prepare()
    from flockrl.evidence.crossplay import cross_play, ratings, told, write_page
    from flockrl.training.learned import open_runs

    if given.out is not None and given.out.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"The page is written as an .html file, not {given.out.name!r}.")
    runs = [run for path in given.runs for run in open_runs(path)]
    found = cross_play(runs, given.episodes, given.seed, given.explore)
    names = [f"{i}" for i in range(len(found.names))]
    rows = [
        (f"{i} {name}", *(f"{x:.3f}" for x in row))
        for i, (name, row) in enumerate(zip(found.names, found.means, strict=True))
    ]
    show_table(f"{found.env}: {found.unit}", ("", *names), rows)
    rated = ratings(found)
    show_table("ratings", rated[0], rated[1:])
    print(told(found))
    if given.out is not None:
        write_page(found, given.out)
        print(f"wrote {given.out}")
    return 0
