"""Rows of a change feed in JSON: the columns of Delta's change data feed and of Spark's `changes()`. Pure.

    records = events | FormatEvents(ChangeFeedFormat())

    {"Id":1,"Value":"b","_change_type":"update_postimage","_commit_version":"…","_commit_timestamp":"…","_not_sent":[]}

| event | `_change_type` |
|---|---|
| CREATE, READ | `insert` |
| UPDATE | `update_preimage`, if the source sent old values, and `update_postimage`: two records |
| DELETE | `delete` |
| TRUNCATE | `truncate`, with NULL in all columns of the table |
| SCHEMA of `AddSchemaEvents` | `schema`, without the columns of a row; `_table`, `_columns` and `_columns_before` |

A record has all columns of the table, with the values of `penstock.event.plain_json`. Timestamps with nanoseconds have
nine digits. A column that the source did not send is NULL, and `_not_sent` names it. `_commit_version` is a text that
sorts as the changes of the source do, and `_commit_timestamp` has microseconds. Messages become no record. The same
rows as columns, in DataFrames and in data sources of Spark: `penstock.event.change_feed`.
"""

from __future__ import annotations

from typing import Any

from penstock.event import ChangeEvent, Image, SchemaChange, Source, TableSchema
from penstock.event.feed_rows import FEED_COLUMNS, FeedRow, check_feed_names, feed_rows
from penstock.event.plain_json import encode_json, json_values
from penstock.event.replica import encode_version
from penstock.event.schema_events import described_columns
from penstock.timestamps import format_timestamp
from penstock.transforms.formats.formatted import SCHEMA_HEADERS, FormattedRecord
from penstock.transforms.formats.table_format import TableFormat
from penstock.transforms.tables import table_name


class ChangeFeedFormat(TableFormat["_Table"]):
    """Formats events as rows of the change feed of their table.

    The topic is the name of the table. The key of a record is the primary key of its row as a JSON object: of an update
    that changes the key, the old row has the old key.
    """

    has_schema_events = True
    """Whether SCHEMA events of `AddSchemaEvents` become records."""

    def __call__(self, event: ChangeEvent) -> list[FormattedRecord]:
        """Return the records of an event, in their order.

        Raises:
            ValueError: a value that JSON cannot show, a change of Bigtable that no row can show, or a table with a
                column that has a name of the change feed; the message names the column.
        """
        table = self._plan(event)
        if event.schema_change is not None:
            return [table.schema_record(event, event.schema_change)]
        return [table.record(event, row) for row in feed_rows(event)]

    def _make_plan(self, source: Source, schema: TableSchema) -> _Table:
        return _Table(source, schema)


class _Table:
    """The columns of a table, and the rules of its records."""

    def __init__(self, source: Source, schema: TableSchema) -> None:
        check_feed_names(schema.names, source.qualified_table)
        self._topic, self._schema = table_name(source), schema
        self._none: dict[str, Any] = dict.fromkeys((*schema.names, *FEED_COLUMNS))
        self._keys = tuple(column.name for column in schema.key_columns)

    def record(self, event: ChangeEvent, row: FeedRow) -> FormattedRecord:
        values = json_values(self._schema, row.image, nanoseconds=True)
        value = encode_json({**self._none, **values, **_change(event, row.change_type, row.not_sent)})
        return FormattedRecord(
            self._topic, self._key(event, row.image), value, event.timestamp, event.version
        )

    def schema_record(self, event: ChangeEvent, change: SchemaChange) -> FormattedRecord:
        before = None if change.before is None else described_columns(change.before)
        about = {
            "_table": self._topic,
            "_columns": described_columns(self._schema.columns),
            "_columns_before": before,
        }
        value = encode_json({**_change(event, "schema", []), **about})
        return FormattedRecord(self._topic, None, value, event.timestamp, event.version, SCHEMA_HEADERS)

    def _key(self, event: ChangeEvent, image: Image) -> bytes | None:
        if event.key is None:
            return None
        # An old row may have another key than the event.
        key = {name: image.get(name, value) for name, value in event.key.items()}
        return encode_json(json_values(self._schema, key, nanoseconds=True))


def _change(event: ChangeEvent, change_type: str, not_sent: list[str]) -> dict[str, Any]:
    # Six digits, as the timestamps of columns.
    time = format_timestamp(event.timestamp)[: -len("000Z")] + "Z"
    change = (change_type, encode_version(event.version), time, not_sent)
    return dict(zip(FEED_COLUMNS, change, strict=True))
