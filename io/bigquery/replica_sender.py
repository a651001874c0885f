"""Sends batches to tables that BigQuery keeps at the current state, by its pseudo-columns for change data capture.

Each event is an UPSERT or DELETE with a sequence number, which is the version of the event. BigQuery keeps the row with
the highest number of each key. So a batch that comes again changes nothing, and the sink needs no ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial, reduce
from typing import Any

from penstock.event.keys import changed_key
from penstock.event.model import NO_COLUMNS, ChangeEvent, Image, Op, TableSchema
from penstock.event.replica import NotReplicableError
from penstock.event.schema_changes import SchemaChangedError, merged_schema
from penstock.event.schema_policies import ChangePolicies, policies_of
from penstock.io.bigquery.columns import COMMITTED_AT, Convert, Field, bad_key, bad_name, converter
from penstock.io.bigquery.errors import BigQueryTargetError, RowsRefusedError
from penstock.io.bigquery.rows import (
    CHANGE_SEQUENCE_NUMBER,
    CHANGE_TYPE,
    EncodedRow,
    RowLayout,
    change_layout,
    fitting,
)
from penstock.io.bigquery.sequence import sequence_number
from penstock.io.bigquery.services import DEFAULT_STREAM, Warehouse, WriteApi
from penstock.io.bigquery.target import BigQueryTarget
from penstock.io.staging.complete_marks import Mark
from penstock.io.staging.delivery import (
    PARTLY_WRITTEN,
    Delivery,
    EventBatch,
    Refusal,
    RefusalError,
    Sent,
)
from penstock.io.staging.table_sources import TableSources
from penstock.io.staging.unfit_schemas import Schemas, make_fit, schemas_of


class ReplicaSender:
    """See `penstock.io.staging.delivery.Sender`."""

    def __init__(
        self, target: BigQueryTarget, skip_refused: bool, api: WriteApi, warehouse: Warehouse
    ) -> None:
        self._target, self._skip_refused = target, skip_refused
        self._api, self._warehouse = api, warehouse
        self._tables: dict[str, ReplicaTable] = {}
        self._sources = TableSources(BigQueryTargetError)

    def check(self) -> None:
        """Look for the dataset."""
        self._warehouse.require_dataset()

    def mark_complete(self, job: str, sink: str, record: int, until_us: int) -> None:
        """Note the time until which the target is complete; see `penstock.publish.MarksComplete`."""
        # A query may see the tables as they were this long ago, so only then it sees all rows that are sent by now.
        self._warehouse.mark_current(Mark.of(job, sink, record, until_us), self._target.max_staleness_seconds)

    def send(self, delivery: Delivery, events: EventBatch) -> Sent:
        """Send the changes; see `Sender.send`. A batch that comes again is sent again, and refuses the same rows."""
        refused: dict[int, Refusal] = {}
        # First the tables, then the rows: the layout of a row depends on the columns that the table has.
        unfit = self._prepare(events)
        rows: dict[str, list[EncodedRow]] = {}
        for index, event in enumerate(events):
            if reason := unfit.get((self._table_of(event), event.schema)) if unfit else None:
                self._refuse(refused, index, reason)
                continue
            try:
                contents = self._changes(event)
            except (NotReplicableError, ValueError) as error:
                self._refuse(refused, index, str(error))
                continue
            if contents:
                name = self._table_of(event)
                rows.setdefault(name, []).extend(EncodedRow(index, content) for content in contents)
        for name, of_table in rows.items():
            self._append(name, of_table, refused)
        return Sent(tuple(refused[index] for index in sorted(refused)))

    def close(self) -> None:
        self._api.close()
        self._warehouse.close()

    def _prepare(self, events: Iterable[ChangeEvent]) -> dict[tuple[str, TableSchema], str]:
        """Create or alter the tables for a batch; return the schemas that a table cannot have, with the reason.

        Raises the first such reason, unless the policy is *try_evolve*.
        """
        errors = (SchemaChangedError, BigQueryTargetError)
        unfit: dict[tuple[str, TableSchema], str] = {}
        for name, (source, schemas) in schemas_of(self._rows(events), self._table_of).items():
            policies = policies_of(self._target.schema_changes, source.schema, source.table)
            fit = partial(self._fit, name, policies)
            reasons = make_fit(name, source, schemas, policies, fit, errors)
            unfit |= {(name, schema): reason for schema, reason in reasons.items()}
        return unfit

    def _rows(self, events: Iterable[ChangeEvent]) -> Iterator[ChangeEvent]:
        """Yield the events of rows with a key. The others are refused later, and need no table."""
        for event in events:
            if event.key and event.source.system != "bigtable":
                self._sources.check(self._table_of(event), event.source)
                yield event

    def _table_of(self, event: ChangeEvent) -> str:
        return self._target.table_of(event.source)

    def _fit(self, name: str, policies: ChangePolicies, schemas: Schemas) -> None:
        schema = reduce(merged_schema, schemas, NO_COLUMNS)
        # A column that an earlier batch brought stays: its rows still have it.
        known = self._tables.get(name)
        merged = merged_schema(NO_COLUMNS if known is None else known.schema, schema)
        if known is None or merged != known.schema:
            if reason := bad_key(merged) or bad_name(merged.names):
                raise BigQueryTargetError(f"table {name}: {reason}")
            fields = self._warehouse.replica(name, merged, policies)
            self._tables[name] = ReplicaTable(merged, fields, self._target)

    def _changes(self, event: ChangeEvent) -> list[bytes]:
        """Return the rows that an event means; see `ReplicaTable.changes`."""
        if not changes_row(event):
            return []
        table = self._tables[self._table_of(event)]
        return [table.layout.encode(row) for row in table.changes(event)]

    def _append(self, name: str, rows: Sequence[EncodedRow], refused: dict[int, Refusal]) -> None:
        layout = self._tables[name].layout
        pending = list(rows)
        while pending:
            part = fitting(pending)
            try:
                self._api.append(name, DEFAULT_STREAM, layout, [row.content for row in part], None)
                pending = pending[len(part) :]
            except RowsRefusedError as error:
                for number, reason in error.reasons.items():
                    self._refuse(refused, part[number].event_index, reason)
                # Both rows of a change of the key are left out.
                pending = [row for row in pending if row.event_index not in refused]

    def _refuse(self, refused: dict[int, Refusal], index: int, reason: str) -> None:
        refusal = Refusal(index, reason)
        if not self._skip_refused:
            raise RefusalError(refusal, PARTLY_WRITTEN)
        refused[index] = refusal


Row = dict[str, Any]
"""Values by column, with the pseudo-columns."""


def changes_row(event: ChangeEvent) -> bool:
    """Return whether an event changes a row.

    Raises:
        NotReplicableError: it changes rows that have no primary key, or all rows.
    """
    if event.op in (Op.MESSAGE, Op.SCHEMA):
        return False
    source = event.source
    if event.op is Op.TRUNCATE:
        raise NotReplicableError(
            f"table {source.table}: BigQuery's change data capture has no TRUNCATE: truncate the table in "
            "BigQuery, or use mode='log'"
        )
    if source.system == "bigtable" or not event.key:
        raise NotReplicableError(
            f"table {source.table}: the event has no row with a primary key: use mode='log', which writes every "
            "change"
        )
    return True


class ReplicaTable:
    """A table of the target: the layout of its changes, and how values are converted."""

    def __init__(self, schema: TableSchema, fields: Sequence[Field], target: BigQueryTarget) -> None:
        self.schema = schema
        self.layout: RowLayout = change_layout(fields)
        names = {field.name for field in fields}
        self._writes_time = COMMITTED_AT in names
        # With schema_changes="ignore" the table may lack columns of the source.
        self._converters: dict[str, Convert] = {
            column.name: converter(column, target.nanoseconds) for column in schema if column.name in names
        }
        self._data = [name for name in self._converters if name not in {c.name for c in schema.key_columns}]

    def changes(self, event: ChangeEvent) -> list[Row]:
        """Return the rows that a change of a row means: one, or two if its key changed.

        Raises:
            NotReplicableError: the event does not have the whole row.
            ValueError: a value that BigQuery cannot hold.
        """
        key, number = event.key or {}, sequence_number(event.version)
        if event.op is Op.DELETE:
            # A DELETE of BigQuery needs the key only.
            return [self.delete(event, key, number)]
        old_key = changed_key(event)
        upsert = self.upsert(event, number)
        # Both rows have the same sequence number. They have different keys, so the numbers are never compared.
        return [upsert] if old_key is None else [self.delete(event, old_key, number), upsert]

    def upsert(self, event: ChangeEvent, number: str) -> Row:
        """Return the row after the change.

        Raises:
            NotReplicableError: the event does not have the whole row.
        """
        after = event.after or {}
        # Columns that the event's own schema does not have become NULL: the merged schema may have more.
        missing = [name for name in self._data if name not in after and name in event.schema.names]
        # A CREATE has every column that the source knows. Absent ones are NULL.
        if missing and event.op is not Op.CREATE:
            raise NotReplicableError(
                f"table {event.source.table}: the source did not send column {missing[0]}, and an UPSERT of BigQuery "
                "replaces the whole row: let the source send whole rows (Spanner: NEW_ROW; PostgreSQL: REPLICA "
                "IDENTITY FULL), or complete them with MaterializeRows (materialize_rows in templates)"
            )
        return self._row(event, after | (event.key or {}), "UPSERT", number)

    def delete(self, event: ChangeEvent, key: Image, number: str) -> Row:
        """Return the row that deletes a key."""
        return self._row(event, key, "DELETE", number)

    def _row(self, event: ChangeEvent, values: Image, change: str, number: str) -> Row:
        row: Row = {
            name: convert(values[name])
            for name, convert in self._converters.items()
            # An absent field is NULL.
            if values.get(name) is not None
        }
        if self._writes_time:
            row[COMMITTED_AT] = event.timestamp // 1000
        return {**row, CHANGE_TYPE: change, CHANGE_SEQUENCE_NUMBER: number}
