"""Tables of BigQuery and the few queries of the sink, over REST."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.api_core import exceptions
from google.cloud import bigquery
from google.cloud.bigquery.table import PrimaryKey, TableConstraints

from penstock.event.model import TableSchema
from penstock.event.schema_changes import SchemaChange, plan_schema_change
from penstock.event.schema_policies import ChangePolicies
from penstock.io.bigquery.clients import classified_errors, rest_client
from penstock.io.bigquery.columns import COMMITTED_AT, Field, field_of, known_type
from penstock.io.bigquery.errors import BigQueryTargetError
from penstock.io.bigquery.interval import interval_seconds, interval_text
from penstock.io.bigquery.log_rows import (
    COMPLETE,
    COMPLETE_CURRENT,
    COMPLETE_CURRENT_FIELDS,
    COMPLETE_FIELDS,
    LEDGER,
    LEDGER_FIELDS,
    LOG_FIELDS,
    STREAMS,
    STREAMS_FIELDS,
)
from penstock.io.bigquery.services import LedgerRow, Successor
from penstock.io.bigquery.target import BigQueryTarget
from penstock.io.staging.complete_marks import Mark

# REST has the old names of some types.
_NAMES = {"BOOLEAN": "BOOL", "INTEGER": "INT64", "FLOAT": "FLOAT64"}
_QUERY_SECONDS = 120.0
"""Time limit of one query of the ledger or of a table."""
# The client would repeat a request for ten minutes, without a message. The sink repeats the whole batch, and logs that.
_ONCE: dict[str, Any] = {"retry": None, "timeout": 60.0}
_CLUSTERED = ("batch_writer", "batch_epoch")


class BigQueryWarehouse:
    """See `penstock.io.bigquery.services.Warehouse`."""

    def __init__(self, target: BigQueryTarget) -> None:
        self._target = target
        with classified_errors(target.name):
            self._client = rest_client(target)
        self._dataset = f"{target.project}.{target.dataset}"
        self._has_bookkeeping = False

    def close(self) -> None:
        self._client.close()

    def require_dataset(self) -> None:
        with classified_errors(self._target.name):
            self._client.get_dataset(self._dataset, **_ONCE)

    def create_bookkeeping(self) -> None:
        """Create the ledger and the table of streams if they are missing."""
        if not self._has_bookkeeping:
            # Clustered, so that an entry is found without a scan of all.
            self._create(LEDGER, LEDGER_FIELDS, ("writer",))
            self._create(STREAMS, STREAMS_FIELDS, ("writer",))
            self._has_bookkeeping = True

    def create_log(self, table: str) -> None:
        self._create(table, LOG_FIELDS, _CLUSTERED, needs_right=True)

    def replica(self, table: str, schema: TableSchema, policies: ChangePolicies) -> tuple[Field, ...]:
        with classified_errors(self._target.name):
            # Asked each time: only the target knows its columns, which a person may have changed.
            target = self._table(table)
            if target is None:
                target = self._create_replica(table, schema)
            fields = _fields_of(target)
            self._check_key(target, schema)
            self._check_staleness(target)
            known = {each.name: each for each in fields}
            types = {
                column.name: known_type(known[column.name], column.type)
                for column in schema
                if column.name in known
            }
            change = plan_schema_change(table, types, schema, policies)
            return self._alter(target, change) if change.alters else fields

    def read_ledger(self, writer: str) -> list[LedgerRow]:
        self.create_bookkeeping()
        rows = self._query(
            "SELECT table_name, generation, epoch, driver, stream, next_offset, refused FROM ("
            # Entries are only appended, so the newest one of each table counts.
            "SELECT *, ROW_NUMBER() OVER (PARTITION BY table_name ORDER BY epoch DESC) AS age "
            f"FROM `{self._dataset}.{LEDGER}` WHERE writer = @writer) WHERE age = 1",
            writer=writer,
        )
        return [LedgerRow(*row) for row in rows]

    def mark_complete(self, mark: Mark) -> None:
        self._create(COMPLETE, COMPLETE_FIELDS, ())
        # MERGEs of one table do not run side by side, so a driver that was paused sees the newer record.
        self._query(
            f"MERGE `{self._dataset}.{COMPLETE}` AS known USING (SELECT @job AS job, @sink AS sink) AS new "
            "ON known.job = new.job AND known.sink = new.sink "
            "WHEN MATCHED AND known.record < @record THEN UPDATE SET record = @record, "
            "complete_until = TIMESTAMP_MICROS(@until_us) "
            "WHEN NOT MATCHED THEN INSERT (job, sink, record, complete_until) "
            "VALUES (@job, @sink, @record, TIMESTAMP_MICROS(@until_us))",
            job=mark.job,
            sink=mark.sink,
            record=mark.record,
            until_us=mark.until_us,
        )

    def mark_current(self, mark: Mark, staleness_seconds: int) -> None:
        self._create(COMPLETE_CURRENT, COMPLETE_CURRENT_FIELDS, ())
        marks = f"`{self._dataset}.{COMPLETE_CURRENT}`"
        # The clock of BigQuery, which decides how old the answer of a query may be.
        self._query(
            f"INSERT INTO {marks} (job, sink, record, complete_until, counts_from) VALUES (@job, @sink, @record, "
            "TIMESTAMP_MICROS(@until_us), TIMESTAMP_ADD(CURRENT_TIMESTAMP(), INTERVAL @staleness SECOND))",
            job=mark.job,
            sink=mark.sink,
            record=mark.record,
            until_us=mark.until_us,
            staleness=staleness_seconds,
        )
        # Rows below a time that counts change no answer any more.
        self._query(
            f"DELETE FROM {marks} WHERE job = @job AND sink = @sink AND complete_until < (SELECT MAX(complete_until) "
            f"FROM {marks} WHERE job = @job AND sink = @sink AND counts_from <= CURRENT_TIMESTAMP())",
            job=mark.job,
            sink=mark.sink,
        )

    def batch_indexes(self, table: str, writer: str, epoch: int) -> list[int]:
        rows = self._query(
            f"SELECT batch_index FROM `{self._dataset}.{table}` "
            "WHERE batch_writer = @writer AND batch_epoch = @epoch ORDER BY batch_index",
            writer=writer,
            epoch=epoch,
        )
        return [index for (index,) in rows]

    def successor(self, writer: str, table: str, stream: str) -> Successor | None:
        self.create_bookkeeping()
        for row in self._query(
            f"SELECT stream, epoch, rows_before FROM `{self._dataset}.{STREAMS}` WHERE {_CELL} AND chosen",
            writer=writer,
            table=table,
            previous=stream,
        ):
            return Successor(*row)
        return None

    def choose_successor(self, writer: str, table: str, stream: str, candidate: Successor) -> Successor:
        streams = f"`{self._dataset}.{STREAMS}`"
        parameters = {"writer": writer, "table": table, "previous": stream, "stream": candidate.stream}
        self._query(
            f"INSERT INTO {streams} (writer, table_name, previous, stream, epoch, rows_before, chosen) "
            "VALUES (@writer, @table, @previous, @stream, @epoch, @rows_before, FALSE)",
            **parameters,
            epoch=candidate.epoch,
            rows_before=candidate.before,
        )
        # INSERTs of two processes both succeed. UPDATEs of one table do not run side by side: the second one sees what
        # the first one has changed ("DML concurrency" in BigQuery's documentation). So one candidate is chosen.
        self._query(
            f"UPDATE {streams} SET chosen = TRUE WHERE {_CELL} AND stream = @stream AND NOT EXISTS ("
            f"SELECT 1 FROM {streams} AS other WHERE other.writer = @writer AND other.table_name = @table "
            "AND other.previous = @previous AND other.chosen)",
            **parameters,
        )
        chosen = self.successor(writer, table, stream)
        if chosen is None:
            raise BigQueryTargetError(
                f"{self._target.name}: the table {STREAMS} lacks an entry that was just written, so another program "
                "changes the table. Stop that program, then start the pipeline again"
            )
        return chosen

    def _query(self, sql: str, **parameters: str | int) -> list[tuple[Any, ...]]:
        given = [
            bigquery.ScalarQueryParameter(name, "INT64" if isinstance(value, int) else "STRING", value)
            for name, value in parameters.items()
        ]
        # A cached result could be older than rows that were acknowledged.
        config = bigquery.QueryJobConfig(query_parameters=given, use_query_cache=False)
        with classified_errors(self._target.name):
            rows = self._client.query(sql, job_config=config, job_retry=None, **_ONCE).result(
                retry=None, job_retry=None, timeout=_QUERY_SECONDS
            )
            return [tuple(row.values()) for row in rows]

    def _table(self, name: str) -> bigquery.Table | None:
        try:
            return self._client.get_table(f"{self._dataset}.{name}", **_ONCE)
        except exceptions.NotFound:
            return None

    def _create(
        self, name: str, fields: Iterable[Field], clustered: Iterable[str], *, needs_right: bool = False
    ) -> None:
        with classified_errors(self._target.name):
            # Look whether the tables exist first: a role that may not create tables can use existing ones.
            if self._table(name) is not None:
                return
            if needs_right:
                self._require_create(name)
            table = bigquery.Table(f"{self._dataset}.{name}", [_schema_field(each) for each in fields])
            table.clustering_fields = list(clustered) or None
            # Another process may create it at the same moment.
            self._client.create_table(table, exists_ok=True, **_ONCE)

    def _create_replica(self, name: str, schema: TableSchema) -> bigquery.Table:
        self._require_create(name)
        fields = [
            *(field_of(column.name, column.type) for column in schema),
            Field(COMMITTED_AT, "TIMESTAMP"),
        ]
        table = bigquery.Table(f"{self._dataset}.{name}", [_schema_field(each) for each in fields])
        key = [column.name for column in schema.key_columns]
        # BigQuery does not enforce keys. It needs them to merge changes.
        table.table_constraints = TableConstraints(primary_key=PrimaryKey(columns=key), foreign_keys=None)
        # BigQuery merges changes by key. Clustering by the key makes the merges cheaper; it takes four columns.
        table.clustering_fields = key[:4]
        table.max_staleness = interval_text(self._target.max_staleness_seconds)
        return self._client.create_table(table, exists_ok=True, **_ONCE)

    def _check_key(self, table: bigquery.Table, schema: TableSchema) -> None:
        key = [column.name for column in schema.key_columns]
        constraints = table.table_constraints
        key_columns = (
            None
            if constraints is None or constraints.primary_key is None
            else constraints.primary_key.columns
        )
        # The emulator does not keep primary keys.
        if key_columns is None and self._target.endpoint is not None:
            return
        if key_columns is None or sorted(key_columns) != sorted(key):
            columns = ", ".join(key)
            raise BigQueryTargetError(
                f"table {table.table_id} of {self._target.name} needs the primary key of the source: ALTER TABLE "
                f"{table.table_id} ADD PRIMARY KEY ({columns}) NOT ENFORCED"
            )

    def _check_staleness(self, table: bigquery.Table) -> None:
        allowed = self._target.max_staleness_seconds
        if self._target.mark_complete and interval_seconds(table.max_staleness) > allowed:
            raise BigQueryTargetError(
                f"table {table.table_id} of {self._target.name} has max_staleness {table.max_staleness}, and "
                f"max_staleness_seconds is {allowed}: a time of mark_complete would be ahead of what a query sees. "
                f"Pass the age of the table as max_staleness_seconds, or ALTER TABLE {table.table_id} SET OPTIONS "
                f"(max_staleness = INTERVAL {allowed} SECOND)"
            )

    def _require_create(self, name: str) -> None:
        if not self._target.create_tables:
            raise BigQueryTargetError(
                f"table {name} does not exist in {self._target.name}, and create_tables is false: create it as "
                "docs/sinks/bigquery.md describes"
            )

    def _alter(self, table: bigquery.Table, change: SchemaChange) -> tuple[Field, ...]:
        # IF NOT EXISTS: several workers may alter the table at the same moment.
        changes = [f"ADD COLUMN IF NOT EXISTS {_ddl(field_of(c.name, c.type))}" for c in change.added]
        for column in change.widened:
            wanted = field_of(column.name, column.type)
            changes.append(f"ALTER COLUMN `{column.name}` SET DATA TYPE {wanted.type}")
        for each in changes:
            self._query(f"ALTER TABLE `{self._dataset}.{table.table_id}` {each}")
        altered = self._client.get_table(table.reference, **_ONCE)
        return _fields_of(altered)


_CELL = "writer = @writer AND table_name = @table AND previous = @previous"


def _schema_field(field: Field) -> bigquery.SchemaField:
    return bigquery.SchemaField(field.name, field.type, mode=field.mode)


def _ddl(field: Field) -> str:
    """Return a column in GoogleSQL."""
    return f"`{field.name}` {f'ARRAY<{field.type}>' if field.mode == 'REPEATED' else field.type}"


def _fields_of(table: bigquery.Table) -> tuple[Field, ...]:
    return tuple(
        Field(each.name, _NAMES.get(each.field_type, each.field_type), each.mode or "NULLABLE")
        for each in table.schema
    )
