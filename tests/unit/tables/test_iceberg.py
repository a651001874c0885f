"""Iceberg tables in a SQLite catalogue: the modes against an oracle, repeats, paused drivers and other writers."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog

from penstock.errors import UsageError
from penstock.event import ChangeEvent, Kind
from penstock.event.schema_changes import SchemaChangedError
from penstock.io.iceberg import WriteToIceberg
from penstock.io.iceberg.target import IcebergTarget
from penstock.io.staging import LedgerConflictError, TargetUnavailableError
from tests.unit.formats.events import event_of, schema_of
from tests.unit.tables.histories import Writer, split
from tests.unit.tables.test_delta import batches, deletion, epoch, other_types, two_widths

pytestmark = pytest.mark.slow


def target_of(properties: dict[str, str], mode: Any, policy: Any = "evolve") -> IcebergTarget:
    return IcebergTarget("shop.t", "test", mode, policy, properties)


def publish(target: IcebergTarget, events: Sequence[ChangeEvent], number: int, generation: int = 1) -> None:
    target.publish(epoch(number, generation), batches(events, number, generation))


def rows(properties: dict[str, str], columns: str, where: str = "not _penstock_deleted") -> Any:
    table = load_catalog("test", **properties).load_table("shop.t").scan().to_arrow()
    return duckdb.from_arrow(table).filter(where).project(columns).order("all").fetchall()


@pytest.mark.parametrize("mode", ["current", "history"])
def test_current_state_and_history_are_the_table_of_the_source_after_every_epoch_with_repeats(
    properties, mode: Any
):
    writer, rng = Writer(5), random.Random(5)
    target = target_of(properties, mode)
    published: list[tuple[int, list[ChangeEvent]]] = []
    for number in range(2, 6):
        events = writer.changes(rng.randint(3, 9))
        publish(target, events, number)
        published.append((number, events))
        old, again = rng.choice(published)  # the runner repeats the last one, a paused driver any
        publish(target, again, old)
        where = "not _penstock_deleted" if mode == "current" else "_penstock_valid_to is null"
        assert rows(properties, "id, name, amount", where) == [row[:3] for row in writer.current()]


def test_the_log_has_each_change_once_and_gains_the_columns_of_the_source(properties):
    events = Writer(1).changes(30)
    target = target_of(properties, "log")
    for number, some in enumerate(split(events, random.Random(1)), 2):
        publish(target, some, number)
        publish(target, some, number)
    found = rows(properties, "metadata.version, op, after.note", "true")
    assert [op for _, op, _ in found] == [str(event.op) for event in events]
    assert [note for *_, note in found] == [(event.after or {}).get("note") for event in events]


def test_older_events_of_another_epoch_change_no_newer_row(properties):
    writer = Writer(2)
    target = target_of(properties, "current")
    events = writer.changes(20, truncates=False)
    publish(target, events, 2)
    publish(target, events[:10], 3)
    assert rows(properties, "id, name, amount") == [row[:3] for row in writer.current()]


def test_a_driver_that_dies_after_any_commit_of_a_publication_leaves_the_rows_once(
    properties, monkeypatch: pytest.MonkeyPatch
):
    writer, target = Writer(3), target_of(properties, "log")
    publish(target, writer.changes(3), 2)
    events = writer.changes(3)
    commit = SqlCatalog.commit_table

    def die(*arguments: Any) -> Any:
        commit(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(SqlCatalog, "commit_table", die)
    with pytest.raises(KeyboardInterrupt):
        publish(target, events, 3)
    monkeypatch.undo()
    publish(target, events, 3)
    assert rows(properties, "metadata.order", "true") == [(number * 1000,) for number in range(1, 7)]


@pytest.mark.parametrize("mode", ["log", "current"])
def test_a_driver_that_was_paused_in_the_middle_of_a_publication_cannot_commit_it_again(
    properties, monkeypatch: pytest.MonkeyPatch, mode: Any
):
    writer = Writer(3)
    first, second = writer.changes(6, truncates=False), writer.changes(6, truncates=False)
    target = target_of(properties, mode)
    publish(target, first, 2)
    original = IcebergTarget._open

    def pause(self: IcebergTarget, *args: Any) -> Any:
        """Return the table, after the new driver has published this epoch and the next one."""
        monkeypatch.setattr(IcebergTarget, "_open", original)
        found = original(self, *args)
        publish(target, second, 3)
        publish(target, writer.changes(6, truncates=False), 5, generation=4)
        return found

    monkeypatch.setattr(IcebergTarget, "_open", pause)
    with pytest.raises(TargetUnavailableError, match="another writer"):
        publish(target, second, 3)
    with pytest.raises(LedgerConflictError):  # the repeat sees that a newer driver has published
        publish(target, second, 3)
    if mode == "log":
        assert rows(properties, "metadata.order", "true") == [(number * 1000,) for number in range(1, 19)]
    else:
        assert rows(properties, "id, name, amount") == [row[:3] for row in writer.current()]


def test_the_ledger_survives_other_writers_and_expired_snapshots(properties):
    target = target_of(properties, "log")
    events = Writer(1).changes(2)
    publish(target, events, 9)
    table = load_catalog("test", **properties).load_table("shop.t")
    table.append(table.scan().to_arrow().slice(0, 0))
    publish(target, events, 9)
    assert len(rows(properties, "op", "true")) == 2
    with pytest.raises(LedgerConflictError):
        publish(target, events, 6, generation=5)


def test_a_copy_of_the_checkpoint_with_the_same_numbers_is_refused_and_not_skipped(properties):
    target = target_of(properties, "log")
    events = Writer(1).changes(2)
    target.publish(epoch(2), batches(events, 2))
    target.publish(epoch(2), batches(events, 2))
    with pytest.raises(LedgerConflictError):
        target.publish(epoch(2, token="00000000000000b"), batches(events, 2))
    assert len(rows(properties, "op", "true")) == 2


@pytest.mark.parametrize("mode", ["log", "current", "history"])
def test_columns_are_added_and_become_wider(properties, mode: Any):
    target = target_of(properties, mode)
    for number, event in enumerate(two_widths(), 2):
        publish(target, [event], number)
    columns = "after.id, after.n, after.extra" if mode == "log" else "id, n, extra"
    assert rows(properties, columns, "true") == [(1, 1, None), (2, 1 << 40, "x")]


@pytest.mark.parametrize("mode", ["log", "current", "history"])
def test_the_policy_stop_writes_nothing_of_the_epoch(properties, mode: Any):
    target = target_of(properties, mode, "stop")
    first, second = two_widths()
    publish(target, [first], 2)
    with pytest.raises(SchemaChangedError, match="extra"):
        publish(target, [second], 3)
    assert rows(properties, "after.id" if mode == "log" else "id", "true") == [(1,)]


@pytest.mark.parametrize("mode", ["log", "current"])
def test_the_policy_ignore_leaves_new_columns_out(properties, mode: Any):
    schema = schema_of({"id": Kind.INT64}, n=Kind.INT32, extra=Kind.STRING)
    target = target_of(properties, mode, "ignore")
    publish(target, [two_widths()[0]], 2)
    publish(target, [event_of(schema, after={"id": 2, "n": 2, "extra": "x"}, timestamp=2 * 10**9)], 3)
    assert rows(properties, "after.n" if mode == "log" else "n", "true") == [(1,), (2,)]
    table = load_catalog("test", **properties).load_table("shop.t")
    assert "extra" not in str(table.schema())


@pytest.mark.parametrize("mode", ["current", "history"])
def test_the_policy_lenient_gives_values_of_another_type_a_column(properties, mode: Any):
    target = target_of(properties, mode, "lenient")
    for number, events in enumerate(other_types(), 2):
        publish(target, events, number)
    where = "not _penstock_deleted" if mode == "current" else "_penstock_valid_to is null"
    assert rows(properties, "id, n, n__string", where) == [(1, None, "seven"), (2, 2, None), (3, 3, None)]


def test_credentials_of_the_catalogue_are_not_shown():
    assert "hunter2" not in repr(IcebergTarget("a.b", "c", "log", "stop", {"token": "hunter2"}))


def test_a_table_needs_a_namespace():
    with pytest.raises(UsageError, match=r"shop\.orders"):
        WriteToIceberg("orders")


def test_tombstones_are_removed_when_they_are_older_than_their_age(properties):
    target = IcebergTarget("shop.t", "test", "current", "evolve", properties, tombstone_seconds=1000)
    publish(target, [deletion(1, 5000), deletion(2, 5995)], 2)
    publish(target, [deletion(3, 6004)], 3)
    assert rows(properties, "id", "_penstock_deleted") == [(1,), (2,), (3,)], "too soon after the last time"
    publish(target, [deletion(4, 6015)], 4)
    assert rows(properties, "id", "_penstock_deleted") == [(2,), (3,), (4,)]


def test_a_catalogue_that_does_not_answer_is_asked_again(properties, tmp_path: Path):
    target = target_of({**properties, "uri": f"{properties['uri']}?timeout=0"}, "log")
    publish(target, Writer(1).changes(1), 2)
    with contextlib.closing(sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)) as other:
        other.execute("begin exclusive")
        with pytest.raises(TargetUnavailableError, match="locked"):
            publish(target, Writer(1).changes(2), 3)
    publish(target, Writer(1).changes(2), 3)
    assert len(rows(properties, "op", "true")) == 3


def test_only_the_tasks_of_a_log_need_the_whole_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"type": "sql", "uri": "sqlite:///catalog.db?timeout=1", "warehouse": "warehouse"}

    def written(mode: Any, properties: Any) -> Any:
        return WriteToIceberg("shop.t", catalog_properties=properties, mode=mode)._write._target.properties  # type: ignore[attr-defined]

    whole = {
        **given,
        "uri": f"sqlite:///{tmp_path}/catalog.db?timeout=1",
        "warehouse": f"{tmp_path}/warehouse",
    }
    assert written("log", given) == whole
    assert written("current", given) == given
    for same in (
        whole,
        {"uri": "https://catalog.example.com", "warehouse": "s3://lake"},
        {"uri": "sqlite:///:memory:"},
    ):
        assert written("log", same) == same
