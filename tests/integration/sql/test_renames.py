"""Columns of a PostgreSQL source that are renamed and dropped, followed in a replica by their numbers."""

from __future__ import annotations

import random
from typing import Any

import pytest

from penstock.event import ChangeEvent, Column, ColumnType, Kind, Op, TableSchema, Version
from penstock.event.schema_changes import SchemaChangedError
from penstock.event.sharding import shard_of
from penstock.io.postgres.events import EventConverter
from penstock.io.sql.write import connector_of
from penstock.io.staging.delivery import Delivery
from tests.integration.postgres.conftest import Database
from tests.integration.sql.conftest import Target
from tests.support.changing_table import SOURCE

INT = ColumnType(Kind.INT64)
FOLLOW = ("evolve", "rename=evolve", "drop=evolve")


def schema(**numbers: int) -> TableSchema:
    return TableSchema(
        tuple(
            Column(name, INT, key_position=1 if number == 1 else None, number=number)
            for name, number in numbers.items()
        )
    )


OLD, NEW = schema(k=1, a=2, b=3), schema(k=1, x=2)


def event(number: int, of: TableSchema, *values: Any) -> ChangeEvent:
    row = dict(zip(of.names, values, strict=True))
    return ChangeEvent(SOURCE, Op.CREATE, number, {of.names[0]: values[0]}, None, row, Version(number), of)


def test_a_renamed_column_keeps_its_values_and_a_dropped_one_goes(database: Database) -> None:
    target = Target(database, schema_changes=FOLLOW)
    target.deliver([event(1, OLD, 1, 10, 100), event(2, OLD, 2, 20, 200)])
    target.deliver([event(3, OLD, 3, 30, 300), event(4, NEW, 1, 11)])
    assert target.live(columns="k, x") == [(1, 11), (2, 20), (3, 30)]
    late = event(5, NEW, 2, 21), event(3, OLD, 9, 90, 900)
    target.deliver([late[1]])
    target.deliver([late[0]])
    assert target.live(columns="k, x") == [(1, 11), (2, 21), (3, 30), (9, 90)]
    columns = database.rows(
        "select attname from pg_attribute where attrelid = 'orders'::regclass and attnum > 0"
    )
    assert not {("a",), ("b",)} & set(columns)


def test_a_renamed_key_is_the_same_key(database: Database) -> None:
    target = Target(database, schema_changes=FOLLOW)
    target.deliver([event(1, schema(k=1, a=2), 1, 10), event(2, schema(k=1, a=2), 2, 20)])
    target.deliver([event(4, schema(id=1, a=2), 1, 11)])
    target.deliver([event(3, schema(k=1, a=2), 2, 21)])
    assert target.live(columns="id, a") == [(1, 11), (2, 21)]


def test_without_the_policy_a_renamed_column_is_a_new_one(target: Target) -> None:
    target.deliver([event(1, schema(k=1, a=2), 1, 10)])
    target.deliver([event(2, schema(k=1, x=2), 2, 20)])
    assert target.live(columns="k, a, x") == [(1, 10, None), (2, None, 20)]
    assert target.database.rows("select to_regclass('penstock_columns')") == [(None,)]


def test_the_policy_stop_writes_nothing(database: Database) -> None:
    target = Target(database, schema_changes=("evolve", "rename=stop"))
    target.deliver([event(1, schema(k=1, a=2), 1, 10)])
    with pytest.raises(SchemaChangedError, match="a is called x"):
        target.deliver([event(2, schema(k=1, x=2), 2, 20)])
    assert target.live(columns="k, a") == [(1, 10)]


def test_a_shard_that_prepared_before_a_rename_writes_to_the_column_of_now(database: Database) -> None:
    """The table gets a column of the old name again, which is another one, before the shard writes its rows."""
    target = Target(database, schema_changes=FOLLOW)
    first, second = schema(k=1, a=2), schema(k=1, x=2, a=3)
    target.deliver([event(1, first, 1, 10)])
    behind: Any = connector_of(target.target).open(skip_refused=False)
    prepare = behind._tables.prepare

    def prepare_and_wait(batch: list[ChangeEvent]) -> None:
        prepare(batch)
        if target.epoch == 1:
            target.deliver([event(3, second, 2, 20, 200)], shard=1, shards=2)

    behind._tables.prepare = prepare_and_wait
    try:
        behind.send(Delivery("sink", "job", 0, 2, 1, 2, ()), [event(2, first, 3, 30)])
    finally:
        behind.close()
    assert target.live(columns="k, x, a") == [(1, 10, None), (2, 20, 200), (3, 30, None)]


@pytest.mark.long_cases("1", "2", seconds=5)
@pytest.mark.parametrize("seed", range(3))
def test_random_ddl_of_a_real_server_ends_with_the_table_of_the_source(database: Database, seed: int) -> None:
    """The source describes a schema after its first change, and the target gets it in batches of four shards."""
    rng = random.Random(seed)
    database.execute("create schema source", "create table source.orders (k int primary key, c0 int, c1 int)")
    database.publish("for tables in schema source")
    columns, fresh = ["c0", "c1"], 2
    records = []
    for step in range(60):
        change = rng.random()
        if change < 0.2:
            # The changes before DDL are read before it.
            records += database.read()
        if change < 0.08:
            columns.append(f"c{fresh}")
            database.execute(f"alter table source.orders add column c{fresh} int")
            fresh += 1
        elif change < 0.16 and columns:
            old = columns.pop(rng.randrange(len(columns)))
            columns.append(f"c{fresh}")
            database.execute(f"alter table source.orders rename column {old} to c{fresh}")
            fresh += 1
        elif change < 0.2 and len(columns) > 1:
            database.execute(
                f"alter table source.orders drop column {columns.pop(rng.randrange(len(columns)))}"
            )
        key = rng.randrange(12)
        if rng.random() < 0.15:
            database.execute(f"delete from source.orders where k = {key}")
        else:
            names, values = ", ".join(["k", *columns]), ", ".join([str(key), *(str(step) for _ in columns)])
            sets = ", ".join(f"{each} = excluded.{each}" for each in columns) or "k = excluded.k"
            database.execute(
                f"insert into source.orders ({names}) values ({values}) on conflict (k) do update set {sets}"
            )
    records += database.read()
    seen, events = set(), []
    for record in records:
        for each in EventConverter()(record):
            if each.id not in seen:
                seen.add(each.id)
                events.append(each)
    target = Target(database, schema_changes=FOLLOW)
    while events:
        batch = events[: rng.randint(1, 9)]
        events = events[len(batch) :]
        target.epoch += 1
        for shard in rng.sample(range(4), 4):
            own = [each for each in batch if shard_of(each, 4) == shard]
            target.deliver(own, epoch=target.epoch, shard=shard, shards=4)
    names = ", ".join(["k", *sorted(columns)])
    assert target.live(columns=names) == database.rows(f"select {names} from source.orders order by k")
