"""Completion in shells, and what --version says."""

import shutil
import subprocess

import jax
import pytest

from flockrl.commands.completion import vocabulary
from flockrl.commands.main import COMMANDS, main


@pytest.fixture(scope="module")
def scripts():
    import contextlib
    import io

    found = {}
    for shell in ("bash", "zsh", "fish"):
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            assert main(["completion", shell]) == 0
        found[shell] = text.getvalue()
    return found


CASES = [
    (("",), {"train", "resume", "completion", "--version"}, {"mappo", "--lr"}),
    (("tr",), {"train"}, {"resume"}),
    (("train", "mat"), {"matd3"}, {"mappo"}),
    (("train", "mappo", "mpe/simple_s"), {"mpe/simple_spread", "mpe/simple_speaker_listener"}, {"mpe/simple_tag"}),
    (("train", "mappo", "mpe/simple", "--gae"), {"--gae-lambda"}, {"--gamma"}),
    (("train", "qmix", "mpe/simple", "--"), {"--mixer-size", "--steps", "--platform"}, {"--gae-lambda"}),
    (("train", "mappo", "mpe/simple", "--platform", ""), {"cpu", "gpu", "tpu"}, {"--lr"}),
    (("train", "mappo", "mpe/simple", "--memory", "g"), {"gru"}, set()),
    (("eval", "--b"), {"--best"}, {"--episodes"}),
    (("resume", "runs/x", "--st"), {"--steps"}, set()),
    (("report", "--"), {"--no-animations", "--out"}, {"--animations"}),
    (("bench", "sm"), {"smoke"}, set()),
    (("recommend", "games/c"), {"games/climbing"}, set()),
]


@pytest.mark.parametrize(("words", "there", "not_there"), CASES, ids=[" ".join(words) for words, *_ in CASES])
def test_bash_completes(scripts, words, there, not_there):
    typed = " ".join(f"'{word}'" for word in ("flockrl", *words))
    asked = f"COMP_WORDS=({typed}); COMP_CWORD={len(words)}; _flockrl"
    script = f'{scripts["bash"]}\n{asked}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    found = set(done.stdout.split())
    assert there <= found
    assert not found & not_there


def test_all_commands_and_algorithms_have_words(scripts):
    known = vocabulary()
    assert set(COMMANDS) <= set(known.words[""])
    assert {f"train {name}" for name in known.words["train"]} <= set(known.flags)
    assert "complete -c flockrl -n '__fish_seen_subcommand_from eval' -l best" in scripts["fish"]
    assert "-l platform -x -a 'cpu gpu tpu'" in scripts["fish"]
    assert "bashcompinit" in scripts["zsh"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_reads_its_script(scripts, shell, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    file = tmp_path / "script"
    file.write_text(scripts[shell])
    assert subprocess.run([shell, "-n", str(file)], capture_output=True).returncode == 0


def test_another_shell_gets_a_sentence(capsys):
    assert main(["completion", "tcsh"]) == 2
    assert "bash, zsh or fish, not 'tcsh'" in capsys.readouterr().err


def test_the_version_tells_of_jax_and_the_platform(capsys):
    assert main(["--version"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("flockrl ")
    assert f"jax {jax.__version__} on cpu (" in text
