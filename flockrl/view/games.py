"""Pictures of games: payoffs and solutions, learning on the simplex, and how fast a solver closes in."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flockrl.core.errors import UsageError
from flockrl.games.dynamics import Trajectory
from flockrl.games.normal import NormalForm
from flockrl.games.overview import Line

MARKS = {"nash": ("o", "Nash"), "correlated": ("D", "correlated"), "coarse": ("s", "coarse correlated"),
         "maximin": ("v", "maximin"), "optimum": ("*", "social optimum")}  # fmt: skip
COLORS = {"nash": "#0072b2", "correlated": "#d55e00", "coarse": "#e69f00", "maximin": "#7f7f7f", "optimum": "#009e73"}
SUFFIXES = (".png", ".pdf", ".svg")


def check_picture(file: Path) -> None:
    if file.suffix.lower() not in SUFFIXES:
        raise UsageError(f"A picture is written as {', '.join(SUFFIXES)}, not {file.name!r}.")


def _plain(name: str) -> str:
    """A name as Matplotlib shows it letter by letter: what stands between dollars is no formula."""
    return name.replace("$", r"\$")


def _figure(columns: int = 1) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * columns if columns > 1 else 6.4, 4.8), dpi=130, layout="constrained")
    return figure, figure.subplots(1, columns, squeeze=False)[0]


def _save(figure: Any, file: Path) -> None:
    """Write a picture. It is drawn first, so that nothing is made where that fails."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format=file.suffix[1:].lower())
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(drawn.getvalue())
    except OSError as error:
        raise UsageError(f"Cannot write {file}: {error.strerror or error}.") from error


def draw_game(game: NormalForm, lines: Sequence[Line], file: Path) -> None:
    """What two players get in each outcome and each solution; with more players, a group of bars per solution."""
    figure, (axes,) = _figure()
    if len(game.players) == 2:
        flat = game.payoff.reshape(-1, 2)
        _hull(axes, flat)
        axes.plot(*flat.T, ".", color="#9aa5b1", ms=9, zorder=2, label="outcomes")
        if len(flat) <= 25:
            for joint in np.ndindex(*game.counts):
                axes.annotate(
                    _plain(game.named(joint)), game.payoff[joint], xytext=(5, 4), textcoords="offset points", fontsize=8
                )
        for kind, (mark, name) in MARKS.items():
            points = np.array([line.values for line in lines if line.kind == kind])
            if len(points):
                axes.plot(*points.T, mark, color=COLORS[kind], ms=12, mfc="none", mew=1.8, ls="", label=name, zorder=3)
        axes.set_xlabel(_plain(f"payoff of {game.players[0]}"))
        axes.set_ylabel(_plain(f"payoff of {game.players[1]}"))
        axes.legend(frameon=False, fontsize=9)
    else:
        shown = [line for line in lines if line.kind in MARKS][:12]
        wide = 0.8 / len(game.players)
        for i, player in enumerate(game.players):
            axes.bar(np.arange(len(shown)) + i * wide, [line.values[i] for line in shown], wide, label=_plain(player))
        axes.set_xticks(np.arange(len(shown)) + 0.4, [line.what for line in shown], rotation=30, ha="right", fontsize=8)
        axes.set_ylabel("payoff")
        axes.legend(frameon=False, fontsize=9)
    axes.set_title(_plain(game.name), loc="left", fontsize=11)
    axes.grid(alpha=0.2)
    _save(figure, file)


def _hull(axes: Any, points: np.ndarray) -> None:
    """What lotteries over outcomes can pay, where that is an area."""
    centred = points - points.mean(0)
    if np.linalg.matrix_rank(centred, tol=1e-9) == 2:
        from scipy.spatial import ConvexHull  # type: ignore[import-untyped]

        axes.fill(*points[ConvexHull(points).vertices].T, color="#eef1f4", zorder=1)


def draw_dynamics(game: NormalForm, found: Trajectory, rule: str, file: Path) -> None:
    """Each player's strategy over time: on the simplex for three actions, else a line for each action."""
    figure, panels = _figure(len(game.players))
    for axes, path, name, actions in zip(panels, found.strategies, game.players, game.actions, strict=True):
        if path.shape[1] == 3:
            _simplex(axes, path, actions)
        else:
            for a in range(min(path.shape[1], 12)):
                axes.plot(path[:, a], lw=1.2, label=_plain(actions[a]))
            axes.set_ylim(-0.02, 1.02)
            axes.set_xlabel("steps")
            axes.set_ylabel("probability")
            axes.legend(frameon=False, fontsize=8)
            axes.grid(alpha=0.2)
        axes.set_title(_plain(name), loc="left", fontsize=10)
    figure.suptitle(_plain(f"{game.name}: {rule}"), fontsize=11)
    _save(figure, file)


CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])


def _simplex(axes: Any, path: np.ndarray, actions: Sequence[str]) -> None:
    """A trajectory [T, 3] inside of a triangle whose corners are the actions."""
    axes.plot(*CORNERS[[0, 1, 2, 0]].T, color="#62626b", lw=1)
    points = path @ CORNERS
    axes.plot(*points.T, color="#0072b2", lw=0.9)
    axes.plot(*points[0], "o", color="#009e73", ms=6)
    axes.plot(*points[-1], "s", color="#d55e00", ms=6)
    for corner, action in zip(CORNERS, actions, strict=True):
        low = corner[1] < 0.1
        axes.annotate(
            _plain(action), corner, xytext=(0, -14 if low else 6), textcoords="offset points", ha="center", fontsize=9
        )
    axes.set_aspect("equal")
    axes.axis("off")


def draw_progress(name: str, method: str, points: Sequence[tuple[int, float]], file: Path) -> None:
    """NashConv after numbers of iterations."""
    figure, (axes,) = _figure()
    axes.plot(*np.array(points).T, "o-", color="#0072b2", ms=4)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("iterations")
    axes.set_ylabel("NashConv (sum over players)")
    axes.set_title(f"{name}: {method}", loc="left", fontsize=11)
    axes.grid(alpha=0.2, which="both")
    _save(figure, file)
