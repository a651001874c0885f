"""Record the messages of the real emulator as the golden files of this folder.

    python tests/golden/spanner/record.py

Writes `<case>.messages.json` (the PartialResultSet messages of one query, as protobuf JSON) and
`<case>.records.json` (the decoded records; review them before you commit). Partition tokens and
timestamps differ from recording to recording.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from google.cloud.spanner_v1.types import result_set
from google.protobuf.json_format import MessageToDict

from penstock.io.spanner.client import Client
from penstock.io.spanner.decode import Decoder
from penstock.io.spanner.query import ROOT, change_stream_query
from penstock.io.spanner.source import ChangeStream, Connection
from penstock_emulators.spanner import SpannerEmulator

PartialResultSet = result_set.PartialResultSet.pb()

HERE = Path(__file__).parent
PROJECT, INSTANCE, DATABASE = "golden", "golden", "golden"
COLUMNS = {
    "Id": "INT64 NOT NULL",
    "Bool": "BOOL",
    "Int64": "INT64",
    "Float64": "FLOAT64",
    "Float32": "FLOAT32",
    "Numeric": "NUMERIC",
    "String": "STRING(MAX)",
    "Bytes": "BYTES(MAX)",
    "Date": "DATE",
    "Timestamp": "TIMESTAMP",
    "Json": "JSON",
    "Bools": "ARRAY<BOOL>",
    "Int64s": "ARRAY<INT64>",
    "Float64s": "ARRAY<FLOAT64>",
    "Numerics": "ARRAY<NUMERIC>",
    "Strings": "ARRAY<STRING(MAX)>",
    "BytesList": "ARRAY<BYTES(MAX)>",
    "Dates": "ARRAY<DATE>",
    "Timestamps": "ARRAY<TIMESTAMP>",
    "Jsons": "ARRAY<JSON>",
}
CAPTURE_TYPES = ("OLD_AND_NEW_VALUES", "NEW_VALUES", "NEW_ROW")
DDL = [
    "CREATE TABLE Everything (" + ", ".join(f"`{n}` {t}" for n, t in COLUMNS.items()) + ") PRIMARY KEY (Id)",
    "CREATE TABLE KeysOnly (A STRING(MAX) NOT NULL, B INT64 NOT NULL) PRIMARY KEY (A, B DESC)",
    "CREATE SCHEMA Named",
    "CREATE TABLE Named.`Order` (Id INT64 NOT NULL, `From` STRING(MAX)) PRIMARY KEY (Id)",
    "CREATE CHANGE STREAM OLD_AND_NEW_VALUES FOR ALL OPTIONS (value_capture_type = 'OLD_AND_NEW_VALUES')",
    "CREATE CHANGE STREAM NEW_VALUES FOR Everything OPTIONS (value_capture_type = 'NEW_VALUES')",
    "CREATE CHANGE STREAM NEW_ROW FOR Everything OPTIONS (value_capture_type = 'NEW_ROW')",
]
INSERTS = [
    "INSERT INTO Everything (Id, Bool, Int64, Float64, Float32, Numeric, String, Bytes, Date, Timestamp,"
    " Json, Bools, Int64s, Float64s, Numerics, Strings, BytesList, Dates, Timestamps, Jsons)"
    " VALUES (1, TRUE, 9223372036854775807, 0.1, 0.5, NUMERIC '99999999999999999999999999999.999999999',"
    " 'Ünï “quoted” \\n \\u0001 🌊', b'\\x00\\xff', DATE '2026-02-28', TIMESTAMP '2026-01-02T03:04:05Z',"
    ' JSON \'{"a": [1, null, "x"]}\', [TRUE, FALSE], [1, -9223372036854775808], [1.5, -2e300],'
    " [NUMERIC '0.000000001'], ['a', ''], [b'abc'], [DATE '1999-12-31'],"
    " [TIMESTAMP '2026-01-02T03:04:05Z'], [JSON 'true', JSON '{\"k\": 1}'])",
    "INSERT INTO Everything (Id) VALUES (2)",
    "INSERT INTO Everything (Id, String, Bytes, Int64s, Strings, Json)"
    " VALUES (3, '', b'', [], [], JSON '[]')",
    "INSERT INTO KeysOnly (A, B) VALUES ('key', -5)",
    "INSERT INTO Named.`Order` (Id, `From`) VALUES (1, 'here')",
]
CHANGES = [
    "UPDATE Everything SET Int64 = NULL, String = 'other' WHERE Id = 1",
    "UPDATE Everything SET Bool = FALSE WHERE Id = 2",
    "DELETE FROM Everything WHERE Id = 1",
    "DELETE FROM KeysOnly WHERE TRUE",
]


def write(database: Any) -> None:
    """Commit every insert in one transaction, and then one transaction for each change."""

    def run(statements: list[str]) -> None:
        database.run_in_transaction(lambda t: [t.execute_update(statement) for statement in statements])

    run(INSERTS)
    for change in CHANGES:
        run([change])
    with database.batch() as batch:  # a mutation sends the columns that it names
        batch.update("Everything", ["Id", "Date"], [(3, "2026-03-01")])


def messages(client: Client, stream: str, start: int, end: int) -> dict[str, list[bytes]]:
    """Return the messages of the root query and of each partition that is live at `start`."""

    def ask(token: str, start: int, end: int) -> list[bytes]:
        return list(client.ask(change_stream_query(f"READ_{stream}", token, start, end, 1000), ""))

    answers = {"root": ask(ROOT, start, start)}
    tokens = [
        child.token
        for message in answers["root"]
        for record in Decoder().feed(message)
        for child in getattr(record, "child_partitions", ())
    ]
    for number, token in enumerate(tokens):
        answers[f"partition-{number}"] = ask(token, start, end)
    return answers


def save(case: str, sent: list[bytes]) -> None:
    decoder = Decoder()
    records = [record for message in sent for record in decoder.feed(message)]
    decoder.finish()
    _dump(f"{case}.messages.json", [MessageToDict(PartialResultSet.FromString(message)) for message in sent])
    _dump(f"{case}.records.json", [{"kind": type(r).__name__, **asdict(r)} for r in records])


def _dump(name: str, document: Any) -> None:
    text = json.dumps(document, indent=1, ensure_ascii=False, default=as_json)
    (HERE / name).write_text(text + "\n")


def as_json(value: Any) -> list[Any]:
    """Return the record as JSON: parents' tokens sorted, mods unchanged."""
    return sorted(value) if isinstance(value, frozenset) else list(value)


def main() -> None:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import spanner

    with SpannerEmulator.start(token_life_seconds=3) as emulator:
        os.environ.update(emulator.environment())
        emulator.create_database(PROJECT, INSTANCE, DATABASE, DDL)
        client = spanner.Client(
            project=PROJECT, credentials=AnonymousCredentials(), disable_builtin_metrics=True
        )
        start = time.time_ns()
        write(client.instance(INSTANCE).database(DATABASE))
        stream = ChangeStream(PROJECT, INSTANCE, DATABASE, "OLD_AND_NEW_VALUES", start, None)
        reader = Client(stream, Connection(emulator_host=emulator.host))
        for name in CAPTURE_TYPES:
            for part, sent in messages(reader, name, start, time.time_ns() + 7_000_000_000).items():
                save(f"{name.lower()}-{part}", sent)


if __name__ == "__main__":
    main()
