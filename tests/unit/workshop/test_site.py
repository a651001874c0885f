"""The navigation of the static site has every page, and the index of decisions every decision."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent.parent


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"([\w./-]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE))
    beside = {"index.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "BENCHMARKS.md"}
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    # Evidence is not a part of the site: see `exclude_docs` in mkdocs.yml.
    assert listed - beside == {page for page in pages if not page.startswith(("decisions/", "evidence/"))}


def test_the_index_of_decisions_has_every_decision_with_its_title() -> None:
    folder = ROOT / "docs" / "decisions"
    titles = {
        page.name: re.match(r"# (\d+)\. (.*)", page.read_text("utf-8"))
        for page in folder.glob("*.md")
        if page.name != "README.md"
    }
    rows = {
        f"| [{title[1]}]({name}) | {title[2]} |" if title else name  # a page without a number has no row
        for name, title in titles.items()
    }
    index = (folder / "README.md").read_text("utf-8")
    assert {" | ".join(line.split(" | ")[:2]) + " |" for line in index.splitlines() if "](0" in line} == rows
