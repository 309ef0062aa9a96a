"""Films an episode of a trained team, in a process of its own: `python -m flockrl.dash.film RUN OUT [--seed N]`.

OUT gets a picture of each step, film.gif, and film.json with what agents saw, did, might have done, expected, said and
attended to; or trouble.json with why it cannot be filmed.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.rundir import write_json
from flockrl.core.spec import Discrete, EnvSpec, MultiDiscrete

PATIENCE = 600
"""Seconds after which it gives up."""
STEPS = 300
"""Steps of an episode that are filmed."""
AGENTS, NUMBERS, SAID, MAPS = 24, 64, 32, 8
"""Agents, numbers of an observation, numbers of a message and maps of attention that are shown."""


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m flockrl.dash.film", description="Film an episode of a trained team."
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--explore", action="store_true")
    given = parser.parse_args(words)
    try:
        film(given.run, given.out, given.seed, given.explore)
        return 0
    except UsageError as error:
        write_json(given.out / "trouble.json", {"text": str(error)})
        return error.status
    except Exception as error:  # a page waits for an answer, whatever happens
        write_json(given.out / "trouble.json", {"text": f"{type(error).__name__}: {error}"})
        return 1


def film(path: Path, out: Path, seed: int, explore: bool) -> None:
    from flockrl.training.compilation import prepare

    prepare("cpu")
    from PIL import Image

    from flockrl.training.learned import open_run
    from flockrl.view.animation import frames, write_gif

    run = open_run(path)
    env = run.env
    episode, inside = run.inside(seed, explore, STEPS, AGENTS)
    pictures = frames(env, episode, 480)
    out.mkdir(parents=True, exist_ok=True)
    for t, picture in enumerate(pictures):
        Image.fromarray(picture).save(out / f"{t}.png")
    write_gif(pictures, out / "film.gif")
    about = {
        "title": f"{run.config.algorithm} on {run.config.env}", "seed": seed, "explore": explore,
        "pictures": len(pictures), "cut": len(inside) == STEPS < env.spec.max_steps, **told(env.spec, episode, inside),
    }  # fmt: skip
    temporary = out / "film.tmp"
    temporary.write_text(json.dumps(about, allow_nan=False))
    temporary.replace(out / "film.json")


def told(spec: EnvSpec, episode: Any, inside: Sequence[Any]) -> dict[str, Any]:
    """The agents, and each step of an episode: what they saw, did, might have done, expected, said, attended to, and
    earned."""
    from flockrl.envs.sketch import ABOVE, BELOW

    n, names = min(spec.num_agents, AGENTS), map_names(inside[0].attention)
    totals = episode.reward.cumsum(0)
    steps = []
    for t, step in enumerate(inside):
        alive, influence, value, maps = step.seen.alive, step.influence, step.value, step.attention
        steps.append({
            "obs": [short(episode.obs[t, i, : spec.observations[i].size][:NUMBERS]) for i in range(n)],
            "action": [did(spec, i, episode.action[t, i]) for i in range(n)],
            "chances": [chances(spec, i, step.draws[:, i], step.seen.avail) for i in range(n)],
            "reward": short(episode.reward[t, :n]), "total": short(totals[t, :n]),
            "alive": [True] * n if alive is None else [bool(x) for x in alive[0, :n]],
            "said": None if step.said is None else [short(row[:SAID]) for row in step.said[:n]],
            "influence": None if influence is None else square(influence, n),
            "value": None if value is None else [known(x) for x in value[:n]],
            "attention": None if maps is None else [square(x, n) for x in np.concatenate(maps)[: len(names)]],
        })  # fmt: skip
    sides = spec.sides if len(set(spec.sides)) > 1 else ("",) * spec.num_agents
    sizes = [space.size for space in spec.observations[:n]]
    return {
        "agents": list(spec.agents[:n]),
        "sides": list(sides[:n]),
        "hidden": spec.num_agents - n,
        "sizes": sizes,
        "maps": names,
        "colors": {"above": ABOVE, "below": BELOW},
        "steps": steps,
    }


def map_names(attention: np.ndarray | None) -> list[str]:
    """What the first maps of attention [R, M, N, N] are: of a round the mean over heads, then its heads."""
    if attention is None:
        return []
    rounds, maps = attention.shape[:2]
    of = [f"round {r + 1}" if rounds > 1 else "" for r in range(rounds)]
    each = ["mean of heads", *(f"head {h}" for h in range(1, maps))] if maps > 1 else [""]
    return [", ".join(filter(None, (one, head))) or "all" for one in of for head in each][:MAPS]


def square(values: np.ndarray, n: int) -> list[list[float]]:
    return [short(row[:n]) for row in values[:n]]


def known(value: float) -> float | None:
    """A number with few digits, None where there is none."""
    return short([value])[0] if np.isfinite(value) else None


def short(values: Any) -> list[float]:
    """Numbers with few digits; those that are not finite as 0."""
    return [float(f"{x:.4g}") for x in np.nan_to_num(np.asarray(values, float), posinf=0.0, neginf=0.0).ravel()]


def did(spec: EnvSpec, agent: int, action: np.ndarray) -> list[float]:
    """The numbers of an agent's own action."""
    return short(np.atleast_1d(action)[: spec.actions[agent].width])


def chances(spec: EnvSpec, agent: int, draws: np.ndarray, avail: Any) -> dict[str, Any]:
    """What an exploring agent might do: the share of draws of each choice, or the mean and deviation of each number."""
    space = spec.actions[agent]
    columns = draws.reshape(len(draws), -1)[:, : space.width]
    if isinstance(space, Discrete | MultiDiscrete):
        sizes = (space.n,) if isinstance(space, Discrete) else space.choices
        shares = [
            np.bincount(columns[:, k].astype(int), minlength=size)[:size] / len(draws) for k, size in enumerate(sizes)
        ]
        legal = None if avail is None else [bool(x) for x in avail[0, agent, : space.size]]
        return {"shares": [short(share) for share in shares], "legal": legal}
    return {"mean": short(columns.mean(0)), "deviation": short(columns.std(0))}


if __name__ == "__main__":
    if hasattr(signal, "alarm"):
        signal.alarm(PATIENCE)  # nobody may be left to end it
    sys.exit(main())
