"""Where programs run, and how compiled ones are kept between starts."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Literal

from flockrl.core.errors import UsageError

Platform = Literal["cpu", "gpu", "tpu"]


def prepare(platform: Platform | None = None, devices: int | str | None = None) -> None:
    """Choose the platform before JAX computes anything, and keep compiled programs between starts.

    devices: how many there must be; a CPU is divided into so many.
    """
    if isinstance(devices, int) and devices > 1 and "device_count" not in os.environ.get("XLA_FLAGS", ""):
        _divide_cpu(devices)
    if platform is not None:
        use_platform(platform)
    check_platform()
    cache_programs()


def _divide_cpu(devices: int) -> None:
    import jax

    with contextlib.suppress(RuntimeError):  # JAX has begun to compute; whether there are enough is said later
        jax.config.update("jax_num_cpu_devices", devices)


def use_platform(platform: Platform) -> None:
    """Compute on this platform, whatever JAX_PLATFORMS says; an error where there is no such device."""
    import jax

    # A CPU is always there. Among the others JAX takes what it finds: asked for a GPU by name, it insists on all makes.
    jax.config.update("jax_platforms", "cpu" if platform == "cpu" else None)
    if platform != "cpu" and found() != platform:
        raise UsageError(
            f"There is no {platform} that JAX can use here: it finds {found() or 'none'}. Install JAX for it "
            f"(docs/platforms.md), or leave out --platform {platform}."
        )


def check_platform() -> None:
    """Say so in a sentence where JAX_PLATFORMS names something that is not here.

    JAX looks for devices only where more than a CPU was asked for, so that its settings can still be changed.
    """
    import jax

    asked = jax.config.values["jax_platforms"] or "cpu"
    if asked != "cpu" and found() is None:
        raise UsageError(
            f"JAX_PLATFORMS={asked} names a device that JAX cannot use here: leave it out, or set it to cpu."
        )


def found() -> str | None:
    """The platform that JAX computes on; None where it cannot be used."""
    import jax

    try:
        return jax.default_backend()
    except (RuntimeError, AssertionError):  # the latter where a driver is missing
        return None


def cache_programs() -> None:
    """Keep compiled programs between starts, so that only the first one waits for the compiler."""
    import jax

    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(home / "flockrl" / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
