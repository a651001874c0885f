"""A table whose columns change while four threads write it, its copy in a target, and the job between them."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Protocol

import psycopg
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from penstock_emulators.oracle.kill import Run, python
from penstock_emulators.oracle.lines import read_lines
from penstock_emulators.postgres import PostgresServer
from penstock_emulators.spanner import SpannerEmulator
from tests.integration.postgres.conftest import Database
from tests.support.schema_lines import SHARDS
from tests.support.writers import WriterThreads

KEYS = 50
OLD_ROWS = range(100, 401)
"""Keys of rows that nobody writes after the first start."""

PROJECT = INSTANCE = "ddl-test"

Row = dict[str, Any]


class Orders(Protocol):
    """The table `orders` of a source, with the key k and the columns c0 and c1."""

    system: ClassVar[str]

    def parameters(self) -> dict[str, str]:
        """Return the parameters of a job that reads the table."""

    def environment(self) -> dict[str, str]:
        """Return variables that the job needs."""

    def write(self, key: int, values: dict[str, int] | None) -> None:
        """Insert or update a row; None: delete it. Nothing happens if DDL comes between."""

    def alter(self, action: str) -> None:
        """Change a column: an action of ALTER TABLE."""

    def actions(self, rng: random.Random, step: int) -> list[str]:
        """Return actions of a random history of DDL; names that they add end with the number of the step."""

    def columns(self) -> list[str]:
        """Return the columns outside of the key, in any order."""

    def rows(self) -> list[Row]: ...


class PostgresOrders:
    """The table in PostgreSQL."""

    system = "postgres"

    def __init__(self, server: PostgresServer) -> None:
        self.database = Database(server)
        self.database.execute("create table orders (k int primary key, c0 int, c1 int)")
        self.database.execute(
            f"insert into orders select n, n, n from generate_series({OLD_ROWS[0]}, {OLD_ROWS[-1]}) n"
        )
        self.database.publish()
        # Each row comes through the log once, so that the target has the rows from before.
        self.database.execute("update orders set c1 = c1 + 1")

    def parameters(self) -> dict[str, str]:
        return {
            "dsn": self.database.dsn,
            "publication": self.database.publication,
            "slot": self.database.slot,
        }

    def environment(self) -> dict[str, str]:
        return {}

    def write(self, key: int, values: dict[str, int] | None) -> None:
        with (
            psycopg.connect(self.database.dsn, autocommit=True) as session,
            suppress(psycopg.errors.UndefinedColumn),
        ):
            if values is None:
                session.execute(f"delete from orders where k = {key}")
                return
            names = ", ".join(["k", *values])
            row = ", ".join(map(str, [key, *values.values()]))
            sets = ", ".join(f"{each} = excluded.{each}" for each in ["k", *values])
            session.execute(
                f"insert into orders ({names}) values ({row}) on conflict (k) do update set {sets}"
            )

    def alter(self, action: str) -> None:
        self.database.execute(f"alter table orders {action}")

    def actions(self, rng: random.Random, step: int) -> list[str]:
        old = rng.choice(self.columns())
        return [
            f"add column d{step} int default {step}",
            f"add column n{step} int",
            f"rename column {old} to r{step}",
            f"rename column {old} to r{step}",
            f"alter column {old} type bigint",
            *([f"drop column {old}"] if step % 3 == 2 else []),
        ]

    def columns(self) -> list[str]:
        with psycopg.connect(self.database.dsn, autocommit=True) as session:
            query = (
                "select attname from pg_attribute where attrelid = 'orders'::regclass and attnum > 1 "
                "and not attisdropped order by 1"
            )
            return [name for (name,) in session.execute(query).fetchall()]

    def rows(self) -> list[Row]:
        return [row for (row,) in self.database.rows("select to_jsonb(each) from orders each")]


class SpannerOrders:
    """The table in Spanner. A change of a type is another length: the service allows few others."""

    system = "spanner"
    _numbers = itertools.count()

    def __init__(self, emulator: SpannerEmulator) -> None:
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import spanner

        self._emulator, self._name = emulator, f"ddl-{next(self._numbers)}"
        ddl = [
            "CREATE TABLE orders (k INT64 NOT NULL, c0 INT64, c1 STRING(MAX)) PRIMARY KEY (k)",
            "CREATE CHANGE STREAM changes FOR ALL",
        ]
        emulator.create_database(PROJECT, INSTANCE, self._name, ddl)
        client = spanner.Client(
            project=PROJECT, credentials=AnonymousCredentials(), disable_builtin_metrics=True
        )
        self._client = client.instance(INSTANCE).database(self._name)
        with self._client.batch() as batch:
            batch.insert("orders", ("k", "c0", "c1"), [(key, key, str(key)) for key in OLD_ROWS])
        # The job reads from the first rows on, whenever it starts.
        self._start = f"{batch.committed:%Y-%m-%dT%H:%M:%S.%fZ}"

    def parameters(self) -> dict[str, str]:
        names = {"project": PROJECT, "instance": INSTANCE, "database": self._name}
        return {**names, "change_stream": "changes", "start": self._start}

    def environment(self) -> dict[str, str]:
        return dict(self._emulator.environment())

    def write(self, key: int, values: dict[str, int] | None) -> None:
        from google.api_core.exceptions import Aborted, FailedPrecondition, NotFound
        from google.cloud.spanner import KeySet

        # The emulator runs one transaction at a time, and none beside DDL.
        with suppress(Aborted, FailedPrecondition, NotFound), self._client.batch() as batch:
            if values is None:
                batch.delete("orders", KeySet(keys=[[key]]))
                return
            row = [value if name == "c0" else str(value) for name, value in values.items()]
            batch.insert_or_update("orders", ["k", *values], [[key, *row]])

    def alter(self, action: str) -> None:
        from google.api_core.exceptions import Aborted, FailedPrecondition

        for _ in range(200):
            with suppress(Aborted, FailedPrecondition):
                self._client.update_ddl([f"ALTER TABLE orders {action}"]).result(60)
                return
            time.sleep(0.05)
        raise AssertionError(f"no time for DDL: {action}")

    def actions(self, rng: random.Random, step: int) -> list[str]:
        columns = self.columns()
        texts = [each for each in columns if each != "c0"]
        return [
            f"ADD COLUMN d{step} STRING(MAX)",
            f"ADD COLUMN n{step} STRING(100)",
            *(f"ALTER COLUMN {each} STRING({rng.randint(50, 500)})" for each in texts[:2]),
            *([f"DROP COLUMN {rng.choice(columns)}"] if len(columns) > 1 else []),
        ]

    def columns(self) -> list[str]:
        query = (
            "SELECT column_name FROM information_schema.columns "
            "WHERE table_name = 'orders' AND column_name <> 'k' ORDER BY 1"
        )
        return [name for (name,) in self._query(query)]

    def rows(self) -> list[Row]:
        names = ["k", *self.columns()]
        return [
            dict(zip(names, row, strict=True))
            for row in self._query(f"SELECT {', '.join(names)} FROM orders")
        ]

    def _query(self, query: str) -> list[list[Any]]:
        with self._client.snapshot() as snapshot:
            return list(snapshot.execute_sql(query))


class Writers(WriterThreads):
    """Write and delete rows of the table in four threads, with the columns that it has."""

    def __init__(self, orders: Orders) -> None:
        super().__init__(4, 0.08)
        self._orders, self.writes = orders, 0

    def write(self, rng: random.Random, seed: int, number: int) -> None:
        values = None if rng.random() < 0.2 else dict.fromkeys(self._orders.columns(), number)
        self._orders.write(rng.randrange(KEYS), values)
        with self._lock:
            self.writes += 1


class Replica:
    """The copy of the table, with its current rows, in PostgreSQL; and the job."""

    target = "postgresql"
    reads_again: ClassVar[dict[str, str]] = {"new_columns": "snapshot", "chunk_rows": "20"}
    """Parameters with which the rows of a table of PostgreSQL with a new column are read again."""

    def __init__(self, folder: Path, source: Orders, server: PostgresServer, *schema_changes: str) -> None:
        self.folder, self.source, self.schema_changes = folder, source, schema_changes
        self.database = Database(server)
        self.starts = 0

    def start(self) -> Run:
        self.starts += 1
        pairs = [
            *self.source.parameters().items(),
            *(self.reads_again.items() if self.source.system == "postgres" else ()),
            *(("schema_changes", each) for each in self.schema_changes),
            *self.target_options().items(),
        ]
        sets = [word for name, value in pairs for word in ("--set", f"{name}={value}")]
        options = ["--checkpoint-dir", str(self.folder / "checkpoint"), "--master", "local[2,4]"]
        template = f"{self.source.system}-to-{self.target}"
        command = python("penstock.cli.main", "run", template, *sets, *options)
        return Run(command, log=self.log, environment=self.source.environment())

    def target_options(self) -> dict[str, str]:
        return {"target_dsn": self.database.dsn}

    @property
    def log(self) -> Path:
        return self.folder / f"log-{self.starts}"

    def target_rows(self) -> list[Row]:
        """Return the rows of the target; none if there is no table yet."""
        ((table,),) = self.database.rows("select to_regclass('orders')")
        if table is None:
            return []
        # One value of one type for each row: DDL may come at any moment.
        return [row for (row,) in self.database.rows("select to_jsonb(each) from orders each")]

    def live(self) -> dict[int, Row]:
        """Return the rows that are not deleted by key, without the columns of the sink."""
        rows = self.target_rows()
        found = {
            row["k"]: {name: value for name, value in row.items() if not name.startswith("_penstock")}
            for row in rows
            if not row["_penstock_deleted"]
        }
        assert len({row["k"] for row in rows}) == len(rows), "a key is in the table twice"
        return found

    def old_rows_with(self, column: str, value: int) -> int:
        """Return how many of the rows that nobody writes have a value."""
        live = self.live()
        return sum(live[key].get(column) == value for key in OLD_ROWS)

    def has_old_rows(self) -> bool:
        return self.live().keys() >= set(OLD_ROWS)

    def has(self, key: int) -> bool:
        return key in self.live()

    def is_equal(self, *, without: Collection[str] = ()) -> bool:
        """Return whether the target has the rows of the source. It may have the columns `without` besides."""
        live = {
            key: {name: value for name, value in row.items() if name not in without}
            for key, row in self.live().items()
        }
        return live == {row["k"]: row for row in self.source.rows()}


class DeltaReplica(Replica):
    """The same with a Delta table."""

    target = "delta"

    def target_options(self) -> dict[str, str]:
        return {"uri": f"{self.folder}/lake/{{table}}", "roll_seconds": "0"}

    def target_rows(self) -> list[Row]:
        table = self.folder / "lake/orders"
        if not DeltaTable.is_deltatable(str(table)):
            return []
        # `to_pyarrow_table` in a loop ends the process now and then (delta-rs 1.6, pyarrow 25).
        return pa.table(
            QueryBuilder().register("t", DeltaTable(table)).execute("select * from t")
        ).to_pylist()


class IcebergReplica(Replica):
    """The same with an Iceberg table."""

    target = "iceberg"

    @property
    def _catalog(self) -> dict[str, str]:
        lake = self.folder / "lake"
        lake.mkdir(exist_ok=True)
        return {"type": "sql", "uri": f"sqlite:///{lake}/catalog.db", "warehouse": f"file://{lake}/iceberg"}

    def target_options(self) -> dict[str, str]:
        properties = {f"catalog_properties.{name}": value for name, value in self._catalog.items()}
        return {"target_table": "shop.{table}", "catalog": "lake", "roll_seconds": "0", **properties}

    def target_rows(self) -> list[Row]:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NoSuchTableError

        try:
            table = load_catalog("lake", **self._catalog).load_table("shop.orders")
        except NoSuchTableError:
            return []
        return table.scan().to_arrow().to_pylist()


class Log(Replica):
    """Files with the changes, and with records that tell the columns."""

    target = "files"
    reads_again: ClassVar[dict[str, str]] = {}

    def target_options(self) -> dict[str, str]:
        told = {"format": "change_feed", "schema_events": "true"}
        return {"output": str(self.output), "shards": str(SHARDS), "roll_seconds": "0", **told}

    @property
    def output(self) -> Path:
        return self.folder / "log"

    def has(self, key: int) -> bool:
        return any(line.content.get("k") == key for line in read_lines(self.output))
