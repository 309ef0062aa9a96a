"""A picture of any episode, for environments without a renderer: what each agent saw, did and earned, step by step."""

from __future__ import annotations

import numpy as np

from flockrl.core.types import Discrete, EnvSpec
from flockrl.envs.sketch import ABOVE, BELOW, FAINT, INK, LINE, PAPER, Sketch, color_of, number, shade
from flockrl.evaluation.episodes import Episode

ROWS, CELLS = 8, 12
"""At most so many agents, and entries of an observation, are shown."""
WINDOW = 20
"""Steps of action history that stay visible."""


def draw(spec: EnvSpec, episode: Episode, size: int = 400) -> list[np.ndarray]:
    """One picture per step: the observation acted on, the action, the reward."""
    scale = np.maximum(np.abs(episode.obs).max(axis=(0, 1)), 1e-6)
    totals = episode.reward.cumsum(axis=0)
    return [_picture(spec, episode, t, scale, totals[t], size) for t in range(len(episode.obs))]


def _picture(spec: EnvSpec, episode: Episode, t: int, scale: np.ndarray, totals: np.ndarray, size: int) -> np.ndarray:
    sketch = Sketch(size)
    sketch.text(0.04, 0.055, f"step {t + 1} of {len(episode.obs)}", 0.05, anchor="lm")
    sketch.text(0.96, 0.055, f"return {number(round(float(totals.mean()), 2))}", 0.05, anchor="rm")
    shown = min(spec.num_agents, ROWS)
    hidden = spec.num_agents - shown
    high = 0.86 / shown
    for i in range(shown):
        top = 0.11 + i * high
        sketch.line([(0.04, top), (0.96, top)], LINE)
        _agent(sketch, spec, episode, t, i, scale, (top, min(high, 0.43)))
    if hidden:
        sketch.text(0.5, 0.985, f"and {hidden} more agents", 0.03, FAINT)
    return sketch.picture()


def _agent(
    sketch: Sketch, spec: EnvSpec, episode: Episode, t: int, i: int, scale: np.ndarray, where: tuple[float, float]
) -> None:
    top, high = where
    letter = min(0.045, 0.2 * high)
    sketch.text(0.04, top + 0.17 * high, spec.agents[i], letter, color_of(i), "lm")
    reward = float(episode.reward[t, i])
    tint = ABOVE if reward > 0 else BELOW if reward < 0 else FAINT
    sketch.text(0.96, top + 0.17 * high, f"reward {number(round(reward, 3))}", letter, tint, "rm")
    _sees(sketch, episode.obs[t, i, : spec.observations[i].size], scale, (top + 0.34 * high, 0.2 * high))
    _does(sketch, spec, episode, t, i, (top + 0.64 * high, 0.26 * high))


def _sees(sketch: Sketch, obs: np.ndarray, scale: np.ndarray, where: tuple[float, float]) -> None:
    """Entries of the observation as squares: blue above 0, orange below, white at 0."""
    top, high = where
    sketch.text(0.04, top + high / 2, "sees", min(0.038, high), FAINT, "lm")
    count = min(len(obs), CELLS)
    wide = min(0.78 / max(count, 1), 0.12)
    for k in range(count):
        value = float(obs[k] / scale[k])
        left = 0.18 + k * wide
        sketch.box(left, top, left + 0.9 * wide, top + high, fill=shade(value), edge=LINE)
        if wide > 0.09:
            ink = PAPER if abs(value) > 0.6 else INK
            sketch.text(
                left + 0.45 * wide, top + high / 2, number(round(float(obs[k]), 2)), min(0.034, 0.6 * high), ink
            )


def _does(sketch: Sketch, spec: EnvSpec, episode: Episode, t: int, i: int, where: tuple[float, float]) -> None:
    """The action of this step and those before it, newest right."""
    top, high = where
    sketch.text(0.04, top + high / 2, "does", min(0.038, high), FAINT, "lm")
    first = max(0, t + 1 - WINDOW)
    actions, space = episode.action[first : t + 1, i], spec.actions[i]
    if isinstance(space, Discrete):
        for k, action in enumerate(actions if spec.discrete else actions[:, 0]):
            new = k == len(actions) - 1
            x = 0.2 + 0.038 * k
            sketch.text(x, top + high / 2, str(int(action)), min(0.045, high), color_of(i) if new else FAINT)
        return
    values = [number(round(float(value), 2)) for value in actions[-1, : space.width]]
    more = " ..." if len(values) > 6 else ""
    sketch.text(0.18, top + high / 2, "  ".join(values[:6]) + more, min(0.042, high), color_of(i), "lm")
