"""Games as values, and what solves them. Names are imported when they are first asked for."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "MarkovGame": "markov", "NormalForm": "normal", "SequenceForm": "sequence", "alpha_rank": "ratings",
    "correlated_equilibrium": "correlated:correlated", "describe": "overview:overview", "elo": "ratings",
    "equilibria": "nash", "from_arrays": "markov", "from_env": "markov", "from_matrix_game": "normal",
    "from_rules": "markov", "minimax": "stochastic", "nash_average": "ratings", "policy_iteration": "stochastic",
    "read_game": "files", "run_dynamics": "dynamics:run", "solve_cfr": "cfr", "solve_psro": "psro:psro",
    "solve_sequence_form": "linear", "unfold": "extensive", "zero_sum": "linear",
}  # fmt: skip
"""Where each name lives. None is that of a module here, which would take its place once imported."""

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, called = _HOMES[name].partition(":")
    return getattr(importlib.import_module(f"{__name__}.{module}"), called or name)
