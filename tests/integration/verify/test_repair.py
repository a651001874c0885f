"""`penstock verify --repair` beside a real job and a writer: each kind of fault, also what a snapshot cannot repair."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.io.columnar.table_rows import DELETED, KEY, VERSION
from tests.integration.postgres.conftest import Database
from tests.integration.verify import test_postgres as planting
from tests.integration.verify.jobs import found, running, verify
from tests.integration.verify.test_postgres import PLANTED_FROM as FIRST
from tests.integration.verify.test_postgres import Writer, filled, job_of

pytestmark = [pytest.mark.spark, pytest.mark.slow(seconds=90), pytest.mark.campaign]

FUTURE = "9" * 24
"""A place in the log that no server reaches."""

REPAIRED = {
    f"missing [{FIRST}]",
    f"different [{FIRST + 1}]",  # another value
    f"different [{FIRST + 2}]",  # NULL
    f"different [{FIRST + 4}]",  # swapped with the next one
    f"different [{FIRST + 5}]",
    f"missing [{FIRST + 6}]",  # a tombstone
    f"different [{FIRST + 7}]",  # an old value with the newest version of the table
}
NOT_REPAIRED = {f"extra [{FIRST - 1}]", f"different [{FIRST + 8}]"}


def plant_in_postgres(database: Database, folder: Path) -> None:
    both = f"{FIRST + 4}, {FIRST + 5}"
    other = f"(select customer from replica.orders other where other.id = {2 * FIRST + 9} - orders.id)"
    database.execute(
        f"delete from replica.orders where id = {FIRST}",
        f"update replica.orders set total = total + 1 where id = {FIRST + 1}",
        f"update replica.orders set more = null where id = {FIRST + 2}",
        f"update replica.orders set customer = {other} where id in ({both})",
        "update replica.orders set customer = null, total = null, paid = null, at = null, tags = null, more = null, "
        f"_penstock_deleted = true where id = {FIRST + 6}",
        "update replica.orders set total = 0, _penstock_version = (select max(_penstock_version) from replica.orders "
        f"where _penstock_version < '{FUTURE}') where id = {FIRST + 7}",
        f"update replica.orders set total = 0, _penstock_version = '{FUTURE}' || substr(_penstock_version, 25) "
        f"where id = {FIRST + 8}",
        f"delete from replica.orders where id = {FIRST - 1}",
        f"insert into replica.orders select {FIRST - 1}, customer, total, paid, at, tags, more, _penstock_version, "
        f"false, now() from replica.orders where id = {FIRST + 3}",
    )


def planted(orders: pa.Table) -> pa.Table:
    """Return the rows of the table orders with the faults."""
    rows = {row["id"]: row for row in orders.to_pylist()}
    newest = max(row[VERSION] for row in rows.values() if not row[VERSION].startswith(FUTURE))
    del rows[FIRST]
    rows[FIRST + 1]["total"] += 1
    rows[FIRST + 2]["more"] = None
    one, other = rows[FIRST + 4], rows[FIRST + 5]
    one["customer"], other["customer"] = other["customer"], one["customer"]
    rows[FIRST + 6] |= dict.fromkeys(("customer", "total", "paid", "at", "tags", "more"))
    rows[FIRST + 6][DELETED] = True
    rows[FIRST + 7] |= {"total": 0, VERSION: newest}
    rows[FIRST + 8] |= {"total": 0, VERSION: FUTURE + rows[FIRST + 8][VERSION][24:]}
    rows[FIRST - 1] = {**rows[FIRST + 3], "id": FIRST - 1, KEY: f"[{FIRST - 1}]"}
    rows[FIRST + 10]["more"] = "no JSON"
    return pa.Table.from_pylist([*rows.values(), rows[FIRST + 9]], schema=orders.schema)


def unchanged(lines: pa.Table) -> pa.Table:
    return lines


PLANT: dict[str, Callable[[Database, Path], None]] = {
    "postgresql": plant_in_postgres,
    "delta": planting.plant_in_delta,
    "iceberg": planting.plant_in_iceberg,
}
NO_JSON, TWICE = f"different [{FIRST + 10}]", f"repeated [{FIRST + 9}]"
OF_SINK: dict[str, tuple[set[str], set[str]]] = {
    "postgresql": (set(), set()),
    # A merge of Delta changes both copies. Iceberg replaces all rows of a key.
    "delta": ({NO_JSON}, {TWICE}),
    "iceberg": ({NO_JSON, TWICE}, set()),
}
"""Further faults that are repaired and that are not."""


@pytest.mark.parametrize("sink", PLANT)
def test_rows_that_differ_are_written_again_and_the_others_are_named(
    sink: str, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planting, "planted", planted)
    monkeypatch.setattr(planting, "with_extra_line", unchanged)
    repaired, remaining = REPAIRED | OF_SINK[sink][0], NOT_REPAIRED | OF_SINK[sink][1]
    filled(database).execute("create schema replica")
    job = job_of(database, tmp_path, sink)
    with running(job):
        with Writer(database):
            assert verify(job, "--timeout", "5m")[0] == 0
            PLANT[sink](database, tmp_path)
            code, results, messages = verify(job, "--show-values", "--repair", "--timeout", "5m")
            assert (code, kinds(results, "repaired")) == (1, repaired), (results, messages)
            assert kinds(results, "not_repaired") == remaining, (results, messages)
        # Without a writer the server writes no log, and the same rows are wrong for a second time.
        PLANT[sink](database, tmp_path)
        code, results, messages = verify(job, "--show-values", "--repair", "--timeout", "5m")
        assert (code, kinds(results, "repaired")) == (1, repaired), (results, messages)
        code, results, messages = verify(job, "--show-values", "--timeout", "5m")
        assert (code, kinds(results, "differences")) == (1, remaining), (results, messages)
        assert not list((tmp_path / "signals").iterdir())


def test_a_value_that_the_source_could_not_have_is_repaired(database: Database, tmp_path: Path) -> None:
    filled(database).execute("create schema replica")
    job = job_of(database, tmp_path, "postgresql")
    with running(job):
        assert verify(job, "--timeout", "5m")[0] == 0
        database.execute(
            "alter table replica.orders alter column total type text",
            f"update replica.orders set total = 'no number' where id = {FIRST}",
        )
        code, results, messages = verify(job, "--show-values", "--repair", "--timeout", "5m")
    assert (code, kinds(results, "repaired")) == (0, {f"different [{FIRST}]"}), (results, messages)


def kinds(results: Any, field: str) -> set[str]:
    return {kind for table, kind, _ in found(results, field) if table == "public.orders"}
