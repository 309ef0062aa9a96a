"""The light wheel holds every file that an actor imports."""

import ast
import tomllib
from pathlib import Path

from source_kit import parse

HOME = Path(__file__).parents[2]


def imported(file):
    """Files of flockrl that a file imports at its top."""
    for node in parse(file.read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flockrl"):
            yield HOME / (node.module.replace(".", "/") + ".py")


def test_the_wheel_has_all_that_an_actor_needs():
    settings = tomllib.loads((HOME / "packages" / "actor" / "pyproject.toml").read_text())
    shipped = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    files = {(HOME / "packages" / "actor" / source).resolve() for source in shipped}
    assert all(file.exists() for file in files)
    relay = HOME / "flockrl" / "relay"
    needed, waiting = set(), [relay / "actor.py", relay / "member.py", relay / "hub.py"]
    while waiting:
        file = waiting.pop()
        if file not in needed:
            needed.add(file)
            waiting += imported(file)
    assert needed <= files
