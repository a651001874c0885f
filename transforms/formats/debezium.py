"""Debezium's records as its connectors write them to Kafka, made of any source's events, in JSON or another form. Pure.

    records = events | FormatEvents(DebeziumFormat("shop", schemas_enable=True))

One event becomes these records, all with the same key unless said otherwise:

| event | records |
|---|---|
| CREATE, READ, UPDATE | one value with op c, r or u |
| UPDATE that changes the primary key | op d with the old key, a tombstone, op c with the new key |
| DELETE | op d, then a tombstone (a record without a value) unless `tombstones_on_delete` is False |
| TRUNCATE | op t without a key; left out unless `skipped_operations` says otherwise |
| MESSAGE | op m; the key is the message's prefix |
| SCHEMA | none: Debezium carries a schema with its rows |

A column that the source did not send is the `unavailable_value_placeholder` if its type is text or bytes, and is
left out otherwise, because a number column cannot hold a text. NULL is null. So the three stay apart. Avro and Protobuf
cannot leave a column out: it is null there, and the header `__penstock.unavailable` names it.
`debezium_exact` makes the choices of Debezium's own connectors instead, and loses that difference.

An event with a `place` has a block `transaction` in its records. BEGIN and END become records of the topic
`<server>.transaction`; see `debezium_transaction`.

`ts_ms`, `ts_us` and `ts_ns` of the envelope are the commit time, not the time of processing: a repeated read gives
equal bytes.

Source: Debezium documentation 3.x, "Debezium connector for PostgreSQL" and "Debezium connector for Spanner", Data
change events.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import repeat
from typing import Any, Literal

import msgspec

from penstock.errors import UsageError
from penstock.event import ChangeEvent, Image, Op, Source, TableSchema
from penstock.transforms.formats.converter import Converter, JsonConverter, encoding_of
from penstock.transforms.formats.debezium_place import blocks_of, boundary_record
from penstock.transforms.formats.debezium_table import DebeziumTable, Options, topic_of
from penstock.transforms.formats.debezium_types import TypeModes
from penstock.transforms.formats.formatted import Encoding, FormattedRecord
from penstock.transforms.formats.table_format import TableFormat

PLACEHOLDER = "__debezium_unavailable_value"

_OPS = {Op.CREATE: "c", Op.UPDATE: "u", Op.DELETE: "d", Op.READ: "r", Op.TRUNCATE: "t", Op.MESSAGE: "m"}


class DebeziumFormat(TableFormat[DebeziumTable]):
    """Formats events as Debezium's records. The options have the names and values of Debezium's configuration.

    Args:
        server: Debezium's `topic.prefix`, the first part of topics and schema names.
        schemas_enable: Whether each key and value contains its Connect schema (`key.converter.schemas.enable`).
        converter: What writes Avro or Protobuf instead of JSON.
        key_converter: The same for keys only. Default: `converter`.
        tombstones_on_delete: Whether a tombstone, a record without a value, follows a delete.
        skipped_operations: Operations to leave out, by letter, separated by commas: c, u, d, t, or none. An update that
            changes the key is a delete and a create.
        unavailable_value_placeholder: Text in place of a column that the source did not send.
        decimal_handling_mode: How decimals are shown: precise (base64 of the unscaled value), double or string.
        time_precision_mode: How dates and times are shown.
        binary_handling_mode: How bytes are shown; bytes and base64 are equal in JSON.
        interval_handling_mode: How intervals are shown: numeric (microseconds) or string (ISO 8601).
        nullable_keys: Whether fields of keys may be null if the source does not say whether their columns may be
            NULL. Avro and Protobuf need it for a Spanner table with NULL in its primary key.
        hstore_handling_mode: How PostgreSQL's hstore is shown: as the text of a JSON object, or as a map.
        debezium_exact: Whether to make the choices of Debezium's own connectors also where they lose the difference
            between a column that was not sent and NULL.

    Raises:
        UsageError: an option has a value that Debezium does not have, or two options exclude each other.
    """

    def __init__(
        self,
        server: str,
        *,
        schemas_enable: bool = False,
        converter: Converter | None = None,
        key_converter: Converter | None = None,
        tombstones_on_delete: bool = True,
        skipped_operations: str = "t",
        unavailable_value_placeholder: str = PLACEHOLDER,
        decimal_handling_mode: Literal["precise", "double", "string"] = "precise",
        time_precision_mode: Literal[
            "adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"
        ] = "adaptive",
        binary_handling_mode: Literal["bytes", "base64", "base64-url-safe", "hex"] = "bytes",
        interval_handling_mode: Literal["numeric", "string"] = "numeric",
        nullable_keys: bool = False,
        hstore_handling_mode: Literal["json", "map"] = "json",
        debezium_exact: bool = False,
    ) -> None:
        super().__init__()
        self._tombstones = tombstones_on_delete
        # Debezium's own separator is a comma; spaces are accepted, because a person writes them.
        self._skipped = frozenset(
            part for part in re.split(r"[,\s]+", skipped_operations) if part not in ("", "none")
        )
        # `m` is no operation that Debezium can skip.
        if unknown := self._skipped - set("cudt"):
            raise UsageError(f"skipped_operations has {', '.join(sorted(unknown))}: use c, u, d, t or none")
        if schemas_enable and converter is not None:
            raise UsageError(
                "schemas_enable belongs to JSON: leave it out, or pass JsonConverter(schemas_enable=True)"
            )
        modes = {
            "decimal_handling_mode": decimal_handling_mode,
            "time_precision_mode": time_precision_mode,
            "binary_handling_mode": binary_handling_mode,
            "interval_handling_mode": interval_handling_mode,
            "hstore_handling_mode": hstore_handling_mode,
        }
        try:
            # msgspec checks the literals, so the list of allowed values is written once, in `TypeModes`.
            checked = msgspec.convert(modes, TypeModes)
        except msgspec.ValidationError as error:
            raise UsageError(f"DebeziumFormat: {error}") from None
        values = converter or JsonConverter(schemas_enable=schemas_enable)
        placeholder = unavailable_value_placeholder
        keys = key_converter or values
        self._options = Options(server, checked, placeholder, debezium_exact, nullable_keys, keys, values)

    @property
    def server(self) -> str:
        """The first part of topics and schema names."""
        return self._options.server

    def topic_of(self, source: Source) -> str:
        """Return the topic of the records of a table."""
        return topic_of(source, self.server)

    @property
    def has_tombstones(self) -> bool:
        """Whether a tombstone follows a delete."""
        return self._tombstones

    @property
    def skipped(self) -> frozenset[str]:
        """The letters of the operations that are left out."""
        return self._skipped

    def table(self, source: Source, schema: TableSchema) -> DebeziumTable:
        """Return how the events of a table are shown."""
        return self._make_plan(source, schema)

    @property
    def has_schema(self) -> bool:
        """Whether records contain or name the schema of their values."""
        converter = self._options.value_converter
        return converter.embeds_schema or not converter.as_json

    @property
    def refuses_nan(self) -> bool:
        """Whether a decimal that is NaN or infinite is refused."""
        return self._options.modes.decimal_handling_mode == "precise" and not self._options.exact

    @property
    def value_converter(self) -> Converter:
        """The converter that encodes the values of records."""
        return self._options.value_converter

    @property
    def key_encoding(self) -> Encoding:
        """JSON, or the binary form of a converter."""
        return encoding_of(self._options.key_converter)

    @property
    def value_encoding(self) -> Encoding:
        """JSON, or the binary form of a converter."""
        return encoding_of(self._options.value_converter)

    def check(self) -> None:
        """Check before the pipeline starts that the schema registry, if there is one, answers.

        Raises:
            UsageError: a secret of the registry cannot be read.
            SchemaRegistryError: the registry does not answer, or denies access.
        """
        self._options.key_converter.check()
        self._options.value_converter.check()

    def __call__(self, event: ChangeEvent) -> list[FormattedRecord]:
        """Return the records of an event, in their order.

        Raises:
            ValueError: the options cannot express a value; the message names the column.
        """
        place = event.place
        # `repeat(None)`: records of an event without a place have a null block, as many of them as are asked
        # for.
        if place is None:
            return self._records(event, repeat(None))
        if place.boundary:
            return [boundary_record(self.server, event, place, self.value_converter)]
        return self._records(event, blocks_of(event, place))

    def count(self, event: ChangeEvent) -> int:
        """Return the number of records with a value that an event becomes."""
        op = _OPS.get(event.op)
        if op is None:
            return 0
        # A changed key becomes two records; both letters may be skipped.
        if op == "u" and self._plan(event).changed_key(event) is not None:
            return len({"d", "c"} - self._skipped)
        return int(op not in self._skipped)

    def _records(self, event: ChangeEvent, blocks: Iterator[Any]) -> list[FormattedRecord]:
        """Return the records of an event; each one with a value takes its `transaction` block from `blocks`."""
        op = _OPS.get(event.op)
        # An update is looked at first: one that changes the key is a delete and a create, which may not be skipped.
        if op is None or (op in self._skipped and op != "u"):
            return []
        table = self._plan(event)
        if event.op is Op.MESSAGE:
            return [table.message(event, next(blocks))]
        before, after = event.before, event.after
        if op == "d" and before is None:
            # Add the key to the value, as Debezium's connectors do: otherwise a consumer that reads values only could
            # not tell which row is gone.
            before = event.key
        if op == "u":
            if (old_key := table.changed_key(event)) is not None:
                return self._key_change(table, event, old_key, blocks)
            if op in self._skipped:
                return []
        key, headers = table.key(event.key), () if table.leaves_out else table.unavailable(before, after)
        value = table.value(event, op, before, after, next(blocks))
        record = FormattedRecord(table.topic, key, value, event.timestamp, event.version, headers)
        if op == "d" and self._tombstones:
            return [record, table.record(event, key, None)]
        return [record]

    def _make_plan(self, source: Source, schema: TableSchema) -> DebeziumTable:
        return DebeziumTable(source, schema, self._options)

    def _key_change(
        self, table: DebeziumTable, event: ChangeEvent, old: Image, blocks: Iterator[Any]
    ) -> list[FormattedRecord]:
        """Return delete, tombstone and create, linked by headers that hold the other key."""
        # Consumers that keep a table by key need the old key to delete and the new one to insert. The headers
        # link the two, as Debezium does.
        before, after = event.before, event.after
        old_key, new_key = table.key(old), table.key(event.key)
        to_new, to_old = ("__debezium.newkey", new_key or b""), ("__debezium.oldkey", old_key or b"")
        records = []
        if "d" not in self._skipped:
            deletion = table.value(event, "d", before, None, next(blocks))
            records.append(table.record(event, old_key, deletion, (to_new, *table.unavailable(before, None))))
            if self._tombstones:
                records.append(table.record(event, old_key, None, (to_new,)))
        if "c" not in self._skipped:
            creation = table.value(event, "c", None, after, next(blocks))
            records.append(table.record(event, new_key, creation, (to_old, *table.unavailable(None, after))))
        return records
