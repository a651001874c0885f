"""The examples of docs/spark-data-source.md, run by Spark as they are written, but for names and folders."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow.parquet import ParquetFile

from penstock.event.keys import changed_key
from penstock.event.replica import fold
from penstock.io.columnar.table_rows import DELETED, current_rows
from penstock.spark import register
from penstock.spark.postgres import PostgresDataSource
from penstock_emulators.postgres import PostgresServer, installed_servers
from penstock_emulators.simulated_spanner import SimulatedSpanner
from penstock_emulators.ydb import YdbEmulator
from tests.integration.spark_source.orders import change_a_row
from tests.support.oracle.change_feed import complete_batches, replay

PAGE = Path(__file__).resolve().parent.parent.parent.parent / "docs" / "spark-data-source.md"
REGISTER, SPANNER, POSTGRES, YDB, MERGE, AUTO_CDC, BATCH, ROWS, POSTGRES_ROWS = re.findall(
    r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL
)

pytestmark = [pytest.mark.spark, pytest.mark.slow(seconds=60)]


@pytest.fixture
def spanner(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedSpanner]:
    with SimulatedSpanner.start(churn_seconds=1, seed=2) as service:
        for name, value in service.environment().items():
            monkeypatch.setenv(name, value)  # for the client of the test; Spark's processes began before
        yield service


def run(code: str, spark: Any, known: dict[str, Any], **replaced: str) -> dict[str, Any]:
    """Run an example with other names for its places, and wait for its query, if it starts one."""
    for old, new in replaced.items():
        places = {"lake": "/lake", "dsn": "${file:/run/secrets/shop-dsn}", "start": "2026-01-31T00:00:00Z"}
        code = code.replace(places.get(old, old), new)
    names = {**known, "spark": spark}
    exec(compile(code, PAGE.name, "exec"), names)
    if "query" in names and names["query"] is not known.get("query"):
        names["query"].awaitTermination()
    return names


@pytest.mark.long(seconds=27)
def test_the_examples_of_the_page(spanner: SimulatedSpanner, spark: Any, tmp_path: Path) -> None:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud.spanner import Client, KeySet

    spanner.create_database(
        "my-project",
        "main",
        "shop",
        [
            "CREATE TABLE Orders (Id INT64 NOT NULL, Value STRING(MAX)) PRIMARY KEY (Id)",
            "CREATE CHANGE STREAM OrdersStream FOR Orders OPTIONS (value_capture_type = 'OLD_AND_NEW_VALUES')",
        ],
    )
    client = Client(project="my-project", credentials=AnonymousCredentials(), disable_builtin_metrics=True)
    database = client.instance("main").database("shop")
    lake = str(tmp_path / "lake")
    place = 'project="my-project", '
    reached = {place: f'{place}emulator_host="{spanner.host}", '}
    known = run(REGISTER, spark, {})
    # The first run of a query without a start begins now, and ends: the second one reads what came between.
    known = run(SPANNER, spark, known, lake=lake, **reached)
    with database.snapshot() as snapshot:
        ((before,),) = snapshot.execute_sql("SELECT CURRENT_TIMESTAMP")
    with database.batch() as batch:
        batch.insert("Orders", ["Id", "Value"], [[1, "a"], [2, "b"]])
    with database.batch() as batch:
        batch.update("Orders", ["Id", "Value"], [[1, "c"]])
    run(SPANNER, spark, known, lake=lake, **reached)
    stored = spark.read.parquet(f"{lake}/orders").orderBy("_commit_version", "Id", "_change_type").collect()
    assert [(row.Id, row.Value, row._change_type) for row in stored] == [
        (1, "a", "insert"),
        (2, "b", "insert"),
        (1, "c", "update_postimage"),
        (1, "a", "update_preimage"),
    ]
    code = BATCH.replace(', end="2026-01-31T01:00:00Z"', "")
    changes = run(code, spark, known, start=before.rfc3339(), **reached)["changes"]

    def content(rows: list[Any]) -> list[tuple[Any, ...]]:
        return sorted((row._commit_version, row.Id, row._change_type, row.Value) for row in rows)

    assert content(changes.collect()) == content(stored)
    with database.snapshot() as snapshot:
        ((then,),) = snapshot.execute_sql("SELECT CURRENT_TIMESTAMP")
    with database.batch() as batch:
        batch.update("Orders", ["Id", "Value"], [[1, "d"]])
    rows = run(ROWS, spark, known, start=then.rfc3339(), **reached)["rows"]
    assert sorted(map(tuple, rows.collect())) == [(1, "c"), (2, "b")]
    DeltaTable.create(f"{lake}/orders_now", pa.schema([("Id", pa.int64()), ("Value", pa.string())]))
    from_the_start = {place: f'{reached[place]}start="{before.rfc3339()}", '}
    for change in ("none", "delete"):
        if change == "delete":
            with database.batch() as batch:
                batch.delete("Orders", KeySet(keys=[[2]]))
                batch.insert("Orders", ["Id", "Value"], [[3, "e"]])
        # The second run continues from the checkpoint. A batch that comes again changes nothing.
        names = run(MERGE, spark, known, lake=lake, **from_the_start)
        version = DeltaTable(f"{lake}/orders_now").version()
        names["merge"](changes, 0)
        table = DeltaTable(f"{lake}/orders_now")
        assert table.version() == version
        with database.snapshot() as snapshot:
            truth = list(map(tuple, snapshot.read("Orders", ["Id", "Value"], KeySet(all_=True))))
        stored = table.to_pyarrow_table().sort_by("Id").to_pylist()
        assert [(row["Id"], row["Value"]) for row in stored] == truth


def test_the_example_of_postgres(spark: Any, tmp_path: Path) -> None:
    with PostgresServer.start(version=max(installed_servers(), default=18)) as server:
        secret = tmp_path / "dsn"
        secret.write_text(server.dsn())
        with psycopg.connect(server.dsn(), autocommit=True) as session:
            session.execute("create table orders (id int primary key, value text)")
            session.execute("create publication shop_changes for all tables")
            session.execute("select pg_create_logical_replication_slot('penstock', 'pgoutput')")
            session.execute("insert into orders values (1, 'a')")
        lake = str(tmp_path / "lake")
        known = run(REGISTER, spark, {})
        exec(SPANNER[: SPANNER.index("query = ")].replace("/lake", lake), known)  # the function `save`
        names = run(POSTGRES, spark, known, lake=lake, dsn="${file:" + str(secret) + "}")
        (row,) = spark.read.parquet(f"{lake}/orders").collect()
        assert (row.id, row.value, row._change_type) == (1, "a", "insert")
        plan = names["query"].lastProgress
        assert plan is None or server.dsn() not in str(plan)
        rows = run(POSTGRES_ROWS, spark, known, dsn="${file:" + str(secret) + "}")["rows"]
        assert list(map(tuple, rows.collect())) == [(1, "a")]


@pytest.mark.long(seconds=20)
def test_merge_follows_changes_of_keys_as_the_table_of_our_sink_does(spark: Any, tmp_path: Path) -> None:
    draw = random.Random(7)
    lake = str(tmp_path / "lake")
    known = run(REGISTER, spark, {})
    exec(MERGE[: MERGE.index("query = ")].replace("/lake", lake), known)
    DeltaTable.create(f"{lake}/orders_now", pa.schema([("Id", pa.int32()), ("Value", pa.string())]))
    with PostgresServer.start(version=max(installed_servers(), default=18)) as server:
        secret = tmp_path / "dsn"
        secret.write_text(server.dsn())
        options = {
            "dsn": "${file:" + str(secret) + "}",
            "publication": "p",
            "slot": "s",
            "table": "public.orders",
        }
        session = psycopg.connect(server.dsn(), autocommit=True)
        session.execute('create table orders ("Id" int primary key, "Value" text)')
        session.execute("create publication p for table orders")
        session.execute("select pg_create_logical_replication_slot('s', 'pgoutput')")
        stream = PostgresDataSource(options).stream()
        before, events = stream.first(None), []
        for _ in range(3):
            for number in range(60):
                change_a_row(session, draw, number)
            after = stream.last()
            for part in stream.parts(before, after):
                events += [event for group in stream.read(part) for event in group]
            before = after
            loaded = spark.readStream.format("penstock-postgres").options(**options).load()
            writer = loaded.writeStream.foreachBatch(known["merge"]).trigger(availableNow=True)
            writer.option("checkpointLocation", f"{lake}/checkpoint").start().awaitTermination()
            stored = DeltaTable(f"{lake}/orders_now").to_pyarrow_table().to_pylist()
            truth = dict(session.execute('select "Id", "Value" from orders').fetchall())
            assert {row["Id"]: row["Value"] for row in stored} == truth
            assert len(stored) == len(truth)
        session.close()
    (changes,) = fold(events).values()
    ours = current_rows(changes, lambda keys: [], None)
    assert {row["Id"]: row["Value"] for row in ours if not row[DELETED]} == truth
    assert sum(changed_key(event) is not None for event in events) > 5


@pytest.mark.long(seconds=5)
def test_the_example_of_ydb(spark: Any, tmp_path: Path) -> None:
    with YdbEmulator.start() as service:
        control = service.control
        control.create_table("orders", {"id": "Uint64", "value": "Utf8"}, ["id"], shards=2)
        control.add_changefeed(
            "orders", "feed", mode="NEW_AND_OLD_IMAGES", virtual_timestamps=True, partitions=2
        )
        for number in range(12):
            control.commit([["upsert", "orders", [number % 3], {"value": str(number)}]])
        lake = str(tmp_path / "lake")
        known = run(REGISTER, spark, {})
        exec(SPANNER[: SPANNER.index("query = ")].replace("/lake", lake), known)  # the function `save`
        address = {"grpcs://ydb.example.org:2135": service.endpoint, "/prod/shop": service.database}
        names = run(YDB, spark, known, lake=lake, **{"100_000": "7"}, **address)
    batches = rows_of_batches(tmp_path / "lake" / "orders")
    # A batch may have seven rows: three changes of at most two rows.
    assert [len(batch) for batch in batches] == [3, 6, 6, 6]
    rows = [row for batch in batches for row in batch]
    assert replay(rows, "id", "value") == {0: "9", 1: "10", 2: "11"}
    assert names["query"].exception() is None


def rows_of_batches(folder: Path) -> list[Any]:
    """Return the rows of each batch, in the order of the batches."""
    batches = sorted(complete_batches(folder), key=lambda each: int(each.name.partition("=")[2]))
    return [
        [row for file in batch.glob("*.parquet") for row in ParquetFile(file).read().to_pylist()]
        for batch in batches
    ]


def test_a_source_that_cannot_be_sliced_is_refused_by_name(spark: Any) -> None:
    register(spark)
    for reader in (spark.read, spark.readStream):
        with pytest.raises(Exception, match=r"penstock-bigtable: .*estimates.*ReadFromBigtableChangeStream"):
            reader.format("penstock-bigtable").load()
