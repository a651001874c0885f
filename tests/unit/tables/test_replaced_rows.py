"""Tables whose rows are replaced without rewriting files: deletion vectors of Delta, position deletes of Iceberg."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from penstock.event import Kind, Op
from penstock.io.staging import TargetUnavailableError
from tests.unit.formats.events import event_of, schema_of
from tests.unit.tables import histories
from tests.unit.tables.histories import Writer
from tests.unit.tables.lakes import FORMATS, Lake, opened_files, published, read_columns, update
from tests.unit.tables.test_delta import publish
from tests.unit.tables.test_snapshot_rows import rows

pytestmark = pytest.mark.slow


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return FORMATS[request.param](tmp_path)


@pytest.fixture
def small(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.low_limits(monkeypatch)


@pytest.mark.long_cases("Iceberg", seconds=5)
@pytest.mark.parametrize("mode", ["current", "history"])
@pytest.mark.usefixtures("small")
def test_tables_with_upkeep_are_the_table_of_the_source_after_every_epoch(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    monkeypatch.setattr(histories, "KEYS", 20)
    writer, rng = Writer(7), random.Random(7)
    driver, sent = lake.driver(mode), []
    for number in range(2, 18):
        events = writer.changes(rng.randint(3, 12))
        late = rng.sample(sent, min(len(sent), 2))
        publish(driver, late + events, number)
        publish(driver, events, number)
        sent += events
        assert lake.rows("id", "name", "amount", mode=mode) == [each[:3] for each in writer.current()]
    assert lake.has_been_tidied()
    assert lake.replaced()
    assert len(lake.data_files()) < 16


@pytest.mark.long_cases("Iceberg", seconds=5)
@pytest.mark.usefixtures("small")
def test_the_upkeep_changes_no_row_of_a_history(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    events = [[update(key, number, 1000 * number) for key in range(number % 4, 9)] for number in range(2, 12)]
    published(lake, events, mode="history")
    other = type(lake)(lake.folder / "other")
    other.without_upkeep(monkeypatch)
    published(other, events, mode="history")
    names = ("id", "amount", "_penstock_version", "_penstock_valid_to", "_penstock_ended_by")
    tidied, kept = (each.read(names, each.valid["all"]).to_pylist() for each in (lake, other))
    assert len(lake.data_files()) < len(other.data_files())
    assert sorted(map(str, tidied)) == sorted(map(str, kept))


@pytest.mark.usefixtures("small")
def test_the_upkeep_that_meets_another_commit_is_left_out_and_the_epoch_stays(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [[update(key, number, 1000 * number) for key in (number, number + 1)] for number in range(2, 8)]
    driver, met = lake.driver(), []

    def other_writer() -> None:
        lake.copy_row(2)
        met.append(True)

    lake.before_upkeep(monkeypatch, other_writer)
    for number, some in enumerate(events, 2):
        try:
            publish(driver, some, number)
        except TargetUnavailableError:
            publish(driver, some, number)
        if met:
            break
    assert met
    assert sorted(set(lake.rows())) == [(key, min(key, number)) for key in range(2, number + 2)]


def test_files_that_cannot_have_a_changed_key_are_not_opened(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(lake, [rows(range(100, 200)), rows(range(300, 400))])
    opened = opened_files(monkeypatch)
    published(lake, [[update(350, 1, 3000)]], first=4)
    assert len(opened) == 1
    assert (350, 1) in lake.rows()


def test_a_whole_row_is_written_after_a_look_at_the_keys_only(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(lake, [rows(range(100))])
    read = read_columns(monkeypatch)
    published(lake, [[update(50, 1, 3000)]], first=3)
    assert set(read) == {("_penstock_key",)}


def test_an_older_change_leaves_the_row_and_its_place(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    published(lake, [[update(key, 5, 1500 + 500 * key) for key in range(4)]])
    read = read_columns(monkeypatch)
    published(lake, [[update(2, 1, 2400), update(3, 6, 4000)]], first=3)
    assert ("_penstock_key", "_penstock_version") in read
    assert lake.rows() == [(0, 5), (1, 5), (2, 5), (3, 6)]
    assert lake.replaced() == [1]


def test_a_file_whose_rows_are_all_replaced_is_removed(lake: Lake) -> None:
    published(lake, [rows(range(4))])
    (first,) = lake.data_files()
    published(lake, [[update(9, 1, 3000)]], first=3)
    epochs = [[update(0, 1, 4000), update(1, 1, 4001)], [update(2, 1, 5000), update(3, 1, 5001)]]
    published(lake, epochs, first=4)
    assert first not in lake.data_files()
    assert lake.replaced() == []
    assert lake.rows() == [(0, 1), (1, 1), (2, 1), (3, 1), (9, 1)]


def test_a_truncate_removes_files_and_newer_rows_stay(lake: Lake) -> None:
    truncate = update(0, 0, 3000, op=Op.TRUNCATE)
    published(lake, [rows(range(50)), [update(1, 7, 5000)], [truncate]])
    assert lake.rows() == [(1, 7)]
    assert len(lake.data_files()) == 1


def test_tombstones_are_removed_when_they_are_older_than_their_age(lake: Lake) -> None:
    schema = schema_of({"id": Kind.INT64}, n=Kind.INT32)
    at = [(1, 5000), (2, 5995), (3, 6004), (4, 6015)]
    deletes = [
        event_of(schema, Op.DELETE, before={"id": key, "n": 1}, timestamp=second * 10**9)
        for key, second in at
    ]
    published(lake, [deletes[:2], deletes[2:3]])
    assert lake.rows("id", mode="all") == [(1,), (2,), (3,)]
    published(lake, [deletes[3:]], first=4)
    assert lake.rows("id", mode="all") == [(2,), (3,), (4,)]


@pytest.mark.parametrize("mode", ["current", "history"])
def test_columns_are_added_and_become_wider_in_files_with_replaced_rows(lake: Lake, mode: Any) -> None:
    narrow = schema_of({"id": Kind.INT64}, n=Kind.INT32)
    wide = schema_of({"id": Kind.INT64}, n=Kind.INT64, extra=Kind.STRING)
    first = [event_of(narrow, after={"id": key, "n": key}, timestamp=10**9 + key) for key in range(4)]
    second = event_of(narrow, Op.UPDATE, after={"id": 1, "n": 5}, timestamp=2 * 10**9)
    third = event_of(wide, Op.UPDATE, after={"id": 2, "n": 1 << 40, "extra": "x"}, timestamp=3 * 10**9)
    published(lake, [first, [second], [third]], mode=mode)
    expected = [(0, 0, None), (1, 5, None), (2, 1 << 40, "x"), (3, 3, None)]
    assert lake.rows("id", "n", "extra", mode=mode) == expected
