"""`penstock verify` with a replica in Spanner, beside a real job and a writer."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.io.spanner.sink.values import VERSION_COLUMNS, VERSIONS
from penstock_emulators.simulated_spanner import SimulatedSpanner
from penstock_emulators.spanner import SpannerEmulator
from tests.integration.postgres.conftest import Database
from tests.integration.verify.jobs import found, job_file, running, verify
from tests.support.writers import WriterThreads

pytestmark = [pytest.mark.spark, pytest.mark.long(seconds=60)]

ROWS, STEADY = 400, 40
"""Rows, and how many of them are not changed while the tables are compared."""
INSTANCE = ("penstock-test", "penstock-test")
DDL = [
    "CREATE TABLE orders (id INT64 NOT NULL, code STRING(36) NOT NULL, total NUMERIC, paid BOOL, made TIMESTAMP, "
    "day DATE, raw BYTES(MAX), share FLOAT64, tags ARRAY<STRING(MAX)>, more JSON) PRIMARY KEY (code, id)",
    "CREATE TABLE prices (price NUMERIC NOT NULL) PRIMARY KEY (price)",
]
PRICES = "create table prices (price numeric(12,4) primary key)"
ORDERS = (
    "create table orders (id int, code uuid, total numeric(10,2), paid boolean, made timestamptz, day date, raw bytea, "
    "share float8, tags text[], more jsonb, primary key (id, code))"
)
ROW = (
    "select n, md5(n::text)::uuid, n + 0.50, n % 2 = 0, timestamptz '2026-01-31' + n * interval '1 us', "
    "date '2026-01-31' - n, decode(md5(n::text), 'hex'), n / 3.0, array['a', null], "
    """jsonb_build_object('n', n, 'zero', 1.0, 'list', array[1.50, 2]) from generate_series(1, {}) n"""
)


class Writer(WriterThreads):
    """About 200 changes a second of rows that no test plants a fault in."""

    def __init__(self, database: Database) -> None:
        super().__init__(2, 0.008)
        self._sessions = [psycopg.connect(database.dsn, autocommit=True) for _ in range(2)]

    def write(self, rng: random.Random, seed: int, number: int) -> None:
        id_ = STEADY + 2 * rng.randrange((ROWS - STEADY) // 2) + seed
        statement = rng.choice(
            (
                "update orders set paid = not paid where id = %s",
                "update orders set share = -share where id = %s",
                "delete from orders where id = %s",
                "insert into orders select %s, md5('x')::uuid, 7.1 on conflict do nothing",
            )
        )
        self._sessions[seed].execute(statement, (id_,))


@contextmanager
def service(kind: str) -> Iterator[Any]:
    started = SimulatedSpanner.start(seed=1) if kind == "simulated" else SpannerEmulator.start()
    with started as running_service:
        running_service.create_database(*INSTANCE, "copy", DDL)
        yield running_service


@pytest.fixture(
    params=["simulated", pytest.param("google", marks=[pytest.mark.emulator, pytest.mark.campaign])]
)
def replica(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A database with empty tables, as its client has it."""
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import spanner

    with service(request.param) as started:
        for name, value in started.environment().items():
            monkeypatch.setenv(name, value)
        client = spanner.Client(INSTANCE[0], credentials=AnonymousCredentials(), disable_builtin_metrics=True)
        yield client.instance(INSTANCE[1]).database("copy")


def code_of(database: Database, id_: int) -> str:
    ((code,),) = database.rows(f"select code::text from orders where id = {id_}")
    return str(code)


def plant(replica: Any, codes: list[str]) -> None:
    """Make faults in the rows with the ids 1 to 6; `codes` has the other part of their keys."""
    from google.cloud.spanner import KeySet

    with replica.snapshot() as snapshot:
        versions = {
            key: row for row in snapshot.read(VERSIONS, VERSION_COLUMNS, KeySet(all_=True)) if (key := row[1])
        }
    with replica.batch() as batch:
        batch.delete("orders", KeySet([(codes[1], 1)]))
        batch.update("orders", ("code", "id", "more"), [(codes[2], 2, None)])
        batch.update("orders", ("code", "id", "share"), [(codes[3], 3, 1.25)])
        batch.update("orders", ("code", "id", "made"), [(codes[4], 4, "2026-01-31T00:00:00.000000001Z")])
        # A tombstone of a row that exists.
        batch.delete("orders", KeySet([(codes[5], 5)]))
        table, key, version, _ = versions[f'["5","{codes[5]}"]']
        batch.update(VERSIONS, VERSION_COLUMNS, [(table, key, version, "2026-01-31T00:00:00Z")])
        batch.insert("orders", ("code", "id"), [(codes[6], 7_000)])
        batch.insert("prices", ("price",), [("1.5",)])


def test_planted_faults_are_found_and_none_is_invented_while_rows_change(
    replica: Any, database: Database, tmp_path: Path
) -> None:
    database.execute(ORDERS, PRICES, f"insert into orders {ROW.format(ROWS)}")
    database.execute("insert into prices select n / 4.0 from generate_series(10, 60) n")
    database.publish("for table orders, prices")
    source = {"dsn": database.dsn, "publication": database.publication, "slot": database.slot}
    target = dict(zip(("target_project", "target_instance"), INSTANCE, strict=True))
    job = job_file(
        tmp_path,
        "postgres-to-spanner",
        **source,
        **target,
        target_database="copy",
        signal_folder=str(tmp_path / "signals"),
    )
    codes = ["", *(code_of(database, id_) for id_ in range(1, 7))]
    rows = {id_: f'[{id_},"{code}"]' for id_, code in enumerate(codes)}
    different = {
        ("public.orders", f"different {rows[2]}", ("more",)),
        ("public.orders", f"different {rows[3]}", ("share",)),
        ("public.orders", f"different {rows[4]}", ("made",)),
    }
    missing = {("public.orders", f"missing {rows[id_]}", ()) for id_ in (1, 5)}
    extra = {
        ("public.orders", f'extra [7000,"{codes[6]}"]', ()),
        ("public.prices", 'extra ["1.5000"]', ()),
    }
    with running(job), Writer(database):
        code, results, messages = verify(job, "--timeout", "3m")
        assert (code, found(results)) == (0, set()), (results, messages)
        plant(replica, codes)
        code, results, messages = verify(job, "--show-values", "--repair", "--timeout", "3m")
        assert (code, found(results)) == (1, different | missing | extra), (results, messages)
        repaired, remaining = found(results, "repaired"), found(results, "not_repaired")
        assert (repaired, remaining) == (different | missing, extra), (results, messages)
