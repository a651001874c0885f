"""Docstrings, comments and pages name the thing, in plain words (CONTRIBUTING.md).

"That of" and "those of" make a reader look back for the noun. The other phrases are literary: who learned English as a
second language reads them twice.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BACK_REFERENCE = re.compile(r"\b(?:that|those) of(?! course)\b", re.IGNORECASE)
UNUSUAL = re.compile(
    r"\b(?:anew|nobody|somebody|whoever|for ever|in vain|go(?:es|ne)? on with|gives? up|takes? notice|meanwhile|lies"
    r"|whatever|wherever|all that|of (?:its|their) own|by (?:itself|themselves)|(?:is|was) over|would else)\b",
    re.IGNORECASE,
)
FOLDERS = ("io", "pipelines", "runner", "src/penstock", "templates", "transforms", "emulators/src")
MAX_PER_1000_WORDS = 0.2
"""A hit is a sentence to read again, not always a fault."""


def _docstrings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node, clean=False) or ""


def _comments(path: Path) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def _assert_rare(pattern: re.Pattern[str], texts: list[tuple[Path, str]]) -> None:
    hits = [f"{path.relative_to(ROOT)}: {hit}" for path, text in texts for hit in pattern.findall(text)]
    words = sum(len(text.split()) for _, text in texts)
    assert 1000 * len(hits) <= MAX_PER_1000_WORDS * words, "\n".join(hits)


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_are_plain(folder: str) -> None:
    texts = [(path, text) for path in sorted((ROOT / folder).rglob("*.py")) for text in _docstrings(path)]
    _assert_rare(BACK_REFERENCE, texts)
    _assert_rare(UNUSUAL, texts)


@pytest.mark.slow
def test_comments_name_the_thing_and_not_that_of() -> None:
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    _assert_rare(BACK_REFERENCE, [(path, text) for path in files for text in _comments(path)])


def test_pages_name_the_thing_and_not_that_of() -> None:
    pages = [*sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*.md"))]
    _assert_rare(BACK_REFERENCE, [(path, path.read_text()) for path in pages])
