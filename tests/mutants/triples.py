"""The mutants of the tests: each replaces one text in one file, and names the tests that must turn red.

They are in `mutants.toml` beside the tests that catch them:

    [[mutant]]
    name = "postgres-years-before-christ-off-by-one"
    breaks = "There is a year 0 before the year 1 BC."
    tests = ["test_text_values.py::test_each_text_form_of_the_server_is_read"]
    file = "io/postgres/text_values.py"
    old = '''
            return (lambda year: 1 - year), text[:-3]  # 1 BC is the year 0
    '''
    new = '''
            return (lambda year: -year), text[:-3]
    '''

A test is relative to the folder of `mutants.toml`, or begins with `tests/`. `breaks` is a sentence about the product
with the mutant. A mutant with several edits has `[[mutant.edit]]` tables, each with `file`, `old` and `new`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    import tomllib
except ImportError:  # Python 3.10, for which pytest installs the same module under its first name
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent.parent


class BrokenMutantError(Exception):
    """A mutant or its test cannot be used. The message tells which one and why."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One text of a file and what replaces it. `file` is relative to the root of the tree."""

    file: str
    old: str
    new: str

    def apply(self, text: str) -> str:
        """Return the text of the file with the edit.

        Raises:
            BrokenMutantError: `old` does not occur exactly once, or `new` is the same text.
        """
        if (count := text.count(self.old)) != 1:
            raise BrokenMutantError(
                f"{self.file} has the old text {count} times instead of once:\n{self.old}"
            )
        if self.new == self.old:
            raise BrokenMutantError(f"{self.file}: the new text is the old one:\n{self.old}")
        return text.replace(self.old, self.new)


@dataclass(frozen=True, slots=True)
class Mutant:
    """Edits that break one rule, and the node ids of the tests that must each turn red.

    `home` is the file that defines the mutant, relative to the root of the tree.
    """

    name: str
    breaks: str
    tests: tuple[str, ...]
    edits: tuple[Edit, ...]
    home: str

    def changed_files(self, root: Path) -> dict[str, str]:
        """Return the text of each changed file, by name. Edits of one file are applied one after the other.

        Raises:
            BrokenMutantError: an edit does not fit the files below `root`.
        """
        texts: dict[str, str] = {}
        for edit in self.edits:
            try:
                before = texts[edit.file] if edit.file in texts else (root / edit.file).read_text()
                texts[edit.file] = edit.apply(before)
            except FileNotFoundError:
                raise BrokenMutantError(f"{self.home}: {self.name}: there is no {edit.file}") from None
            except BrokenMutantError as error:
                raise BrokenMutantError(f"{self.home}: {self.name}: {error}") from None
        return texts


def definitions(root: Path) -> dict[str, str]:
    """Return the text of each `mutants.toml` below `root`, by its name relative to `root`."""
    files = sorted((root / "tests").rglob("mutants.toml"))
    return {file.relative_to(root).as_posix(): file.read_text() for file in files}


def read_mutants(texts: dict[str, str]) -> list[Mutant]:
    """Return all mutants of these definitions, sorted by name.

    Raises:
        BrokenMutantError: a definition lacks something, or has something that does not belong there.
    """
    mutants = [mutant for home, text in texts.items() for mutant in parse_mutants(text, home)]
    return sorted(mutants, key=lambda mutant: mutant.name)


def parse_mutants(text: str, home: str) -> Iterator[Mutant]:
    """Yield the mutants that the file `home` with this text defines, in its order."""
    try:
        tables = tomllib.loads(text)["mutant"]
    except (tomllib.TOMLDecodeError, KeyError) as error:
        raise BrokenMutantError(f"{home}: {error!r}") from None
    folder = home.rpartition("/")[0]
    for table in tables:
        yield _mutant(table, folder, home)


def _mutant(table: dict[str, Any], folder: str, home: str) -> Mutant:
    fields = {"breaks": "", **table}
    edits = fields.pop("edit", None) or [{key: fields.pop(key, None) for key in ("file", "old", "new")}]
    if fields.keys() != {"name", "breaks", "tests"} or not fields["tests"]:
        raise BrokenMutantError(
            f"{home}: {table.get('name')} needs name, tests and edits, and has {sorted(table)}"
        )
    for edit in edits:
        if edit.keys() != {"file", "old", "new"} or not all(isinstance(text, str) for text in edit.values()):
            raise BrokenMutantError(f"{home}: {table['name']}: an edit needs file, old and new")
    tests = tuple(test if test.startswith("tests/") else f"{folder}/{test}" for test in fields["tests"])
    return Mutant(fields["name"], fields["breaks"], tests, tuple(Edit(**edit) for edit in edits), home)
