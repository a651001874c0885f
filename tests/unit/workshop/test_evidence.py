"""`make campaign` repeats every file in docs/evidence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
EVIDENCE = sorted(path.stem for path in (ROOT / "docs" / "evidence").glob("*.json"))
SOURCES = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
MAKEFILE = (ROOT / "Makefile").read_text()
SCRIPTS = {
    "beam-suites": "-m tests.beam.page",
    "bigtable-peers": "benchmarks/peers/bigtable/run.py",
    "versions": "-m tests.matrix",
}
"""Evidence that is not written by a test, and the command that writes it."""


TEMPLATES = [re.split(r"\{[^{}]*\}", each) for each in re.findall(r'f"([a-z]+-[^"]*\{[^"]*)"', SOURCES)]
"""The fixed parts of names such as ``f"sink-kills-{name}"``."""


def recorded_with_a_name_in_parts(name: str) -> bool:
    """Whether a test records under an f-string that gives this name."""
    return any(re.fullmatch(".+".join(map(re.escape, parts)), name) for parts in TEMPLATES)


@pytest.mark.parametrize("name", EVIDENCE)
def test_make_campaign_writes_each_file_of_evidence_again(name: str) -> None:
    by_command = SCRIPTS.get(name, f"docs/evidence/{name}.json") in MAKEFILE
    assert by_command or f'"{name}"' in SOURCES or recorded_with_a_name_in_parts(name)


def test_each_command_that_writes_evidence_is_a_step_of_make_campaign() -> None:
    recipe = MAKEFILE.partition("\ncampaign:")[2].partition("\n\n")[0]
    assert [command for command in SCRIPTS.values() if command not in recipe] == []


def test_a_file_that_no_step_writes_is_noticed() -> None:
    assert not recorded_with_a_name_in_parts("invented-kills")
