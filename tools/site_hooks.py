"""Hooks of `make site`: pages that are not in docs/, and links to files that are not pages.

The home page is the README. Each public package has a page of the API reference (`tools.api_reference`), whose text
mkdocstrings takes from the docstrings. Links to folders and files of the repository that are not pages become plain
text, because a site may be read without a checkout.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

from tools import api_reference

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    "index.md": "README.md",
    "ARCHITECTURE.md": "ARCHITECTURE.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "BENCHMARKS.md": "benchmarks/README.md",
}
"""Page of the site to file of the repository."""

_IMAGE = re.compile(r"!\[([^\]]*)\]\((?!https?:)([^)\s]+)\)")
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not in docs/, and all decision notes and packages to the navigation."""
    for page, source in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    found = [each.src_uri for each in files.documentation_pages() if each.src_uri.startswith("decisions/")]
    notes = sorted(found, key=lambda page: (not page.endswith("README.md"), page))  # the index comes first
    (works,) = (entry["How it works"] for entry in config.nav if "How it works" in entry)
    works.append({"Decisions": notes})
    reference = api_reference.pages()
    for page, text in reference.items():
        files.append(File.generated(config, page, content=text))
    (section,) = (entry for entry in config.nav if "API reference" in entry)
    section["API reference"] = [{api_reference.title(page): page} for page in reference]
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point the links of a page to pages of the site, and make plain text of all others."""
    source = PAGES.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    page_of = {each: name for name, each in PAGES.items()}
    folder = posixpath.dirname(page.file.src_uri)

    def link(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        there = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        name = page_of.get(there, there.removeprefix("docs/") if there.startswith("docs/") else None)
        if name is None or name.startswith("evidence/") or files.get_file_from_path(name) is None:
            return text
        return f"[{text}]({os.path.relpath(name, folder or '.')}{anchor})"

    def image(match: re.Match[str]) -> str:
        text, target = match.groups()
        there = posixpath.normpath(posixpath.join(posixpath.dirname(source), target)).removeprefix("docs/")
        return f"![{text}]({os.path.relpath(there, folder or '.')})"

    return _IMAGE.sub(image, _LINK.sub(link, markdown))
