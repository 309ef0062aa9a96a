"""Open a report in headless Chromium, at the widths of a desktop and a phone, and check it for errors.

    python bench/browser.py report.html [--out DIR]

Fails on console errors, on requests to the network, on broken pictures and on content wider than the screen; writes a
screenshot for each width and a PDF of the printed page. Needs the program chromium; without it, it says so and exits
with status 0.
"""

from __future__ import annotations

import argparse
import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

WIDTHS = {"desktop": 1280, "phone": 390}
NAMES = ("chromium", "chromium-browser", "google-chrome")
PROBE = """
addEventListener("load", () => {
  const page = document.getElementById("page").contentDocument, root = page.documentElement;
  const wide = [...page.body.querySelectorAll("*")].filter(e => !e.closest(".scroll") && !e.closest("svg")
    && e.getBoundingClientRect().right > root.clientWidth + 1).map(e => e.tagName + " " + e.className);
  document.title = JSON.stringify({height: root.scrollHeight, width: root.scrollWidth, wide: wide,
    broken: [...page.images].filter(i => !i.naturalWidth).length, pictures: page.images.length,
    text: page.body.innerText.length});
});
"""


def find_browser() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def run(browser: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Start the browser once, with a profile of its own and without network access."""
    common = [
        "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr",
        "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=3000",
    ]  # fmt: skip
    return subprocess.run([browser, *common, *words], capture_output=True, text=True, timeout=120, check=False)


def frame(page: str, width: int, height: int) -> str:
    """The page inside a frame of the wanted width, because a browser window cannot be that narrow."""
    return (
        f'<!doctype html><title></title><body style="margin:0"><script>{PROBE}</script><iframe id="page" '
        f'style="border:0;width:{width}px;height:{height}px" srcdoc="{html.escape(page, quote=True)}"></iframe></body>'
    )


def inspect(browser: str, page: str, width: int, shot: Path) -> tuple[dict[str, Any], list[str]]:
    """The page's measurements at a width, and the browser's console messages."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "frame.html"
        file.write_text(frame(page, width, 900))
        done = run(browser, folder, f"--window-size={max(width, 600)},900", "--dump-dom", file.as_uri())
        found = re.search(r"<title>(.*?)</title>", done.stdout, re.S)
        measured = json.loads(html.unescape(found[1])) if found and found[1] else {}
        complaints = re.findall(r"CONSOLE.*?\] (.*)", done.stderr)
        height = int(measured.get("height", 900))
        file.write_text(frame(page, width, height))
        run(browser, folder, f"--window-size={max(width, 600)},{height}", f"--screenshot={shot}", file.as_uri())
    return measured, complaints


def check(file: Path, out: Path, browser: str) -> list[str]:
    """All errors of a page, as sentences."""
    page, wrong = file.read_text(), []
    for name, width in WIDTHS.items():
        measured, complaints = inspect(browser, page, width, out / f"{file.stem}-{name}.png")
        wrong += [f"{name}: the console says {complaint}" for complaint in complaints]
        if not measured:
            wrong.append(f"{name}: the page did not load")
            continue
        if measured["width"] > width or measured["wide"]:
            wrong.append(f"{name}: wider than the screen: {measured['width']} px, {measured['wide'][:3]}")
        if measured["broken"]:
            wrong.append(f"{name}: {measured['broken']} pictures are broken")
        print(f"{name}: {measured['height']} px high, {measured['pictures']} pictures, {measured['text']} characters")
    with tempfile.TemporaryDirectory() as name:
        pdf = out / f"{file.stem}.pdf"
        run(browser, Path(name), "--no-pdf-header-footer", f"--print-to-pdf={pdf.resolve()}", file.resolve().as_uri())
        if not pdf.is_file():
            wrong.append("it could not be printed")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, default=Path())
    given = parser.parse_args()
    browser = find_browser()
    if browser is None:
        print(f"No browser found ({', '.join(NAMES)}): nothing was checked.")
        return 0
    if not given.file.is_file():
        print(f"There is no page {given.file}.", file=sys.stderr)
        return 2
    given.out.mkdir(parents=True, exist_ok=True)
    wrong = check(given.file, given.out, browser)
    print("\n".join(wrong) or f"{given.file}: nothing wrong ({given.file.stat().st_size / 1e6:.1f} MB)")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
