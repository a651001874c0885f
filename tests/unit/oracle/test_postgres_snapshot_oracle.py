"""The checks of the kill tests of PostgreSQL's snapshots fail when a line is missing, too late or incomplete."""

from __future__ import annotations

import pytest

from penstock_emulators.oracle.lines import Line
from tests.integration.postgres.test_snapshot_kills import (
    TABLES,
    assert_every_change_once,
    assert_rows_follow_only_what_they_see,
    replayed,
)


def line(kind, new, old=None, at=None):
    content = {"kind": kind, "new": new, "old": old, "commit_lsn": at and f"0/{at}", "sequence": 1}
    return Line("public.t0", "11", "0-of-1", "", content)


def row(id_, n, body="b"):
    return {"id": id_, "n": n, "body": body}


def tables(*rows):
    return {f"public.t{n}": {} for n in range(TABLES)} | {"public.t0": {each["id"]: each for each in rows}}


START = row("1", "0"), row("2", "0")
LINES = [
    line("READ", row("1", "0")),
    line("UPDATE", {"id": "1", "n": "1"}, at=1),  # the large value does not change and is not sent
    line("UPDATE", {"id": "3", "n": "0"}, {"id": "2"}, at=2),
    line("READ", row("3", "0")),
    line("INSERT", row("4", "0"), at=3),
    line("DELETE", None, {"id": "4"}, at=4),
]


def test_the_right_lines_pass():
    assert replayed(LINES) == tables(row("1", "1"), row("3", "0"))
    assert_rows_follow_only_what_they_see(tables(*START), LINES)
    assert_every_change_once(LINES)


@pytest.mark.parametrize(
    "missing",
    [
        pytest.param(0, id="the row that has the large value"),
        pytest.param(1, id="an update"),
        pytest.param(3, id="the row that has the large value of a moved row"),
        pytest.param(5, id="a delete"),
    ],
)
def test_a_missing_line_is_seen(missing):
    assert replayed(LINES[:missing] + LINES[missing + 1 :]) != tables(row("1", "1"), row("3", "0"))


@pytest.mark.parametrize(
    "late",
    [
        pytest.param(row("1", "0"), id="before the change of the row"),
        pytest.param(row("1", "2"), id="contains a change that comes later"),
        pytest.param({"id": "1", "n": "1"}, id="without a column"),
        pytest.param(row("4", "0"), id="the row was deleted"),
        pytest.param(row("2", "0"), id="the row was moved"),
    ],
)
def test_a_row_is_as_old_and_as_new_as_the_changes_before_it(late):
    with pytest.raises(AssertionError, match="not as old or as new"):
        assert_rows_follow_only_what_they_see(tables(*START), [*LINES, line("READ", late)])


def test_a_repeated_change_is_seen():
    with pytest.raises(AssertionError, match="twice"):
        assert_every_change_once([*LINES, LINES[1]])
