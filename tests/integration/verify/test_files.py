"""`penstock verify` of the files of a real job, beside a writer: rows are those of their replayed changes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import fastavro
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tests.integration.postgres.conftest import Database
from tests.integration.verify import test_postgres as planting
from tests.integration.verify.jobs import found, job_file, running, verify
from tests.integration.verify.test_postgres import PLANTED_FROM as FIRST
from tests.integration.verify.test_postgres import Writer, filled
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.long(seconds=80)]

TYPES = (
    "id uuid primary key, price numeric, exact numeric(38,9), at time, zoned timetz, moment timestamp, day date, "
    "span interval, amounts numeric(6,2)[], place point"
)
ROW_OF_TYPES = (
    "insert into types select gen_random_uuid(), 1.50, 12345678901234567890123456789.123456789, '12:34:56.789', "
    "'12:34:56+02', '2500-01-31 12:00:00.123456', '9000-02-28', '1 month 3 days -4.5 s', '{{1.5,null}}', '(1,2)' "
    "from generate_series(1, {})"
)
NO_ID = "00000000-0000-0000-0000-000000000001"

REPAIRED = {
    ("public.orders", f"missing [{FIRST}]", ()),
    ("public.orders", f"different [{FIRST + 1}]", ("customer",)),
    ("public.orders", f"different [{FIRST + 2}]", ("more",)),
    ("public.types", f'different ["{NO_ID}"]', ("price",)),
}
EXTRA = {("public.orders", f"extra [{FIRST - 1}]", ())}

Rows = list[dict[str, Any]]


def changed(rows: Rows) -> Rows:
    """Return the rows of a file of orders with faults: in the only changes of their keys."""
    rows = [each for each in rows if each["key"]["id"] != FIRST]
    extra: Rows = []
    for row in rows:
        if row["key"]["id"] == FIRST + 1:
            row["after"]["customer"] = "another one"
        elif row["key"]["id"] == FIRST + 2:
            row["after"]["more"] = None
        elif row["key"]["id"] == FIRST + 3:
            key = {"id": FIRST - 1}
            extra = [{**row, "key": key, "after": row["after"] | key}]
    return rows + extra


def without_a_price(rows: Rows) -> Rows:
    """Return the rows of a file of types with a fault."""
    for row in rows:
        if row["key"]["id"] == NO_ID:
            row["after"]["price"] = None
    return rows


def plant_in_parquet(file: Path, change: Callable[[Rows], Rows]) -> None:
    table = parquet.read_table(file, partitioning=None)
    parquet.write_table(pa.Table.from_pylist(change(table.to_pylist()), table.schema), file)


def plant_in_avro(file: Path, change: Callable[[Rows], Rows]) -> None:
    with file.open("rb") as stream:
        reader = fastavro.reader(stream)
        schema, rows = reader.writer_schema, change(list(reader))
    content = io.BytesIO()
    fastavro.writer(content, schema, rows)
    file.write_bytes(content.getvalue())


def plant_in_envelopes(file: Path, change: Callable[[Rows], Rows]) -> None:
    messages = [json.loads(line) for line in file.read_text().splitlines()]
    rows = change([each["value"] for each in messages])
    file.write_text("".join(json.dumps({**messages[0], "value": row}) + "\n" for row in rows))


def plant_in_native_lines(file: Path, change: Callable[[Rows], Rows]) -> None:
    def row(line: dict[str, Any]) -> dict[str, Any]:
        id_ = (line["new"] or line["old"])["id"]
        return {"line": line, "key": {"id": int(id_) if id_.isdecimal() else id_}, "after": line["new"]}

    rows = change([row(json.loads(line)) for line in file.read_text().splitlines()])
    lines = [
        {**each["line"], "new": each["after"] and {**each["after"], "id": str(each["key"]["id"])}}
        for each in rows
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


class Files(NamedTuple):
    """Files of a sink, and how faults are planted in them."""

    sink: str
    ending: str
    plant: Callable[[Path, Callable[[Rows], Rows]], None]
    parameters: Mapping[str, Any] = MappingProxyType({})


FILES = {
    "avro": Files("avro", "avro", plant_in_avro),
    "parquet": Files("parquet", "parquet", plant_in_parquet),
    "native": Files("files", "jsonl", plant_in_native_lines),
    "envelope": Files(
        "files", "jsonl", plant_in_envelopes, {"format": "envelope", "lines": "messages", "shards": 2}
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("avro", marks=pytest.mark.campaign),
        pytest.param("envelope", marks=pytest.mark.campaign),
        "native",
        "parquet",
    ],
)
def test_planted_faults_of_files_are_found_and_repaired_while_rows_change(
    name: str, database: Database, tmp_path: Path
) -> None:
    files = FILES[name]
    # With `default` identity an UPDATE does not send large values that it leaves as they are.
    filled(database).execute(
        f"update orders set customer = repeat('long ', 10000) where id >= {planting.CHANGING_FROM}",
        "alter table orders alter customer set storage external",
        f"create table types ({TYPES})",
        ROW_OF_TYPES.format(10),
        f"insert into types (id, price) values ('{NO_ID}', 1.50)",
        # Beyond the last year of Python.
        "create table far (id int primary key, moment timestamp)",
        "insert into far values (1, '20000-01-31 12:00:00.123456')",
        f"alter publication {database.publication} add table types, far",
    )
    source = {"dsn": database.dsn, "publication": database.publication, "slot": database.slot}
    signals = {"signal_folder": str(tmp_path / "signals")}
    parameters = {**source, **signals, **files.parameters, "output": str(tmp_path / "lake")}
    job = job_file(tmp_path, f"postgres-to-{files.sink}", **parameters)
    compare: Callable[..., Any] = lambda *more: verify(job, "--show-values", "--timeout", "3m", *more)  # noqa: E731
    with running(job):
        with Writer(database):
            code, results, messages = compare()
            assert (code, found(results)) == (0, set()), (results, messages)
        wait_until(lambda: (tmp_path / "lake").is_dir())
        for table, change in (("orders", changed), ("types", without_a_price)):
            for file in (tmp_path / "lake" / f"public.{table}").rglob(f"*.{files.ending}"):
                files.plant(file, change)
        with Writer(database):
            code, results, messages = compare("--repair")
            assert (code, found(results)) == (1, REPAIRED | EXTRA), (results, messages)
            assert found(results, "repaired") == REPAIRED, (results, messages)
            database.execute("truncate lines", "insert into lines values (1, 'new')")
            code, results, messages = compare("--table", "lines")
            assert (code, results[0]["rows"]) == (0, 1), (results, messages)
