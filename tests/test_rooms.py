"""Dependencies point one way: every room imports only rooms before it, and no modules import each other in a circle."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from source_kit import parse

import flockrl

ROOT = Path(flockrl.__file__).parent
ROOMS = (
    "core", "data", "nets", "comm", "coordination", "envs", "games", "policies", "replay", "algos", "rollouts",
    "evaluation", "view", "training", "evidence", "tuning", "portable", "relay", "dash", "commands",
)  # fmt: skip
"""Each room may import those before it. `docs/architecture.md` draws them in this order."""
LONGEST_FILE, LONGEST_FUNCTION = 350, 60


def modules() -> dict[str, Path]:
    paths = ROOT.rglob("*.py")
    return {".".join(p.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): p for p in paths}


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """Modules that a file imports anywhere, also inside functions; imports for type checkers alone do not count."""
    tree = parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            named = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name for name in named if name in known}
            if named - set(known):
                found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name in known and name != "flockrl"}


def test_every_room_imports_only_the_rooms_before_it():
    known = modules()
    wrong = []
    for name, path in known.items():
        room = name.split(".")[1] if name.count(".") else ""
        if room not in ROOMS:
            continue
        later = ROOMS[ROOMS.index(room) + 1 :]
        wrong += [f"{name} -> {other}" for other in imports(path, known) if other.split(".")[1] in later]
    assert not wrong, wrong


def test_no_modules_import_each_other_in_a_circle():
    known = modules()
    graph = {name: imports(path, known) - {name} for name, path in known.items()}
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' -> '.join(error.args[1])}")


def test_the_root_holds_next_to_nothing():
    assert {p.stem for p in ROOT.glob("*.py")} == {"__init__", "__main__", "types"}
    assert {p.name for p in ROOT.iterdir() if (p / "__init__.py").exists()} == set(ROOMS)


def test_files_and_functions_fit_a_reader():
    long = []
    for path in ROOT.rglob("*.py"):
        text = path.read_text()
        if text.count("\n") > LONGEST_FILE:
            long.append(f"{path.relative_to(ROOT)}: {text.count(chr(10))} lines")
        for node in ast.walk(parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = node.end_lineno - node.lineno + 1
                if lines > LONGEST_FUNCTION:
                    long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {lines} lines")
    assert not long, long
