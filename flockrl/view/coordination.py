"""How agents that coordinate by rules converge, as a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flockrl.core.errors import UsageError


def plot(file: Path, title: str, y: str, found: np.ndarray, known: np.ndarray | None, log: bool) -> None:
    """Write a curve [T + 1] by step and, dashed, what is known to be exact."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot(found, label="measured")
    if known is not None:
        axes.plot(known, "--", label="exact")
        axes.legend()
    if log:
        axes.set_yscale("log")
        axes.set_ylim(bottom=max(found[found > 0].min(initial=1.0) / 2, 1e-15))
    axes.set(title=title, xlabel="step", ylabel=y)
    try:
        figure.savefig(file, dpi=120)
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}.") from error
