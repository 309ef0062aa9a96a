"""The commands of the documentation run: those of each page one after the other in one directory, with fewer steps."""

import contextvars
import importlib.util
import os
import re
import signal
import subprocess
import sys
from typing import NamedTuple

import pytest
from test_documentation import ALL, ROOT, SMALL, blocks

import flockrl

FEW = {
    "train": {"--steps": "256", "--envs": "4", "--eval-episodes": "2"},
    "pool": {"--iterations": "2"},
    "oracle": {"--iterations": "2", "--episodes": "4", "--oracle-steps": "256", "--envs": "4"},
    "eval": {"--episodes": "2"},
    "bench": {"--steps": "256", "--seeds": "1", "--jobs": "1"},
    "tune": {"--steps": "256", "--envs": "4", "--eval-episodes": "2", "--trials": "2", "--confirm": "2", "--jobs": "1"},
    "exploit": {"--steps": "256", "--episodes": "4"},
    "crossplay": {"--episodes": "2"},
    "serve": {"--listen": "127.0.0.1:0"},
    "dash": {"--port": "0"},
    "watch": {"--port": "0"},
}
"""Command -> flags that it gets, so that it is short, or takes a port that is free."""
FEWER = {"--seeds": "2", "--eval-every": "256", "--iterations": "20"}
"""Flags that get another value where they stand."""
MISSING = {
    r"\bjaxmarl/": "jaxmarl", r"\blbf/": "lbforaging", r"\bwandb": "wandb", r"\bminari:": "minari",
    r"\bpettingzoo\.butterfly\.": "pymunk",
}  # fmt: skip
"""What a command needs that may not be installed: a pattern -> the package."""
ELSEWHERE = {
    r"--ray ": "needs a cluster; tests/cluster and tests/envs/test_ray_rollouts.py have one",
    r"--coordinator ": "needs a second process; tests/test_processes.py has two",
    r"^report runs/home": "needs episodes of actors; tests/relay/test_learned.py has some",
    r"\.mp4$": "needs ffmpeg",
}
"""Commands that do not run here: a pattern -> why, and what tests them."""
CODE = ("docs/guides/self-play.md",)
"""Pages whose commands take what their Python blocks made."""
SERVERS = ("dash", "watch", "serve")
"""Commands that go on until they are interrupted."""


class File(NamedTuple):
    """A block that the paragraph before it says to save under a name."""

    name: str
    text: str


class Call(NamedTuple):
    """A call of flockrl, without its first word; error: what the page shows as its answer, where it is one."""

    words: list[str]
    error: str


LINE = r"^    (?:\$ )?(flockrl [^\n]*(?<!\\)(?:\\\n[^\n]*(?<!\\))*)$"
PART = re.compile(rf"^```(\w*)\n(.*?)^```|{LINE}(?:\n    (flockrl: [^\n]*))?", re.M | re.S)
NAMED = re.compile(r"`([\w/]+\.(?:toml|json|py))`")
FORM = re.compile(r"[A-Z][A-Z_]*(:[A-Z]+|\.\w+|/\w+)?$|.*\.\.\.|[<\[(|]|\w+\||\$[A-Z]+$")
"""Words that stand for others: RUN, RUN/seed_0, FILE, HOST:PORT, SUITE.toml, ..., [--best], onnx|torchscript, $ALL."""


def parts(page):
    """What a reader does with a page from top to bottom: files to save, and calls of flockrl in blocks."""
    text = page.read_text()
    for found in PART.finditer(text):
        language, block, line, error = found.groups()
        named = NAMED.findall(text[: found.start()].rstrip().rpartition("\n\n")[2])
        if language and named:
            yield File(named[-1], block)
        for typed in [line] if line else [] if language else block.splitlines():
            plain = re.sub(r"\s+# .*$", "", re.sub(r"\s*\\\s+", " ", typed), flags=re.M)
            for call in map(str.split, plain.split("&&")):
                if call[0] == "flockrl":
                    yield Call(call[1:], error or "")


def form(call):
    """Whether it is the form of a call, such as `flockrl eval RUN [--best]`, and none that can be pasted."""
    return any(FORM.match(word) for word in call.words)


def left_out(call):
    """Why it cannot run here; empty where it can."""
    line = " ".join(call.words)
    for pattern, package in MISSING.items():
        if re.search(pattern, line) and not importlib.util.find_spec(package):
            return f"{package} is not installed"
    return next((why for pattern, why in ELSEWHERE.items() if re.search(pattern, line)), "")


def short(words):
    """The same call with fewer steps, episodes, environments and seeds."""
    if "--help" in words:
        return words
    pools = words[1:2] in (["psro"], ["fictitious"])
    flags = dict(FEW.get("oracle" if "--oracle" in words else "pool" if pools else words[0], {}))
    made = list(words)
    for i, word in enumerate(words[:-1]):
        if word in flags:
            made[i + 1] = flags.pop(word)
        elif word == "--steps":  # of a run that goes on
            made[i + 1] = "512"
        elif word in FEWER:
            made[i + 1] = FEWER[word]
        elif word == "--devices" and words[i + 1].isdigit():
            made[i + 1] = str(min(int(words[i + 1]), 2))
    if words[0] == "bench":
        made += ["--set", "envs=4", "eval_episodes=2"]
    if words[0] == "train" and re.search(r" (pettingzoo|gymnasium|python)/", " ".join(words)):
        flags["--workers"] = "0"
    return [re.sub(r"^every=[\d_]+$", "every=128", word) for word in made] + [x for flag in flags.items() for x in flag]


def apart(words, folder):
    """Run a call in a process of its own, a server until it says where it listens: (exit status, standard error)."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "flockrl", *words], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        if words[0] in SERVERS:
            assert process.stdout.readline(), process.stderr.read()
            process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=300)
        stopped = words[0] in SERVERS and process.returncode == 130  # before it had begun to listen
        return (0, "") if stopped else (process.returncode, err)


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """The directory that a reader works in, a checkout as far as pages need one. Modules in it are forgotten after."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        module = sys.modules[name]
        places = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", [])]
        if any(str(place).startswith(str(tmp_path)) for place in places):
            del sys.modules[name]


CALLING = [page for page in ALL if any(isinstance(part, Call) for part in parts(page))]


@pytest.mark.slow
@pytest.mark.parametrize("page", CALLING, ids=[str(page.relative_to(ROOT)) for page in CALLING])
def test_the_commands_of_a_page_run(page, desk, cli, monkeypatch):
    """As they stand, but for fewer steps. A command that a page shows with an error ends with that error."""
    for part in parts(page):
        if isinstance(part, File):
            (desk / part.name).write_text(part.text)
    if str(page.relative_to(ROOT)) in CODE:
        train, program = flockrl.train, {}
        monkeypatch.setattr(flockrl, "train", lambda *names, **settings: train(*names, **{**settings, **SMALL}))
        for block in blocks(page):
            exec(compile(block, page.name, "exec"), program)
    for call in parts(page):
        if isinstance(call, File) or form(call) or left_out(call):
            continue
        words = call.words if call.error else short(call.words)
        if words[0] in SERVERS or "--devices" in words:
            status, err = apart(words, desk)
        else:  # in a context of its own: trust in files ends with a command
            status, _, err = contextvars.copy_context().run(cli, *words)
        line = f"{page.name}: flockrl {' '.join(words)}: {err}"
        assert "Traceback" not in err, line
        assert (status, call.error) == (0, "") or (status == 2 and call.error == err.strip()), line
    if page.name == "start.md":
        for file in ("runs/first/curve.png", "episode.gif", "model/metadata.json"):
            assert (desk / file).stat().st_size > 100


def test_what_is_left_out_stands_somewhere():
    """Nothing is excused that no page has, and most commands are run."""
    calls = [part for page in CALLING for part in parts(page) if isinstance(part, Call) and not form(part)]
    lines = [" ".join(call.words) for call in calls]
    for pattern in (*MISSING, *ELSEWHERE):
        assert any(re.search(pattern, line) for line in lines), pattern
    assert len(calls) > 120
    assert sum(any(re.search(pattern, line) for pattern in (*MISSING, *ELSEWHERE)) for line in lines) < 25


def test_forms_are_told_from_calls():
    for line in ("eval RUN --best", "eval x [--best]", "data info FILES...", "status HOST:PORT", "bench SUITE.toml"):
        assert form(Call(line.split(), "")), line
    for line in ("eval runs/x --best", "eval runs/x --env mpe/simple_spread:N=10", "train mappo jaxmarl/MPE_simple_v3",
                 "train mappo mpe/simple_spread --curriculum N=2..5", "data info runs/*.arrow"):  # fmt: skip
        assert not form(Call(line.split(), "")), line


def test_short_calls_keep_what_they_are():
    made = short(["train", "mappo", "mpe/simple_spread", "--steps", "300_000", "--seeds", "5", "--lr", "1e-3"])
    assert " ".join(made) == (
        "train mappo mpe/simple_spread --steps 256 --seeds 2 --lr 1e-3 --envs 4 --eval-episodes 2"
    )
    assert short(["eval", "runs/x", "--episodes", "200", "--gif", "a.gif"])[-1] == "a.gif"
    assert short(["train", "mappo", "--help"]) == ["train", "mappo", "--help"]
