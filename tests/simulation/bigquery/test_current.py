"""Tables that BigQuery maintains: they equal the source, whatever comes again or late."""

from __future__ import annotations

import random
from dataclasses import replace

import apache_beam as beam
import msgspec
import pytest

from penstock.errors import UsageError
from penstock.event import ColumnType, Kind, Op, TableSchema
from penstock.event.schema_changes import SchemaChangedError
from penstock.io.bigquery import WriteToBigQuery
from penstock.io.bigquery.errors import BigQueryTargetError
from penstock.io.bigquery.replica_sender import ReplicaSender
from penstock.io.bigquery.sequence import sequence_number
from penstock.io.bigquery.target import BigQueryTarget
from penstock.io.postgres import messages as m
from penstock.io.postgres.catalog import describe
from penstock.io.postgres.events import EventConverter
from penstock.io.postgres.record import ChangeKind, LogRecord
from penstock.io.staging.delivery import Delivery, Refusal, RefusalError, TargetUnavailableError
from tests.simulation.bigquery.service import BigQuery, Faults, Process
from tests.support.changing_table import COLUMNS, SCHEMA, ChangingTable

TARGET = BigQueryTarget("p", "d", mode="current")


def sender_of(
    service: BigQuery, *, skip_refused: bool = False, faults: Faults | None = None
) -> ReplicaSender:
    process = Process(service) if faults is None else Process(service, faults)
    return ReplicaSender(TARGET, skip_refused, process, process)


def rows_of(service: BigQuery) -> dict[int, dict[str, int]]:
    rows = service.current("orders", "k")
    return {row["k"]: {name: row[name] for name in COLUMNS} for row in rows}


@pytest.mark.parametrize("seed", range(30))
def test_batches_that_are_lost_repeated_or_late_give_the_rows_of_the_source(seed: int) -> None:
    rng = random.Random(seed)
    table = ChangingTable(seed, partial=False, truncates=False)
    for _ in range(60):
        table.statement()
    batches = [table.events[at : at + 10] for at in range(0, len(table.events), 10)]
    service = BigQuery()
    for epoch, batch in enumerate(batches):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("penstock.io.bigquery.rows.REQUEST_BYTES", rng.choice((200, 10_000)))
            try:
                faults = Faults(rng.randrange(4), rng.choice(("drop", "lose")))
                sender_of(service, faults=faults).send(Delivery("s", "j", 0, 1, 1, epoch), batch)
            except TargetUnavailableError:
                pass
            sender_of(service).send(Delivery("s", "j", 0, 1, 1, epoch), batch)
            late = rng.randrange(epoch + 1)
            sender_of(service).send(Delivery("s", "j", 0, 1, 1, late), batches[late])
    assert rows_of(service) == table.rows


@pytest.mark.parametrize("seed", range(20))
def test_a_query_that_begins_after_a_time_counts_sees_every_change_before_it(seed: int) -> None:
    rng = random.Random(seed)
    table, service, records, seen = (
        ChangingTable(seed, partial=False, truncates=False),
        BigQuery(),
        [(1, 0)],
        0,
    )
    for epoch in range(2, 40):
        begin = len(table.events)
        table.statement()
        # The number of the first event that is not sent stands for the time.
        sender_of(service).send(Delivery("s", "j", 0, 1, 1, epoch), table.events[begin:])
        records.append((epoch, len(table.events)))
        # At times a driver that was paused repeats an old mark.
        record, until_us = records[-1] if rng.random() < 0.7 else rng.choice(records)
        sender_of(service).mark_complete("j", "s", record, until_us)
        service.now += rng.choice((0, 60, 400, 1000))
        until, before = service.until_us("j", "s"), seen
        seen = until
        assert until >= before
        versions = {row["_CHANGE_SEQUENCE_NUMBER"] for row in service.changes_seen("orders", 900)}
        assert {sequence_number(event.version) for event in table.events[:until]} <= versions
    service.now += 900
    sender_of(service).mark_complete("j", "s", 99, len(table.events))
    assert len(service.marks) == 2
    service.now += 900
    assert service.until_us("j", "s") == len(table.events)


def test_a_row_with_columns_that_were_not_sent_is_refused_and_the_others_flow() -> None:
    table = ChangingTable(1, partial=False, truncates=False, keys_move=False)
    while not any(event.op is Op.UPDATE for event in table.events):
        table.statement()
    update = next(event for event in table.events if event.op is Op.UPDATE)
    number = table.events.index(update)
    table.events[number] = msgspec.structs.replace(update, after={"k": update.after["k"]})  # type: ignore[index]
    service = BigQuery()
    sent = sender_of(service, skip_refused=True).send(Delivery("s", "j", 0, 1, 1, 1), table.events)
    assert [(each.index, "MaterializeRows" in each.reason) for each in sent.refused] == [(number, True)]
    assert len(service.tables["orders"]) == len(table.events) - 1


def test_a_row_that_bigquery_refuses_is_left_out_of_each_repeat() -> None:
    table = ChangingTable(2, partial=False, truncates=False, keys_move=False)
    for _ in range(8):
        table.statement()
    service = BigQuery(lambda row: row["k"] == table.events[0].key["k"])  # type: ignore[index]
    results = [
        sender_of(service, skip_refused=True).send(Delivery("s", "j", 0, 1, 1, 1), table.events).refused
        for _ in range(2)
    ]
    assert results[0] == results[1] != ()
    with pytest.raises(RefusalError):
        sender_of(service).send(Delivery("s", "j", 0, 1, 1, 1), table.events)


def test_rows_that_the_table_cannot_follow_are_refused_with_try_evolve() -> None:
    table = ChangingTable(2, partial=False, truncates=False, keys_move=False)
    for _ in range(8):
        table.statement()
    key, a, *others = SCHEMA.columns
    number = next(at for at, each in enumerate(table.events) if at > 2 and each.op is not Op.DELETE)
    text = msgspec.structs.replace(a, type=ColumnType(Kind.STRING))
    unlike = msgspec.structs.replace(
        table.events[number],
        schema=TableSchema((key, text, *others)),
        after={**(table.events[number].after or {}), "a": "x"},
    )
    events = [*table.events[1:number], unlike, *table.events[number + 1 :]]
    delivery, service = Delivery("s", "j", 0, 1, 1, 1), BigQuery()

    def send(policy: str) -> tuple[Refusal, ...]:
        process = Process(service)
        target = replace(TARGET, schema_changes=policy)
        return ReplicaSender(target, True, process, process).send(delivery, events).refused

    sender_of(service).send(delivery, table.events[:1])
    for _ in range(2):
        (refusal,) = send("try_evolve")
        assert (refusal.index, "column a of table orders changed" in refusal.reason) == (number - 1, True)
    written = {row["_CHANGE_SEQUENCE_NUMBER"] for row in service.tables["orders"]}
    assert len(written) == len(events)
    with pytest.raises(SchemaChangedError):
        send("evolve")


def test_try_evolve_needs_an_error_output() -> None:
    sink = WriteToBigQuery(project="p", dataset="d", mode="current", schema_changes="try_evolve")
    with pytest.raises(UsageError, match="try_evolve needs an error output"):
        beam.Pipeline() | beam.Create([]) | sink


def test_a_truncate_is_refused_with_the_fix() -> None:
    table = ChangingTable(3)
    table._emit(Op.TRUNCATE, None, None, None)
    sent = sender_of(BigQuery(), skip_refused=True).send(Delivery("s", "j", 0, 1, 1, 1), table.events)
    assert "mode='log'" in sent.refused[0].reason


def test_two_tables_of_the_source_in_one_table_are_an_error() -> None:
    table = ChangingTable(4, partial=False, truncates=False)
    table.statement()
    event = table.events[0]
    other = msgspec.structs.replace(event, source=msgspec.structs.replace(event.source, schema="archive"))
    with pytest.raises(BigQueryTargetError, match="one table of the target"):
        sender_of(BigQuery()).send(Delivery("s", "j", 0, 1, 1, 1), [event, other])


def test_a_key_that_bigquery_does_not_take_is_an_error() -> None:
    table = ChangingTable(5, partial=False, truncates=False)
    table.statement()
    event = table.events[0]
    key, *others = event.schema.columns
    as_float = msgspec.structs.replace(key, type=msgspec.structs.replace(key.type, kind="FLOAT64"))
    changed = msgspec.structs.replace(event, schema=TableSchema((as_float, *others)))
    with pytest.raises(BigQueryTargetError, match="primary key"):
        sender_of(BigQuery()).send(Delivery("s", "j", 0, 1, 1, 1), [changed])


def test_a_row_is_written_and_deleted_under_one_key_whatever_text_the_source_has_for_it() -> None:
    number = ColumnType(Kind.DECIMAL, "numeric")
    table = m.Relation(1, "public", "orders", "f", (m.RelationColumn("k", 1700, -1, True),))
    described, convert = describe(table, [("k", True, 1, None)], {}), EventConverter()
    insert = LogRecord(ChangeKind.INSERT, 1, None, 1, 1, True, described, ("2.50",))
    delete = LogRecord(ChangeKind.DELETE, 2, None, 1, 2, True, described, None, ("2.500",), True)
    events = [event for record in (insert, delete) for event in convert(record)]
    assert events[0].schema.columns[0].type == number
    service = BigQuery()
    sender_of(service).send(Delivery("s", "j", 0, 1, 1, 1), events)
    assert service.current("orders", "k") == []
    assert len(service.tables["orders"]) == 2
