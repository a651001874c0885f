"""A published table as it is now: its columns, and its rows at one snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.errors import SetupError
from penstock.io.postgres.client import Client
from penstock.io.postgres.incremental import chunks
from penstock.io.postgres.initial_scan.copied_rows import CopiedRows
from penstock.io.postgres.initial_scan.stream import FIRST_BLOCKS, next_blocks
from penstock.io.postgres.preflight import source_tables
from penstock.io.postgres.record import Table
from penstock.io.postgres.source import ChangeStream
from penstock.suggestions import did_you_mean

CHUNK_ROWS = 10_000
"""About how many rows are read by one statement."""


class PublishedTable(NamedTuple):
    """A table, its relkind, and the conditions of the rows that the publications send."""

    table: Table
    kind: str
    conditions: list[str]


def published_table(client: Client, stream: ChangeStream, name: str) -> PublishedTable:
    """Return a table with the columns that the publications send; `name` is ``schema.name``.

    Raises:
        SetupError: no publication has it.
    """
    schema, table = _divided(name)
    state = client.rows(
        chunks.STATE, {"publications": list(stream.publications), "schema": schema, "table": table}
    )
    if not state:
        known = [str(each) for each in source_tables(stream, client.rows)]
        raise SetupError(
            f"{stream}: the publication has no table {name!r}{did_you_mean(name, known)}; it has "
            f"{', '.join(known) or 'none'}. Write the name with its schema, such as public.orders"
        )
    ((_, oid, identity, kind, _, lists, filters, _),) = state
    published = chunks.published_columns(client.rows(chunks.COLUMNS, (oid,)), lists)
    relation = chunks.relation_of(oid, schema, table, identity, published)
    return PublishedTable(client.describe_table(relation, {}), kind, chunks.row_conditions(filters))


def rows_now(client: Client, stream: ChangeStream, name: str) -> Iterator[CopiedRows]:
    """Yield the published rows of a table, all at one snapshot, in chunks that are not empty.

    The table cannot be rewritten or dropped before the client is closed, because the client keeps its transaction.
    """
    client.run(chunks.BEGIN)
    # Before the snapshot, which the first query takes: it would not see the rows of a table that is rewritten later.
    client.run(chunks.locked(*_divided(name)))
    found = published_table(client, stream, name)
    at = client.now()
    ((_, last, _),) = client.rows(chunks.BLOCKS, {"tables": [name]})
    blocks, number, start = FIRST_BLOCKS, 1, 0
    while start < last:
        end = min(start + blocks, last)
        lines, count = client.copied_lines(
            chunks.rows_in_blocks(found.table, found.kind, found.conditions, start, end)
        )
        if count:
            yield CopiedRows(found.table, lines, range(number, number + count), at.lsn, at.timestamp)
        blocks = next_blocks(end - start, count, len(lines), CHUNK_ROWS)
        number, start = number + count, end


def _divided(name: str) -> tuple[str, str]:
    schema, _, table = name.partition(".")
    return schema, table
