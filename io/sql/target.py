"""The configuration of the SQL sink, as a value that travels to the workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.datasets import Dataset, postgres_dataset
from penstock.event.model import ChangeEvent, Source
from penstock.event.schema_policies import Entries
from penstock.io.sql.options import Mode, SqlSinkOptions
from penstock.io.sql.statements import TableName


@dataclass(frozen=True, slots=True)
class SqlTarget:
    """See `SqlSinkOptions`. The dsn may have a password, so it is not shown."""

    dsn: str = field(repr=False)
    mode: Mode = SqlSinkOptions.mode
    schema: str = SqlSinkOptions.schema
    table: str = SqlSinkOptions.table
    schema_changes: Entries = SqlSinkOptions.schema_changes
    create_tables: bool = SqlSinkOptions.create_tables
    tombstone_seconds: float = SqlSinkOptions.tombstone_seconds
    mark_complete: bool = SqlSinkOptions.mark_complete
    shards: int = SqlSinkOptions.shards

    @property
    def name(self) -> str:
        """``PostgreSQL at host:port/database``."""
        from psycopg.conninfo import conninfo_to_dict

        known = conninfo_to_dict(self.dsn)
        port = f":{known['port']}" if "port" in known else ""
        return f"PostgreSQL at {known.get('host', 'localhost')}{port}/{known.get('dbname', '')}"

    def datasets_written(self, sources: Sequence[Source]) -> list[Dataset]:
        """See `penstock.datasets.WritesDatasets`."""
        tables = (self.table_of_source(each) for each in sources)
        return [postgres_dataset(self.dsn, each.schema, each.table) for each in dict.fromkeys(tables)]

    def table_of(self, event: ChangeEvent) -> TableName:
        """Return the table to which an event is written."""
        return self.table_of_source(event.source)

    def table_of_source(self, source: Source) -> TableName:
        """Return the table that the events of a source table go to.

        A message that an application wrote into the log of its database belongs to no table.
        """
        if not source.table:
            return TableName(self.schema, "penstock_messages")
        table = self.table.format(table=source.table, schema=source.schema, database=source.database)
        return TableName(self.schema, table)
