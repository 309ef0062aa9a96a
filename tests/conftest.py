"""Shared by all tests: compiled programs are kept between them, and small runs are easy to make."""

import os
import tempfile
from pathlib import Path

import pytest

CACHE = Path(tempfile.gettempdir()) / "flockrl-test-cache"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
# Tests compile much and run little; without fusion emitters, programs compile in a quarter of the time.
QUICK = "backend_optimization_level=0", "llvm_disable_expensive_passes=true", "cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", " ".join(f"--xla_{flag}" for flag in QUICK))

AS_USERS_DO = {
    "xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False,
    "xla_cpu_use_fusion_emitters": True,
}  # fmt: skip
"""Compiler options of `jax.jit` where two programs must round alike: quick ones need not."""

TINY = {
    "steps": 1024, "envs": 8, "rollout_steps": 16, "epochs": 2, "minibatches": 2, "hidden": (8,),
    "eval_every": 256, "eval_episodes": 4, "checkpoint_every": 256,
}  # fmt: skip
"""Settings of a run that takes a second: eight iterations of 128 steps."""

LONG = tuple((Path(__file__).parent / "long.txt").read_text().split("\n")[:-1])
"""Beginnings of tests that take long and are left to the slow set, beside those that are marked where they stand. What
one of them tests with some settings is tested with others by default, unless each of them takes 4 seconds or more."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if f"{item.path.name}::{item.name}".startswith(LONG):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory):
    """A finished MAPPO run on simple_spread."""
    import flockrl

    return flockrl.train("mappo", "mpe/simple_spread", out=tmp_path_factory.mktemp("runs") / "tiny", **TINY)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory):
    """An exported team of tests/relay that has not learned anything, version 0."""
    from relay_kit import SMALL, SPEC

    import flockrl

    path = tmp_path_factory.mktemp("model") / "0"
    trainer = flockrl.Trainer("ippo", SPEC, hyperparams=SMALL, envs=2, steps=400)
    flockrl.export(trainer.acquire_model(), path)
    return path


@pytest.fixture
def cli(capsys):
    """Run a command: (exit status, standard output, standard error)."""

    def run(*words):
        from flockrl.commands.main import main

        capsys.readouterr()
        status = main([str(word) for word in words])
        text = capsys.readouterr()
        return status, text.out, text.err

    return run
