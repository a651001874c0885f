"""An initial snapshot that a released version has begun is continued by this one."""

from __future__ import annotations

import json

import pytest

from tests.golden.frontiers.record import CASES, FOLDER, finished

RELEASES = sorted(FOLDER.glob("*.json"))


@pytest.mark.parametrize("name", CASES)
def test_the_middle_of_an_initial_snapshot_is_read_and_written_byte_for_byte(name: str) -> None:
    assert RELEASES, "record one: python -m tests.golden.frontiers.record VERSION"
    case = CASES[name]
    for release in RELEASES:
        recorded = json.loads(release.read_text())[name]
        parts = [case.coder.decode(part.encode()) for part in recorded["parts"]]
        assert parts == case.parts()
        assert [case.coder.encode(part).decode() for part in parts] == recorded["parts"]
        assert case.coder.encode(finished(parts, case.end_of)).decode() == recorded["after"]
