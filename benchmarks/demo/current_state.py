"""The second act of `make run`: the same changes as Delta tables with the current rows, compared by one SQL query.

The pipeline is `penstock run spanner-to-delta`. The query runs in DuckDB, over the Delta tables and over the rows that
an ordinary Spanner client reads. It counts the rows that only one side has.
"""

from __future__ import annotations

import base64
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

from penstock_emulators.oracle.kill import Run

COLUMNS = {
    "Accounts": "AccountId, Owner, Balance, OpenedOn",
    "Transfers": "FromAccount, TransferId, ToAccount, Amount, Memo",
    "Orders": "OrderId, Customer, Urgent, Quantity, Price, Document, PlacedOn, PlacedAt, Tags, Parts, Costs",
}

QUERY = " union all ".join(
    f"select '{table}' as name, (select count(*) from {table}) as rows, "
    f"(select count(*) from (select {columns} from lake_{table} where not _penstock_deleted "
    f"except all select {columns} from {table})) + "
    f"(select count(*) from (select {columns} from {table} "
    f"except all select {columns} from lake_{table} where not _penstock_deleted)) as differing"
    for table, columns in COLUMNS.items()
)


def pipeline(
    folder: Path, source: dict[str, str], start: datetime, end: datetime, environment: dict[str, str]
) -> Run:
    """Return the run of the pipeline, which ends by itself when it has read up to `end`."""
    settings = {
        **source,
        "start": f"{start:%Y-%m-%dT%H:%M:%S.%fZ}",
        "end": f"{end:%Y-%m-%dT%H:%M:%S.%fZ}",
        "uri": f"{folder}/lake/{{table}}",
        "roll_seconds": "2",
    }
    command = [str(Path(sys.executable).with_name("penstock")), "run", "spanner-to-delta"]
    command += [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    command += ["--checkpoint-dir", str(folder / "checkpoint-delta"), "--progress", "line"]
    return Run(command, environment=environment)


def compare(folder: Path, database: Any) -> list[tuple[str, int, int]]:
    """Return for each table its name, its rows in the source, and how many rows only one side has."""
    session = duckdb.connect()
    session.execute("set timezone = 'UTC'")
    for table, columns in COLUMNS.items():
        lake = pa.table(DeltaTable(folder / "lake" / table).to_pyarrow_table())
        session.register(f"lake_{table}", lake)
        with database.snapshot() as snapshot:
            rows = list(snapshot.execute_sql(f"SELECT {columns} FROM {table}"))
        names = columns.split(", ")
        arrays = [
            _array([row[i] for row in rows], lake.schema.field(name).type) for i, name in enumerate(names)
        ]
        session.register(table, pa.Table.from_arrays(arrays, names=names))
    found: list[tuple[str, int, int]] = session.execute(QUERY).fetchall()
    return found


def _array(values: list[Any], type_: pa.DataType) -> pa.Array:
    """Return values of the Spanner client with the type of the lake; the client returns BYTES as base64."""
    if pa.types.is_binary(type_):
        values = [None if value is None else base64.b64decode(value) for value in values]
    return pa.array(values, type_)
