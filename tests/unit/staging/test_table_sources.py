"""Two tables of a source cannot be written into one table of a target."""

from __future__ import annotations

import pytest

from penstock.errors import ServiceError
from penstock.event.model import Source
from penstock.io.staging.table_sources import TableSources

SALES = Source("postgresql", "s", "shop", "sales", "orders")
OLD = Source("postgresql", "s", "shop", "old", "orders")


def test_a_second_table_of_the_source_is_refused_with_both_names_and_the_fix() -> None:
    sources = TableSources(ServiceError)
    sources.check("orders", SALES)
    sources.check("orders", SALES)
    sources.check("old_orders", OLD)
    with pytest.raises(ServiceError, match=r"shop\.sales\.orders and shop\.old\.orders\. Use table="):
        sources.check("orders", OLD)
