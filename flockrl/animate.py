"""Animations of evaluation episodes."""

from __future__ import annotations

from pathlib import Path

from flockrl.errors import UsageError
from flockrl.run import Run

FRAME_MS = 100


def write_gif(run: Run, file: Path, seed: int = 0) -> None:
    """Play one greedy episode and write it as an animated GIF."""
    from PIL import Image

    if file.suffix.lower() != ".gif":
        raise UsageError(f"An animation is written as a .gif file, not {file.name!r}.")
    render = getattr(run.env, "render", None)
    if render is None:
        raise UsageError(f"{run.config.env} cannot be drawn: its environment has no render(states) method.")
    frames = [Image.fromarray(frame) for frame in render(run.episode(seed))]
    file.parent.mkdir(parents=True, exist_ok=True)
    frames[0].save(file, save_all=True, append_images=frames[1:], duration=FRAME_MS, loop=0)
