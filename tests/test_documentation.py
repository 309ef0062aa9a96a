"""The documentation: its site builds strictly, its links lead somewhere, its code runs, its commands exist."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from conftest import TINY

import flockrl
from flockrl.algos.feudal_config import FEUDAL, TIERS, leads
from flockrl.commands.completion import _flags, vocabulary
from flockrl.commands.data import ConvertFlags, InfoFlags, ValidateFlags
from flockrl.core.errors import UsageError
from flockrl.envs.registry import make
from flockrl.evidence.suite import read_suite

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md"))
ALL = [ROOT / "README.md", *PAGES]
SMALL = {name: TINY[name] for name in ("envs", "eval_episodes")} | {"steps": 256}
BEFORE = {
    "data.md": "import flockrl; flockrl.train('ippo', 'games/climbing', out='runs/x', record='runs/x.arrow')",
    "export.md": """
import flockrl
flockrl.export(flockrl.train("mappo", "mpe/simple_spread", out="runs/first"), "model")""",
    "own-environments.md": "import sys; sys.path.insert(0, EXAMPLES + '/..')",
    "own-network.md": """
import re, sys; from pathlib import Path
text = Path(EXAMPLES, "../docs/guides/own-network.md").read_text()
Path("mynet.py").write_text(re.search(r"```python\\n(.*?)```", text, re.S)[1]); sys.path.insert(0, ".")""",
    "paper-figure.md": """
import flockrl
for name in ("vdn", "qmix"):
    flockrl.train(name, "games/two_step", out=f"runs/two_step/cells/{name}-games-two_step/seed_0")""",
    "sides.md": """
import flockrl
flockrl.train("iddpg", "mpe/simple_tag:continuous_actions=true", out="runs/prey")""",
}
"""Page -> what its reader has: code that runs before the page's own."""
PART = "while playing:"
"""What stands in blocks that are parts of a game which goes on for ever; tests/test_examples.py runs such games."""
ELSEWHERE = ("recipes.md", "coming-from.md")
"""Pages with a test of their own."""


def blocks(page, language="python"):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.S)


def complete(page):
    """The Python blocks that are not parts of a program that is not there."""
    return [block for block in blocks(page) if PART not in block]


RUN = [page for page in ALL if complete(page) and page.name not in ELSEWHERE]


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=[str(page.relative_to(ROOT)) for page in RUN])
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    """All blocks of a page in one program, with fewer steps."""
    train = flockrl.train
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(flockrl, "train", lambda *names, **settings: train(*names, **{**settings, **SMALL}))
    program = {"EXAMPLES": str(ROOT / "examples")}
    exec(BEFORE.get(page.name, ""), program)
    for block in complete(page):
        exec(compile(re.sub(r"\b[12]000\b", "10", block), page.name, "exec"), program)


@pytest.mark.parametrize("page", [page for page in ALL if blocks(page)], ids=lambda page: page.stem)
def test_the_code_of_a_page_is_python(page):
    for block in blocks(page):
        compile(block, page.name, "exec")


def test_names_are_defined_where_a_reader_pastes_them(tmp_path):
    """Blocks of a page follow each other; on the pages of recipes each stands alone."""
    for page in ALL:
        alone = page.name in ELSEWHERE
        for i, text in enumerate(complete(page) if alone else ["\n".join(complete(page))]):
            (tmp_path / f"{page.stem}_{i}.py").write_text(text)
    words = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "--output-format", "concise"]
    done = subprocess.run([*words, "."], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_suites_of_pages_are_suites(tmp_path):
    for page in PAGES:
        for i, block in enumerate(blocks(page, "toml")):
            told = tomllib.loads(block)
            if "part" in told or {"algorithms", "environments"} <= told.keys():
                (tmp_path / f"{i}.toml").write_text(block)
                assert read_suite(str(tmp_path / f"{i}.toml")).cells


def anchors(page):
    """What links can lead to on a page: its headings, as code hosts and MkDocs name them."""
    found = re.findall(r"^#+\s+(.*)$", page.read_text(), re.M)
    return {re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in found}


def test_links_lead_somewhere():
    wrong = []
    for page in ALL:
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", page.read_text(), flags=re.S)):
            if re.match(r"https?:|mailto:", target):
                continue
            name, _, anchor = target.partition("#")
            file = (page.parent / name).resolve() if name else page
            lost = anchor and file.suffix == ".md" and anchor not in anchors(file)
            wrong += [f"{page.name}: {target}"] if lost or not file.exists() else []
    assert not wrong


CALL = re.compile(r"^    (?:\$ )?(flockrl [^\n]*(?<!\\)(?:\\\n[^\n]*(?<!\\))*)$|`(flockrl [^`]+)`", re.M)
OPEN = re.compile(r"[A-Z][A-Z_]*\b|\.\.\.|[<\[]")
"""Words that stand for others: RUN, ENV, DIR, ..., [options]."""


def commands():
    """Calls of flockrl in the documentation, as lists of words, with the page that they stand on."""
    for page in ALL:
        for found in CALL.finditer(page.read_text()):
            line = re.sub(r"\s+# .*$", "", re.sub(r"\s*\\\s+", " ", found[1] or found[2]), flags=re.M)
            yield page, re.sub(r"[\[\]]", " ", line).split()[1:]


class Known:
    """What a call may say."""

    def __init__(self):
        self.words, flags, self.choices = vocabulary()
        self.flags = {name: self.both(found) for name, found in flags.items()}
        self.flags["data"] = {"--help", "--out", *_flags([InfoFlags, ValidateFlags, ConvertFlags])}

    @staticmethod
    def both(flags):
        """Switches can be turned on and off; a shell completes the way that changes something."""
        return {*flags, *(flag.replace("--no-", "--", 1) for flag in flags), *(f"--no-{flag[2:]}" for flag in flags)}

    def wrong(self, words):
        """What is wrong with a call, as a text; empty where nothing is."""
        command, *rest = words or [""]
        if OPEN.match(command) or command in ("--help", "--version"):
            return ""
        if command not in self.words[""]:
            return f"no command {command}"
        plain = [word for word, before in zip(rest, [command, *rest], strict=False) if not before.startswith("--")]
        plain = [word for word in plain if not word.startswith("-")]
        if command in ("train", "tune") and plain:
            return self.training(command, plain, rest)
        if command in ("recommend", "solve") and plain:
            return self.environment(plain[0]) or self.flagged(rest, self.flags[command])
        part = plain[0] if plain and command in ("data", "list", "coordinate", "completion") else ""
        if part and not OPEN.match(part) and not {*part.split("|")} <= {*self.words[command]}:
            return f"{command} has no {part}"
        return self.flagged(rest, self.flags.get(command, set()))

    def training(self, command, plain, rest):
        players = dict(re.findall(r"(\w+)=([^,]+)", plain[0])) or {"": plain[0]}
        for player in players.values():
            if not (OPEN.match(player) or player in self.words["train"] or re.search(r"[/:]|^random$", player)):
                return f"no algorithm {player}"
        flags = set(self.flags["tune"]) if command == "tune" else set()
        for side, player in players.items():
            own = self.flags.get(f"train {player}") or set().union(*self.flags.values())
            flags |= own | {f"--{side}.{flag[2:]}" for flag in own}
        if {*players} <= {*TIERS}:
            flags |= self.flags[f"train {FEUDAL}"]
        elif any(player in self.words["tune"] and leads(player) for player in players.values()):
            flags |= {f"--{tier}.{flag[2:]}" for tier in TIERS for own in self.flags.values() for flag in own}
        return (self.environment(plain[1]) if len(plain) > 1 else "") or self.flagged(rest, flags)

    def environment(self, name):
        suite = name.partition("/")[0]
        outside = f"{suite}/" in self.words["ENV"] or OPEN.search(name) or name.endswith((".arrow", ".jsonl", ".py"))
        if outside or Path(name).suffix in (".json", ".toml", ".efg", ".nfg"):
            return ""
        try:
            make(name)
        except UsageError as error:
            return str(error)
        return ""

    def flagged(self, words, flags):
        for word, value in zip(words, [*words[1:], ""], strict=False):
            flag, _, joined = word.partition("=")
            if not flag.startswith("--"):
                continue
            if flag not in flags:
                return f"no flag {flag}"
            options = re.split(r"\||,", joined or value)
            if flag in self.choices and options[0] and not OPEN.match(options[0]) and not options[0].startswith("-"):
                lost = {option for option in options if option not in self.choices[flag] and not option.isdigit()}
                if lost - {"none", "..."}:
                    return f"{flag} has no choice {sorted(lost)}"
        return ""


def test_commands_parse():
    """Every call of flockrl in the documentation: its command, algorithm, environment, flags and choices exist."""
    known, wrong, seen = Known(), [], 0
    for page, words in commands():
        seen += 1
        found = known.wrong(words)
        wrong += [f"{page.name}: flockrl {' '.join(words)}: {found}"] if found else []
    assert seen > 150
    assert not wrong, "\n".join(wrong)


def test_scripts_and_extras_exist():
    """Every script that a page calls is there and has the flags it is called with; every extra can be installed."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wrong, seen = [], 0
    for page in ALL:
        text = page.read_text()
        for name, rest in re.findall(r"python ((?:bench|examples)/\w+\.py)([^`\n#]*)", text):
            script = (ROOT / name).read_text() if (ROOT / name).is_file() else ""
            wrong += [f"{page.name}: {name} {flag}" for flag in re.findall(r"--[\w-]+", rest) if flag not in script]
            wrong += [] if script else [f"{page.name}: {name}"]
            seen += 1
        asked = re.findall(r"(?:\.|flockrl)\[([a-z,]+)\]'", text)
        wrong += [f"{page.name}: {extra}" for names in asked for extra in names.split(",") if extra not in extras]
    assert seen > 20
    assert not wrong


@pytest.mark.parametrize("call", [
    "trian mappo", "train mapo mpe/simple_spread", "train mappo mpe/simple_spred", "train mappo mpe/simple_spread:n=3",
    "train mappo mpe/simple_spread --lrr 1", "train mappo mpe/simple_spread --mixer sum", "eval RUN --episode 3",
    "train adversary=mapo,agent=ippo mpe/simple_tag",
    "train adversary=mappo,agent=ippo mpe/simple_tag --adversary.mixer 1",
    "train mappo mpe/simple_spread --memory lstmm", "recommend mpe/nothing", "solve games/nothing", "data look FILE",
])  # fmt: skip
def test_calls_that_are_wrong_are_found(call):
    assert Known().wrong(call.split())


BOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


def code_of(book):
    """The cells of a notebook with code, in their order."""
    told = json.loads(book.read_text())
    assert (told["nbformat"], len({cell["id"] for cell in told["cells"]})) == (4, len(told["cells"]))
    return ["".join(cell["source"]) for cell in told["cells"] if cell["cell_type"] == "code"]


def test_notebooks_are_python():
    assert len(BOOKS) >= 2
    for book in BOOKS:
        assert len(code_of(book)) >= 5
        compile("\n".join(code_of(book)), book.name, "exec")


@pytest.mark.slow
@pytest.mark.parametrize("book", BOOKS, ids=lambda book: book.stem)
def test_a_notebook_runs_from_top_to_bottom(book, tmp_path):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}
    words = [sys.executable, "-c", "\n".join(code_of(book))]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


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
    assert "the exported team acts as the trained one" in (site / "notebooks/first-team-page/index.html").read_text()
    pages = {page.stem for page in PAGES if page.parent == DOCS} - {"index"}
    assert pages <= {path.parent.name for path in site.glob("*/index.html")}
