"""Snapshots of rows beside a change stream: they converge to the table."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.event import Op
from penstock.io.bigtable.events import EventConverter
from penstock.io.bigtable.record import ChangeStreamMutation, MutationType
from penstock.io.change_streams.incremental.notifications import NotificationRecord
from penstock.io.change_streams.incremental.signal_folder import write_signal
from tests.integration.bigtable.conftest import Table
from tests.integration.bigtable.replay import replayed
from tests.integration.emulators.bigtable.client import delete_column, delete_family, delete_row, set_cell
from tests.support.epochs import Epochs
from tests.support.waiting import wait_until
from tests.support.writers import WriterThreads

pytestmark = [pytest.mark.slow, pytest.mark.emulator]
ROWS = 60


class CellWriters(WriterThreads):
    """Set and delete cells; each kind of change is idempotent."""

    def __init__(self, table: Table) -> None:
        super().__init__(2, 0.005)
        self._table = table

    def write(self, rng: random.Random, seed: int, number: int) -> None:
        cell = ("f", rng.choice((b"a", b"b")))
        changes = [set_cell(*cell, b"%d/%d" % (seed, number), 1000 * rng.randrange(1, 4))]
        if rng.random() < 0.3:
            changes = [rng.choice((delete_row(), delete_family("f"), delete_column(*cell)))]
        self._table.client.write(b"row%03d" % rng.randrange(ROWS), *changes)


@pytest.fixture
def filled(emulator: Any) -> Table:
    table = Table(emulator)
    for number in range(ROWS):
        cells = set_cell("f", b"a", b"first", 1000), set_cell("g", b"c", b"kept", 1000)
        table.client.write(b"row%03d" % number, *cells)
    return table


def records(driver: Epochs) -> list[ChangeStreamMutation]:
    return [each for each in driver.committed if isinstance(each, ChangeStreamMutation)]


def completed(driver: Epochs) -> int:
    return sum(
        isinstance(each, NotificationRecord) and each.document["type"] == "COMPLETED"
        for each in driver.committed
    )


def test_rows_and_changes_converge_to_the_table(filled: Table, tmp_path: Path) -> None:
    transform = filled.reading(snapshot="initial", signal_folder=str(tmp_path), chunk_rows=9)
    driver = Epochs(transform.with_notifications(lambda reports: reports), 2)
    with CellWriters(filled):
        epoch = 0
        while completed(driver) < 1:
            driver.run(0.1, crash=epoch % 5 == 3, late=True)
            epoch += 1
            assert epoch < 600, "the snapshot does not end"
        write_signal(tmp_path, "1", "execute-snapshot", {"data-collections": [filled.id]}, 1)
        wait_until(
            lambda: driver.run(0.1, late=True) is not None and completed(driver) == 2, "no second snapshot"
        )
    end = time.time_ns()
    wait_until(
        lambda: driver.run(0.1, late=True) is not None and driver.watermark.micros > end // 1000 + 10,
        "no end",
    )
    assert replayed(records(driver)) == filled.cells()
    rows = [record for record in records(driver) if record.type is MutationType.READ]
    assert len(rows) > ROWS
    assert EventConverter()(rows[0])[0].op is Op.READ


def test_only_rows_with_chosen_keys_are_read(filled: Table, tmp_path: Path) -> None:
    driver = Epochs(
        filled.reading(signal_folder=str(tmp_path), chunk_rows=3).with_notifications(lambda each: each)
    )
    condition = [{"data-collection": filled.id, "filter": "row00[0-4]"}]
    data = {"data-collections": [filled.id, "other"], "additional-conditions": condition}
    write_signal(tmp_path, "1", "execute-snapshot", data, 1)
    wait_until(lambda: driver.run(0.1, late=True) is not None and completed(driver) == 1, "no snapshot")
    rows = [record for record in records(driver) if record.type is MutationType.READ]
    assert [row.row_key for row in rows] == [b"row%03d" % number for number in range(5)]
    reports = [
        each.document["additional_data"] for each in driver.committed if isinstance(each, NotificationRecord)
    ]
    assert [each["scanned_collection"] for each in reports if each.get("status") == "UNKNOWN_SCHEMA"] == [
        "other"
    ]


def test_a_new_snapshot_replaces_changes_that_were_lost(filled: Table) -> None:
    transform = filled.reading(snapshot="when_needed", idle_stream_seconds=0)
    driver = Epochs(transform.with_notifications(lambda reports: reports), 2)
    wait_until(
        lambda: driver.run(0.1, late=True) is not None and completed(driver) == 1, "no initial snapshot"
    )
    filled.client.write(b"row001", set_cell("f", b"a", b"lost", 2000))
    filled.control.expire(filled.name)
    wait_until(lambda: driver.run(0.1, late=True) is not None and completed(driver) == 2, "no new snapshot")
    filled.client.write(b"row002", set_cell("f", b"a", b"after", 2000))
    wait_until(
        lambda: driver.run(0.1, late=True) is not None and replayed(records(driver)) == filled.cells(),
        "the rows do not converge",
    )
