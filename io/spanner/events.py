"""Converts Spanner's `DataChangeRecord` to `ChangeEvent`s: one for each mod. Pure.

Which columns an image has depends on the capture type:

| capture type | `before` of an UPDATE | `after` of an UPDATE | `before` of a DELETE |
|---|---|---|---|
| OLD_AND_NEW_VALUES | the changed columns | the changed columns | all watched columns |
| NEW_VALUES | None | the changed columns | None |
| NEW_ROW | None | all watched columns | None |
| NEW_ROW_AND_OLD_VALUES | the changed columns | all watched columns | all watched columns |

Rows of a snapshot (the mod_type READ) have an `after` with all columns that were read.

Every image that exists also holds the key columns. A column of the record's schema that an image lacks was not sent.

Source: Cloud Spanner documentation, "Change streams partitions, records, and queries" (Data change records) and
"Change streams overview" (Value capture type).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from penstock.event.keys import canonical_key, key_rules
from penstock.event.model import ChangeEvent, Column, Image, Op, Source, TableSchema, Transaction, Version
from penstock.io.spanner import record as native
from penstock.io.spanner.record import DataChangeRecord
from penstock.io.spanner.values import RowDecoder, column_type

OPS = {"INSERT": Op.CREATE, "UPDATE": Op.UPDATE, "DELETE": Op.DELETE, "READ": Op.READ}
"""Operations of events, by mod_type."""


class EventConverter:
    """Converts the records of one change stream. Each event's source has its `server`, `database` and `stream`."""

    def __init__(self, server: str = "", database: str = "", stream: str = "") -> None:
        self._server, self._database, self._stream = server, database, stream
        self._tables: dict[tuple[Any, ...], _Table] = {}
        self._last: tuple[Any, ...] = (None, None, None, None)

    def __call__(self, record: DataChangeRecord) -> list[ChangeEvent]:
        """Return the events of a record, in the order of its mods.

        Raises:
            ValueError: a value does not have the form of its type; the message names table and column, not the value.
        """
        table = self._table_of(record)
        op = OPS[record.mod_type]
        return table.rows(record) if op is Op.READ else table.events(record, op, transaction_of(record))

    def source_and_schema(self, record: DataChangeRecord) -> tuple[Source, TableSchema]:
        """Return the source and the schema of the events of a record."""
        table = self._table_of(record)
        return table.source, table.schema

    def _table_of(self, record: DataChangeRecord) -> _Table:
        name, capture, columns, table = self._last
        # Neighbours often share one tuple of columns, and its hash costs a fifth of a conversion.
        if (
            record.column_types is not columns
            or record.table_name != name
            or record.value_capture_type != capture
        ):
            table = self._find_table(record)
        known: _Table = table
        return known

    def _find_table(self, record: DataChangeRecord) -> _Table:
        about = (record.table_name, record.value_capture_type, record.column_types)
        table = self._tables.get(about)
        if table is None:
            table = self._tables[about] = self._make_table(record)
        self._last = (*about, table)
        return table

    def _make_table(self, record: DataChangeRecord) -> _Table:
        # A named schema is part of the table name: "sales.Orders".
        schema, _, table = record.table_name.rpartition(".")
        capture = record.value_capture_type
        source = Source("spanner", self._server, self._database, schema, table, self._stream, capture)
        return _Table(source, record.table_name, table_schema(record.column_types))


class _Table:
    """The part that is the same for all records of one table with the same columns."""

    def __init__(self, source: Source, name: str, schema: TableSchema) -> None:
        self.source, self.name, self.schema = source, name, schema
        self.decode = RowDecoder(name, schema)
        self._key_names = tuple(column.name for column in schema.key_columns)
        self._has_key_rules = bool(key_rules(schema))

    def events(self, record: DataChangeRecord, op: Op, transaction: Transaction) -> list[ChangeEvent]:
        source, schema, image, key_of = self.source, self.schema, self._image, self._key
        commit, sequence, id_, texts = (
            record.commit_timestamp,
            record.record_sequence,
            transaction.id,
            record.mods.texts,
        )
        events = []
        # Three texts per mod: key, new values, old values.
        for place in range(0, len(texts), 3):
            key_text, new_text, old_text = texts[place : place + 3]
            new = image(key_text, new_text) if len(new_text) > 2 else None  # "" is NULL, "{}" has no column
            old = image(key_text, old_text) if len(old_text) > 2 and op is not Op.CREATE else None
            key = key_of(key_text, old if new is None else new)
            # A table may have key columns only. Then no new values are sent, and still the row exists.
            after = None if op is Op.DELETE else key if new is None else new
            version = Version(commit, id_, sequence, place // 3)
            events.append(ChangeEvent(source, op, commit, key, old, after, version, schema, transaction))
        return events

    def _image(self, key_text: str, text: str) -> Image:
        """Return the columns of the key and of one side of a mod, in this order."""
        if key_text[-1:] == "}" and len(key_text) > 2 and text[0] == "{":
            # One object is decoded in less time than two, and needs no merging.
            return self.decode(f"{key_text[:-1]},{text[1:]}")
        return self.decode(key_text) | self.decode(text)

    def _key(self, text: str, image: Image | None) -> Image:
        """Return the columns of the key in its order: the service's JSON has the members of an object in any order."""
        if image is None:
            image = self.decode(text)
        names = self._key_names
        # Keys of some types have several texts for one value, so they are brought into one form.
        if self._has_key_rules:
            return canonical_key(self.schema, {name: image[name] for name in names if name in image})
        if len(names) == 1 and names[0] in image:  # in a third of the time
            return {names[0]: image[names[0]]}
        return {name: image[name] for name in names if name in image}

    def rows(self, record: DataChangeRecord) -> list[ChangeEvent]:
        """Return the READ events of a record of a snapshot. A row belongs to no transaction."""
        version = version_of_scan(record)
        return [
            msgspec.structs.replace(event, transaction=None, version=version)
            for event in self.events(record, Op.READ, _NO_TRANSACTION)
        ]


_NO_TRANSACTION = Transaction("")


def transaction_of(record: DataChangeRecord) -> Transaction:
    """Return the transaction of the events of a record."""
    return Transaction(
        record.server_transaction_id,
        record.number_of_records_in_transaction,
        record.number_of_partitions_in_transaction,
        record.is_last_record_in_transaction_in_partition,
        record.transaction_tag,
        "",
        record.is_system_transaction,
    )


def version_of_scan(record: DataChangeRecord) -> Version:
    """Return the version of the rows of a snapshot: its time and its table.

    It does not depend on the record that a row came in, so the id of the event is the same when the row is read again.
    It sorts before the changes of the same time.
    """
    return Version(record.commit_timestamp, "", record.table_name)


@lru_cache(maxsize=4096)
def table_schema(columns: tuple[native.ColumnType, ...]) -> TableSchema:
    """Return the schema of a record's columns, in the order of the table.

    Spanner names the columns of a record only: the key and those that the capture type sends. It does not say where a
    column is in the primary key, so key columns are numbered by their place in the table.
    """
    ordered = sorted(columns, key=lambda column: column.ordinal_position)
    keys = [column.name for column in ordered if column.is_primary_key]
    return TableSchema(
        tuple(
            Column(
                column.name,
                column_type(column.type),
                None,
                keys.index(column.name) + 1 if column.is_primary_key else None,
            )
            for column in ordered
        )
    )
