"""The layouts of Google's Dataflow templates, made of events. Pure.

- `SpannerBigQueryFormat`: "Spanner change streams to BigQuery", one JSON object for a row of the changelog table:
  the table's columns, then `_metadata_spanner_…`.
- `BigtableChangeLogFormat`: "Bigtable change streams to BigQuery", one JSON object for each cell set or deleted.

Values have the form in which BigQuery loads JSON: INT64 as a number, NUMERIC as text, BYTES as base64, DATE and
TIMESTAMP as text, JSON as text, NaN and infinities as text. A column that was not sent is absent; NULL is null.

The lines that the template pipelines of this package write hold more (`low_watermark`, the place in the record) and
come from native records: `spanner_lines`, `bigtable_change_log`.

Sources: Dataflow documentation, "Spanner change streams to BigQuery template" and "Bigtable change streams to BigQuery
template".
"""

from __future__ import annotations

import math
from base64 import b64encode
from datetime import date
from typing import Any

import msgspec

from penstock.event import CellChange, ChangeEvent, ColumnType, Image, Kind, Op, Source, TableSchema
from penstock.timestamps import format_timestamp
from penstock.transforms.formats.formatted import Encoding, FormattedRecord
from penstock.transforms.formats.table_format import TableFormat
from penstock.transforms.formats.value_text import interval_text, time_text
from penstock.transforms.tables import table_name

_METADATA = "_metadata_spanner_"
_MODS = {Op.CREATE: "INSERT", Op.READ: "INSERT", Op.UPDATE: "UPDATE", Op.DELETE: "DELETE"}
_EPOCH_DAY = date(1970, 1, 1).toordinal()

_json = msgspec.json.Encoder(decimal_format="string").encode


class SpannerBigQueryFormat(TableFormat["_Table"]):
    """Formats row events as rows of the template's changelog tables; other events become no record.

    A DELETE has the columns that the source sent of its old row, at least the key. The topic is the table's
    name with `_changelog`, as the template names its tables.
    """

    def __call__(self, event: ChangeEvent) -> list[FormattedRecord]:
        """Return the record of an event, or none.

        Raises:
            ValueError: a value does not have the form of its type; the message names the column.
        """
        mod = _MODS.get(event.op)
        if mod is None:
            return []
        if event.cells:
            raise ValueError(f"{event.source.table} is a table of Bigtable: use BigtableChangeLogFormat")
        table, version, transaction = self._plan(event), event.version, event.transaction
        # An event whose row was not sent still has its key.
        image = (event.before if event.op is Op.DELETE else event.after) or event.key or {}
        row = table.row(image)
        row |= {
            f"{_METADATA}mod_type": mod,
            f"{_METADATA}table_name": table.name,
            f"{_METADATA}commit_timestamp": format_timestamp(event.timestamp),
            f"{_METADATA}server_transaction_id": version.transaction,
            f"{_METADATA}record_sequence": version.sequence,
            f"{_METADATA}is_last_record_in_transaction_in_partition": transaction
            and transaction.last_in_partition,
            f"{_METADATA}number_of_records_in_transaction": transaction and transaction.records,
            f"{_METADATA}number_of_partitions_in_transaction": transaction and transaction.partitions,
        }
        key = None if event.key is None else _json(table.row(event.key))
        return [FormattedRecord(f"{table.name}_changelog", key, _json(row), event.timestamp, version)]

    def _make_plan(self, source: Source, schema: TableSchema) -> _Table:
        return _Table(source, schema)


class _Table:
    def __init__(self, source: Source, schema: TableSchema) -> None:
        self.name = table_name(source)
        self._show = {column.name: _shown_by(column.type) for column in schema}

    def row(self, image: Image) -> dict[str, Any]:
        row = {}
        for name, value in image.items():
            show = self._show.get(name)
            try:
                row[name] = value if value is None or show is None else show(value)
            except (ValueError, TypeError, OverflowError) as error:
                raise ValueError(
                    f"column {name} of {self.name} cannot be shown for BigQuery: {error}"
                ) from None
        return row


class BigtableChangeLogFormat:
    """Formats the events of Bigtable as rows of the template's change log, one for each cell set or deleted.

    Row keys, qualifiers and values that are UTF-8 become text, others base64 in an object: `{"base64":"…"}`.

    Args:
        instance: Id of the instance, which the rows name.
        base64: Whether all row keys, qualifiers and values are base64 text.
    """

    key_encoding: Encoding = "text"
    """The key of a record is the row key itself."""

    def __init__(self, instance: str, *, base64: bool = False) -> None:
        self._instance, self._base64 = instance, base64

    def __call__(self, event: ChangeEvent) -> list[FormattedRecord]:
        """Return the records of an event, in the order of its cells."""
        key = (event.key or {}).get("row_key", b"")
        transaction = event.transaction
        shared = {
            "is_gc": transaction is not None and transaction.system,
            "source_instance": self._instance,
            "source_cluster": transaction.origin if transaction else "",
            "source_table": event.source.table,
            "tiebreaker": int(event.version.sequence or 0),
            "commit_timestamp": format_timestamp(event.timestamp),
        }
        return [
            FormattedRecord(
                event.source.table,
                key,
                _json({"row_key": self._text(key), "mod_type": cell.mod, **shared, **self._cell(cell)}),
                event.timestamp,
                event.version,
            )
            for cell in event.cells
        ]

    def _cell(self, cell: CellChange) -> dict[str, Any]:
        # A deletion of cells names a range of times in place of one time. A deletion of a family names no column.
        ranged, has_column = cell.mod == "DELETE_CELLS", cell.mod not in ("DELETE_FAMILY", "UNKNOWN")
        value = cell.value
        return {
            "column_family": cell.family or None,
            "column": self._text(cell.qualifier) if has_column else None,
            "timestamp": cell.start_us if has_column and not ranged else None,
            "timestamp_from": cell.start_us if ranged else None,
            "timestamp_to": cell.end_us,
            "value": self._text(value) if isinstance(value, bytes) else value,
        }

    def _text(self, data: bytes) -> Any:
        if self._base64:
            return b64encode(data).decode()
        try:
            return data.decode()
        except UnicodeDecodeError:
            return {"base64": b64encode(data).decode()}


def _shown_by(type_: ColumnType) -> Any:
    """Return the function from a value that is not NULL to its JSON value; None: no change."""
    if type_.kind is Kind.ARRAY and type_.element:
        element = _shown_by(type_.element)
        return element and (lambda values: [None if value is None else element(value) for value in values])
    return _SHOWN.get(type_.kind)


def _float(value: float) -> float | str:
    if value - value == 0:
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


_SHOWN: dict[Kind, Any] = {
    Kind.FLOAT32: _float,
    Kind.FLOAT64: _float,
    Kind.DATE: lambda value: date.fromordinal(value + _EPOCH_DAY).isoformat(),
    Kind.TIME: time_text,
    Kind.TIMESTAMP: format_timestamp,
    Kind.LOCAL_TIMESTAMP: lambda value: format_timestamp(value).removesuffix("Z"),
    Kind.INTERVAL: interval_text,
}
