"""`WriteToSpanner` by deliveries to Google's emulator: the replica, its ledger, large batches and refused rows."""

from __future__ import annotations

import itertools
import random
from typing import Any

import msgspec
import pytest
from google.cloud.spanner_v1 import SpannerClient
from google.cloud.spanner_v1.database import Database

from penstock.attempt import DriverToken
from penstock.event import ChangeEvent, Column, ColumnType, Kind, Op, Source, TableSchema, Version
from penstock.io.spanner import ReadFromSpannerChangeStream
from penstock.io.spanner.sink import sender as sender_module
from penstock.io.spanner.sink.options import TRANSACTION_TAG
from penstock.io.spanner.sink.target import SpannerTarget
from penstock.io.spanner.sink.write import connector_of
from penstock.io.staging.delivery import (
    Delivery,
    LedgerConflictError,
    Refusal,
    RefusalError,
    Sent,
    TargetUnavailableError,
)
from penstock.io.staging.send import SendBatchesFn
from penstock_emulators.spanner import SpannerEmulator
from tests.support.changing_table import SCHEMA, changed_table

pytestmark = [pytest.mark.emulator, pytest.mark.slow]

DDL = [
    "CREATE TABLE orders (k INT64 NOT NULL, a INT64, b INT64, c INT64, t STRING(5)) PRIMARY KEY (k)",
    "CREATE TABLE pairs (one INT64 NOT NULL, two INT64 NOT NULL) PRIMARY KEY (two, one)",
]
SOURCE_WITHOUT_SCHEMA = Source("spanner", "srv", "shop", "", "orders")
_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def emulator() -> Any:
    with SpannerEmulator.start() as running:
        yield running


class Target:
    """A database with the table of the source; each delivery goes through a new sender."""

    def __init__(self, emulator: SpannerEmulator, *, check: bool = True, mark_complete: bool = False) -> None:
        name = f"copy{next(_NUMBERS)}"
        emulator.create_database("penstock-test", "penstock-test", name, DDL)
        self.target = SpannerTarget(
            "penstock-test", "penstock-test", name, mark_complete=mark_complete, emulator_host=emulator.host
        )
        if check:
            connector_of(self.target).check()
        self.epoch = 0

    def deliver(self, events: list[ChangeEvent], *, epoch: int | None = None, **options: Any) -> Sent:
        self.epoch = self.epoch + 1 if epoch is None else epoch
        open_sender = connector_of(self.target).open(skip_refused=options.get("skip_refused", False))
        try:
            generation, drivers = options.get("generation", 1), options.get("drivers", ())
            delivery = Delivery("sink", "job", 0, 1, generation, self.epoch, drivers)
            return open_sender.send(delivery, events)
        finally:
            open_sender.close()

    def rows(self, query: str = "SELECT k, a, b, c FROM orders ORDER BY k") -> list[tuple[Any, ...]]:
        open_sender = connector_of(self.target).open(skip_refused=False)
        with open_sender._database.snapshot() as snapshot:
            return [tuple(row) for row in snapshot.execute_sql(query)]


@pytest.fixture
def target(emulator: SpannerEmulator) -> Target:
    return Target(emulator)


def event(number: int, op: Op, key: int, after: dict[str, Any] | None, **options: Any) -> ChangeEvent:
    schema = options.get("schema", SCHEMA)
    new = None if after is None else {"k": key, **after}
    return ChangeEvent(SOURCE_WITHOUT_SCHEMA, op, number, {"k": key}, None, new, Version(number), schema)


def of_spanner(found: list[ChangeEvent]) -> list[ChangeEvent]:
    return [msgspec.structs.replace(each, source=SOURCE_WITHOUT_SCHEMA) for each in found]


def test_replica_equals_the_source_after_every_delivery_and_its_repeats(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Four events fill a transaction, so that most batches are written in several.
    monkeypatch.setattr(sender_module, "MAX_CELLS", 32)
    rng = random.Random(5)
    table = changed_table(5, 80, keys_move=False, truncates=False)
    found, place, done = of_spanner(table.events), 0, []
    while place < len(found):
        batch = found[place : place + rng.randrange(1, 12)]
        place += len(batch)
        target.deliver(batch)
        done.append((target.epoch, batch))
        newest = target.epoch
        epoch, old = rng.choice(done)
        target.deliver(old, epoch=epoch)
        target.epoch = newest
        expected = [(key, *row.values()) for key, row in sorted(table.states[place - 1].items())]
        assert target.rows() == expected


def test_batch_that_broke_off_between_two_transactions_is_completed_by_its_repeat(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender_module, "MAX_CELLS", 8)
    batch = [event(n, Op.CREATE, n, {"a": n, "b": n, "c": n}) for n in range(1, 6)]
    commit = sender_module.SpannerSender._commit
    calls = itertools.count()

    def breaks_off(*arguments: Any) -> None:
        if next(calls) == 3:
            raise TargetUnavailableError("gone")
        commit(*arguments)

    monkeypatch.setattr(sender_module.SpannerSender, "_commit", breaks_off)
    with pytest.raises(TargetUnavailableError):
        target.deliver(batch)
    assert len(target.rows()) == 3
    target.deliver(batch, epoch=1)
    assert target.rows() == [(n, n, n, n) for n in range(1, 6)]


def test_older_events_of_another_epoch_change_no_newer_row(target: Target) -> None:
    target.deliver([event(5, Op.CREATE, 1, {"a": 5, "b": 5, "c": 5}), event(6, Op.DELETE, 2, None)])
    target.deliver([event(4, Op.READ, 1, {"a": 4, "b": 4, "c": 4}), event(3, Op.CREATE, 2, {"a": 3})])
    assert target.rows() == [(1, 5, 5, 5)]


def test_first_batch_creates_the_ledger_if_there_was_no_check(emulator: SpannerEmulator) -> None:
    target = Target(emulator, check=False)
    target.deliver([event(1, Op.CREATE, 1, {"a": 1, "b": 1, "c": 1})])
    assert target.rows() == [(1, 1, 1, 1)]


def test_rows_and_their_entry_in_the_ledger_are_one_transaction(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, calls = Database.run_in_transaction, itertools.count()

    def first_only(*arguments: Any, **options: Any) -> Any:
        if next(calls):
            raise TargetUnavailableError("gone")
        return run(*arguments, **options)

    monkeypatch.setattr(Database, "run_in_transaction", first_only)
    target.deliver([event(1, Op.CREATE, 1, {"a": 1, "b": 1, "c": 1})])
    assert target.rows() == [(1, 1, 1, 1)]


def test_every_commit_has_the_tag_by_which_a_reader_leaves_it_out(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise two replicas would send each change back and forth."""
    tags: list[str] = []
    commit = SpannerClient.commit

    def spy(self: Any, request: Any = None, **options: Any) -> Any:
        tags.append(request.request_options.transaction_tag)
        return commit(self, request=request, **options)

    monkeypatch.setattr(SpannerClient, "commit", spy)
    target.deliver([event(1, Op.CREATE, 1, {"a": 1, "b": 1, "c": 1})])
    target.deliver([event(2, Op.DELETE, 1, None)])
    assert tags == [TRANSACTION_TAG] * 2
    source = ReadFromSpannerChangeStream(
        project="p", instance="i", database="d", change_stream="s", exclude_transaction_tags=[TRANSACTION_TAG]
    )
    assert source.selection.excluded_tags == {TRANSACTION_TAG}


def test_change_of_a_key_moves_a_whole_row_and_refuses_a_partial_one(target: Target) -> None:
    values = {"a": 1, "b": 1, "c": 1, "t": None}
    schema = TableSchema((*SCHEMA.columns, Column("t", ColumnType(Kind.STRING))))
    target.deliver(
        [event(1, Op.CREATE, 1, values, schema=schema), event(2, Op.CREATE, 2, values, schema=schema)]
    )
    moved = event(3, Op.UPDATE, 3, {**values, "a": 3}, schema=schema)
    partial = event(4, Op.UPDATE, 4, {"a": 4}, schema=schema)
    sent = target.deliver(
        [msgspec.structs.replace(moved, before={"k": 1}), msgspec.structs.replace(partial, before={"k": 2})],
        skip_refused=True,
    )
    assert [each.index for each in sent.refused] == [1]
    assert target.rows() == [(2, 1, 1, 1), (3, 3, 1, 1)]


def test_driver_of_an_older_generation_writes_nothing(target: Target) -> None:
    target.deliver([event(1, Op.CREATE, 1, {"a": 1})], epoch=1)
    target.deliver([event(2, Op.UPDATE, 1, {"a": 2})], epoch=2, generation=2)
    for epoch in (1, 3):
        with pytest.raises(LedgerConflictError):
            target.deliver([event(9, Op.UPDATE, 1, {"a": 9})], epoch=epoch)
    assert target.rows() == [(1, 2, None, None)]


def test_a_sender_that_was_overtaken_asks_the_ledger_again_and_writes_nothing(target: Target) -> None:
    first, second = (Delivery("sink", "job", 0, 1, 1, epoch) for epoch in (1, 2))
    batches = [[event(1, Op.CREATE, 1, {"a": 1})], [event(2, Op.UPDATE, 1, {"a": 2})]]
    paused, successor = (connector_of(target.target).open(skip_refused=False) for _ in range(2))
    paused.send(first, batches[0])
    successor.send(first, batches[0])
    successor.send(second, batches[1])
    with pytest.raises(TargetUnavailableError, match="another process writes the same batch"):
        paused.send(second, batches[1])
    for sender in (paused, successor):
        sender.close()
    target.deliver(batches[1], epoch=2)
    assert target.rows() == [(1, 2, None, None)]


def test_copy_of_the_checkpoint_with_the_same_numbers_is_refused_and_not_skipped(target: Target) -> None:
    batch = [event(1, Op.CREATE, 1, {"a": 1})]
    target.deliver(batch, epoch=2, drivers=(DriverToken(1, "a"),))
    target.deliver(batch, epoch=2, drivers=(DriverToken(1, "a"),))
    with pytest.raises(LedgerConflictError):
        target.deliver([event(2, Op.UPDATE, 1, {"a": 2})], epoch=2, drivers=(DriverToken(1, "b"),))
    assert target.rows() == [(1, 1, None, None)]


def test_refused_row_is_reported_again_by_each_repeat_and_the_others_are_written(target: Target) -> None:
    schema = TableSchema((*SCHEMA.columns, Column("t", ColumnType(Kind.STRING))))
    batch = [event(n, Op.CREATE, n, {"t": "x" * (9 if n == 4 else 1)}, schema=schema) for n in range(1, 8)]
    for _ in range(2):
        sent = target.deliver(batch, epoch=1, skip_refused=True)
        assert [each.index for each in sent.refused] == [3]
        assert isinstance(sent.refused[0], Refusal)
    assert [key for key, *_ in target.rows()] == [1, 2, 3, 5, 6, 7]


def pair(number: int, op: Op, key: dict[str, int]) -> ChangeEvent:
    columns = [Column(name, ColumnType(Kind.INT64), False, place) for place, name in enumerate(key, 1)]
    after = None if op is Op.DELETE else key
    source = msgspec.structs.replace(SOURCE_WITHOUT_SCHEMA, table="pairs")
    return ChangeEvent(source, op, number, key, None, after, Version(number), TableSchema(tuple(columns)))


def test_a_row_is_deleted_by_the_key_of_the_target_also_if_the_source_has_another_order(
    target: Target,
) -> None:
    target.deliver([pair(1, Op.CREATE, {"one": 1, "two": 2}), pair(2, Op.CREATE, {"one": 2, "two": 1})])
    target.deliver([pair(3, Op.DELETE, {"one": 1, "two": 2})])
    assert target.rows("SELECT one, two FROM pairs") == [(2, 1)]


def test_a_row_with_another_key_than_the_target_is_refused(target: Target) -> None:
    with pytest.raises(
        RefusalError, match=r"primary key of the target is \(two, one\).*row is \(one, three\)"
    ):
        target.deliver([pair(1, Op.DELETE, {"one": 1, "three": 2})])


@pytest.mark.parametrize("check", [True, False], ids=["checked", "not checked"])
def test_the_time_until_which_the_target_is_complete_moves_on_and_never_back(
    emulator: Any, check: bool
) -> None:
    target = Target(emulator, check=check, mark_complete=True)

    def mark(record: int, until_us: int, sink: str = "one") -> None:
        SendBatchesFn(connector_of(target.target), sink, None).mark_complete("job", record, until_us)

    noon_us = 1_769_860_800_000_000
    mark(10, noon_us)
    # A driver that was paused wakes up.
    mark(9, noon_us - 1)
    mark(10, noon_us + 1, "two")
    mark(11, noon_us + 2, "two")
    found = target.rows("SELECT Sink, UNIX_MICROS(CompleteUntil) FROM PenstockComplete ORDER BY Sink")
    assert found == [("one", noon_us), ("two", noon_us + 2)]


def test_without_the_option_there_is_no_table_of_times(target: Target) -> None:
    SendBatchesFn(connector_of(target.target), "one", None).mark_complete("job", 1, 1)
    query = "SELECT TABLE_NAME FROM INFORMATION_SCHEMA.TABLES WHERE TABLE_NAME = 'PenstockComplete'"
    assert target.rows(query) == []
