"""The target of the Spanner sink: names of tables, and how long versions stay."""

from __future__ import annotations

import pytest

from penstock.event import Source
from penstock.io.spanner.sink.target import SpannerTarget, table_of


@pytest.mark.parametrize(("schema", "table"), [("", "t"), ("public", "t"), ("sales", "sales.t")])
def test_the_default_schema_of_postgresql_is_the_one_without_a_name(schema: str, table: str) -> None:
    source = Source("postgres", "srv", "shop", schema, "t")
    assert table_of(source) == table
    (dataset,) = SpannerTarget("p", "i", "d").datasets_written([source])
    assert dataset.name == f"d.{table}"


def test_versions_of_deleted_rows_stay_for_days() -> None:
    assert SpannerTarget("p", "i", "d", tombstone_days=2).tombstone_seconds == 2 * 86_400
