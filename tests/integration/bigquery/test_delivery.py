"""Deliveries to an emulator of BigQuery: offsets, ledger, streams that end, types, new columns, the check.

The emulator appends changes as other rows and keeps no primary keys, so it does not prove the merge.
"""

from __future__ import annotations

from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import Any

import pytest
from google.cloud import bigquery
from google.cloud.bigquery_storage_v1 import types

from penstock.event import ChangeEvent, Column, ColumnType, Kind, Op, Source, TableSchema, Version
from penstock.event.schema_policies import EVOLVE
from penstock.io.bigquery.clients import write_client
from penstock.io.bigquery.errors import BigQueryTargetError
from penstock.io.bigquery.target import BigQueryTarget
from penstock.io.bigquery.warehouse import BigQueryWarehouse
from penstock.io.bigquery.write import connector_of
from penstock.io.staging.delivery import Delivery, TargetUnavailableError
from penstock.io.staging.send import SendBatchesFn
from penstock_emulators.bigquery import BigQueryEmulator
from tests.integration.bigquery.conftest import Dataset
from tests.support.changing_table import ChangingTable

pytestmark = [pytest.mark.bigquery, pytest.mark.long(seconds=5)]

BATCH = "SELECT batch_epoch, batch_index, event_id FROM {d}.orders ORDER BY batch_epoch, batch_index"


def events_of(count: int) -> list[ChangeEvent]:
    table = ChangingTable(1)
    while len(table.events) < count:
        table.statement()
    return table.events[:count]


def expected(*batches: list[ChangeEvent]) -> list[tuple[Any, ...]]:
    return [
        (epoch, index, event.id)
        for epoch, batch in enumerate(batches, 1)
        for index, event in enumerate(batch)
    ]


def test_each_event_is_in_the_log_once_whatever_was_lost_between_two_requests(log: Dataset) -> None:
    connector_of(log.target).check()
    events = events_of(20)
    log.deliver(events[:10], 1)
    log.deliver(events[:10], 1)  # an answer was lost: the ledger has the batch
    log.deliver(events[10:], 2)
    # The process died after the rows and before the ledger.
    log.query("DELETE FROM {d}.penstock_ledger WHERE epoch = 2")
    log.deliver(events[10:], 2)
    assert log.query(BATCH) == expected(events[:10], events[10:])
    assert log.query("SELECT epoch, next_offset FROM {d}.penstock_ledger ORDER BY epoch") == [
        (1, 10),
        (2, 20),
    ]


def test_a_stream_that_was_finalized_gets_one_successor(log: Dataset) -> None:
    events = events_of(20)
    log.deliver(events[:10], 1)
    ((stream,),) = log.query("SELECT stream FROM {d}.penstock_streams WHERE chosen")
    write_client(log.target).finalize_write_stream(types.FinalizeWriteStreamRequest(name=stream))
    log.deliver(events[10:], 2)
    log.query("DELETE FROM {d}.penstock_ledger WHERE epoch = 2")
    log.deliver(events[10:], 2)
    assert log.query(BATCH) == expected(events[:10], events[10:])
    chain = log.query("SELECT previous, stream FROM {d}.penstock_streams WHERE chosen ORDER BY epoch")
    assert [previous for previous, _ in chain] == ["", stream]


TYPES = (
    ("k", ColumnType(Kind.STRING), "é", "é"),
    ("i", ColumnType(Kind.INT64), -(2**63), -(2**63)),
    ("n", ColumnType(Kind.DECIMAL, precision=38, scale=9), Decimal("-1.000000001"), Decimal("-1.000000001")),
    ("b", ColumnType(Kind.BYTES), b"\0\xff", b"\0\xff"),
    ("f", ColumnType(Kind.FLOAT64), 0.1, 0.1),
    ("o", ColumnType(Kind.BOOL), True, True),
    ("d", ColumnType(Kind.DATE), 19_000, date(2022, 1, 8)),
    ("t", ColumnType(Kind.TIME), 3_600_000_001_999, time(1, 0, 0, 1)),
    (
        "ts",
        ColumnType(Kind.TIMESTAMP),
        1_600_000_000_000_001_999,
        datetime(2020, 9, 13, 12, 26, 40, 1, tzinfo=timezone.utc),
    ),
    (
        "l",
        ColumnType(Kind.LOCAL_TIMESTAMP),
        1_600_000_000_000_001_000,
        datetime(2020, 9, 13, 12, 26, 40, 1),
    ),
    ("a", ColumnType(Kind.ARRAY, element=ColumnType(Kind.INT64)), [1, 2], [1, 2]),
    ("j", ColumnType(Kind.JSON), '{"x": [1, null]}', {"x": [1, None]}),
)


def typed_event(number: int, extra: tuple[Column, ...] = ()) -> ChangeEvent:
    columns = [Column(name, type_, key_position=1 if name == "k" else None) for name, type_, _, _ in TYPES]
    row = {name: value for name, _, value, _ in TYPES} | {column.name: 7 for column in extra}
    source = Source("postgresql", "s", "shop", "public", "types")
    schema = TableSchema((*columns, *extra))
    return ChangeEvent(source, Op.CREATE, 0, {"k": "é"}, None, row, Version(number), schema)


def test_values_of_each_type_are_read_back_and_nulls_stay_nulls(current: Dataset) -> None:
    connector_of(current.target).check()
    deletion = ChangeEvent(
        typed_event(2).source, Op.DELETE, 0, {"k": "é"}, None, None, Version(2), typed_event(2).schema
    )
    current.deliver([typed_event(1), deletion], 1)
    names = ", ".join(name for name, *_ in TYPES)
    whole, empty = current.query(f"SELECT {names} FROM {{d}}.types ORDER BY i IS NULL")
    assert whole == tuple(value for *_, value in TYPES)
    assert empty == tuple("é" if name == "k" else [] if name == "a" else None for name, *_ in TYPES)


def test_a_new_column_is_added_to_the_table(current: Dataset) -> None:
    column = Column("added", ColumnType(Kind.INT64))
    current.deliver([typed_event(1)], 1)
    # The emulator adds the column, and its Write API does not learn of it. So no row is sent.
    BigQueryWarehouse(current.target).replica("types", typed_event(2, (column,)).schema, EVOLVE)
    assert current.query("SELECT added FROM {d}.types") == [(None,)]


def test_the_check_names_a_missing_dataset(emulator: BigQueryEmulator) -> None:
    with pytest.raises(BigQueryTargetError, match="bq mk"):
        connector_of(Dataset(emulator).target).check()


def test_a_service_that_does_not_answer_is_an_outage() -> None:
    target = BigQueryTarget("p", "d", endpoint="http://localhost:1", write_endpoint="localhost:1")
    sender = connector_of(target).open(skip_refused=False)
    with pytest.raises(TargetUnavailableError):
        sender.send(Delivery("sink", "job", 0, 1, 1, 1), events_of(1))
    sender.close()


def test_the_time_until_which_a_log_is_complete_moves_on_and_never_back(emulator: BigQueryEmulator) -> None:
    log = Dataset(emulator, mark_complete=True).create()

    def mark(record: int, until_us: int, sink: str = "one") -> None:
        SendBatchesFn(connector_of(log.target), sink, None).mark_complete("job", record, until_us)

    noon_us = 1_769_860_800_000_000
    mark(10, noon_us)
    # A driver that was paused wakes up.
    mark(9, noon_us - 1)
    mark(10, noon_us + 1, "two")
    mark(11, noon_us + 2, "two")
    query = "SELECT sink, UNIX_MICROS(complete_until) FROM {d}.penstock_complete ORDER BY sink"
    assert log.query(query) == [("one", noon_us), ("two", noon_us + 2)]
    assert SendBatchesFn(connector_of(log.target), "one", None).mark_seconds == 60


@pytest.mark.parametrize("staleness", [0, 900])
def test_the_time_of_current_tables_counts_when_no_query_sees_less(
    staleness: int, emulator: BigQueryEmulator
) -> None:
    options = {"mode": "current", "mark_complete": True, "max_staleness_seconds": staleness}
    current = Dataset(emulator, **options).create()

    def mark(record: int, until_us: int) -> None:
        SendBatchesFn(connector_of(current.target), "one", None).mark_complete("job", record, until_us)

    noon_us = 1_769_860_800_000_000
    mark(10, noon_us)
    mark(11, noon_us + 1)
    # A driver that was paused wakes up.
    mark(9, noon_us - 1)
    marks = "{d}.penstock_complete_current"
    newest = f"SELECT UNIX_MICROS(MAX(complete_until)) FROM {marks} WHERE counts_from <= CURRENT_TIMESTAMP()"
    assert current.query(newest) == [(None if staleness else noon_us + 1,)]
    # Times below the one that counts are forgotten.
    assert current.query(f"SELECT COUNT(*) FROM {marks}") == [(3 if staleness else 1,)]
    later = f"SELECT COUNT(*) FROM {marks} WHERE counts_from > TIMESTAMP_ADD(CURRENT_TIMESTAMP(), INTERVAL 800 SECOND)"
    assert current.query(later) == [(3 if staleness else 0,)]


def test_a_table_whose_answers_may_be_older_than_the_times_say_is_refused(
    emulator: BigQueryEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    current = Dataset(emulator, mode="current", mark_complete=True, max_staleness_seconds=60).create()
    # The emulator does not keep the property.
    monkeypatch.setattr(bigquery.Table, "max_staleness", property(lambda _: "0-0 0 0:1:1", lambda *_: None))
    with pytest.raises(
        BigQueryTargetError, match="max_staleness 0-0 0 0:1:1, and max_staleness_seconds is 60"
    ):
        current.deliver([typed_event(1)], 1)
