"""The merge of rows with the log: which changes have all columns."""

from __future__ import annotations

import queue
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from penstock.io.change_streams.flat import FlatPosition
from penstock.io.change_streams.incremental.engine import Chunk
from penstock.io.change_streams.incremental.options import SnapshotOptions, initial_request
from penstock.io.change_streams.incremental.progress import ScanResult, Snapshot, SnapshotProgress
from penstock.io.change_streams.incremental.signals import ExecuteSnapshot
from penstock.io.change_streams.incremental.worker import Resolved
from penstock.io.postgres.incremental.chunks import parse_snapshot
from penstock.io.postgres.incremental.merge import _PRUNE_FROM, SnapshotMerge
from penstock.io.postgres.log_steps import LogSteps
from penstock.io.postgres.position import Position, ReadView
from penstock.io.postgres.record import UNCHANGED, ChangeKind, LogRecord, LogTransaction
from penstock.io.postgres.transactions import TransactionEnd
from tests.golden.postgres.history import as_logged
from tests.unit.postgres.test_snapshot_chunks import statement, table

TABLE = table("a")


INITIAL_SNAPSHOT = ReadView("5:9:6", 100, 50, "exported", 1)
"""It contains the transactions below 9 except 6, all of which were committed up to 50."""


class Held:
    """A server that holds one snapshot, and may lose it."""

    def __init__(self, name: str = "", *, lost: bool = False) -> None:
        self.name, self._lost = name, lost
        self.released = False
        self.is_held = True

    def begin(self, stopped: Any) -> ReadView:
        self.name = INITIAL_SNAPSHOT.name
        return INITIAL_SNAPSHOT

    def resume(self, initial: ReadView) -> bool:
        self.name = "" if self._lost else initial.name
        return not self._lost

    def keep(self) -> None: ...

    def release(self) -> None:
        self.name, self.released, self.is_held = "", True, False


def merging(
    progress: SnapshotProgress, held: Any = None, initial: ReadView | None = None
) -> tuple[SnapshotMerge, Any]:
    """Return a merge and its worker, whose `asked` has the requests."""
    asked: list[Any] = []
    worker: Any = SimpleNamespace(answers=queue.SimpleQueue(), ask=asked.append, asked=asked)
    merge = SnapshotMerge(
        worker,
        SnapshotOptions(),
        "",
        progress,
        (),
        held or Held(),
        initial,
        notifications=False,
        dead_letters=False,
        visible=lambda: None,
        blocks=lambda names: tuple((name, 3, True) for name in names),
        close=lambda: None,
    )
    return merge, worker


def emitted_before(change: LogRecord) -> list[Any]:
    """Return what is emitted before a change of a row that waits."""
    progress, _ = SnapshotProgress().receive(ExecuteSnapshot("1", ("public.t",)))
    progress, _ = progress.resolved("1", ["public.t"])
    merge, worker = merging(progress)
    asked = worker.asked
    merge.advance(10, 10)
    rows = [statement(TABLE).chunk_row(("1", "b", "large"))]
    worker.answers.put(Chunk(asked[0], rows, lambda transaction: False, 100, False))
    merge.advance(11, 11)
    return merge.note(change, 12, 12) or []


def update(new: tuple[Any, ...], **more: Any) -> LogRecord:
    return LogRecord(ChangeKind.UPDATE, 12, LogTransaction(7, 12, 12), 1, 12, True, TABLE, new, **more)


def test_a_row_precedes_a_change_without_its_large_value():
    (row,) = emitted_before(update(("1", "new", UNCHANGED)))
    assert (row.kind, row.new, row.incremental) == (ChangeKind.READ, ("1", "b", "large"), True)


def test_a_change_with_all_columns_replaces_the_row():
    assert emitted_before(update(("1", "new", "other"))) == []
    full = update(("1", "new", UNCHANGED), old=("1", "b", "large"), old_is_full=True)
    assert emitted_before(full) == []


def test_rows_of_two_chunks_at_one_place_have_numbers_of_their_own():
    """Nothing else tells the rows of a table without a key apart."""
    progress, _ = SnapshotProgress().receive(ExecuteSnapshot("1", ("public.t", "public.u")))
    merge, worker = merging(progress.resolved("1", ["public.t", "public.u"])[0])
    merge.advance(10, 10)
    for request in worker.asked:
        rows = [statement(TABLE).chunk_row(("1", "b", "c"))] * 2
        worker.answers.put(Chunk(request, rows, lambda transaction: True, 11, True))
    added = [record for each in merge.advance(11, 11) for record in each.records]
    assert [record.sequence for record in added] == [1, 2, 3, 4]


INITIAL = SnapshotProgress().with_initial(initial_request())


def change(transaction: int, committed: int) -> LogRecord:
    return LogRecord(
        ChangeKind.INSERT,
        committed,
        LogTransaction(transaction, 60, committed),
        1,
        60,
        True,
        TABLE,
        ("1", "b", "c"),
    )


def test_changes_that_the_rows_of_an_initial_snapshot_contain_are_not_emitted():
    merge, _ = merging(SnapshotProgress(), initial=INITIAL_SNAPSHOT)
    assert merge.note(change(5, 40), 40, 60) is None
    assert merge.note(change(6, 40), 40, 60) == []
    assert merge.note(change(9, 40), 40, 60) == []


def test_a_transaction_id_that_a_server_uses_again_after_a_crash_is_another_transaction():
    merge, _ = merging(SnapshotProgress(), initial=INITIAL_SNAPSHOT)
    assert merge.note(change(5, 51), 51, 60) == []


def test_an_initial_snapshot_that_is_not_finished_stays_the_one_that_has_begun():
    """Another one would contain deletes of rows that were emitted, and drop them."""
    progress = INITIAL.resolved("initial", ["public.t"])[0]
    held = Held()
    held.is_held = False
    merge, _ = merging(progress, held, INITIAL_SNAPSHOT._replace(name=""))
    merge.advance(101, 101)
    assert merge.initial is not None
    again = Held()
    assert not merging(progress, again, merge.initial)[0].begin_scan(lambda: False)
    assert again.name == "", "another snapshot of the database is held"


def test_the_first_snapshot_is_forgotten_where_the_log_has_no_change_that_it_contains():
    merge, _ = merging(SnapshotProgress(), initial=INITIAL_SNAPSHOT._replace(name=""))
    merge.acknowledged(99)
    merge.advance(99, 99)
    assert merge.initial is not None
    merge.advance(100, 100)
    assert merge.initial is None


def test_an_initial_snapshot_that_has_begun_continues_at_the_same_snapshot():
    merge, _ = merging(INITIAL)
    assert merge.begin_scan(lambda: False)
    resumed, _ = merging(INITIAL, initial=merge.initial)
    assert resumed.begin_scan(lambda: False)
    assert resumed.initial == INITIAL_SNAPSHOT


def test_a_snapshot_that_the_server_lost_is_continued_beside_the_log():
    merge, _ = merging(INITIAL, Held(lost=True), INITIAL_SNAPSHOT)
    assert not merge.begin_scan(lambda: False)
    assert merge.initial == INITIAL_SNAPSHOT._replace(name="")
    assert merge.note(change(5, 40), 40, 60) is None, "the rows that were emitted contain it"


def test_the_rows_at_the_first_snapshot_are_planned_and_not_requested():
    merge, worker = merging(INITIAL)
    merge.begin_scan(lambda: False)
    merge.advance(10, 10, at_end=True)
    assert merge.plan() == (), "the tables are not known yet"
    worker.answers.put(Resolved("initial", ["public.t"], {}))
    merge.advance(10, 10, at_end=True)
    assert merge.plan() == (("public.t", 3, True),)
    assert [type(job) for job in worker.asked] == [Snapshot], "a chunk is requested"


def test_a_snapshot_in_chunks_that_an_earlier_version_has_begun_continues_between_the_changes(caplog):
    progress, _ = INITIAL.resolved("initial", ["public.t"])
    merge, worker = merging(progress.advanced("public.t", "5", 5), initial=INITIAL_SNAPSHOT)
    assert not merge.begin_scan(lambda: False)
    assert "an earlier version of Penstock has begun it" in caplog.text
    merge.advance(10, 10)
    assert worker.asked[0].cursor == "5"


def test_tables_that_were_read_in_ranges_are_finished_and_the_others_read_again():
    progress, _ = INITIAL.resolved("initial", ["public.t", "public.u"])
    progress = progress.read_by_scan({"public.t": ScanResult(7), "public.u": ScanResult(2, unread=True)})
    merge, worker = merging(progress, initial=INITIAL_SNAPSHOT._replace(name=""))
    assert not merge.begin_scan(lambda: False)
    merge.advance(10, 10)
    assert [(scan.table, scan.rows) for scan in merge.progress.scans] == [("public.u", 2)]
    assert [(request.table, request.cursor) for request in worker.asked] == [("public.u", "")]


def test_the_server_holds_the_snapshot_until_a_checkpoint_has_its_rows():
    held = Held()
    merge, _ = merging(INITIAL, held)
    merge.begin_scan(lambda: False)
    merge._engine.progress = SnapshotProgress()  # the last row was queued
    merge.advance(10, 10)
    merge.acknowledged(10)
    assert not held.released
    merge.acknowledged(11)
    assert held.released


def test_a_reader_that_begins_after_the_rows_releases_the_snapshot():
    held = Held()
    merge, _ = merging(SnapshotProgress(), held, INITIAL_SNAPSHOT._replace(name=""))
    merge.advance(100, 100)
    assert merge.initial is not None, "another reader could not release it"
    merge.acknowledged(100)
    merge.advance(100, 100)
    assert (held.released, merge.initial) == (True, None)


def log_of(merge: Any) -> LogSteps:
    log = LogSteps("slot", FlatPosition(Position(0, 0, "system"), 0), lambda *_: True, None)
    log.merge = merge
    return log


def transaction_of(size: int, table_: Any = TABLE) -> list[Any]:
    transaction = LogTransaction(7, 100, 100)
    changes = [
        LogRecord(ChangeKind.INSERT, 100, transaction, n, 90 + n, n == size, table_, (str(n),))
        for n in range(1, size + 1)
    ]
    return [(item, 1) for item in [*changes, TransactionEnd(108, 100)]]


def test_records_of_a_transaction_share_steps_while_no_rows_are_read() -> None:
    merge, _ = merging(SnapshotProgress())
    steps, without = log_of(merge).steps(transaction_of(20)), log_of(None).steps(transaction_of(20))
    assert [list(records) for _, records, _ in steps] == [list(records) for _, records, _ in without]
    assert len(steps) == 3
    # The transaction may be invisible to a chunk that is requested later.
    assert [mark.position.recent for _, _, mark in steps] == [(7,)] * 3
    assert [mark.position._replace(recent=()) for _, _, mark in steps] == [
        mark.position for _, _, mark in without
    ]


def test_each_record_is_a_step_of_its_own_while_rows_are_read() -> None:
    progress, _ = SnapshotProgress().receive(ExecuteSnapshot("1", ("public.t",)))
    merge, _ = merging(progress.resolved("1", ["public.t"])[0])
    assert len(log_of(merge).steps(transaction_of(20))) == 21


def logged(records: list[LogRecord]) -> list[Any]:
    (rows,) = as_logged(records)
    return [(rows, rows.size), (TransactionEnd(108, 100), 1)]


def changes_of(size: int, table_: Any = TABLE) -> list[LogRecord]:
    return [item for item, _ in transaction_of(size, table_) if isinstance(item, LogRecord)]


def test_rows_that_are_not_decoded_share_a_step_while_no_rows_are_read() -> None:
    merge, _ = merging(SnapshotProgress())
    steps, without = log_of(merge).steps(logged(changes_of(20))), log_of(None).steps(transaction_of(20))
    assert [len(records) for _, records, _ in steps] == [20, 0]
    assert emitted(steps) == emitted(without)
    assert steps[-1][2].position.recent == (7,)


def test_rows_that_are_not_decoded_are_single_records_while_rows_are_read() -> None:
    progress, _ = SnapshotProgress().receive(ExecuteSnapshot("1", ("public.t",)))
    merge, _ = merging(progress.resolved("1", ["public.t"])[0])
    assert len(log_of(merge).steps(logged(changes_of(20)))) == 21


def small_transactions() -> list[tuple[Any, int]]:
    items: list[tuple[Any, int]] = []
    for number in (1, 2, 3):
        of = LogTransaction(6 + number, 100 * number, 100, previous_end_lsn=100 * number - 92)
        records = changes_of(number)
        items += [(structs.replace(each, transaction=of), 1) for each in records]
        items.append((TransactionEnd(100 * number + 8, 100), 1))
    return items


@pytest.mark.parametrize("reads_rows", [False, True])
def test_each_of_several_transactions_that_are_not_decoded_is_noted(reads_rows: bool) -> None:
    progress, _ = SnapshotProgress().receive(ExecuteSnapshot("1", ("public.t",)))
    progress = progress.resolved("1", ["public.t"])[0] if reads_rows else SnapshotProgress()
    items = small_transactions()
    (rows,) = as_logged([item for item, _ in items if isinstance(item, LogRecord)])
    merges = [merging(progress)[0] for _ in range(2)]
    together = log_of(merges[0]).steps([(rows, rows.size), items[-1]])
    apart = log_of(merges[1]).steps(items)
    assert emitted(together) == emitted(apart)
    assert together[-1][2] == apart[-1][2]
    assert together[-1][2].position.recent == (7, 8, 9)
    read = [mark.position for _, _, mark in together]
    assert all(each.claimed <= 1 + [0, 108, 208, 308].index(each.lsn) for each in read)


def test_transactions_that_are_visible_leave_the_position() -> None:
    merge, _ = merging(SnapshotProgress())
    asked: list[str] = []
    merge._visible = lambda: asked.append("visible") or parse_snapshot("200:200:")  # type: ignore[func-returns-value]
    items = [
        structs.replace(changes_of(1)[0], transaction=LogTransaction(number, 10 * number, 100))
        for number in range(100, 100 + 2 * _PRUNE_FROM)
    ]
    (rows,) = as_logged(items)
    steps = log_of(merge).steps([(rows, rows.size)])
    assert emitted(steps) == items
    # Those from 200 on may be invisible to a chunk.
    assert steps[-1][2].position.recent == tuple(range(200, 100 + 2 * _PRUNE_FROM))
    assert len(asked) == 1


def test_a_signal_among_rows_that_are_not_decoded_is_noted() -> None:
    other = structs.replace(TABLE, oid=TABLE.oid + 1, name="signals")
    records = changes_of(20)
    signal = ("1", "log", '{"message": "seen"}')
    records[15] = structs.replace(records[15], table=other, new=signal)
    merge, _ = merging(SnapshotProgress())
    merge._options = SnapshotOptions(signal_table="public.signals")
    noted: list[str] = []
    note = merge.note
    merge.note = lambda record, *where: noted.append(str(record.table)) or note(record, *where)  # type: ignore[method-assign, func-returns-value]
    log_of(merge).steps(logged(records))
    assert "public.signals" in noted


def emitted(steps: Any) -> list[Any]:
    return [record for _, records, _ in steps for record in records]
