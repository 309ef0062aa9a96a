"""Whether a run fits into memory: an estimate before anything is compiled, and the compiler's own figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from flockrl.core.errors import UsageError
from flockrl.core.types import PyTree

if TYPE_CHECKING:
    from flockrl.training.program import Setting

CONTROL_GROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
ADVICE = "Lower --envs or --rollout-steps, or --buffer-size where there is a replay."


def available() -> float:
    """Bytes that this process can still take, of the device or, on a CPU, of the machine, swap included; infinite where
    nobody says."""
    if jax.default_backend() != "cpu":
        told = jax.devices()[0].memory_stats() or {}
        return float(told.get("bytes_limit", math.inf)) - float(told.get("bytes_in_use", 0))
    found = math.inf
    try:
        lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
        free = {line[0]: int(line[1]) for line in lines}
        found = 1024.0 * (free["MemAvailable:"] + free.get("SwapFree:", 0))
    except (OSError, ValueError, KeyError, IndexError):
        pass
    for file in map(Path, CONTROL_GROUPS):
        try:
            found = min(found, float(file.read_text()))
        except (OSError, ValueError):  # none, or without a limit ("max")
            continue
    return found


def check_shapes(setting: Setting, state: PyTree) -> None:
    """Refuse a run whose state and the observations of one rollout alone are too large. Others may still be."""
    spec, envs, steps = setting.spec, setting.options.envs, setting.algorithm.rollout_steps
    numbers = envs * steps * spec.num_agents * spec.obs_size
    rollout = numbers * np.dtype(spec.observations[0].dtype).itemsize
    kept, free = size(state), available()
    if rollout + kept > free:
        raise UsageError(
            f"This run needs more memory than the {_told(free)} that are available: the observations of a rollout take "
            f"{envs:,} environments x {steps:,} steps x {spec.num_agents:,} agents x {spec.obs_size:,} numbers = "
            f"{_told(rollout)}, and its state (parameters, replay, environments) {_told(kept)}. {ADVICE}"
        )


def check_programs(programs: Sequence[Any]) -> None:
    """Refuse compiled programs that need more memory than there is."""
    free = available()
    for program in programs:
        try:
            need = program.memory_analysis()
            inside, outside = need.temp_size_in_bytes, need.argument_size_in_bytes + need.output_size_in_bytes
            outside -= need.alias_size_in_bytes
        except (AttributeError, NotImplementedError, jax.errors.JaxRuntimeError):  # not on every platform
            continue
        if inside + outside > free:
            raise UsageError(
                f"This run needs {_told(inside + outside)} of memory and {_told(free)} are available: {_told(outside)} "
                f"for its state and {_told(inside)} while it computes (rollouts, minibatches, gradients). {ADVICE}"
            )


def size(state: PyTree) -> int:
    """Bytes of all arrays of a state, or of their shapes."""
    words = jax.tree.map(lambda x: jax.eval_shape(jax.random.key_data, x) if _is_key(x) else x, state)
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(words))


def _is_key(x: Any) -> bool:
    return jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)


def _told(count: float) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"
