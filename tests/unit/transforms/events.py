"""Events for tests of transforms."""

from __future__ import annotations

from typing import Any

from penstock.event import (
    ChangeEvent,
    Column,
    ColumnType,
    Kind,
    Op,
    Source,
    TableSchema,
    Transaction,
    Version,
)

ORDERS = TableSchema(
    (
        Column("Id", ColumnType(Kind.INT64, "INT64"), False, 1),
        Column("State", ColumnType(Kind.STRING, "STRING")),
        Column("Email", ColumnType(Kind.STRING, "STRING")),
    )
)


def order(
    number: int = 1, op: Op = Op.UPDATE, *, table: str = "Orders", tag: str = "", **values: Any
) -> ChangeEvent:
    """Return an event of the table Orders; `values` are the columns of its image besides the key."""
    image = {"Id": number, **values}
    before, after = (image, None) if op is Op.DELETE else (None, image)
    source = Source("spanner", database="shop", table=table)
    return ChangeEvent(
        source,
        op,
        7,
        {"Id": number},
        before,
        after,
        Version(7, "t", "0", number),
        ORDERS,
        Transaction("t", tag=tag),
    )
