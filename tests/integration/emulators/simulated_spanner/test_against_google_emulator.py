"""The same client program against Google's emulator and the simulation: equal records, equal refusals.

Compared is what both have: partition tokens, timestamps, transaction ids and transaction tags differ. Left out
are the emulator's known faults (NaN, NULL in arrays, fractions of timestamps, REPLACE of a row that exists).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from google.api_core.exceptions import GoogleAPICallError
from google.auth.credentials import AnonymousCredentials
from google.cloud import spanner
from google.cloud.spanner_admin_database_v1.types import DatabaseDialect
from google.cloud.spanner_v1 import param_types

from penstock.compat import UTC
from penstock_emulators.simulated_spanner import SimulatedSpanner
from penstock_emulators.spanner import SpannerEmulator

pytestmark = [pytest.mark.emulator, pytest.mark.slow]

CAPTURES = ("OLD_AND_NEW_VALUES", "NEW_VALUES", "NEW_ROW", "NEW_ROW_AND_OLD_VALUES")
DDL = (
    "CREATE TABLE T (Id INT64 NOT NULL, S STRING(MAX), N NUMERIC, F FLOAT64, B BOOL, Y BYTES(MAX), D DATE, "
    "Moment TIMESTAMP, J JSON, Ss ARRAY<STRING(MAX)>, Ns ARRAY<INT64>) PRIMARY KEY (Id)",
    "CREATE TABLE Pairs (A STRING(20) NOT NULL, B INT64 NOT NULL, V INT64, W INT64) PRIMARY KEY (A, B DESC)",
)
STREAMS = {
    "Everything": "FOR ALL",
    "OneColumn": "FOR Pairs(V)",
    "Keys": "FOR Pairs()",
}
PG_DDL = (
    "CREATE TABLE t (id bigint NOT NULL PRIMARY KEY, s varchar, n numeric, f double precision, b boolean, "
    "y bytea, d date, at timestamptz, j jsonb, ss varchar[], ns bigint[])",
)
COLUMNS = ("Id", "S", "N", "F", "B", "Y", "D", "Moment", "J", "Ss", "Ns")
ROWS: tuple[tuple[Any, ...], ...] = (
    (
        1,
        'Zoë ✓ "quoted" \\ \n',
        "12345.678",
        0.5,
        True,
        b"AP8=",
        "2026-02-28",
        "2026-01-02T03:04:05Z",
        '{"b": [1, null], "a": "x"}',
        ["a", ""],
        [1, -5],
    ),
    (
        2,
        "",
        "-0.000000001",
        -2e300,
        False,
        b"",
        "0001-01-01",
        "2026-01-02T00:00:00Z",
        "[]",
        [],
        [9223372036854775807],
    ),
    (3, *[None] * 10),
)


def write(database: Any, table: str, columns: tuple[str, ...]) -> None:
    """Commit inserts, updates of some columns, an update to the same value, upserts and deletions."""
    keyed = columns[0]
    for kind, names, rows in (
        ("insert", columns, ROWS),
        ("update", (keyed, columns[1]), [(1, "new"), (3, "there now")]),
        ("update", (keyed, columns[1]), [(1, "new")]),
        ("insert_or_update", (keyed, columns[4], columns[2]), [(2, True, "7"), (4, None, "1.5")]),
    ):
        with database.batch() as batch:
            getattr(batch, kind)(table, names, rows)
    with database.batch() as batch:
        batch.delete(table, spanner.KeySet(keys=[[1], [99]]))
        batch.insert(table, (keyed,), [(5,)])
        batch.delete(table, spanner.KeySet(keys=[[5]]))


def write_pairs(database: Any) -> None:
    """Commit to the other table. Rows are in key order: the emulator records them so, however they are written."""
    with database.batch() as batch:
        batch.insert("Pairs", ("A", "B", "V", "W"), [("a", 2, 2, 2), ("a", 1, 1, 1), ("b", 1, 3, 3)])
    with database.batch() as batch:
        batch.update("Pairs", ("A", "B", "V"), [("a", 2, 20)])
        batch.update("Pairs", ("A", "B", "W"), [("a", 1, 10)])
    with database.batch() as batch:
        span = spanner.KeyRange(start_closed=["a"], end_closed=["a"])
        batch.delete("Pairs", spanner.KeySet(ranges=[span]))


Opened = Callable[..., Any]


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[str, str]]:
    with SpannerEmulator.start() as emulator, SimulatedSpanner.start(partitions=1) as simulation:
        yield emulator.host, simulation.host


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    """Make a database on a service, with an ordinary client of it."""
    for name in ("", "_FOR_RW", "_PARTITIONED_OPS"):
        monkeypatch.setenv(f"GOOGLE_CLOUD_SPANNER_MULTIPLEXED_SESSIONS{name}", "false")

    def make(host: str, name: str, ddl: list[str], *, postgresql: bool = False) -> Any:
        monkeypatch.setenv("SPANNER_EMULATOR_HOST", host)
        client = spanner.Client(project="p", credentials=AnonymousCredentials(), disable_builtin_metrics=True)
        instance = client.instance("test", configuration_name="projects/p/instanceConfigs/emulator-config")
        if not instance.exists():
            instance.create().result(30)
        dialect = DatabaseDialect.POSTGRESQL if postgresql else DatabaseDialect.GOOGLE_STANDARD_SQL
        database = instance.database(name, database_dialect=dialect)
        database.create().result(30)
        database.update_ddl(ddl).result(30)
        return database

    return make


def ask(database: Any, sql: str, **params: Any) -> list[Any]:
    types = {
        name: param_types.STRING if name in ("token", "p3") else param_types.TIMESTAMP for name in params
    }
    with database.snapshot() as snapshot:
        return list(snapshot.execute_sql(sql, params=params, param_types=types))


def records(database: Any, stream: str, start: datetime, end: datetime) -> list[Any]:
    """Return what is comparable of all data change records, in order."""
    sql = f"SELECT ChangeRecord FROM READ_{stream}(@start, @end, @token, 1000)"
    root = ask(database, sql, start=start, end=start, token=None)
    tokens = [child[0] for ((struct,),) in root for record in struct[2] for child in record[2]]
    rows = [row for token in tokens for row in ask(database, sql, start=start, end=end, token=token)]
    data = [record for ((struct,),) in rows for record in struct[0]]
    data.sort(key=lambda record: (record[0], record[1]))
    sides = (dict, dict, dict)
    return [
        [
            *record[3:5],
            [[name, kind.serialize(), key, place] for name, kind, key, place in record[5]],
            [[convert(side) for convert, side in zip(sides, mod, strict=True)] for mod in record[6]],
            *record[7:11],
            record[12],
        ]
        for record in data
    ]


@pytest.mark.parametrize("capture", CAPTURES)
def test_both_record_the_same_changes(hosts: tuple[str, str], opened: Opened, capture: str) -> None:
    found = []
    for host in hosts:
        streams = [
            f"CREATE CHANGE STREAM {name} {what} OPTIONS (value_capture_type = '{capture}')"
            for name, what in STREAMS.items()
        ]
        database = opened(host, f"db-{capture.lower().replace('_', '-')}"[:28], [*DDL, *streams])
        time.sleep(0.05)  # the emulator dates the streams a little ahead
        start = datetime.now(UTC)
        write(database, "T", COLUMNS)
        write_pairs(database)
        end = datetime.now(UTC) + timedelta(milliseconds=100)
        found.append({name: records(database, name, start, end) for name in STREAMS})
    # By the documentation a stream of some columns records changes of these only. The emulator records a row
    # also for changes of other columns, if the capture type is that of whole rows.
    compared = STREAMS.keys() - ({"OneColumn"} if capture.startswith("NEW_ROW") else set())
    for name in compared:
        assert found[0][name] == found[1][name]
    assert len(found[1]["Everything"]) > len(found[1]["OneColumn"]) > len(found[1]["Keys"]) > 0


def pg_records(database: Any, start: datetime, end: datetime) -> list[Any]:
    sql = 'SELECT * FROM "spanner"."read_json_changes"($1, $2, $3, 1000, null)'
    root = ask(database, sql, p1=start, p2=start, p3=None)
    tokens = [each["token"] for (row,) in root for each in row["child_partitions_record"]["child_partitions"]]
    rows = [row for token in tokens for (row,) in ask(database, sql, p1=start, p2=end, p3=token)]
    data = [dict(row["data_change_record"]) for row in rows if "data_change_record" in row]
    data.sort(key=lambda record: (record["commit_timestamp"], record["record_sequence"]))
    for record in data:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00", record.pop("commit_timestamp"))
        del record["server_transaction_id"], record["transaction_tag"]
    return data


def test_both_record_the_same_changes_in_postgresql(hosts: tuple[str, str], opened: Opened) -> None:
    found = []
    for host in hosts:
        stream = "CREATE CHANGE STREAM changes FOR ALL WITH (value_capture_type = 'NEW_ROW_AND_OLD_VALUES')"
        database = opened(host, "pg", [*PG_DDL, stream], postgresql=True)
        time.sleep(0.05)
        start = datetime.now(UTC)
        write(database, "t", ("id", "s", "n", "f", "b", "y", "d", "at", "j", "ss", "ns"))
        end = datetime.now(UTC) + timedelta(milliseconds=100)
        found.append(pg_records(database, start, end))
    assert found[0] == found[1]
    assert found[1]


HOUR = timedelta(hours=1)
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "start too old": ("SELECT ChangeRecord FROM READ_Everything(@s, NULL, NULL, 1000)", {"s": -25 * HOUR}),
    "start too late": ("SELECT ChangeRecord FROM READ_Everything(@s, NULL, NULL, 1000)", {"s": HOUR}),
    "end before start": (
        "SELECT ChangeRecord FROM READ_Everything(@s, @e, NULL, 1000)",
        {"s": 0 * HOUR, "e": -HOUR},
    ),
    "no start": ("SELECT ChangeRecord FROM READ_Everything(NULL, NULL, NULL, 1000)", {}),
    "no heartbeat": ("SELECT ChangeRecord FROM READ_Everything(@s, NULL, NULL, NULL)", {"s": 0 * HOUR}),
    "short heartbeat": ("SELECT ChangeRecord FROM READ_Everything(@s, NULL, NULL, 99)", {"s": 0 * HOUR}),
    "foreign token": ("SELECT ChangeRecord FROM READ_Everything(@s, NULL, 'nothing', 1000)", {"s": 0 * HOUR}),
    "more than the function": (
        "SELECT ChangeRecord FROM READ_Everything(@s, NULL, NULL, 1000) LIMIT 1",
        {"s": 0 * HOUR},
    ),
    "unknown table": ("SELECT * FROM Nowhere", {}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_both_refuse_the_same_queries(hosts: tuple[str, str], opened: Opened, case: str) -> None:
    sql, offsets = REFUSED[case]
    answers = []
    for host in hosts:
        name = f"refused-{list(REFUSED).index(case)}"
        database = opened(host, name, [*DDL, "CREATE CHANGE STREAM Everything FOR ALL"])
        time.sleep(0.05)
        now = datetime.now(UTC)
        params = {name: now + offset for name, offset in offsets.items()}
        with pytest.raises(GoogleAPICallError) as error:
            ask(database, sql, **params)
        answers.append((error.value.grpc_status_code, beginning(error.value.message)))
    assert answers[0][0] == answers[1][0]
    if case != "unknown table":
        assert answers[0][1] == answers[1][1]


def beginning(message: str) -> str:
    """Return the start of a message, before the first part that differs: a time, a token or the client's request id."""
    return re.split(r"\d{4}-\d\d-\d\d|`|, ?request_id|request_id", message)[0]


def test_both_refuse_the_same_mutations(hosts: tuple[str, str], opened: Opened) -> None:
    answers = []
    for host in hosts:
        database = opened(host, "mutations", list(DDL))
        with database.batch() as batch:
            batch.insert("Pairs", ("A", "B"), [("a", 1)])
        codes = []
        for kind, table, columns, row in (
            ("insert", "Pairs", ("A", "B"), ("a", 1)),
            ("update", "Pairs", ("A", "B", "V"), ("a", 2, 1)),
            ("insert", "Pairs", ("A", "V"), ("b", 1)),
            ("insert", "Nowhere", ("A",), ("b",)),
            ("insert", "Pairs", ("A", "B", "Z"), ("b", 1, 1)),
            ("insert", "Pairs", ("A", "B"), ("b" * 21, 1)),
            ("insert", "T", ("Id", "N"), (1, "1" * 40)),
            ("insert", "T", ("Id", "D"), (1, "2026-02-30")),
            ("insert", "T", ("Id", "B"), (1, "yes")),
        ):
            with pytest.raises(GoogleAPICallError) as error, database.batch() as batch:
                getattr(batch, kind)(table, columns, [row])
            codes.append((kind, columns, error.value.grpc_status_code.name))
        answers.append(codes)
    assert answers[0] == answers[1]
