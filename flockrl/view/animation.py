"""Pictures of evaluation episodes: GIF through Pillow, MP4 where ffmpeg is installed, plots of the agents' paths."""

from __future__ import annotations

import io
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from flockrl.core.errors import UsageError
from flockrl.envs.api import Env
from flockrl.envs.host.env import Host
from flockrl.evaluation.episodes import Episode, record, spread
from flockrl.evaluation.inside import look_inside
from flockrl.view.plots import draw_paths
from flockrl.view.trace import draw
from flockrl.view.voices import panels

if TYPE_CHECKING:
    from PIL.Image import Image

    from flockrl.training.run import Run

FRAME_MS = 100
HOLD_MS = 1000
"""How long the last frame of an episode is shown."""
CANDIDATES = 25
"""The number of episodes from which the best, the median and the worst are chosen."""


def write_animation(
    run: Run, file: Path, seed: int = 0, side_by_side: bool = False, explore: bool = False, best: bool = False
) -> None:
    """Play one episode, or choose the best, the median and the worst of `CANDIDATES`, and write it as .gif or .mp4."""
    write = {".gif": write_gif, ".mp4": write_mp4}.get(file.suffix.lower())
    if write is None:
        raise UsageError(f"An animation is written as a .gif or .mp4 file, not {file.name!r}.")
    if write is write_mp4 and shutil.which("ffmpeg") is None:
        raise UsageError("An .mp4 file needs the program ffmpeg, which is not installed: write a .gif instead.")
    pictures = (compare if side_by_side else play)(run, seed, explore=explore, best=best)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write(pictures, file)
    except OSError as error:
        raise UsageError(f"Cannot write {file}: {error.strerror or error}.") from error


def write_paths(
    run: Run, file: Path, seed: int = 0, side_by_side: bool = False, explore: bool = False, best: bool = False
) -> None:
    """Play as `write_animation` does, and plot the agents' paths as one still picture."""
    if file.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise UsageError(f"A plot is written as a .png, .pdf or .svg file, not {file.name!r}.")
    env: Any = run.env
    if getattr(env, "paths", None) is None:
        raise UsageError(
            f"{run.config.env} has no places to plot: --plot is for particle worlds, --gif for all others."
        )

    count = CANDIDATES if side_by_side else 1
    episodes = record(run.algorithm, env, run.params(best), jax.random.key(seed), count, explore)
    chosen = spread(episodes) if side_by_side else {"return": episodes[0]}
    panels = {f"{name}: {episode.score:.2f}": env.paths(episode.states) for name, episode in chosen.items()}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        draw_paths(panels, file, f"{run.config.algorithm} on {run.config.env}")
    except OSError as error:
        raise UsageError(f"Cannot write {file}: {error.strerror or error}.") from error


def play(run: Run, seed: int = 0, size: int = 400, explore: bool = False, best: bool = False) -> list[np.ndarray]:
    """Pictures of one episode; of a team that talks, with who says what to whom beside them."""
    if run.algorithm.says is None or isinstance(run.env, Host):
        return frames(run.env, run.episode(seed, explore, best), size)
    episode, inside = look_inside(run.algorithm, run.env, run.params(best), jax.random.key(seed), explore)
    beside = panels(inside, size)
    pictures = zip(frames(run.env, episode, size), [*beside, beside[-1]], strict=False)
    return [np.hstack([picture, panel]) for picture, panel in pictures]


def compare(run: Run, seed: int = 0, size: int = 300, explore: bool = False, best: bool = False) -> list[np.ndarray]:
    """Pictures of the best, the median and the worst of `CANDIDATES` episodes, side by side. An episode that ends early
    keeps its last picture."""
    env: Any = run.env
    if not isinstance(env, Env):
        raise UsageError(f"{run.config.env} runs on the host, where episodes cannot be shown side by side.")
    key = jax.random.key(seed)
    found = spread(record(run.algorithm, env, run.params(best), key, CANDIDATES, explore))
    films = [frames(env, episode, size) for episode in found.values()]
    heads = [_heading(f"{name}: {episode.score:.2f}", size) for name, episode in found.items()]
    gap = np.full((size + len(heads[0]), size // 25, 3), 255, np.uint8)
    pictures = []
    for t in range(max(map(len, films))):
        columns = [np.vstack([h, film[min(t, len(film) - 1)]]) for h, film in zip(heads, films, strict=True)]
        pictures.append(np.hstack([columns[0], gap, columns[1], gap, columns[2]]))
    return pictures


def _heading(words: str, width: int) -> np.ndarray:
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (width, width // 10), (255, 255, 255))
    font = ImageFont.load_default(width / 16)
    ImageDraw.Draw(image).text((width / 2, width / 20), words, fill=(38, 38, 42), font=font, anchor="mm")
    return np.array(image)


def write_gif(pictures: Sequence[np.ndarray], file: Path | io.BytesIO) -> None:
    """A GIF that repeats, with one palette for all frames, so that colours do not flicker and the file stays small."""
    from PIL import Image

    images = [Image.fromarray(picture) for picture in pictures]
    palette = _palette(images)
    small = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    times = [FRAME_MS] * (len(small) - 1) + [HOLD_MS]
    small[0].save(
        file, format="GIF", save_all=True, append_images=small[1:], duration=times, loop=0, optimize=False, disposal=1
    )


def _palette(images: Sequence[Image]) -> Image:
    """64 colours from a few frames stacked into one picture."""
    from PIL import Image

    some = [images[round(i)] for i in np.linspace(0, len(images) - 1, min(4, len(images)))]
    width, height = some[0].size
    stack = Image.new("RGB", (width, height * len(some)))
    for i, image in enumerate(some):
        stack.paste(image, (0, i * height))
    return stack.quantize(64, method=Image.Quantize.MEDIANCUT)


def write_mp4(pictures: Sequence[np.ndarray], file: Path) -> None:
    """An H.264 file that every player opens, written by ffmpeg."""
    height, width = (size // 2 * 2 for size in pictures[0].shape[:2])  # yuv420p needs even sizes
    last = [pictures[-1]] * (HOLD_MS // FRAME_MS - 1)
    raw = b"".join(np.ascontiguousarray(picture[:height, :width]).tobytes() for picture in [*pictures, *last])
    command = [
        "ffmpeg", "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}",
        "-r", str(1000 // FRAME_MS), "-i", "-", "-pix_fmt", "yuv420p", "-movflags", "+faststart", str(file),
    ]  # fmt: skip
    done = subprocess.run(command, input=raw, capture_output=True, check=False)
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        raise UsageError(f"ffmpeg could not write {file}: {words[-1] if words else 'no reason given'}")


def frames(env: Any, episode: Episode, size: int = 400) -> list[np.ndarray]:
    """Pictures of an episode: those that a host environment drew, [size, size, 3] by the environment's own `render`, or
    as a trace of what happened."""
    if isinstance(env, Host) and episode.states:
        return episode.states
    render = getattr(env, "render", None)
    return draw(env.spec, episode, size) if render is None else list(render(episode.states, size))
