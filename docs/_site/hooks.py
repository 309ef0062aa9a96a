"""What the site does besides MkDocs: pages that may come, notebooks as pages, and links that lead out of it.

The Markdown is written to be read on a code host too, where a link to ../flockrl/algos/ppo.py opens the file. The site
has no such file, so there the link becomes the name of the file.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

COMING = (
    ("Use", "Coordination", "coordination.md"), ("Use", "Credit", "credit.md"),
    ("Use", "Exploration", "exploration.md"),
    ("Use", "Hierarchy and roles", "hierarchy.md"), ("Use", "Teams that grow", "teams-that-grow.md"),
    ("Use", "Scaling out", "scaling.md"), ("Use", "Tuning", "tuning.md"),
)  # fmt: skip
"""Section, title and file of pages that join the navigation as soon as they are there."""
HOMES = {"algorithms": "Algorithms", "cases": "Cases", "environments": "Environments", "guides": "Use"}
"""Folder -> the section that its pages join."""
OUTSIDE = re.compile(r"\[([^\]\[]+)\]\(((?:\.\./)+[^)\s]+)\)")


def on_config(config: Any) -> Any:
    docs = Path(config["docs_dir"])
    sections = {name: pages for entry in config["nav"] for name, pages in entry.items() if isinstance(pages, list)}
    named = {file for pages in sections.values() for page in pages for file in page.values()}
    for section, title, file in COMING:
        if (docs / file).is_file() and file not in named:
            sections[section].append({title: file})
    for folder, home in HOMES.items():
        for page in sorted((docs / folder).glob("*.md")):
            if f"{folder}/{page.name}" not in named:
                sections[home].append({_title(page): f"{folder}/{page.name}"})
    for book in sorted((docs / "notebooks").glob("*.ipynb")):
        sections["Begin"].append({_title(book): f"notebooks/{book.stem}-page.md"})
    return config


def on_files(files: Any, config: Any) -> Any:
    """A page for each notebook, beside the file itself."""
    for book in sorted(Path(config["docs_dir"], "notebooks").glob("*.ipynb")):
        name = f"notebooks/{book.stem}-page.md"
        files.append(File.generated(config, name, content=_page(book)))
    return files


def _page(book: Path) -> str:
    """A notebook as Markdown: its texts, its code and what the code printed."""
    parts = []
    for cell in json.loads(book.read_text())["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        said = "".join("".join(out.get("text", "")) for out in cell["outputs"])
        parts += [f"```text\n{said.rstrip()}\n```"] if said else []
    return "\n\n".join([*parts, f"[This page as a notebook]({book.name})"]) + "\n"


def _title(page: Path) -> str:
    text = _page(page) if page.suffix == ".ipynb" else page.read_text()
    first = text.partition("\n")[0]
    return first.lstrip("# ").strip() or page.stem


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links to files outside of the documentation become their names."""
    here = Path(config["docs_dir"], page.file.src_path).parent

    def inside(match: re.Match[str]) -> str:
        target = (here / match[2].partition("#")[0]).resolve()
        if target.is_relative_to(Path(config["docs_dir"]).resolve()):
            return match[0]
        return match[1]

    return OUTSIDE.sub(inside, markdown)
