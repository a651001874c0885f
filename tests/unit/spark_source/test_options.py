"""The texts of a data source's options, and what a Beam source would take for them."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import UsageError
from penstock.spark.options import has_password
from penstock.spark.postgres import PostgresDataSource
from penstock.spark.spanner import SpannerDataSource, SpannerSlices
from penstock.spark.ydb import YdbDataSource

GIVEN = {"project": "my-project", "instance": "main", "database": "shop", "change_stream": "S"}


def slices(**options: str) -> SpannerSlices:
    return SpannerDataSource({**GIVEN, **options}).stream()


def test_texts_become_the_options_of_the_beam_source() -> None:
    found = slices(
        start="2026-01-31T00:00:00Z",
        end="2026-01-31T00:00:01Z",
        mod_types="INSERT, DELETE",
        exclude_transaction_tags='["a,b"]',
        max_slice_seconds="2.5",
        database_role="reader",
        auto_failover="FALSE",
        include_replicas=":READ_ONLY",
    )
    assert found.end is not None
    assert found.start is not None
    assert found.end - found.start == 1_000_000_000
    assert found.max_slice == 2_500_000_000
    assert found.reader.selection.mod_types == {"INSERT", "DELETE"}
    assert found.reader.selection.excluded_tags == {"a,b"}
    assert found.reader.connection.database_role == "reader"
    assert not found.reader.connection.replicas.auto_failover


def test_names_are_compared_without_case() -> None:
    assert slices(MAX_TASKS="3").max_tasks == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tabel": "Orders"}, "no option 'tabel' .*; did you mean 'table'"),
        ({"max_tasks": "many"}, "max_tasks='many' is not a whole number"),
        ({"max_tasks": "0"}, "max_tasks=0 is out of range: pass a number from 1 to 10,000"),
        ({"plain_text": "maybe"}, "plain_text='maybe' is not true or false"),
        ({"rpc_priority": "URGENT"}, "rpc_priority='URGENT' is not one of LOW, MEDIUM, HIGH"),
        ({"tables": "[1]"}, r"tables='\[1\]' is not a JSON array of texts"),
        ({"start": "yesterday"}, "start: 'yesterday' is not an RFC 3339 timestamp"),
        ({"project": "projects/p"}, "project must be a bare name"),
        ({"change_stream": "S-1"}, "is not the name of a change stream"),
        ({"credentials": "{}"}, "no option credentials: options are texts"),
        ({"snapshot": "initial"}, "no option snapshot: read the rows with spark.read"),
        ({"maxRowsPerTrigger": "5"}, "no option maxrowspertrigger: .*Pass max_slice_seconds"),
        ({"signal_file": "/f"}, "no option signal_file: only the Beam source has it"),
        ({"table": "Orders", "tables": "Orders"}, "table and tables are both given"),
    ],
)
def test_a_wrong_option_is_named_with_the_fix(options: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):  # as UsageError is, and the errors of times are
        slices(**options)


def test_a_missing_option_is_named() -> None:
    with pytest.raises(
        UsageError, match="penstock-spanner needs the options instance, database, change_stream"
    ):
        SpannerDataSource({"project": "my-project"}).stream()


def test_a_reference_to_a_secret_is_read_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_TEST_ROLE", "hunter2")
    assert slices(database_role="${env:PENSTOCK_TEST_ROLE}").reader.connection.database_role == "hunter2"
    with pytest.raises(UsageError) as error:
        slices(rpc_priority="${env:PENSTOCK_TEST_ROLE}")
    assert "hunter2" not in str(error.value)


def test_every_option_of_the_beam_source_is_one_here_or_is_left_out_by_name() -> None:
    from penstock.io.spanner.options import SpannerStreamOptions
    from penstock.options import arguments_of
    from penstock.spark.spanner import _LEFT_OUT, SpannerSourceOptions

    beam: set[str] = set(arguments_of(SpannerStreamOptions))
    here: set[str] = set(arguments_of(SpannerSourceOptions))
    assert beam <= here
    own: Any = here - beam
    assert own == {"table", "timestamp_as_of", "max_tasks", "max_slice_seconds", "schema_changes"}
    assert _LEFT_OUT - {"maxrowspertrigger", "maxbytespertrigger"} <= beam


@pytest.mark.parametrize(
    ("dsn", "is_plain"),
    [
        ("host=db dbname=shop password=hunter2", True),
        ("host=db dbname=shop password = 'hun ter2'", True),
        ("postgresql://me:hunter2@db/shop", True),
        ("postgresql://me@db/shop?password=hunter2", True),
        ("host=db dbname=shop password=${file:/run/secrets/shop}", False),
        ("postgresql://me:${env:SHOP_PASSWORD}@db/shop", False),
        ("host=db dbname=shop password=${aws-secret:shop#password}", False),
        ("host=db dbname=shop user=me", False),
        ("${env:SHOP_DSN}", False),
    ],
)
def test_a_password_in_plain_text_is_refused_because_spark_shows_options(dsn: str, is_plain: bool) -> None:
    assert has_password(dsn) is is_plain


def test_the_refusal_of_a_password_does_not_show_it() -> None:
    given = {"dsn": "host=db dbname=shop password=hunter2", "publication": "p", "slot": "s"}
    with pytest.raises(UsageError, match="dsn has a password, and Spark shows options in plans") as error:
        PostgresDataSource(given).stream()
    assert "hunter2" not in str(error.value)


def test_options_of_postgres_are_checked_before_a_connection_is_made() -> None:
    given = {"dsn": "dbname=shop", "publication": "p", "slot": "s"}
    with pytest.raises(UsageError, match=r"'orders' has no schema; write public\.orders"):
        PostgresDataSource({**given, "table": "orders"}).stream()
    with pytest.raises(UsageError, match="no option end: "):
        PostgresDataSource({**given, "end": "2026-01-31T00:00:00Z"}).stream()
    with pytest.raises(UsageError, match="slot must consist of lower-case letters"):
        PostgresDataSource({**given, "slot": "S"}).stream()


def test_a_connection_string_may_be_a_uri() -> None:
    given = {"dsn": "postgresql://ada@db:6432/shop", "publication": "p", "slot": "s"}
    PostgresDataSource(given).stream()


YDB = {"endpoint": "grpc://localhost:2136", "database": "/local", "table": "t", "changefeed": "f"}


@pytest.mark.parametrize("name", ["token", "password"])
def test_a_secret_of_ydb_must_be_a_reference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UsageError, match=f"{name} is in plain text, and Spark shows options in plans"
    ) as error:
        YdbDataSource({**YDB, name: "hunter2"}).stream()
    assert "hunter2" not in str(error.value)
    monkeypatch.setenv("PENSTOCK_TEST_SECRET", "hunter2")
    user = {"user": "ada"} if name == "password" else {}
    made = YdbDataSource({**YDB, **user, name: "${env:PENSTOCK_TEST_SECRET}"}).stream()
    assert getattr(made.reader.connection, name) == "hunter2"
    assert "hunter2" not in repr(made)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"end": "2026-01-31T00:00:00Z"}, "no option end: a position has no time"),
        ({"max_slice_seconds": "5"}, "no option max_slice_seconds: a position has no time"),
        ({"timestampAsOf": "2026-01-31T00:00:00Z"}, "no option timestampasof: only Spanner keeps rows"),
        ({"layout": "rows"}, "layout='rows' is not one of table, events"),
        ({"snapshot": "when_needed"}, "snapshot='when_needed' is not one of never, initial"),
        ({"database": "local"}, "database must be an absolute path"),
        ({"maxRowsPerTrigger": "0"}, "max_rows_per_trigger=0 is out of range"),
        ({"endpoint": "localhost:2136"}, "endpoint must begin with grpc://"),
    ],
)
def test_options_of_ydb_are_checked_before_a_connection_is_made(options: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        YdbDataSource({**YDB, **options}).stream()


def test_every_option_of_the_beam_source_of_ydb_is_one_here_or_is_left_out_by_name() -> None:
    from penstock.io.ydb.options import YdbChangefeedOptions
    from penstock.options import arguments_of
    from penstock.spark.ydb import _LEFT_OUT, YdbSourceOptions

    beam: set[str] = set(arguments_of(YdbChangefeedOptions))
    assert set(arguments_of(YdbSourceOptions)) - beam == {
        "layout",
        "max_rows_per_trigger",
        "max_tasks",
        "schema_changes",
    }
    assert _LEFT_OUT - {"max_slice_seconds", "maxbytespertrigger", "timestampasof"} <= beam
