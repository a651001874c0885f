"""Every sink that keeps rows by key × every kind of change of a key × values that are not sent × batch borders.

Each sink has the rows of the source after every batch, or it refuses an event. The oracle is
`tests.support.key_histories`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.event import ChangeEvent
from penstock.event.coder import encode_event
from penstock.event.replica import NotReplicableError, encode_version, fold
from penstock.event.sharding import key_bytes, shard_of
from penstock.io.bigquery.replica_sender import ReplicaSender
from penstock.io.bigquery.target import BigQueryTarget
from penstock.io.bigtable.sink.values import row_request
from penstock.io.columnar.replica import events_of_epoch
from penstock.io.columnar.table_rows import StoredRow
from penstock.io.spanner.sink.sender import _write_table
from penstock.io.sql.sender import RowFaultError, batch_rows
from penstock.io.sql.statements import TableName, TargetColumn, TargetTable
from penstock.io.staging.batch import EventBlocks, StagedBatch
from penstock.io.staging.blocks import RecordBlock
from penstock.io.staging.coders import RecordBlockCoder
from penstock.io.staging.delivery import Delivery, RefusalError
from penstock.transforms.materialize_rows import materialize
from tests.simulation.bigquery.service import BigQuery, Process
from tests.support.key_histories import KINDS, LARGE, SCHEMA, KeyHistory, Rows, histories, parts_of
from tests.support.lake_tables import CurrentTable, HistoryTable

DATA = tuple(name for name in SCHEMA.names if name != "id")
WITHOUT_CLEAR = [kind for kind in KINDS if kind != "clear"]
cuts = st.lists(st.integers(1, 12), max_size=12)


def live(rows: Iterable[StoredRow]) -> Rows:
    return {row["id"]: {name: row.get(name) for name in DATA} for row in rows}


def staged(events: Sequence[ChangeEvent], shards: int) -> list[StagedBatch]:
    """Return the batches of an epoch as a checkpoint of `shards` shards by key has them."""
    batches = []
    for shard in range(shards):
        records = [(0, encode_event(each)) for each in events if shard_of(each, shards) == shard]
        if records:
            content = b"".join(EventBlocks(RecordBlockCoder().encode).content([RecordBlock.of(records)]))
            delivery = Delivery("sink", "job", shard, shards, 1, 1)
            batches.append(StagedBatch(delivery, len(records), len(content), 0, content=content))
    return batches


# --- tables of a lake ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [lambda: CurrentTable(frozenset(SCHEMA.names)), CurrentTable, HistoryTable])
@given(history=histories(), cuts=cuts, shards=st.sampled_from((1, 4)))
def test_tables_of_a_lake_have_the_rows_of_the_source_after_every_epoch(
    table: Callable[[], Any], history: KeyHistory, cuts: list[int], shards: int
) -> None:
    """With four shards the batches of an epoch have the events of one transaction in any order."""
    target, read = table(), 0
    for epoch in parts_of(history.events, cuts):
        for each in events_of_epoch(staged(epoch, shards)):
            target.publish(each.events)
        read += len(epoch)
        assert live(target.live()) == history.states[read - 1]
    if isinstance(target, HistoryTable):
        for event, state in zip(history.events, history.states, strict=True):
            assert live(target.at(event.timestamp)) == state


# --- sinks that send rows by shard --------------------------------------------------------------------------------


class SqlTable:
    """The upsert of `penstock.io.sql.statements` over a table in memory; rows are texts."""

    TABLE = TargetTable(
        TableName("public", "orders"),
        (
            TargetColumn("id", "bigint"),
            TargetColumn("a", "bigint"),
            *(TargetColumn(n, "text") for n in LARGE),
        ),
        ("id",),
    )

    def __init__(self) -> None:
        self._rows: dict[str, tuple[str, bool, dict[str, str | None]]] = {}
        self._horizon = ""

    def send(self, events: list[ChangeEvent], shards: int) -> None:
        for changes in fold(events).values():
            if changes.truncated is not None:
                self._horizon = max(self._horizon, encode_version(changes.truncated))
                self._rows = {key: row for key, row in self._rows.items() if row[0] >= self._horizon}
            rows, before = list(batch_rows(self.TABLE, changes, shards == 1)), dict(self._rows)
            for (id_, a, big, wide, version, deleted, _, unsent, base), _ in rows:
                values = {"a": a, "big": big, "wide": wide}
                found = None if base is None else before.get(base)
                for name in unsent.strip("{}").replace('"', "").split(",") if unsent else ():
                    usable = found is not None and not found[1] and found[0] > self._horizon
                    values[name] = found[2][name] if usable and found is not None else None
                known = self._rows.get(id_)
                if version > self._horizon and (known is None or known[0] < version):
                    self._rows[id_] = (version, deleted == "t", values)

    def live(self) -> Rows:
        return {
            int(id_): {**values, "a": int(values["a"] or 0)}
            for id_, (_, deleted, values) in self._rows.items()
            if not deleted
        }


class SpannerTable:
    """The transaction of the sink of Spanner over tables in memory."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, Any]] = {}
        self._versions: dict[tuple[str, str], str] = {}

    def send(self, events: list[ChangeEvent], shards: int) -> None:
        for changes in fold(events).values():
            _write_table(self, changes, [column.name for column in changes.schema.key_columns])

    def read(self, table: str, columns: Any, keys: Any) -> list[tuple[Any, ...]]:
        found = [(tuple(key), self._versions.get(tuple(key))) for key in keys.keys]
        return [(*key, version, None) for key, version in found if version is not None]

    def insert_or_update(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        for row in rows:
            if table == "PenstockVersions":
                self._versions[row[0], row[1]] = row[2]
            else:
                self._rows.setdefault(row[0], {}).update(zip(columns, row, strict=True))

    def delete(self, table: str, keys: Any) -> None:
        for (key,) in keys.keys:
            self._rows.pop(key, None)

    def live(self) -> Rows:
        return {
            int(key): {"a": int(row["a"]), "big": row["big"], "wide": row["wide"]}
            for key, row in self._rows.items()
        }


class BigQueryTable:
    """The sink's requests, and a service that keeps the row with the highest sequence number of each key."""

    def __init__(self) -> None:
        self._service = BigQuery()
        process = Process(self._service)
        self._sender = ReplicaSender(BigQueryTarget("p", "d", mode="current"), False, process, process)

    def send(self, events: list[ChangeEvent], shards: int) -> None:
        self._sender.send(Delivery("s", "j", 0, shards, 1, 1), events)

    def live(self) -> Rows:
        rows = self._service.current("orders", "id")
        return {row["id"]: {name: row[name] for name in DATA} for row in rows}


REFUSALS = (NotReplicableError, RefusalError, RowFaultError)
SENDERS = [SqlTable, SpannerTable, BigQueryTable]


@pytest.mark.long_cases("False", seconds=5)
@pytest.mark.parametrize("table", SENDERS)
@pytest.mark.parametrize("whole", [False, True])
@settings(max_examples=150)
@given(data=st.data(), shards=st.integers(1, 3), order=st.lists(st.integers(0, 2), max_size=20), cuts=cuts)
def test_sinks_that_send_rows_have_the_rows_of_the_source_or_refuse_an_event(
    table: Callable[[], Any],
    whole: bool,
    data: st.DataObject,
    shards: int,
    order: list[int],
    cuts: list[int],
) -> None:
    """Shards send their batches in any order. What they refuse, they refuse before the rows are wrong."""
    history = data.draw(histories(KINDS if table is SqlTable else WITHOUT_CLEAR, whole))
    waiting = [
        parts_of([each for each in history.events if shard_of(each, shards) == shard], cuts)
        for shard in range(shards)
    ]
    target = table()
    try:
        for shard in [*order, *range(shards)]:
            batches = waiting[shard % shards]
            for batch in batches[:1]:
                target.send(batch, shards)
            del batches[:1]
        for batches in waiting:
            for batch in batches:
                target.send(batch, shards)
    except REFUSALS:
        assert not whole or table is SqlTable, "an event with all values was refused"
        assert table is not SqlTable or (shards > 1 and not whole)
        return
    assert target.live() == history.rows


@pytest.mark.parametrize("table", [SqlTable, SpannerTable])
def test_a_row_that_moves_away_twice_from_a_key_of_another_shard_is_refused(table: Callable[[], Any]) -> None:
    """The shard has both moves of a row to a key, and not the statement that brought the row back in between."""
    history = KeyHistory()
    history.insert(0)
    history.update(0, 1, {"big": "b", "wide": "w"})
    history.update(1, 0, {"big": "c", "wide": "d"})
    history.update(0, 1, {})
    with pytest.raises(REFUSALS):
        table().send([history.events[1], history.events[3]], 2)


@given(history=histories(WITHOUT_CLEAR))
def test_a_materialized_row_has_no_value_of_an_earlier_row_with_its_key(history: KeyHistory) -> None:
    """`MaterializeRows` follows each key alone, so it leaves a value out that the row had under another key."""
    known: dict[bytes, ChangeEvent | None] = {}
    for event, rows in zip(history.events, history.states, strict=True):
        key = key_bytes(event)
        known[key], full = materialize(known.get(key), event)
        assert full is not None
        if full.after is not None:
            row = {"id": full.after["id"], **rows[full.after["id"]]}
            assert full.after == {name: row[name] for name in full.after}


@given(history=histories(WITHOUT_CLEAR))
def test_bigtable_refuses_changes_of_rows_with_columns(history: KeyHistory) -> None:
    for event in history.events:
        with pytest.raises(NotReplicableError):
            row_request("t", "", "penstock", [event])
