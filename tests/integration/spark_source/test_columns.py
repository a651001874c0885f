"""A real Spark query over a slot whose backlog has columns that the table does not have any more."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.spark import register
from tests.integration.postgres.conftest import Database, database, server

__all__ = ["database", "server"]
pytestmark = [pytest.mark.spark, pytest.mark.slow(seconds=20)]


@pytest.mark.campaign
def test_a_backlog_from_before_a_dropped_column_is_read_without_it(spark: Any, database: Database) -> None:
    database.execute("create table orders (id int primary key, value int, gone text)")
    database.publish()
    database.execute(
        "insert into orders values (1, 10, 'x')",
        "alter table orders drop column gone",
        "insert into orders values (2, 20)",
    )
    register(spark)
    query = spark.read.format("penstock-postgres").options(
        dsn=database.dsn,
        publication=database.publication,
        slot=database.slot,
        table="public.orders",
    )
    with pytest.raises(Exception, match=r"column gone.*schema_changes=ignore"):
        query.load().collect()
    rows = query.option("schema_changes", "ignore").load().select("id", "value", "_change_type").collect()
    assert sorted(map(tuple, rows)) == [(1, 10, "insert"), (2, 20, "insert")]
