"""DDL in both dialects, and the little SQL that the simulation understands."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_emulators.simulated_spanner.column_type import GOOGLESQL, POSTGRESQL
from penstock_emulators.simulated_spanner.database import Database
from penstock_emulators.simulated_spanner.errors import ServiceError
from penstock_emulators.simulated_spanner.statement import Result, execute
from penstock_emulators.simulated_spanner.transaction import ReadWrite, Snapshot
from tests.unit.emulators.simulated_spanner.conftest import START, database, write


def run(made: Database, sql: str, **params: Any) -> Result:
    view = Snapshot(made, made.last)
    return execute(made.schema, sql, {name: (value, None) for name, value in params.items()}, view, "now")


@pytest.fixture
def filled() -> Database:
    made = database()
    made.commit([write("insert", Id=str(n), V=str(n * n), W=f"w{n}") for n in range(5)], START)
    return made


@pytest.mark.parametrize(
    ("sql", "params", "rows"),
    [
        ("SELECT COUNT(*) FROM T", {}, [["5"]]),
        ("SELECT V FROM T WHERE Id = @id", {"id": "3"}, [["9"]]),
        ("SELECT V FROM T WHERE Id = 3 AND W = 'w3'", {}, [["9"]]),
        ("SELECT Id FROM T WHERE V > 3 AND V <= 9 ORDER BY Id DESC", {}, [["3"], ["2"]]),
        ("SELECT Id FROM T WHERE Id = 1 OR Id = 4", {}, [["1"], ["4"]]),
        ("SELECT Id FROM T WHERE NOT Id = 0 LIMIT 1", {}, [["1"]]),
        ("SELECT Id FROM T WHERE Id IN (1, 2, 99)", {}, [["1"], ["2"]]),
        ("SELECT t.Id FROM T AS t WHERE t.W LIKE '%3'", {}, [["3"]]),
        ("SELECT Id FROM T WHERE W IS NULL", {}, []),
        ("SELECT Id + 1 FROM T WHERE Id BETWEEN 1 AND 2", {}, [["2"], ["3"]]),
        ("SELECT 1", {}, [["1"]]),
        ("SELECT CURRENT_TIMESTAMP()", {}, [["now"]]),
        ("SELECT change_stream_name FROM information_schema.change_streams", {}, [["S"]]),
        (
            "SELECT option_value FROM information_schema.database_options WHERE option_name = 'database_dialect'",
            {},
            [[GOOGLESQL]],
        ),
    ],
)
def test_a_supported_query_returns_its_rows(
    filled: Database, sql: str, params: dict[str, str], rows: list[list[Any]]
) -> None:
    assert run(filled, sql, **params).rows == rows


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM T JOIN U",
        "SELECT SUM(V) FROM T",
        "SELECT Nothing FROM T",
        "SELECT * FROM Nothing",
        "FROM T",
    ],
)
def test_other_sql_is_refused(filled: Database, sql: str) -> None:
    with pytest.raises(ServiceError) as error:
        run(filled, sql)
    assert error.value.code in ("UNIMPLEMENTED", "INVALID_ARGUMENT")


def test_dml_of_a_transaction_sees_the_dml_before_it(filled: Database) -> None:
    transaction = ReadWrite(filled, b"")
    for sql, count in (
        ("INSERT INTO T (Id, V) VALUES (10, 1), (11, 2)", 2),
        ("UPDATE T SET V = V + 5, W = 'new' WHERE Id >= 10", 2),
        ("DELETE FROM T WHERE Id = 11", 1),
        ("UPDATE T SET V = 0 WHERE Id = 11", 0),
    ):
        result = execute(filled.schema, sql, {}, transaction)
        assert result.row_count == count
        transaction.apply(result.mutations or [])
    filled.commit(transaction.mutations, START, reads=transaction.reads)
    assert run(filled, "SELECT Id, V, W FROM T WHERE Id > 9").rows == [["10", "6", "new"]]


def test_postgresql_ddl_and_information_schema() -> None:
    made = Database(POSTGRESQL)
    made.apply_ddl(
        [
            'CREATE TABLE "Mixed" (id bigint NOT NULL PRIMARY KEY, t timestamp with time zone, n numeric[])',
            "CREATE CHANGE STREAM cs FOR \"Mixed\"(t) WITH (retention_period = '36h')",
            "ALTER CHANGE STREAM cs SET (exclude_insert = true)",
            "ALTER CHANGE STREAM cs RESET (retention_period)",
        ],
        START,
    )
    columns = "SELECT column_name, spanner_type FROM information_schema.columns WHERE table_name = $1"
    assert run(made, columns, p1="Mixed").rows == [
        ["id", "bigint"],
        ["t", "timestamp with time zone"],
        ["n", "numeric[]"],
    ]
    options = "SELECT option_name, option_value FROM information_schema.change_stream_options"
    assert run(made, options).rows == [["exclude_insert", "true"]]
    assert run(made, 'SELECT "all" FROM information_schema.change_streams').rows == [["NO"]]


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE T (Id INT64) PRIMARY KEY (Id)",
        "CREATE TABLE U (Id NUMBER) PRIMARY KEY (Id)",
        "CREATE TABLE U (Id INT64, G INT64 AS (Id) STORED) PRIMARY KEY (Id)",
        "CREATE CHANGE STREAM S FOR ALL",
        "CREATE CHANGE STREAM X FOR T(Id)",
        "CREATE CHANGE STREAM X FOR T(Nothing)",
        "CREATE CHANGE STREAM X FOR T, T",
        "CREATE CHANGE STREAM X FOR ALL OPTIONS (retention_period = '8d')",
        "CREATE CHANGE STREAM X FOR ALL OPTIONS (value_capture_type = 'ALL')",
        "CREATE CHANGE STREAM X FOR ALL OPTIONS (partition_mode = 'OTHER')",
        "ALTER CHANGE STREAM S SET OPTIONS (partition_mode = 'MUTABLE_KEY_RANGE')",
        "DROP CHANGE STREAM X",
        "ALTER TABLE T DROP COLUMN Id",
        "SELECT 1",
    ],
)
def test_wrong_ddl_is_refused_and_changes_nothing(statement: str) -> None:
    made = database()
    before = list(made.schema.statements)
    with pytest.raises(ServiceError):
        made.apply_ddl([statement], START)
    assert made.schema.statements == before


def test_a_fourth_stream_of_one_table_is_refused() -> None:
    made = database()
    made.apply_ddl([f"CREATE CHANGE STREAM X{n} FOR T" for n in range(2)], START)
    with pytest.raises(ServiceError, match="more than 3 Change Streams"):
        made.apply_ddl(["CREATE CHANGE STREAM X2 FOR T"], START)
