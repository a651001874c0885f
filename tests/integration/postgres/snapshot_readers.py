"""Readers of snapshots that signals ask for, and what they have read."""

from __future__ import annotations

import json
from typing import Any

from penstock.io.change_streams.incremental.notifications import NotificationRecord
from penstock.io.postgres.coder import LogRecordCoder
from penstock.io.postgres.events import EventConverter
from penstock.io.postgres.record import ChangeKind
from penstock.transforms.formats.debezium import DebeziumFormat
from tests.integration.postgres.conftest import Database
from tests.support.epochs import Epochs
from tests.support.waiting import wait_until

SIGNALS = "create table signals (id text primary key, type text, data text)"


def with_notifications(transform: Any) -> Any:
    return transform.with_notifications(None)


def signal(database: Database, type_: str = "execute-snapshot", id_: str = "1", **data: Any) -> None:
    """Insert a signal; names of fields have underscores for hyphens."""
    fields = {name.replace("_", "-"): value for name, value in data.items()}
    database.session.execute("insert into signals values (%s, %s, %s)", (id_, type_, json.dumps(fields)))


class Snapshots:
    """A reader in short epochs, with the rows and reports that it has emitted."""

    def __init__(self, database: Database, **options: Any) -> None:
        self.database = database
        given = {"signal_table": "public.signals", "heartbeat_seconds": 0.1, **options}
        self.epochs = Epochs(with_notifications(database.source(**given)))

    @property
    def progress(self) -> Any:
        ((frontier, _),) = self.epochs.residuals
        return frontier.snapshots[0]

    @property
    def records(self) -> list[Any]:
        return [each for each in self.epochs.committed if not isinstance(each, NotificationRecord)]

    @property
    def reports(self) -> list[dict[str, Any]]:
        return [each.document for each in self.epochs.committed if isinstance(each, NotificationRecord)]

    def types(self) -> list[str]:
        return [report["type"] for report in self.reports if report["type"] != "IN_PROGRESS"]

    def statuses(self) -> dict[str, str]:
        """Return how the scan of each table ended."""
        ended = [each["additional_data"] for each in self.reports if each["type"] == "TABLE_SCAN_COMPLETED"]
        return {each["scanned_collection"]: each["status"] for each in ended}

    def run_until(self, report: str, seconds: float = 0.15) -> None:
        wait_until(lambda: self.epochs.run(seconds) is None or report in self.types(), f"no report {report}")

    def run_to_now(self) -> None:
        """Run until everything that is committed now was read and no snapshot remains."""
        self.epochs.run_until(self.database.clock())
        wait_until(
            lambda: not self.progress.snapshots or self.epochs.run(0.15) is None,
            "the snapshot does not end",
        )

    def reads(self, table: str = "") -> list[tuple[Any, ...]]:
        found = [record for record in self.records if record.kind is ChangeKind.READ]
        return [record.new for record in found if not table or record.table.name == table]

    def replayed(self, table: str) -> dict[Any, dict[str, Any]]:
        """Apply all records of a table in their order."""
        convert, rows = EventConverter(), {}
        for record in self.records:
            if record.table is None or record.table.name != table:
                continue
            (event,) = convert(record)
            if record.kind is ChangeKind.TRUNCATE:
                rows = {}
                continue
            key = tuple(event.key.values())
            if record.kind is ChangeKind.DELETE:
                rows.pop(key, None)
                continue
            old = tuple((event.before or event.key).get(name, event.key[name]) for name in event.key)
            before = rows.pop(old, {}) if record.kind is ChangeKind.UPDATE else {}
            rows[key] = {**before, **event.after}
        return rows


def contents(database: Database, table: str, key: str = "id") -> dict[Any, dict[str, Any]]:
    """Return the rows of a table by key, as the reader gives them."""
    cursor = database.session.execute(f"select * from {table}")
    names = [column.name for column in cursor.description]
    rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return {tuple(row[name] for name in key.split(",")): row for row in rows}


def snapshot_flags(reader: Snapshots) -> set[str]:
    """Return `source.snapshot` of the rows of a snapshot in Debezium's records."""
    convert, format = EventConverter(), DebeziumFormat("shop")
    rows = [record for record in reader.records if record.kind is ChangeKind.READ]
    decode = LogRecordCoder().decode
    values = [
        format(event)[0].value for row in rows for event in convert(decode(LogRecordCoder().encode(row)))
    ]
    return {json.loads(value or b"")["source"]["snapshot"] for value in values}


def fill(database: Database) -> Database:
    """Create a table of signals and one with 25 rows, and publish both."""
    database.execute(
        SIGNALS,
        "create table t (id int primary key, v text)",
        "insert into t select i, 'v' || i from generate_series(1, 25) i",
    )
    database.publish()
    return database
