"""Everything about a normal-form game in one list: each line says what it is, what it pays, and its regret."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from flockrl.core.errors import UsageError
from flockrl.games import analysis
from flockrl.games.correlated import correlated
from flockrl.games.nash import MOST_LOGIT, MOST_PATH, Profile, equilibria, mixed_searched
from flockrl.games.normal import NormalForm, pure


class Line(NamedTuple):
    """kind: nash, correlated, coarse, maximin, optimum or pareto; regret: None where none is asked for."""

    kind: str
    what: str
    play: str
    values: np.ndarray
    regret: float | None


def overview(
    game: NormalForm, parts: Sequence[str] | None = None, tell: Callable[[str], None] = lambda what: None
) -> tuple[list[Line], list[str]]:
    """Solutions of a game, and sentences about it. What is too large for a part gets a sentence instead.

    parts: names from `PARTS`, by default all. tell: is told what is looked for, before each part.
    """
    lines: list[Line] = []
    notes: list[str] = []
    for part in PARTS if parts is None else parts:
        what, find = PARTS[part]
        tell(what)
        try:
            find(game, lines, notes)
        except UsageError as error:
            if parts is not None and len(parts) == 1:
                raise
            notes.append(str(error))
    return lines, notes


def _nash(game: NormalForm, lines: list[Line], notes: list[str]) -> None:
    found = equilibria(game)
    for profile in found:
        single = all((s > 1e-9).sum() == 1 for s in profile.strategies)
        lines.append(Line(
            "nash", "pure Nash" if single else f"mixed Nash ({profile.how})", mixed(game, profile.strategies),
            profile.gap.values, profile.regret,
        ))  # fmt: skip
    if not mixed_searched(game):
        players = len(game.players)
        notes.append(
            f"{game.name} is too large for mixed equilibria: with {players} players they are searched up to "
            f"{MOST_PATH // players**2:,} joint actions and {MOST_LOGIT} actions of all players."
        )
    elif not found:
        notes.append(f"{game.name}: no equilibrium was found; what the methods ended at has too much regret.")
    elif len(found) % 2 == 0:
        notes.append("An even number of equilibria: the game is degenerate, and there are more, or they were too many.")
    notes += _stable(game, found)


def _stable(game: NormalForm, found: list[Profile]) -> list[str]:
    if not game.symmetric or len(found) > 50:
        return []
    same = [p.strategies for p in found if np.allclose(p.strategies[0], p.strategies[1], atol=1e-9)]
    try:
        good = [mixed(game, s[:1]) for s in same if analysis.evolutionarily_stable(game, s[0])]
    except UsageError as error:
        return [str(error)]
    return [f"Evolutionarily stable: {'; '.join(good) if good else 'no equilibrium that was found'}."]


def _correlated(game: NormalForm, lines: list[Line], notes: list[str]) -> None:
    for coarse in (False, True):
        for objective, name in (("welfare", "welfare-best"), ("fairest", "fairest")):
            found = correlated(game, objective, coarse)  # type: ignore[arg-type]
            cells = sorted(np.argwhere(found.joint > 1e-9).tolist(), key=lambda c: -found.joint[tuple(c)])
            play = "; ".join(f"{game.named(c)} ({found.joint[tuple(c)]:.4g})" for c in cells[:8])
            what = f"{'coarse ' * coarse}correlated, {name}"
            more = f"; and {len(cells) - 8} more" if len(cells) > 8 else ""
            lines.append(Line("coarse" if coarse else "correlated", what, play + more, found.values, found.regret))


def _maximin(game: NormalForm, lines: list[Line], notes: list[str]) -> None:
    secure = analysis.security(game)
    lines.append(Line("maximin", "maximin (what each is sure of)", mixed(game, [s.strategy for s in secure]),
                      np.array([s.value for s in secure]), None))  # fmt: skip


def _optimum(game: NormalForm, lines: list[Line], notes: list[str]) -> None:
    best = analysis.social_optimum(game)
    gap = game.gap(pure(game.counts, best))
    lines.append(Line("optimum", "social optimum", game.named(best), gap.values, float(gap.gains.max())))


def _pareto(game: NormalForm, lines: list[Line], notes: list[str]) -> None:
    front = analysis.pareto_front(game)
    for joint in front[:20]:
        gap = game.gap(pure(game.counts, joint))
        lines.append(Line("pareto", "on the Pareto front", game.named(joint), gap.values, float(gap.gains.max())))
    if len(front) > 20:
        notes.append(f"The Pareto front has {len(front)} joint actions, of which 20 are shown.")


def _dominance(game: NormalForm, lines: list[Line], notes: list[str]) -> None:
    removed, kept = analysis.dominated(game)
    if removed:
        words = [f"{game.players[r.player]} {game.actions[r.player][r.action]} (round {r.round})" for r in removed]
        left = "; ".join(
            f"{name} {', '.join(game.actions[i][a] for a in kept[i])}" for i, name in enumerate(game.players)
        )
        notes.append(f"Strictly dominated: {', '.join(words)}. What is left: {left}.")
    else:
        notes.append("No action is strictly dominated.")


Find = Callable[[NormalForm, list[Line], list[str]], None]
PARTS: dict[str, tuple[str, Find]] = {
    "nash": ("Nash equilibria", _nash),
    "correlated": ("correlated equilibria", _correlated),
    "maximin": ("what each is sure of", _maximin),
    "optimum": ("the social optimum", _optimum),
    "pareto": ("the Pareto front", _pareto),
    "dominance": ("dominated actions", _dominance),
}
"""Part -> what it looks for, and the function that adds its lines and sentences."""


def mixed(game: NormalForm, strategies: list[np.ndarray]) -> str:
    """Strategies in words: names of actions, with probabilities where somebody mixes."""
    parts = []
    for player, strategy in enumerate(strategies):
        names = game.actions[player]
        used = np.nonzero(strategy > 1e-9)[0]
        shown = [names[a] if len(used) == 1 else f"{names[a]} ({strategy[a]:.4g})" for a in used[:8]]
        parts.append(" + ".join(shown) + (" + ..." if len(used) > 8 else ""))
    return " | ".join(parts)
