"""YDB changefeed records, made of any source's events: JSON, and YDB's Debezium flavour. Pure.

    records = events | FormatEvents(YdbFormat("updates_feed", mode="NEW_IMAGE", virtual_timestamps=True))

| mode | insert or update | delete |
|---|---|---|
| KEYS_ONLY | `{"key":[1],"update":{}}` | `{"key":[1],"erase":{}}` |
| UPDATES | `{"key":[1],"update":{"v":"x"}}` | `{"key":[1],"erase":{}}` |
| NEW_IMAGE | `{"key":[1],"update":{},"newImage":{…}}` | `{"key":[1],"erase":{}}` |
| OLD_IMAGE | `{"key":[1],"update":{},"oldImage":{…}}` | `{"key":[1],"erase":{},"oldImage":{…}}` |
| NEW_AND_OLD_IMAGES | both images | `{"key":[1],"erase":{},"oldImage":{…}}` |

Key columns stand in `key` only. A column that was not sent is left out of `update`; NULL is null. An image is
always a whole row: an event with an incomplete one raises a ValueError. `capture.check_capture` refuses a capture type
that cannot satisfy the mode before the pipeline starts.

A row of a snapshot (READ) is an update, as in YDB's initial scan; in OLD_IMAGE mode it is the `oldImage`. A change
of the primary key is an erase of the old key and an update of the new one. A message becomes no record. A truncate
raises a ValueError, because a changefeed has no record for it. `penstock.transforms.formats.ydb_parse` reads the
records back.

Source: YDB documentation, "Change Data Capture"; YDB source code, `change_record_cdc_serializer.cpp`.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec

from penstock.errors import UsageError
from penstock.event import ChangeEvent, Image, Op, Source, TableSchema, Version
from penstock.event.keys import changed_key
from penstock.transforms.formats.capture import Mode, check_cells, check_choice, check_source
from penstock.transforms.formats.formatted import FormattedRecord
from penstock.transforms.formats.table_format import TableFormat
from penstock.transforms.formats.ydb_position import (
    VirtualTimestamp,
    barrier_timestamp,
    partition_of,
    virtual_timestamp,
)
from penstock.transforms.formats.ydb_types import Convert, type_mapping
from penstock.transforms.tables import table_name

Flavour = Literal["JSON", "DEBEZIUM_JSON"]

_json = msgspec.json.Encoder().encode


class _Record(msgspec.Struct, omit_defaults=True, gc=False):
    """The value of a record in JSON; the fields have the order of the documentation."""

    key: list[Any]
    update: dict[str, Any] | None = None
    reset: dict[str, Any] | None = None
    erase: dict[str, Any] | None = None
    newImage: dict[str, Any] | None = None  # noqa: N815  (names of the format)
    oldImage: dict[str, Any] | None = None  # noqa: N815
    ts: VirtualTimestamp | None = None
    user: str = ""


class _Payload(msgspec.Struct, omit_defaults=True, gc=False):
    """The payload of a value in the Debezium flavour."""

    op: str = ""
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    source: _Source | None = None


class _Source(msgspec.Struct, gc=False):
    version: str
    connector: str
    ts_ms: int
    snapshot: bool
    step: int
    txId: int  # noqa: N815


class YdbFormat(TableFormat["_Table"]):
    """Formats events as records of a YDB changefeed. The options have the names and values of `ADD CHANGEFEED`.

    The topic of a table is ``table/changefeed``. The key of a record is the compact JSON array of the key values
    (DEBEZIUM_JSON: an object with `payload`).

    Args:
        changefeed: Name of the changefeed.
        mode: The parts of a row that a record shows. The image modes need a source that sends whole rows.
        format: JSON, or DEBEZIUM_JSON, which has no mode UPDATES.
        virtual_timestamps: Whether records have `ts`, the virtual timestamp.
        user_sids: Whether records have `user`, where the source names one.
        schema_changes: Whether each SCHEMA event becomes a record.
        extended_dates: Whether dates and timestamps have the types of the full range (Date32, Timestamp64).
        reset: Whether, in mode UPDATES, an event that has every column of its table becomes a `reset`, which
            replaces the whole row, in place of an `update`.

    Raises:
        UsageError: an option has a value that YDB does not have.
    """

    def __init__(
        self,
        changefeed: str,
        *,
        mode: Mode = "UPDATES",
        format: Flavour = "JSON",
        virtual_timestamps: bool = False,
        user_sids: bool = False,
        schema_changes: bool = False,
        extended_dates: bool = False,
        reset: bool = False,
    ) -> None:
        super().__init__()
        check_choice("mode", mode, get_args(Mode))
        check_choice("format", format, get_args(Flavour))
        if format == "DEBEZIUM_JSON" and mode == "UPDATES":
            raise UsageError("format DEBEZIUM_JSON has no mode UPDATES: use NEW_IMAGE or NEW_AND_OLD_IMAGES")
        if format == "DEBEZIUM_JSON" and (virtual_timestamps or user_sids or schema_changes):
            raise UsageError(
                "virtual_timestamps, user_sids and schema_changes belong to format JSON; DEBEZIUM_JSON has step and "
                "txId in its source"
            )
        if reset and mode != "UPDATES":
            raise UsageError(f"reset belongs to mode UPDATES, not to {mode}")
        self._changefeed, self._mode, self._debezium = changefeed, mode, format == "DEBEZIUM_JSON"
        self._timestamps, self._users, self._schemas = virtual_timestamps, user_sids, schema_changes
        self._extended, self._reset = extended_dates, reset
        self._new = mode in ("NEW_IMAGE", "NEW_AND_OLD_IMAGES")
        self._old = mode in ("OLD_IMAGE", "NEW_AND_OLD_IMAGES")

    @property
    def required_mode(self) -> Mode:
        """The mode that the source must satisfy: `reset` too replaces whole rows."""
        return "NEW_IMAGE" if self._reset else self._mode

    def __call__(self, event: ChangeEvent) -> list[FormattedRecord]:
        """Return the records of an event, in their order.

        Raises:
            ValueError: a value or an event that the mode and the options cannot express; the message names the column.
        """
        table = self._plan(event)
        match event.op:
            case Op.MESSAGE:
                return []
            case Op.SCHEMA:
                return [self._schema_change(table, event)] if self._schemas else []
            case Op.TRUNCATE:
                raise ValueError(
                    f"a YDB changefeed has no record for the truncate of {table.name}: filter it out"
                )
        key = event.key
        if key is None:
            raise ValueError(f"{table.name} has no primary key, which a YDB changefeed needs")
        if event.cells:
            check_cells(self._mode, event)
        old_key = changed_key(event)
        if old_key is None:
            return [self._row(table, event, key, event.op, event.before, event.after)]
        return [
            self._row(table, event, old_key, Op.DELETE, event.before, None),
            self._row(table, event, key, Op.CREATE, None, event.after),
        ]

    def barrier(self, table: str, watermark: int) -> FormattedRecord:
        """Return the barrier for a watermark in nanoseconds: every event below it has been written to the partition.

        `table` is the table's name, with its schema if it has one.

        Raises:
            UsageError: the format is DEBEZIUM_JSON, which has no barriers.
        """
        if self._debezium:
            raise UsageError("format DEBEZIUM_JSON has no barriers: use JSON")
        resolved = barrier_timestamp(watermark)
        topic = f"{table}/{self._changefeed}"
        return FormattedRecord(topic, None, _json({"resolved": resolved}), watermark, Version(watermark))

    def partition(self, event: ChangeEvent, partitions: int) -> int:
        """Return the topic partition to which YDB would write an event: the argument `rule` of `ShardByKey`.

        Raises:
            ValueError: the event has no key.
        """
        table = self._plan(event)
        if event.key is None:
            raise ValueError(f"{table.name} has no primary key, which a YDB changefeed needs")
        return partition_of(_json(table.key(event.key)), partitions)

    def _make_plan(self, source: Source, schema: TableSchema) -> _Table:
        check_source(self.required_mode, source)
        return _Table(source, schema, self._changefeed, self._extended, self._mode)

    def _row(
        self, table: _Table, event: ChangeEvent, key: Image, op: Op, before: Image | None, after: Image | None
    ) -> FormattedRecord:
        key_values = table.key(key)
        new, old = self._images(table, op, before, after)
        if self._debezium:
            return self._debezium_record(table, event, key_values, op, new, old)
        record = _Record(key_values, newImage=new, oldImage=old)
        if op is Op.DELETE:
            record.erase = {}
        elif self._mode != "UPDATES":
            record.update = {}
        elif self._reset and not event.unavailable:
            record.reset = table.image(after or {}, partial=True)
        else:
            record.update = table.updated(event, op, after or {})
        if self._timestamps:
            record.ts = virtual_timestamp(event)
        if self._users:
            record.user = event.user
        return table.record(event, _json(key_values), _json(record))

    def _images(
        self, table: _Table, op: Op, before: Image | None, after: Image | None
    ) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """Return the new and the old image that the mode asks for."""
        new = table.image(after or {}) if self._new and op is not Op.DELETE else None
        if not self._old or op is Op.CREATE:
            return new, None
        if op is Op.READ:  # YDB's initial scan shows the row as the old one if the mode has no new one
            return new, None if self._new else table.image(after or {})
        # Spanner sends the old values of the changed columns only. The others are in the new row.
        return new, table.image(
            before or {} if op is Op.DELETE or before is None else {**(after or {}), **before}
        )

    def _debezium_record(
        self,
        table: _Table,
        event: ChangeEvent,
        key_values: list[Any],
        op: Op,
        new: dict[str, Any] | None,
        old: dict[str, Any] | None,
    ) -> FormattedRecord:
        key = dict(zip(table.key_names, key_values, strict=True))
        at = virtual_timestamp(event)
        source = _Source("1.0.0", "ydb", event.timestamp // 1_000_000, op is Op.READ, at.step, at.tx_id)
        created = op is Op.CREATE and self._mode == "NEW_AND_OLD_IMAGES"
        letter = {Op.DELETE: "d", Op.READ: "r"}.get(op, "c" if created else "u")
        payload = _Payload(
            letter, None if old is None else key | old, None if new is None else key | new, source
        )
        return table.record(event, _json({"payload": key}), _json({"payload": payload}))

    def _schema_change(self, table: _Table, event: ChangeEvent) -> FormattedRecord:
        columns = {name: {"type": type_} for name, type_ in table.types.items()}
        version = event.version
        known = event.source.system == "ydb" and version.sequence
        change = {
            "schemaVersion": int(version.sequence) if known else version.order,
            "columns": columns,
            "primaryKeyColumnNames": list(table.key_names),
        }
        value = {"tableChanges": [{"table": change}], "ts": virtual_timestamp(event)}
        return table.record(event, None, _json(value))


class _Table:
    """The part that is the same for the events of one table with one schema."""

    def __init__(
        self, source: Source, schema: TableSchema, changefeed: str, extended_dates: bool, mode: str
    ) -> None:
        self.name, self._mode = table_name(source), mode
        self.topic = f"{self.name}/{changefeed}"
        mappings = {column.name: type_mapping(column.type, extended_dates) for column in schema}
        self.types = {name: mapping.name for name, mapping in mappings.items()}
        self.key_names = tuple(column.name for column in schema.key_columns)
        self._keys = [(name, mappings[name].show) for name in self.key_names]
        self._values = [(name, each.show) for name, each in mappings.items() if name not in self.key_names]
        self._materialized = source.materialized
        self._changed_only = source.capture == "NEW_ROW_AND_OLD_VALUES" and not source.materialized

    def record(self, event: ChangeEvent, key: bytes | None, value: bytes) -> FormattedRecord:
        return FormattedRecord(self.topic, key, value, event.timestamp, event.version)

    def key(self, key: Image) -> list[Any]:
        return [self._shown(name, show, key[name]) for name, show in self._keys]

    def updated(self, event: ChangeEvent, op: Op, after: Image) -> dict[str, Any]:
        """Return the columns that an update wrote; if the source does not name them, all columns that it sent."""
        before = event.before
        if before is not None and op is Op.UPDATE:
            if self._changed_only:
                after = {name: value for name, value in after.items() if name in before}
            elif (
                self._materialized
            ):  # both images are whole, so a column that was written with its old value is lost
                after = {
                    name: value
                    for name, value in after.items()
                    if name not in before or before[name] != value
                }
        return self.image(after, partial=True)

    def image(self, image: Image, *, partial: bool = False) -> dict[str, Any]:
        """Return the columns outside of the key.

        Raises:
            ValueError: a value cannot be shown; or the image lacks a column and is not `partial`.
        """
        shown = {}
        for name, show in self._values:
            if name in image:
                value = image[name]
                shown[name] = value if value is None or show is None else self._shown(name, show, value)
            elif not partial:
                raise ValueError(
                    f"column {name} of {self.name} was not sent, so the image of mode {self._mode} would not be the "
                    "whole row: use mode UPDATES, or a capture type that sends whole rows"
                )
        if len(image) > len(self._values) + len(self._keys):  # a column that the schema lacks is data too
            known = self.types
            shown |= {name: value for name, value in image.items() if name not in known}
        return shown

    def _shown(self, name: str, show: Convert | None, value: Any) -> Any:
        if show is None or value is None:
            return value
        try:
            return show(value)
        except (ValueError, OverflowError, TypeError) as error:
            raise ValueError(
                f"column {name} of {self.name} cannot be shown in a YDB changefeed: {error}"
            ) from None
