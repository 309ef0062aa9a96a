"""Where programs run, and starts that fail: one sentence, and nothing is left behind."""

import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import pytest
from conftest import TINY

import flockrl
from flockrl.commands.main import main
from flockrl.training import compilation, memory
from flockrl.training.program import compile_once

FLAGS = ["--steps", "256", "--envs", "8", "--rollout-steps", "16", "--hidden", "8", "--eval-episodes", "4"]


def command(*words, cwd, **env):
    return subprocess.run(
        [sys.executable, "-m", "flockrl", *words], cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "env", "sentence"),
    [
        ((), {"JAX_PLATFORMS": "cuda"}, "JAX_PLATFORMS=cuda names a device that JAX cannot use here"),
        (("--platform", "tpu"), {}, "There is no tpu that JAX can use here: it finds cpu"),
    ],
    ids=["cuda", "tpu"],
)
def test_a_missing_device_gets_a_sentence_and_leaves_nothing(tmp_path, words, env, sentence):
    done = command("train", "mappo", "mpe/simple_spread", *FLAGS, *words, cwd=tmp_path, **env)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_the_platform_wins_over_the_environment_variable(tmp_path):
    done = command("eval", "nowhere", "--platform", "cpu", cwd=tmp_path, JAX_PLATFORMS="cuda")
    assert done.stderr == "flockrl: There is no run at nowhere.\n"


def test_bench_passes_the_platform_to_its_runs(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(compilation, "found", lambda: "gpu")
    monkeypatch.setattr("flockrl.evidence.harness._start", lambda work, cores, platform: seen.append(platform) or 1 / 0)
    kept = jax.config.jax_platforms
    try:
        with pytest.raises(ZeroDivisionError):
            main(["bench", "smoke", "--platform", "gpu", "--out", str(tmp_path / "b"), "--quiet"])
    finally:
        jax.config.update("jax_platforms", kept)
    assert seen == ["gpu"]


def test_what_is_for_a_cpu_is_left_out_elsewhere(monkeypatch):
    """The compiler's options, and the memory of the machine."""
    given = []
    monkeypatch.setattr(jax, "jit", lambda function, compiler_options: given.append(compiler_options))
    compile_once(abs)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    compile_once(abs)
    assert given == [{"xla_backend_optimization_level": 0}, {}]
    device = SimpleNamespace(memory_stats=lambda: {"bytes_limit": 1000, "bytes_in_use": 300})
    monkeypatch.setattr(jax, "devices", lambda: [device])
    assert memory.available() == 700


class Broken(flockrl.Callback):
    def on_start(self, moment):
        raise ValueError("no")


@pytest.mark.parametrize(("out", "seeds"), [(None, 1), ("a/b", 2)])
def test_a_start_that_fails_leaves_no_directory(tmp_path, monkeypatch, out, seeds):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="no"):
        flockrl.train("mappo", "mpe/simple_spread", out=out, seeds=seeds, callbacks=[Broken()], **TINY)
    assert not list(tmp_path.iterdir())


def test_a_start_that_fails_leaves_the_files_of_others(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="no"):
        flockrl.train("mappo", "mpe/simple_spread", out=tmp_path, callbacks=[Broken()], **TINY)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_program_that_does_not_fit_leaves_no_directory(tmp_path, monkeypatch):
    def refuse(programs):
        raise flockrl.UsageError("This run needs more memory.")

    monkeypatch.setattr("flockrl.training.program.check_programs", refuse)
    with pytest.raises(flockrl.UsageError, match="memory"):
        flockrl.train("mappo", "mpe/simple_spread", out=tmp_path / "run", **TINY)
    assert not (tmp_path / "run").exists()
