"""The documentation: its site builds strictly, its links lead somewhere, its code runs, its commands exist."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TINY

import flockrl
from flockrl.commands.completion import vocabulary

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md"))
SMALL = {name: TINY[name] for name in ("envs", "eval_episodes")} | {"steps": 256}
NEEDS = {
    "data.md": "reads recordings and classes of the reader",
    "export.md": "needs a model and observations of the reader; start.md runs the same",
    "own-environments.md": "needs a package of the reader; tests/test_examples.py runs such",
    "python.md": "needs runs of the reader",
    "relay.md": "is a part of a game; tests/test_examples.py runs one",
    "sides.md": "needs a run of the reader; tests/test_sides_cli.py trains such",
}
"""Pages whose blocks are parts of a program that is not there."""
ELSEWHERE = ("recipes.md", "coming-from.md")
"""Pages with a test of their own."""


def blocks(page, language="python"):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.S)


RUN = [page for page in PAGES if blocks(page) and page.name not in (*NEEDS, *ELSEWHERE)]


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=[str(page.relative_to(DOCS)) for page in RUN])
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    """All blocks of a page in one program, with fewer steps."""
    train = flockrl.train
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(flockrl, "train", lambda *names, **settings: train(*names, **{**settings, **SMALL}))
    program = {}
    for block in blocks(page):
        exec(compile(re.sub(r"\b1000\b", "10", block), page.name, "exec"), program)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.stem)
def test_the_code_of_a_page_is_python(page):
    for block in blocks(page):
        compile(block, page.name, "exec")


def anchors(page):
    """What links can lead to on a page: its headings, as code hosts and MkDocs name them."""
    found = re.findall(r"^#+\s+(.*)$", page.read_text(), re.M)
    return {re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in found}


def test_links_lead_somewhere():
    wrong = []
    for page in [*PAGES, ROOT / "README.md"]:
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", page.read_text(), flags=re.S)):
            if re.match(r"https?:|mailto:", target):
                continue
            name, _, anchor = target.partition("#")
            file = (page.parent / name).resolve() if name else page
            lost = anchor and file.suffix == ".md" and anchor not in anchors(file)
            wrong += [f"{page.name}: {target}"] if lost or not file.exists() else []
    assert not wrong


def commands():
    """Lines of the documentation that call flockrl, with the page that they stand on."""
    for page in PAGES:
        for line in re.findall(r"^    (flockrl [^\n]*)$", page.read_text(), re.M):
            yield page, line.partition(" #")[0]


def test_commands_and_flags_exist():
    known = vocabulary()
    everything = {flag for flags in known.flags.values() for flag in flags} | {"--help", "--version"}
    wrong, seen = [], 0
    for page, line in commands():
        command, flags = line.split()[1], set(re.findall(r"(?<![\w-])(--[a-z][a-z-]*)", line))
        seen += 1
        if command not in {*known.words[""], "--version", "--help"}:
            wrong.append(f"{page.name}: {line}")
        loose = {flag for flag in flags - everything if not re.search(re.escape(flag) + r"\.", line)}
        wrong += [f"{page.name}: {flag} in {line}" for flag in loose]
    assert seen > 50
    assert not wrong


@pytest.mark.slow
def test_start_in_five_minutes(tmp_path, cli, monkeypatch):
    """The commands of the page, with fewer steps: a trained team, a picture, an animation, an exported model."""
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "start.md").read_text()
    wanted = [line.split() for line in re.findall(r"^    flockrl ([^\n]*)$", text, re.M)]
    ran = [words for words in wanted if words[0] not in ("dash", "watch")]
    assert [words[0] for words in ran] == ["train", "eval", "export"]
    for words in ran:
        status, _, err = cli(*(["3200" if word == "300_000" else word for word in words]))
        assert status == 0, err
    for file in ("runs/first/curve.png", "episode.gif", "model/metadata.json"):
        assert (tmp_path / file).stat().st_size > 100


@pytest.mark.slow
def test_the_site_builds_strictly(tmp_path):
    pytest.importorskip("mkdocstrings", reason="the extra docs is not installed")
    pytest.importorskip("material", reason="the extra docs is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    site = tmp_path / "site"
    assert (site / "start" / "index.html").is_file()
    text = (site / "reference" / "index.html").read_text()
    for name in ("Trainer", "EnvSpec", "resume"):
        assert re.search(rf'id="flockrl\.[\w.]*\b{name}"', text), name
    pages = {page.stem for page in PAGES if page.parent == DOCS} - {"index"}
    assert pages <= {path.parent.name for path in site.glob("*/index.html")}
