"""How well strangers play together, and who beats whom: every pair of runs, as a matrix with ratings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import jax
import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.types import EnvSpec
from flockrl.evaluation.matches import Side, compose
from flockrl.evaluation.playing import make_player
from flockrl.evidence.report import document
from flockrl.games.ratings import alpha_rank, elo, nash_average
from flockrl.training.run import Run

MOST_RUNS = 50


@dataclass(frozen=True, eq=False)
class CrossPlay:
    """Results of K runs. means: [K, K]; where all play together, the return of a team whose first part is the row's and
    whose rest is the column's; between opponents, what the row gets against the column, mean of both seatings.

    points: [K, K] episodes that the row won against the column, a draw counts half; episodes: of each pair.
    """

    env: str
    names: list[str]
    means: np.ndarray
    points: np.ndarray
    episodes: int
    opponents: bool
    seats: tuple[tuple[str, ...], tuple[str, ...]]

    @property
    def unit(self) -> str:
        if self.opponents:
            return "return of the row against the column, mean of both seatings"
        return "return of the team: the row's run with the column's, mean over agents"


def cross_play(runs: Sequence[Run], episodes: int = 100, seed: int = 0, explore: bool = False) -> CrossPlay:
    """Let every run play with every other, and with itself."""
    if len(runs) < 2:
        raise UsageError("Cross-play needs at least two runs, or one with several seeds.")
    if len(runs) > MOST_RUNS:
        raise UsageError(f"Cross-play takes up to {MOST_RUNS} runs, not {len(runs)}.")
    env = runs[0].env
    for run in runs[1:]:
        _same(runs[0], run)
    seats = _seats(env.spec)
    players = _Players(env, runs, seats, episodes, explore)
    count = len(runs)
    first = np.zeros((count, count, episodes))  # what the row's part gets per episode, sitting first
    rest = np.zeros((count, count, episodes))  # what the column's part gets there
    own, others = ([env.spec.agents.index(a) for a in part] for part in seats)
    for a in range(count):
        for b in range(count):
            returns = players.play(a, b, seed)
            first[a, b], rest[a, b] = returns[:, own].mean(1), returns[:, others].mean(1)
    opponents = len(set(env.spec.sides)) > 1
    if opponents:
        means = (first.mean(2) + rest.mean(2).T) / 2
        won = (np.sign(first - rest) / 2 + 0.5).sum(2)
        points = won + (episodes - won.T)
    else:
        share = len(own) / env.spec.num_agents
        means = share * first.mean(2) + (1 - share) * rest.mean(2)
        points = np.zeros((count, count))
    return CrossPlay(env.spec.name, _names(runs), means, points, episodes, opponents, seats)


def _same(first: Run, other: Run) -> None:
    mine, theirs = first.env.spec, other.env.spec
    for what in ("agents", "observations", "actions", "sides"):
        if getattr(mine, what) != getattr(theirs, what):
            raise UsageError(f"{other.path} cannot play with {first.path}: their environments have unlike {what}.")


def _seats(spec: EnvSpec) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Who sits first, and the rest: the first side, or the first half of a team."""
    if spec.num_agents < 2:
        raise UsageError(f"{spec.name} has one agent: nobody meets a stranger there.")
    half = tuple(range(spec.num_agents // 2))
    own = next(iter(spec.parties.values())) if len(set(spec.sides)) > 1 else half
    return tuple(spec.agents[i] for i in own), tuple(a for i, a in enumerate(spec.agents) if i not in own)


def _names(runs: Sequence[Run]) -> list[str]:
    """Short names: the ends of the paths that tell them apart."""
    parts = [run.path.resolve().parts for run in runs]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{'/'.join(part[-2:])} ({i})" for i, part in enumerate(parts)]


class _Players:
    """Matches between runs. Runs of one configuration share a compiled program."""

    def __init__(self, env: Any, runs: Sequence[Run], seats: Any, episodes: int, explore: bool):
        self.env, self.runs, self.seats, self.episodes, self.explore = env, runs, seats, episodes, explore
        self.params = [run.params() for run in runs]
        shapes = [str(jax.tree.map(np.shape, params)) for params in self.params]
        kinds = [(run.config.algorithm, str(run.config.config), shape) for run, shape in zip(runs, shapes, strict=True)]
        self.kind = [kinds.index(kind) for kind in kinds]
        self.programs: dict[tuple[int, int], Any] = {}

    def play(self, a: int, b: int, seed: int) -> np.ndarray:
        """[episodes, N] returns where run a sits first and run b takes the rest."""
        pair = self.kind[a], self.kind[b]
        if pair not in self.programs:
            sides = [Side(self.runs[k].algorithm, part) for k, part in zip(pair, self.seats, strict=True)]
            self.programs[pair] = make_player(compose(self.env.spec, sides), self.env, self.episodes, self.explore)
        returns, *_ = self.programs[pair]((self.params[a], self.params[b]), jax.random.key(seed))
        return np.asarray(returns)


def ratings(found: CrossPlay) -> list[tuple[str, ...]]:
    """A table of all runs, its head first: with itself and with others; between opponents also Elo, alpha-rank and Nash
    averaging."""
    means, count = found.means, len(found.names)
    away = ~np.eye(count, dtype=bool)
    alone = np.diag(means)
    met = np.array([(means[i, away[i]].mean() + means[away[i], i].mean()) / 2 for i in range(count)])
    if not found.opponents:
        rows: list[tuple[str, ...]] = [
            (n, f"{s:.3f}", f"{x:.3f}", f"{x - s:.3f}") for n, s, x in zip(found.names, alone, met, strict=True)
        ]
        return [("run", "self-play", "cross-play", "difference"), *rows]
    games = np.where(away, 2.0 * found.episodes, 0.0)
    rated = elo(np.where(away, found.points, 0.0), games)
    frequent = alpha_rank(means)
    weights, scores = nash_average((means - means.T) / 2)
    head = ("run", "against others", "Elo [95% interval]", "alpha-rank", "Nash average: weight", "score")
    rows = [
        (
            name, f"{means[i, away[i]].mean():.3f}",
            f"{rated.ratings[i]:+.0f} [{rated.low[i]:+.0f}, {rated.high[i]:+.0f}]", f"{frequent[i]:.3f}",
            f"{weights[i]:.3f}", f"{scores[i]:+.3f}",
        )
        for i, name in enumerate(found.names)
    ]  # fmt: skip
    return [head, *rows]


def told(found: CrossPlay) -> str:
    """The result in a sentence."""
    away = ~np.eye(len(found.names), dtype=bool)
    if found.opponents:
        return (
            f"{found.episodes} episodes in each seating, {', '.join(found.seats[0])} against "
            f"{', '.join(found.seats[1])}. Elo tells nothing about cycles; alpha-rank and Nash averaging do."
        )
    alone, met = np.diag(found.means).mean(), found.means[away].mean()
    return (
        f"Self-play {alone:.3f}, cross-play {met:.3f} (means over {len(found.names)} runs and {int(away.sum())} pairs, "
        f"{found.episodes} episodes each)."
    )


def write_page(found: CrossPlay, out: Path) -> None:
    """One self-contained page with the matrix as a heat map."""
    head, *rows = ratings(found)
    seats = escape(", ".join(found.seats[0]))
    table = "".join(f"<tr>{''.join(f'<td>{escape(x)}</td>' for x in row)}</tr>" for row in rows)
    body = (
        f"<h1>Cross-play on {escape(found.env)}</h1><p class='question'>{escape(told(found))}</p>"
        f"<section><h2>Matrix</h2>{heat_map(found)}<p class='note'>{escape(found.unit.capitalize())}. "
        f"The first seats are {seats}.</p></section><section><h2>Ratings</h2><div class='scroll'><table>"
        f"<tr>{''.join(f'<th>{escape(x)}</th>' for x in head)}</tr>{table}</table></div></section>"
    )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(document(f"Cross-play on {found.env}", body), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"Cannot write {out}: {error.strerror}.") from error


def heat_map(found: CrossPlay) -> str:
    """The matrix as a table whose cells are the darker the more is earned."""
    low, high = float(found.means.min()), float(found.means.max())
    head = "".join(f"<th title='{escape(name, quote=True)}'>{i}</th>" for i, name in enumerate(found.names))
    rows = []
    for i, (name, row) in enumerate(zip(found.names, found.means, strict=True)):
        cells = []
        for j, value in enumerate(row):
            share = (value - low) / (high - low) if high > low else 0.5
            ink = "#fff" if share > 0.6 else "#1d1d21"
            frame = ";outline:2px solid #d55e00;outline-offset:-2px" if i == j else ""
            pair = escape(f"{name} and {found.names[j]}: {value:.4f}", quote=True)
            style = f"background:{_shade(share)};color:{ink}{frame}"
            cells.append(f"<td title='{pair}' style='{style}'>{value:.2f}</td>")
        rows.append(f"<tr><td>{i} {escape(name)}</td>{''.join(cells)}</tr>")
    return f"<div class='scroll'><table class='heat'><tr><th></th>{head}</tr>{''.join(rows)}</table></div>"


def _shade(share: float) -> str:
    """From near white to blue."""
    light, dark = np.array([240, 245, 250]), np.array([0, 90, 160])
    return "#" + "".join(f"{int(x):02x}" for x in np.round(light + share * (dark - light)))
