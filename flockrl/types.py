"""The vocabulary under its short name: `flockrl.types` is `flockrl.core.types`."""

from flockrl.core.types import (  # noqa: F401
    Actor,
    Algorithm,
    Array,
    Box,
    Discrete,
    EnvSpec,
    EvalResult,
    Metrics,
    MultiDiscrete,
    Observation,
    PyTree,
    Space,
    Trajectory,
)
