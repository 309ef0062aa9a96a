"""The pages of the environments: every environment is on one of them, with the numbers that its spec has."""

import inspect
import re
from pathlib import Path

import pytest

from flockrl.core.spec import EnvSpec, stem
from flockrl.core.types import Box, Discrete
from flockrl.envs.adapters.adapt import SUITES as OUTSIDE
from flockrl.envs.registry import SUITES, environments, make

DOCS = Path(__file__).parents[1] / "docs"
PAGES = [*sorted((DOCS / "environments").glob("*.md")), *sorted((DOCS / "cases").glob("*.md"))]
NAMES = [f"{suite}/{name}" for suite in SUITES for name in environments(suite)]
UNBUILT = ("games/file",)
"""Environments that cannot be built without settings."""


def cells(line):
    return [cell.strip() for cell in re.split(r" \|(?= )", line.strip()[1:-1])] if line.startswith("| ") else []


def facts(text):
    """Environment -> field -> what a page says: by tables with a row per environment, whose first column is `name`, and
    by tables with a row per field, under a heading with the environment's name."""
    found, head, name = {}, [], ""
    for line in text.splitlines():
        row = cells(line)
        if line.startswith("#"):
            name = line.lstrip("# ") if line.lstrip("# ") in NAMES else ""
        elif row and row[0] == "name":
            head = row
        elif not line.startswith("|"):
            head = []
        elif head and row and row[0] in NAMES:
            assert len(row) == len(head), line
            found.setdefault(row[0], {}).update(zip(head, row, strict=True))
        elif name and len(row) == 2:
            found.setdefault(name, {})[row[0]] = row[1]
    return found


TOLD = {name: {} for name in NAMES}
for page in PAGES:
    for env, said in facts(page.read_text()).items():
        TOLD[env] = {**TOLD[env], **said, "page": page}


def space(of):
    if isinstance(of, Discrete):
        return f"{of.n} choices"
    assert isinstance(of, Box)
    return f"[{of.size}] from {of.low:g} to {of.high:g}"


def by_kind(spec: EnvSpec, texts):
    """One text where all agents have the same, else `kind text, kind text`."""
    kinds = dict(zip(map(stem, spec.agents), texts, strict=True))
    return texts[0] if len(set(texts)) == 1 else ", ".join(f"{kind} {text}" for kind, text in kinds.items())


def before(text):
    """What stands before the explanation."""
    return re.split(r"[:;]", text)[0].strip()


def test_every_environment_is_on_a_page():
    assert not [name for name in NAMES if "page" not in TOLD[name]]
    others = (DOCS / "environments" / "other-packages.md").read_text()
    assert not [suite for suite in OUTSIDE if f"`{suite}/" not in others]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in UNBUILT])
def test_a_page_says_what_the_spec_says(name):
    env, told = make(name), TOLD[name]
    spec: EnvSpec = env.spec
    assert before(told["observation"]) == by_kind(spec, [f"[{seen.size}]" for seen in spec.observations])
    assert before(told["actions"]) == by_kind(spec, [space(does) for does in spec.actions])
    assert int(before(told["horizon"])) == spec.max_steps
    if "agents" in told:
        assert int(re.match(r"\d+", told["agents"])[0]) == spec.num_agents
    if "sides" in told:
        assert told["sides"].split(", ") == list(dict.fromkeys(spec.sides))
    text = told["page"].read_text()
    assert not [policy for policy in getattr(env, "policies", {}) if f"`{policy}`" not in text]


@pytest.mark.parametrize("name", NAMES)
def test_a_page_tells_the_settings(name):
    suite, _, short = name.partition("/")
    settings = inspect.signature(environments(suite)[short]).parameters.values()
    told = TOLD[name].get("settings")
    if told is None:  # the case studies explain theirs one by one
        text = TOLD[name]["page"].read_text()
        assert not [given.name for given in settings if not re.search(rf"`[^`\n]*\b{given.name}\b[^`\n]*`", text)]
    else:
        assert re.findall(r"`([^`]+)`", told) == [f"{given.name}={given.default}" for given in settings]


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_has_a_picture(suite):
    """Its page shows one, and it is small."""
    (page,) = {TOLD[name]["page"] for name in NAMES if name.startswith(f"{suite}/")}
    picture = DOCS / "images" / f"suite-{suite}.png"
    assert f"](../images/{picture.name})" in page.read_text()
    assert picture.stat().st_size < 150_000


def test_the_overview_counts():
    text = (DOCS / "environments.md").read_text()
    counted = {suite: int(many) for suite, many in re.findall(r"^\| \[(\w+)\]\([^)]+\) \| (\d+) \|", text, re.M)}
    assert counted == {suite: len(environments(suite)) for suite in SUITES}
