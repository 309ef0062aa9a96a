"""Compiled programs, kept between starts."""

from __future__ import annotations

import os
from pathlib import Path


def cache_programs() -> None:
    """Keep compiled programs between starts, so that only the first one waits for the compiler."""
    import jax

    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(home / "flockrl" / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
