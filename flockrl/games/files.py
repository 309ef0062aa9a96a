"""Games in files: payoff tensors and Markov games as JSON, .npy or .npz. Nothing in a file is run as code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.text import printable
from flockrl.envs.games.matrix import payoff_tensor
from flockrl.envs.games.payoffs import read_content, refuse_wide
from flockrl.games.markov import MOST_MOVES, MarkovGame, from_arrays
from flockrl.games.normal import NormalForm

NORMAL = {"payoffs", "players", "actions"}
MARKOV = {"transitions", "payoffs", "discount", "start"}


def read_game(path: Path) -> NormalForm | MarkovGame:
    """The game in a file: a tensor of payoffs ([A1, ..., An, N], or [A1, ..., An] of a payoff common to all), or an
    object (in .npz: arrays by name) with `payoffs` and names of `players` and `actions`, or with `transitions`,
    `payoffs`, `discount` and `start` for a Markov game."""
    content = read_content(path)
    if not isinstance(content, dict):
        return NormalForm(_payoffs(content, path), path.name)
    known = MARKOV if "transitions" in content else NORMAL
    for name in content:
        if name not in known:
            raise UsageError(f"{path} has {str(name)[:60]!r}, and a game of its kind has {', '.join(sorted(known))}.")
    if "payoffs" not in content:
        raise UsageError(f"{path} has no payoffs: a game needs them.")
    if "transitions" in content:
        if "discount" not in content:
            raise UsageError(f"{path} has no discount: write one from 0 to 1, 1 for a game that always ends.")
        parts = [content["transitions"], content["payoffs"], content.get("start")]
        if any(isinstance(part, np.ndarray) and part.size > MOST_MOVES for part in parts):  # before it is copied
            raise UsageError(f"{path} is too large for a game: it has more than {MOST_MOVES:,} transitions.")
        return from_arrays(parts[0], parts[1], _number(content["discount"], path), parts[2], path.name)
    players = _names(content.get("players", []), "players", path)
    rows = content.get("actions", [])
    if not isinstance(rows, list | np.ndarray):
        raise UsageError(f"{path}: 'actions' must be a list of names for each player.")
    actions = tuple(_names(row, "actions", path) for row in rows)
    return NormalForm(_payoffs(content["payoffs"], path), path.name, players, actions)


def _payoffs(given: Any, path: Path) -> np.ndarray:
    """[A1, ..., An, N] float64; a payoff common to all is repeated for each."""
    refuse_wide(given, path)
    shape = payoff_tensor(given, str(path)).shape  # says what is wrong with it
    tensor = np.asarray(given, float)
    return tensor if tensor.shape == shape else np.repeat(tensor[..., None], shape[-1], -1)


def _names(given: Any, what: str, path: Path) -> tuple[str, ...]:
    rows = given.tolist() if isinstance(given, np.ndarray) else given
    if not isinstance(rows, list) or not all(isinstance(x, str) and len(x) <= 200 for x in rows):
        raise UsageError(f"{path}: {what!r} must be names, in lists.")
    return tuple(map(printable, rows))


def _number(given: Any, path: Path) -> float:
    value = given.item() if isinstance(given, np.ndarray) and given.size == 1 else given
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise UsageError(f"{path}: discount must be a number from 0 to 1.")
    return float(value)
