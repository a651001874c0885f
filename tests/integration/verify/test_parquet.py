"""`penstock verify` of the Parquet files of a real job, beside a writer: rows are those of their replayed changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tests.integration.postgres.conftest import Database
from tests.integration.verify import test_postgres as planting
from tests.integration.verify.jobs import found, job_file, running, verify
from tests.integration.verify.test_postgres import PLANTED_FROM as FIRST
from tests.integration.verify.test_postgres import Writer, filled
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.long(seconds=60)]

REPAIRED = {
    ("public.orders", f"missing [{FIRST}]", ()),
    ("public.orders", f"different [{FIRST + 1}]", ("customer",)),
    ("public.orders", f"different [{FIRST + 2}]", ("more",)),
}
EXTRA = {("public.orders", f"extra [{FIRST - 1}]", ())}


def plant(folder: Path) -> None:
    """Change rows of published files: the only changes of their keys."""
    extra: list[dict[str, Any]] = []
    for file in folder.rglob("*.parquet"):
        table = parquet.read_table(file, partitioning=None)
        rows = [each for each in table.to_pylist() if each["key"]["id"] != FIRST]
        for row in rows:
            if row["key"]["id"] == FIRST + 1:
                row["after"]["customer"] = "another one"
            elif row["key"]["id"] == FIRST + 2:
                row["after"]["more"] = None
            elif row["key"]["id"] == FIRST + 3:
                key = {"id": FIRST - 1}
                extra = [{**row, "key": key, "after": row["after"] | key}]
        parquet.write_table(pa.Table.from_pylist(rows + extra, table.schema), file)
        extra = []


def test_planted_faults_of_files_are_found_and_repaired_while_rows_change(
    database: Database, tmp_path: Path
) -> None:
    # With `default` identity an UPDATE does not send large values that it leaves as they are.
    filled(database).execute(
        f"update orders set customer = repeat('long ', 10000) where id >= {planting.CHANGING_FROM}",
        "alter table orders alter customer set storage external",
    )
    source = {"dsn": database.dsn, "publication": database.publication, "slot": database.slot}
    signals = {"signal_folder": str(tmp_path / "signals")}
    job = job_file(tmp_path, "postgres-to-parquet", **source, **signals, output=str(tmp_path / "lake"))
    compare: Callable[..., Any] = lambda *more: verify(job, "--show-values", "--timeout", "3m", *more)  # noqa: E731
    with running(job):
        with Writer(database):
            code, results, messages = compare()
            assert (code, found(results)) == (0, set()), (results, messages)
        wait_until(lambda: (tmp_path / "lake").is_dir())
        plant(tmp_path / "lake" / "public.orders")
        with Writer(database):
            code, results, messages = compare("--repair")
            assert (code, found(results)) == (1, REPAIRED | EXTRA), (results, messages)
            assert found(results, "repaired") == REPAIRED, (results, messages)
            database.execute("truncate lines", "insert into lines values (1, 'new')")
            code, results, messages = compare("--table", "lines")
            assert (code, results[0]["rows"]) == (0, 1), (results, messages)
