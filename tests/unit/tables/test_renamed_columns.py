"""Columns of a PostgreSQL source that are renamed and dropped, followed in an Iceberg table by their numbers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import duckdb
import pytest
from pyiceberg.catalog import load_catalog

from penstock.errors import UsageError
from penstock.event import ChangeEvent, Column, ColumnType, Kind, Op, TableSchema, Version
from penstock.event.model import Source
from penstock.event.schema_changes import SchemaChangedError
from penstock.io.iceberg import WriteToIceberg
from penstock.io.iceberg.target import IcebergTarget
from penstock.io.staging import TargetUnavailableError
from tests.unit.tables.test_delta import batches, epoch

pytestmark = pytest.mark.slow

INT = ColumnType(Kind.INT64)
FOLLOW = ("evolve", "rename=evolve", "drop=evolve")
SOURCE = Source("postgresql", "srv", "shop", "public", "orders")


def target_of(properties: dict[str, str], mode: Any = "current", policy: Any = FOLLOW, **options: Any) -> Any:
    return IcebergTarget("shop.t", "test", mode, policy, properties, **options)


def schema(**numbers: int) -> TableSchema:
    return TableSchema(
        tuple(
            Column(name, INT, key_position=1 if number == 1 else None, number=number)
            for name, number in numbers.items()
        )
    )


OLD, NEW = schema(k=1, a=2, b=3), schema(k=1, x=2)


def event(
    number: int, of: TableSchema, *values: Any, op: Op = Op.UPDATE, source: Source = SOURCE
) -> ChangeEvent:
    row = dict(zip(of.names, values, strict=True))
    key = {of.names[0]: values[0]}
    return ChangeEvent(source, op, number * 1000, key, None, row, Version(number), of)


def publish(target: Any, events: Sequence[ChangeEvent], number: int) -> None:
    target.publish(epoch(number), batches(events, number))


def rows(properties: dict[str, str], columns: str, where: str = "not _penstock_deleted") -> Any:
    table = load_catalog("test", **properties).load_table("shop.t").scan().to_arrow()
    return duckdb.from_arrow(table).filter(where).project(columns).order("all").fetchall()


def columns(properties: dict[str, str]) -> set[str]:
    names = load_catalog("test", **properties).load_table("shop.t").schema().column_names
    return {name for name in names if not name.startswith("_penstock")}


def test_a_renamed_column_keeps_its_values_and_a_dropped_one_goes(properties: dict[str, str]) -> None:
    target = target_of(properties)
    publish(target, [event(1, OLD, 1, 10, 100), event(2, OLD, 2, 20, 200)], 2)
    publish(target, [event(4, OLD, 3, 30, 300), event(5, NEW, 1, 11)], 3)
    assert columns(properties) == {"k", "x"}
    assert rows(properties, "k, x") == [(1, 11), (2, 20), (3, 30)]
    # A change from before the rename comes late, and the epoch again.
    publish(target, [event(3, OLD, 9, 90, 900)], 4)
    publish(target, [event(3, OLD, 9, 90, 900)], 4)
    assert rows(properties, "k, x") == [(1, 11), (2, 20), (3, 30), (9, 90)]
    assert columns(properties) == {"k", "x"}


def test_values_that_were_not_sent_are_taken_from_the_column_of_the_old_name(
    properties: dict[str, str],
) -> None:
    target = target_of(properties)
    publish(target, [event(1, OLD, 1, 10, 100)], 2)
    renamed = schema(k=1, x=2, b=3)
    sent = {"k": 1, "b": 101}
    publish(target, [ChangeEvent(SOURCE, Op.UPDATE, 2000, {"k": 1}, None, sent, Version(2), renamed)], 3)
    assert rows(properties, "k, x, b") == [(1, 10, 101)]


def test_a_history_has_its_old_versions_under_the_new_name(properties: dict[str, str]) -> None:
    target = target_of(properties, "history")
    publish(target, [event(1, OLD, 1, 10, 100)], 2)
    publish(target, [event(2, NEW, 1, 11)], 3)
    found = rows(properties, "k, x, _penstock_valid_to is null", "true")
    assert found == [(1, 10, False), (1, 11, True)]
    assert columns(properties) == {"k", "x"}


def test_a_table_that_is_made_in_the_epoch_of_the_rename_has_the_new_name(properties: dict[str, str]) -> None:
    publish(target_of(properties), [event(1, OLD, 1, 10, 100), event(2, NEW, 2, 20)], 2)
    assert (columns(properties), rows(properties, "k, x")) == ({"k", "x"}, [(1, 10), (2, 20)])


def test_a_renamed_key_is_the_same_key(properties: dict[str, str]) -> None:
    target = target_of(properties)
    publish(target, [event(1, schema(k=1, a=2), 1, 10), event(2, schema(k=1, a=2), 2, 20)], 2)
    publish(target, [event(4, schema(id=1, a=2), 1, 11)], 3)
    publish(target, [event(3, schema(k=1, a=2), 2, 21)], 4)
    assert rows(properties, "id, a") == [(1, 11), (2, 21)]


def test_without_the_policy_a_renamed_column_is_a_new_one(properties: dict[str, str]) -> None:
    target = target_of(properties, policy="evolve")
    publish(target, [event(1, schema(k=1, a=2), 1, 10)], 2)
    publish(target, [event(2, schema(k=1, x=2), 2, 20)], 3)
    assert rows(properties, "k, a, x") == [(1, 10, None), (2, None, 20)]


@pytest.mark.parametrize(
    ("policy", "after", "message"),
    [("rename=stop", schema(k=1, x=2), "a is called x"), ("drop=stop", schema(k=1), "not have the column a")],
)
def test_the_policy_stop_writes_nothing(
    properties: dict[str, str], policy: str, after: TableSchema, message: str
) -> None:
    target = target_of(properties, policy=("evolve", policy))
    publish(target, [event(1, schema(k=1, a=2), 1, 10)], 2)
    with pytest.raises(SchemaChangedError, match=message):
        publish(target, [event(2, after, *[2, 20][: len(after.columns)])], 3)
    assert (rows(properties, "k, a"), columns(properties)) == ([(1, 10)], {"k", "a"})


def test_a_column_of_the_partitions_is_not_dropped_and_is_renamed_unless_it_is_asked_for(
    properties: dict[str, str],
) -> None:
    target = target_of(properties, partition_by=("a",))
    publish(target, [event(1, OLD, 1, 10, 100)], 2)
    with pytest.raises(SchemaChangedError, match="a is called x .*leave its entry out"):
        publish(target, [event(2, NEW, 1, 11)], 3)
    with pytest.raises(SchemaChangedError, match="partitioned by the column a, .* set drop=lenient"):
        publish(target, [event(2, schema(k=1, b=3), 1, 11)], 3)
    publish(target_of(properties), [event(2, NEW, 1, 11)], 3)
    publish(target_of(properties), [event(3, NEW, 1, 12), event(4, NEW, 2, 12)], 4)
    assert rows(properties, "k, x") == [(1, 12), (2, 12)]


def test_a_driver_that_dies_between_the_rename_and_the_rows_writes_them_when_it_comes_back(
    properties: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = target_of(properties)
    publish(target, [event(1, OLD, 1, 10, 100)], 2)
    again = IcebergTarget._publish
    calls = []

    def die(self: Any, epochs: Any) -> None:
        calls.append(epochs)
        if len(calls) == 2:
            raise TargetUnavailableError("the driver dies")
        again(self, epochs)

    with monkeypatch.context() as patch:
        patch.setattr(IcebergTarget, "_publish", die)
        with pytest.raises(TargetUnavailableError):
            publish(target, [event(2, NEW, 1, 11)], 3)
    assert rows(properties, "k, x") == [(1, 10)]
    publish(target_of(properties), [event(2, NEW, 1, 11)], 3)
    assert (rows(properties, "k, x"), columns(properties)) == ([(1, 11)], {"k", "x"})


def test_a_driver_that_was_paused_brings_no_older_names_back(
    properties: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(target_of(properties), [event(1, OLD, 1, 10, 100)], 2)
    paused, other = target_of(properties), target_of(properties)
    added = [event(2, schema(k=1, a=2, b=3, c=4), 2, 20, 200, 2000)]
    begin = IcebergTarget._begin
    taken = []

    def begin_and_wait(self: Any, *arguments: Any) -> Any:
        commit = begin(self, *arguments)
        if self is paused and not taken:
            taken.append(commit)
            publish(other, added, 3)
            publish(other, [event(3, schema(k=1, x=2, b=3, c=4), 1, 11, 101, 1001)], 4)
        return commit

    monkeypatch.setattr(IcebergTarget, "_begin", begin_and_wait)
    with pytest.raises(TargetUnavailableError):
        publish(paused, added, 3)
    publish(paused, added, 3)
    publish(other, [event(4, schema(k=1, y=2, b=3, c=4), 3, 30, 300, 3000)], 5)
    assert rows(properties, "k, y, b, c") == [(1, 11, 101, 1001), (2, 20, 200, 2000), (3, 30, 300, 3000)]
    assert columns(properties) == {"k", "y", "b", "c"}


def test_a_source_without_numbers_moves_nothing(properties: dict[str, str]) -> None:
    spanner = Source("spanner", "srv", "shop", "", "orders")
    plain = TableSchema((Column("k", INT, key_position=1), Column("a", INT)))
    target = target_of(properties)
    publish(target, [event(1, plain, 1, 10, source=spanner)], 2)
    assert rows(properties, "k, a") == [(1, 10)]


def test_tables_of_several_databases_with_one_target_are_refused(properties: dict[str, str]) -> None:
    second = Source("postgresql", "srv", "store", "public", "orders")
    with pytest.raises(UsageError, match=r"placeholder \{database\}"):
        publish(
            target_of(properties), [event(1, OLD, 1, 10, 100), event(2, OLD, 2, 20, 200, source=second)], 2
        )


def test_the_log_is_refused_before_the_start(properties: dict[str, str]) -> None:
    WriteToIceberg("shop.t", catalog_properties=properties, schema_changes=FOLLOW)
    with pytest.raises(UsageError, match="cannot keep rename=evolve"):
        WriteToIceberg("shop.t", catalog_properties=properties, mode="log", schema_changes=FOLLOW)


@pytest.mark.long_cases("1-current", "1-history", "2-current", "2-history", seconds=5)
@pytest.mark.parametrize("mode", ["current", "history"])
@pytest.mark.parametrize("seed", range(3))
def test_random_ddl_ends_with_the_rows_of_the_source(
    properties: dict[str, str], mode: Any, seed: int
) -> None:
    """Columns are added, renamed and dropped between changes, and epochs are repeated."""
    rng, target = random.Random(seed), target_of(properties, mode)
    names, newest, fresh = {"k": 1, "a": 2}, 2, 0
    source: dict[int, dict[int, int]] = {}
    version, epochs = 0, list[list[ChangeEvent]]()
    for number in range(2, 14):
        events = []
        for _ in range(rng.randint(1, 4)):
            fresh += 1
            chosen = rng.choice([name for name in names if name != "k"] or ["k"])
            match rng.choice(["add", "drop", "rename", "none", "none"]):
                case "add":
                    newest += 1
                    names = {**names, f"c{fresh}": newest}
                case "drop" if chosen != "k":
                    gone = names.pop(chosen)
                    source = {k: {n: v for n, v in row.items() if n != gone} for k, row in source.items()}
                case "rename" if chosen != "k":
                    names = {(f"c{fresh}" if name == chosen else name): n for name, n in names.items()}
            version += 1
            k = rng.randrange(5)
            values = [k if name == "k" else version for name in names]
            events.append(event(version, schema(**names), *values))
            source[k] = dict(zip(names.values(), values, strict=True))
        epochs.append(events)
        publish(target, events, number)
        publish(target, events, number)
        assert set(names) <= columns(properties)
        where = "not _penstock_deleted" if mode == "current" else "_penstock_valid_to is null"
        found = rows(properties, ", ".join(names), where)
        expected = [tuple(row.get(n) for n in names.values()) for row in source.values()]
        assert found == sorted(expected, key=lambda row: [(each is None, each or 0) for each in row])
