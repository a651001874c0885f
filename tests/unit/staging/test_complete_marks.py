"""The marks that say until when an output is complete."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from penstock.compat import UTC
from penstock.io.files import OutputError, complete_until
from penstock.io.staging.complete_marks import Mark, mark_complete
from penstock.io.staging.names import sink_name
from penstock.io.staging.store import store_of

ONE, TWO = sink_name("one"), sink_name("two")
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def us(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def test_the_newest_mark_counts_and_replaces_the_older_ones(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    for record in (9, 10, 11):
        mark_complete(store, Mark.of("job", ONE, record, us(NOON) + record))
    assert complete_until(tmp_path) == {"job": NOON + timedelta(microseconds=11)}
    (left,) = (tmp_path / "_complete").iterdir()
    assert left.name == f"job_{ONE}_000000000011.json"


def test_a_driver_that_wakes_up_does_not_put_the_time_back(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    mark_complete(store, Mark.of("job", ONE, 10, us(NOON)))
    mark_complete(store, Mark.of("job", ONE, 7, us(NOON) - 1))
    assert complete_until(tmp_path) == {"job": NOON}
    mark_complete(store, Mark.of("job", ONE, 11, us(NOON) + 1))
    assert len(list((tmp_path / "_complete").iterdir())) == 1


def test_an_output_of_two_sinks_is_complete_when_both_are(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    mark_complete(store, Mark.of("job", ONE, 5, us(NOON)))
    mark_complete(store, Mark.of("job", TWO, 5, us(NOON) - 1))
    mark_complete(store, Mark.of("other_job/ü", ONE, 5, us(NOON) + 1))
    assert complete_until(tmp_path) == {
        "job": NOON - timedelta(microseconds=1),
        "other_job/ü": NOON + timedelta(microseconds=1),
    }


def test_an_output_without_marks_has_no_time(tmp_path: Path) -> None:
    (tmp_path / "_complete").mkdir()
    (tmp_path / "_complete" / "notes.txt").write_text("x")
    assert complete_until(tmp_path) == {}
    assert complete_until(tmp_path / "missing") == {}


def test_a_mark_is_not_written_twice(tmp_path: Path) -> None:
    mark_complete(store_of(tmp_path), Mark.of("job", ONE, 5, us(NOON)))
    with pytest.raises(OutputError):
        mark_complete(store_of(tmp_path), Mark.of("job", ONE, 5, us(NOON)))
