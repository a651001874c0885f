"""Every test and every mutant that the tables of docs/spanner.md name exists."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MUTANTS = {
    name
    for file in (ROOT / "tests").rglob("mutants.toml")
    for name in re.findall(r'^name = "(.+)"$', file.read_text(), re.MULTILINE)
}
PREFIXES = ("reading", "spanner", "transforms", "change-streams")
FOLDERS = (
    "tests/unit/spanner",
    "tests/unit/events",
    "tests/unit/change_streams",
    "tests/integration/spanner",
    "tests/integration/emulators/simulated_spanner",
    "tests/simulation/spanner",
    "tests/property",
    "tests/golden",
)


def cases() -> list[tuple[str, str, str]]:
    """Return the rows of the tables: the case, what shows it, and its mutants."""
    text = (ROOT / "docs" / "spanner.md").read_text()
    section = text[text.index("## Cases") : text.index("## Measured")]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [(row[-3].strip(), row[-2], row[-1].strip(" |")) for row in rows if row[-1].strip() != "Mutant"]


def mutants_in(cell: str) -> list[str]:
    """Return the names of mutants: ``name`` of spanner-name, ``name (`reading-…`)``, or in full in backquotes."""
    names = []
    for each in cell.split(", "):
        name, _, prefix = each.partition(" (`")
        if each == "–":
            continue
        names.append(f"{prefix.partition('-…')[0]}-{name}" if prefix else _full(name))
    return names


def _full(name: str) -> str:
    return name.strip("`") if name.startswith("`") else f"spanner-{name}"


def test_names_in(cell: str) -> list[tuple[str, str]]:
    """Return (file, test) of each name; the test is empty, or a beginning that ends in ``…``."""
    return [
        (file.rpartition("/")[2], test or "")
        for file, test in re.findall(r"`((?:\w+/)*test_\w+\.py)(?:::(\w+…?))?`", cell)
    ]


test_names_in.__test__ = False  # type: ignore[attr-defined]


@pytest.mark.parametrize(("case", "shown", "mutants"), cases(), ids=lambda text: text[:40])
def test_a_case_names_tests_and_mutants_that_exist(case: str, shown: str, mutants: str) -> None:
    for name in mutants_in(mutants):
        assert name in MUTANTS, f"{case}: there is no mutant {name}"
    for file, test in test_names_in(shown):
        found = [path for folder in FOLDERS for path in (ROOT / folder).rglob(file)]
        assert found, f"{case}: there is no {file}"
        names = [name for path in found for name in re.findall(r"def (test_\w+)", path.read_text())]
        pattern = test.replace("…", "*") if test else "*"
        assert any(fnmatchcase(name, pattern) for name in names), f"{case}: {file} has no {test}"


def test_the_tables_have_all_cases() -> None:
    numbered = [number for case, *_ in all_rows() for number in re.findall(r"\d+", case)]
    assert sorted(map(int, numbered)) == list(range(1, 44))


def all_rows() -> list[list[str]]:
    """Return the cells of the numbered rows; the first one has the numbers."""
    lines = (ROOT / "docs" / "spanner.md").read_text().splitlines()
    return [line.strip("|").split(" | ") for line in lines if re.match(r"\| \d+[\d, ]* \|", line)]
