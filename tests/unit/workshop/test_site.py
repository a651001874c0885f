"""The static site has every page and decision, a reference of every public name, and a search."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tools.api_reference import packages

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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The static site, as `make site` builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.long(seconds=20)
def test_the_reference_has_every_public_name_with_its_docstring(site: Path) -> None:
    missing = []
    for package in packages():
        page = (site / "api" / f"{package.removeprefix('penstock.')}.html").read_text("utf-8")
        objects = dict(
            re.findall(r'<h2 id="([\w.]+)" class="doc doc-heading">(.*?)(?=<h2 id=|\Z)', page, re.DOTALL)
        )
        shown = {name.rpartition(".")[2] for name, text in objects.items() if "<p>" in text}
        missing += [f"{package}.{name}" for name in set(import_module(package).__all__) - shown]
    assert missing == []
    spanner = (site / "api" / "io.spanner.html").read_text("utf-8")
    assert "<td><code>change_stream</code></td>" in spanner  # an argument that the transform inherits


@pytest.mark.long(seconds=20)
def test_the_site_opens_with_the_pictures_and_can_be_searched(site: Path) -> None:
    home = (site / "index.html").read_text("utf-8")
    pictures = re.findall(r'<img [^>]*src="([^"]+)"', home)
    assert pictures == ["pictures/overview.svg", "pictures/quickstart.svg"]
    assert all((site / name).is_file() for name in pictures)
    index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
    assert any("PySparkRunner" in each["title"] for each in index["docs"])
