"""A replica in Spanner as a comparison reads it: rows and versions that the sink has written, and others."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import spanner

from penstock.errors import UsageError
from penstock.event import ChangeEvent, Column, ColumnType, Kind, Op, Source, TableSchema, Version
from penstock.io.columnar.table_rows import key_text
from penstock.io.spanner.sink.sender import SpannerSender
from penstock.io.spanner.sink.target import SpannerTarget
from penstock.io.staging.delivery import Delivery
from penstock.verify import spanner_table
from penstock.verify.keys import NO_KEY
from penstock.verify.rounds import REFUSED, ColumnDifference, StoredRow
from penstock.verify.source import SourceRows
from penstock.verify.spanner_table import SpannerTable, client_of
from penstock_emulators.simulated_spanner import SimulatedSpanner

pytestmark = pytest.mark.slow

NAMES = ("my-project", "main", "copy")
DDL = [
    "CREATE TABLE items (shop STRING(MAX), id INT64 NOT NULL, price NUMERIC, more JSON, own STRING(MAX)) "
    "PRIMARY KEY (id, shop)",
    "CREATE TABLE texts (id STRING(MAX) NOT NULL, price INT64) PRIMARY KEY (id)",
]
KEY = [Column("shop", ColumnType(Kind.STRING), True, 1), Column("id", ColumnType(Kind.INT32), False, 2)]
PRICE, MORE = Column("price", ColumnType(Kind.DECIMAL, scale=2)), Column("more", ColumnType(Kind.JSON))
SCHEMA = TableSchema((*KEY, PRICE, MORE, Column("gone", ColumnType(Kind.STRING))))
TEXTS = TableSchema((Column("id", ColumnType(Kind.INT32), False, 1), PRICE))


class Replica:
    """A database, the sink that writes to it, and the tables as a comparison reads them."""

    def __init__(self) -> None:
        self.target = SpannerTarget(*NAMES)
        client = spanner.Client(NAMES[0], credentials=AnonymousCredentials(), disable_builtin_metrics=True)
        self.database = client.instance(NAMES[1]).database(NAMES[2])
        self._client, self._epoch = client_of(self.target), 0

    def write(self, *events: ChangeEvent) -> None:
        sender = SpannerSender(self.target, False)
        self._epoch += 1
        sender.send(Delivery("sink", "job", 0, 1, 1, self._epoch, ()), list(events))
        sender.close()

    def table(self, name: str = "items", schema: TableSchema = SCHEMA) -> SpannerTable:
        found = SpannerTable(self._client, name)
        assert found.open(schema)
        return found


@pytest.fixture
def replica(monkeypatch: pytest.MonkeyPatch) -> Iterator[Replica]:
    with SimulatedSpanner.start() as service:
        service.create_database(*NAMES, DDL)
        for name, value in service.environment().items():
            monkeypatch.setenv(name, value)
        yield Replica()


def event(number: int, shop: str | None, id_: int, op: Op = Op.CREATE, **row: Any) -> ChangeEvent:
    key = {"shop": shop, "id": id_}
    after = None if op is Op.DELETE else {**key, "price": Decimal("1.50"), "more": '{"a": 1.0}', **row}
    schema = TableSchema(tuple(column for column in SCHEMA if column.name != "gone"))
    return ChangeEvent(Source("postgres", table="items"), op, 0, key, None, after, Version(number), schema)


def suspects(*events: ChangeEvent) -> dict[str, ChangeEvent | None]:
    return {key_text(each.key or {}): None if each.op is Op.DELETE else each for each in events}


def test_a_look_has_each_row_with_its_version_and_what_differs(replica: Replica) -> None:
    rows = [event(n, "a", n) for n in range(1, 6)]
    replica.write(*rows, event(6, None, 6), event(7, "a", 7))
    replica.write(event(9, "a", 7, Op.DELETE))
    with replica.database.batch() as batch:
        batch.update("items", ("id", "shop", "price"), [(2, "a", Decimal("1.5"))])
        batch.update("items", ("id", "shop", "more"), [(3, "a", '{"a": 2}')])
        batch.delete("items", spanner.KeySet([(4, "a")]))
        batch.insert("items", ("id", "shop"), [(8, "a")])
    asked = [*rows, event(6, None, 6), event(9, "a", 7, Op.DELETE), event(8, "a", 8, Op.DELETE)]
    look = replica.table().look(suspects(*asked, event(1, "a", 99)))
    assert look.rows == {
        '["a",1]': StoredRow(Version(1), False, []),
        '["a",2]': StoredRow(Version(2), False, []),
        '["a",3]': StoredRow(Version(3), False, [ColumnDifference("more", '{"a":1}', '{"a":2}')]),
        '["a",4]': StoredRow(Version(4), True, []),
        '["a",5]': StoredRow(Version(5), False, []),
        "[null,6]": StoredRow(Version(6), False, []),
        '["a",7]': StoredRow(Version(9), True, []),
        '["a",8]': StoredRow(None, False, []),
    }
    assert look.truncated is None


def test_digests_of_rows_are_those_of_the_source_in_parts_of_any_size(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spanner_table, "_PART", 3)
    rows = [event(n, "ab"[n % 2], n) for n in range(1, 8)]
    replica.write(*rows)
    table = replica.table()
    (wanted,) = [table.expected(SourceRows.of_events({key_text(each.key or {}): each for each in rows}))]
    parts = list(table.fingerprints())
    assert [part.num_rows for part in parts] == [3, 3, 1]
    found = [row for part in parts for row in part.to_pylist()]
    assert sorted(map(str, found)) == sorted(map(str, wanted.to_pylist()))


def test_a_row_that_the_target_cannot_hold_is_different(replica: Replica) -> None:
    source, key = Source("postgres", table="texts"), {"id": 1}
    row = ChangeEvent(source, Op.CREATE, 0, key, None, {**key, "price": Decimal(1)}, Version(1), TEXTS)
    replica.write(row)
    fraction = ChangeEvent(
        source, Op.CREATE, 0, key, None, {**key, "price": Decimal("1.5")}, Version(1), TEXTS
    )
    table = replica.table("texts", TEXTS)
    assert table.look({"[1]": fraction}).rows == {"[1]": StoredRow(Version(1), False, [REFUSED])}
    digests = [table.expected(SourceRows.of_events({"[1]": each})).to_pylist() for each in (row, fraction)]
    assert digests[0] == next(table.fingerprints()).to_pylist() != digests[1]


def test_a_row_with_a_key_that_the_source_cannot_have_is_extra(replica: Replica) -> None:
    with replica.database.batch() as batch:
        batch.insert("texts", ("id", "price"), [("seven", 1)])
    table = replica.table("texts", TEXTS)
    assert next(table.fingerprints()).column(0).to_pylist() == [NO_KEY]
    assert table.look({NO_KEY: None}).rows == {NO_KEY: StoredRow(None, False)}


def test_only_columns_of_both_sides_are_compared(replica: Replica) -> None:
    replica.write(event(1, "a", 1))
    with replica.database.batch() as batch:
        batch.update("items", ("id", "shop", "own"), [(1, "a", "of the target")])
    table = replica.table()
    assert (table.left_out, "own" in table.shape) == (["gone"], False)
    assert table.look(suspects(event(1, "a", 1, gone="x"))).rows == {
        '["a",1]': StoredRow(Version(1), False, [])
    }


def test_a_table_that_is_missing_or_has_another_key(replica: Replica) -> None:
    client = client_of(replica.target)
    assert not SpannerTable(client, "nothing").open(SCHEMA)
    with pytest.raises(
        UsageError, match=r"texts: the primary key of the target is \(id\), and that of the source"
    ):
        SpannerTable(client, "texts").open(SCHEMA)
